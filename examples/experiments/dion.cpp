// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/dion.hpp"

#include "../../tools/train/marked_layout.hpp"
#include "all.hpp"
#include "terse/optimizer/muon.hpp"

namespace experiments {
namespace {

template <int R>
void add(Experiment& experiment) {
  experiment.add(
      "rank " + std::to_string(R) + " of 128",
      maker(terse::Dion<R>{.learning_rate = 1e-3F}, train::hidden_matrices(Model::layout(), R, 30)));
}

}  // namespace

Experiment dion() {
  Experiment experiment{"dion"};
  experiment.add("Muon, all 128",
                 maker(terse::Muon<>{.learning_rate = 1e-3F, .hidden = {.scale = terse::MatrixScale::shape}},
                       train::hidden_matrices(Model::layout(), 0, 30)));
  add<48>(experiment);
  add<32>(experiment);
  add<16>(experiment);
  add<8>(experiment);
  return experiment;
}

}  // namespace experiments
