// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "terse/core/separate.hpp"
#include "terse/transport/assembly.hpp"

namespace terse::detail {

TERSE_CORE void CheckedGather::refuse(int peer, Phase phase, std::uint32_t tag, int rank, std::int64_t step) {
  for (int verb = 0; verb < static_cast<int>(Verb::count_); ++verb)
    if (tag == tag_of(static_cast<Verb>(verb)))
      throw mismatch_error(
          sentence("rank %d is in %s, and this rank in %s (phase '%s'): %s, and run the same version", peer,
                   name(static_cast<Verb>(verb)), text_of(Call::current()).c_str(), name(phase), same_calls),
          rank, step);
  throw wire_error(
      sentence("the message from rank %d (phase '%s') does not match its checksum: it was damaged on its "
               "way, or that rank is in another call or has another version of terse",
               peer, name(phase)),
      rank, step);
}

TERSE_CORE std::span<const std::byte> CheckedGather::put(std::span<const std::byte> mine, int rank,
                                                         int ranks) {
  const std::size_t bytes = mine.size(), block = bytes + sizeof(Sum);
  // Zeroed, so that after a message that is too short no earlier block remains.
  blocks_.assign(static_cast<std::size_t>(ranks) * block, std::byte{});
  std::byte* const own = blocks_.data() + static_cast<std::size_t>(rank) * block;
  const Sum sum = sum_of(mine) ^ tag_of(Call::current().verb);
  std::copy(mine.begin(), mine.end(), own);
  std::memcpy(own + bytes, &sum, sizeof sum);
  return {own, block};
}

TERSE_CORE void CheckedGather::take(std::span<std::byte> all, std::size_t bytes, Phase phase, int rank,
                                    int ranks, std::int64_t step) {
  const std::uint32_t tag = tag_of(Call::current().verb);
  for (int peer = 0; peer < ranks; ++peer) {
    const std::byte* const theirs = blocks_.data() + static_cast<std::size_t>(peer) * (bytes + sizeof(Sum));
    Sum told;
    std::memcpy(&told, theirs + bytes, sizeof told);
    if (const Sum theirs_tag = told ^ sum_of({theirs, bytes}); theirs_tag != tag)
      refuse(peer, phase, theirs_tag, rank, step);
    std::copy_n(theirs, bytes, all.begin() + peer * static_cast<std::ptrdiff_t>(bytes));
  }
}

}  // namespace terse::detail
