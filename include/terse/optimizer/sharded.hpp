// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "terse/compressor/cast.hpp"
#include "terse/optimizer/gather_by.hpp"
#include "terse/optimizer/groups.hpp"
#include "terse/optimizer/sharded_functors.hpp"
#include "terse/optimizer/sharded_state.hpp"
#include "terse/optimizer/sorted.hpp"
#include "terse/topology/scatter_gather.hpp"

namespace terse {

namespace detail {

template <class R>
concept RunsAsAveraging = requires {
  Composed<R>::Pair::one_stage;
};

/// Reports with a readable static_assert why the owners of a Sharded can't step by this recipe.
template <class Inner>
constexpr bool check_owners_recipe() {
  static_assert(kind_of<Inner>() == PolicyKind::none,
                "terse: this is a policy, and Sharded expects an optimizer first and policies after it: "
                "Sharded<Adam<>, Uniform<8>>");
  if constexpr (kind_of<Inner>() == PolicyKind::none && check_recipe<Inner>()) {
    static_assert(RunsAsAveraging<Inner>,
                  "terse: the owners of a Sharded step on means of gradients, by an Averaging: Adam, Lion, "
                  "MomentumSgd. This recipe (a local method, one that mixes models, ZeroOneAdam) isn't one");
    if constexpr (RunsAsAveraging<Inner>) {
      using Pair = typename Composed<Inner>::Pair;
      static_assert(
          !Pair::compresses,
          "terse: this optimizer compresses messages of its own, and over shares they are Sharded's: "
          "write Sharded<Adam<>, Uniform<8>> instead of Sharded<Adam<Uniform<8>>>; momentum on a rank's "
          "own messages (OneBitAdam, SignSgd) can't be sharded");
      static_assert(Pair::layer_names.count == 0,
                    "terse: this preconditioner or momentum correction keeps numbers of layers, which have "
                    "no owner. Use one that keeps "
                    "buffers of elements, such as AdamVariance");
      static_assert(std::is_same_v<decltype(Composed<Inner>::topology), ScatterGather>,
                    "terse: Sharded has a topology of its own, from all ranks to owners and back: give its "
                    "optimizer none, as in Sharded<Adam<>>");
      return !Pair::compresses;
    }
  }
  return false;
}

/// Checks that messages to owners may be sent by C and F.
template <class C, class F>
constexpr bool check_to_owners() {
  static_assert(
      takes_any_round<C> && !Traits<C>::keyed && !Traits<C>::whole_segments,
      "terse: owners get parts of segments, and this compressor (LowRank, Select, Dct, Lattice) needs "
      "whole ones or its own round. Use a quantizer, a Cast or TopK");
  static_assert(
      !Traits<F>::single_stage && !starts_exactly<F>(),
      "terse: this error feedback (Ef21, ErrorControl) needs the mean on every rank, and only owners get "
      "it. Use Residual");
  static_assert(check_own_errors<C, F>());
  return true;
}

}  // namespace detail

namespace recipes {

/// An Averaging whose state is divided among the ranks: each of W ranks owns 1 / W of the elements, keeps their state, and steps them.
///
///     message_i   the gradient of this rank, compressed by C with F's error, to the owners
///     owner       g = mean_i of its elements; one step of Inner on g and on its own state
///     parameters  from the owners to all ranks, by Gather
///
/// With Dense both ways parameters have the bits of Inner over ScatterGather. With a compressor C they have those of Inner over
/// AllGather with C, since a mean is not compressed again. Parameters are bitwise equal on all ranks after each step.
///
/// clip_norm bounds the norm of the mean if C is lossless, which costs an agreement of 8 bytes with each peer; otherwise sqrt(mean
/// over ranks of ||g_i||^2). After a non_finite_error of a gradient nothing has changed but F's errors. If finite messages have a
/// mean that is not finite, no rank changes its parameters, but other owners have changed their state.
///
/// State: the buffers of Inner's policies, n / W floats each; F's errors, n floats; for masters see GatherBy. Compressor and error
/// feedback belong to Sharded, not to Inner, and Inner has no topology. Sends per rank: (W - 1) / W of the bytes of a
/// compressed message, and (W - 1) / W of those of the parameters, in 2 (W - 1) messages. Passes over n: those of the compressor and
/// one to take the parameters; over n / W: four, and one more with a compressor. Source: Rajbhandari et al., "ZeRO", SC 2020, section 5.1 (P_os).
template <class Inner, class C, class F, class Gather>
struct ShardedOf {
  static_assert(detail::check_owners_recipe<Inner>() && detail::check_to_owners<C, F>());
  using Back = typename Gather::compressor_type;
  static constexpr int scale_at = detail::scalars_of<Inner>(), scalars = scale_at + 1;

  Inner inner{};       ///< the owners' optimizer
  C compressor{};      ///< compressor of gradients
  F error_feedback{};  ///< treatment of its error
  Gather gather{};     ///< way of the parameters from owners to all ranks

  void check() const {
    detail::check_values(inner);
    detail::check_policy(compressor);
    detail::check_policy(error_feedback);
    detail::check_policy(gather);
    if constexpr (requires { error_feedback.follows_rate; })
      if (error_feedback.follows_rate)
        throw usage_error(
            "error_feedback.follows_rate must be false: owners don't weigh errors by learning rates");
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::composed(inner).settings(visit);
    own_settings(visit);
  }
  template <class Visit>
  void common_settings(Visit&& visit) const {
    detail::composed(inner).common_settings(visit);
    own_settings(visit);
  }
  static constexpr bool takes_groups = true;
  static constexpr bool all_throw = true;
  static constexpr bool keeps_masters = true;
  /// Returns false: an owner's step waits for the means.
  static bool recordable() { return false; }

  template <Executor E>
  using State = detail::ShardedState<Inner, C, F, Back, E>;

  template <Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<E>& state, StepScalars& now) const {
    state.shares.follow(input.layout);
    state.to_owners.set_compressor(compressor);
    state.to_all.set_compressor(gather.compressor);
    prepare_own(now, [&] { detail::owners_recipe(inner).prepare(inside(input, state), state.inner, now); });
  }
  template <Executor E, class N>
  void prepare_group(const StepInput<E, N>& input, State<E>& state, std::size_t place,
                     StepScalars& now) const {
    prepare_own(now, [&] {
      detail::owners_recipe(inner).prepare_group(inside(input, state), state.inner, place, now);
    });
  }
  template <Executor E, class N>
  void open(const StepInput<E, N>& input, State<E>& state) const {
    state.to_owners.open(input.context, {}, message(input));
  }
  template <Executor E>
  void allow(State<E>& state, index_t segment) const {
    state.to_owners.allow(segment);
  }
  template <Executor E>
  void progress(State<E>& state) const {
    state.to_owners.progress();
  }
  template <Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<E>& state) const {
    using P = typename N::parameter;
    constexpr bool is_wide = std::is_same_v<P, float>;
    static_assert(
        is_wide || Back::lossless || std::is_same_v<Back, Cast<P>>,
        "terse: a model in 16 bits has no room for differences: give Sharded GatherBy<Cast<bf16>> for bf16, "
        "GatherBy<Cast<fp16>> for fp16, or GatherBy<Dense>");
    const detail::Moved* const places = state.shares.places();
    const index_t count = state.shares.count();
    state.to_owners.start(input.context, {}, message(input));
    state.to_owners.arrive();
    // Reports errors here, since the owners' step doesn't check the mean.
    state.to_owners.settle(input.context);
    P* model;
    if constexpr (is_wide)
      model = input.parameters.values;
    else
      model = input.parameters.rounded;
    if (!state.masters || state.adopted == 0)
      for_each(input.executor, state.shares.owned(),
               detail::AdoptShare<P>{places, count, state.parameters.data(), model});
    state.adopted = 1;
    const bool failed = !step(input, state);
    constexpr bool differs = is_wide && !Back::lossless;
    state.to_all.mix(
        input.context, {},
        Message{detail::SayOwned<P, differs>{places, count, state.parameters.data(), model, failed},
                detail::SayOwned<P, false>{places, count, state.parameters.data(), model, failed}},
        Message{detail::TakeOwned<P, differs>{model}, detail::TakeOwned<P, false>{model}});
  }
  template <Executor E, class N>
  void complete(const StepInput<E, N>& input, State<E>& state) const {
    state.to_all.settle(input.context);
  }

 private:
  template <class Visit>
  void own_settings(Visit&& visit) const {
    detail::policy_settings(compressor, visit);
    detail::policy_settings(error_feedback, visit);
    detail::policy_settings(gather, visit);
  }
  /// Calls `act` and keeps the gradient's scale for the message: means are not scaled again.
  template <class Act>
  static void prepare_own(StepScalars& now, const Act& act) {
    act();
    now.own[scale_at] = std::exchange(now.gradient_scale, 1.0F);
  }
  template <Executor E, class N>
  static auto message(const StepInput<E, N>& input) {
    const detail::GradientByScalar<typename N::gradient> say{input.gradients, input.context.now, scale_at};
    return Message{say, say};
  }
  /// Returns the step input of the owner's recipe.
  template <Executor E, class N>
  static StepInput<E, Numbers<>> inside(const StepInput<E, N>& input, State<E>& state) {
    StepContext context = input.context;
    context.checks_payload = false;
    return {input.executor,
            state.shares.layout(),
            context,
            std::numeric_limits<float>::infinity(),
            {state.parameters.data()},
            state.means.data()};
  }
  /// Clips the means and steps on them. Returns false if they are not finite; then nothing has changed.
  template <Executor E, class N>
  bool step(const StepInput<E, N>& input, State<E>& state) const {
    if (C::lossless && std::isfinite(input.clip_norm)) clip(input, state);
    try {
      detail::owners_recipe(inner).enqueue(inside(input, state), state.inner);
      detail::owners_recipe(inner).complete(inside(input, state), state.inner);
    } catch (const non_finite_error&) {
      return false;
    }
    return true;
  }
  template <Executor E, class N>
  void clip(const StepInput<E, N>& input, State<E>& state) const {
    const auto norm = state.norms(state.transport, input.executor, state.means.data(), 1, input.context.step);
    const float factor = detail::clip_factor(
        norm.value * std::sqrt(static_cast<double>(state.transport.size())), input.clip_norm);
    for_each(input.executor, state.shares.layout().range(), detail::TimesFactor{state.means.data(), factor});
  }
};

}  // namespace recipes

namespace detail {

template <class Inner>
struct ShardedAround {
  template <class C, class F, class Gather>
  using Of = recipes::ShardedOf<Inner, C, F, Gather>;
};

}  // namespace detail

/// ZeRO-1: an optimizer whose state is divided among the ranks, with a Compressor (Dense), an ErrorFeedback and a GatherBy, in any
/// order. See ShardedOf.
///
///     Sharded<Adam<>>{.inner = {.learning_rate = 1e-3F}}                    the bits of Adam<>, 1 / W of its state
///     Sharded<Adam<>, Uniform<8>, GatherBy<Cast<bf16>>>{...}                1 and 2 bytes for an element
template <class Inner, class... Ps>
using Sharded = Sorted<detail::ShardedAround<Inner>::template Of,
                       Takes<PolicyKind::compressor, PolicyKind::error_feedback, PolicyKind::gather>,
                       Policies<GatherBy<>>, Ps...>;

}  // namespace terse
