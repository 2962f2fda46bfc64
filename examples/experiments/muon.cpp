// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/muon.hpp"

#include "../../tools/train/marked_layout.hpp"
#include "all.hpp"
#include "terse/optimizer/adam.hpp"

namespace experiments {

Experiment muon() {
  Experiment experiment{"muon"};
  for (const Training& training : {Training{.batch = 32}, Training{.steps = 240, .batch = 256}}) {
    const std::string batch = ", batch " + std::to_string(4 * training.batch);
    for (const float rate : {3e-3F, 1e-2F}) {
      const std::string at = ", rate " + std::to_string(rate).substr(0, 5);
      experiment.add("Adam" + batch + at, maker(terse::Adam<>{.learning_rate = rate}), training);
      experiment.add("Muon" + batch + at,
                     maker(terse::Muon<>{.learning_rate = rate}, train::hidden_matrices(Model::layout())),
                     training);
    }
  }
  return experiment;
}

}  // namespace experiments
