// SPDX-License-Identifier: Apache-2.0
#include "../../tools/train/marked_layout.hpp"
#include "all.hpp"
#include "terse/compressor/mean_over_senders.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/local/sparse_loco.hpp"
#include "terse/topology/gathered.hpp"
#include "terse/topology/median_clip.hpp"

namespace experiments {
namespace {

constexpr std::uint64_t period = 16;
const terse::Adam<> inner{.learning_rate = 3e-3F};

/// By a rate of 1 without momentum it is averaging.
Maker all(float rate, float momentum) {
  return maker(terse::DiLoCo<terse::Adam<>>{
      .inner = inner, .period = period, .outer = {.rate = rate, .momentum = momentum}});
}
template <class... Ps>
Maker sparse(double ratio, float rate = 1) {
  terse::SparseLoCo<terse::Adam<>, Ps...> recipe{.inner = inner, .period = period, .outer = {.rate = rate}};
  recipe.compressor.inner.selection.ratio = ratio;
  return maker(recipe, train::matrices_alone(Model::layout()));
}

}  // namespace

Experiment sparse_loco_long() {
  using Senders = terse::MeanOverSenders<terse::Tiles<>>;
  Experiment experiment{"sparse-loco-long"};
  const Training training{.steps = 2000};
  experiment.add("480 steps, all", all(1, 0));
  experiment.add("480 steps, 6 %", sparse(0.06));
  experiment.add("480 steps, 6 %, over senders", sparse<Senders>(0.06));
  experiment.add("all", all(1, 0), training);
  experiment.add("all, outer rate 1.4", all(1.4F, 0), training);
  experiment.add("all, outer rate 0.7, momentum 0.6", all(0.7F, 0.6F), training);
  experiment.add("6 %", sparse(0.06), training);
  experiment.add("6 %, outer rate 2", sparse(0.06, 2), training);
  experiment.add("6 %, over senders", sparse<Senders>(0.06), training);
  experiment.add("6 %, over senders, clipped",
                 sparse<Senders, terse::Residual, terse::Gathered<terse::MedianClip>>(0.06), training);
  experiment.add("1 %, over senders", sparse<Senders>(0.01), training);
  return experiment;
}

}  // namespace experiments
