// SPDX-License-Identifier: Apache-2.0
#include "../../tools/train/marked_layout.hpp"
#include "all.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/muon.hpp"

namespace experiments {
namespace {

const terse::Muon<> inner{.learning_rate = 1e-3F};

}  // namespace

Experiment muloco() {
  Experiment experiment{"muloco"};
  const terse::Layout layout = train::hidden_matrices(train::matrices_alone(Model::layout()));
  for (const auto& [rate, momentum] : {std::pair{1.0F, 0.0F}, {0.7F, 0.6F}, {0.7F, 0.9F}})
    experiment.add("fp32, outer momentum " + std::to_string(momentum).substr(0, 3),
                   maker(
                       terse::DiLoCo<terse::Muon<>>{
                           .inner = inner, .period = 16, .outer = {.rate = rate, .momentum = momentum}},
                       layout));
  experiment.add("2 bits, outer momentum 0.6",
                 maker(
                     terse::DiLoCo<terse::Muon<>, terse::Uniform<2>, terse::Residual>{
                         .inner = inner,
                         .period = 16,
                         .outer = {.rate = 0.7F, .momentum = 0.6F},
                         .error_feedback = {.decay = 0.9F}},
                     layout));
  return experiment;
}

}  // namespace experiments
