// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/local/swarm_state.hpp"

namespace terse {

/// SwarmSGD with a shared schedule: ranks make local steps of any recipe alone, and at times two ranks meet and
/// average. All ranks draw the same pairs, see graph::Spaced: pairs of G, RandomMatching or RandomEdge. They meet
/// every `schedule.period` steps or, geometric, each in any step with probability 1 / period.
///
///     blocking         x_i = (x_i + x_j) / 2, after the local steps of both
///     non_blocking     x_i = (y_i + y_j) / 2 + (x_i - y_i), y the parameters when they met: sent then, y travels during
///                      the next local steps and enters after them, at this rank's next meeting
///
///     SwarmSgd<MomentumSgd<>>{.inner = {.learning_rate = 0.1F}, .schedule = {.period = 4}}
///     NonBlockingSwarmSgd<Adam<>, Lattice<8>>{.schedule = {.period = 4}, .compressor = {.step = 1e-3F}}
///
/// Each of the two forms keeps the mean of the ranks (non-blocking: including messages in flight). With Dense and blocking
/// meetings, both partners get equal bits. With a keyed compressor (Lattice, Moniqua) x_i moves by (z_j - z_i) / 2, z
/// the packets decoded with x_i as the key. Parameters beyond its bound cause a wire_error and stay unchanged. Ranks
/// must start from the same parameters and take the same number of steps. Their mean converges, and is the model to
/// evaluate. The inner recipe's buffers stay on their rank.
///
/// The schedule is fixed at construction. Saving completes the meeting in flight and keeps its result. Only its own
/// rank detects a gradient that is not finite, and throws; a partner throws peer_error when it waits for it. With
/// NonFinite::skip all ranks agree in every step.
///
/// State: the inner recipe's and, if non-blocking, n floats. Wire: a packet to the partner in a meeting. Passes in a
/// meeting, in addition to the inner recipe's: one to send, one to apply, and if non-blocking one between. Lattices:
/// see KeyedMixing. Source: Nadiradze, Sabour, Davies, Li, Alistarh, "Asynchronous decentralized SGD with quantized
/// and local updates", NeurIPS 2021.
template <class Inner, Compressor C = Dense, graph::PairGraph G = graph::RandomMatching,
          Meeting Form = Meeting::blocking>
struct SwarmSgd {
  static_assert(detail::check_inner<Inner>() && check_compressor<C>());
  static_assert(C::lossless || Traits<C>::keyed,
                "terse: partners send parameters, which don't become small: uncompressed (Dense), or by a "
                "code that is decoded with the reader's own parameters (Lattice, Moniqua)");

  static constexpr bool models_differ = true;
  static constexpr bool goes_on = true, inner_alone = true;

  static constexpr int scalars = detail::scalars_of<Inner>();

  Inner inner{};                ///< the recipe of local steps
  graph::Spaced<G> schedule{};  ///< the pairs, and the rounds between their meetings
  C compressor{};               ///< compressor of parameters: Dense, or a keyed one

  void check() const {
    detail::check_values(inner);
    detail::check_policy(compressor);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::composed(inner).settings(visit);
    schedule.settings(visit);
    detail::policy_settings(compressor, visit);
  }
  /// Returns false: steps differ in more than their scalars.
  static bool recordable() { return false; }

  template <class T>
  static constexpr bool check_on() {
    return terse::check_on<detail::Composed<Inner>, T>();
  }

  template <Executor E>
  using State = detail::SwarmState<Inner, C, G, Form, E>;

  template <Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<E>& state, StepScalars& now) const {
    detail::composed(inner).prepare(input, state.inner, now);
  }
  template <Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<E>& state) const {
    detail::by_itself(state.rank, [&] {
      detail::composed(inner).enqueue(detail::drawing_apart(input, state.rank), state.inner);
    });
    if (!state.meets(input.context.step))
      state.advance();
    else if (Form == Meeting::blocking)
      meet(input, state);
    else
      part(input, state);
  }
  template <Executor E, class N>
  void complete(const StepInput<E, N>& input, State<E>& state) const {
    detail::by_itself(state.rank, [&] { detail::composed(inner).complete(input, state.inner); });
    if (Form == Meeting::blocking && state.meets(input.context.step)) state.exchange.settle(input.context);
  }

 private:
  template <Executor E, class N>
  void meet(const StepInput<E, N>& input, State<E>& state) const {
    using P = typename N::parameter;
    using Take = std::conditional_t<C::lossless, detail::TakeMean<P>, detail::MoveBy<P>>;
    if constexpr (!C::lossless) state.exchange.set_compressor(compressor);
    const auto x = detail::one_vector(detail::ReadParameters<P>{input.parameters});
    state.exchange.start(input.context, {}, x);
    state.exchange.finish(detail::one_vector(Take{input.parameters}));
  }
  /// Applies the last meeting's result and begins the next one.
  template <Executor E, class N>
  void part(const StepInput<E, N>& input, State<E>& state) const {
    state.land();
    if constexpr (!C::lossless) state.exchange.set_compressor(compressor);
    for_each(input.executor, state.range,
             detail::TakeUp<typename N::parameter>{input.parameters, state.copy.data()});
    state.start(input);
  }
};

/// SwarmSGD whose pairs mix the parameters of their last meeting, without waiting for each other's local steps.
template <class Inner, Compressor C = Dense, graph::PairGraph G = graph::RandomMatching>
using NonBlockingSwarmSgd = SwarmSgd<Inner, C, G, Meeting::non_blocking>;

}  // namespace terse
