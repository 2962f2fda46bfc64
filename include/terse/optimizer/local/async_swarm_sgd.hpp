// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "terse/graph/spaced.hpp"
#include "terse/optimizer/local/async_swarm_state.hpp"

namespace terse {

/// SwarmSGD without a schedule: no rank ever waits for another. After its local steps, `period` of them or a
/// geometric number with that mean, a rank draws a peer at random. It reads the parameters that the peer published
/// last, and publishes its own:
///
///     x_i = (x_i + y_j) / 2        y_i = x_i
///
/// y_j are rank j's parameters after its last meeting. Their age is the number of its steps since then, up to
/// `period` if spacing is fixed. A rank j that has not begun yet is skipped. Only the rank that reads moves, as in
/// the authors' program. So a single meeting doesn't keep the mean of the ranks. It is kept only in expectation over
/// the draws, which are equally likely for all pairs. A rank that makes more steps in the same time has more weight.
/// Runs are not reproducible bit for bit.
///
///     AsyncSwarmSgd<MomentumSgd<>>{.inner = {.learning_rate = 0.1F}, .period = 4}
///
/// Ranks may take different numbers of steps and finish at different times: a rank's last published parameters remain
/// readable. Only construction is collective (and, over MPI, destruction: see MpiMailbox). With a keyed compressor
/// (Lattice, Moniqua), parameters that differ by more than its bound cause a wire_error and stay unchanged. The
/// compressor is fixed at construction. A gradient that is not finite throws on its rank. The first step refuses
/// NonFinite::skip, and clip_norm around inner recipes that compress, since ranks would have to agree in every step.
///
/// It runs on the host, over transports with a mailbox (Threads, Mpi). State: the inner recipe's; two packets. Wire:
/// one packet read in a meeting. Passes in a meeting, in addition to the inner recipe's: one to apply and one to
/// send, and three copies. Source: Nadiradze, Sabour, Davies, Li, Alistarh, "Asynchronous decentralized SGD with
/// quantized and local updates", NeurIPS 2021, and its authors' program.
template <class Inner, Compressor C = Dense>
struct AsyncSwarmSgd {
  static_assert(detail::check_inner<Inner>() && check_compressor<C>());
  static_assert(C::lossless || Traits<C>::keyed,
                "terse: ranks publish their parameters uncompressed (Dense), or by a code that is decoded "
                "with the reader's own parameters (Lattice, Moniqua)");

  static constexpr bool models_differ = true;
  static constexpr bool goes_on = true, own_counts = true;

  static constexpr int scalars = detail::scalars_of<Inner>();

  Inner inner{};             ///< the recipe of local steps
  std::uint64_t period = 8;  ///< local steps between two meetings, at least 1
  /// Distribution of the local steps between meetings: `period`, or geometric with that mean.
  graph::Spacing spacing = graph::Spacing::fixed;
  C compressor{};  ///< compressor of parameters: Dense, or a keyed one

  void check() const {
    detail::check_values(inner);
    require(period >= 1, "period must be at least 1", static_cast<double>(period));
    detail::check_policy(compressor);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::composed(inner).settings(visit);
    visit("period", static_cast<double>(period));
    visit("spacing", static_cast<double>(spacing));
    detail::policy_settings(compressor, visit);
  }
  /// Returns false: steps differ in more than their scalars.
  static bool recordable() { return false; }

  template <class T>
  static constexpr bool check_on() {
    static_assert(
        HasMailbox<T>,
        "terse: asynchronous swarms need a transport with a mailbox: Threads or Mpi, Metered or not");
    return terse::check_on<detail::Composed<Inner>, T>();
  }

  template <Executor E>
  using State = detail::AsyncSwarmState<Inner, C, E>;

  template <Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<E>& state, StepScalars& now) const {
    if (input.context.on_non_finite == NonFinite::skip ||
        (std::isfinite(input.clip_norm) && !state.full_precision()))
      throw usage_error(
          "NonFinite::skip, and clip_norm around a recipe that compresses, let all ranks agree in each step, "
          "which an asynchronous swarm never does. Use NonFinite::zero, or clip gradients before the step",
          state.published.rank(), static_cast<std::int64_t>(input.context.step));
    detail::composed(inner).prepare(input, state.inner, now);
  }
  template <Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<E>& state) const {
    const StepContext& context = input.context;
    auto& published = state.published;
    if (!state.begun) published.publish(context, input.parameters);
    state.begun = true;
    detail::by_itself(published.rank(), [&] {
      detail::composed(inner).enqueue(detail::drawing_apart(input, published.rank()), state.inner);
    });
    const int peer = partner(context.seed, published.rank(), published.size(), context.step);
    if (peer < 0) return;
    published.average_with(peer, context, input.parameters);
    published.publish(context, input.parameters);
  }
  template <Executor E, class N>
  void complete(const StepInput<E, N>& input, State<E>& state) const {
    detail::by_itself(state.published.rank(), [&] { detail::composed(inner).complete(input, state.inner); });
  }

  /// Returns the rank that `rank` reads in its step of this number, or -1 for none. All other ranks are equally
  /// likely.
  int partner(std::uint64_t seed, int rank, int size, std::uint64_t step) const {
    const Draw draw = Draw::local(seed, rank, step, Purpose::matching);
    const bool meets = spacing == graph::Spacing::fixed ? step % period == 0 : draw.below(period, 0) == 0;
    if (size == 1 || !meets) return -1;
    const auto other = static_cast<int>(draw.below(static_cast<std::uint64_t>(size - 1), 1));
    return other < rank ? other : other + 1;
  }
};

}  // namespace terse
