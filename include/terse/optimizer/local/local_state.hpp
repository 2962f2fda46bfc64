// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "terse/exchange/inner_mean.hpp"
#include "terse/momentum_correction/rate_ratio.hpp"
#include "terse/optimizer/check_mixing.hpp"
#include "terse/optimizer/local/fragment.hpp"
#include "terse/optimizer/local/inner.hpp"
#include "terse/optimizer/local/outer_step.hpp"
#include "terse/optimizer/local/schedule.hpp"
#include "terse/topology/scatter_gather.hpp"

namespace terse {

/// A policy for the ranks with which the inner recipe communicates: none, or all (for a recipe that gossips or
/// compresses by itself).
struct Inside {
  struct alone {
    static constexpr bool talks = false;
  };
  struct together {
    static constexpr bool talks = true;
  };
};

/// The treatment of the inner recipe's own buffers (momentum, variance) in an outer step. Each rank keeps its own,
/// they are reset to 0, or all ranks take their mean, which sends n more floats per buffer.
enum class InnerBuffers { keep, reset, average };

namespace detail {

/// A visitor that ignores buffers, for concepts.
struct IgnoreBuffer {
  template <class View>
  void operator()(View) const {}
};

/// A visitor that resets or averages the buffers of n floats that the policies of an inner recipe keep.
template <class Exchange, Executor E>
struct OnBuffers {
  InnerBuffers what;
  E executor;
  StepContext context;
  Exchange* exact;

  void operator()(view<float, typename E::memory> part) const {
    if (what == InnerBuffers::reset) {
      fill(executor, part, 0.0F);
      return;
    }
    const ReadArena read{part.data()};
    const WriteMean write{part.data()};
    exact->mix(context, {}, Message{read, read}, Message{write, write});
    exact->settle(context);
  }
};

/// The mutable state of LocalUpdatesOf and its schedule.
template <class Inner, class Outer, class Schedule, class Where, Compressor C, ErrorFeedback F, Topology P,
          Executor E>
struct LocalState {
  using Arena = buffer<float, typename E::memory>;
  using Rule = OuterRuleOf<Outer, C, P>;
  using Part = Fragment<Rule, C, F, P, E>;
  /// Means of gradients and buffers, for methods that take a mean of all ranks.
  using Means = std::conditional_t<P::exact, P, ScatterGather>;

  static constexpr bool shows_buffers =
      requires(typename Composed<Inner>::template State<E> & state, IgnoreBuffer ignore) {
    state.walk_buffers(ignore);
  };
  static constexpr int ratio_at = scalars_of<Inner>();

  Channel own;  // a world of this rank alone
  typename Composed<Inner>::template State<E> inner;
  std::deque<Part> fragments;                    // the non-empty ones
  std::optional<DenseExchange<Means, E>> exact;  // the mean of gradients and buffers
  std::array<Arena, 2> kept;                     // the buffers of Rule
  Arena mean;                                    // the mean gradient
  std::optional<Rates<E>> rates;                 // if Rule takes rates
  std::uint64_t local_steps = 0;
  std::uint64_t last_rate = 0;  // the learning rate of the outer velocity, as the bits of a float
  std::uint64_t average_until;
  std::uint64_t first_meeting;  // the step in which ranks that start together meet first
  InnerBuffers buffers;
  Schedule schedule;  // the layout by which the model was cut
  Range range;
  index_t outside_bytes = 0;  // maximum bytes of outer rounds in one step
  index_t buffer_count = 0;   // the inner recipe's buffers of n floats
  int size;
  int rank_alone;              // this rank; -1 if the inner recipe does not run alone
  float stable_momentum = -1;  // the largest outer momentum that was checked on the graph

  template <class Recipe>
  LocalState(const Recipe& recipe, E executor, Channel& transport, const Layout& layout,
             const Options& options)
      : own(transport.split(transport.rank(), 0)),
        inner(composed(recipe.inner), executor, Where::talks ? transport : own, layout,
              inner_options(options, !Where::talks)),
        average_until(recipe.average_gradients_until),
        first_meeting(average_until + recipe.period),
        buffers(recipe.inner_buffers),
        schedule(recipe.schedule),
        range(layout.range()),
        size(transport.size()),
        rank_alone(Where::talks ? -1 : transport.rank()) {
    check_peers(recipe);
    if (!shows_buffers && buffers != InnerBuffers::keep)
      throw usage_error(
          "this inner recipe has no buffers that could be reset or averaged: inner_buffers must be keep",
          transport.rank());
    std::uint64_t turn = 0;
    for (const Range& part : schedule.cut(layout)) {
      if (!Schedule::late || part.elements() > 0)
        fragments.emplace_back(recipe, executor, transport, layout, part, turn);
      ++turn;
    }
    if (merges_as_it_sends<Rule>())
      for (Part& fragment : fragments) fragment.due = Part::when_sent;
    outside_bytes = most_outside(recipe.period);
    const bool averages = average_until > 0 || always_averages(recipe.period);
    if constexpr (P::exact)
      if (averages || buffers == InnerBuffers::average)
        exact.emplace(executor, transport, layout, layout.range(), Dense{}, NoErrorFeedback{}, false,
                      dense_topology(recipe.topology), options.slice_bytes);
    if constexpr (shows_buffers) inner.walk_buffers([this](auto) { ++buffer_count; });
    if (averages) mean = Arena(layout.size());
    for (std::size_t k = 0; k != Rule::state.size(); ++k) kept[k] = Arena(layout.size());
    if constexpr (takes_rates<Rule>()) rates.emplace(layout);
  }
  ~LocalState() {
    at_end_([this] { land_all(); });
  }
  LocalState(const LocalState&) = delete;
  LocalState& operator=(const LocalState&) = delete;

  /// Throws usage_error if the ranks don't fit the graph, or if there is no mean of all ranks and differences between
  /// ranks would grow with the outer momentum.
  template <class Recipe>
  void check_peers(const Recipe& recipe) {
    if constexpr (over_graph<Rule>()) {
      if (recipe.outer.momentum <= stable_momentum) return;
      recipe.topology.graph.check(recipe.topology.nodes(size));
      check_spectrum(Rule(recipe.outer), recipe.topology, size, rank_alone);
      stable_momentum = recipe.outer.momentum;
    } else if constexpr (!P::exact) {
      if constexpr (requires { recipe.outer.check_pairs(size); }) recipe.outer.check_pairs(size);
    }
  }

  bool full_precision() const { return inner.full_precision(); }
  MaskedElements& masked_elements() requires Freezes<typename Composed<Inner>::template State<E>> {
    return inner.masked_elements();
  }
  bool clips_mean() const { return detail::clips_mean(inner); }
  StepBytes bytes_per_step() const {
    const StepBytes within = inner.bytes_per_step();
    index_t outside = outside_bytes;
    const index_t average = exact ? exact->most_bytes() : 0;
    if constexpr (shows_buffers)
      if (buffers == InnerBuffers::average) outside += buffer_count * average;
    if (!C::lossless)
      return {std::max(within.full_precision, average),
              std::max(within.full_precision, within.compressed) + outside};
    return {std::max(within.full_precision + outside, average),
            within.compressed > 0 ? within.compressed + outside : 0};
  }
  bool always_averages(std::uint64_t period) const {
    return !Where::talks && !Schedule::late && Rule::state.size() == 0 && period == 1 &&
           buffers == InnerBuffers::keep;
  }
  /// Checks whether `step` averages gradients. If the period became 1 after construction, there is no buffer for a
  /// mean gradient.
  bool averages_gradients(std::uint64_t period, std::uint64_t step) const {
    return step <= average_until || (always_averages(period) && mean.size() > 0);
  }
  bool steps_outside(std::uint64_t period, std::uint64_t step) const {
    return step > average_until && (step - average_until) % period == 0 && !averages_gradients(period, step);
  }
  /// Returns the learning rate of the outer rule's velocity after the ranks have met in this step.
  template <class Recipe>
  float outer_rate(const Recipe& recipe) const {
    const float rate = learning_rate_of(recipe.inner);
    if constexpr (Rule::follows_rate) return rate_after(recipe.outer.follows_jumps, rate, last_rate);
    return rate;
  }
  /// Returns outer_rate over the previous one if ranks meet in this step and the rule follows the rate, otherwise 1.
  template <class Recipe>
  float rate_ratio(const Recipe& recipe) const {
    const std::uint64_t step = local_steps + 1;
    if constexpr (Rule::follows_rate)
      if (step > average_until)
        return detail::rate_ratio(recipe.outer, outer_rate(recipe), last_rate,
                                  (step - average_until) / recipe.period);
    return 1;
  }

  OuterBuffers outer_buffers() { return {kept[0].data(), kept[1].data(), rates ? rates->table() : nullptr}; }
  /// Completes this fragment's round in flight, if there is one.
  void land(Part& fragment) requires(Schedule::late) {
    fragment.land([&] { return fragment.outer.land(outer_buffers(), fragment.sent.now, ratio_at); });
  }
  /// Keeps, resets or averages the inner recipe's buffers after an outer step.
  template <class Input>
  void treat_buffers(const Input& input) {
    if (buffers == InnerBuffers::keep) return;
    if constexpr (shows_buffers)
      inner.walk_buffers(OnBuffers<DenseExchange<Means, E>, E>{buffers, input.executor, input.context,
                                                               exact ? &*exact : nullptr});
  }
  template <class Visit>
  void walk_buffers(Visit&& visit) requires shows_buffers {
    inner.walk_buffers(visit);
  }

  /// Visits the outer step's buffers that are equal on all ranks.
  template <class Visit>
  void walk_shared(const Visit& visit) {
    for (std::size_t k = 0; k != shared_buffers(); ++k) visit(Rule::state[k], kept[k].all());
  }
  /// Drops the rounds in flight, see recipe.hpp. Their messages count as not sent.
  void drop_rounds(E executor) {
    if constexpr (Schedule::late)
      for (Part& fragment : fragments) {
        if (!fragment.drop()) continue;
        fragment.due = merges_as_it_sends<Rule>() ? Part::when_sent : 0;
        if constexpr (EndsWithoutMean<Rule>)
          for_each(executor, fragment.range, Rule::without_mean(outer_buffers()));
      }
    detail::drop_rounds(inner, executor);
  }
  template <class Visit>
  void walk(Visit&& visit) {
    land_all();
    visit("local_steps", local_steps);
    visit("last_outer_rate", last_rate);
    for (std::size_t k = 0; k != Rule::state.size(); ++k) visit(Rule::state[k], kept[k].all(), index_t{0});
    for (Part& fragment : fragments) {
      const std::string prefix =
          fragment.turn == 0 ? "outer_" : "outer_" + std::to_string(fragment.turn) + "_";
      if (Schedule::late) visit(prefix + "due", fragment.due);
      fragment.exchange.walk([&](const std::string& name, auto&&... rest) {
        visit(prefix + name, std::forward<decltype(rest)>(rest)...);
      });
    }
    walk_inner(inner, visit);
  }

 private:
  /// Returns how many of the rule's buffers, the first ones, are equal on all ranks. Before the first meeting these are the
  /// initial parameters.
  std::size_t shared_buffers() const {
    if (P::exact && !Schedule::late) return Rule::state.size();
    if (local_steps < first_meeting) return Rule::from_start;
    if constexpr (requires { Rule::shared; }) return Rule::shared;
    return 0;
  }
  void land_all() {
    if constexpr (Schedule::late)
      for (Part& fragment : fragments) land(fragment);
  }
  /// Returns the most bytes of outer rounds in one step. A round sends its last bytes no later than in the step in
  /// which its mean is due.
  index_t most_outside(std::uint64_t period) const {
    const std::uint64_t delay = schedule.delay_in(period);
    index_t most = 0;
    for (const Part& last : fragments) {
      const std::uint64_t step = schedule.offset(last.turn, period) + period;
      index_t sum = 0;
      for (const Part& each : fragments)
        if ((step - schedule.offset(each.turn, period)) % period <= delay) sum += each.exchange.most_bytes();
      most = std::max(most, sum);
    }
    return most;
  }

  AtEnd at_end_;
};

}  // namespace detail

}  // namespace terse
