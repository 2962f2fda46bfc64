// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "../../tools/train/marked_layout.hpp"
#include "all.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/muon.hpp"

namespace experiments {
namespace {

/// Around Muon; the messages by Ps.
template <class... Ps>
terse::DiLoCo<terse::Muon<>, Ps...> around(float inner_rate, float rate, float momentum) {
  return {
      .inner = {.learning_rate = inner_rate}, .period = 16, .outer = {.rate = rate, .momentum = momentum}};
}

}  // namespace

Experiment muloco() {
  Experiment experiment{"muloco"};
  const terse::Layout layout = train::hidden_matrices(train::matrices_alone(Model::layout()));
  for (const float inner_rate : {3e-3F, 6e-3F})
    for (const auto& [rate, momentum] : {std::pair{1.0F, 0.0F}, {0.7F, 0.6F}, {0.7F, 0.9F}})
      experiment.add("rate " + std::to_string(inner_rate).substr(0, 5) + ", outer momentum " +
                         std::to_string(momentum).substr(0, 3),
                     maker(around(inner_rate, rate, momentum), layout));
  auto two_bits = around<terse::Uniform<2>, terse::Residual>(6e-3F, 0.7F, 0.6F);
  two_bits.error_feedback.decay = 0.9F;
  experiment.add("2 bits, rate 0.006, outer momentum 0.6", maker(two_bits, layout));
  return experiment;
}

}  // namespace experiments
