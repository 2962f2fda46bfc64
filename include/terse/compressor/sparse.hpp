// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <type_traits>

#include "terse/compressor/dense.hpp"
#include "terse/compressor/packed.hpp"
#include "terse/compressor/selection.hpp"
#include "terse/compressor/statistic.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// The picked values as a message to their coder, and where the coder leaves them.
struct PickedValues {
  float* y;
  index_t begin;
  TERSE_HD Sample operator()(const Piece&, index_t i, bool) const { return {y[i - begin], 0}; }
  TERSE_HD float load(index_t i) const { return y[i - begin]; }
  TERSE_HD void commit(index_t, bool, float, float) const {}
};

/// How the values of k picks are coded: as fp32, or by a packed quantizer.
template <class Values>
struct PickCoder {
  static_assert(!Values::lossless, "terse: picks are coded by Dense or by a Packed quantizer");
  using Scale = typename Values::Scale;
  using Code = typename Values::Code;

  static index_t scales(index_t k) { return Values::units().whole ? 1 : Values::units().in_piece(k); }
  static index_t scale_bytes(index_t k) {
    return std::is_empty_v<Scale> ? 0 : (static_cast<index_t>(sizeof(Scale)) * scales(k) + 7) / 8 * 8;
  }
  static index_t bytes(index_t k) { return k == 0 ? 0 : scale_bytes(k) + code_bytes<Code::bits>(k); }

  template <Executor E>
  using Workspace = typename Values::template Workspace<E>;

  static const char* fault(index_t k, const std::byte* wire) {
    const index_t floats =
        std::is_empty_v<Scale> ? 0 : scales(k) * static_cast<index_t>(sizeof(Scale) / sizeof(float));
    return all_within(largest_scale, wire, floats) ? nullptr : "a scale that no finite message has";
  }
  static float read(const std::byte* wire, index_t k, index_t e) {
    Scale scale{};
    const index_t unit = Values::units().size == 0 ? 0 : e / Values::units().size;
    if constexpr (!std::is_empty_v<Scale>)
      std::memcpy(&scale, wire + unit * static_cast<index_t>(sizeof(Scale)), sizeof scale);
    const std::byte* codes = wire + scale_bytes(k);
    std::uint32_t code = 0;
    if constexpr (Code::bits < 8) {
      const std::byte* planes = codes + e / lanes * 8 * Code::bits + e % lanes / 8;
      for (int bit = 0; bit < Code::bits; ++bit)
        code |= (static_cast<std::uint32_t>(planes[8 * bit]) >> e % 8 & 1U) << bit;
    } else {
      std::memcpy(&code, codes + e * (Code::bits / 8), Code::bits / 8);
    }
    return Code::value(code, scale);
  }
};

template <>
struct PickCoder<Dense> {
  template <Executor E>
  struct Workspace {
    Workspace(const Dense&, const Range&) {}
  };

  static index_t bytes(index_t k) { return code_bytes<32>(k); }
  static const char* fault(index_t k, const std::byte* wire) {
    return all_within(std::numeric_limits<float>::max(), wire, k) ? nullptr : "a value that is not finite";
  }
  static float read(const std::byte* wire, index_t, index_t e) {
    float value;
    std::memcpy(&value, wire + 4 * e, sizeof value);
    return value;
  }
};

}  // namespace detail

/// Makes a compressor of a Selection and a coder for the picked values. What is not picked is not sent: its
/// receivers read 0, and an error feedback keeps it.
///
/// Wire, unit by unit: the number of picks (8 bytes, where it varies), their positions, their values. Passes: the
/// message is materialized, the selection reads it (TopK: about twice), the error is touched at the picks only;
/// readers make one pass over what they update. Units have less than 2^32 elements: cut larger ranges into buckets.
template <class Selection, Compressor Values, Granularity G>
struct Sparse {
  static_assert(G::units().size == 0, "terse: a sparse compressor picks PerSegment or from the Whole");
  static_assert(!(G::units().whole && Selection::unbiased),
                "terse: picks from the Whole would fall between its segments");
  using Coder = detail::PickCoder<Values>;

  static constexpr bool lossless = false;
  static constexpr bool unbiased = Selection::unbiased && Values::unbiased;
  static constexpr bool contractive =
      Selection::contractive && (Values::lossless || Traits<Values>::contractive);
  static constexpr bool tracks =
      unbiased ? false : Traits<Selection>::tracks && (Values::lossless || Traits<Values>::tracks);
  static constexpr bool variable = Selection::variable;
  static constexpr bool single_stage = Traits<Selection>::single_stage;
  static constexpr bool measured = false;

  Selection selection{};
  Values values{};

  void check() const { selection.check(); }
  template <class Visit>
  void settings(Visit&& visit) const {
    selection.settings(visit);
  }
  /// Of a unit of n elements.
  double delta(index_t n) const requires(contractive&& Values::lossless) { return selection.delta(n); }
  double omega(index_t n) const requires(unbiased&& Values::lossless) { return selection.omega(n); }

  static Units units() { return G::units(); }
  index_t wire_bytes(const Range& range) const {
    index_t bytes = 0;
    for (index_t u = 0; u < unit_count(range); ++u) {
      const index_t n = unit(range, u).count, k = selection.most(n);
      // Fewer picks never take more bytes: positions turn into a bitmap where that is shorter.
      bytes += (variable ? 8 : 0) + selection.index_bytes(n, k) + Coder::bytes(k);
    }
    return bytes;
  }

  template <Executor E>
  struct Workspace {
    buffer<float, typename E::memory> scratch, picked;
    buffer<std::uint32_t, typename E::memory> words, positions;
    typename Coder::template Workspace<E> coder;
    buffer<float, typename E::memory> total;
    Range picks;

    Workspace(const Sparse& compressor, const Range& covered)
        : coder(compressor.values, picks_of(compressor, covered)), total(1) {
      const Selection& picking = compressor.selection;
      index_t floats = 0, words_needed = 0, most = 0, longest = 0;
      for (const Piece& piece : covered.pieces()) longest = std::max(longest, piece.count);
      for (index_t u = 0; u < unit_count(covered); ++u) {
        const index_t n = unit(covered, u).count;
        if (n >= index_t{1} << 32)
          throw usage_error("positions have 32 bits, and a unit has " + std::to_string(n) +
                            " elements; cut the range into buckets");
        floats = std::max(floats, picking.floats(n));
        words_needed = std::max(words_needed, picking.words(n));
        most = std::max(most, picking.most(n));
      }
      scratch = buffer<float, typename E::memory>(std::max(floats, reduction_scratch<MaxAbs>(longest)));
      picked = buffer<float, typename E::memory>(most);
      words = buffer<std::uint32_t, typename E::memory>(words_needed);
      positions = buffer<std::uint32_t, typename E::memory>(most);
      picks.assign({});
    }
  };

  /// Reads one section, entry by entry.
  class Source {
   public:
    Source() = default;
    Source(const Sparse& compressor, const Range& range, const std::byte* section, float weight, Draw shared)
        : compressor_(compressor), range_(&range), section_(section), weight_(weight), shared_(shared) {}

    void rewind() {
      at_ = section_;
      unit_ = -1;
      open();
    }
    TERSE_INLINE void add(index_t first, int count, float (&sum)[detail::lanes]) {
      for (; index_ < first + count; next())
        if (index_ >= first) sum[index_ - first] += weight_ * value();
    }
    /// Arena index of the entry at hand; behind all others at the end.
    index_t index() const { return index_; }
    float value() const { return Coder::read(values_, picks_, entry_); }
    void next() {
      if (++entry_ < picks_) {
        reader_.next();
        index_ = base_ + reader_.position();
      } else {
        open();
      }
    }

   private:
    /// The next unit with picks.
    void open() {
      do {
        if (++unit_ >= unit_count(*range_)) {
          index_ = std::numeric_limits<index_t>::max();
          return;
        }
        const Piece unit = Sparse::unit(*range_, unit_);
        picks_ = compressor_.read_count(at_, unit.count);
        const std::byte* wire = at_ + (variable ? 8 : 0);
        const index_t index_bytes = compressor_.selection.index_bytes(unit.count, picks_);
        reader_ = Reader(compressor_.selection, wire, unit.count, picks_, unit.offset, shared_);
        values_ = wire + index_bytes;
        at_ = values_ + Coder::bytes(picks_);
        base_ = unit.offset;
      } while (picks_ == 0);
      entry_ = 0;
      index_ = base_ + reader_.position();
    }

    using Reader = typename Selection::Reader;
    Sparse compressor_{};
    const Range* range_ = nullptr;
    const std::byte* section_ = nullptr;
    float weight_ = 1;
    Draw shared_ = Draw::shared(0, 0, Purpose::selection);

    const std::byte* at_ = nullptr;      // the unit behind the open one
    const std::byte* values_ = nullptr;  // of the open unit
    index_t unit_ = 0, base_ = 0, picks_ = 0, entry_ = 0, index_ = 0;
    Reader reader_;
  };
  using Incoming = SparsePackets<Source>;

  Source source(const Range& range, const std::byte* section, float weight, Draw shared) const {
    return {*this, range, section, weight, shared};
  }
  static Incoming incoming(Source* sources, int count) { return {sources, count}; }

  const char* fault(const Range& range, const std::byte* section, index_t bytes) const {
    const std::byte *at = section, *end = section + bytes;
    for (index_t u = 0; u < unit_count(range); ++u) {
      const Piece unit = Sparse::unit(range, u);
      if (variable && end - at < 8) return "a section that ends early";
      const index_t k = read_count(at, unit.count);
      at += variable ? 8 : 0;
      if (k < 0 || k > selection.most(unit.count)) return "more picks than there may be";
      const index_t index_bytes = selection.index_bytes(unit.count, k);
      if (end - at < index_bytes + Coder::bytes(k)) return "a section that ends early";
      if (const char* found = selection.fault(at, unit.count, k)) return found;
      at += index_bytes;
      if (k > 0)
        if (const char* found = Coder::fault(k, at)) return found;
      at += Coder::bytes(k);
    }
    return at == end ? nullptr : "a section that goes on behind its end";
  }

  /// Evaluates the message, picks, writes the section, commits what receivers will read. Returns its bytes.
  template <Executor E, class In, class Message, class Feedback>
  index_t measure_and_encode(E executor, Workspace<E>& workspace, const Range& range,
                             Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                             const EncodeContext& context, std::byte* section, std::uint32_t& bad) const {
    static_assert(Feedback::commits_zero, "terse: this error feedback must see every element, sent or not");
    if (range.pieces().empty()) return 0;
    reduce<MaxAbs>(executor, range, Units{0, true}, mask, incoming, message, workspace.scratch.all(),
                   workspace.total.all(), bad);
    std::byte* at = section;
    for (index_t u = 0; u < unit_count(range); ++u) {
      const Piece unit = Sparse::unit(range, u);
      std::byte* wire = at + (variable ? 8 : 0);
      const index_t k =
          selection.select(executor, in<E>(feedback.at(unit.offset), unit.count), unit.offset, context,
                           detail::PickScratch<E>{workspace.scratch.all(), workspace.words.all()},
                           workspace.positions.all(), wire);
      if (variable) std::memcpy(at, &k, sizeof k);
      at = wire + selection.index_bytes(unit.count, k);
      encode_values(executor, workspace, unit, k, feedback, context, at);
      for (index_t e = 0; e < k; ++e) {
        const index_t i = unit.offset + workspace.positions[e];
        feedback.commit(i, true, feedback.load(i), Coder::read(at, k, e));
      }
      at += Coder::bytes(k);
    }
    return at - section;
  }

 private:
  /// Units as pieces: each piece, or, for the Whole, all of the arena between the first and the last element
  /// (what lies between the pieces is never picked before a value that isn't 0, and never read).
  static index_t unit_count(const Range& range) {
    return G::units().whole ? (range.pieces().empty() ? 0 : 1) : static_cast<index_t>(range.pieces().size());
  }
  static Piece unit(const Range& range, index_t u) {
    if (!G::units().whole) return range.pieces()[static_cast<std::size_t>(u)];
    const Piece& last = range.pieces().back();
    return {0, range.begin_offset(), last.offset + last.count - range.begin_offset()};
  }
  index_t read_count(const std::byte* at, index_t n) const {
    if (!variable) return selection.most(n);
    index_t k;
    std::memcpy(&k, at, sizeof k);
    return k;
  }
  static Range picks_of(const Sparse& compressor, const Range& covered) {
    index_t most = 0;
    for (index_t u = 0; u < unit_count(covered); ++u)
      most = std::max(most, compressor.selection.most(unit(covered, u).count));
    Range picks;
    picks.assign({0, 0, most});
    return picks;
  }

  template <Executor E, class Feedback>
  void encode_values(E executor, Workspace<E>& workspace, const Piece& unit, index_t k, Feedback feedback,
                     const EncodeContext& context, std::byte* wire) const {
    const auto picked = workspace.picked.all().part(0, k);
    gather(executor, in<E>(feedback.at(unit.offset), unit.count),
           in<E, std::uint32_t>(workspace.positions.all().part(0, k)), picked);
    if constexpr (Traits<Selection>::single_stage)
      for (index_t e = 0; e < k; ++e) picked[e] *= Selection::factor(unit.count, k, e);
    if (k <= 0) return;
    if constexpr (Values::lossless) {
      std::memset(wire + 4 * k - 4, 0, static_cast<std::size_t>(Coder::bytes(k) - 4 * k + 4));
      std::memcpy(wire, picked.data(), static_cast<std::size_t>(4 * k));
    } else {
      // Picks are coded as a message of their own; the unit's place in the arena tells their draws apart.
      workspace.picks.assign({0, unit.offset, k});
      const detail::PickedValues values_here{picked.data(), unit.offset};
      std::uint32_t bad = 0;
      const Mask<typename E::memory> everything;
      if constexpr (Values::measured) {
        constexpr index_t first = 0;
        values.measure(executor, workspace.coder, workspace.picks, everything, NoPackets{}, values_here, bad);
        values.encode(executor, workspace.coder, workspace.picks, everything, values_here, {&first, 1},
                      context, wire);
      } else {
        values.measure_and_encode(executor, workspace.coder, workspace.picks, everything, NoPackets{},
                                  values_here, values_here, context, wire, bad);
      }
    }
  }
};

TERSE_NUMERICS_END

}  // namespace terse
