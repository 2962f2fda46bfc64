// SPDX-License-Identifier: Apache-2.0
#include "../../tools/train/marked_layout.hpp"
#include "all.hpp"
#include "terse/compressor/mean_over_senders.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/demo.hpp"
#include "terse/optimizer/dion.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/local/sparse_loco.hpp"

namespace experiments {
namespace {

using terse::Adam;
using Int4 = terse::Uniform<4, terse::Nearest, terse::Symmetric, terse::MaxAbs, terse::PerBlock<128>>;

constexpr int width = 1024;
const Training training{.steps = 240, .width = width};

terse::Layout whole() { return Model::layout(width); }
terse::Layout matrices() { return train::matrices_alone(whole()); }

/// At a rate for hidden matrices and one for the others.
template <int R>
Maker by_dion(float hidden, float others) {
  return maker(terse::Dion<R>{.learning_rate = others}, train::hidden_matrices(whole(), R, hidden / others));
}
Maker by_demo(double coefficients) {
  return maker(
      terse::DeMo<terse::Dct<>>{.learning_rate = 2e-3F,
                                .compressor = {.inner = {.selection = {.ratio = coefficients / 4096}}},
                                .error_feedback = {.follows_rate = true}},
      matrices());
}
Maker by_sparse_loco(double ratio) {
  terse::SparseLoCo<Adam<>, terse::MeanOverSenders<terse::Tiles<>>> recipe{.inner = {.learning_rate = 1e-3F},
                                                                           .period = 4};
  recipe.compressor.inner.selection.ratio = ratio;
  return maker(recipe, matrices());
}

}  // namespace

Experiment wide() {
  Experiment experiment{"wide"};
  const auto add = [&](const std::string& row, const Maker& make) { experiment.add(row, make, training); };
  add("Adam", maker(Adam<>{.learning_rate = 3e-3F}, whole()));
  add("Dion, rank 32", by_dion<32>(0.1F, 1e-3F));
  add("Dion, rank 8", by_dion<8>(0.1F, 1e-3F));
  add("Dion, rank 2", by_dion<2>(0.03F, 3e-3F));
  add("Dion, rank 1", by_dion<1>(0.03F, 3e-3F));
  for (const int k : {64, 12, 2}) add("DeMo, k " + std::to_string(k), by_demo(k));
  add("DiLoCo, H 16, 4 bits",
      maker(terse::DiLoCo<Adam<>, Int4>{.inner = {.learning_rate = 1e-3F}, .period = 16}, whole()));
  add("SparseLoCo, H 4, 1.5 %, over senders", by_sparse_loco(0.015));
  return experiment;
}

}  // namespace experiments
