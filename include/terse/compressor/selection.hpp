// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "terse/compressor/concept.hpp"
#include "terse/compressor/section_fault.hpp"
#include "terse/compressor/selection_concept.hpp"
#include "terse/core/ones.hpp"
#include "terse/executor/atomic.hpp"
#include "terse/executor/select.hpp"
#include "terse/executor/sparse.hpp"

// What selections share: positions on the wire, and reading them on a grid.

namespace terse {

namespace detail {

/// A unit's positions or values as they lie in a section that arrived on a grid. What varies, the host doesn't know.
struct Arrived {
  const std::byte* base;
  index_t picks;                     // or the most
  const index_t* offset = nullptr;   // where they begin behind `base`; nullptr: there
  const index_t* counted = nullptr;  // how many there are; nullptr: `picks`

  Arrived behind(index_t bytes) const { return {base + bytes, picks, offset, counted}; }
  /// Where the number is known and the place may not be.
  Arrived exactly(index_t number) const { return {base, number, offset, nullptr}; }
  TERSE_HD const std::byte* bytes() const { return base + (offset == nullptr ? 0 : *offset); }
  TERSE_HD index_t count() const { return counted == nullptr ? picks : *counted; }
};

/// Whether a selection has what a grid executor needs.
template <class Selection, class E>
concept ListsPicks = requires(const Selection& selection, E executor, const Arrived& arrived,
                              const StepDraw& shared, PickScratch<E> scratch, out<E, std::uint32_t> positions,
                              const Report& report) {
  selection.list(executor, arrived, index_t{}, index_t{}, shared, scratch, positions);
  selection.check(executor, arrived, index_t{}, report);
};

/// Packets are aligned on devices; elsewhere they need not be.
template <class T>
TERSE_HD T load_from_wire(const std::byte* from) {
  T value;
#ifdef __CUDA_ARCH__
  std::memcpy(&value, __builtin_assume_aligned(from, alignof(T)), sizeof value);
#else
  std::memcpy(&value, from, sizeof value);
#endif
  return value;
}

}  // namespace detail

/// max(1, ceil(ratio n)), at most n.
TERSE_HD inline index_t share_of(double ratio, index_t n) {
  const auto picks = static_cast<index_t>(std::ceil(ratio * static_cast<double>(n)));
  return std::clamp(picks, std::min<index_t>(1, n), n);
}
/// Throws usage_error unless it is in (0, 1].
inline void check_ratio(const char* name, double ratio) {
  if (!(ratio > 0 && ratio <= 1))
    throw usage_error(std::string(name) + " must be in (0, 1], not " + std::to_string(ratio));
}

/// Positions on the wire: 32 bits each, or one bit for each of the n values where that is shorter. A selection that sends its
/// picks so names `Reader`, gives `bytes` as its index_bytes and `fault` as its fault, and ends `select` with `write`; on devices
/// it has `list` and `check`, too.
struct Positions {
  using Arrived = detail::Arrived;
  using Report = detail::Report;
  using SectionFault = detail::SectionFault;

  TERSE_HD static constexpr bool is_bitmap(index_t n, index_t k) { return aligned(n) / 8 <= 4 * k; }
  TERSE_HD static constexpr index_t bytes(index_t n, index_t k) {
    return is_bitmap(n, k) ? aligned(n) / 8 : (4 * k + 7) / 8 * 8;
  }

  struct SetBits {
    const std::uint32_t* positions;
    std::byte* wire;
    TERSE_HD void operator()(index_t e) const { detail::atomic_set_bit(wire, positions[e]); }
  };

  template <Executor E>
  static void write(E executor, in<E, std::uint32_t> positions, index_t n, std::byte* wire) {
    const index_t k = positions.size(), end = bytes(n, k);
    if (is_bitmap(n, k)) {
      fill(executor, out<E, std::byte>(wire, end), std::byte{0});
      for_each_entry(executor, k, SetBits{positions.data(), wire});
    } else {
      copy(executor, positions, out<E, std::uint32_t>(reinterpret_cast<std::uint32_t*>(wire), k));
      fill(executor, out<E, std::byte>(wire + 4 * k, end - 4 * k), std::byte{0});
    }
  }

  static const char* fault(const std::byte* wire, index_t n, index_t k) {
    if (is_bitmap(n, k)) {
      index_t set = 0;
      for (index_t at = 0; at < aligned(n) / 8; at += 8) {
        const std::uint64_t word = load(wire + at);
        if (n - 8 * at < 64 && word >> (n - 8 * at) != 0) return text_of(SectionFault::beyond_end);
        set += ones_in(word);
      }
      return set == k ? nullptr : text_of(SectionFault::other_population);
    }
    std::int64_t before = -1;
    for (index_t e = 0; e < k; ++e) {
      const std::int64_t position = at(wire, e);
      if (position <= before) return text_of(SectionFault::descending);
      if (position >= n) return text_of(SectionFault::beyond_end);
      before = position;
    }
    return nullptr;
  }

  /// A list of positions, number e of which is that of pick e.
  struct List {
    const std::byte* wire = nullptr;
    int bits = 32;  // of each
    TERSE_HD std::uint32_t operator[](index_t e) const {
      return detail::load_from_wire<std::uint32_t>(wire + 4 * e);
    }
  };
  TERSE_HD static List list_at(const std::byte* wire, index_t) { return {wire}; }
  TERSE_HD static std::int64_t at(const std::byte* wire, index_t e) {
    return detail::load_from_wire<std::uint32_t>(wire + 4 * e);
  }
  TERSE_HD static std::uint64_t load(const std::byte* at) {
    return detail::load_from_wire<std::uint64_t>(at);
  }

  /// Entries of a list, into `positions`; nothing of a bitmap.
  struct Unpack {
    Arrived arrived;
    index_t n;
    std::uint32_t* positions;
    TERSE_HD index_t entries() const { return is_bitmap(n, arrived.count()) ? 0 : arrived.count(); }
    TERSE_HD void operator()(index_t e) const {
      positions[e] = static_cast<std::uint32_t>(at(arrived.bytes(), e));
    }
  };
  /// Whether an element's bit is set; none in a list.
  struct PickSet {
    Arrived arrived;
    index_t n;
    const std::byte* bitmap = nullptr;
    TERSE_HD void begin() { bitmap = is_bitmap(n, arrived.count()) ? arrived.bytes() : nullptr; }
    TERSE_HD bool operator()(index_t i) const {
      return bitmap != nullptr && (std::to_integer<unsigned>(bitmap[i / 8]) >> i % 8 & 1U) != 0;
    }
  };

  template <GridExecutor E>
  static in<E, std::uint32_t> list(E executor, const Arrived& arrived, index_t n, PickScratch<E> scratch,
                                   out<E, std::uint32_t> positions) {
    const bool known = arrived.counted == nullptr, bitmap = is_bitmap(n, arrived.picks);
    if (known && !bitmap && arrived.offset == nullptr)
      return {reinterpret_cast<const std::uint32_t*>(arrived.base), arrived.picks};
    const auto listed = positions.part(0, arrived.picks);
    if (bitmap) list_picks(executor, PickSet{arrived, n}, n, scratch.floats, listed);
    if (!known || !bitmap) for_each_entry(executor, arrived.picks, Unpack{arrived, n, listed.data()});
    return listed;
  }

  struct CheckList {
    Arrived arrived;
    index_t n;
    Report report;
    TERSE_HD index_t entries() const { return is_bitmap(n, arrived.count()) ? 0 : arrived.count(); }
    TERSE_HD void operator()(index_t e) const {
      const std::byte* const wire = arrived.bytes();
      const std::int64_t position = at(wire, e), before = e == 0 ? -1 : at(wire, e - 1);
      if (position <= before)
        report.note(e, SectionFault::descending);
      else if (position >= n)
        report.note(e, SectionFault::beyond_end);
    }
  };
  /// Some words of a bitmap.
  struct CheckBits {
    static constexpr index_t words = 32;
    Arrived arrived;
    index_t n;
    Report report;
    static index_t parts(index_t n) { return (aligned(n) / 64 + words - 1) / words; }
    TERSE_HD void operator()(index_t part) const {
      if (!is_bitmap(n, arrived.count())) return;
      const index_t all = aligned(n) / 64, end = (part + 1) * words < all ? (part + 1) * words : all;
      int set = 0;
      for (index_t w = part * words; w < end; ++w) {
        const std::uint64_t word = load(arrived.bytes() + 8 * w);
        if (n - 64 * w < 64 && word >> (n - 64 * w) != 0) report.note(w, SectionFault::beyond_end);
        set += ones_in(word);
      }
      if (set != 0) detail::atomic_add(&report.findings->population, static_cast<std::uint32_t>(set));
    }
  };
  /// Behind CheckBits.
  struct CheckPopulation {
    Arrived arrived;
    index_t n;
    Report report;
    TERSE_HD void operator()(index_t) const {
      if (is_bitmap(n, arrived.count()) && report.findings->population != arrived.count())
        report.note(n, SectionFault::other_population);
      report.findings->population = 0;
    }
  };

  template <GridExecutor E>
  static void check(E executor, const Arrived& arrived, index_t n, const Report& report) {
    const bool known = arrived.counted == nullptr, bitmap = is_bitmap(n, arrived.picks);
    if (!known || !bitmap) for_each_entry(executor, arrived.picks, CheckList{arrived, n, report});
    if (!bitmap) return;
    for_each_entry(executor, CheckBits::parts(n), CheckBits{arrived, n, report});
    for_each_entry(executor, 1, CheckPopulation{arrived, n, report});
  }

  /// Walks through the positions in order.
  class Reader {
   public:
    Reader() = default;
    template <class Selection>
    Reader(const Selection&, const std::byte* wire, index_t n, index_t k, index_t, Draw)
        : wire_(wire), left_(k), bitmap_(is_bitmap(n, k)) {
      if (left_ == 0) return;
      if (bitmap_) word_ = load(wire_);
      find();
    }
    index_t position() const { return position_; }
    void next() {
      ++at_;
      if (--left_ > 0) find();
    }
    void seek(index_t entry) {
      while (at_ < entry) next();
    }

   private:
    void find() {
      if (!bitmap_) {
        position_ = at(wire_, entry_++);
        return;
      }
      while (word_ == 0) word_ = load(wire_ + 8 * ++entry_);
      position_ = 64 * entry_ + first_one_in(word_);
      word_ &= word_ - 1;
    }

    const std::byte* wire_ = nullptr;
    index_t left_ = 0, entry_ = 0, position_ = 0, at_ = 0;
    std::uint64_t word_ = 0;
    bool bitmap_ = false;
  };
};

}  // namespace terse
