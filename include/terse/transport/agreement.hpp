// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "terse/core/hash.hpp"
#include "terse/transport/concept.hpp"

namespace terse {

/// Something that must be alike on all ranks of a channel.
struct Agreed {
  const char* name;  ///< as an error says it: "rank 2 was set up with another <name>"
  std::uint64_t value;
};

/// Compares the fields of all ranks and returns their hash. Collective. Throws mismatch_error that names the first field
/// that differs, and the rank.
template <Transport T, std::size_t N>
std::uint64_t agree(T& channel, const std::array<Agreed, N>& fields) {
  std::array<std::uint64_t, N> mine;
  for (std::size_t f = 0; f < N; ++f) mine[f] = fields[f].value;
  Assembly<std::array<std::uint64_t, N>, T> everyone(channel);
  int rank = 0;
  for (const std::array<std::uint64_t, N>& theirs : everyone(channel, mine, Phase::setup)) {
    for (std::size_t f = 0; f < N; ++f)
      if (theirs[f] != mine[f])
        throw mismatch_error("rank " + std::to_string(rank) + " was set up with another " + fields[f].name,
                             channel.rank());
    ++rank;
  }
  std::uint64_t hash = 0;
  for (const std::uint64_t field : mine) hash = mix_hash(hash, field);
  return hash;
}

}  // namespace terse
