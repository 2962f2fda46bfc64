// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "terse/topology/all_gather.hpp"
#include "terse/transport/assembly.hpp"

namespace terse {

namespace detail {

[[noreturn]] TERSE_COLD void throw_weight(double weight, int rank, std::uint64_t step);
[[noreturn]] TERSE_COLD void throw_no_weight(int rank, std::uint64_t step);
[[noreturn]] TERSE_COLD inline void throw_damaged_weight(int sender, int rank, std::uint64_t step) {
  throw_damaged(packet_from(sender, -1, " (phase 'spread')"), "it has a weight that is none", rank, step);
}
/// Checks a weight; the bound keeps the sum of all ranks' weights finite.
inline bool is_weight(double weight) { return weight >= 0 && weight <= 0x1p1000; }

}  // namespace detail

/// AllGather whose packets are merged by another rule than the plain mean. Every rank has all packets, in rank order, and computes
/// equal bits.
///
///     Gathered<WeightedMean>{.weight = &examples}      sum_i w_i y_i / sum_i w_i, w_i this rank's *weight
///     Gathered<MedianClip>                             packets scaled to at most the median of their norms
///     Gathered<Radial<>>                               norms and directions of each segment averaged separately
///
/// `weight` points to the weight of this rank's message, such as the number of its examples or tokens since the last exchange. The
/// user sets it, and it may differ between ranks. It is read when a message is made, and does not belong to the hyper-parameters
/// on which ranks agree. Either all ranks have a weight or none has one: then all messages count equally. Merges use weights, too.
/// The weight takes 8 bytes of each packet. Throws usage_error if it is below 0 or not finite, and, on all ranks, if all weights
/// are 0.
///
/// The rule merges compressed messages, and the moves of local methods, compressed or not. The full-precision steps of a warm-up,
/// and averages of gradients and buffers, go by BySize, as a plain mean. Sends as many bytes as AllGather. Ef21 and
/// ErrorControl, which require a mean, are refused. Packets cover a slice (Options::slice_bytes); a fragment or a branch of Select has
/// separate packets.
///
/// A merge is a type with three members: `merges = true`; `waits`, which is true if it copies anything to the host; optionally
/// settings(visit). It also has a nested `template <Compressor C, ErrorFeedback F, Executor E> class State`, made from (context,
/// merge), with consume(context, round, weights, consumer). There is a weight for each rank, and the largest is 1;
/// round.packets(context, first, last, weight) returns packets.
template <class Merge>
struct Gathered {
  static_assert(
      requires { requires Merge::merges; },
      "terse: Gathered takes a rule by which packets are merged: WeightedMean, MedianClip or Radial<>");
  static constexpr bool exact = true;
  static constexpr bool recompresses = false;
  static constexpr bool no_mean = true;
  using ForDense = BySize<>;

  Merge merge{};                   ///< the rule by which packets are merged
  const double* weight = nullptr;  ///< the weight of this rank's message; if nullptr, all count equally

  template <class Visit>
  void settings(Visit&& visit) const {
    detail::policy_settings(merge, visit);
    visit("weighted", weight == nullptr ? 0.0 : 1.0);
  }
  const char* unrecordable(const RecordUse&) const {
    if (weight == nullptr && !Merge::waits) return nullptr;
    return "a topology that waits for norms or weights of packets (MedianClip, weights) can't be recorded";
  }

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round : public detail::GatherRound<C, F, E> {
    using Base = detail::GatherRound<C, F, E>;
    using Context = RoundContext<C, F, E>;

   public:
    TERSE_COLD Round(Context& context, const Gathered& topology)
        : Base(with_room(context, topology)),
          weight_(topology.weight),
          told_(static_cast<std::size_t>(context.size)),
          weights_(told_.size(), 1.0F),
          state_(context, topology.merge) {}

    template <class M>
    void start(Context& context, const M& message) {
      std::byte* const own = this->packet(context.rank);
      // Checked before the message is made: an exception afterwards would leave the message in the error feedback.
      const double counts = weight_ != nullptr ? *weight_ : 1;
      if (!detail::is_weight(counts)) detail::throw_weight(counts, context.names(context.rank), context.step);
      const index_t bytes = context.encode_whole(message, own);
      if (weight_ != nullptr)
        put(context.executor, view<const double>(&counts, 1),
            out<E, double>(reinterpret_cast<double*>(own + context.plan.whole.note_at), 1));
      this->post(context, bytes);
    }
    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      if (weight_ != nullptr) read_weights(context);
      state_.consume(context, static_cast<Base&>(*this), weights_, consumer);
    }

   private:
    /// Returns the context, with room in its packets for a weight. A weight takes the place of a note, which no rank reads here.
    static Context& with_room(Context& context, const Gathered& topology) {
      Portion& whole = context.plan.whole;
      const bool has_room = (whole.variable ? whole.section_at : whole.bytes) > whole.note_at;
      if (topology.weight == nullptr || has_room) return context;
      whole.bytes += sizeof(double);
      if (whole.variable) whole.section_at += sizeof(double);
      return context;
    }
    /// Reads the weights of all packets. Waits for the device.
    void read_weights(Context& context) {
      detail::await_messages(context.channel);
      // Throws for refused packets first, since their weights may be garbage.
      context.envelope.settle(context.executor, context.step);
      for (int peer = 0; peer < context.size; ++peer) {
        double& counts = told_[static_cast<std::size_t>(peer)];
        const std::byte* const at = this->packet(peer) + context.plan.whole.note_at;
        fetch(context.executor, in<E, double>(reinterpret_cast<const double*>(at), 1),
              view<double>(&counts, 1));
        if (!detail::is_weight(counts))
          detail::throw_damaged_weight(context.names(peer), context.names(context.rank), context.step);
      }
      const double largest = *std::max_element(told_.begin(), told_.end());
      if (!(largest > 0)) detail::throw_no_weight(context.names(context.rank), context.step);
      std::transform(told_.begin(), told_.end(), weights_.begin(),
                     [&](double counts) { return static_cast<float>(counts / largest); });
    }

    const double* weight_;
    std::vector<double> told_;    // the weights in the packets
    std::vector<float> weights_;  // weights over the largest one
    typename Merge::template State<C, F, E> state_;
  };
};

/// The weighted mean of the ranks' messages; without weights it gives the bits of AllGather. Source: McMahan et al.,
/// "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017, algorithm 1, whose n_k are the
/// weights.
struct WeightedMean {
  static constexpr bool merges = true;
  static constexpr bool waits = false;

  template <Compressor C, ErrorFeedback F, Executor E>
  class State {
   public:
    State(const RoundContext<C, F, E>&, const WeightedMean&) {}

    template <class Round, class Consumer>
    void consume(RoundContext<C, F, E>& context, Round& round, const std::vector<float>& weights,
                 const Consumer& consumer) {
      const float sum = std::accumulate(weights.begin(), weights.end(), 0.0F);
      const auto weight = [&](int peer) { return weights[static_cast<std::size_t>(peer)]; };
      deliver(context, context.plan.whole, round.packets(context, 0, context.size, weight), 1 / sum,
              consumer);
    }
  };
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/topology/gathered.ipp"
#endif
