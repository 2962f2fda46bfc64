// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "terse/exchange/exchange.hpp"
#include "terse/optimizer/recipe.hpp"

namespace terse::detail {

/// A part of the model that ranks average separately, with its round in flight.
template <class Outer, Compressor C, ErrorFeedback F, Topology P, Executor E>
class Fragment {
 public:
  /// The value of `due` for a mean that is applied when the next message is sent.
  static constexpr std::uint64_t when_sent = std::numeric_limits<std::uint64_t>::max();

  template <class Recipe>
  Fragment(const Recipe& recipe, E executor, Channel& transport, const Layout& layout, const Range& range_,
           std::uint64_t turn_)
      : exchange(executor, transport, layout, range_, recipe.compressor, recipe.error_feedback, false,
                 recipe.topology),
        range(range_),
        turn(turn_),
        outer(recipe.outer),
        sent_now_(1) {}

  /// Begins a round that ends in a later step; keeps this step's context, and Outer's hyper-parameters.
  template <class Input, class M>
  void send(const Input& input, const Outer& outer_, const M& message) {
    copy(input.executor, view<const StepScalars, typename E::memory>(input.context.now, 1), sent_now_.all());
    sent = input.context;
    sent.now = sent_now_.data();
    outer = outer_;
    exchange.start(sent, {}, message);
    under_way_ = true;
  }
  /// Processes the received messages of the round in flight.
  void advance() {
    if (under_way_) exchange.ready();
  }
  /// Completes the round in flight, if there is one. `consumer()` returns the consumer of its mean.
  template <class MakeConsumer>
  void land(MakeConsumer consumer) {
    if (!under_way_) return;
    const auto land = consumer();
    exchange.finish(Message{land, land});
    exchange.settle(sent);
    under_way_ = false;
  }
  /// Drops the round in flight, or one whose start has failed. Returns false if there is none, and the last mean has landed.
  bool drop() { return std::exchange(under_way_, false) || due == 0; }

  /// The exchange, in one slice, since parameters may change while a round is in flight.
  Exchange<C, F, P, E> exchange;
  Range range;
  std::uint64_t turn;     ///< its place among all fragments
  std::uint64_t due = 0;  ///< the local step after which its mean is applied to the parameters; 0 for none
  StepContext sent;
  Outer outer;  ///< the outer rule when the round in flight began

 private:
  buffer<StepScalars, typename E::memory> sent_now_;
  bool under_way_ = false;
};

}  // namespace terse::detail
