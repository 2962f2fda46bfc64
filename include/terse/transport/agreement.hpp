// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "terse/core/hash.hpp"
#include "terse/transport/collectives.hpp"

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

/// Compares hyper-parameters of which all ranks have the same ones, as `settings(visit)` shows them: visit(name, double).
/// Collective. Throws mismatch_error that names the first one that differs, the rank, and both values: "rank 2 was set up
/// with <what>: learning_rate is 0.01 there and 0.001 here".
template <Transport T, class Settings>
void agree_on_settings(T& channel, const char* what, const Settings& settings) {
  std::vector<std::string> names;
  std::vector<double> mine;
  settings([&](const char* name, double value) {
    names.emplace_back(name);
    mine.push_back(value);
  });
  const std::size_t count = mine.size();
  std::vector<double> all(count * static_cast<std::size_t>(channel.size()));
  all_gather(channel, mine, all);
  for (std::size_t k = 0; k < all.size(); ++k) {
    const double theirs = all[k], own = mine[k % count];
    if (std::bit_cast<std::uint64_t>(theirs) == std::bit_cast<std::uint64_t>(own)) continue;
    char values[80];
    std::snprintf(values, sizeof values, " is %.9g there and %.9g here", theirs, own);
    throw mismatch_error(
        "rank " + std::to_string(k / count) + " was set up with " + what + ": " + names[k % count] + values,
        channel.rank());
  }
}

}  // namespace terse
