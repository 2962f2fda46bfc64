// SPDX-License-Identifier: Apache-2.0

// In place of the other units: the trainer with the optimizers of the quickstart alone, which is compiled in a fifth of
// the time.

#include <fmt/format.h>

#include "any_optimizer.hpp"
#include "trainer.hpp"

namespace train {
namespace {

[[noreturn]] void refuse(Optimizer kind) {
  throw input_error(fmt::format(
      "--optimizers: the quickstart's trainer has adam, momentum-sgd and one-bit-adam alone. Build "
      "examples/train for {}",
      name(kind)));
}

}  // namespace

const Program program = Program::quickstart_trainer;

using Made = std::unique_ptr<AnyOptimizer>;
using terse::Layout;

template <>
Made make_quantized_optimizer(Optimizer kind, const Options&, OnHost&, const Layout&) {
  refuse(kind);
}
template <>
Made make_sparse_optimizer(Optimizer kind, const Options&, std::uint64_t, OnHost&, const Layout&) {
  refuse(kind);
}
template <>
Made make_lamb_optimizer(Optimizer kind, const Options&, std::uint64_t, OnHost&, const Layout&) {
  refuse(kind);
}
template <>
Made make_muon_optimizer(const Options&, OnHost&, const Layout&) {
  refuse(Optimizer::muon);
}
template <>
Made make_zero_one_adam(const Options&, const Stages&, OnHost&, const Layout&) {
  refuse(Optimizer::zero_one_adam);
}
template <>
Made make_local_optimizer(Optimizer kind, const Options&, std::uint64_t, OnHost&, const Layout&) {
  refuse(kind);
}
template <>
Made make_gossip_optimizer(Optimizer kind, const Options&, OnHost&, const Layout&) {
  refuse(kind);
}
template <>
Made make_layered_one_bit_adam(const Options&, std::uint64_t, OnHost&, const Layout&) {
  throw input_error("--layers: the quickstart's trainer has signs alone. Build examples/train");
}
template <>
Made make_low_rank_optimizer(const Options&, OnHost&, const Layout&) {
  refuse(Optimizer::power_sgd);
}

}  // namespace train
