// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include "terse/compressor/on_grid.hpp"
#include "terse/compressor/pick_source.hpp"
#include "terse/compressor/picks_together.hpp"
#include "terse/compressor/quantizer_concept.hpp"
#include "terse/executor/statistic.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// A compressor made from a Selection and a coder for the picked values. Receivers decode 0 elsewhere; an error
/// feedback keeps those elements.
///
/// Wire, unit by unit: the number of picks (8 bytes, if it varies), their positions, their values. Passes: the message
/// is materialized, the selection reads it (TopK: about twice), and only picks change the error. Receivers make one
/// pass over the elements that they update. Units have fewer than 2^32 elements: divide larger ranges into buckets.
template <class Selection, Compressor Values, Granularity G>
struct Sparse {
  static_assert(check_selection<Selection>());
  static_assert(G::units().size == 0, "terse: a sparse compressor picks PerSegment or from the Whole");
  static_assert(!(G::units().whole && Selection::unbiased),
                "terse: picks from the Whole would fall between its segments");
  using Coder = detail::PickCoder<Values>;
  using UnitsOf = detail::UnitsOf<G>;
  using Grid = detail::OnGrid<Sparse>;

  static constexpr bool lossless = false;
  static constexpr bool unbiased = Selection::unbiased && Values::unbiased;
  static constexpr bool contractive =
      Selection::contractive && (Values::lossless || Traits<Values>::contractive);
  static constexpr bool tracks =
      unbiased ? false : Traits<Selection>::tracks && (Values::lossless || Traits<Values>::tracks);
  static constexpr bool variable = Selection::variable;
  static constexpr bool single_stage = Traits<Selection>::single_stage;
  static constexpr bool measured = false;
  static constexpr bool adds_together = true;

  Selection selection{};  ///< the selection of the elements to send
  Values values{};        ///< the coder of the picked values

  void check() const { selection.check(); }
  const char* unrecordable(const RecordUse& use) const {
    return detail::unrecordable(use, selection, values);
  }
  /// Throws usage_error unless sections over `range` have the sizes of those of `made`, for which memory exists.
  void require_room(const Sparse& made, const Range& range) const {
    for (UnitsOf units(range); units.more(); units.next()) {
      const index_t n = units.unit().count, k = selection.most(n), room = made.selection.most(n);
      if (k != room || selection.words(n) != made.selection.words(n) ||
          selection.index_bytes(n, k) != made.selection.index_bytes(n, k))
        throw usage_error("a sparse compressor's ratios hold from construction on: this one would pick " +
                          std::to_string(k) + " of " + std::to_string(n) +
                          " elements, and there is room for " + std::to_string(room));
    }
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    selection.settings(visit);
  }
  /// Returns delta of a unit of n elements.
  double delta(index_t n) const requires(contractive&& Values::lossless&& detail::SaysDelta<Selection>) {
    return selection.delta(n);
  }
  double omega(index_t n) const requires(unbiased&& Values::lossless&& detail::SaysOmega<Selection>) {
    return selection.omega(n);
  }

  /// Returns the compressor that does the picking, see Tiled.
  const Sparse& picker() const { return *this; }
  static constexpr Units units() { return G::units(); }
  detail::SparseSections<Selection, Values, G> sections() const { return {selection}; }
  index_t wire_bytes(const Range& range) const { return sections().bytes(range); }
  const char* fault(const Range& range, const std::byte* section, index_t bytes) const {
    return sections().fault(range, section, bytes);
  }

  /// Calls visit(n) for units that are at least as large and as many as those of any part of `covered`. Parts of
  /// matrices are vectors, whose tiles may be larger and more numerous. Throws usage_error for units of 2^32
  /// elements.
  template <class Visit>
  static void for_each_size(const Range& covered, Visit visit) {
    const auto visit_all = [&](const Range& range) {
      for (UnitsOf units(range); units.more(); units.next()) {
        const index_t n = units.unit().count;
        if (n >= index_t{1} << 32)
          throw usage_error("positions have 32 bits at most, and a unit has " + std::to_string(n) +
                            " elements; cut the range into buckets");
        visit(n);
      }
    };
    visit_all(covered);
    if constexpr (requires { G::limit_share; }) visit_all(Range(covered.pieces()));
  }

  /// The memory that all executors require.
  template <Executor E>
  struct Room {
    static_assert(!GridExecutor<E> || detail::ListsPicks<Selection, E>,
                  "terse: this selection runs on the host; on a device it needs `list` and `check`, see "
                  "terse/compressor/selection.hpp");
    static_assert(!detail::TeamExecutor<E>,
                  "terse: compressors that pick elements have no parallel form: take executor::host, or a "
                  "quantizer such as Sign or Uniform<8>");
    buffer<float, typename E::memory> scratch, picked;  // the latter for coded values
    buffer<std::uint32_t, typename E::memory> words, positions;
    typename Coder::template Workspace<E> coder;
    buffer<float, typename E::memory> total;
    buffer<std::uint32_t, typename E::memory> ignored;  // unused: picks are finite
    Range picks;

    Room(E executor, const Sparse& compressor, const Range& covered)
        : coder(executor, compressor.values, picks_of(compressor, covered)), total(1), ignored(1) {
      const Selection& picking = compressor.selection;
      index_t floats = reduction_scratch<MaxAbs>(executor, covered, Units{0, true});
      index_t words_needed = 0, most = 0;
      for_each_size(covered, [&](index_t n) {
        floats = std::max(floats, picking.floats(executor, n));
        words_needed = std::max(words_needed, picking.words(n));
        most = std::max(most, picking.most(n));
      });
      scratch = buffer<float, typename E::memory>(floats, uninitialized);
      if (!Values::lossless) picked = buffer<float, typename E::memory>(most, uninitialized);
      words = buffer<std::uint32_t, typename E::memory>(words_needed, uninitialized);
      positions = buffer<std::uint32_t, typename E::memory>(most, uninitialized);
      picks.assign({});
    }
  };
  template <Executor E>
  struct Workspace : Room<E> {
    using Room<E>::Room;
  };
  template <GridExecutor E>
  struct Workspace<E> : Grid::template Workspace<E> {
    using Grid::template Workspace<E>::Workspace;
  };

  using Source = detail::PickSource<Selection, Values, G>;
  using Incoming = detail::SparsePackets<Source>;

  Source source(const Range& range, const std::byte* section, float weight, const StepDraw& shared) const {
    return {sections(), range, section, weight, shared};
  }
  static Incoming incoming(Source* sources, int count) { return {sources, count}; }

  // The device's half of the contract: compressor/on_grid.hpp.

  /// Returns the weighted sums of packets, which are all over the same range or each over a separate one.
  template <GridExecutor E>
  ArrivedSums arrived(E executor, Workspace<E>& workspace, detail::PlacedRanges ranges,
                      Incoming packets) const {
    return Grid::arrived(executor, workspace, *this, ranges, packets);
  }
  /// Reports the faults of packets, each over a separate range.
  template <GridExecutor E>
  void check(E executor, Workspace<E>& workspace, detail::PlacedRanges ranges,
             const std::byte* const* packets, detail::Findings* findings) const {
    Grid::check(executor, workspace, *this, ranges, packets, findings);
  }
  /// Returns the place of a section that begins `at` bytes after the base.
  static detail::PlacedRange place(const Range& range, index_t, index_t at) { return {&range, at}; }
  /// Evaluates the message, picks, writes the sections and commits the decoded values.
  template <GridExecutor E, class In, class Message, class Feedback, class Told>
  void encode_together(E executor, Workspace<E>& workspace, detail::PlacedRanges sections,
                       Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                       const EncodeContext& context, std::byte* base, std::uint32_t* bad, Told told) const {
    check_view<Feedback>();
    Grid::encode(executor, workspace, *this, sections, mask, incoming, message, feedback, context, base, bad,
                 told);
  }

  /// Evaluates the message, picks, writes the section and commits the decoded values. Returns the section's bytes.
  template <Executor E, class In, class Message, class Feedback>
  index_t measure_and_encode(E executor, Workspace<E>& workspace, const Range& range,
                             Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                             const EncodeContext& context, std::byte* section, std::uint32_t* bad) const {
    check_view<Feedback>();
    if (range.pieces().empty()) return 0;
    reduce<MaxAbs>(executor, range, Units{0, true}, mask, incoming, message, workspace.scratch.all(),
                   workspace.total.all(), bad);
    std::byte* at = section;
    for (UnitsOf units(range); units.more(); units.next())
      at = encode_unit(executor, workspace, units.unit(), feedback, context, at);
    return at - section;
  }

  /// Picks from one unit of the message that `feedback` holds, writes the picks and commits. Returns the address for
  /// the next unit.
  template <Executor E, class Feedback>
  std::byte* encode_unit(E executor, Room<E>& workspace, const Piece& unit, Feedback feedback,
                         const EncodeContext& context, std::byte* at) const {
    std::byte* wire = at + (variable ? 8 : 0);
    const index_t k = selection.select(
        executor, in<E>(feedback.at(unit.offset), unit.count), unit.offset, context,
        PickScratch<E>{workspace.scratch.all(), workspace.words.all()}, workspace.positions.all(), wire);
    if (variable)
      put(executor, view<const index_t>(&k, 1), out<E, index_t>(reinterpret_cast<index_t*>(at), 1));
    wire += selection.index_bytes(unit.count, k);
    encode_values(executor, workspace, unit, k, feedback, context, wire);
    for_each_entry(executor, k,
                   detail::CommitPicks<Coder, Feedback>{feedback, workspace.positions.data(), unit, k, wire});
    return wire + Coder::bytes(k);
  }

 private:
  template <class Feedback>
  static constexpr void check_view() {
    static_assert(detail::commits_zero<Feedback>(),
                  "terse: this error feedback must see every element, sent or not: its view does not state "
                  "`commits_zero`");
    static_assert(
        requires(const Feedback& view, index_t i) {
          { view.at(i) } -> std::convertible_to<const float*>;
        },
        "terse: under a sparse compressor an error feedback's view needs `const float* at(index_t i) const`, "
        "which points into an array of the values to send");
  }
  static Range picks_of(const Sparse& compressor, const Range& covered) {
    index_t most = 0;
    for_each_size(covered, [&](index_t n) { most = std::max(most, compressor.selection.most(n)); });
    return Range({{0, 0, most}});
  }

  template <Executor E, class Feedback>
  void encode_values(E executor, Room<E>& workspace, const Piece& unit, index_t k, Feedback feedback,
                     const EncodeContext& context, std::byte* wire) const {
    // The numbers of a packet are aligned to 8 bytes.
    const auto picked =
        Values::lossless ? out<E>(reinterpret_cast<float*>(wire), k) : workspace.picked.all().part(0, k);
    gather(executor, in<E>(feedback.at(unit.offset), unit.count),
           in<E, std::uint32_t>(workspace.positions.all().part(0, k)), picked);
    if constexpr (Traits<Selection>::single_stage)
      for_each_entry(executor, k, detail::ScalePicks<Selection>{picked.data(), unit.count, k});
    if (k <= 0) return;
    if constexpr (Values::lossless) {
      fill(executor, out<E, std::byte>(wire + 4 * k, Coder::bytes(k) - 4 * k), std::byte{0});
    } else {
      // Codes picks as a separate message. The unit's place in the arena makes their draws distinct.
      workspace.picks.assign({0, unit.offset, k});
      const detail::PickedValues values_here{picked.data(), unit.offset};
      std::uint32_t* const bad = workspace.ignored.data();
      if constexpr (Values::measured) {
        values.measure(executor, workspace.coder, workspace.picks, {}, NoPackets{}, values_here, bad);
        values.encode(executor, workspace.coder, workspace.picks, {}, values_here, 0, context, wire);
      } else {
        values.measure_and_encode(executor, workspace.coder, workspace.picks, {}, NoPackets{}, values_here,
                                  values_here, context, wire, bad);
      }
    }
  }
};

namespace detail {
template <class S, class V, class G>
inline constexpr bool has_sound_parts<Sparse<S, V, G>> = Selection<S>;
}

TERSE_NUMERICS_END

}  // namespace terse
