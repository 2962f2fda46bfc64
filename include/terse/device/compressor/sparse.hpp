// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "terse/compressor/sparse.hpp"
#include "terse/device/compressor/coded_picks.hpp"
#include "terse/device/compressor/read_picks.hpp"
#include "terse/device/compressor/top_picks.hpp"

// Sparse on a grid executor: all units in the same kernels where selection and coder support it, unit by unit
// otherwise.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

template <class Selection, class Values, class G>
struct OnGrid<Sparse<Selection, Values, G>> {
  using Compressor = Sparse<Selection, Values, G>;
  using Coder = typename Compressor::Coder;
  using UnitsOf = typename Compressor::UnitsOf;
  using Incoming = typename Compressor::Incoming;
  static constexpr bool adds_together = Compressor::adds_together;

  template <GridExecutor E>
  struct Workspace : Compressor::template Room<E> {
    struct NoCoder {};

    buffer<float, typename E::memory> sums;  // for the arena indices from `begin` on
    index_t begin;
    UnitPicker<E> picker;
    UnitReader<E> reader;
    std::conditional_t<Values::lossless, NoCoder, UnitCoder<E, Values>> unit_coder;

    Workspace(E executor, const Compressor& compressor, const Range& covered)
        : Compressor::template Room<E>(executor, compressor, covered),
          sums(covered.end_offset() - covered.begin_offset(), unwritten),
          begin(covered.begin_offset()) {
      const Selection& picking = compressor.selection;
      index_t count = 0, elements = 0, among = 0, picks_of_all = 0;
      Compressor::for_each_size(covered, [&](index_t n) {
        elements += n;
        among += picked_from(picking, n);
        picks_of_all += picking.most(n);
        ++count;
      });
      if constexpr (adds_together) {
        picker = {among, picks_of_all, PicksAmongDrawn<Selection>};
        if constexpr (!Values::lossless) unit_coder = decltype(unit_coder)(picks_of_all);
      }
      reader = {elements, count, Selection::variable, adds_together && !PicksByDraw<Selection>};
    }
  };

  template <GridExecutor E>
  static ArrivedSums arrived(const Compressor& compressor, E executor, Workspace<E>& workspace,
                             const Range& range, Incoming packets) {
    const ArrivedSums sums{workspace.sums.data(), workspace.begin};
    const PlacedRange one{&range};
    if (range.pieces().empty()) return sums;
    if constexpr (adds_together)
      if (packets.count > 0) return arrived(compressor, executor, workspace, PlacedRanges(&one, 1), packets);
    fill(executor,
         workspace.sums.all().part(range.begin_offset() - workspace.begin,
                                   range.end_offset() - range.begin_offset()),
         0.0F);
    if constexpr (!adds_together) {
      for (int p = 0; p < packets.count; ++p) {
        const auto& source = packets.sources[p];
        workspace.reader.template for_each_unit<UnitsOf>(
            executor, compressor.sections(), range, source.section(), 0, nullptr,
            [&](index_t, const Piece& unit, const Arrived& positions, const Arrived& picked) {
              const auto listed = compressor.selection.list(
                  executor, positions, unit.count, unit.offset, source.shared(),
                  PickScratch<E>{workspace.scratch.all(), workspace.words.all()}, workspace.positions.all());
              for_each_entry(executor, picked.picks,
                             AddPicks<Coder>{picked, listed, unit.count, source.weight(),
                                             workspace.sums.data() + (unit.offset - workspace.begin)});
            });
      }
    }
    return sums;
  }
  template <GridExecutor E>
  static ArrivedSums arrived(const Compressor& compressor, E executor, Workspace<E>& workspace,
                             PlacedRanges ranges, Incoming packets) requires(adds_together) {
    workspace.reader.template add<UnitsOf>(executor, compressor.sections(), ranges, packets.sources,
                                           packets.count, workspace.sums.data(), workspace.begin);
    return {workspace.sums.data(), workspace.begin};
  }

  template <GridExecutor E>
  static void check(const Compressor& compressor, E executor, Workspace<E>& workspace, const Range& range,
                    const std::byte* packet, index_t section_at, Findings* findings) {
    if constexpr (adds_together) {
      const PlacedRange one{&range, section_at};
      check(compressor, executor, workspace, PlacedRanges(&one, 1), &packet, findings);
    } else {
      workspace.reader.template for_each_unit<UnitsOf>(
          executor, compressor.sections(), range, packet, section_at, findings,
          [&](index_t u, const Piece& unit, const Arrived& positions, const Arrived& picked) {
            const Report report{findings, u};
            compressor.selection.check(executor, positions, unit.count, report.next());
            for_each_entry(executor, Coder::floats(picked.picks),
                           CheckValues<Coder>{picked, compressor.sections().limit(unit.count, picked.picks),
                                              report.last()});
          });
    }
  }
  template <GridExecutor E>
  static void check(const Compressor& compressor, E executor, Workspace<E>& workspace, PlacedRanges ranges,
                    const std::byte* const* packets, Findings* findings) requires(adds_together) {
    workspace.reader.template check<UnitsOf>(executor, compressor.sections(), ranges, packets, findings);
  }

  template <GridExecutor E, class In, class Message, class Feedback, class Told>
  static void encode_together(const Compressor& compressor, E executor, Workspace<E>& workspace,
                              PlacedRanges ranges, Mask<typename E::memory> mask, In incoming,
                              Message message, Feedback feedback, const EncodeContext& context,
                              std::byte* base, std::uint32_t* bad, Told told) {
    if constexpr (!G::units().whole && PicksAtOnce<Selection, Values>)
      if (are_small<UnitsOf>(ranges))
        return encode_small_units<UnitsOf, Values>(executor, compressor.selection, ranges, mask, incoming,
                                                   message, feedback, context, base, bad, told);
    for_each(executor, ranges, mask, incoming, Materialize<Message>{message, bad});
    pick_together(compressor, executor, workspace, ranges, feedback, context, base, told);
  }
  /// Encodes the message that `feedback` holds.
  template <GridExecutor E, class Feedback, class Told>
  static void pick_together(const Compressor& compressor, E executor, Workspace<E>& workspace,
                            PlacedRanges ranges, Feedback feedback, const EncodeContext& context,
                            std::byte* base, Told told) {
    if constexpr (Values::lossless) {
      write_picks<UnitsOf>(
          executor, workspace.picker, compressor.selection, ranges, PutFloats<Feedback>{feedback}, feedback,
          context, base, [](const PickUnits&) {}, told);
    } else {
      // Incoming packets have been read, so the memory of their sums is free.
      const auto aside = workspace.unit_coder.put_aside(workspace.sums.all(), workspace.begin);
      write_picks<UnitsOf>(
          executor, workspace.picker, compressor.selection, ranges, aside, feedback, context, base,
          [&](const PickUnits& units) {
            workspace.unit_coder.code(executor, units, aside, feedback, context, base);
          },
          told);
    }
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
