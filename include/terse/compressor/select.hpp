// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "terse/compressor/dense.hpp"
#include "terse/core/policy.hpp"
#include "terse/core/segment_predicates.hpp"

namespace terse {

/// In the place of a branch's error feedback: the optimizer's.
struct OptimizersFeedback {};

/// A branch of Select: segments for which `predicate` holds go by `compressor`, with an error feedback of their own where one
/// is named. Dense: in full precision.
template <class Predicate, class C, class F = OptimizersFeedback>
struct Where {
  static_assert(SegmentPredicate<Predicate>,
                "terse: Where's first argument is a predicate, a copyable functor with `bool "
                "operator()(const Segment&) const`: IsMatrix, Named<\"...\">, Below<N> or one's own");
  static_assert(check_compressor<C>());
  using predicate_type = Predicate;
  using compressor_type = C;
  static constexpr bool has_own_feedback = !std::is_same_v<F, OptimizersFeedback>;
  /// With which its compressor is paired in an optimizer that has `Given`.
  template <class Given>
  using feedback_type = std::conditional_t<has_own_feedback, F, Given>;

  Predicate predicate{};
  C compressor{};
  F error_feedback{};
};
/// The branch of what no branch before it has taken.
template <class C, class F = OptimizersFeedback>
using Otherwise = Where<AnySegment, C, F>;
/// Segments of less than N elements, for which compression doesn't pay.
template <index_t N, class C = Dense>
using SmallerThan = Where<Below<N>, C>;

namespace detail {

template <class Branch>
inline constexpr bool is_branch = false;
template <class Predicate, class C, class F>
inline constexpr bool is_branch<Where<Predicate, C, F>> = true;

}  // namespace detail

/// A compressor for each kind of layer, in one optimizer: the first branch whose predicate holds for a segment takes it, and
/// what no branch takes, or what its compressor leaves (LowRank and vectors), goes in full precision, as do segments with
/// `compress == false`.
///
///     Select<SmallerThan<4096>, Where<Named<"embedding*">, TopK<>>, Where<IsMatrix, LowRank<4>>, Otherwise<Sign>>
///
/// Decided at construction, from the layout alone. Each branch's part of the message is a message by itself: it has packets,
/// scales and a round of its own over the optimizer's topology, all of them under way at a time; so a step sends, for each
/// branch that has segments, what an optimizer of these segments alone would send, and has the bits that it would have.
/// Full-precision segments go as Dense over the topology's full-precision way, in slices. All branches' errors are known
/// before anything is consumed. Over Hierarchical, what goes between nodes is cut into branches.
///
/// Branches share the optimizer's error feedback, one state of n floats over all of them, or have one of their own: its state
/// covers the arena from the branch's first to its last segment.
///
/// Hyper-parameters stand in `branches`: `select.branch<1>().compressor.selection.ratio = 0.01`.
template <class... Branches>
struct Select {
  static_assert(sizeof...(Branches) > 0,
                "terse: Select takes branches: Where<...>, SmallerThan<...>, Otherwise<...>");
  static_assert(
      (detail::is_branch<Branches> && ...),
      "terse: Select takes branches: Where<Predicate, Compressor>, SmallerThan<N>, Otherwise<Compressor>");
  static_assert((!Traits<typename Branches::compressor_type>::keyed && ...),
                "terse: a branch of Select can't have a keyed compressor (Lattice, Moniqua), whose packets "
                "can't be summed");
  static_assert(
      (!requires { typename Branches::compressor_type::is_select; } && ...),
      "terse: a branch of Select is no Select: write all branches into one, the first that holds counts");
  using is_select = void;
  static constexpr std::size_t size = sizeof...(Branches);
  template <std::size_t K>
  using branch_type = std::tuple_element_t<K, std::tuple<Branches...>>;

  static_assert(!(Branches::compressor_type::lossless && ...),
                "terse: no branch of this Select compresses: that is Dense");

  static constexpr bool lossless = false;
  static constexpr bool own_round = true;

 private:
  /// Of what an optimizer's feedback is paired with.
  template <class Branch>
  static constexpr bool shares = !Branch::has_own_feedback && !Branch::compressor_type::lossless;

 public:
  static constexpr bool unbiased = ((!shares<Branches> || Branches::compressor_type::unbiased) && ...);
  static constexpr bool contractive =
      ((!shares<Branches> || Traits<typename Branches::compressor_type>::contractive) && ...);
  static constexpr bool tracks =
      ((!shares<Branches> || Traits<typename Branches::compressor_type>::tracks) && ...);
  static constexpr bool single_stage = (Traits<typename Branches::compressor_type>::single_stage || ...);
  /// The most elements that a branch holds between measuring and coding; 0: up to the whole message.
  static constexpr index_t block() {
    index_t most = 0;
    bool whole = false;
    const auto take = [&](index_t held) {
      whole = whole || held == 0;
      most = held > most ? held : most;
    };
    ((shares<Branches> ? take(detail::block_of<typename Branches::compressor_type>()) : void()), ...);
    return whole ? 0 : most;
  }

  std::tuple<Branches...> branches{};

  template <std::size_t K>
  auto& branch() {
    return std::get<K>(branches);
  }
  template <std::size_t K>
  const auto& branch() const {
    return std::get<K>(branches);
  }

  /// The branch that a segment goes by; `size`: none, it travels in full precision.
  std::size_t branch_of(const Segment& segment) const {
    std::size_t taken = size, k = 0;
    if (segment.compress)
      for_each_branch([&](const auto& branch) {
        if (taken == size && branch.predicate(segment))
          taken = compresses(branch.compressor, segment) ? k : size + 1;
        ++k;
      });
    return taken < size ? taken : size;
  }
  bool takes(const Segment& segment) const { return branch_of(segment) < size; }

  void check() const {
    for_each_branch([](const auto& branch) {
      detail::check_policy(branch.compressor);
      detail::check_policy(branch.error_feedback);
      if constexpr (requires { branch.error_feedback.follows_rate; })
        if (branch.error_feedback.follows_rate)
          throw usage_error(
              "follows_rate is for the optimizer's own error feedback: a branch of Select that names one of "
              "its own can't have it");
    });
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    for_each_branch([&](const auto& branch) {
      detail::policy_settings(branch.predicate, visit);
      detail::policy_settings(branch.compressor, visit);
      detail::policy_settings(branch.error_feedback, visit);
    });
  }

  /// Nothing travels in packets of an outer plan: branches have packets of their own.
  index_t wire_bytes(const Range&) const { return 0; }

 private:
  template <class Use>
  void for_each_branch(Use&& use) const {
    std::apply([&](const auto&... branch) { (use(branch), ...); }, branches);
  }
  template <class C>
  static bool compresses(const C& compressor, const Segment& segment) {
    if constexpr (C::lossless)
      return false;
    else if constexpr (requires { compressor.takes(segment); })
      return compressor.takes(segment);
    else
      return true;
  }
};

}  // namespace terse
