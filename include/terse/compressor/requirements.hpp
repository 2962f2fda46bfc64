// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "terse/core/draw.hpp"
#include "terse/executor/concept.hpp"

// The members that the compressor's contract in concept.hpp requires, one by one.

namespace terse {

namespace detail {

template <class C>
constexpr bool is_contractive() {
  if constexpr (requires { C::contractive; }) return C::contractive;
  if constexpr (requires { C::lossless; }) return C::lossless;
  return false;
}
template <class C>
constexpr bool does_track() {
  if constexpr (requires { C::tracks; })
    return C::tracks;
  else if constexpr (requires { C::contractive; })
    return C::contractive;
  else
    return is_contractive<C>() || !C::unbiased;
}
template <class C>
constexpr bool is_variable() {
  if constexpr (requires { C::variable; }) return C::variable;
  return false;
}
template <class C>
constexpr bool is_keyed() {
  if constexpr (requires { C::keyed; }) return C::keyed;
  return false;
}
template <class C>
constexpr bool is_single_stage() {
  if constexpr (requires { C::single_stage; }) return C::single_stage;
  return false;
}
/// A compressor that names its own round, for feedback F, topology P and executor E.
template <class C, class F = void, class P = void, class E = void>
concept NamesRound = requires {
  typename C::template Round<F, P, E>;
};
template <class C>
constexpr bool has_own_round() {
  if constexpr (requires { C::own_round; }) return C::own_round;
  return NamesRound<C> || is_keyed<C>();
}
template <class C>
constexpr bool wants_whole_segments() {
  if constexpr (requires { C::whole_segments; }) return C::whole_segments;
  return false;
}
template <class C>
constexpr bool does_decode_sums() {
  if constexpr (requires { C::decodes_sums; }) return C::decodes_sums;
  return false;
}
template <class C>
constexpr bool is_unchecked() {
  if constexpr (requires { C::unchecked; }) return C::unchecked;
  return false;
}

/// True for a quantizer, which Packed turns into a compressor.
template <class P>
constexpr bool is_quantizer = requires {
  P::bits;
  P::stochastic;
  typename P::Statistic;
}
&&!requires { P::lossless; };
/// True for a selection, which Sparse turns into a compressor.
template <class P>
constexpr bool is_selection = requires(const P& selection, index_t n) {
  P::variable;
  selection.most(n);
}
&&!requires { P::lossless; };
/// Checks whether P is only a part of a compressor, and says in a readable static_assert how to complete it.
template <class P>
constexpr bool is_part_of_compressor() {
  static_assert(!is_quantizer<P>,
                "terse: this argument is a quantizer, not a compressor. Packed makes a compressor of it: "
                "Packed<Quantizer, PerSegment>, or another Granularity");
  static_assert(!is_selection<P>,
                "terse: this argument is a selection, not a compressor. Sparse makes a compressor of it: "
                "Sparse<Selection, Dense, PerSegment>, or with a quantized compressor for the picked values");
  return is_quantizer<P> || is_selection<P>;
}

/// Returns the number of elements that a compressor holds between measuring and coding. 0 means up to the whole
/// message.
template <class C>
constexpr index_t block_of() {
  if constexpr (requires { C::block(); })
    return C::block();
  else if constexpr (requires { C::units(); })
    return C::units().whole ? 0 : C::units().size;
  return 0;
}

}  // namespace detail

/// Properties of a compressor or quantizer for the theory of convergence. C may state each as a `static constexpr bool`
/// member; otherwise the default applies.
template <class C>
struct Traits {
  /// ||x - C(x)||^2 <= (1 - delta) ||x||^2 with delta > 0, in expectation if C is random. Default: `lossless` if
  /// stated, otherwise false.
  static constexpr bool contractive = detail::is_contractive<C>();
  /// The error stays bounded under Residual, so the mean is tracked. Default: `contractive` if stated, otherwise true
  /// for lossless and for biased C.
  static constexpr bool tracks = detail::does_track<C>();
  /// A section's size depends on the data. Default: false.
  static constexpr bool variable = detail::is_variable<C>();
  /// The reader needs its own vector to decode, so packets can't be summed before decoding. Default: false.
  static constexpr bool keyed = detail::is_keyed<C>();
  /// Packets are not summed, since C has a custom protocol. Default: true if C is keyed or names its `Round`.
  static constexpr bool own_round = detail::has_own_round<C>();
  /// C may be applied only once on the way to the mean: C(C(x)) is not C(x) in expectation. Default: false.
  static constexpr bool single_stage = detail::is_single_stage<C>();
  /// C compresses whole segments better than parts, so slices end where segments do. Default: false.
  static constexpr bool whole_segments = detail::wants_whole_segments<C>();
  /// Packets are summed before decoding, so sums are equal only up to rounding. Default: false.
  static constexpr bool decodes_sums = detail::does_decode_sums<C>();
  /// The check of pairs is switched off, see Unchecked.
  static constexpr bool unchecked = detail::is_unchecked<C>();
};

/// A compressor or error feedback without the compile-time checks, for experiments with pairs that the theory does
/// not cover, such as Unchecked<NoErrorFeedback> with Sign.
template <class Policy>
struct Unchecked : Policy {
  static constexpr bool unchecked = true;
};

/// The current step's data that a compressor may use. Random streams differ between stages and purposes.
struct EncodeContext {
  std::uint64_t step;
  StepDraw local;   ///< the draw of this rank: rounding
  StepDraw shared;  ///< the draw shared by all ranks and both stages: selection
};

namespace detail {

/// A view of an error feedback that names the streams of each call, for calls that touch different streams.
template <class View>
concept NamesEachCall = NamesStreams<View> && requires(View& view) {
  view.compensated();
  view.committed();
  view.received();
};
/// Returns the streams of a view that compensate and store touch. Below are those of load and commit, and of
/// receive.
template <NamesStreams View>
TERSE_HD auto compensated(View& view) {
  if constexpr (NamesEachCall<View>)
    return view.compensated();
  else
    return view.streams();
}
template <NamesStreams View>
TERSE_HD auto committed(View& view) {
  if constexpr (NamesEachCall<View>)
    return view.committed();
  else
    return view.streams();
}
template <NamesStreams View>
TERSE_HD auto received(View& view) {
  if constexpr (NamesEachCall<View>)
    return view.received();
  else
    return view.streams();
}

/// Checks whether commit(i, keep, y, 0) of a feedback's view may be skipped.
template <class View>
constexpr bool commits_zero() {
  if constexpr (requires { View::commits_zero; }) return View::commits_zero;
  return false;
}

/// A message and an error feedback for the concept checks.
struct SomeMessage {
  Sample operator()(const Piece&, index_t, bool) const;
};
struct SomeFeedback {
  static constexpr bool commits_zero = true;
  float compensate(index_t, float) const;
  float load(index_t) const;
  void store(index_t, float) const;
  void commit(index_t, bool, float, float) const;
  const float* at(index_t) const;
};

template <class C>
using SomeWorkspaceOf = typename C::template Workspace<SomeExecutor>;
template <class C>
concept HasWorkspace = std::is_constructible_v < SomeWorkspaceOf<C>,
        SomeExecutor,
const C&, const Range& > ;
template <class C>
concept SaysMeasured = requires {
  typename std::bool_constant<C::measured>;
};
template <class C>
concept Measures = requires(const C& compressor, SomeWorkspaceOf<C>& workspace, const Range& range,
                            Mask<memory::host> mask, const EncodeContext& context, std::byte* section,
                            std::uint32_t* bad) {
  compressor.measure(SomeExecutor{}, workspace, range, mask, NoPackets{}, SomeMessage{}, bad);
  compressor.encode(SomeExecutor{}, workspace, range, mask, SomeFeedback{}, index_t{}, context, section);
};
template <class C>
concept EncodesAtOnce = requires(const C& compressor, SomeWorkspaceOf<C>& workspace, const Range& range,
                                 Mask<memory::host> mask, const EncodeContext& context, std::byte* section,
                                 std::uint32_t* bad) {
  {
    compressor.measure_and_encode(SomeExecutor{}, workspace, range, mask, NoPackets{}, SomeMessage{},
                                  SomeFeedback{}, context, section, bad)
    } -> std::same_as<index_t>;
};
template <class C>
constexpr bool does_encode() {
  if constexpr (C::measured)
    return Measures<C>;
  else
    return EncodesAtOnce<C>;
}
template <class C>
concept NamesIncoming = requires {
  typename C::Incoming;
  typename C::Source;
};
template <class C>
concept HasSource = requires(const C& compressor, const Range& range, const std::byte* section,
                             const StepDraw& shared) {
  { compressor.source(range, section, 1.0F, shared) } -> std::same_as<typename C::Source>;
};
template <class C>
concept HasIncoming = requires(typename C::Source* sources) {
  { C::incoming(sources, 1) } -> std::same_as<typename C::Incoming>;
};
template <class C>
concept FindsFaults = requires(const C& compressor, const Range& range, const std::byte* section,
                               index_t bytes) {
  { compressor.fault(range, section, bytes) } -> std::same_as<const char*>;
};
/// A compressor with the members for summed packets, in addition to its size.
template <class C>
concept MakesPackets = HasWorkspace<C> && SaysMeasured<C> &&
    does_encode<C>() && NamesIncoming<C> && HasSource<C> && HasIncoming<C> && FindsFaults<C>;

template <class C>
constexpr bool has_packets() {
  if constexpr (C::lossless || Traits<C>::own_round)
    return true;
  else
    return MakesPackets<C>;
}

/// Checks the members for summed packets, as a part of check_compressor.
template <class C>
constexpr void check_packets() {
  static_assert(NamesIncoming<C>,
                "terse: a compressor that is not lossless names `Incoming` and `Source`, how verbs read its "
                "sections (Packets<Code>, for one); where packets are not summed it names its "
                "round: `template <class F, class P, class E> using Round`");
  static_assert(
      HasWorkspace<C>,
      "terse: a compressor needs `template <Executor E> struct Workspace`, its memory for encoding, "
      "with a constructor Workspace(executor, compressor, range)");
  static_assert(SaysMeasured<C>,
                "terse: a compressor states `static constexpr bool measured`, whether it reads a message "
                "before it encodes the first packet");
  if constexpr (HasWorkspace<C> && SaysMeasured<C>) {
    static_assert(!C::measured || does_encode<C>(),
                  "terse: a compressor that is measured needs `measure(executor, workspace, range, mask, "
                  "incoming, message, bad) const` and `encode(executor, workspace, range, mask, feedback, "
                  "first_unit, context, section) const`");
    static_assert(C::measured || does_encode<C>(),
                  "terse: a compressor needs `index_t measure_and_encode(executor, workspace, range, mask, "
                  "incoming, message, feedback, context, section, bad) const`, which returns its section's "
                  "bytes");
  }
  if constexpr (NamesIncoming<C>) {
    static_assert(HasSource<C>,
                  "terse: a compressor needs `Source source(const Range&, const std::byte* section, float "
                  "weight, const StepDraw& shared) const`");
    static_assert(
        HasIncoming<C>,
        "terse: a compressor needs `static Incoming incoming(Source*, int count)`, how verbs read sections");
  }
  static_assert(FindsFaults<C>,
                "terse: a compressor needs `const char* fault(const Range&, const std::byte* section, "
                "index_t bytes) const`, which describes the fault of a peer's section, or returns nullptr");
}

}  // namespace detail

}  // namespace terse
