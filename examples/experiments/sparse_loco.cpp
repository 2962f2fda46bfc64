// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/local/sparse_loco.hpp"

#include "../../tools/train/marked_layout.hpp"
#include "all.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/local/local_sgd.hpp"

namespace experiments {
namespace {

const terse::Adam<> inner{.learning_rate = 1e-3F};

Maker dense(std::uint64_t period) {
  return maker(terse::LocalSgd<terse::Adam<>>{.inner = inner, .period = period});
}
/// Averaging that goes further than the mean, where the rate is above 1.
Maker descent(float rate) {
  return maker(
      terse::DiLoCo<terse::Adam<>>{.inner = inner, .period = 4, .outer = {.rate = rate, .momentum = 0}});
}
Maker sparse(std::uint64_t period, double ratio, float rate = 1) {
  terse::SparseLoCo<terse::Adam<>> recipe{.inner = inner, .period = period, .outer = {.rate = rate}};
  recipe.compressor.inner.selection.ratio = ratio;
  return maker(recipe, train::matrices_alone(Model::layout()));
}
Maker forgetful(std::uint64_t period, double ratio) {
  return maker(
      terse::LocalSgd<terse::Adam<>, terse::Tiles<>, terse::AllGather,
                      terse::Unchecked<terse::NoErrorFeedback>>{
          .inner = inner, .period = period, .compressor = {.inner = {.selection = {.ratio = ratio}}}},
      train::matrices_alone(Model::layout()));
}

}  // namespace

Experiment sparse_loco() {
  Experiment experiment{"sparse-loco"};
  for (const std::uint64_t steps : {480U, 960U}) {
    const std::string first = std::to_string(steps) + " steps, H 4, ";
    const Training training{.steps = steps};
    experiment.add(first + "all", dense(4), training);
    experiment.add(first + "6 %", sparse(4, 0.06), training);
    experiment.add(first + "1 %", sparse(4, 0.01), training);
    experiment.add(first + "1 %, no feedback", forgetful(4, 0.01), training);
  }
  experiment.add("480 steps, H 4, all, outer rate 1.4", descent(1.4F));
  experiment.add("480 steps, H 4, 6 %, outer rate 1.4", sparse(4, 0.06, 1.4F));
  experiment.add("480 steps, H 4, 1 %, outer rate 1.4", sparse(4, 0.01, 1.4F));
  const Training training{.steps = 960};
  experiment.add("960 steps, H 16, all", dense(16), training);
  experiment.add("960 steps, H 16, 1 %", sparse(16, 0.01), training);
  experiment.add("960 steps, H 16, 1 %, no feedback", forgetful(16, 0.01), training);
  return experiment;
}

}  // namespace experiments
