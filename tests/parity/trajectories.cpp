// SPDX-License-Identifier: Apache-2.0

// Follows optimizers that PyTorch has, too. tests/parity/run compares.
//
// Usage: trajectories GRADIENTS N FOLDER        writes FOLDER/METHOD, see follow.hpp

#include "follow.hpp"
#include "terse/optimizer/adagrad.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/amsgrad.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/momentum_sgd.hpp"
#include "terse/optimizer/muon.hpp"
#include "terse/optimizer/nadam.hpp"
#include "terse/optimizer/power_sgd.hpp"
#include "terse/optimizer/rms_prop.hpp"

int main(int argc, char** argv) {
  return parity::main(argc, argv, [](const parity::Given& given, const std::string& folder) {
    terse::Layout flat, matrices;
    flat.add({"x", {static_cast<terse::index_t>(given.n)}});
    matrices.add({.name = "wide", .shape = {20, 30}, .hidden = true})
        .add({.name = "tall", .shape = {20, 15}, .hidden = true})
        .add({"bias", {static_cast<terse::index_t>(given.n) - 900}});
    const auto follow = [&](const auto& recipe, const std::string& method) {
      parity::follow(recipe, flat, given, folder + method);
    };
    const terse::MomentumSgd<> sgd{.learning_rate = 0.01F, .momentum_correction = {.momentum = 0.9F}};

    follow(terse::Adam<>{}, "adam");
    follow(terse::AdamW<>{.weight_decay = 0.1F}, "adamw");
    follow(terse::Amsgrad<>{.weight_decay = 0.1F}, "amsgrad");
    follow(terse::Nadam<>{}, "nadam");
    follow(terse::Adagrad<>{}, "adagrad");
    follow(terse::RmsProp<>{}, "rms-prop");
    follow(sgd, "momentum-sgd");
    follow(terse::MomentumSgd<>{.learning_rate = 0.01F,
                                .momentum_correction = {.momentum = 0.9F, .nesterov = true}},
           "nesterov");
    follow(
        terse::PostLocalSgd<terse::MomentumSgd<>>{.inner = sgd, .period = 4, .average_gradients_until = 10},
        "post-local-sgd");

    parity::follow(terse::Muon<>{.weight_decay = 0.1F}, matrices, given, folder + "muon");
    parity::follow(terse::Muon<>{.nesterov = false, .hidden = {terse::MatrixScale::shape}}, matrices, given,
                   folder + "muon-shape");
    parity::follow(
        terse::PowerSgd<2>{
            .learning_rate = 0.01F, .warmup_steps = 2, .momentum_correction = {.momentum = 0.9F}},
        matrices, given, folder + "power-sgd", "low_rank_q");
  });
}
