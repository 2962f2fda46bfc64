// SPDX-License-Identifier: Apache-2.0
#include "all.hpp"
#include "terse/compressor/hadamard.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/error_feedback/averaged_residual.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/optimizer/adam.hpp"

namespace experiments {
namespace {

template <int Bits>
using Int = terse::Uniform<Bits, terse::Nearest, terse::Symmetric, terse::MaxAbs, terse::PerBlock<128>>;

constexpr float rate = 1e-3F;

template <int Bits>
void add(Experiment& experiment) {
  const std::string bits = "int" + std::to_string(Bits);
  experiment.add(bits, maker(terse::Adam<Int<Bits>, terse::Unchecked<terse::None>>{.learning_rate = rate}));
  experiment.add(bits + ", feedback", maker(terse::Adam<Int<Bits>, terse::Residual>{.learning_rate = rate}));
  experiment.add(bits + ", LoCo",
                 maker(terse::Adam<Int<Bits>, terse::AveragedResidual<>>{.learning_rate = rate}));
  experiment.add(
      bits + ", Hadamard",
      maker(terse::Adam<terse::Hadamard<Int<Bits>>, terse::Unchecked<terse::None>>{.learning_rate = rate}));
  experiment.add(bits + ", Hadamard, feedback",
                 maker(terse::Adam<terse::Hadamard<Int<Bits>>, terse::Residual>{.learning_rate = rate}));
}

}  // namespace

Experiment bits() {
  Experiment experiment{"bits"};
  experiment.add("Adam", maker(terse::Adam<>{.learning_rate = rate}));
  add<4>(experiment);
  add<2>(experiment);
  return experiment;
}

}  // namespace experiments
