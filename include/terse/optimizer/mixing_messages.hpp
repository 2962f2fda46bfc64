// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/codec.hpp"
#include "terse/core/vector.hpp"
#include "terse/optimizer/mixing_functors.hpp"

// What ParameterMixing hands to the exchange.

namespace terse::detail {

/// A functor for each vector that travels: what a message says of it.
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
/// What becomes of a mixture; ByMoves: in compressed pieces by what each packet moves.
template <class Compressed, class Exact, bool ByMoves>
struct Outcome : Message<Compressed, Exact> {
  static constexpr bool takes_own = ByMoves;
};
/// The same for each vector.
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
