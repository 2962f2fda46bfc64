// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cinttypes>
#include <cstdio>

#include "optimizer/support.hpp"

// A rank program whose printed hashes must be the same for every compiler, optimization level, instruction
// set and transport. Its gradients depend on the parameters, so that one wrong bit spreads.

namespace bits {

using namespace terse;
using namespace terse::test;

// The gradient, too, must be rounded alike by all compilers.
TERSE_NUMERICS_BEGIN

template <class R, class T>
void hash_one(const char* name, const R& recipe, T& transport, const Options& options) {
  Layout layout;
  layout.add({"w", {70, 130}}).add({"b", {70}, 2, 0, false}).add({"u", {1001}}).add({"one", {1}});
  Optimizer optimizer{recipe, transport, layout, options};
  Floats x = start(layout), g(x.size());
  for (std::uint64_t step = 1; step <= 60; ++step) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      // A double well, each rank with a tilt of its own.
      const float tilt = 0.3F * noise(5, transport.rank(), step, static_cast<index_t>(i));
      g[i] = x[i] * x[i] * x[i] - x[i] + tilt;
    }
    optimizer.recipe.learning_rate = 1e-2F / static_cast<float>(step);
    optimizer.step(x, g);
  }
  struct Hashes {
    std::uint64_t parameters = 0, momentum = 0;
  };
  Hashes mine;
  for (const float value : x)
    mine.parameters = mix_hash(mine.parameters, std::bit_cast<std::uint32_t>(value));
  Seen seen;
  optimizer.walk(seen);
  for (const double value : seen.parts.at("momentum"))
    mine.momentum = mix_hash(mine.momentum, std::bit_cast<std::uint32_t>(static_cast<float>(value)));

  // Momentum before compression is each rank's own.
  std::uint64_t hash = mine.parameters;
  Assembly<Hashes, T> everyone(transport);
  for (const Hashes& other : everyone(transport, mine, Phase::setup)) {
    if (other.parameters != mine.parameters)
      throw error(std::string(name) + ": ranks disagree", transport.rank());
    hash = mix_hash(hash, other.momentum);
  }
  if (transport.rank() == 0) std::printf("%s %016" PRIx64 "\n", name, hash);
}

TERSE_NUMERICS_END

template <class T>
void hash_all(T& transport) {
  const FrozenVariance freeze{.freeze = AtStep{15}};
  hash_one("adam", Adam<>{.weight_decay = 0.01F}, transport, {.clip_norm = 5});
  hash_one("scatter-gather", OneBitAdam<>{.preconditioner = freeze}, transport, {.clip_norm = 5});
  hash_one("ring",
           OneBitAdam<ScaledSign<MeanAbs, PerBlock<128>>, FrozenVariance, Ring>{.preconditioner = freeze},
           transport, {});
  hash_one("stochastic", QuantizedSgd<Qsgd<4>>{}, transport, {});
  hash_one("casts",
           ErrorFeedbackSgd<Cast<e4m3, MaxAbs, PerBlock<256>>, HeavyBall, ScatterGather, Int8Residual>{
               .error_feedback = {.follows_rate = true}},
           transport, {});
  hash_one("sparse", DeepGradientCompression<>{.compressor = {.selection = {.warmup_steps = 40}}}, transport,
           {});
  hash_one("low-rank", PowerSgd<2>{}, transport, {});
}

}  // namespace bits
