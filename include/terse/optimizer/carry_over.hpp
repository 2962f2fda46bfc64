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

#include "terse/checkpoint/dealing.hpp"
#include "terse/core/error.hpp"
#include "terse/core/view.hpp"
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

/// The parts of a state, in memory.
class PartsBefore {
 public:
  /// A visitor that lists a state's parts; those of a device are copied to the host.
  struct List {
    PartsBefore* parts;

    template <class T, class Space>
    void operator()(const std::string& name, view<T, Space> part, index_t offset) const {
      Part one{name, sizeof(T), part.size(), offset, {}, {}};
      if constexpr (std::is_same_v<Space, memory::host>) {
        one.data = reinterpret_cast<const std::byte*>(part.data());
      } else {
        one.copy.resize(static_cast<std::size_t>(part.size()) * sizeof(T));
        download(view<const T, Space>(part), view<T>(reinterpret_cast<T*>(one.copy.data()), part.size()));
        one.data = one.copy.data();
      }
      parts->parts_.push_back(std::move(one));
    }
    void operator()(const std::string& name, std::uint64_t& value) const {
      (*this)(name, view<std::uint64_t>(&value, 1), 0);
    }
  };
  /// A visitor that copies the parts into another state or, without `apply`, looks for one that is missing.
  struct Bring {
    const PartsBefore* parts;
    bool apply;
    CarriedOver* result;
    std::string* missing;

    template <class T, class Space>
    void operator()(const std::string& name, view<T, Space> to, index_t offset) const {
      const Part* const from = parts->find(name, sizeof(T), to.size(), offset);
      if (from == nullptr) {
        if (!checkpoint::detail::is_error(name))
          *missing = name;
        else if (apply)
          result->zeroed.push_back(name);
      } else if (apply) {
        upload(view<const T>(reinterpret_cast<const T*>(from->data), to.size()), to);
      }
    }
    void operator()(const std::string& name, std::uint64_t& value) const {
      (*this)(name, view<std::uint64_t>(&value, 1), 0);
    }
  };

 private:
  struct Part {
    std::string name;
    std::size_t element;  // its bytes
    index_t count, offset;
    const std::byte* data;
    std::vector<std::byte> copy;
  };
  const Part* find(const std::string& name, std::size_t element, index_t count, index_t offset) const {
    const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const Part& one) {
      return one.name == name && one.element == element && one.count == count && one.offset == offset;
    });
    return found == parts_.end() ? nullptr : &*found;
  }

  std::vector<Part> parts_;
};

/// Throws usage_error on all ranks if one has a reason not to carry its state over. Collective.
template <class T>
void agree_to_carry(T& channel, const std::string& reason) {
  const std::vector<std::uint64_t> refuse = all_gather(channel, std::uint64_t{reason.empty() ? 0U : 1U});
  const auto first = std::find(refuse.begin(), refuse.end(), std::uint64_t{1});
  if (!reason.empty()) throw usage_error(reason + "; nothing was changed", channel.rank());
  if (first != refuse.end())
    throw usage_error("rank " + std::to_string(first - refuse.begin()) +
                          " can't carry its state over, and says why; nothing was changed",
                      channel.rank());
}

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
  detail::PartsBefore parts;
  before.walk(detail::PartsBefore::List{&parts});
  CarriedOver result;
  std::string missing, reason;
  now.walk(detail::PartsBefore::Bring{&parts, false, &result, &missing});
  if (now.steps() != 0 || now.begun())
    reason =
        "carry_over needs a new optimizer, and this one has taken " + std::to_string(now.steps()) + " steps";
  else if (parameters.size() != now.layout().size())
    reason = "parameters have " + std::to_string(parameters.size()) + " elements, and the layout " +
             std::to_string(now.layout().size());
  else if (!missing.empty())
    reason =
        "the optimizer before has no such part '" + missing +
        "' of its state: carry_over needs the same recipe, layout and options, and state that doesn't depend "
        "on the number of ranks; resume from a checkpoint otherwise";
  detail::agree_to_carry(channel, reason);
  now.walk(detail::PartsBefore::Bring{&parts, true, &result, &missing});
  const std::vector<std::uint64_t> steps = all_gather(channel, now.steps());
  result.ahead = static_cast<int>(std::max_element(steps.begin(), steps.end()) - steps.begin());
  if constexpr (!detail::own_counts<R>()) {
    std::vector<std::uint64_t*> counts;
    now.walk(detail::ListCounts{counts});
    for (std::uint64_t* count : counts)
      *count = all_gather(channel, *count)[static_cast<std::size_t>(result.ahead)];
  }
  now.walk_shared(parameters, detail::SendFrom<std::remove_reference_t<decltype(channel)>>{
                                  channel, result.ahead, result.sent});
  return result;
}

}  // namespace terse
