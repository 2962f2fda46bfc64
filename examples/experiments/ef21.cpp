// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/ef21_sgd.hpp"

#include "../../tools/train/marked_layout.hpp"
#include "all.hpp"
#include "terse/optimizer/e_control.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"

namespace experiments {
namespace {

constexpr float rate = 0.2F;

}  // namespace

Experiment ef21() {
  Experiment experiment{"ef21"};
  const terse::Layout layout = train::matrices_alone(Model::layout());
  const terse::TopK<> one_percent{.selection = {.ratio = 0.01}};
  for (const int batch : {4, 32, 256}) {
    const std::string at = ", batch " + std::to_string(batch);
    const Training training{.steps = 240, .batch = batch};
    experiment.add("EF21" + at,
                   maker(terse::Ef21Sgd<>{.learning_rate = rate, .compressor = one_percent}, layout),
                   training);
    experiment.add("EF21-SGDM" + at,
                   maker(terse::Ef21Sgdm<>{.learning_rate = rate, .compressor = one_percent}, layout),
                   training);
    experiment.add("EControl" + at,
                   maker(terse::EControl<>{.learning_rate = rate, .compressor = one_percent}, layout),
                   training);
    experiment.add(
        "classic feedback" + at,
        maker(
            terse::ErrorFeedbackSgd<terse::TopK<>, terse::AllGather>{
                .learning_rate = rate, .compressor = one_percent, .error_feedback = {.follows_rate = true}},
            layout),
        training);
  }
  return experiment;
}

}  // namespace experiments
