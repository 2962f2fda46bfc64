// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/codec.hpp"
#include "terse/core/vector.hpp"
#include "terse/optimizer/mixing_functors.hpp"

// The messages and updates that ParameterMixing passes to the exchange.

namespace terse::detail {

/// The message functor of each vector that is sent.
template <class Rule, class View>
struct OutgoingVectors {
  Rule rule;
  View view;
  template <int K>
  auto vector(Vector<K>) const {
    const Outgoing<Rule, View, K> outgoing{rule, view};
    return Message{outgoing, outgoing};
  }
};
/// The update from a mixture. With ByMoves, compressed pieces are updated by the moves in each packet.
template <class Compressed, class Exact, bool ByMoves>
struct Outcome : Message<Compressed, Exact> {
  static constexpr bool takes_own = ByMoves;
};
/// The update functor of each vector.
template <class Rule, class View, bool ByMoves>
struct UpdateVectors {
  Rule rule;
  View view;
  float consensus_rate;
  template <int K>
  auto vector(Vector<K>) const {
    using Exact = Update<Rule, View, K>;
    const Exact exact{rule, view};
    if constexpr (ByMoves)
      return Outcome<UpdateByMoves<Rule, View>, Exact, true>{{{exact}, exact}};
    else
      return Outcome<UpdateCompressed<Rule, View, K>, Exact, false>{{{exact, consensus_rate}, exact}};
  }
};

}  // namespace terse::detail
