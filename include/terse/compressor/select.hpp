// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "terse/compressor/dense.hpp"
#include "terse/core/check.hpp"
#include "terse/core/policy.hpp"
#include "terse/core/segment_predicates.hpp"

namespace terse {

/// A placeholder for a branch's error feedback: the optimizer's is used.
struct OptimizersFeedback {};

/// A branch of Select: `compressor` compresses the segments for which `predicate` holds, with a separate error
/// feedback if one is named. Dense: in full precision.
template <class Predicate, class C, class F = OptimizersFeedback>
struct Where {
  using predicate_type = Predicate;
  using compressor_type = C;
  static constexpr bool has_own_feedback = !std::is_same_v<F, OptimizersFeedback>;
  /// The error feedback of the branch's compressor in an optimizer that has `Given`.
  template <class Given>
  using feedback_type = std::conditional_t<has_own_feedback, F, Given>;

  Predicate predicate{};  ///< the segments of this branch
  C compressor{};         ///< the compressor of those segments
  F error_feedback{};     ///< the error feedback of the branch's segments, if named
};
/// The last branch, of all segments that no branch before it has taken.
template <class C, class F = OptimizersFeedback>
using Otherwise = Where<AnySegment, C, F>;
/// A branch for segments of fewer than N elements, whose compression doesn't pay.
template <index_t N, class C = Dense>
using SmallerThan = Where<IsSmallerThan<N>, C>;

namespace detail {

template <class Branch>
inline constexpr bool is_branch = false;
template <class Predicate, class C, class F>
inline constexpr bool is_branch<Where<Predicate, C, F>> = true;

template <class Branch>
constexpr bool check_branch() {
  static_assert(is_branch<Branch>,
                "terse: Select takes branches: Where<Predicate, Compressor>, SmallerThan<N>, "
                "Otherwise<Compressor>");
  if constexpr (is_branch<Branch>) {
    using C = typename Branch::compressor_type;
    constexpr bool predicate = SegmentPredicate<typename Branch::predicate_type>;
    static_assert(
        predicate,
        "terse: Where's first argument is a predicate, a copyable functor with `bool operator()(const "
        "Segment&) const`: IsMatrix, Named<\"...\">, IsSmallerThan<N> or a custom one");
    if constexpr (predicate && has_sound_parts<C>)
      if constexpr (check_compressor<C>()) {
        constexpr bool keyed = Traits<C>::keyed, select = requires { typename C::is_select; };
        static_assert(!keyed,
                      "terse: a branch of Select can't have a keyed compressor (Lattice, Moniqua), whose "
                      "packets can't be summed: use a quantizer such as Uniform<8>");
        static_assert(!select,
                      "terse: a branch of Select is no Select: write all branches into one, the first that "
                      "holds counts");
        return !keyed && !select;
      }
  }
  return false;
}

/// A visitor that shows settings with the branch's number before the name. It does not allocate, since every step calls
/// it.
template <class Visit>
struct BranchSettings {
  Visit& visit;
  std::size_t branch = 0;
  void operator()(const char* name, double value) const {
    char text[128];
    std::snprintf(text, sizeof text, "Select's branch %zu: %s", branch, name);
    visit(static_cast<const char*>(text), value);
  }
};

/// Checks that no branch but the last takes all segments.
template <class... Branches>
constexpr bool all_are_reached() {
  std::size_t behind = sizeof...(Branches);
  return (... && (--behind == 0 || !std::is_same_v<typename Branches::predicate_type, AnySegment>));
}

/// Reports faults of a Select's branches with readable static_asserts.
template <class... Branches>
constexpr bool check_branches() {
  static_assert(sizeof...(Branches) > 0,
                "terse: Select takes branches: Where<...>, SmallerThan<...>, Otherwise<...>");
  if constexpr (sizeof...(Branches) > 0 && (... && check_branch<Branches>())) {
    constexpr bool compresses = (... || !Branches::compressor_type::lossless),
                   reached = all_are_reached<Branches...>();
    static_assert(
        compresses,
        "terse: no branch of this Select compresses: write Dense, or take a branch with a compressor");
    static_assert(reached,
                  "terse: no segment reaches a branch of Select after Otherwise, which takes all: put "
                  "Otherwise last, once");
    return compresses && reached;
  }
  return false;
}

}  // namespace detail

/// The empty type for faulty branches, which check_branches has reported.
template <class... Branches>
struct Select {};

/// A compressor for each kind of layer, in one optimizer. The first branch whose predicate holds for a segment takes
/// it. Segments are sent in full precision if no branch takes them, if the branch's compressor excludes them (vectors
/// under LowRank), or if `compress == false`.
///
///     Select<SmallerThan<4096>, Where<Named<"embedding*">, TopK<>>, Where<IsMatrix, LowRank<4>>, Otherwise<Sign>>
///
/// Branches are assigned at construction, from the layout alone. Each branch's part of the message is a separate
/// message with its own packets, scales and round over the optimizer's topology; the rounds overlap. For each branch
/// that has segments, a step sends the packets of an optimizer of these segments alone, and has the same bits.
/// Full-precision segments are sent as Dense over the topology's full-precision path, in slices. All branches' errors
/// are known before any branch consumes anything. Over Hierarchical, the messages between nodes are divided into
/// branches.
///
/// Branches share the optimizer's error feedback, one state of n floats, or name a separate one, whose state covers
/// the arena from the branch's first to its last segment.
///
/// Hyper-parameters are in `branches`: `select.branch<1>().compressor.selection.ratio = 0.01`.
template <class... Branches>
requires(detail::check_branches<Branches...>()) struct Select<Branches...> {
  using is_select = void;
  static constexpr std::size_t size = sizeof...(Branches);
  template <std::size_t K>
  using branch_type = std::tuple_element_t<K, std::tuple<Branches...>>;

  static constexpr bool lossless = false;
  static constexpr bool own_round = true;

 private:
  /// True for branches that use the optimizer's error feedback.
  template <class Branch>
  static constexpr bool shares = !Branch::has_own_feedback && !Branch::compressor_type::lossless;

 public:
  static constexpr bool unbiased = ((!shares<Branches> || Branches::compressor_type::unbiased) && ...);
  static constexpr bool contractive =
      ((!shares<Branches> || Traits<typename Branches::compressor_type>::contractive) && ...);
  static constexpr bool tracks =
      ((!shares<Branches> || Traits<typename Branches::compressor_type>::tracks) && ...);
  static constexpr bool unchecked =
      ((shares<Branches> && Traits<typename Branches::compressor_type>::unchecked) || ...);
  static constexpr bool single_stage = (Traits<typename Branches::compressor_type>::single_stage || ...);
  /// Returns the most elements that a branch holds between measuring and coding. 0 means up to the whole message.
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

  std::tuple<Branches...> branches{};  ///< hyper-parameters, by `branch<b>()`

  template <std::size_t K>
  auto& branch() {
    return std::get<K>(branches);
  }
  template <std::size_t K>
  const auto& branch() const {
    return std::get<K>(branches);
  }

  /// Returns the branch of a segment, or `size` if the segment is sent in full precision.
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
    std::size_t k = 0;
    for_each_branch([&](const auto& branch) {
      try {
        detail::check_policy(branch.compressor);
        detail::check_policy(branch.error_feedback);
        if constexpr (requires { branch.error_feedback.follows_rate; })
          if (branch.error_feedback.follows_rate)
            throw usage_error(
                "follows_rate is for the optimizer's own error feedback: a branch that names one of its own "
                "can't have it");
      } catch (const usage_error& fault) {
        detail::refuse_part("Select's branch " + std::to_string(k), fault);
      }
      ++k;
    });
  }
  const char* unrecordable(const RecordUse& use) const {
    const char* why = nullptr;
    for_each_branch([&](const auto& branch) {
      if (why == nullptr) why = detail::unrecordable(use, branch.compressor, branch.error_feedback);
    });
    return why;
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::BranchSettings<std::remove_reference_t<Visit>> branch_visit{visit};
    for_each_branch([&](const auto& branch) {
      detail::policy_settings(branch.predicate, branch_visit);
      detail::policy_settings(branch.compressor, branch_visit);
      detail::policy_settings(branch.error_feedback, branch_visit);
      ++branch_visit.branch;
    });
  }

  /// Returns 0: branches have separate packets, outside the outer plan.
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

namespace detail {
template <class... Branches>
inline constexpr bool has_sound_parts<Select<Branches...>> = check_branches<Branches...>();
}

}  // namespace terse
