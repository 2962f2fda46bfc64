// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/checkpoint/agreement.hpp"
#include "terse/checkpoint/dealing.hpp"
#include "terse/checkpoint/state.hpp"
#include "terse/core/error.hpp"
#include "terse/optimizer/optional_parts.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/call.hpp"
#include "terse/transport/collectives.hpp"

namespace terse {

/// The outcome of carry_over.
struct CarriedOver {
  int ahead = 0;      ///< the first of the ranks with the most steps, whose shared state all ranks have now
  bool sent = false;  ///< true if that state was sent, because ranks differed in it
  std::vector<std::string>
      zeroed;  ///< errors of parts of the model that other ranks own now; they start at 0
};

namespace detail {

/// The state of an optimizer whose group has lost a rank, in memory.
class StateBefore : public checkpoint::detail::Source {
 public:
  template <class Optimizer>
  explicit StateBefore(Optimizer& before) : rank_(before.rank()) {
    before.walk(checkpoint::detail::Collect{tensors_, metadata_, copies_});
  }
  /// Throws usage_error unless the part, with its range of the arena, is in the state, or is an error.
  void check(const checkpoint::detail::Wanted& wanted) const override {
    if (find(wanted) == nullptr && !checkpoint::detail::is_error(wanted.name))
      throw usage_error(
          "the optimizer before has no '" + wanted.name + "' of the elements from " +
              std::to_string(wanted.offset) +
              ": carry_over needs the same recipe, layout and options, and parts that don't depend on "
              "the number of ranks; others resume from a checkpoint",
          rank_);
  }
  void read(const checkpoint::detail::Wanted& wanted, const checkpoint::detail::Put& put) const override {
    if (const checkpoint::Tensor* found = find(wanted))
      put(0, {found->data, found->bytes});
    else
      zeroed_.push_back(wanted.name.substr(std::string("state.").size()));
  }
  std::vector<std::string> zeroed() const { return zeroed_; }

 private:
  const checkpoint::Tensor* find(const checkpoint::detail::Wanted& wanted) const {
    const auto found = std::find_if(tensors_.begin(), tensors_.end(), [&](const checkpoint::Tensor& one) {
      return one.name == wanted.name && one.dtype == wanted.dtype && one.shape == wanted.shape;
    });
    if (found == tensors_.end()) return nullptr;
    const auto offset = metadata_.find("offset." + wanted.name.substr(std::string("state.").size()));
    const std::string begin = offset == metadata_.end() ? "0" : offset->second;
    return begin == std::to_string(wanted.offset) ? &*found : nullptr;
  }

  int rank_;
  std::vector<checkpoint::Tensor> tensors_;
  checkpoint::Metadata metadata_;
  checkpoint::detail::HostCopies copies_;
  mutable std::vector<std::string> zeroed_;
};

/// A visitor that lists the counts of a state.
struct ListCounts {
  std::vector<std::uint64_t*>& counts;

  template <class View>
  void operator()(const std::string&, View, index_t) const {}
  void operator()(const std::string&, std::uint64_t& value) const { counts.push_back(&value); }
};

/// A visitor that sends an arena from one rank to the others, unless all have equal bits.
template <class T>
struct SendFrom {
  T& channel;
  int root;
  bool& sent;

  template <class View>
  void operator()(const char*, View arena) const {
    const std::vector<std::uint64_t> hashes = all_gather(channel, hash_of(arena));
    if (std::adjacent_find(hashes.begin(), hashes.end(), std::not_equal_to<>()) == hashes.end()) return;
    broadcast(channel, arena, root);
    sent = true;
  }
};

}  // namespace detail

/// Carries the state of an optimizer whose group has lost a rank over to one of the ranks that are left, in memory, so that the job
/// goes on without a restart:
///
///     catch (const peer_error&) {
///       auto [ranks, numbers_before] = transport.regroup();
///       Optimizer now{before.recipe, ranks, before.layout(), before.options()};
///       carry_over(before, now, parameters);
///
/// Each rank keeps its own parameters, momenta and errors. Counts (unless each rank has its own), and what all ranks share (after a meeting the parameters, and the
/// buffers of outer steps), become those of the rank with the most steps: in the round that has failed, some ranks may have
/// finished the step. The lost rank's error is lost, and so are errors of means at ranks that own other elements now (`zeroed`).
/// Rates that were set by `group(id)` or `rescale` must be set again.
///
/// `before` has thrown a peer_error, and takes no more steps; `now` has the same recipe, layout and options, and has taken none.
/// Collective among the ranks of `now`. Throws usage_error for optimizers that differ; nothing has changed then. For recipes in which
/// a sum over all ranks has a meaning (gradient tracking, D2, CHOCO, EF21), for late means, for meetings in flight and for state
/// that is sharded among ranks, resume from a checkpoint (checkpoint::load_elastic). Cost: a copy of the state;
/// 8 bytes to each rank for each shared arena, and the arena itself if ranks differ.
template <class Before, class Now>
CarriedOver carry_over(Before& before, Now& now,
                       out<typename Now::runs_on, typename Now::parameter> parameters) {
  using R = decltype(now.recipe);
  static_assert(std::is_same_v<decltype(before.recipe), R>,
                "terse: carry_over needs optimizers of the same recipe");
  static_assert(detail::goes_on<R>(),
                "terse: this recipe keeps sums over all ranks, late means or parts of a sharded state, so "
                "the other ranks "
                "can't go on without a lost rank's: resume from a checkpoint, checkpoint::load_elastic");
  const detail::Call call(detail::Verb::load);
  auto& channel = now.channel();
  detail::StateBefore source(before);
  checkpoint::detail::together(channel, [&] {
    if (now.steps() != 0 || now.begun())
      throw usage_error("carry_over needs a new optimizer, and this one has taken " +
                            std::to_string(now.steps()) + " steps",
                        now.rank());
    if (parameters.size() != now.layout().size())
      throw usage_error("parameters have " + std::to_string(parameters.size()) +
                            " elements, and the layout " + std::to_string(now.layout().size()),
                        now.rank());
    now.walk(checkpoint::detail::Restore{source, false});
  });
  now.walk(checkpoint::detail::Restore{source, true});
  const std::vector<std::uint64_t> steps = all_gather(channel, now.steps());
  CarriedOver result;
  result.ahead = static_cast<int>(std::max_element(steps.begin(), steps.end()) - steps.begin());
  result.zeroed = source.zeroed();
  if constexpr (!detail::own_counts<R>()) {
    std::vector<std::uint64_t*> counts;
    now.walk(detail::ListCounts{counts});
    std::vector<std::uint64_t> values;
    for (const std::uint64_t* count : counts) values.push_back(*count);
    broadcast(channel, values, result.ahead);
    for (std::size_t k = 0; k < counts.size(); ++k) *counts[k] = values[k];
  }
  now.walk_shared(parameters, detail::SendFrom<std::remove_reference_t<decltype(channel)>>{
                                  channel, result.ahead, result.sent});
  return result;
}

}  // namespace terse
