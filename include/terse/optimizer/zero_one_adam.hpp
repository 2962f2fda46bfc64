// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>
#include <utility>

#include "terse/compressor/sign.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/optimizer/local/outer_step.hpp"
#include "terse/optimizer/sorted.hpp"
#include "terse/optimizer/zero_one_adam_functors.hpp"
#include "terse/preconditioner/frozen_variance.hpp"
#include "terse/topology/all_gather.hpp"
#include "terse/topology/ring.hpp"

namespace terse {

namespace detail {

/// Resets the state of an error feedback. Warm starts of compressors stay.
template <Executor E>
struct Forget {
  E executor;
  template <class Value>
  void operator()(const std::string& name, view<Value, typename E::memory> part, index_t) const {
    if (name != "low_rank_q") fill(executor, part, Value{});
  }
  void operator()(const std::string&, std::uint64_t&) const {}
};

template <class C, class G, class F, Executor E>
struct ZeroOneState {
  using Arena = buffer<float, typename E::memory>;

  DenseExchange<G, E> full;
  Exchange<C, F, G, E> compressed;
  DenseExchange<Alone, E> own;  // checks this rank's gradient
  Rates<E> rates;
  Arena momentum;
  Arena variance;  // d in the second stage
  Arena moves, anchor;
  Arena rate_sums, kept;
  Freezing<E> freezing;
  Range all, segments;
  // One schedule for the whole optimizer; in the first stage `count` counts exact averages, in the second it counts
  // steps.
  std::uint64_t interval = 1, since = 0, count = 0;

  template <class R>
  ZeroOneState(const R& recipe, E executor, Channel& transport, const Layout& layout, const Options& options)
      : full(executor, transport, layout, layout.range(), Dense{}, NoErrorFeedback{}, options.clips(),
             dense_topology(recipe.topology), options.slice_bytes),
        compressed(executor, transport, layout, layout.range(), recipe.compressor, recipe.error_feedback,
                   false, recipe.topology, options.slice_bytes),
        own(executor, transport, layout, layout.range(), Dense{}, NoErrorFeedback{}),
        rates(layout),
        momentum(layout.size()),
        variance(layout.size()),
        moves(layout.size()),
        anchor(layout.size()),
        rate_sums(static_cast<index_t>(layout.segments().size())),
        kept(rate_sums.size()),
        freezing(executor, {AtStep{1}}, layout.range(), layout, options.most_masked),
        all(layout.range()),
        segments(Layout::flat(rate_sums.size()).range()) {
    fill(executor, kept.all(), 1.0F);
  }
  /// Checks whether the next step ends an interval.
  bool due() const { return since + 1 >= interval; }
  bool full_precision() const { return !freezing.frozen() && due(); }
  StepBytes bytes_per_step() const { return {full.most_bytes(), compressed.most_bytes()}; }
  /// Counts a step. The interval doubles, up to `longest`, after `doubling` steps with `counts`.
  void count_step(bool counts, std::uint64_t doubling, std::uint64_t longest) {
    since = due() ? 0 : since + 1;
    if (counts) ++count;
    if (count < doubling) return;
    interval = interval > longest / 2 ? longest : 2 * interval;
    count = 0;
  }
  void begin_stage(E executor) {
    interval = 1;
    since = count = 0;
    compressed.walk(Forget<E>{executor});
  }
  MaskedElements& masked_elements() { return freezing.masked_elements(); }
  SinceMeeting since_meeting() { return {rate_sums.data(), kept.data()}; }
  /// Visits the buffers that an outer step may reset or average, which excludes the frozen variance.
  template <class Visit>
  void walk_buffers(Visit&& visit) {
    visit(momentum.all());
    if (!freezing.frozen()) visit(variance.all());
  }
  template <class Visit>
  void walk(Visit&& visit) {
    visit("interval", interval);
    visit("steps_in_interval", since);
    visit("since_doubling", count);
    visit("momentum", momentum.all(), index_t{0});
    visit("variance", variance.all(), index_t{0});
    visit("moves", moves.all(), index_t{0});
    visit("anchor", anchor.all(), index_t{0});
    visit("rate_sums", rate_sums.all(), index_t{0});
    visit("anchor_kept", kept.all(), index_t{0});
    freezing.walk(visit);
    compressed.walk(visit);
  }
};

}  // namespace detail

namespace recipes {

/// 0/1 Adam: updates the variance at growing intervals, and after the freeze synchronizes ranks at growing intervals.
///
///     steps 1 ... variance_freeze_step, synchronously
///       g = mean_i g_i, exactly, and v = beta2 v + (1 - beta2) g^2, in every interval-th step;
///       g = mean_i of compressed (g_i + e_i), by the topology, in the others
///       m = beta1 m + (1 - beta1) g
///       x = x - learning_rate (clamp(m / (sqrt(v) + epsilon), -update_clip, update_clip) + weight_decay x)
///
///     later steps, locally on each rank; d = 1 / (sqrt(v) + epsilon)
///       m_i = beta1 m_i + (1 - beta1) g_i
///       x_i = x_i - learning_rate (clamp(m_i d, -update_clip, update_clip) + weight_decay x_i)
///     and ranks synchronize in every interval-th step; since the last synchronization, r = sum of learning_rate,
///     u_i = sum of learning_rate m_i, both decayed as x_i was; e_i = 0 at first
///       m = mean_i of compressed (u_i / r + e_i), by the topology
///       x = anchor, decayed as x_i was, - r clamp(m d, -update_clip, update_clip)      anchor = x
///
/// interval is 1 at the beginning of each stage. It doubles each time after `variance_updates` exact averages, and in the second
/// stage after `local_interval_steps` steps, up to most_local_steps.
///
/// Parameters are bitwise equal on all ranks in the first stage and after each synchronization; between synchronizations they
/// differ, by design. Segments with `compress == false` are sent exactly and use the variance of all segments. Elements without
/// variance have no momentum and don't move until the next exact average gives them a variance. Elements without variance at the
/// freeze are masked permanently.
///
/// In the first stage, if a gradient is not finite, all ranks find it. In the second stage only the gradient's own rank finds it,
/// before anything changes, and throws; the other ranks throw peer_error when they wait for it. NonFinite::skip and clip_norm
/// make ranks agree in each step, which costs a message to each peer.
///
/// State: momentum, variance, moves, anchor and error of n floats each, the second error, two floats per segment, n / 32 words of
/// masks; also 4 n floats of packets. Passes over n: in the first stage those of Adam and OneBitAdam; in a local step one to check
/// the gradient and one to step; in a synchronization those of OneBitAdam. Wire: an exact or a compressed round in each step of the
/// first stage; one compressed round in every interval-th step of the second. Source: Lu, Li, Zhang, De Sa and He, "Maximizing
/// communication efficiency for large-scale training via 0/1 Adam", ICLR 2023 (arXiv 2202.06009), algorithm 1. Two parts are ours:
/// `update_clip`, see FrozenVariance; and the division by r before the compressor instead of after it, so that errors don't
/// increase m when the rate falls.
template <class C, class F, class G>
struct ZeroOneAdamOf {
  static_assert(detail::check_means<C, F, G>() && detail::check_own_errors<C, F>());
  static_assert(!detail::starts_exactly<F>(),
                "terse: after a failed step the copies of Ef21 restart from exact gradients, and this "
                "method's second stage has none. Use Residual");

  float learning_rate = 1e-3F;                ///< step size; may change between steps
  float beta1 = 0.9F;                         ///< decay rate of the momentum; in [0, 1)
  float beta2 = 0.999F;                       ///< decay rate of the variance; in [0, 1)
  float epsilon = 1e-8F;                      ///< added to the denominator, outside the root
  float weight_decay = 0;                     ///< coefficient, decoupled from the gradient
  float update_clip = 10;                     ///< bound on a step's magnitude; infinity for the paper's rule
  std::uint64_t variance_freeze_step = 1000;  ///< last step of the first stage
  std::uint64_t variance_updates = 16;        ///< number of updates at each interval; the paper's kappa
  std::uint64_t local_interval_steps = 1000;  ///< number of steps until the local interval doubles
  std::uint64_t most_local_steps = 16;        ///< longest interval between synchronizations
  C compressor{};                             ///< compressor of the messages
  F error_feedback{};                         ///< handling of the compression error
  G topology{};                               ///< communication pattern between ranks

  void check() const {
    detail::check_rate("learning_rate", learning_rate);
    detail::check_epsilon(epsilon);
    detail::check_rate("weight_decay", weight_decay);
    detail::check_beta("beta1", beta1);
    detail::check_beta("beta2", beta2);
    require(update_clip > 0, "update_clip must be positive", static_cast<double>(update_clip));
    for (const auto& [name, steps] : {std::pair{"variance_freeze_step", variance_freeze_step},
                                      {"variance_updates", variance_updates},
                                      {"local_interval_steps", local_interval_steps},
                                      {"most_local_steps", most_local_steps}})
      require(steps >= 1, name, "at least 1", static_cast<double>(steps));
    detail::check_policy(compressor);
    detail::check_feedback_of_states(error_feedback);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("learning_rate", static_cast<double>(learning_rate));
    visit("beta1", static_cast<double>(beta1));
    visit("beta2", static_cast<double>(beta2));
    visit("epsilon", static_cast<double>(epsilon));
    visit("weight_decay", static_cast<double>(weight_decay));
    visit("update_clip", static_cast<double>(update_clip));
    visit("variance_freeze_step", static_cast<double>(variance_freeze_step));
    visit("variance_updates", static_cast<double>(variance_updates));
    visit("local_interval_steps", static_cast<double>(local_interval_steps));
    visit("most_local_steps", static_cast<double>(most_local_steps));
    detail::policy_settings(compressor, visit);
    detail::policy_settings(error_feedback, visit);
    detail::policy_settings(topology, visit);
  }
  /// Returns false: steps differ in more than numbers.
  static bool recordable() { return false; }
  template <class S>
  static bool alike(const S& state) {
    return !state.freezing.frozen() || state.since == 0;
  }

  template <class T>
  static constexpr bool check_on() {
    return terse::check_on<G, T>();
  }

  template <Executor E>
  using State = detail::ZeroOneState<C, G, F, E>;

  template <Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<E>& state, StepScalars&) const {
    state.rates.set(input.executor, input.layout, learning_rate, weight_decay);
    state.compressed.set_compressor(compressor);
  }
  template <Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<E>& state) const {
    using P = typename N::parameter;
    float *const m = state.momentum.data(), *const v = state.variance.data();
    const auto x = input.parameters;
    const Rate* rates = state.rates.table();
    const StepContext& context = input.context;
    const ScaledGradient gradient{input.gradients, input.context.now};
    const Message gradients{gradient, gradient};

    if (state.full_precision()) {
      average_gradients(state.full, input,
                        detail::StepTogether<P, true>{m, v, x, rates, beta1, beta2, epsilon, update_clip});
    } else if (!state.freezing.frozen()) {
      const detail::StepTogether<P, false> step{m, v, x, rates, beta1, beta2, epsilon, update_clip};
      state.compressed.mix(context, {}, gradients, Message{step, step});
    } else {
      float* const u = state.moves.data();
      const detail::StepAlone<P> step{m, u, v, x, rates, beta1, update_clip};
      state.own.mix(context, {}, gradients, Message{step, step});
      // A rank that can't step throws here and sends nothing.
      state.own.settle(input.context);
      for_each(input.executor, state.segments, detail::CountStep{state.since_meeting(), rates});
      if (!state.due()) return;
      const detail::MeanMomentum mean{m, u, state.rate_sums.data()};
      const detail::Meet<P> meet{m, u, state.anchor.data(), v, x, state.since_meeting(), update_clip};
      state.compressed.mix(context, state.freezing.mask(), Message{mean, mean}, Message{meet, meet});
      fill(input.executor, state.rate_sums.all(), 0.0F);
      fill(input.executor, state.kept.all(), 1.0F);
    }
  }
  template <Executor E, class N>
  void complete(const StepInput<E, N>& input, State<E>& state) const {
    const bool alone = state.freezing.frozen(), due = state.due();
    if (state.full_precision())
      state.full.settle(input.context);
    else if (due || !alone)
      state.compressed.settle(input.context);
    if (alone)
      state.count_step(true, local_interval_steps, most_local_steps);
    else
      state.count_step(due, variance_updates, std::numeric_limits<std::uint64_t>::max());
    if (!alone) freeze(input, state);
  }

 private:
  /// Freezes the variance if it is time. From then on messages and errors are momenta instead of gradients.
  template <Executor E, class N>
  void freeze(const StepInput<E, N>& input, State<E>& state) const {
    state.freezing.observe(input.executor, {AtStep{variance_freeze_step}}, input.context.step, epsilon,
                           state.variance.data(), state.momentum.data());
    if (!state.freezing.frozen()) return;
    state.begin_stage(input.executor);
    for_each(input.executor, state.all,
             detail::KeepAnchor<typename N::parameter>{input.parameters, state.anchor.data()});
  }
};

}  // namespace recipes

/// ZeroOneAdamOf with a Compressor (Sign), an ErrorFeedback (Residual) and a Topology (ScatterGather), in any order.
template <class... Ps>
using ZeroOneAdam = Sorted<recipes::ZeroOneAdamOf, TakesMeans, Policies<Sign, Residual>, Ps...>;

}  // namespace terse
