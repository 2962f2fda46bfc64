// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "terse/core/separate.hpp"
#include "terse/optimizer/comparison.hpp"

namespace terse::detail {

TERSE_CORE void throw_other_start(const Apart& apart, int rank) {
  throw mismatch_error(sentence("rank %d starts from other parameters than rank %d, in '%s': call "
                                "terse::broadcast(transport, parameters) "
                                "on all ranks before the first step, or load a checkpoint",
                                apart.rank, apart.from, apart.segment.c_str()),
                       rank, 1);
}

TERSE_CORE void throw_drifted(const Apart& apart, std::uint64_t compared, int rank, std::uint64_t step) {
  const std::string last =
      compared == 0 ? "this is the first comparison"
                    : sentence("were equal after step %llu", static_cast<unsigned long long>(compared));
  throw mismatch_error(
      sentence("rank %d has drifted: its %s differ from rank %d's in '%s', and %s. Load a checkpoint; "
               "packets can have checksums (check_payload)",
               apart.rank, apart.arena.c_str(), apart.from, apart.segment.c_str(), last.c_str()),
      rank, static_cast<std::int64_t>(step));
}

TERSE_CORE void Comparison::compare(Look& look, const char* arena, const std::string& segment,
                                    std::uint64_t hash) {
  look.apart = find_odd(hashes_(look.channel, hash, Phase::setup));
  if (look.apart) look.apart->arena = arena, look.apart->segment = segment;
}

TERSE_CORE std::optional<Apart> Comparison::find_odd(std::span<const std::uint64_t> all) {
  if (std::all_of(all.begin(), all.end(), [&](std::uint64_t one) { return one == all[0]; })) return {};
  const auto usual = std::max_element(all.begin(), all.end(), [&](std::uint64_t a, std::uint64_t b) {
    return std::count(all.begin(), all.end(), a) < std::count(all.begin(), all.end(), b);
  });
  const auto odd = std::find_if(all.begin(), all.end(), [&](std::uint64_t one) { return one != *usual; });
  return Apart{static_cast<int>(odd - all.begin()), static_cast<int>(usual - all.begin()), {}, {}};
}

}  // namespace terse::detail
