// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/layout.hpp"
#include "terse/transport/collectives.hpp"

namespace terse::detail {

/// Compares the parameters that ranks start from, once.
template <Transport T>
class CommonStart {
 public:
  explicit CommonStart(T& channel) : hashes_(channel) {}

  /// Collective at its first call; throws mismatch_error that names a rank and a segment. Padding does not count.
  template <class Parameters>
  TERSE_COLD void operator()(T& channel, const Layout& layout, Parameters parameters) {
    if (compared_ || channel.size() == 1) return;
    const auto hash_of_segment = [&](const Segment& segment) {
      return hash_of(parameters.part(segment.offset, segment.count));
    };
    await_messages(channel);
    std::uint64_t mine = 0;
    for (const Segment& segment : layout.segments()) mine = mix_hash(mine, hash_of_segment(segment));
    compared_ = true;
    const auto all = hashes_(channel, mine, Phase::setup);
    for (const std::uint64_t theirs : all) compared_ = compared_ && theirs == all[0];
    if (compared_) return;
    // All have seen that, and now look closer.
    for (const Segment& segment : layout.segments()) {
      const auto parts = hashes_(channel, hash_of_segment(segment), Phase::setup);
      for (std::size_t rank = 1; rank < parts.size(); ++rank)
        if (parts[rank] != parts[0])
          throw mismatch_error("rank " + std::to_string(rank) +
                                   " starts from other parameters than rank 0, in '" + segment.name +
                                   "': call terse::broadcast(transport, parameters) on all ranks "
                                   "before the first step, or load a checkpoint",
                               channel.rank(), 1);
    }
  }

 private:
  Assembly<std::uint64_t, T> hashes_;
  bool compared_ = false;
};

}  // namespace terse::detail
