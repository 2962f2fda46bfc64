// SPDX-License-Identifier: Apache-2.0
#include "all.hpp"
#include "terse/compressor/hadamard.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/error_feedback/averaged_residual.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/momentum_sgd.hpp"

namespace experiments {
namespace {

template <int Bits, class Book>
using Int = terse::Uniform<Bits, terse::Nearest, Book, terse::MaxAbs, terse::PerBlock<128>>;

template <class C, class F>
Maker adam() {
  return maker(terse::Adam<C, F>{.learning_rate = 1e-3F});
}

template <class C, class F>
Maker sgd() {
  return maker(terse::MomentumSgd<C, F>{.learning_rate = 0.05F});
}

template <class C>
void add(Experiment& experiment, const std::string& levels) {
  experiment.add(levels, adam<C, terse::Unchecked<terse::NoErrorFeedback>>());
  experiment.add(levels + ", feedback", adam<C, terse::Residual>());
  experiment.add(levels + ", LoCo", adam<C, terse::AveragedResidual<>>());
}

}  // namespace

Experiment bits() {
  using terse::Asymmetric;
  using terse::Symmetric;
  Experiment experiment{"bits"};
  experiment.add("fp32", maker(terse::Adam<>{.learning_rate = 1e-3F}));
  add<Int<4, Symmetric>>(experiment, "15 levels");
  add<Int<2, Asymmetric>>(experiment, "4 levels");
  add<Int<2, Symmetric>>(experiment, "3 levels");
  experiment.add("15 levels, Hadamard, feedback",
                 adam<terse::Hadamard<Int<4, Symmetric>>, terse::Residual>());
  experiment.add("4 levels, Hadamard, feedback",
                 adam<terse::Hadamard<Int<2, Asymmetric>>, terse::Residual>());
  using Three = Int<2, Symmetric>;
  experiment.add("SGD, 3 levels", sgd<Three, terse::Unchecked<terse::NoErrorFeedback>>());
  experiment.add("SGD, 3 levels, feedback", sgd<Three, terse::Residual>());
  experiment.add("SGD, 3 levels, LoCo", sgd<Three, terse::AveragedResidual<>>());
  return experiment;
}

}  // namespace experiments
