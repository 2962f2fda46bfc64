// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/graph/push_sum.hpp"
#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

namespace detail {

template <class... Ps>
struct PushSumOf {
  static_assert(Given<Ps...>::template check<PolicyKind::graph, PolicyKind::local_direction,
                                             PolicyKind::weight_decay>());
  using Graph = PickPolicy<PolicyKind::graph, graph::OnePeerExponential, Ps...>;
  using type = ParameterMixing<PickPolicy<PolicyKind::local_direction, MomentumDirection, Ps...>,
                               Mixing<graph::PushSum<Graph>>,
                               PickPolicy<PolicyKind::weight_decay, DecoupledDecay, Ps...>>;
};

}  // namespace detail

/// Stochastic gradient push: SGD on directed graphs by push-sum weights, with or without local momentum. Let w_i be the
/// weights and z_i = x_i / w_i the parameters at which gradients are computed:
///
///     x_i = x_i - learning_rate d_i        x_i = sum_j A_ij x_j        w_i = sum_j A_ij w_j
///
/// The weights depend only on the graph and the step, so each rank computes them and sends only z. Let R_ij = A_ij w_j /
/// w_i', whose rows sum to 1; then z_i = sum_j R_ij (z_j - learning_rate d_j / w_j). See graph::PushSum.
///
///     StochasticGradientPush<graph::OnePeerExponential>{.learning_rate = 0.1F}
///
/// State: momentum, if any. Wire: one packet to each receiver.
/// Source: Assran et al., "Stochastic gradient push for distributed deep learning", ICML 2019, algorithm 1.
template <class... Ps>
using StochasticGradientPush = typename detail::PushSumOf<Ps...>::type;

}  // namespace terse
