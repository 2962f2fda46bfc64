// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>

#include "terse/compressor/on_grid.hpp"
#include "terse/compressor/tile_bases.hpp"
#include "terse/compressor/tile_message.hpp"
#include "terse/compressor/top_k.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// A tile as the message of a sparse compressor, and the decoded picks that it commits.
template <int S>
struct ListedTile {
  static constexpr bool commits_zero = true;
  const float* tile;
  TilePicks<S>* picks;
  index_t begin;  // the first index that it holds

  TERSE_HD const float* at(index_t i) const { return tile + (i - begin); }
  TERSE_HD float load(index_t i) const { return tile[i - begin]; }
  TERSE_HD void commit(index_t i, bool, float, float value) const { picks->add(i - begin, value); }
};
}  // namespace detail

/// A sparse compressor that picks from tiles of S x S elements, see PerTile, in a Basis: Tiles and Dct. A segment of
/// shape {a, b, c, ...} is a matrix of a rows and b c ... columns if a packet contains all of it. Slices end where
/// segments do. A topology that divides packets (ScatterGather) turns matrices into vectors if it divides them.
///
/// Wire: that of Inner, whose units are tiles. Additional cost: the transform of the message and the inverse transform
/// of the picks, tile by tile, in cache. A receiver sums the packets' coefficients and transforms once for any number
/// of packets. Memory: n floats; on a device 2 n and, once for all compressors, the tables of all sides. On a device,
/// selections other than TopK's require several kernels per tile.
template <class Basis, int S, class Inner>
struct Tiled {
  static_assert(
      sizeof(Inner) == 0,
      "terse: Tiles and Dct take a sparse compressor that picks PerSegment, and have it pick from each tile: "
      "TopK<>, Threshold<>, RandomK, Chain<...>, Sparse<Selection, Dense, PerSegment>");
};

/// The specialization for Sparse: picks coefficients of each tile as Sparse picks elements of a segment.
template <class Basis, int S, class Selection, Compressor Values>
struct Tiled<Basis, S, Sparse<Selection, Values, PerSegment>> {
  using Inner = Sparse<Selection, Values, PerSegment>;
  using Granularity = PerTile<S, Basis::transforms ? S : 1>;
  using Picker = Sparse<Selection, Values, Granularity>;
  using Units = detail::UnitsOf<Granularity>;

  static constexpr bool lossless = false;
  static constexpr bool unbiased = Inner::unbiased;
  static constexpr bool contractive = Inner::contractive;
  static constexpr bool tracks = Inner::tracks;
  static constexpr bool variable = Inner::variable;
  static constexpr bool single_stage = Inner::single_stage;
  static constexpr bool measured = false;
  static constexpr bool whole_segments = true;
  static constexpr bool decodes_sums = Basis::transforms;
  static constexpr bool adds_together = true;
  /// The part for grids, on which the same kernels process all tiles.
  using Grid = detail::OnGrid<Tiled>;

  Inner inner{};  ///< the compressor of a tile's numbers

  /// Returns the inner compressor with tiles as its units.
  Picker picker() const { return {inner.selection, inner.values}; }

  void check() const { inner.check(); }
  const char* unrecordable(const RecordUse& use) const { return inner.unrecordable(use); }
  void require_room(const Tiled& made, const Range& range) const {
    picker().require_room(made.picker(), range);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    inner.settings(visit);
  }

  index_t wire_bytes(const Range& range) const { return picker().wire_bytes(range); }
  const char* fault(const Range& range, const std::byte* section, index_t bytes) const {
    return picker().fault(range, section, bytes);
  }
  using Source = typename Picker::Source;
  using Incoming = typename Picker::Incoming;
  Source source(const Range& range, const std::byte* section, float weight, const StepDraw& shared) const {
    return picker().source(range, section, weight, shared);
  }
  static Incoming incoming(Source* sources, int count) { return Picker::incoming(sources, count); }

  template <Executor E>
  struct Workspace {
    typename Picker::template Workspace<E> picker;
    typename Basis::template Transform<S> transform;
    detail::TilePicks<S> picks;
    alignas(64) float tile[static_cast<std::size_t>(S) * S];
    buffer<float, typename E::memory> sums;  // for the arena indices from `begin` on
    index_t begin;

    Workspace(E executor, const Tiled& compressor, const Range& covered)
        : picker(executor, compressor.picker(), covered),
          sums(covered.end_offset() - covered.begin_offset(), uninitialized),
          begin(covered.begin_offset()) {}
    /// Transforms the numbers in `tile` to elements and writes them to their place in `sums`.
    void invert(const detail::TilePlace& place) {
      transform.inverse(place, tile);
      for (index_t r = 0; r < place.rows; ++r)
        std::copy_n(tile + r * place.columns, place.columns,
                    sums.data() + (place.first + r * place.stride - begin));
    }
  };
  template <GridExecutor E>
  struct Workspace<E> : Grid::template Workspace<E> {
    Workspace(E executor, const Tiled& compressor, const Range& covered)
        : Grid::template Workspace<E>(executor, compressor.picker(), covered) {}
  };

  /// Evaluates and transforms the message, picks, writes the section and commits the decoded values. Returns the
  /// section's bytes.
  template <Executor E, class In, class Message, class Feedback>
  index_t measure_and_encode(E executor, Workspace<E>& workspace, const Range& range,
                             Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                             const EncodeContext& context, std::byte* section, std::uint32_t* bad) const {
    check_view<Feedback>();
    detail::TileMessage evaluated(mask, incoming, message, workspace.picker.scratch.data(), bad);
    std::byte* at = section;
    for (Units units(range); units.more(); units.next()) {
      const detail::TilePlace& place = units.place();
      const Piece unit = units.unit();
      evaluated.evaluate(units.piece(), place.end());
      workspace.transform.forward(place, feedback.at(place.first), workspace.tile);
      if constexpr (Basis::transforms) *bad |= drop_beyond_limit(workspace.tile, unit.count);
      workspace.picks.count = workspace.picks.nonzero = 0;
      at = picker().encode_unit(executor, workspace.picker, unit,
                                detail::ListedTile<S>{workspace.tile, &workspace.picks, unit.offset}, context,
                                at);
      workspace.transform.inverse(place, workspace.picks, workspace.tile);
      commit(place, unit, mask, feedback, workspace.tile);
    }
    return at - section;
  }

  // The device's half of the contract: compressor/on_grid.hpp.

  /// Returns the place of a section that begins `at` bytes after the base.
  static detail::PlacedRange place(const Range& range, index_t, index_t at) { return {&range, at}; }
  /// Evaluates the message, picks, writes the sections and commits the decoded values.
  template <GridExecutor E, class In, class Message, class Feedback, class Told>
  void encode_together(E executor, Workspace<E>& workspace, detail::PlacedRanges sections,
                       Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                       const EncodeContext& context, std::byte* base, std::uint32_t* bad, Told told) const {
    check_view<Feedback>();
    Grid::encode(executor, workspace, picker(), sections, mask, incoming, message, feedback, context, base,
                 bad, told);
  }
  /// Returns the weighted sums of packets, which are all over the same range or each over a separate one.
  template <GridExecutor E>
  ArrivedSums arrived(E executor, Workspace<E>& workspace, detail::PlacedRanges ranges,
                      Incoming packets) const {
    return Grid::arrived(executor, workspace, picker(), ranges, packets);
  }
  /// Reports the faults of packets, each over a separate range.
  template <GridExecutor E>
  void check(E executor, Workspace<E>& workspace, detail::PlacedRanges ranges,
             const std::byte* const* packets, detail::Findings* findings) const {
    Grid::check(executor, workspace, picker(), ranges, packets, findings);
  }

  /// Returns the weighted sums of the packets received over `range`, in the workspace.
  template <Executor E>
  ArrivedSums arrived(E, Workspace<E>& workspace, const Range& range, Incoming packets) const {
    for (int p = 0; p < packets.count; ++p) packets.sources[p].rewind();
    for (Units units(range); units.more(); units.next()) {
      const detail::TilePlace& place = units.place();
      const Piece unit = units.unit();
      std::fill_n(workspace.tile, unit.count, 0.0F);
      for (int p = 0; p < packets.count; ++p)
        for (Source& source = packets.sources[p]; source.index() < unit.offset + unit.count; source.next())
          workspace.tile[source.index() - unit.offset] += source.weighted();
      workspace.invert(place);
    }
    return {workspace.sums.data(), workspace.begin};
  }

 private:
  template <class Feedback>
  static constexpr void check_view() {
    static_assert(
        requires(const Feedback& view, index_t i) {
          { view.at(i) } -> std::convertible_to<const float*>;
        },
        "terse: under tiles an error feedback's view needs `const float* at(index_t i) const`, which "
        "points into an array of the values to send");
  }
  template <class Mask, class Feedback>
  static void commit(const detail::TilePlace& place, const Piece& unit, Mask mask, const Feedback& feedback,
                     const float* decoded) {
    Feedback view = feedback;
    enter(view, unit);
    for (index_t r = 0; r < place.rows; ++r) {
      const index_t first = place.first + r * place.stride;
      const float* const row = decoded + r * place.columns;
      if (mask.words == nullptr) {
        TERSE_LANES
        for (index_t c = 0; c < place.columns; ++c)
          view.commit(first + c, true, view.load(first + c), row[c]);
        continue;
      }
      for (index_t i = first; i < first + place.columns; ++i)
        view.commit(i, (mask.word(i - i % alignment) >> i % alignment & 1) != 0, view.load(i),
                    row[i - first]);
    }
  }

  /// Sets numbers beyond the limit to 0 and returns 1 if there are any. They count as not finite, so that no sum of the
  /// others' waves overflows.
  static std::uint32_t drop_beyond_limit(float* tile, index_t count) {
    constexpr float limit = largest_finite * Granularity::limit_share;
    std::uint32_t beyond = 0;
    TERSE_LANES
    for (index_t i = 0; i < count; ++i) beyond |= static_cast<std::uint32_t>(!(magnitude(tile[i]) <= limit));
    if (beyond != 0)
      for (index_t i = 0; i < count; ++i) tile[i] = keep_if(magnitude(tile[i]) <= limit, tile[i]);
    return beyond;
  }
};

/// Inner's picks from each tile of S x S elements, which is the top-k per block of SparseLoCo.
///
///     Tiles<64, TopK<>>{.inner = {.selection = {.ratio = 64.0 / 4096}}}
///
/// Source: Sarfi, Therien, Lidin and Belilovsky, "Communication efficient LLM pre-training with SparseLoCo", arXiv
/// 2508.15706, 2025.
template <int S = 64, class Inner = TopK<>>
using Tiles = Tiled<Elements, S, Inner>;

/// Inner's picks from the cosine transform of each tile of S x S elements, which is the compressor of DeMo. A few
/// coefficients move a whole tile, while a few elements would move only themselves.
///
///     Dct<64, TopK<>>{.inner = {.selection = {.ratio = 32.0 / 4096}}}
///
/// Source: Peng, Quesnelle and Kingma, "DeMo: decoupled momentum optimization", arXiv 2411.19870, 2024, section 3.
template <int S = 64, class Inner = TopK<>>
using Dct = Tiled<CosineWaves, S, Inner>;

TERSE_NUMERICS_END

}  // namespace terse
