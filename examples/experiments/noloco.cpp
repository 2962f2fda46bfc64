// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/local/noloco.hpp"

#include "all.hpp"
#include "terse/optimizer/adam.hpp"

namespace experiments {
namespace {

/// NoLoCo's outer step that takes any momentum.
struct AnyMomentum : terse::PairMomentum {
  static void check_pairs(int) {}
};
using Unlimited =
    terse::recipes::LocalUpdatesOf<terse::Adam<>, AnyMomentum, terse::Synchronous, terse::Inside::alone,
                                   terse::Dense, terse::NoErrorFeedback, terse::PairMomentum::Pairs>;

const terse::Adam<> inner{.learning_rate = 1e-3F};

}  // namespace

Experiment noloco() {
  Experiment experiment{"noloco"};
  experiment.columns.push_back({"spread after 3/4", 2, &Figures::spread_before});
  experiment.columns.push_back({"spread in the end", 2, &Figures::spread});
  const Training eight{.ranks = 8};
  for (const float momentum : {0.0F, 0.5F, 0.8F, 0.9F})
    experiment.add(
        "momentum " + std::to_string(momentum).substr(0, 3),
        maker(terse::NoLoCo<terse::Adam<>>{.inner = inner, .period = 8, .outer = {.momentum = momentum}}),
        eight);
  Unlimited beyond{.inner = inner, .period = 8};
  beyond.outer.momentum = 0.9F;
  experiment.add("momentum 0.9, not refused", maker(beyond), eight);
  return experiment;
}

}  // namespace experiments
