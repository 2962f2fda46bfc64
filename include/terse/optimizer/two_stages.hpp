// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "terse/optimizer/averaging_functors.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/optimizer/two_stages_state.hpp"

namespace terse::detail {

/// The recipe that Averaging and Staged share: exact steps by First until `when` ends this stage, then compressed steps by Second.
/// Segments that are not compressed use First in both stages; their gradients are sent in the packets of the others. With a
/// lossless compressor there is only the first stage.
template <class First, class Second, Compressor C, ErrorFeedback F, Topology P, class When>
struct TwoStages {
  using Pair = StagePair<First, Second, C, F, When>;

  First first;
  Second second;
  C compressor;
  F error_feedback;
  P topology;
  When when;

  void check() const {
    first.check();
    second.check();
    check_policy(compressor);
    if (Pair::one_stage)
      check_policy(error_feedback);
    else
      check_feedback_of_states(error_feedback);
    check_policy(when);
    if constexpr (Pair::P2::facts.continues_first_stage && requires { when.skipped(); })
      if (when.skipped())
        throw usage_error(
            "the second stage continues from the first one's state, and the first stage has no step: `when` "
            "must be at least one step");
  }
  const char* unrecordable(const RecordUse& use, bool full_precision) const {
    if (full_precision)
      return detail::unrecordable(use, first.momentum_correction, first.preconditioner, when);
    if (Traits<C>::variable && waits_for_sizes<P>())
      return "a topology that hands on packets of sizes that vary (Ring) waits for them and can't be "
             "recorded";
    return detail::unrecordable(use, second.momentum_correction, second.preconditioner, compressor,
                                error_feedback, topology);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    if constexpr (!Pair::one_stage) first.settings(visit);
    second.settings(visit);
    settings_of_all(visit);
  }
  /// Visits the settings that must be equal in all groups of segments.
  template <class Visit>
  void common_settings(Visit&& visit) const {
    settings_of_all(visit);
    if constexpr (requires { error_feedback.follows_rate; })
      if (error_feedback.follows_rate) visit("learning_rate", static_cast<double>(second.learning_rate));
  }
  static constexpr bool takes_groups = true;
  static constexpr bool goes_on = P::exact && !starts_exactly<F>() && !Traits<C>::own_round;
  /// True over exact topologies, except Alone, over which ranks don't communicate.
  static constexpr bool all_throw = P::exact && !std::is_same_v<P, Alone>;

 private:
  template <class Visit>
  void settings_of_all(Visit&& visit) const {
    policy_settings(compressor, visit);
    policy_settings(error_feedback, visit);
    policy_settings(topology, visit);
    policy_settings(when, visit);
  }
  template <class N>
  using FirstRules = typename Pair::template FirstRules<N>;
  template <class N>
  using SecondRules = typename Pair::template SecondRules<N>;

 public:
  /// Number of places of StepScalars::own that the rules take.
  static constexpr int scalars = Pair::scalars;
  template <class T>
  static constexpr bool check_on() {
    return terse::check_on<P, T>();
  }

  template <Executor E>
  using State = TwoStagesState<First, Second, C, F, P, When, E>;

  template <Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<E>& state, StepScalars& now) const {
    [[maybe_unused]] const std::uint64_t torn = state.torn != 0 ? 1 : state.full_precision() ? 0 : 2;
    [[maybe_unused]] const bool exactly = !Pair::compresses || state.over == 0 || torn == 1;
    if constexpr (Pair::compresses) {
      if (state.over == 0) state.watch->check(when);
      state.compressed->set_compressor(compressor);
      if (exactly && !state.exact) {
        if (!state.has_first_stage)
          throw usage_error(
              "this state is of a run that was still averaging exactly, and this optimizer was made without "
              "exact steps",
              -1, static_cast<std::int64_t>(input.context.step));
        state.make_exact(input.executor, input.layout, topology);
      }
    }
    prepare_group(input, state, 0, now);
    state.groups.bring(input.executor);
    state.rates.set(input.executor, input.layout, state.groups.rates(), [&](std::size_t segment) {
      return state.groups.rate_of(segment, Pair::compresses && state.dense_segments[segment] != 0);
    });
    // Must be last: the calls above may throw.
    if constexpr (Pair::seeds) state.torn = torn;
  }
  /// Sets the rules, rates and scalars of the group at `place` in the layout, for this step. `prepare` is called last, for group
  /// 0.
  template <Executor E, class N>
  void prepare_group(const StepInput<E, N>& input, State<E>& state, std::size_t place,
                     StepScalars& now) const {
    const Rate exact{first.learning_rate, first.weight_decay},
        compressed{second.learning_rate, second.weight_decay};
    state.groups.take(place, first.rules(), second.rules(), exact,
                      state.full_precision() ? exact : compressed);
    const auto fill_in = [&](const auto& rule, int first_place) {
      if constexpr (requires { rule.at_step(std::uint64_t{}); })
        for (const float value : rule.at_step(input.context.step))
          now.own[static_cast<std::size_t>(first_place++)] = value;
    };
    fill_in(rule_of<float>(first.momentum_correction), Pair::first_scalar[0]);
    fill_in(rule_of<float>(first.preconditioner), Pair::first_scalar[1]);
    fill_in(rule_of<float>(second.momentum_correction), Pair::first_scalar[2]);
    fill_in(rule_of<float>(second.preconditioner), Pair::first_scalar[3]);
  }
  template <Executor E, class N>
  void open(const StepInput<E, N>& input, State<E>& state) const {
    if (state.starts_anew()) {
      if constexpr (Pair::reseeds) {
        const auto said = said_exactly(input, state);
        state.exact->open(input.context, {}, Message{said, said});
      }
    } else if (state.averages_exactly()) {
      open_average(*state.exact, input);
    } else if constexpr (Pair::compresses) {
      state.compressed->open(compressed_context(input), state.mask(), compressed_message(input, state));
    }
  }
  template <Executor E>
  void allow(State<E>& state, index_t segment) const {
    if (state.averages_exactly())
      state.exact->allow(segment);
    else if constexpr (Pair::compresses)
      state.compressed->allow(segment);
  }
  template <Executor E>
  void progress(State<E>& state) const {
    if (state.averages_exactly())
      state.exact->progress();
    else if constexpr (Pair::compresses)
      state.compressed->progress();
  }
  template <Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<E>& state) const {
    const FirstRules<N> rules = first_rules(input, state);
    if (state.averages_exactly() && !state.starts_anew()) {
      if constexpr (Pair::layer_wise) {
        average_exactly(input, state, KeepStep<FirstRules<N>, true>{rules, state.layers->steps.data()});
        const OneRule<FirstRules<N>> of_segment{rules};
        if constexpr (Pair::carries)
          state.layers->step(input.executor, *state.exact, of_segment, second_rules(input, state));
        else
          state.layers->step(input.executor, *state.exact, of_segment, NoObserver{});
      } else {
        average_exactly(input, state, Descend<FirstRules<N>, true>{rules});
      }
    } else if constexpr (Pair::compresses) {
      const SecondRules<N> compressed = second_rules(input, state);
      if constexpr (Pair::layer_wise) {
        float* const steps = state.layers->steps.data();
        average_messages(input, state, KeepStep<SecondRules<N>, false>{compressed, steps},
                         KeepStep<FirstRules<N>, true>{rules, steps});
        const OfSegment<FirstRules<N>, SecondRules<N>> of_segment{rules, compressed,
                                                                  state.dense_table.data()};
        if constexpr (Pair::reseeds)
          if (state.starts_anew())
            return state.layers->step(input.executor, *state.exact, of_segment, NoObserver{});
        state.layers->step(input.executor, *state.compressed, of_segment, NoObserver{});
      } else {
        average_messages(input, state, Descend<SecondRules<N>, false>{compressed},
                         Descend<FirstRules<N>, true>{rules});
      }
    }
  }
  template <Executor E, class N>
  void complete(const StepInput<E, N>& input, State<E>& state) const {
    if (state.averages_exactly())
      state.exact->settle(input.context);
    else if constexpr (Pair::compresses)
      state.compressed->settle(input.context);
    if constexpr (Pair::compresses)
      if (state.over == 0) go_over(input, state);
    state.torn = 0;
  }

 private:
  template <Executor E, class N>
  FirstRules<N> first_rules(const StepInput<E, N>& input, State<E>& state) const {
    return {rule_of<float>(first.momentum_correction), rule_of<float>(first.preconditioner),
            state.view_of(input), state.groups.first()};
  }
  template <Executor E, class N>
  SecondRules<N> second_rules(const StepInput<E, N>& input, State<E>& state) const {
    return {rule_of<float>(second.momentum_correction), rule_of<float>(second.preconditioner),
            state.view_of(input), state.groups.second()};
  }

  /// Checks whether the rate is 0 and the error follows the rate: then the error is unchanged, and must not be added
  /// to the momentum.
  bool holds() const {
    if constexpr (requires { error_feedback.follows_rate; })
      return error_feedback.follows_rate && std::fpclassify(second.learning_rate) == FP_ZERO;
    return false;
  }

  /// Averages messages, compressed or, after a failed step, exactly.
  template <Executor E, class N, class Compressed, class Exact>
  void average_messages(const StepInput<E, N>& input, State<E>& state, const Compressed& compressed,
                        const Exact& exact) const {
    if constexpr (Pair::reseeds)
      if (state.starts_anew()) return reseed(input, state, compressed, exact);
    mix(input, state, compressed, exact);
  }
  template <Executor E, class N>
  auto said_exactly(const StepInput<E, N>& input, State<E>& state) const {
    return SayExactly<SecondRules<N>, decltype(state.compressed->feedback()), typename N::gradient>{
        {second_rules(input, state)},
        state.compressed->feedback(),
        {input.gradients, input.context.now},
        state.dense_table.data()};
  }
  template <Executor E, class N, class Compressed, class Exact>
  void reseed(const StepInput<E, N>& input, State<E>& state, const Compressed& compressed,
              const Exact& exact) const {
    // The gradients have already been clipped.
    StepInput<E, N> unclipped = input;
    unclipped.clip_norm = std::numeric_limits<float>::infinity();
    terse::detail::average_exactly(
        *state.exact, unclipped, said_exactly(input, state),
        Reseeding<decltype(state.compressed->feedback()), Compressed, Exact>{
            state.compressed->feedback(), compressed, exact, state.dense_table.data()});
  }
  template <Executor E, class N, class Use>
  static void average_exactly(const StepInput<E, N>& input, State<E>& state, const Use& use) {
    // Initializes the copies in each exact step, so that a record of one exact step is valid for all; the last
    // initialization counts.
    if constexpr (Pair::seeds)
      average_gradients(*state.exact, input,
                        Seeding<decltype(state.compressed->feedback()), typename N::gradient, Use>{
                            state.compressed->feedback(),
                            state.compressed->fed_back().begin_offset(),
                            state.compressed->fed_back().end_offset(),
                            {input.gradients, input.context.now},
                            use});
    else
      average_gradients(*state.exact, input, use);
  }
  template <Executor E, class N>
  StepContext compressed_context(const StepInput<E, N>& input) const {
    StepContext context = input.context.at_rate(second.learning_rate);
    context.dense_only = holds();
    return context;
  }
  template <Executor E, class N>
  auto compressed_message(const StepInput<E, N>& input, State<E>& state) const {
    return Message{Say<SecondRules<N>>{second_rules(input, state)},
                   ScaledGradient{input.gradients, input.context.now}};
  }
  template <Executor E, class N, class Compressed, class Exact>
  void mix(const StepInput<E, N>& input, State<E>& state, const Compressed& compressed,
           const Exact& exact) const {
    state.compressed->mix(compressed_context(input), state.mask(), compressed_message(input, state),
                          Message{compressed, exact});
  }
  /// Switches to the second stage if the rule `when` says so.
  template <Executor E, class N>
  TERSE_COLD void go_over(const StepInput<E, N>& input, State<E>& state) const {
    const float* watched = nullptr;
    if constexpr (requires { When::watches; }) {
      static_assert(Pair::names.find(When::watches) >= 0,
                    "terse: this rule for the end of the first stage watches a buffer (VarianceRatio: "
                    "\"variance\") that no policy keeps");
      watched = state.buffers[static_cast<std::size_t>(Pair::names.find(When::watches))].data();
    }
    if (!state.watch->due(when, input.executor, input.context.step, watched)) return;
    if constexpr (Pair::carries) {
      const SecondRules<N> rules = second_rules(input, state);
      if (!state.masked->settle([&](bool tries) {
            return GoOver<FirstRules<N>, SecondRules<N>>{first_rules(input, state), rules, tries};
          }))
        return;
      if constexpr (Pair::balances)
        state.balance->settle(
            input.executor, rules,
            state.buffers[static_cast<std::size_t>(Pair::names.find(Pair::M2::state[0]))].data(),
            state.dense_table.data());
    }
    state.over = 1;
    // Keeps the exact exchange if copies restart from an exact step after a failure. On a device the exchange is always kept: a
    // user's record of exact steps contains its memory and its channel, and NCCL doesn't release the channel before the record.
    if constexpr (!Pair::seeds && !GridExecutor<E>) state.exact.reset();
  }
};

}  // namespace terse::detail
