// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/hash.hpp"
#include "terse/core/separate.hpp"

namespace terse::detail {

TERSE_CORE std::uint64_t layout_hash(const Layout& layout) {
  std::uint64_t hash = 0;
  for (const Segment& segment : layout.segments()) {
    hash = mix_hash(mix_hash(hash, segment.name.size()), segment.name.c_str());
    hash = mix_hash(hash, segment.shape.size());
    for (const index_t extent : segment.shape) hash = mix_hash(hash, static_cast<std::uint64_t>(extent));
    hash = mix_hash(hash, std::bit_cast<std::uint32_t>(segment.learning_rate_scale));
    hash = mix_hash(hash, std::bit_cast<std::uint32_t>(segment.weight_decay));
    // One word for all three, so that layouts with one group and no hidden segment keep their old hash.
    hash = mix_hash(hash, (segment.compress ? 1U : 0U) + 2 * static_cast<std::uint64_t>(segment.group) +
                              (segment.hidden ? std::uint64_t{1} << 40 : 0));
  }
  return hash;
}

}  // namespace terse::detail
