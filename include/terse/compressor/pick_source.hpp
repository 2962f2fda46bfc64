// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "terse/compressor/sparse_sections.hpp"

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// A reader of one section of Sparse, entry by entry. On a grid it only holds the section's place.
template <class Selection, class Values, class G>
class PickSource {
  using Sections = SparseSections<Selection, Values, G>;
  using UnitsOf = typename Sections::UnitsOf;

 public:
  using Coder = typename Sections::Coder;

  PickSource() = default;
  PickSource(const Sections& sections, const Range& range, const std::byte* section, float weight,
             const StepDraw& shared)
      : sections_(sections), range_(&range), section_(section), weight_(weight), shared_(shared) {}

  void rewind() {
    at_ = section_;
    units_ = UnitsOf(*range_);
    open();
  }
  TERSE_INLINE void add(index_t first, int count, float (&sum)[lanes]) {
    for (; index_ < first + count; next())
      if (index_ >= first) sum[index_ - first] += weighted();
  }
  /// Returns the arena index of the current entry; at the end, an index beyond all others.
  index_t index() const { return index_; }
  float value() const { return Coder::read(values_, picks_, entry_); }
  const std::byte* section() const { return section_; }
  float weight() const { return weight_; }
  const StepDraw& shared() const { return shared_; }
  float weighted() const { return weight_ * value(); }
  void next() {
    if (++entry_ < picks_) {
      reader_.next();
      index_ = base_ + reader_.position();
    } else {
      open();
    }
  }

 private:
  /// Opens the next unit with picks.
  void open() {
    do {
      if (!units_.more()) {
        index_ = std::numeric_limits<index_t>::max();
        return;
      }
      const Piece unit = units_.unit();
      units_.next();
      picks_ = sections_.read_count(at_, unit.count);
      const std::byte* wire = at_ + (Sections::variable ? 8 : 0);
      const index_t index_bytes = sections_.selection.index_bytes(unit.count, picks_);
      reader_ = Reader(sections_.selection, wire, unit.count, picks_, unit.offset, shared_);
      values_ = wire + index_bytes;
      at_ = values_ + Coder::bytes(picks_);
      base_ = unit.offset;
    } while (picks_ == 0);
    entry_ = 0;
    index_ = base_ + reader_.position();
  }

  using Reader = typename Selection::Reader;
  Sections sections_{};
  const Range* range_ = nullptr;
  const std::byte* section_ = nullptr;
  float weight_ = 1;
  StepDraw shared_ = Draw::shared(0, 0, Purpose::selection);

  const std::byte* at_ = nullptr;      // the unit after the current one
  const std::byte* values_ = nullptr;  // of the open unit
  UnitsOf units_;                      // the units from the next one on
  index_t base_ = 0, picks_ = 0, entry_ = 0, index_ = 0;
  Reader reader_;
};

TERSE_NUMERICS_END

}  // namespace terse::detail
