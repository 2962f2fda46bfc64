// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "terse/compressor/dense.hpp"
#include "terse/core/packet.hpp"

namespace terse {

/// The content of one packet: header, the compressor's section, dense pieces, and optionally one note. A section
/// whose size depends on the data comes last.
struct Portion {
  Range compressed, dense;
  /// The number of the first compressed piece, if pieces are units and the whole range is measured.
  index_t first_unit = 0;
  index_t section_at = 0;  ///< offset of the compressor's section, in bytes from the packet's start
  index_t dense_at = 0;    ///< offset of the dense pieces
  index_t note_at = 0;     ///< offset of the note
  index_t bytes = 0;       ///< size of the packet; if the section's size varies, the maximum
  bool variable = false;   ///< true if the section's size varies
};

/// The default slices: 16 MiB. Over transports in a stream's order (Nccl) slices follow each other and save only memory.
/// Therefore slices have 512 MiB there in full precision, and compressed packets have one slice, unless the executor is
/// overlapped.
inline constexpr index_t automatic_slices = -1;

namespace detail {
constexpr index_t slice_bytes_of(index_t wanted, bool in_stream_order, bool compressed) {
  if (wanted != automatic_slices) return wanted;
  return !in_stream_order ? index_t{16} << 20 : compressed ? 0 : index_t{512} << 20;
}

/// Cuts a range into slices of about `bytes` bytes of fp32, the last elements first, since gradients become ready in that order; 0
/// for one slice. Cuts at multiples of 64 elements or, if `whole_segments`, only between pieces. The cuts are equal on all ranks.
TERSE_COLD std::vector<Range> slices_of(const Range& range, index_t bytes, bool whole_segments = false);

/// The cut of a range for ranks: compressed and dense pieces separately, or all as one range, equally for all compressors, within
/// segments or only between them.
enum class CutBy { kind, element, segment };
/// Returns each rank's share of the elements; nothing if they are cut by kind.
TERSE_COLD std::vector<Range> shares_of(const Range& range, int parts, CutBy how);

}  // namespace detail

/// The packets of a round: the whole range, and its cuts, one for each rank. Compressed and dense pieces are cut
/// separately, so that both kinds are divided evenly, unless a CutBy says otherwise.
struct Plan {
  Portion whole;
  std::vector<Portion> chunks;

  template <Compressor C>
  TERSE_COLD Plan(const C& compressor, const Layout& layout, const Range& range, int parts, bool note,
                  detail::CutBy how = detail::CutBy::kind) {
    std::vector<Piece> taken, left;
    for (const Piece& piece : range.pieces())
      (takes(compressor, layout.segments()[static_cast<std::size_t>(piece.segment)]) ? taken : left)
          .push_back(piece);
    whole.compressed = layout.range_of(std::move(taken));
    whole.dense = Range(std::move(left));
    cut(parts, detail::shares_of(range, parts, how));
    for (Portion& chunk : chunks) finish(chunk, compressor, note);
    finish(whole, compressor, note);
  }

  /// Returns these cuts, with all pieces in full precision.
  Plan in_full_precision(bool note) const {
    Plan plan = *this;
    plan.whole = in_full_precision(whole, note);
    for (Portion& chunk : plan.chunks) chunk = in_full_precision(chunk, note);
    return plan;
  }

  /// Returns these cuts, with sections of another compressor, which must take the same segments.
  template <Compressor C>
  TERSE_COLD Plan by(const C& compressor, bool note) const {
    if constexpr (C::lossless) return in_full_precision(note);
    Plan plan = *this;
    for (Portion& chunk : plan.chunks) finish(chunk, compressor, note);
    finish(plan.whole, compressor, note);
    return plan;
  }

 private:
  TERSE_COLD void cut(int parts, const std::vector<Range>& shares);
  TERSE_COLD static Portion in_full_precision(const Portion& portion, bool note) {
    std::vector<Piece> pieces;
    std::merge(portion.compressed.pieces().begin(), portion.compressed.pieces().end(),
               portion.dense.pieces().begin(), portion.dense.pieces().end(), std::back_inserter(pieces),
               [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
    Portion all;
    all.dense = Range(std::move(pieces));
    finish(all, Dense{}, note);
    return all;
  }

  /// Checks whether a segment is compressed. Compressors may have `takes(segment)` and leave segments to the dense part.
  template <Compressor C>
  static bool takes(const C& compressor, const Segment& segment) {
    if constexpr (C::lossless) return false;
    if constexpr (requires { compressor.takes(segment); })
      return segment.compress && compressor.takes(segment);
    return segment.compress;
  }
  template <Compressor C>
  static void finish(Portion& portion, const C& compressor, bool note) {
    constexpr auto header = static_cast<index_t>(sizeof(PacketHeader));
    portion.variable = Traits<C>::variable;
    const index_t section = compressor.wire_bytes(portion.compressed);
    const index_t dense = Dense{}.wire_bytes(portion.dense), notes = note ? 8 : 0;
    portion.section_at = portion.variable ? header + dense + notes : header;
    portion.dense_at = portion.variable ? header : header + section;
    portion.note_at = portion.dense_at + dense;
    portion.bytes = header + section + dense + notes;
  }
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/plan.ipp"
#endif
