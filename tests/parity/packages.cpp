// SPDX-License-Identifier: Apache-2.0

// Follows optimizers that packages of others have, too. tests/parity/packages compares.
//
// Usage: packages GRADIENTS N FOLDER        writes FOLDER/METHOD, see follow.hpp

#include <limits>

#include "follow.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/d_adam.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/local/streaming_diloco.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/one_bit_lamb.hpp"
#include "terse/optimizer/power_sgd.hpp"
#include "terse/optimizer/zero_one_adam.hpp"

namespace {

constexpr float unbounded = std::numeric_limits<float>::infinity();

using AwcDAdam = terse::ParameterMixing<
    terse::AdaptWithCombine<terse::Locally<terse::ExponentialAverage, terse::AdamVariance>>,
    terse::Mixing<terse::graph::OnePeerHypercube>>;

}  // namespace

int main(int argc, char** argv) {
  return parity::main(argc, argv, [](const parity::Given& given, const std::string& folder) {
    const auto n = static_cast<terse::index_t>(given.n);
    terse::Layout flat, layers, matrices;
    flat.add({"x", {n}});
    layers.add({"first", {n / 2}}).add({"second", {n / 4}}).add({"third", {n / 4}});
    matrices.add({"wide", {20, 30}}).add({"tall", {20, 15}}).add({"bias", {n - 900}});
    const terse::FrozenVariance frozen{.freeze = terse::AtStep{10}, .update_clip = unbounded};

    parity::follow(terse::OneBitAdam<>{.weight_decay = 0.1F, .preconditioner = frozen}, flat, given,
                   folder + "one-bit-adam");
    parity::follow(
        terse::OneBitLamb<terse::ScaledSign<terse::RootMeanSquare, terse::Whole>>{
            .learning_rate = 0.1F, .weight_decay = 0.1F, .preconditioner = frozen},
        layers, given, folder + "one-bit-lamb");
    parity::follow(terse::ZeroOneAdam<>{.update_clip = unbounded,
                                        .variance_freeze_step = 20,
                                        .variance_updates = 4,
                                        .local_interval_steps = 8,
                                        .most_local_steps = 1},
                   flat, given, folder + "zero-one-adam");
    parity::follow(terse::ZeroOneAdam<terse::Dense, terse::NoErrorFeedback>{.update_clip = unbounded,
                                                                            .variance_freeze_step = 20,
                                                                            .variance_updates = 4,
                                                                            .local_interval_steps = 8,
                                                                            .most_local_steps = 4},
                   flat, given, folder + "zero-one-adam-exact");
    parity::follow(terse::LocalSgd<terse::Adam<>>{.period = 8}, flat, given, folder + "local-sgd");
    parity::follow(terse::DiLoCo<terse::Adam<>>{.period = 8}, flat, given, folder + "diloco");
    parity::follow(
        terse::StreamingDiLoCo<terse::Adam<>>{
            .period = 8, .outer = {.local_share = 0.25F}, .schedule = {.count = 2, .delay = 2}},
        layers, given, folder + "streaming-diloco");
    parity::follow(AwcDAdam{.learning_rate = 1e-3F}, flat, given, folder + "d-adam");
    parity::follow(terse::PowerSgd<2>{.learning_rate = 0.01F, .momentum_correction = {.momentum = 0.9F}},
                   matrices, given, folder + "power-sgd", "low_rank_q");
  });
}
