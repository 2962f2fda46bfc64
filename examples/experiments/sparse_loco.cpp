// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/local/sparse_loco.hpp"
#include "../../tools/train/marked_layout.hpp"
#include "all.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/local/local_sgd.hpp"

namespace experiments {
namespace {

const terse::Adam<> inner{.learning_rate = 1e-3F};

Maker sparse(std::uint64_t period, double ratio) {
  terse::SparseLoCo<terse::Adam<>> recipe{.inner = inner, .period = period};
  recipe.compressor.inner.selection.ratio = ratio;
  return maker(recipe, train::matrices_alone(Model::layout()));
}
Maker forgetful(std::uint64_t period, double ratio) {
  return maker(
      terse::LocalSgd<terse::Adam<>, terse::Tiles<>, terse::AllGather, terse::Unchecked<terse::None>>{
          .inner = inner, .period = period, .compressor = {.inner = {.selection = {.ratio = ratio}}}},
      train::matrices_alone(Model::layout()));
}

}  // namespace

Experiment sparse_loco() {
  Experiment experiment{"sparse-loco"};
  const Training longer{.steps = 1920};
  for (const std::uint64_t period : {4U, 16U}) {
    const std::string when = "H " + std::to_string(period);
    experiment.add(when + ", all", maker(terse::LocalSgd<terse::Adam<>>{.inner = inner, .period = period}),
                   longer);
    experiment.add(when + ", 6 %", sparse(period, 0.06), longer);
    experiment.add(when + ", 1 %", sparse(period, 0.01), longer);
    experiment.add(when + ", 6 %, no feedback", forgetful(period, 0.06), longer);
    experiment.add(when + ", 1 %, no feedback", forgetful(period, 0.01), longer);
  }
  return experiment;
}

}  // namespace experiments
