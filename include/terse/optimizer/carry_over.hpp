// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/layout.hpp"
#include "terse/core/view.hpp"
#include "terse/optimizer/carried_parts.hpp"
#include "terse/optimizer/optional_parts.hpp"
#include "terse/transport/agreement.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/call.hpp"
#include "terse/transport/collectives.hpp"

namespace terse {

namespace detail {

/// The situation of a rank that takes part in a carry_over.
struct Carrying {
  std::uint64_t steps, joins, refuses;
};

/// Throws if a rank has a reason not to take part: usage_error on that rank, mismatch_error on the others. Otherwise returns the
/// situations of all. Collective.
template <class T>
std::vector<Carrying> agree_to_carry(T& channel, std::uint64_t steps, bool joins, const std::string& reason) {
  const std::vector<Carrying> all =
      all_gather(channel, Carrying{steps, joins ? 1U : 0U, reason.empty() ? 0U : 1U});
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].refuses == 0) continue;
    meet_before_error(channel);
    if (!reason.empty()) throw usage_error(reason + "; nothing was changed", channel.rank());
    throw mismatch_error(
        "rank " + std::to_string(rank) + " can't carry its state over, and says why; nothing was changed",
        channel.rank());
  }
  return all;
}

/// A visitor that lists the counts of a state, without those of an inner recipe that runs alone.
struct ListCounts {
  std::vector<std::uint64_t*>& counts;
  bool inner_alone;

  template <class View>
  void operator()(const std::string&, View, index_t) const {}
  void operator()(const std::string& name, std::uint64_t& value) const {
    if (!inner_alone || !name.starts_with("inner_")) counts.push_back(&value);
  }
};

/// A visitor that sends an arena from one rank to the others, unless all have equal bits.
template <class T>
struct SendFrom {
  T& channel;
  int root;
  bool& sent;

  template <class V, class Space>
  void operator()(const std::string&, view<V, Space> arena, index_t = 0) const {
    const std::vector<std::uint64_t> hashes = all_gather(channel, hash_of(arena));
    if (std::adjacent_find(hashes.begin(), hashes.end(), std::not_equal_to<>()) == hashes.end()) return;
    sent = true;
    if constexpr (std::is_same_v<Space, typename T::memory>) {
      broadcast(channel, arena, root);
    } else {
      buffer<V, typename T::memory> there(arena.size());
      upload(view<const V>(arena), there.all());
      broadcast(channel, there.all(), root);
      download(view<const V, typename T::memory>(there.all()), arena);
    }
  }
};

/// Returns an error text for a state without the part `missing`; empty if none is missing.
inline std::string lacking(const std::string& missing) {
  if (missing.empty()) return {};
  return "the optimizer before has no such part '" + missing +
         "' of its state: carry_over needs the same recipe, layout and options, and state that doesn't "
         "depend "
         "on the number of ranks; resume from a checkpoint otherwise";
}

/// Checks whether two layouts have the same tensors; their rates may differ.
inline bool same_tensors(const Layout& one, const Layout& other) {
  const auto same = [](const Segment& a, const Segment& b) {
    return a.name == b.name && a.shape == b.shape && a.compress == b.compress;
  };
  return std::equal(one.segments().begin(), one.segments().end(), other.segments().begin(),
                    other.segments().end(), same);
}

/// carry_over of a rank whose state is in `parts`, or of one that joins, without any. A `reason` refuses.
template <class Now, class Parameters>
CarriedOver carry(CarriedParts& parts, bool joins, std::uint64_t steps, Now& now, Parameters given,
                  std::string reason = {}) {
  static_assert(detail::goes_on<decltype(now.recipe)>(),
                "terse: this recipe keeps sums over all ranks, parts of a sharded state or an outer rule "
                "without `shared`, so the other ranks can't go on without a lost rank's: resume from a "
                "checkpoint, checkpoint::load_elastic");
  auto& channel = now.channel();
  CarriedOver result;
  std::string missing;
  const CarriedParts::Bring look{&parts, false, &result, &missing}, bring{&parts, true, &result, &missing};
  if (!joins) now.walk(look);
  if (now.steps() != 0 || now.begun())
    reason =
        "carry_over needs a new optimizer, and this one has taken " + std::to_string(now.steps()) + " steps";
  else if (given.size() != now.layout().size())
    reason = "parameters have " + std::to_string(given.size()) + " elements, and the layout " +
             std::to_string(now.layout().size());
  else if (reason.empty())
    reason = lacking(missing);
  const std::vector<Carrying> ranks = agree_to_carry(channel, steps, joins, reason);
  bool any = false;  // rank has a state
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank].joins == 0 &&
        (!any || ranks[rank].steps > ranks[static_cast<std::size_t>(result.ahead)].steps)) {
      result.ahead = static_cast<int>(rank);
      any = true;
    }
  if (!any) {
    meet_before_error(channel);
    throw usage_error(
        "no rank has a state to carry over: all have called carry_over(now, parameters), which is for ranks "
        "that join",
        channel.rank());
  }
  // Parts of a state are initialized in the first step, so a rank that has taken none joins those that have.
  const bool begun = ranks[static_cast<std::size_t>(result.ahead)].steps > 0;
  std::vector<int> joining;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank].joins != 0 || (begun && ranks[rank].steps == 0))
      joining.push_back(static_cast<int>(rank));
  if (!joining.empty()) {
    const bool takes = std::find(joining.begin(), joining.end(), channel.rank()) != joining.end();
    if (takes) parts = CarriedParts();
    parts.give(channel, result.ahead, joining);
    if (takes) now.walk(look);
    agree_to_carry(channel, steps, joins, lacking(missing));
  }
  now.walk(bring);
  if constexpr (!own_counts<decltype(now.recipe)>()) {
    std::vector<std::uint64_t*> counts;
    now.walk(ListCounts{counts, inner_alone<decltype(now.recipe)>()});
    for (std::uint64_t* count : counts)
      *count = all_gather(channel, *count)[static_cast<std::size_t>(result.ahead)];
  }
  // Parameters change last, when no message can fail any more.
  buffer<typename Parameters::element, typename Parameters::space> staged(given.size());
  bring(CarriedParts::parameters, staged.all(), 0);
  const SendFrom<std::remove_reference_t<decltype(channel)>> send{channel, result.ahead, result.sent};
  now.walk_derived(send);
  now.walk_shared(staged.all(), send);
  barrier(channel);
  CarriedParts done;
  CarriedParts::List{&done}(CarriedParts::parameters, staged.all(), 0);
  CarriedParts::Bring{&done, true, &result, &missing}(CarriedParts::parameters, given, 0);
  return result;
}

}  // namespace detail

/// Carries the state of an optimizer whose group has changed over to one over the new group, in memory, so that the job goes on without
/// a restart. The group has lost a rank (Threads::regroup):
///
///     catch (const peer_error&) {
///       auto [ranks, numbers_before] = transport.regroup();
///       Optimizer now{before.recipe, ranks, before.layout(), before.options()};
///       carry_over(before, now, parameters);
///
/// or others join it (Threads::admit), which call carry_over(now, parameters).
///
/// Each rank keeps its own parameters, momenta and errors. Counts (unless each rank has its own), and what all ranks share (after a meeting the parameters, and the
/// buffers of outer steps), become those of the rank with the most steps: in the round that has failed, some ranks may have
/// finished the step. A rank that has taken no step yet gets the model and the state of that rank, as one that joins. The lost rank's error is lost, and so are errors of means at ranks that own other elements now (`zeroed`).
/// Rates that were set by `group(id)` or `rescale` must be set again.
///
/// `before` takes no more steps; `now` has the same recipe, layout and options, and has taken none. Late means and meetings that are in
/// flight in `before` are dropped: local steps in these messages are part of later ones.
///
/// Collective among the ranks of `now`. Throws usage_error on a rank whose optimizers differ, and mismatch_error on the others; nothing else
/// has changed then. After a peer_error parameters and `before` are unchanged, too: regroup, and carry `before` over to another optimizer. For recipes in which
/// a sum over all ranks has a meaning (gradient tracking, D2, CHOCO, EF21) and for state
/// that is sharded among ranks, resume from a checkpoint (checkpoint::load_elastic). Cost: two copies of the state;
/// 8 bytes to each rank for each shared arena, and the arena itself if ranks differ.
template <class Before, class Now>
CarriedOver carry_over(Before& before, Now& now,
                       out<typename Now::runs_on, typename Now::parameter> parameters) {
  static_assert(std::is_same_v<decltype(before.recipe), decltype(now.recipe)>,
                "terse: carry_over needs optimizers of the same recipe");
  const detail::Call call(detail::Verb::carry_over);
  detail::CarriedParts parts;
  before.drop_rounds();
  before.walk(detail::CarriedParts::List{&parts});
  detail::CarriedParts::List{&parts}(detail::CarriedParts::parameters, parameters, 0);
  return detail::carry(parts, false, before.steps(), now, parameters,
                       detail::same_tensors(before.layout(), now.layout())
                           ? ""
                           : "the optimizer before has a layout of other tensors");
}

/// carry_over of a rank that joins: it gets parameters and state of the rank with the most steps, but for its errors, which start at
/// 0 (`zeroed`). Collective with the others' carry_over(before, now, parameters). Cost: that rank sends its state to each rank that joins.
template <class Now>
CarriedOver carry_over(Now& now, out<typename Now::runs_on, typename Now::parameter> parameters) {
  const detail::Call call(detail::Verb::carry_over);
  detail::CarriedParts none;
  return detail::carry(none, true, 0, now, parameters);
}

}  // namespace terse
