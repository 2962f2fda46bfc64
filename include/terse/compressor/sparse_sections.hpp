// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>

#include "terse/compressor/sparse_functors.hpp"
#include "terse/compressor/sparse_units.hpp"

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// The format of a section of Sparse: the size and place of each unit, and possible faults.
template <class Selection, class Values, class G>
struct SparseSections {
  using Coder = PickCoder<Values>;
  using UnitsOf = detail::UnitsOf<G>;
  using Granularity = G;
  static constexpr bool variable = Selection::variable, lossless = Values::lossless;

  Selection selection{};

  /// Returns the bytes of a unit of n elements with k picks.
  TERSE_HD index_t bytes(index_t n, index_t k) const {
    return (variable ? 8 : 0) + selection.index_bytes(n, k) + Coder::bytes(k);
  }

  /// Returns the bytes of the longest section.
  index_t bytes(const Range& range) const {
    index_t sum = 0;
    for (UnitsOf units(range); units.more(); units.next()) {
      const index_t n = units.unit().count;
      // Fewer picks never take more bytes, since positions become a bitmap if that is shorter.
      sum += bytes(n, selection.most(n));
    }
    return sum;
  }

  /// Returns the number of picks of the unit at `at`, of n elements.
  index_t read_count(const std::byte* at, index_t n) const {
    if (!variable) return selection.most(n);
    index_t k;
    std::memcpy(&k, at, sizeof k);
    return k;
  }

  /// Returns the limit of the floats of k picks of n in a unit. Scaled picks were finite before scaling.
  TERSE_HD static float limit(index_t n, index_t k) {
    float limit = Coder::limit;
    if constexpr (requires { G::limit_share; }) limit *= G::limit_share;
    if constexpr (Traits<Selection>::single_stage && Values::lossless)
      limit *= 2 * static_cast<float>(n / std::max(k, index_t{1}) + 1);
    return limit;
  }
  const char* fault(const Range& range, const std::byte* section, index_t bytes) const {
    const std::byte *at = section, *end = section + bytes;
    for (UnitsOf units(range); units.more(); units.next()) {
      const Piece unit = units.unit();
      if (variable && end - at < 8) return text_of(SectionFault::ends_early);
      const index_t k = read_count(at, unit.count);
      at += variable ? 8 : 0;
      if (k < 0 || k > selection.most(unit.count)) return text_of(SectionFault::too_many_picks);
      const index_t index_bytes = selection.index_bytes(unit.count, k);
      if (end - at < index_bytes + Coder::bytes(k)) return text_of(SectionFault::ends_early);
      if (const char* found = selection.fault(at, unit.count, k)) return found;
      at += index_bytes;
      if (!all_within(limit(unit.count, k), at, Coder::floats(k))) return text_of(Coder::beyond_limit);
      at += Coder::bytes(k);
    }
    return at == end ? nullptr : text_of(SectionFault::goes_on);
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
