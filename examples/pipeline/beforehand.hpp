// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "run.hpp"
#include "terse/core/layout.hpp"
#include "terse/transport/any.hpp"

namespace pipeline {

/// The whole model's parameters, which fine-tuning starts from.
struct Beforehand {
  terse::Layout layout;
  std::vector<float> parameters;
};

/// Stage 0 trains the model that isn't cut yet, exactly and alone, or reads from the cache what it has trained before;
/// the others wait for it. Collective.
Beforehand train_beforehand(const Job& job, std::uint64_t seed, terse::AnyTransport& transport);

/// Bits per second / 10^6 of a link on which the fp32 message of a micro-batch takes as long as `forward_passes` of a
/// stage, while all stages are busy: they run the model that isn't cut for a while, all at once. Collective.
double measure_link(const Job& job, double forward_passes, terse::AnyTransport& transport);

}  // namespace pipeline
