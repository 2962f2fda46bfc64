// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>

#include "terse/compressor/commit_elements.hpp"
#include "terse/compressor/grid_top_tiles.hpp"
#include "terse/compressor/tile_message.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// A tile as the message that a sparse compressor picks from, and what its receivers will read, pick after pick.
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
/// The same on a grid, where what they will read has a place of its own.
struct TileView {
  static constexpr bool commits_zero = true;
  const float* tile;
  float* decoded;
  index_t begin;  // the first index that they hold

  TERSE_HD const float* at(index_t i) const { return tile + (i - begin); }
  TERSE_HD float load(index_t i) const { return tile[i - begin]; }
  TERSE_HD void commit(index_t i, bool, float, float value) const { decoded[i - begin] = value; }
};

}  // namespace detail

/// A sparse compressor that picks from tiles of S x S elements, see PerTile, in a Basis: Tiles and Dct. A segment of shape
/// {a, b, c, ...} is a matrix of a rows and b c ... columns, where a packet holds all of it. Slices end where segments do; a
/// topology that cuts packets (ScatterGather) makes vectors of the matrices that it cuts.
///
/// Wire: that of Inner, whose units are tiles. Cost beside Inner's: the transform of the message and the inverse one of what is
/// sent, tile by tile, in cache; a reader sums the packets' coefficients and transforms once, whatever their number. Memory: n
/// floats; on a device 2 n, and for all compressors there the tables of all sides. There selections other than TopK's take
/// several kernels for each tile.
template <class Basis, int S, class Inner>
struct Tiled {
  static_assert(
      sizeof(Inner) == 0,
      "terse: Tiles and Dct take a sparse compressor that picks PerSegment, and have it pick from each tile: "
      "TopK<>, Threshold<>, RandomK, Chain<...>");
};

/// In each tile, in the basis's coordinates, what Sparse does in a segment.
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
  /// On a grid, all tiles by the same kernels: those of Largest, by coders that leave room in a block's shared memory, 48 KiB
  /// of which a scan takes up to one.
  static constexpr bool picks_together =
      std::is_same_v<Selection, Largest> &&
      sizeof(typename detail::PickTilesKernel<S, Values>::Shared) <= std::size_t{47} << 10;
  static constexpr bool adds_together = picks_together, encodes_together = picks_together;

  Inner inner{};  ///< the compressor of a tile's numbers

  void check() const { inner.check(); }
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
          sums(covered.end_offset() - covered.begin_offset(), unwritten),
          begin(covered.begin_offset()) {}
    /// The elements of the numbers in `tile`, where they are in `sums`.
    void invert(const detail::TilePlace& place) {
      transform.inverse(place, tile);
      for (index_t r = 0; r < place.rows; ++r)
        std::copy_n(tile + r * place.columns, place.columns,
                    sums.data() + (place.first + r * place.stride - begin));
    }
  };
  /// A grid's tiles lie in whole arenas: their numbers in the picker's, and elements in `sums`, or the other way round.
  template <GridExecutor E>
  struct Workspace<E> {
    typename Picker::template Workspace<E> picker;
    buffer<float, typename E::memory> sums;
    index_t begin;
    std::shared_ptr<const buffer<float, typename E::memory>> tables;

    Workspace(E executor, const Tiled& compressor, const Range& covered)
        : picker(executor, compressor.picker(), covered),
          sums(covered.end_offset() - covered.begin_offset(), unwritten),
          begin(covered.begin_offset()) {
      if constexpr (Basis::transforms) tables = detail::shared_tables<S>(executor);
    }
    detail::CosineTables cosines() const {
      // nvcc 13.0 loses the braces around what is chosen in one expression.
      detail::CosineTables all{};
      if (tables != nullptr) all.all = tables->data();
      return all;
    }
  };

  /// Evaluates the message, transforms and picks, writes the section, commits what receivers will read. Returns its bytes.
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

  /// The same by kernels, a block of threads to a tile; selections other than TopK's go from tile to tile, as from segment to
  /// segment.
  template <GridExecutor E, class In, class Message, class Feedback>
  index_t measure_and_encode(E executor, Workspace<E>& workspace, const Range& range,
                             Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                             const EncodeContext& context, std::byte* section, std::uint32_t* bad) const {
    if (range.pieces().empty()) return 0;
    const detail::PlacedRange one{&range};
    const detail::PlacedRanges ranges(&one, 1);
    if constexpr (picks_together) {
      encode_together(executor, workspace, ranges, mask, incoming, message, feedback, context, section, bad,
                      [](int, index_t) {});
      return wire_bytes(range);
    } else {
      forward(executor, workspace, ranges, mask, incoming, message, feedback, bad);
      clear(executor, workspace, range);
      std::byte* at = section;
      for (Units units(range); units.more(); units.next())
        at = picker().encode_unit(
            executor, workspace.picker, units.unit(),
            detail::TileView{workspace.sums.data(), workspace.picker.sums.data(), workspace.begin}, context,
            at);
      commit_sent(executor, workspace, ranges, mask, feedback);
      return at - section;
    }
  }
  /// The same of several sections behind `base` by the same kernels; told(c, bytes) for each.
  template <GridExecutor E, class In, class Message, class Feedback, class Told>
  void encode_together(E executor, Workspace<E>& workspace, detail::PlacedRanges ranges,
                       Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                       const EncodeContext& context, std::byte* base, std::uint32_t* bad, Told told) const
      requires(encodes_together) {
    forward(executor, workspace, ranges, mask, incoming, message, feedback, bad);
    detail::for_each_top_slice<S, Values>(
        inner.selection, ranges, [&](const auto& slice, const auto& sections) {
          executor.launch(detail::PickTilesKernel<S, Values>{slice, sections, workspace.sums.data(),
                                                             workspace.picker.sums.data(), workspace.begin,
                                                             base, context.local},
                          slice.tiles);
        });
    commit_sent(executor, workspace, ranges, mask, feedback);
    for (std::size_t c = 0; c < ranges.size(); ++c) told(static_cast<int>(c), wire_bytes(*ranges[c].range));
  }

  template <GridExecutor E>
  ArrivedSums arrived(E executor, Workspace<E>& workspace, const Range& range, Incoming packets) const {
    if (range.pieces().empty()) return {workspace.sums.data(), workspace.begin};
    add(executor, workspace, range, packets);
    const detail::PlacedRange one{&range};
    return inverse(executor, workspace, detail::PlacedRanges(&one, 1));
  }
  /// The same of packet p over ranges[p] alone.
  template <GridExecutor E>
  ArrivedSums arrived(E executor, Workspace<E>& workspace, detail::PlacedRanges ranges,
                      Incoming packets) const requires(adds_together) {
    add(executor, workspace, ranges, packets);
    return inverse(executor, workspace, ranges);
  }
  /// The elements of the numbers in the picker's workspace, in the workspace.
  template <GridExecutor E>
  static ArrivedSums inverse(E executor, Workspace<E>& workspace, detail::PlacedRanges ranges) {
    detail::for_each_tile_slice<S>(ranges, [&](const detail::TileSlice<S>& slice) {
      executor.launch(detail::InverseTilesKernel<Basis, S>{slice,
                                                           {workspace.picker.sums.data(), workspace.begin,
                                                            workspace.sums.data(), workspace.begin},
                                                           workspace.cosines()},
                      slice.tiles);
    });
    return {workspace.sums.data(), workspace.begin};
  }
  /// The weighted sums of the numbers that came over `range`, before the inverse transform, in the picker's workspace.
  template <GridExecutor E>
  void add(E executor, Workspace<E>& workspace, const Range& range, Incoming packets) const {
    if constexpr (picks_together) {
      if (packets.count > 0) {
        const detail::PlacedRange one{&range};
        return add(executor, workspace, detail::PlacedRanges(&one, 1), packets);
      }
      clear(executor, workspace, range);
    } else {
      picker().arrived(executor, workspace.picker, range, packets);
    }
  }
  template <GridExecutor E>
  void check(E executor, Workspace<E>& workspace, const Range& range, const std::byte* packet,
             index_t section_at, detail::Findings* findings) const {
    if constexpr (picks_together) {
      const detail::PlacedRange one{&range, section_at};
      check(executor, workspace, detail::PlacedRanges(&one, 1), &packet, findings);
    } else {
      picker().check(executor, workspace.picker, range, packet, section_at, findings);
    }
  }
  /// The same of packet p over ranges[p], whose section is where that is going.
  template <GridExecutor E>
  void check(E executor, Workspace<E>&, detail::PlacedRanges ranges, const std::byte* const* packets,
             detail::Findings* findings) const requires(adds_together) {
    detail::check_tiles<S, Values>(executor, inner.selection, ranges, packets,
                                   Picker::Coder::limit * Granularity::limit_share, findings);
  }

  /// The weighted sums of what came over `range`, in the workspace.
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
        "terse: under tiles an error feedback's view needs `const float* at(index_t i) const`, where what "
        "shall be sent lies side by side");
  }
  template <GridExecutor E>
  static void clear(E executor, Workspace<E>& workspace, const Range& range) {
    fill(executor,
         workspace.picker.sums.all().part(range.begin_offset() - workspace.begin,
                                          range.end_offset() - range.begin_offset()),
         0.0F);
  }
  /// Evaluates the message; its numbers in the basis's coordinates, tile after tile, in `sums`.
  template <GridExecutor E, class In, class Message, class Feedback>
  static void forward(E executor, Workspace<E>& workspace, detail::PlacedRanges ranges,
                      Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                      std::uint32_t* bad) {
    check_view<Feedback>();
    for_each(executor, ranges, mask, incoming, detail::Materialize<Message>{message, bad});
    // What has come in has been read, so that both arenas are free.
    const index_t begin = workspace.begin;
    detail::for_each_tile_slice<S>(ranges, [&](const detail::TileSlice<S>& slice) {
      executor.launch(
          detail::ForwardTilesKernel<Basis, S>{slice,
                                               {feedback.at(begin), begin, workspace.sums.data(), begin},
                                               workspace.cosines(),
                                               largest_finite * Granularity::limit_share,
                                               bad},
          slice.tiles);
    });
  }
  /// What receivers read of the numbers in the picker's workspace.
  template <GridExecutor E, class Feedback>
  static void commit_sent(E executor, Workspace<E>& workspace, detail::PlacedRanges ranges,
                          Mask<typename E::memory> mask, Feedback feedback) {
    for_each(executor, ranges, mask, NoPackets{},
             detail::CommitElements<Feedback>{feedback, inverse(executor, workspace, ranges)});
  }
  template <GridExecutor E>
  void add(E executor, Workspace<E>& workspace, detail::PlacedRanges ranges, Incoming packets) const
      requires(adds_together) {
    detail::add_tiles<S, Values>(executor, inner.selection, ranges, packets.sources, packets.count,
                                 workspace.picker.sums.data(), workspace.begin);
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
  Picker picker() const { return {inner.selection, inner.values}; }

  /// What counts as not finite, so that no sum of the others' waves is.
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

/// Inner's picks from each tile of S x S elements: SparseLoCo's top-k per block.
///
///     Tiles<64, TopK<>>{.inner = {.selection = {.ratio = 64.0 / 4096}}}
///
/// Source: Sarfi, Therien, Lidin and Belilovsky, "Communication efficient LLM pre-training with SparseLoCo", arXiv
/// 2508.15706, 2025.
template <int S = 64, class Inner = TopK<>>
using Tiles = Tiled<Elements, S, Inner>;

/// Inner's picks from the cosine transform of each tile of S x S elements: DeMo's. A few coefficients move all of a tile, where
/// a few elements would move themselves alone.
///
///     Dct<64, TopK<>>{.inner = {.selection = {.ratio = 32.0 / 4096}}}
///
/// Source: Peng, Quesnelle and Kingma, "DeMo: decoupled momentum optimization", arXiv 2411.19870, 2024, section 3.
template <int S = 64, class Inner = TopK<>>
using Dct = Tiled<CosineWaves, S, Inner>;

TERSE_NUMERICS_END

}  // namespace terse
