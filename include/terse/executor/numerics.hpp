// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "terse/core/config.hpp"
#include "terse/core/hash.hpp"
#include "terse/executor/host.hpp"
#include "terse/executor/sparse.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// A hash of what this build's arithmetic does: contraction, flushing of denormals, rounding of sqrt. The
/// same everywhere that the same bits come out.
TERSE_HD inline std::uint64_t numerics_probe() {
  volatile float a = 1.0F + 0x1p-12F, b = 1.0F + 0x1p-12F, c = -1.0F - 0x1p-11F;
  volatile float tiny = std::numeric_limits<float>::denorm_min(), two = 2;
  const float product = a * b;
  const float contracted = a * b + c;  // 0x1p-24 where contracted, else 0
  const float kept = tiny * two;       // 0 where denormals are flushed
  const float root = std::sqrt(float{two});
  std::uint64_t hash = mix_hash(0, std::bit_cast<std::uint32_t>(product));
  hash = mix_hash(hash, std::bit_cast<std::uint32_t>(contracted));
  hash = mix_hash(hash, std::bit_cast<std::uint32_t>(kept));
  return mix_hash(hash, std::bit_cast<std::uint32_t>(root));
}

TERSE_NUMERICS_END

namespace detail {
struct Probe {
  std::uint64_t* to;
  TERSE_HD void operator()(index_t) const { *to = numerics_probe(); }
};
}  // namespace detail

/// The probe's result where an executor computes.
template <Executor E>
std::uint64_t numerics_of([[maybe_unused]] E executor) {
  std::uint64_t probe = 0;
  if constexpr (GridExecutor<E>) {
    buffer<std::uint64_t, typename E::memory> place(1);
    for_each_entry(executor, 1, detail::Probe{place.data()});
    fetch(executor, in<E, std::uint64_t>(place.all()), view<std::uint64_t>(&probe, 1));
  } else {
    probe = numerics_probe();
  }
  return probe;
}

}  // namespace terse
