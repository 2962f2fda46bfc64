// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/demo.hpp"

#include "../../tools/train/marked_layout.hpp"
#include "all.hpp"

namespace experiments {
namespace {

template <class C>
Maker sent(double coefficients, float decay = 0.999F, float rate = 2e-3F) {
  return maker(terse::DeMo<C>{.learning_rate = rate,
                              .decay = decay,
                              .compressor = {.inner = {.selection = {.ratio = coefficients / 4096}}},
                              .error_feedback = {.follows_rate = true}},
               train::matrices_alone(Model::layout()));
}

}  // namespace

Experiment demo() {
  using Waves = terse::Dct<>;
  using Elements = terse::Tiles<>;
  Experiment experiment{"demo"};
  for (const int k : {1, 4, 32, 256, 4096}) experiment.add("waves, k " + std::to_string(k), sent<Waves>(k));
  for (const int k : {1, 4, 32, 256}) experiment.add("elements, k " + std::to_string(k), sent<Elements>(k));
  for (const float decay : {0.9F, 0.95F, 0.99F})
    experiment.add("waves, k 4, decay " + std::to_string(decay).substr(0, 4), sent<Waves>(4, decay));
  for (const int k : {32, 4096})
    experiment.add("waves, k " + std::to_string(k) + ", twice the rate", sent<Waves>(k, 0.999F, 4e-3F));
  return experiment;
}

}  // namespace experiments
