// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "terse/error_feedback/ef21.hpp"
#include "terse/momentum_correction/combine.hpp"
#include "terse/momentum_correction/rate_ratio.hpp"
#include "terse/optimizer/check_mixing.hpp"
#include "terse/optimizer/mixing_messages.hpp"
#include "terse/optimizer/parameter_mixing_state.hpp"
#include "terse/optimizer/policies.hpp"
#include "terse/topology/mixing.hpp"

namespace terse {

namespace recipes {

/// Decentralized SGD: each rank mixes its parameters with those of its neighbours in a graph. Rule M determines the order and
/// the momentum. Members of this family: DSgd, DmSgd, DaDmSgd, AwcDmSgd, DecentLaM, QgDmSgd, D2, GradientTracking,
/// MomentumTracking, MomentumConsensus, StochasticGradientPush, ChocoSgd, DeepSqueeze, DcdSgd, MoniquaSgd and Beer.
///
///     z_i = M.outgoing, from x_i, this rank's gradient at x_i, and the rule's buffers
///     d_i = sum_j W_ij (z_j - z_i); with a compressor over compressed z, by error feedback
///     x_i = M.update, from z_i and consensus_rate d_i
///
/// Parameters differ between ranks; their mean converges and is the model to evaluate. All ranks must start from equal
/// parameters. If average_every = H, every H-th step takes the exact mean instead of the mixture (Chen et al., "Gossip-PGA",
/// ICML 2021).
///
/// A gradient that is not finite reaches this rank's neighbours in the same step. The neighbours throw non_finite_error; other
/// ranks throw peer_error when they wait for them. With NonFinite::skip all ranks first agree on whether to step.
///
/// State: the rule's buffers, n floats each, and the state of the feedback (Ef21: 3 n for each vector). Wire:
/// one message to each neighbour, see the rule's `vectors`: 32 bytes and the section for each. Passes: one for
/// `outgoing` (x, g, buffers read; z written), one for `update` (own and arrived z, buffers read; x and buffers
/// written).
template <class M, class P, class C, class F, class Decay>
struct ParameterMixingOf {
  static_assert(check_mixing_rule<M>() && check_compressor<C>() && detail::check_feedback<C, F>() &&
                detail::check_mixing<M, P, C, F>());
  static_assert(
      C::lossless || !Decay::coupled || M::facts.vectors == 1 || M::facts.second_by_difference,
      "terse: compressed, this method's second vector is worked out again after x has changed, and with "
      "weight decay in the gradient it would be another one. Use DecoupledDecay");

  float learning_rate = 0.1F;       ///< step size; may change between steps
  float weight_decay = 0;           ///< coefficient; Decay determines if it is coupled or decoupled
  float consensus_rate = 1;         ///< step size towards the mixture, in compressed segments; in (0, 1]
  std::uint64_t average_every = 0;  ///< steps between exact means; 0 for none
  M momentum_correction{};          ///< mixing rule
  P topology{};                     ///< communication pattern between neighbours, over its graph
  C compressor{};                   ///< compressor of the messages
  F error_feedback{};               ///< handling of the compression error

  void check() const {
    detail::check_rate("learning_rate", learning_rate);
    detail::check_rate("weight_decay", weight_decay);
    require(consensus_rate > 0 && consensus_rate <= 1, "consensus_rate must be in (0, 1]",
            static_cast<double>(consensus_rate));
    detail::check_policy(momentum_correction);
    detail::check_policy(compressor);
    detail::check_feedback_of_states(error_feedback);
  }
  const char* unrecordable(const RecordUse& use, bool) const {
    return detail::unrecordable(use, momentum_correction, topology, compressor, error_feedback);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("learning_rate", static_cast<double>(learning_rate));
    visit("weight_decay", static_cast<double>(weight_decay));
    visit("consensus_rate", static_cast<double>(consensus_rate));
    visit("average_every", static_cast<double>(average_every));
    detail::policy_settings(momentum_correction, visit);
    detail::policy_settings(topology, visit);
    detail::policy_settings(compressor, visit);
    detail::policy_settings(error_feedback, visit);
  }
  /// Ranks may start from different models, which mixing brings together.
  static constexpr bool models_differ = true;
  static constexpr bool goes_on = !M::facts.sums_over_ranks && !detail::starts_exactly<F>();
  /// Scalars: the ratio of this step's learning rate to the previous one, see rate_ratio; 1 / this rank's push-sum weight;
  /// then the scalars of the rule.
  static constexpr int scalars = 2 + detail::scalars_of_rule<typename M::template Rule<float>>();
  /// True if messages don't show that a gradient is not finite.
  static constexpr bool blind = M::facts.before_gradient;
  /// Checks whether the neighbours and their weights are equal in all steps.
  bool recordable() const {
    return P::Graph::fixed && !graph::Traits<typename P::Graph>::push_sum && average_every == 0 &&
           !combines_first;
  }

 private:
  static constexpr int vectors = M::facts.vectors;
  static constexpr bool combines_first = M::facts.combines_first;
  using Vectors = std::make_integer_sequence<int, vectors>;
  using Rule = decltype(rule_of<float>(std::declval<const M&>()));
  template <class N>
  using View = detail::MixingView<N, static_cast<int>(M::state.size()), scalars - 2, Decay, blind>;
  template <class N>
  using OutgoingVectors = detail::OutgoingVectors<Rule, View<N>>;
  template <class N>
  using Updates = detail::UpdateVectors<Rule, View<N>, M::facts.moves_by_packet>;

 public:
  template <class T>
  static constexpr bool check_on() {
    return terse::check_on<P, T>();
  }

  template <Executor E>
  using State = detail::ParameterMixingState<M, P, C, F, E>;

  template <Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<E>& state, StepScalars& now) const {
    if (average_every > 0 && !state.exact)
      throw usage_error(
          "average_every was 0 when this optimizer was constructed, so it has no exchange for exact averages",
          state.rank, static_cast<std::int64_t>(input.context.step));
    state.rates.set(input.executor, input.layout, learning_rate, weight_decay);
    now.own[0] = detail::rate_ratio(momentum_correction, learning_rate, state.last_rate, input.context.step);
    const Rule rule = rule_of<float>(momentum_correction);
    if constexpr (requires { rule.at_step(std::uint64_t{}); }) {
      std::size_t place = 2;
      for (const float value : rule.at_step(input.context.step)) now.own[place++] = value;
    }
    now.own[1] = 1;
    if constexpr (graph::Traits<typename P::Graph>::push_sum)
      now.own[1] =
          static_cast<float>(1 / topology.graph.weight(state.rank, state.size, input.context.step - 1));
  }
  /// Sends the message, for rules whose message doesn't depend on the gradient. If the rule requires the gradient at the
  /// mixture, the mixture is computed here.
  template <Executor E, class N>
  void begin(const StepInput<E, N>& input, State<E>& state) const requires blind {
    if constexpr (combines_first) {
      combine(input, state);
      settle(input, state);
    } else if (!averages(input)) {
      start(input.context, state, outgoing(input, state));
    }
    state.begun = true;
  }
  template <Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<E>& state) const {
    if constexpr (combines_first) {
      if (!state.begun)
        throw usage_error(
            "CombineThenAdapt takes gradients at the mixture: call begin(parameters) before each step, and "
            "compute the gradient at the parameters that it writes",
            state.rank, static_cast<std::int64_t>(input.context.step));
      for_each(input.executor, state.range,
               detail::Adapt<Rule, View<N>>{rule_of<float>(momentum_correction),
                                            state.template view_of<View<N>>(input)});
    } else {
      combine(input, state);
    }
  }
  template <Executor E, class N>
  void complete(const StepInput<E, N>& input, State<E>& state) const {
    if constexpr (!combines_first) settle(input, state);
    state.begun = false;
    state.last_rate = std::bit_cast<std::uint32_t>(learning_rate);
    ++state.mixed_steps;
  }

 private:
  template <class E, class N>
  bool averages(const StepInput<E, N>& input) const {
    return average_every > 0 && input.context.step % average_every == 0;
  }
  template <Executor E, class N>
  void settle(const StepInput<E, N>& input, State<E>& state) const {
    if (averages(input))
      state.exact->settle(input.context);
    else
      state.mixer.settle(input.context);
  }
  template <Executor E, class N>
  OutgoingVectors<N> outgoing(const StepInput<E, N>& input, State<E>& state) const {
    return {rule_of<float>(momentum_correction), state.template view_of<View<N>>(input)};
  }

  /// Sets the compressor when the round starts: packets are then decoded with the compressor that encoded them, even if the
  /// recipe's compressor changes before the step.
  template <Executor E, class Message>
  void start(const StepContext& context, State<E>& state, const Message& message) const {
    if constexpr (!C::lossless) state.mixer.set_compressor(compressor);
    state.mixer.start(context, {}, message);
  }
  template <Executor E, class N>
  void combine(const StepInput<E, N>& input, State<E>& state) const {
    const OutgoingVectors<N> message = outgoing(input, state);
    if (averages(input)) {
      average(input, state, message, Vectors{});
      return;
    }
    const StepContext& context = input.context;
    if (!state.begun) start(context, state, message);
    state.mixer.finish(Updates<N>{message.rule, message.view, consensus_rate});
  }
  template <Executor E, class N, int... K>
  static void average(const StepInput<E, N>& input, State<E>& state, const OutgoingVectors<N>& message,
                      std::integer_sequence<int, K...>) {
    if constexpr (vectors > 1)
      for_each(input.executor, state.range,
               detail::KeepOutgoing<Rule, View<N>, 1>{{message.rule, message.view}, state.kept.data()});
    (average(input, state, message, Vector<K>{}), ...);
  }
  template <Executor E, class N, int K>
  static void average(const StepInput<E, N>& input, State<E>& state, const OutgoingVectors<N>& message,
                      Vector<K> which) {
    detail::UpdateByMean<Rule, View<N>, K> update{{message.rule, message.view}};
    if constexpr (K == 0) {
      state.exact->mix(input.context, {}, message.vector(which), Message{update, update});
    } else {
      // Reports errors of a device in the first vector before the second vector is exchanged.
      state.exact->settle(input.context);
      update.kept = state.kept.data();
      const detail::KeptOutgoing kept{update.kept};
      state.exact->mix(input.context, {}, Message{kept, kept}, Message{update, update});
    }
  }
};

}  // namespace recipes

namespace detail {

template <class C>
using MixingFeedbackFor = std::conditional_t<C::lossless || Traits<C>::keyed, NoErrorFeedback, Ef21>;

template <class Taken, class Defaults, class... Ps>
struct SortMixing;
template <PolicyKind... Kinds, class... Ds, class... Ps>
struct SortMixing<Takes<Kinds...>, Policies<Ds...>, Ps...> {
  template <PolicyKind K, class Default>
  using Either = PickPolicy<K, PickPolicy<K, Default, Ds...>, Ps...>;
  using C = Either<PolicyKind::compressor, Dense>;
  static constexpr bool sound = Given<Ps...>::template check<Kinds...>() && check_whole_models<C>();
  static_assert(sound || !(... && is_sound<Ps>));  // otherwise reported
  static_assert(
      count_of<PolicyKind::mixing_rule, Ps...> == 0 || count_of<PolicyKind::local_direction, Ps...> == 0,
      "terse: a mixing rule has its own local direction: write AdaptThenCombine<Direction> and the like");
  using Direction = Either<PolicyKind::local_direction, GradientDirection>;
  using type = typename Make<
      sound, recipes::ParameterMixingOf, Either<PolicyKind::mixing_rule, AdaptThenCombine<Direction>>,
      Either<PolicyKind::topology, Gossip>, C, Either<PolicyKind::error_feedback, MixingFeedbackFor<C>>,
      Either<PolicyKind::weight_decay, DecoupledDecay>>::type;
};

}  // namespace detail

/// The kinds of policies that methods of decentralized SGD take.
using TakesMixing =
    Takes<PolicyKind::topology, PolicyKind::compressor, PolicyKind::error_feedback, PolicyKind::weight_decay>;
/// The kinds of TakesMixing, and a local direction.
using TakesDirection = Takes<PolicyKind::topology, PolicyKind::compressor, PolicyKind::error_feedback,
                             PolicyKind::weight_decay, PolicyKind::local_direction>;

/// A ParameterMixing with these policies, in any order; policies that are not given are taken from Defaults:
/// `template <class... Ps> using MyMethod = MixingFrom<TakesMixing, Policies<MyRule>, Ps...>;`.
template <class Taken, class Defaults, class... Ps>
using MixingFrom = typename detail::SortMixing<Taken, Defaults, Ps...>::type;

/// A decentralized optimizer of a mixing rule, a mixing topology, a compressor, an error feedback and a weight decay, in any
/// order. The defaults are AdaptThenCombine of the local direction (GradientDirection), Gossip, Dense, DecoupledDecay, and
/// Ef21 for a compressor whose packets are not keyed, otherwise NoErrorFeedback.
///
///     ParameterMixing<MixedGradient, Mixing<graph::Torus>, TopK<>, Ef21>{.learning_rate = 0.05F}
template <class... Ps>
using ParameterMixing =
    MixingFrom<Takes<PolicyKind::mixing_rule, PolicyKind::local_direction, PolicyKind::topology,
                     PolicyKind::compressor, PolicyKind::error_feedback, PolicyKind::weight_decay>,
               Policies<>, Ps...>;

}  // namespace terse
