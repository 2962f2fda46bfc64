// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/lion.hpp"
#include "../../tools/train/marked_layout.hpp"
#include "all.hpp"
#include "terse/compressor/sign.hpp"
#include "terse/optimizer/distributed_lion.hpp"

namespace experiments {
namespace {

/// Votes of one bit, where what is 0 votes +, and a tie is +.
using OneBitVotes =
    terse::Averaging<terse::LocalLion<terse::Counted<terse::Tie::plus>>, terse::Unchecked<terse::UnitSign>,
                     terse::NoErrorFeedback, terse::ScatterGather>;

}  // namespace

Experiment lion() {
  constexpr float rate = 1e-3F;
  Experiment experiment{"lion"};
  experiment.columns.push_back({"dead weights moved", 4, &Figures::dead});
  const terse::Layout layout = train::matrices_alone(Model::layout());
  experiment.add("Lion", maker(terse::Lion<>{.learning_rate = rate}, layout));
  experiment.add("mean of signs", maker(terse::AveragedLion<>{.learning_rate = rate}, layout));
  experiment.add("votes, a tie is 0", maker(terse::DistributedLion<>{.learning_rate = rate}, layout));
  experiment.add("votes, a tie is +", maker(OneBitVotes{.learning_rate = rate}, layout));
  return experiment;
}

}  // namespace experiments
