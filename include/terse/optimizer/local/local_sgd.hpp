// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/local/local_updates.hpp"

namespace terse {

/// Local SGD around any recipe that runs alone: x = mean_i x_i every `period` steps. With average_gradients_until it
/// is post-local SGD.
///
///     LocalSgd<Adam<>>{.inner = {.learning_rate = 1e-3F}, .period = 16}
template <class Inner, class... Ps>
using LocalSgd = detail::LocalUpdatesAround<Inner, PlainAverage, Synchronous, Ps...>;

/// LocalSgd under the name that it has with `average_gradients_until` > 0: post-local SGD.
template <class Inner, class... Ps>
using PostLocalSgd = LocalSgd<Inner, Ps...>;

/// SlowMo around a recipe that runs alone or, with Inside::together, one that gossips (SlowMo over SGP).
template <class Inner, class... Ps>
using SlowMo = LocalUpdatesFrom<Inner, OuterMomentum<OuterKind::slow_mo>, Ps...>;

/// The choice between BMUF's two outer steps. A policy.
struct Block {
  struct classical {
    static constexpr OuterKind filters = OuterKind::classical_block;
  };
  struct nesterov {
    static constexpr OuterKind filters = OuterKind::nesterov_block;
  };
};

namespace detail {

template <class Inner>
struct AroundInBlocks {
  template <class B, class C, class F, class P>
  using Of = recipes::LocalUpdatesOf<Inner, OuterMomentum<B::filters>, Synchronous, Inside::alone, C, F, P>;
};

}  // namespace detail

/// Blockwise model-update filtering, by default with Block::nesterov. Its paper recommends a `momentum` of 1 - 1 /
/// ranks.
template <class Inner, class... Ps>
using Bmuf =
    Sorted<detail::AroundInBlocks<Inner>::template Of,
           Takes<PolicyKind::block, PolicyKind::compressor, PolicyKind::error_feedback, PolicyKind::topology>,
           Policies<Block::nesterov>, Ps...>;

/// DiLoCo: outer Nesterov momentum with rate 0.7 and momentum 0.9. Over a mixing graph, DiLoCo<Adam<>, Gossip>, anchors are mixed with
/// those of neighbours after their moves, instead of taking the mean. Ranks stay different; the model is their mean. Construction, and
/// a meeting with a larger momentum, refuse graphs on which the differences between ranks would grow.
template <class Inner, class... Ps>
using DiLoCo = typename detail::SortAny<
    detail::AroundAlone<Inner, OuterMomentum<OuterKind::di_lo_co>, Synchronous>::template Of, TakesMeans,
    Policies<>, Ps...>::type;

}  // namespace terse
