// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "terse/compressor/dense.hpp"
#include "terse/compressor/statistic.hpp"
#include "terse/core/draw.hpp"
#include "terse/core/packet.hpp"
#include "terse/error_feedback/concept.hpp"

namespace terse {

/// What travels in one packet: header, the compressor's section, dense pieces, and optionally one note.
struct Portion {
  Range compressed, dense;
  std::vector<index_t>
      unit_in_whole;  // per compressed piece: its first unit when the whole range is measured
  index_t dense_at = 0, note_at = 0, bytes = 0;

  static constexpr index_t section_at = sizeof(PacketHeader);
};

/// The packets of a round: the whole range, and its cuts, one for each rank. Compressed and dense pieces are
/// cut apart, so that both kinds are shared out evenly.
struct Plan {
  Portion whole;
  std::vector<Portion> chunks;

  template <Compressor C>
  Plan(const C& compressor, const Layout& layout, const Range& range, int parts, bool note) {
    const auto finish = [&](Portion& portion) {
      portion.dense_at = Portion::section_at + compressor.wire_bytes(portion.compressed);
      portion.note_at = portion.dense_at + Dense{}.wire_bytes(portion.dense);
      portion.bytes = portion.note_at + (note ? 8 : 0);
    };
    whole.compressed = C::lossless ? Range{} : layout.filter(range, true);
    whole.dense = C::lossless ? range : layout.filter(range, false);
    std::vector<Range> compressed = whole.compressed.cut(parts), dense = whole.dense.cut(parts);
    for (std::size_t c = 0; c < compressed.size(); ++c) {
      Portion& chunk = chunks.emplace_back();
      chunk.compressed = std::move(compressed[c]);
      chunk.dense = std::move(dense[c]);
      for (const Piece& piece : chunk.compressed.pieces()) {
        index_t unit = 0;
        while (whole.compressed.pieces()[static_cast<std::size_t>(unit)].segment != piece.segment) ++unit;
        chunk.unit_in_whole.push_back(unit);
      }
      finish(chunk);
    }
    for (std::size_t k = 0; k < whole.compressed.pieces().size(); ++k)
      whole.unit_in_whole.push_back(static_cast<index_t>(k));
    finish(whole);
  }
};

/// Packets on their way into a verb, for both kinds of pieces.
template <Compressor C>
class Inbox {
 public:
  explicit Inbox(int capacity) {
    if constexpr (!C::lossless) compressed_.reserve(static_cast<std::size_t>(capacity));
    dense_.reserve(static_cast<std::size_t>(capacity));
  }
  void clear() {
    compressed_.clear();
    dense_.clear();
  }
  void add(const C& compressor, const Portion& portion, const std::byte* packet, float weight = 1) {
    if constexpr (!C::lossless)
      compressed_.push_back(compressor.source(portion.compressed, packet + Portion::section_at, weight));
    dense_.push_back({packet + portion.dense_at, nullptr, weight});
  }
  auto compressed() const {
    if constexpr (C::lossless)
      return NoPackets{};
    else
      return Packets<typename C::Code>{compressed_.data(), static_cast<int>(compressed_.size()), C::units()};
  }
  Packets<Dense::Code> dense() const { return {dense_.data(), static_cast<int>(dense_.size()), {}}; }

 private:
  std::vector<typename Packets<typename C::Code>::Source> compressed_;
  std::vector<Packets<Dense::Code>::Source> dense_;
};

/// Nothing has come in.
struct EmptyInbox {
  static constexpr NoPackets compressed() { return {}; }
  static constexpr NoPackets dense() { return {}; }
};

/// What a rank says, element by element: one functor for compressed pieces, one for dense ones.
template <class Compressed, class Exact>
struct Message {
  Compressed compressed;
  Exact dense;
};
template <class Compressed, class Exact>
Message(Compressed, Exact) -> Message<Compressed, Exact>;

TERSE_NUMERICS_BEGIN

namespace detail {

/// y = message + error, materialized. What is not finite is left out: then y is the error alone.
template <class F, class View>
struct Compensate {
  F message;
  View feedback;

  TERSE_HD void enter(const Piece& piece) { terse::enter(message, piece); }
  template <class... Sum>
  TERSE_HD Sample operator()(const Piece& piece, index_t i, bool keep, Sum... sum) const {
    const float wanted = feedback.compensate(i, message(piece, i, sum...));
    const bool finite = is_finite(wanted);
    const float y = keep_if(keep, keep_if(finite, wanted, feedback.compensate(i, 0.0F)));
    feedback.store(i, y);
    return {y, keep_if(!finite, 1.0F)};
  }
};

/// A dense piece's element as it goes on the wire.
template <class F>
struct Exact {
  F message;

  TERSE_HD void enter(const Piece& piece) { terse::enter(message, piece); }
  template <class... Sum>
  TERSE_HD Sample operator()(const Piece& piece, index_t i, bool, Sum... sum) const {
    return sanitized(message(piece, i, sum...));
  }
};

/// Hands the mean to its consumer: 0 where masked.
template <class F>
struct Deliver {
  F consume;
  float weight;

  TERSE_HD void enter(const Piece& piece) { terse::enter(consume, piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool keep, float sum) const {
    consume(piece, i, keep_if(keep, sum * weight));
  }
};

}  // namespace detail

TERSE_NUMERICS_END

/// Error feedback x compressor over a range: turns messages into packets and packets into sums. Usable over
/// any transport, without a topology. Owns the feedback's state; takes all memory at construction.
template <Compressor C, ErrorFeedback F, Executor E>
class Codec {
  static_assert(check_compressor<C>() && check_feedback<C, F>());

 public:
  /// For messages over `covered`; no encode is larger.
  Codec(E executor, C compressor, const Portion& covered)
      : executor_(executor),
        compressor_(compressor),
        state_(covered.compressed.begin_offset(), covered.compressed.end_offset()),
        scratch_(scratch_size(covered)),
        note_(1) {
    if constexpr (!C::lossless)
      if constexpr (C::measured) scales_ = Scales(C::units().in_range(covered.compressed));
  }

  const C& compressor() const { return compressor_; }

  /// Evaluates the compressed part of `message` once per element of `portion` and keeps it, with its scales,
  /// for encode calls over parts of that portion.
  template <class M, class In>
  void measure(const Portion& portion, Mask<typename E::memory> mask, const In& inbox, const M& message) {
    if constexpr (!C::lossless)
      if constexpr (C::measured)
        compressor_.measure(executor_, portion.compressed, mask, inbox.compressed(), compensate(message),
                            scratch_.all(), scales_.all(), bad_);
  }

  /// Writes everything but the header of `portion`'s packet. Compressors that measure have measured the whole
  /// range (`whole`) or just this portion; the others evaluate the message here. The note is the sum of
  /// squares of the dense part.
  template <class M, class In>
  void encode(const Portion& portion, Mask<typename E::memory> mask, const In& inbox, const M& message,
              Draw draw, bool whole, std::byte* packet) {
    if constexpr (!C::lossless) {
      std::byte* section = packet + Portion::section_at;
      if constexpr (C::measured) {
        const auto scales = C::scales(section);
        index_t unit = 0;
        for (const index_t in_whole : portion.unit_in_whole) {
          const index_t measured = C::units().whole ? 0 : whole ? in_whole : unit;
          scales[C::units().whole ? 0 : unit] = scales_[measured];
          ++unit;
        }
        compressor_.encode(executor_, portion.compressed, mask, state_.view(), section, draw);
      } else {
        compressor_.measure_and_encode(executor_, portion.compressed, mask, inbox.compressed(),
                                       compensate(message), state_.view(), scratch_.all(), section, draw,
                                       bad_);
      }
    }
    store<SumOfSquares>(executor_, portion.dense, inbox.dense(), exact(message), packet + portion.dense_at,
                        scratch_.all(), note_.all(), bad_);
    if (portion.bytes > portion.note_at) std::memcpy(packet + portion.note_at, note_.data(), sizeof(float));
  }

  /// Whether anything since the last call was not finite.
  bool take_bad() { return std::exchange(bad_, 0U) != 0; }

  template <class Visit>
  void walk(Visit&& visit) {
    if constexpr (!C::lossless) state_.walk(visit);
  }

 private:
  struct NoScales {};
  template <class Any>
  static auto scales_type() {
    if constexpr (Any::lossless)
      return NoScales{};
    else
      return buffer<typename Any::Scale, typename E::memory>();
  }
  using Scales = decltype(scales_type<C>());

  template <class M>
  auto compensate(const M& message) {
    return detail::Compensate<decltype(message.compressed), decltype(state_.view())>{message.compressed,
                                                                                     state_.view()};
  }
  template <class M>
  static auto exact(const M& message) {
    return detail::Exact<decltype(message.dense)>{message.dense};
  }

  static index_t scratch_size(const Portion& covered) {
    index_t longest = 0;
    for (const Range* range : {&covered.compressed, &covered.dense})
      for (const Piece& piece : range->pieces()) longest = std::max(longest, piece.count);
    if constexpr (!C::lossless)
      return std::max(reduction_scratch<typename C::Statistic>(longest),
                      reduction_scratch<SumOfSquares>(longest));
    return reduction_scratch<SumOfSquares>(longest);
  }

  E executor_;
  C compressor_;
  typename F::template State<E> state_;
  buffer<float, typename E::memory> scratch_;
  [[no_unique_address]] Scales scales_;
  buffer<float, typename E::memory> note_;
  std::uint32_t bad_ = 0;
};

}  // namespace terse
