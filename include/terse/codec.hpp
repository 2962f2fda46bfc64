// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/compressor/section_fault.hpp"
#include "terse/error_feedback/concept.hpp"
#include "terse/executor/placed_ranges.hpp"
#include "terse/executor/statistic.hpp"
#include "terse/inbox.hpp"
#include "terse/late_errors.hpp"
#include "terse/message.hpp"

namespace terse {

namespace detail {

/// Compressors with which one kernel adds several packets, each over a separate range; below, those with which one
/// kernel encodes several packets. See compressor/on_grid.hpp.
template <class C, class E>
concept AddsTogether = GridExecutor<E> && requires {
  requires C::adds_together;
};
template <class C, class E>
concept EncodesTogether = GridExecutor<E> && requires(const C& compressor, const Range& range) {
  compressor.place(range, index_t{}, index_t{});
};

/// Tested here and not at the call: there nvcc 13.0 answers yes for the host but no for the device, and the kernel is
/// lost.
template <class C, class E, class Workspace, class Where, class Incoming>
concept SumsWhatArrives = requires(const C& compressor, E executor, Workspace& workspace, const Where& where,
                                   Incoming incoming) {
  compressor.arrived(executor, workspace, where, incoming);
};
template <class State, class E>
concept StoresErrors = requires(State& state, E executor, const Range& range) {
  state.store(executor, range);
};
struct ChunkPackets;

}  // namespace detail

/// Error feedback x compressor over a range: encodes messages into packets and decodes packets into sums. Works over
/// any transport, without a topology. Owns the feedback's state; takes all memory at construction.
template <Compressor C, ErrorFeedback F, Executor E>
class Codec {
  static_assert(check_compressor<C>() && detail::check_feedback<C, F>());
  static_assert(!Traits<C>::keyed,
                "terse: this compressor decodes against the reader's own vector (Lattice, Moniqua), so its "
                "packets can't be "
                "summed by an averaging exchange");

 public:
  using FeedbackState = typename F::template State<E>;

  /// `covered`: the largest portion that is encoded. A `lent` state of the error feedback serves several codecs, whose
  /// messages must have no element in common. Its owner starts and walks it.
  TERSE_COLD Codec(E executor, C compressor, const F& feedback, const Portion& covered,
                   FeedbackState* lent = nullptr)
      : executor_(executor),
        compressor_(compressor),
        made_(compressor),
        covered_(covered.compressed),
        lent_(lent),
        workspace_(executor, compressor, covered.compressed),
        scratch_(dense_scratch(executor, covered), uninitialized),
        note_(2),
        bad_(1) {
    if (lent_ == nullptr)
      own_.emplace(feedback, covered.compressed.begin_offset(), covered.compressed.end_offset());
    if (own_) compute_errors_late();
  }

  /// Postpones the computation of errors to their next use, if possible: see terse/late_errors.hpp. The owner of a
  /// lent state must call settle_errors() before it walks the state.
  TERSE_COLD void compute_errors_late() {
    if constexpr (may_be_late)
      if (detail::LateErrors<C, E>::can_cover(covered_)) late_.emplace(covered_);
  }
  TERSE_COLD void settle_errors() {
    if constexpr (may_be_late)
      if (late_) late_->settle(executor_, covered_, state().view());
  }

  static constexpr bool lossless = C::lossless;

  const C& compressor() const { return compressor_; }
  /// Sets hyper-parameters that changed. Throws usage_error if the sizes of packets would change.
  void set_compressor(const C& compressor) {
    if constexpr (requires { compressor.require_room(made_, covered_); })
      compressor.require_room(made_, covered_);
    compressor_ = compressor;
  }
  /// Sets the learning rate of the next round, for feedbacks that follow it.
  void start(float rate) {
    if constexpr (requires(FeedbackState & state) { state.start(rate); })
      if (own_) own_->start(rate);
  }

  /// Evaluates the compressed part of `message` once per element of `portion`. Keeps it, with its scales, for encode
  /// calls over parts of that portion.
  template <class M, class In>
  void measure(const Portion& portion, Mask<typename E::memory> mask, In&& inbox, const M& message) {
    if constexpr (is_measured()) {
      if constexpr (may_be_late && !reports<M>) {
        using Errors = detail::LateView<typename C::Quantizer>;
        using Compensate = detail::Compensate<decltype(message.compressed), Errors>;
        if constexpr (detail::CodedBy<Compensate, E>) {
          if (late_ && portion.compressed.elements() == covered_.elements()) {
            const Errors errors = late_->errors(state().view());
            compressor_.measure(executor_, workspace_, portion.compressed, mask,
                                arrived(portion.compressed, inbox), Compensate{message.compressed, errors},
                                bad_.data(), late_->samples());
            return late_->measured(errors.hold);
          }
        }
      }
      settle_errors();
      compressor_.measure(executor_, workspace_, portion.compressed, mask, arrived(portion.compressed, inbox),
                          compensate(message), bad_.data());
    }
  }

  /// Writes `portion`'s packet without the header, and returns the packet's bytes. If the compressor measures, the
  /// whole range (`whole`) or just this portion must have been measured; other compressors evaluate the message
  /// here. The note is the sum of squares of the dense part.
  template <class M, class In>
  index_t encode(const Portion& portion, Mask<typename E::memory> mask, In&& inbox, const M& message,
                 const EncodeContext& context, bool whole, std::byte* packet) {
    index_t bytes = portion.bytes;
    if constexpr (!C::lossless) {
      const index_t first_unit = whole ? portion.first_unit : 0;
      if constexpr (detail::EncodesTogether<C, E>) {
        const detail::PlacedRange one = compressor_.place(portion.compressed, first_unit, portion.section_at);
        encode_placed({&one, 1}, mask, inbox, message, context, packet, [&](int, index_t written) {
          bytes += written - compressor_.wire_bytes(portion.compressed);
        });
      } else if constexpr (is_measured()) {
        encode_measured(portion.compressed, mask, message, context, first_unit, packet + portion.section_at);
      } else {
        bytes += compressor_.measure_and_encode(executor_, workspace_, portion.compressed, mask,
                                                arrived(portion.compressed, inbox), compensate(message),
                                                reporting(message), context, packet + portion.section_at,
                                                bad_.data()) -
                 compressor_.wire_bytes(portion.compressed);
      }
      if constexpr (detail::StoresErrors<FeedbackState, E>) state().store(executor_, portion.compressed);
    }
    encode_dense(portion, inbox, message, packet);
    return bytes;
  }

  /// Encodes all `chunks`, on a device by few kernels; see terse/encode_together.hpp. If the compressor measures, the whole range
  /// must have been measured.
  template <class M>
  void encode_together(const std::vector<Portion>& chunks, Mask<typename E::memory> mask, const M& message,
                       const EncodeContext& context, detail::ChunkPackets& packets);

  /// Returns the compressed parts of an inbox over `range`, as the executor's verbs take them. A compressor may have to compute
  /// sums of them first, which are valid until the next call.
  template <class In>
  auto arrived(const Range& range, In&& inbox) {
    using Incoming = decltype(inbox.compressed());
    if constexpr (detail::SumsWhatArrives<C, E, Workspace, detail::PlacedRanges, Incoming>) {
      const detail::PlacedRange one{&range};
      return compressor_.arrived(executor_, workspace_, detail::PlacedRanges(&one, 1), inbox.compressed());
    } else if constexpr (detail::SumsWhatArrives<C, E, Workspace, Range, Incoming>) {
      return compressor_.arrived(executor_, workspace_, range, inbox.compressed());
    } else {
      return inbox.compressed();
    }
  }
  /// Returns packet p over ranges[p], for each p.
  auto arrived(detail::PlacedRanges ranges, Inbox<C>& inbox) requires(detail::AddsTogether<C, E>) {
    return compressor_.arrived(executor_, workspace_, ranges, inbox.compressed());
  }
  /// Checks several packets from peers for faults, each over portions[p], on their executor. The checks' results are consecutive.
  void check(std::span<const Portion* const> portions, const std::byte* const* packets,
             detail::Findings* findings) {
    std::array<detail::PlacedRange, detail::most_packets> placed;
    for (std::size_t p = 0; p < portions.size(); ++p) {
      placed[p].range = &portions[p]->compressed;
      placed[p].going = portions[p]->section_at;
    }
    compressor_.check(executor_, workspace_, detail::PlacedRanges(placed.data(), portions.size()), packets,
                      findings);
  }

  /// Stores the message plus its error in the feedback's memory, for rounds that don't encode packets.
  template <class M>
  void materialize(const Range& range, Mask<typename E::memory> mask, const M& message) {
    out<E> total = note();
    reduce<SumOfSquares>(executor_, range, Units{0, true}, mask, NoPackets{}, compensate(message),
                         scratch_.all(), total, bad_.data());
  }
  /// Returns the state's view, with errors up to date.
  auto feedback() {
    settle_errors();
    return state().view();
  }

  /// Returns the flag, in the executor's memory, that becomes 1 if a value was not finite.
  std::uint32_t* bad() { return bad_.data(); }
  /// Checks whether any value since the last call was not finite; on the host.
  bool take_bad() requires std::same_as<typename E::memory, memory::host> {
    return std::exchange(bad_[0], 0U) != 0;
  }

  template <class Visit>
  TERSE_COLD void walk(Visit&& visit) {
    if constexpr (!C::lossless) {
      settle_errors();
      if (own_) own_->walk(detail::PartByPart<std::remove_reference_t<Visit>>{visit});
      if constexpr (requires { workspace_.walk(visit); }) workspace_.walk(visit);
    }
  }

 private:
  using View = decltype(std::declval<FeedbackState&>().view());
  FeedbackState& state() { return lent_ != nullptr ? *lent_ : *own_; }

  /// The workspace of a lossless compressor, which needs no memory.
  struct NoWorkspace {
    NoWorkspace(E, const C&, const Range&) {}
  };
  template <class Any>
  static auto workspace_type() {
    if constexpr (Any::lossless)
      return std::type_identity<NoWorkspace>{};
    else
      return std::type_identity<typename Any::template Workspace<E>>{};
  }
  using Workspace = typename decltype(workspace_type<C>())::type;

  static constexpr bool may_be_late = detail::has_late_errors<C, F>();
  struct NeverLate {};
  template <class Any>
  static auto late_type() {
    if constexpr (detail::has_late_errors<Any, F>())
      return std::type_identity<detail::LateErrors<Any, E>>{};
    else
      return std::type_identity<NeverLate>{};
  }

  static constexpr bool is_measured() {
    if constexpr (!C::lossless) return C::measured;
    return false;
  }

  /// True for messages that are notified of their decoded values.
  template <class M>
  static constexpr bool reports = requires(const M& message) {
    message.compressed.sent(index_t{}, true, 0.0F);
  };

  template <class M>
  void encode_measured(const Range& range, Mask<typename E::memory> mask, const M& message,
                       const EncodeContext& context, index_t first_unit, std::byte* section) {
    if constexpr (may_be_late)
      if (late_ && late_->coded())
        return compressor_.encode(executor_, workspace_, range, late_->codes(), first_unit, section);
    compressor_.encode(executor_, workspace_, range, mask, reporting(message), first_unit, context, section);
  }

  /// Encodes sections from `base` on, on a device; calls told(c, bytes) for those whose sizes vary.
  template <class M, class In, class Told>
  void encode_placed(detail::PlacedRanges sections, Mask<typename E::memory> mask, In&& inbox,
                     const M& message, const EncodeContext& context, std::byte* base, Told told) {
    if constexpr (may_be_late)
      if (late_ && late_->coded())
        return compressor_.encode_together(executor_, workspace_, sections, late_->codes(), base);
    if constexpr (is_measured())
      compressor_.encode_together(executor_, workspace_, sections, mask, reporting(message), context, base);
    else
      compressor_.encode_together(executor_, workspace_, sections, mask, arrived(*sections[0].range, inbox),
                                  compensate(message), reporting(message), context, base, bad_.data(), told);
  }

  template <class M>
  auto compensate(const M& message) {
    return detail::Compensate<decltype(message.compressed), View>{message.compressed, state().view()};
  }
  template <class M>
  auto reporting(const M& message) {
    if constexpr (reports<M>)
      return detail::Reporting<decltype(message.compressed), View>{state().view(), message.compressed};
    else
      return state().view();
  }

  template <class M, class In>
  void encode_dense(const Portion& portion, In&& inbox, const M& message, std::byte* packet) {
    if (portion.dense.pieces().empty() && !has_note(portion)) return;
    if constexpr (GridExecutor<E>) {
      if (!has_note(portion)) {
        const detail::PlacedRange here{&portion.dense, portion.dense_at};
        return store_dense(detail::PlacedRanges(&here, 1), inbox, message, packet);
      }
    }
    store<SumOfSquares>(executor_, portion.dense, inbox.dense(), exact(message), packet + portion.dense_at,
                        scratch_.all(), note(), bad_.data());
    if (has_note(portion))
      copy(executor_, in<E>(note_.all()), out<E>(reinterpret_cast<float*>(packet + portion.note_at), 2));
  }
  template <class M, class In>
  void store_dense(detail::PlacedRanges ranges, In&& inbox, const M& message, std::byte* base) {
    store_values<SumOfSquares>(executor_, ranges, inbox.dense(), exact(message), base);
  }
  static bool has_note(const Portion& portion) {
    return (portion.variable ? portion.section_at : portion.bytes) > portion.note_at;
  }
  template <class M>
  auto exact(const M& message) {
    const detail::Exact<decltype(message.dense)> exact{message.dense};
    if constexpr (GridExecutor<E>)
      return detail::NotedExact<decltype(message.dense)>{exact, bad_.data()};
    else
      return exact;
  }

  out<E> note() { return {note_.data(), 1}; }
  static index_t dense_scratch(E executor, const Portion& covered) {
    return std::max(reduction_scratch<SumOfSquares>(executor, covered.compressed, Units{0, true}),
                    reduction_scratch<SumOfSquares>(executor, covered.dense, Units{0, true}));
  }

  E executor_;
  C compressor_, made_;
  Range covered_;
  std::optional<FeedbackState> own_;
  FeedbackState* lent_;
  Workspace workspace_;
  std::optional<typename decltype(late_type<C>())::type> late_;
  buffer<float, typename E::memory> scratch_, note_;  // note_, and the zero that follows it in packets
  buffer<std::uint32_t, typename E::memory> bad_;
};

}  // namespace terse

#include "terse/encode_together.hpp"
