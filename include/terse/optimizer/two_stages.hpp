// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/optimizer/averaging_functors.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/optimizer/stage.hpp"
#include "terse/preconditioner/element_mask.hpp"

namespace terse::detail {

/// The recipe behind Averaging and Staged: exact steps by First until `when` says so, and compressed ones by Second from
/// then on. Segments that are not compressed follow First to the end, their gradients in the same packets. A lossless
/// compressor has the first stage only.
template <class First, class Second, Compressor C, ErrorFeedback F, Topology P, class When>
struct TwoStages {
  using M1 = typename First::Momentum;
  using P1 = typename First::Preconditioner;
  using M2 = typename Second::Momentum;
  using P2 = typename Second::Preconditioner;

  First first;
  Second second;
  C compressor;
  F error_feedback;
  P topology;
  When when;

  /// An Averaging, which has one stage and a warm-up.
  static constexpr bool one_stage = std::is_same_v<When, WarmUp>;
  static_assert(check_stages<First, Second, F, one_stage>());

  void check() const {
    first.check();
    second.check();
    check_policy(compressor);
    if (one_stage)
      check_policy(error_feedback);
    else
      check_feedback_of_states(error_feedback);
    check_policy(when);
    if constexpr (P2::facts.continues_first_stage && requires { when.skipped(); })
      if (when.skipped())
        throw usage_error(
            "the second stage goes on with what the first one has learned, and that lasts no step: `when` "
            "must be at least one step");
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    if constexpr (!one_stage) first.settings(visit);
    second.settings(visit);
    settings_of_all(visit);
  }
  /// What all groups of segments have in common.
  template <class Visit>
  void common_settings(Visit&& visit) const {
    settings_of_all(visit);
    if constexpr (requires { error_feedback.follows_rate; })
      if (error_feedback.follows_rate) visit("learning_rate", static_cast<double>(second.learning_rate));
  }
  static constexpr bool takes_groups = true;

 private:
  template <class Visit>
  void settings_of_all(Visit&& visit) const {
    policy_settings(compressor, visit);
    policy_settings(error_feedback, visit);
    policy_settings(topology, visit);
    policy_settings(when, visit);
  }
  static constexpr bool compresses = !C::lossless;
  static constexpr auto names = all_names<compresses>(M1::state, P1::state, M2::state, P2::state);
  static constexpr auto layer_names = all_names<compresses>(layer_state_of<M1>(), layer_state_of<P1>(),
                                                            layer_state_of<M2>(), layer_state_of<P2>());
  template <class Policy>
  static constexpr int scalars_of_policy = scalars_of_rule<typename Policy::template Rule<float>>();
  static constexpr std::array<int, 4> first_scalar{
      0, scalars_of_policy<M1>, scalars_of_policy<M1> + scalars_of_policy<P1>,
      scalars_of_policy<M1> + scalars_of_policy<P1> + scalars_of_policy<M2>};

 public:
  /// Places of StepScalars::own that its rules take.
  static constexpr int scalars = first_scalar[3] + scalars_of_policy<P2>;
  static_assert(scalars <= StepScalars::most_own, "terse: the rules of a step have room for 14 scalars");

 private:
  template <class N>
  using View = AveragingView<N, names.count, scalars, layer_names.count>;
  template <class Policy, int Scalar, std::size_t... K, std::size_t... L>
  static constexpr LayerPlaces<Places<Scalar, names.find(Policy::state[K])...>,
                               layer_names.find(layer_state_of<Policy>()[L])...>
      places(std::index_sequence<K...>, std::index_sequence<L...>);
  template <class Policy, int Scalar>
  using PlacesOf =
      decltype(places<Policy, Scalar>(std::make_index_sequence<Policy::state.size()>{},
                                      std::make_index_sequence<layer_state_of<Policy>().size()>{}));
  template <class N>
  using FirstRules = Rules<typename M1::template Rule<float>, typename P1::template Rule<float>, View<N>,
                           PlacesOf<M1, first_scalar[0]>, PlacesOf<P1, first_scalar[1]>,
                           M1::facts.rests_at_zero && P1::facts.rests_at_zero>;
  template <class N>
  using SecondRules = Rules<typename M2::template Rule<float>, typename P2::template Rule<float>, View<N>,
                            PlacesOf<M2, first_scalar[2]>, PlacesOf<P2, first_scalar[3]>,
                            M2::facts.rests_at_zero && P2::facts.rests_at_zero>;

  static constexpr bool layer_wise = P1::facts.layer_wise;
  static constexpr bool carries = compresses && !one_stage;
  static constexpr bool seeds = compresses && starts_exactly<F>();
  /// Whether momentum differs between ranks once messages are compressed. Then no step may add the gradients' mean to it.
  static constexpr bool local_momentum = compresses && SecondRules<Numbers<>>::says && !M2::facts.common;
  static constexpr bool reseeds = seeds && local_momentum;
  static constexpr bool balances =
      carries && requires(const typename M2::template Rule<float>& rule, const SomeLayers<float>& layers) {
    rule.balance(layers);
  };

 public:
  template <Transport T, Executor E>
  struct State {
    using Arena = buffer<float, typename E::memory>;

    /// While there are exact steps. On the host its memory and channels are given back at the change of stages; they are taken
    /// again where a checkpoint of the first stage is loaded later.
    std::optional<DenseExchange<P, T, E>> exact;
    index_t exact_bytes = 0;
    T& transport;
    index_t slice_bytes;
    bool clips, has_first_stage = false;
    std::optional<Exchange<C, F, P, T, E>> compressed;
    Rates<E> rates;
    buffer<LayerShape, typename E::memory> shapes;
    GroupedRules<E, decltype(First{}.rules()), decltype(Second{}.rules())> groups;
    std::array<Arena, names.count> buffers;
    std::array<Arena, layer_names.count> layer_numbers;
    std::optional<typename When::template Watch<E>> watch;
    std::optional<ElementMask<E>> masked;
    [[no_unique_address]] OptionalIf<layer_wise,
                                     Layers<E, AllMeasures<P1, P2>, typename SequenceOf<P1>::type>>
        layers;
    [[no_unique_address]] OptionalIf<balances, Balance<E>> balance;
    std::vector<std::uint8_t> dense_segments;  // 1 where a segment is never compressed
    buffer<std::uint8_t, typename E::memory> dense_table;
    std::uint64_t over = 0;  // the first stage
    /// Of feedbacks that keep copies on all ranks, which a round that throws leaves apart: 2 in a compressed round, 1 in
    /// the exact one that starts the copies anew after a failure.
    std::uint64_t torn = 0;

    TERSE_COLD State(const TwoStages& recipe, E executor, T& transport_, const Layout& layout,
                     const Options& options)
        : transport(transport_),
          slice_bytes(options.slice_bytes),
          clips(options.clips()),
          rates(layout),
          shapes(layer_shapes<E>(executor, layout)),
          groups(executor, layout) {
      if constexpr (requires { recipe.when.skipped(); }) over = recipe.when.skipped() && !seeds ? 1 : 0;
      if (!compresses || over == 0) make_exact(executor, layout, recipe.topology);
      if constexpr (compresses) {
        compressed.emplace(executor, transport, layout, layout.range(), recipe.compressor,
                           recipe.error_feedback, false, recipe.topology, slice_bytes);
        const Range& range = compressed->compressed();
        watch.emplace(recipe.when, executor, range);
        dense_segments.assign(layout.segments().size(), 1);
        for (const Piece& piece : range.pieces()) dense_segments[static_cast<std::size_t>(piece.segment)] = 0;
        if constexpr (carries) {
          masked.emplace(executor, range, layout.size());
          if (over != 0) masked->set_all();
        }
      }
      const auto segments = static_cast<index_t>(layout.segments().size());
      if constexpr (layer_wise) layers.emplace(executor, layout, P1::facts.least_dimensions);
      if constexpr (balances) balance.emplace(executor, layout);
      if constexpr (compresses && (layer_wise || balances || reseeds)) {
        dense_table = buffer<std::uint8_t, typename E::memory>(segments);
        put(executor, view<const std::uint8_t>(dense_segments.data(), segments),
            out<E, std::uint8_t>(dense_table.all()));
      }
      for (Arena& numbers : layer_numbers) numbers = Arena(segments);
      for (Arena& elements : buffers) elements = Arena(layout.size());
    }
    /// Collective.
    TERSE_COLD void make_exact(E executor, const Layout& layout, const P& carrier) {
      exact.emplace(executor, transport, layout, layout.range(), Dense{}, None{}, clips,
                    dense_topology(carrier), slice_bytes);
      exact_bytes = exact->most_bytes();
      has_first_stage = true;
    }
    bool full_precision() const { return averages_exactly() || torn != 0; }
    /// The same but for a step that starts the copies anew behind momentum of each rank's own, which averages messages, of
    /// gradients that have been clipped.
    bool clips_mean() const { return full_precision() && !(reseeds && torn != 0); }
    /// Whether the next step is other than those after it.
    bool recovers() const { return torn != 0 || (averages_exactly() && !exact); }
    StepBytes bytes_per_step() const {
      return {exact_bytes, compressed ? compressed->most_bytes(SecondRules<Numbers<>>::listens) : 0};
    }
    /// The same as full_precision() within a step.
    bool averages_exactly() const { return !compresses || over == 0 || torn == 1; }
    /// Takes a user's mask; its digest. Until the second stage begins, bits of what it leaves out are set.
    TERSE_COLD std::uint64_t leave_out(const std::uint8_t* elements) requires(carries) {
      masked->set(InUsersMask{elements, over != 0});
      return masked->digest();
    }
    /// Whether compressed steps leave elements out.
    bool masks() const {
      if constexpr (carries) return !masked->full();
      return false;
    }
    /// The buffers of n floats that its policies keep, but for what a second stage has made of them.
    template <class Visit>
    void walk_buffers(Visit&& visit) {
      for (std::size_t k = 0; k < buffers.size(); ++k)
        if (over == 0 || !P2::facts.continues_first_stage || !keeps<P2>(names.names[k]))
          visit(buffers[k].all());
    }
    template <class Visit>
    void walk_shared(Visit&& visit) {
      for (std::size_t k = 0; k < buffers.size(); ++k)
        if (!local_momentum || !keeps<M2>(names.names[k]))
          visit(names.names[k], std::as_const(buffers[k]).all());
    }
    template <class Visit>
    TERSE_COLD void walk(Visit&& visit) {
      for (std::size_t k = 0; k < buffers.size(); ++k) visit(names.names[k], buffers[k].all(), index_t{0});
      for (std::size_t k = 0; k < layer_numbers.size(); ++k)
        visit(layer_names.names[k], layer_numbers[k].all(), index_t{0});
      if constexpr (compresses) {
        visit("compresses", over);
        if constexpr (seeds) visit("torn", torn);
        if constexpr (carries) masked->walk(visit);
        watch->walk(visit);
        compressed->walk(visit);
      }
    }
  };

  template <Transport T, Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<T, E>& state, StepScalars& now) const {
    [[maybe_unused]] const std::uint64_t torn = state.torn != 0 ? 1 : state.full_precision() ? 0 : 2;
    [[maybe_unused]] const bool exactly = !compresses || state.over == 0 || torn == 1;
    if constexpr (compresses) {
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
      return state.groups.rate_of(segment, compresses && state.dense_segments[segment] != 0);
    });
    // Last, for what comes before may throw.
    if constexpr (seeds) state.torn = torn;
  }
  /// What group number `place` of the layout has in this step. `prepare` comes last, and is group 0's.
  template <Transport T, Executor E, class N>
  void prepare_group(const StepInput<E, N>& input, State<T, E>& state, std::size_t place,
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
    fill_in(first.momentum_correction.template rule<float>(), first_scalar[0]);
    fill_in(first.preconditioner.template rule<float>(), first_scalar[1]);
    fill_in(second.momentum_correction.template rule<float>(), first_scalar[2]);
    fill_in(second.preconditioner.template rule<float>(), first_scalar[3]);
  }
  template <Transport T, Executor E, class N>
  void open(const StepInput<E, N>& input, State<T, E>& state) const {
    if (start_anew(state)) {
      if constexpr (reseeds) {
        const auto said = said_exactly(input, state);
        state.exact->open(input.context, {}, Message{said, said});
      }
    } else if (state.averages_exactly()) {
      open_average(*state.exact, input);
    } else if constexpr (compresses) {
      state.compressed->open(compressed_context(input), mask_of(state), compressed_message(input, state));
    }
  }
  template <Transport T, Executor E>
  void allow(State<T, E>& state, index_t segment) const {
    if (state.averages_exactly())
      state.exact->allow(segment);
    else if constexpr (compresses)
      state.compressed->allow(segment);
  }
  template <Transport T, Executor E>
  void progress(State<T, E>& state) const {
    if (state.averages_exactly())
      state.exact->progress();
    else if constexpr (compresses)
      state.compressed->progress();
  }
  template <Transport T, Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<T, E>& state) const {
    const FirstRules<N> rules = first_rules(input, state);
    if (state.averages_exactly() && !start_anew(state)) {
      if constexpr (layer_wise) {
        average_exactly(input, state, KeepStep<FirstRules<N>, true>{rules, state.layers->steps.data()});
        const OneRule<FirstRules<N>> of_segment{rules};
        if constexpr (carries)
          state.layers->step(input.executor, *state.exact, of_segment, second_rules(input, state));
        else
          state.layers->step(input.executor, *state.exact, of_segment, NoObserver{});
      } else {
        average_exactly(input, state, Descend<FirstRules<N>, true>{rules});
      }
    } else if constexpr (compresses) {
      const SecondRules<N> compressed = second_rules(input, state);
      if constexpr (layer_wise) {
        float* const steps = state.layers->steps.data();
        average_messages(input, state, KeepStep<SecondRules<N>, false>{compressed, steps},
                         KeepStep<FirstRules<N>, true>{rules, steps});
        const OfSegment<FirstRules<N>, SecondRules<N>> of_segment{rules, compressed,
                                                                  state.dense_table.data()};
        if constexpr (reseeds)
          if (start_anew(state))
            return state.layers->step(input.executor, *state.exact, of_segment, NoObserver{});
        state.layers->step(input.executor, *state.compressed, of_segment, NoObserver{});
      } else {
        average_messages(input, state, Descend<SecondRules<N>, false>{compressed},
                         Descend<FirstRules<N>, true>{rules});
      }
    }
  }
  template <Transport T, Executor E, class N>
  void complete(const StepInput<E, N>& input, State<T, E>& state) const {
    if (state.averages_exactly())
      state.exact->settle(input.context);
    else if constexpr (compresses)
      state.compressed->settle(input.context);
    if constexpr (compresses)
      if (state.over == 0) go_over(input, state);
    state.torn = 0;
  }

 private:
  template <Transport T, Executor E, class N>
  static View<N> view_of(const StepInput<E, N>& input, State<T, E>& state) {
    View<N> view{input.parameters, input.gradients, {}, {}, state.rates.table(), input.context.now};
    for (std::size_t k = 0; k < state.buffers.size(); ++k) view.buffers[k] = state.buffers[k].data();
    for (std::size_t k = 0; k < state.layer_numbers.size(); ++k)
      view.layers[k] = state.layer_numbers[k].data();
    view.groups = state.groups.places();
    view.shapes = state.shapes.data();
    return view;
  }
  template <Transport T, Executor E, class N>
  FirstRules<N> first_rules(const StepInput<E, N>& input, State<T, E>& state) const {
    return {first.momentum_correction.template rule<float>(), first.preconditioner.template rule<float>(),
            view_of(input, state), state.groups.first()};
  }
  template <Transport T, Executor E, class N>
  SecondRules<N> second_rules(const StepInput<E, N>& input, State<T, E>& state) const {
    return {second.momentum_correction.template rule<float>(), second.preconditioner.template rule<float>(),
            view_of(input, state), state.groups.second()};
  }

  /// At rate 0 an error that follows the rate stays as it is, and momentum must not take it up.
  bool holds() const {
    if constexpr (requires { error_feedback.follows_rate; })
      return error_feedback.follows_rate && std::fpclassify(second.learning_rate) == FP_ZERO;
    return false;
  }

  /// Whether this step averages messages exactly, after one that failed.
  template <Transport T, Executor E>
  static bool start_anew(const State<T, E>& state) {
    return reseeds && state.torn == 1;
  }
  /// Compressed or, after a step that failed, exactly.
  template <Transport T, Executor E, class N, class Compressed, class Exact>
  void average_messages(const StepInput<E, N>& input, State<T, E>& state, const Compressed& compressed,
                        const Exact& exact) const {
    if constexpr (reseeds)
      if (start_anew(state)) return reseed(input, state, compressed, exact);
    mix(input, state, compressed, exact);
  }
  template <Transport T, Executor E, class N>
  auto said_exactly(const StepInput<E, N>& input, State<T, E>& state) const {
    return SayExactly<SecondRules<N>, decltype(state.compressed->feedback()), typename N::gradient>{
        {second_rules(input, state)},
        state.compressed->feedback(),
        {input.gradients, input.context.now},
        state.dense_table.data()};
  }
  template <Transport T, Executor E, class N, class Compressed, class Exact>
  void reseed(const StepInput<E, N>& input, State<T, E>& state, const Compressed& compressed,
              const Exact& exact) const {
    // Gradients have been clipped.
    StepInput<E, N> unclipped = input;
    unclipped.clip_norm = std::numeric_limits<float>::infinity();
    terse::average_exactly(*state.exact, unclipped, said_exactly(input, state),
                           Reseeding<decltype(state.compressed->feedback()), Compressed, Exact>{
                               state.compressed->feedback(), compressed, exact, state.dense_table.data()});
  }
  template <Transport T, Executor E, class N, class Use>
  static void average_exactly(const StepInput<E, N>& input, State<T, E>& state, const Use& use) {
    // In each of them, so that a record of one serves for all; what the last one says counts.
    if constexpr (seeds)
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
  template <Transport T, Executor E, class N>
  auto compressed_message(const StepInput<E, N>& input, State<T, E>& state) const {
    return Message{Say<SecondRules<N>>{second_rules(input, state)},
                   ScaledGradient{input.gradients, input.context.now}};
  }
  template <Transport T, Executor E, class N, class Compressed, class Exact>
  void mix(const StepInput<E, N>& input, State<T, E>& state, const Compressed& compressed,
           const Exact& exact) const {
    state.compressed->mix(compressed_context(input), mask_of(state), compressed_message(input, state),
                          Message{compressed, exact});
  }
  template <Transport T, Executor E>
  static Mask<typename E::memory> mask_of(const State<T, E>& state) {
    if constexpr (carries)
      return state.masked->mask();
    else
      return {};
  }
  /// To the second stage, where it is time.
  template <Transport T, Executor E, class N>
  TERSE_COLD void go_over(const StepInput<E, N>& input, State<T, E>& state) const {
    const float* watched = nullptr;
    if constexpr (requires { When::watches; }) {
      static_assert(names.find(When::watches) >= 0,
                    "terse: this rule for the end of the first stage watches a buffer (VarianceRatio: "
                    "\"variance\") that no policy keeps");
      watched = state.buffers[static_cast<std::size_t>(names.find(When::watches))].data();
    }
    if (!state.watch->due(when, input.executor, input.context.step, watched)) return;
    if constexpr (carries) {
      const SecondRules<N> rules = second_rules(input, state);
      state.masked->set(GoOver<FirstRules<N>, SecondRules<N>>{first_rules(input, state), rules});
      if constexpr (balances)
        state.balance->settle(input.executor, rules,
                              state.buffers[static_cast<std::size_t>(names.find(M2::state[0]))].data(),
                              state.dense_table.data());
    }
    state.over = 1;
    // After a failure copies start anew from an exact step. A device's stays: a record of exact steps that the user holds has its
    // memory and its channel in it, which NCCL does not let go before.
    if constexpr (!seeds && !GridExecutor<E>) state.exact.reset();
  }
};

}  // namespace terse::detail
