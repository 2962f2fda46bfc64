// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>

#include "terse/compressor/commit_elements.hpp"
#include "terse/compressor/grid_top_tiles.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// A tile as the message that a sparse compressor picks from, and what its receivers will read.
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
/// floats; on a device 2 n, and for all compressors there the tables of all sides. There selections other than TopK's take several kernels for each tile.
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
    alignas(64) float tile[static_cast<std::size_t>(S) * S], decoded[static_cast<std::size_t>(S) * S];
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
    reduce<MaxAbs>(executor, range, terse::Units{0, true}, mask, incoming, message,
                   workspace.picker.scratch.all(), workspace.picker.total.all(), bad);
    std::byte* at = section;
    for (Units units(range); units.more(); units.next()) {
      const detail::TilePlace& place = units.place();
      const Piece unit = units.unit();
      workspace.transform.forward(place, feedback.at(place.first), workspace.tile);
      if constexpr (Basis::transforms) *bad |= drop_beyond_limit(workspace.tile, unit.count);
      std::fill_n(workspace.decoded, unit.count, 0.0F);
      at =
          picker().encode_unit(executor, workspace.picker, unit,
                               detail::TileView{workspace.tile, workspace.decoded, unit.offset}, context, at);
      workspace.transform.inverse(place, workspace.decoded);
      commit(place, unit, mask, feedback, workspace.decoded);
    }
    return at - section;
  }

  /// The same by kernels, a block of threads to a tile; a selection other than TopK's goes from tile to tile, as from segment to
  /// segment.
  template <GridExecutor E, class In, class Message, class Feedback>
  index_t measure_and_encode(E executor, Workspace<E>& workspace, const Range& range,
                             Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                             const EncodeContext& context, std::byte* section, std::uint32_t* bad) const {
    check_view<Feedback>();
    if (range.pieces().empty()) return 0;
    const index_t first = range.begin_offset(), begin = workspace.begin;
    float *const elements = workspace.sums.data(), *const numbers = workspace.picker.sums.data();
    reduce<MaxAbs>(executor, range, terse::Units{0, true}, mask, incoming, message,
                   workspace.picker.scratch.all(), workspace.picker.total.all(), bad);
    // What has come in has been read, so that both arenas are free.
    detail::for_each_tile_slice<S>(range, [&](const detail::TileSlice<S>& slice) {
      executor.launch(detail::ForwardTilesKernel<Basis, S>{slice,
                                                           {feedback.at(first), first, elements, begin},
                                                           workspace.cosines(),
                                                           largest_finite * Granularity::limit_share,
                                                           bad},
                      slice.tiles);
    });
    std::byte* at = section;
    if constexpr (picks_together) {
      at += for_each_section(range, [&](const auto& slice, const auto& sections) {
        executor.launch(detail::PickTilesKernel<S, Values>{slice, sections, elements, numbers, begin, section,
                                                           context.local},
                        slice.tiles);
      });
    } else {
      clear(executor, workspace, range);
      for (Units units(range); units.more(); units.next())
        at = picker().encode_unit(executor, workspace.picker, units.unit(),
                                  detail::TileView{elements, numbers, begin}, context, at);
    }
    for_each(executor, range, mask, NoPackets{},
             detail::CommitElements<Feedback>{feedback, inverse(executor, workspace, range)});
    return at - section;
  }
  template <GridExecutor E>
  ArrivedSums arrived(E executor, Workspace<E>& workspace, const Range& range, Incoming packets) const {
    if (range.pieces().empty()) return {workspace.sums.data(), workspace.begin};
    add(executor, workspace, range, packets);
    return inverse(executor, workspace, range);
  }
  /// The elements of the numbers in the picker's workspace, in the workspace.
  template <GridExecutor E>
  static ArrivedSums inverse(E executor, Workspace<E>& workspace, const Range& range) {
    detail::for_each_tile_slice<S>(range, [&](const detail::TileSlice<S>& slice) {
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
      if (packets.count == 0) clear(executor, workspace, range);
      for (int first = 0; first < packets.count; first += detail::most_packets) {
        detail::TilePackets some;
        for (int p = first; p < packets.count && some.count < detail::most_packets; ++p)
          some.packets[some.count++] = {packets.sources[p].section(), packets.sources[p].weight()};
        for_each_section(range, [&](const auto& slice, const auto& sections) {
          executor.launch(
              detail::AddTilesKernel<S, Values>{slice, sections, some, workspace.picker.sums.data(),
                                                workspace.begin, first > 0},
              slice.tiles);
        });
      }
    } else {
      picker().arrived(executor, workspace.picker, range, packets);
    }
  }
  template <GridExecutor E>
  void check(E executor, Workspace<E>& workspace, const Range& range, const std::byte* packet,
             index_t section_at, detail::Findings* findings) const {
    if constexpr (picks_together)
      for_each_section(range, [&](const auto& slice, const auto& sections) {
        executor.launch(
            detail::CheckTilesKernel<S, Values>{slice, sections, packet + section_at,
                                                Picker::Coder::limit * Granularity::limit_share, findings},
            slice.tiles);
      });
    else
      picker().check(executor, workspace.picker, range, packet, section_at, findings);
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
  /// On a grid, whose blocks share no more than 48 KiB.
  static constexpr bool picks_together =
      std::is_same_v<Selection, Largest> &&
      sizeof(typename detail::PickTilesKernel<S, Values>::Shared) <= std::size_t{48} << 10;

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
  /// use(slice, sections) for the tiles of a packet's section, whose bytes it returns.
  template <class Use>
  index_t for_each_section(const Range& range, Use use) const {
    const detail::TopSections<S, Values> sections{inner.selection};
    return detail::for_each_tile_slice<S>(
        range, [&](const detail::TileSlice<S>& slice) { use(slice, sections); }, sections);
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
    std::uint32_t dropped = 0;
    TERSE_LANES
    for (index_t i = 0; i < count; ++i) {
      const bool good = magnitude(tile[i]) <= largest_finite * Granularity::limit_share;
      dropped |= static_cast<std::uint32_t>(!good);
      tile[i] = keep_if(good, tile[i]);
    }
    return dropped;
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
