// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "terse/core/policy.hpp"
#include "terse/topology/ring.hpp"
#include "terse/topology/scatter_gather.hpp"

namespace terse {

/// Two topologies, chosen by size: Large if each rank's chunk, 1 / W of the range or slice, has at least `from` elements, otherwise
/// Small. For a low latency, few messages are better; for bandwidth, messages to one neighbour: if all pairs send at the same time,
/// they fill each other's queues. Full-precision packets go by BySize unless a topology names another one.
///
/// Measured with 4 ranks, full-precision steps of Adam, as the time over Ring divided by that over ScatterGather. Over MPI and
/// links of 1 Gbit/s it is 1.6 at 14,000 parameters, 0.93 at 335,000, 0.86 at 10 million, and 0.80 on links of 100 Mbit/s.
/// Over threads it is 1.1 at 262,144 and 0.95 at 524,288 (docs/topologies.md).
template <Topology Small = ScatterGather, Topology Large = Ring>
struct BySize {
  static_assert(Small::exact && Large::exact, "terse: BySize takes exact topologies");
  static constexpr bool exact = true;
  static constexpr bool recompresses = Small::recompresses || Large::recompresses;
  static constexpr bool compresses_partial_sums =
      detail::compresses_partial_sums<Small>() || detail::compresses_partial_sums<Large>();
  static constexpr bool evaluates_late = detail::evaluates_late<Small>() || detail::evaluates_late<Large>();
  static constexpr bool waits_for_sizes =
      detail::waits_for_sizes<Small>() || detail::waits_for_sizes<Large>();
  using Early = Small;

  index_t from = index_t{1} << 16;  ///< the minimum number of elements in a rank's chunk for `large`
  Small small{};                    ///< the topology of smaller chunks
  Large large{};                    ///< the topology of all other chunks

  const char* unrecordable(const RecordUse& use) const { return detail::unrecordable(use, small, large); }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("from", static_cast<double>(from));
    detail::policy_settings(small, visit);
    detail::policy_settings(large, visit);
  }

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round {
    using Context = RoundContext<C, F, E>;
    using SmallRound = typename Small::template Round<C, F, E>;
    using LargeRound = typename Large::template Round<C, F, E>;

   public:
    TERSE_COLD Round(Context& context, const BySize& topology) {
      if (is_large(context, topology))
        large_.reset(new LargeRound(detail::make_round<LargeRound>(context, topology.large)));
      else
        small_.reset(new SmallRound(detail::make_round<SmallRound>(context, topology.small)));
    }
    static index_t work_bytes(const Context& context, const BySize& topology) {
      return is_large(context, topology) ? detail::work_bytes<LargeRound>(context, topology.large)
                                         : detail::work_bytes<SmallRound>(context, topology.small);
    }

    template <class M>
    void start(Context& context, const M& message) {
      large_ ? large_->start(context, message) : small_->start(context, message);
    }
    template <class M>
    bool advance(Context& context, const M& message, bool block) {
      return large_ ? large_->advance(context, message, block) : small_->advance(context, message, block);
    }
    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      large_ ? large_->consume(context, consumer) : small_->consume(context, consumer);
    }
    index_t most_bytes(const Context& context) const {
      return large_ ? large_->most_bytes(context) : small_->most_bytes(context);
    }
    double notes(E executor) { return large_ ? large_->notes(executor) : small_->notes(executor); }
    template <class Visit>
    void walk(Visit&& visit) {
      if constexpr (requires { small_->walk(visit); })
        if (small_) small_->walk(visit);
      if constexpr (requires { large_->walk(visit); })
        if (large_) large_->walk(visit);
    }

   private:
    static bool is_large(const Context& context, const BySize& topology) {
      const Portion& whole = context.plan.whole;
      return (whole.compressed.elements() + whole.dense.elements()) / context.size >= topology.from;
    }

    std::unique_ptr<SmallRound> small_;  // one of the two
    std::unique_ptr<LargeRound> large_;
  };
};

}  // namespace terse
