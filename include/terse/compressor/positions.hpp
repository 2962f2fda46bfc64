// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "terse/compressor/packed_positions.hpp"
#include "terse/compressor/section_fault.hpp"
#include "terse/compressor/selection_concept.hpp"
#include "terse/core/ones.hpp"
#include "terse/executor/atomic.hpp"
#include "terse/executor/sparse.hpp"

namespace terse {

/// The wire format of positions: a list of ceil(log2(n)) bits each, or, if that is not longer, a bitmap of the n
/// values. A selection that sends its picks in this format names `Reader`, returns `bytes` as its index_bytes and
/// `fault` as its fault, and ends `select` with `write`. On devices it also has `list` and `check`.
struct Positions {
  using Arrived = detail::Arrived;
  using Report = detail::Report;
  using SectionFault = detail::SectionFault;
  using List = detail::PackedPositions;

  TERSE_HD static bool is_bitmap(index_t n, index_t k) { return aligned(n) <= detail::position_bits(n) * k; }
  TERSE_HD static index_t bytes(index_t n, index_t k) {
    return is_bitmap(n, k) ? aligned(n) / 8 : List::bytes(detail::position_bits(n), k);
  }
  TERSE_HD static List list_at(const std::byte* wire, index_t n) { return {wire, detail::position_bits(n)}; }

  struct SetBits {
    const std::uint32_t* positions;
    std::byte* wire;
    TERSE_HD void operator()(index_t e) const { detail::atomic_set_bit(wire, positions[e]); }
  };

  template <Executor E>
  static void write(E executor, in<E, std::uint32_t> positions, index_t n, std::byte* wire) {
    const index_t k = positions.size();
    if (is_bitmap(n, k)) {
      fill(executor, out<E, std::byte>(wire, aligned(n) / 8), std::byte{0});
      for_each_entry(executor, k, SetBits{positions.data(), wire});
    } else {
      using Pack = detail::PackPositions;
      for_each_entry(executor, Pack::groups(k), Pack{positions.data(), k, detail::position_bits(n), wire});
    }
  }

  static const char* fault(const std::byte* wire, index_t n, index_t k) {
    if (is_bitmap(n, k)) {
      index_t set = 0;
      for (index_t at = 0; at < aligned(n) / 8; at += 8) {
        const std::uint64_t word = load(wire + at);
        if (n - 8 * at < 64 && word >> (n - 8 * at) != 0) return text_of(SectionFault::beyond_end);
        set += detail::ones_in(word);
      }
      return set == k ? nullptr : text_of(SectionFault::other_population);
    }
    const List list = list_at(wire, n);
    std::int64_t before = -1;
    for (index_t e = 0; e < k; ++e) {
      const std::int64_t position = list[e];
      if (position <= before) return text_of(SectionFault::descending);
      if (position >= n) return text_of(SectionFault::beyond_end);
      before = position;
    }
    return list.ends_in_zeros(k) ? nullptr : text_of(SectionFault::padding);
  }

  TERSE_HD static std::uint64_t load(const std::byte* at) {
    return detail::load_from_wire<std::uint64_t>(at);
  }

  /// A functor that unpacks the entries of a list into `positions`; a bitmap has none.
  struct Unpack {
    Arrived arrived;
    index_t n;
    std::uint32_t* positions;
    TERSE_HD index_t entries() const { return is_bitmap(n, arrived.count()) ? 0 : arrived.count(); }
    TERSE_HD void operator()(index_t e) const { positions[e] = list_at(arrived.bytes(), n)[e]; }
  };
  /// A predicate that checks whether an element's bit is set; false for all elements of a list.
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
  static List list(E executor, const Arrived& arrived, index_t n, PickScratch<E> scratch,
                   out<E, std::uint32_t> positions) {
    const bool known = arrived.counted == nullptr, bitmap = is_bitmap(n, arrived.picks);
    if (known && !bitmap && arrived.offset == nullptr) return list_at(arrived.base, n);
    const auto listed = positions.part(0, arrived.picks);
    if (bitmap) list_picks(executor, PickSet{arrived, n}, n, scratch.floats, listed);
    if (!known || !bitmap) for_each_entry(executor, arrived.picks, Unpack{arrived, n, listed.data()});
    return List(listed.data());
  }

  struct CheckList {
    Arrived arrived;
    index_t n;
    Report report;
    TERSE_HD index_t entries() const { return is_bitmap(n, arrived.count()) ? 0 : arrived.count(); }
    TERSE_HD void operator()(index_t e) const {
      const List list = list_at(arrived.bytes(), n);
      const std::int64_t position = list[e], before = e == 0 ? -1 : std::int64_t{list[e - 1]};
      if (position <= before)
        report.note(e, SectionFault::descending);
      else if (position >= n)
        report.note(e, SectionFault::beyond_end);
      else if (e + 1 == arrived.count() && !list.ends_in_zeros(e + 1))
        report.note(e + 1, SectionFault::padding);
    }
  };
  /// The check of a few words of a bitmap.
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
        set += detail::ones_in(word);
      }
      if (set != 0) detail::atomic_add(&report.findings->population, static_cast<std::uint32_t>(set));
    }
  };
  /// The check of a bitmap's number of set bits, after CheckBits.
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

  /// A reader of the positions in order, by next() or by seek().
  class Reader {
   public:
    Reader() = default;
    template <class Selection>
    Reader(const Selection&, const std::byte* wire, index_t n, index_t k, index_t, Draw)
        : wire_(wire), bits_(is_bitmap(n, k) ? 0 : detail::position_bits(n)) {
      if (k == 0) return;
      if (bits_ == 0) word_ = load(wire_);
      next();
    }
    index_t position() const { return position_; }
    void next() {
      if (bits_ > 0) {
        if (held_ < bits_) {
          word_ |= std::uint64_t{detail::load_from_wire<std::uint32_t>(wire_ + 4 * read_++)} << held_;
          held_ += 32;
        }
        position_ = static_cast<index_t>(word_ & ~(~std::uint64_t{0} << bits_));
        word_ >>= bits_;
        held_ -= bits_;
        return;
      }
      while (word_ == 0) word_ = load(wire_ + 8 * ++read_);
      position_ = 64 * read_ + detail::first_one_in(word_);
      word_ &= word_ - 1;
    }
    void seek(index_t entry) {
      for (; at_ < entry; ++at_) next();
    }

   private:
    const std::byte* wire_ = nullptr;
    index_t read_ = 0, position_ = 0, at_ = 0;
    std::uint64_t word_ = 0;
    int bits_ = 0, held_ = 0;  // bits of a list's position, 0 for a bitmap; unread bits in `word_`
  };
};

}  // namespace terse
