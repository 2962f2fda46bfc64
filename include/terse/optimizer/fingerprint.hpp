// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "terse/core/config.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/packet.hpp"
#include "terse/core/type_name.hpp"
#include "terse/executor/host.hpp"
#include "terse/executor/sparse.hpp"
#include "terse/transport/concept.hpp"

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

namespace detail {
inline constexpr std::array fingerprint_fields{
    "wire version",     "world", "layout",  "recipe",
    "hyper-parameters", "seed",  "options", "numerics (contraction, denormals or sqrt)"};
}

/// Compares what must be alike on all ranks, `numerics` of their executors included, and returns its hash. Collective.
/// Throws mismatch_error that names the first field that differs, and the rank.
template <class R, Transport T>
std::uint64_t agree_on_fingerprint(T& channel, const Layout& layout, const R& recipe, std::uint64_t seed,
                                   std::uint64_t options, std::uint64_t numerics) {
  std::uint64_t hyper_parameters = 0;
  recipe.settings([&](const char* name, double value) {
    hyper_parameters = mix_hash(mix_hash(hyper_parameters, name), std::bit_cast<std::uint64_t>(value));
  });
  using Fields = std::array<std::uint64_t, detail::fingerprint_fields.size()>;
  const Fields mine{PacketHeader::wire_version,
                    static_cast<std::uint64_t>(channel.size()),
                    layout_hash(layout),
                    mix_hash(0, type_name<R>().c_str()),
                    hyper_parameters,
                    seed,
                    options,
                    numerics};
  Assembly<Fields, T> everyone(channel);
  int rank = 0;
  for (const Fields& theirs : everyone(channel, mine, Phase::setup)) {
    for (std::size_t f = 0; f < mine.size(); ++f)
      if (theirs[f] != mine[f])
        throw mismatch_error(std::string("rank ") + std::to_string(rank) + " was set up with another " +
                                 detail::fingerprint_fields[f],
                             channel.rank());
    ++rank;
  }
  std::uint64_t hash = 0;
  for (const std::uint64_t field : mine) hash = mix_hash(hash, field);
  return hash;
}

}  // namespace terse
