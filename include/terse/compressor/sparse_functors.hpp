// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/pick_coder.hpp"
#include "terse/core/packet.hpp"

// Functors of sparse compressors for each pick and each unit, on host and device.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// A functor that commits the decoded value of each pick. For coders that drop their error it commits the pick
/// itself.
template <class Coder, class Feedback>
struct CommitPicks {
  Feedback feedback;
  const std::uint32_t* positions;
  Piece unit;
  index_t k;
  const std::byte* wire;
  TERSE_HD void operator()(index_t e) const {
    Feedback here = feedback;
    enter(here, unit);
    const index_t i = unit.offset + positions[e];
    const float y = here.load(i);
    if constexpr (Coder::drops_loss)
      here.commit(i, true, y, y);
    else
      here.commit(i, true, y, Coder::read(wire, k, e));
  }
};

template <class Selection>
struct ScalePicks {
  float* picked;
  index_t n, k;
  TERSE_HD void operator()(index_t e) const { picked[e] *= Selection::factor(n, k, e); }
};

/// The offsets of a unit's parts in a received section on a grid.
struct UnitPlace {
  index_t picks = 0, positions = 0, values = 0, end = -1;
};

/// A functor that adds a unit's values to sums. In valid sections each position occurs once.
template <class Coder>
struct AddPicks {
  Arrived values;
  PackedPositions positions;
  index_t n;
  float weight;
  float* sums;
  TERSE_HD index_t entries() const { return values.count(); }
  TERSE_HD void operator()(index_t e) const {
    const std::uint32_t position = positions[e];
    if (position < n) sums[position] += weight * Coder::read(values.bytes(), values.count(), e);
  }
};

template <class Coder>
struct CheckValues {
  Arrived values;
  float limit;
  Report report;
  TERSE_HD index_t entries() const { return Coder::floats(values.count()); }
  TERSE_HD void operator()(index_t f) const {
    if (!(magnitude(load_from_wire<float>(values.bytes() + 4 * f)) <= limit))
      report.note(f, Coder::beyond_limit);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
