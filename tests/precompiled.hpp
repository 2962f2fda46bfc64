// SPDX-License-Identifier: Apache-2.0
// The library for tests and programs of a build without optimization.
#pragma once

#include <terse/terse.hpp>

#include "precompiled_instances.hpp"

namespace terse::precompiled {

inline void emulated(ThroughHost<Threads, executor::emulated>& transport,
                     view<float, memory::emulated> parameters) {
  using Emulated = executor::emulated;
  step<MomentumSgd<>, ThroughHost<Threads, Emulated>, Emulated>(transport, parameters, parameters);
  step<OneBitAdam<>, ThroughHost<Threads, Emulated>, Emulated>(transport, parameters, parameters);
}

}  // namespace terse::precompiled
