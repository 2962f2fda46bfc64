// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "terse/topology/round.hpp"

namespace terse {

/// The second stage of a topology that recompresses: compresses sums or means of packets, with a separate error over a portion. It is
/// made once, from the round's context, on the ranks that compress again.
template <Compressor C, ErrorFeedback F, Executor E>
class SecondStage {
  using Context = RoundContext<C, F, E>;
  using Owners = detail::OfOwners<F>;

 public:
  TERSE_COLD SecondStage(const Context& context, const Portion& covered)
      : codec_(context.executor, context.codec.compressor(), Owners::of(context.feedback), covered) {}

  /// Begins a round, before `encode`: takes over the first stage's compressor and the learning rate.
  void start(Context& context) {
    codec_.set_compressor(context.codec.compressor());
    codec_.start(context.rate);
  }
  /// Compresses `message`, such as MeanOf the packets in `inbox`, over the covered portion, and returns the bytes of the packet,
  /// unstamped. Packets that are stamped afterwards have a flag if a value was not finite.
  template <class In, class M>
  index_t encode(Context& context, const Portion& covered, In&& inbox, const M& message, std::byte* packet) {
    // The size of variable packets is counted on the host.
    if constexpr (Traits<C>::variable) detail::await_messages(context.channel);
    codec_.measure(covered, context.mask, inbox, message);
    const index_t bytes = codec_.encode(covered, context.mask, inbox, message, context.second, false, packet);
    context.note(codec_, covered, inbox);
    return bytes;
  }
  /// Visits the error, whose name begins with `second_`; the Round's own walk(visit) calls it.
  template <class Visit>
  void walk(Visit&& visit) {
    codec_.walk([&](const std::string& name, auto&&... rest) {
      visit("second_" + name, std::forward<decltype(rest)>(rest)...);
    });
  }

 private:
  Codec<C, typename Owners::type, E> codec_;
};

}  // namespace terse
