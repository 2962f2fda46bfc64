// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "terse/compressor/concept.hpp"
#include "terse/core/policy.hpp"

namespace terse {

/// Scratch for selections.
template <Executor E>
struct PickScratch {
  out<E> floats;
  out<E, std::uint32_t> words;
};

namespace detail {

template <class S>
concept SaysMost = requires(const S& selection, index_t n) {
  { selection.most(n) } -> std::same_as<index_t>;
};
template <class S>
concept SaysIndexBytes = requires(const S& selection, index_t n, index_t k) {
  { selection.index_bytes(n, k) } -> std::same_as<index_t>;
};
template <class S>
concept SaysScratch = requires(const S& selection, SomeExecutor executor, index_t n) {
  { selection.floats(executor, n) } -> std::same_as<index_t>;
  { selection.words(n) } -> std::same_as<index_t>;
};
template <class S>
concept Selects = requires(const S& selection, in<SomeExecutor> values, index_t key,
                           const EncodeContext& context, PickScratch<SomeExecutor> scratch,
                           out<SomeExecutor, std::uint32_t> positions, std::byte* wire) {
  {
    selection.select(SomeExecutor{}, values, key, context, scratch, positions, wire)
    } -> std::same_as<index_t>;
};
template <class S>
concept ReadsPicks = std::default_initializable<typename S::Reader> &&
    std::is_constructible_v<typename S::Reader, const S&, const std::byte*, index_t, index_t, index_t,
                            const StepDraw&> && requires(typename S::Reader& reader) {
  { reader.position() } -> std::convertible_to<index_t>;
  reader.next();
};
template <class S>
concept FindsPickFaults = requires(const S& selection, const std::byte* wire, index_t n, index_t k) {
  { selection.fault(wire, n, k) } -> std::same_as<const char*>;
};
template <class S>
concept SaysSelection = requires(const S& selection) {
  typename std::bool_constant<S::variable>;
  typename std::bool_constant<S::unbiased>;
  typename std::bool_constant<S::contractive>;
};
template <class S>
concept SaysDelta = requires(const S& selection, index_t n) {
  selection.delta(n);
};
template <class S>
concept SaysOmega = requires(const S& selection, index_t n) {
  selection.omega(n);
};
template <class S>
concept ShowsSelection = requires(const S& selection) {
  selection.check();
  selection.settings(IgnoreSetting{});
};

}  // namespace detail

/// A copyable policy that picks some of n values, n < 2^32, and encodes their positions. Sparse makes a compressor
/// from it. It has hyper-parameters and
///
///     check(), settings(visit)
///     most(n), variable                the largest number of picks; the exact one unless `variable`
///     index_bytes(n, k)                wire bytes for the positions of k picks, a multiple of 8
///     floats(executor, n), words(n)    scratch for `select` and `list`, see PickScratch
///     select(executor, values, key, context, scratch, positions, wire) -> k
///                                      writes ascending positions, and their wire form
///     Reader(selection, wire, n, k, key, shared): position() of pick 0; after next(), of the next pick, while there is
///                                      one; for the first of a Chain, of pick e after seek(e), where e only grows
///     fault(wire, n, k)                the fault of a wire form, or nullptr
///     unbiased, contractive, tracks, single_stage, delta(n), omega(n) as in Traits; if single_stage,
///     factor(n, k, e), the factor of pick e before it is sent
///
/// On a grid executor, whose memory the host can't read, `list` and `check` replace Reader and fault. Functions that
/// kernels call are TERSE_HD, including `index_bytes`:
///
///     list(executor, arrived, n, key, shared, scratch, positions) -> Positions::List, in `positions` or elsewhere;
///                                      positions of a wrong wire form may be any numbers
///     check(executor, arrived, n, report)    reports the faults of a wire form
///
/// Only this unit uses the arena indices key ... key + n - 1.
template <class S>
concept Selection = std::copyable<S> && detail::ShowsSelection<S> && detail::SaysSelection<S> &&
    detail::SaysMost<S> && detail::SaysIndexBytes<S> && detail::SaysScratch<S> && detail::Selects<S> &&
    detail::ReadsPicks<S> && detail::FindsPickFaults<S>;

/// Reports a missing member of a selection with a readable static_assert.
template <class S>
constexpr bool check_selection() {
  static_assert(std::copyable<S>, "terse: a selection is a value: it must be copyable");
  static_assert(
      detail::ShowsSelection<S>,
      "terse: a selection needs `void check() const`, which throws usage_error, and `settings(visit) "
      "const`, which calls visit(name, double) for each hyper-parameter");
  static_assert(detail::SaysSelection<S>,
                "terse: a selection states `static constexpr bool` variable, unbiased and contractive");
  static_assert(detail::SaysMost<S>,
                "terse: a selection needs `index_t most(index_t n) const`, the most picks of n values");
  static_assert(
      detail::SaysIndexBytes<S>,
      "terse: a selection needs `index_t index_bytes(index_t n, index_t k) const`, wire bytes for the "
      "positions of k picks");
  static_assert(detail::SaysScratch<S>,
                "terse: a selection needs `index_t floats(executor, index_t n) const` and `index_t "
                "words(index_t n) const`, the scratch that select takes");
  static_assert(
      detail::Selects<S>,
      "terse: a selection needs `index_t select(executor, values, index_t key, const EncodeContext&, "
      "PickScratch<E>, positions, std::byte* wire) const`, which returns the number of picks");
  static_assert(detail::ReadsPicks<S>,
                "terse: a selection needs a `Reader`, made from (selection, wire, n, k, key, shared) or from "
                "nothing, with position() and next()");
  static_assert(detail::FindsPickFaults<S>,
                "terse: a selection needs `const char* fault(const std::byte* wire, index_t n, index_t k) "
                "const`, which describes the fault of a peer's positions, or returns nullptr");
  return Selection<S>;
}

}  // namespace terse
