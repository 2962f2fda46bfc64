// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "terse/compressor/concept.hpp"
#include "terse/core/half.hpp"
#include "terse/core/policy.hpp"
#include "terse/error_feedback/row_format.hpp"
#include "terse/pipeline/micro_batch.hpp"
#include "terse/pipeline/schedule.hpp"

namespace terse {

/// The part of a model that one rank computes. Rows of an activation are contiguous, without padding; pointers are into
/// the executor's memory. A is float, bf16 or fp16.
///
///     input_elements(), output_elements()     elements of an example; 0 at the ends of the pipeline
///     forward(micro_batch, const A* input)    returns the output, valid until the next call. `input` is nullptr on the
///                                             first stage, the output on the last one, which computes the loss
///     backward(micro_batch, const A* output_gradient)
///                                             returns the gradient of the input, valid until the next call; adds to
///                                             the gradients of the stage's parameters. `output_gradient` is nullptr
///                                             on the last stage, the result on the first one
///     loss(micro_batch)                       on the last stage, after forward: returns micro_batch.weight times the
///                                             mean loss of the rows
///
/// Each pass is called for micro-batches in ascending order. Several micro-batches may be between their forward and
/// their backward pass at one time; each `input` stays in place until its backward pass. If `training` is false, no
/// backward pass follows.
template <class S>
concept Stage = requires(S& stage, const MicroBatch& rows) {
  { stage.input_elements() } -> std::convertible_to<index_t>;
  { stage.output_elements() } -> std::convertible_to<index_t>;
  {*stage.forward(rows, nullptr)};
  {*stage.backward(rows, nullptr)};
  { stage.loss(rows) } -> std::convertible_to<double>;
};

namespace detail {

/// Element type of a stage's activations.
template <class S>
using ActivationOf =
    std::remove_cvref_t<decltype(*std::declval<S&>().forward(std::declval<const MicroBatch&>(), nullptr))>;

}  // namespace detail

/// A schedule of forward and backward passes; see schedule.hpp.
template <class S>
concept Schedule = std::copyable<S> && requires(const S& schedule, index_t number, int stage) {
  schedule.check();
  schedule.settings(detail::IgnoreSetting{});
  { schedule.actions(number) } -> std::same_as<index_t>;
  { schedule.at(number, stage, stage, number) } -> std::same_as<Action>;
  { schedule.in_flight(stage, stage, number) } -> std::same_as<index_t>;
  { schedule.lead() } -> std::same_as<index_t>;
};

/// Storage of the copies of examples; see example_memory.hpp.
template <class M>
concept ExampleMemory = std::copyable<M> && requires(const M& memory) {
  typename M::Format;
  RowFormat<typename M::Format>::name;
  memory.check();
};

/// Compression policy of the boundary between two stages. It has `check()`, `settings(visit)` and
///
///     whole()       the compressor of activations that are sent as they are
///     gradients()   the compressor of gradients
///
/// and, if `remembers`, so that changes against copies are sent:
///
///     changes()                        the compressor of changes, a contraction
///     capacity, when_full, audit       see AcSgd
///     memory                           an ExampleMemory
template <class P>
concept BoundaryPolicy = std::copyable<P> && requires(const P& policy) {
  { P::remembers } -> std::convertible_to<bool>;
  policy.check();
  policy.settings(detail::IgnoreSetting{});
  requires Compressor<std::remove_cvref_t<decltype(policy.whole())>>;
  requires Compressor<std::remove_cvref_t<decltype(policy.gradients())>>;
};

namespace detail {

/// A compressor that sends only some of the elements.
template <class C>
concept SelectsSome = requires(const C& compressor) {
  compressor.selection;
};

/// Reports, by static_assert, a compressor that does not code rows independently, or whose packets have no fixed
/// length.
template <class C>
constexpr bool check_row_compressor() {
  static_assert(!Traits<C>::variable,
                "terse: both stages must know the length of a packet: use a compressor of fixed size (TopK, "
                "not Threshold)");
  if constexpr (!C::lossless)
    static_assert(
        requires { typename C::Incoming; },
        "terse: rows of activations can't be compressed by a protocol of several rounds (LowRank)");
  if constexpr (requires { C::units(); })
    static_assert(!C::units().whole,
                  "terse: a scale for a whole packet would make an example's code depend on its "
                  "companions; take PerSegment, a scale for each example, or PerBlock<N>");
  return true;
}

}  // namespace detail

/// Reports missing members of a stage with a readable static_assert.
template <class S>
constexpr bool check_stage() {
  static_assert(
      requires(S & stage) {
        { stage.input_elements() } -> std::convertible_to<index_t>;
        { stage.output_elements() } -> std::convertible_to<index_t>;
      },
      "terse: a stage needs `index_t input_elements() const` and `index_t output_elements() const`, the "
      "elements of an "
      "example's activation at its boundaries; 0 at the ends");
  static_assert(
      requires(S & stage, const MicroBatch& rows) { *stage.forward(rows, nullptr); },
      "terse: a stage needs `const A* forward(const MicroBatch&, const A* input)`, which returns its output");
  static_assert(
      requires(S & stage, const MicroBatch& rows) { *stage.backward(rows, nullptr); },
      "terse: a stage needs `const A* backward(const MicroBatch&, const A* output_gradient)`, which returns "
      "the gradient "
      "of its input");
  static_assert(
      requires(S & stage, const MicroBatch& rows) {
        { stage.loss(rows) } -> std::convertible_to<double>;
      },
      "terse: a stage needs `double loss(const MicroBatch&)`, which is asked on the last one");
  using A = detail::ActivationOf<S>;
  static_assert(
      requires(S & stage, const MicroBatch& rows, const A* given) {
        { stage.forward(rows, given) } -> std::convertible_to<const A*>;
        { stage.backward(rows, given) } -> std::convertible_to<const A*>;
      },
      "terse: forward and backward take and return pointers to constant elements of one type, const float* "
      "for one");
  static_assert(Number<A>, "terse: activations are float, terse::bf16 or terse::fp16");
  return Stage<S>;
}

/// Reports missing members of a boundary policy with a readable static_assert.
template <class P>
constexpr bool check_boundary() {
  static_assert(
      BoundaryPolicy<P>,
      "terse: a pipeline's policy has `static constexpr bool remembers`, check(), settings(visit), whole() "
      "and "
      "gradients(), which return compressors; AcSgd, DirectActivations and ExactActivations are such");
  detail::check_row_compressor<std::remove_cvref_t<decltype(std::declval<const P&>().whole())>>();
  using Gradients = std::remove_cvref_t<decltype(std::declval<const P&>().gradients())>;
  detail::check_row_compressor<Gradients>();
  static_assert(
      Gradients::unbiased || Traits<Gradients>::unchecked,
      "terse: gradients travel without error feedback, so that their compressor must be unbiased, such as "
      "Uniform<8, Stochastic, Symmetric>; Unchecked<...> around it overrides this");
  if constexpr (P::remembers) {
    static_assert(
        requires(const P& policy) {
          requires Compressor<std::remove_cvref_t<decltype(policy.changes())>>;
          requires ExampleMemory<std::remove_cvref_t<decltype(policy.memory)>>;
        },
        "terse: a policy that remembers has changes(), which returns a compressor, and a `memory`, such as "
        "InMemory<fp16>");
    using Changes = std::remove_cvref_t<decltype(std::declval<const P&>().changes())>;
    detail::check_row_compressor<Changes>();
    static_assert(
        requires(const P& policy) {
          { policy.capacity } -> std::convertible_to<index_t>;
          { policy.audit } -> std::convertible_to<bool>;
          policy.when_full;
        },
        "terse: a policy that remembers has members capacity, when_full and audit, as AcSgd");
    static_assert(
        !(detail::SelectsSome<Changes> && RowFormat<typename decltype(P::memory)::Format>::blocks),
        "terse: Int8 rounds rows block by block and must see every element, and this compressor writes those "
        "that it sends: take fp16, bf16 or float");
  }
  return true;
}

}  // namespace terse
