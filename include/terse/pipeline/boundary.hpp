// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "terse/pipeline/activation_gradients.hpp"
#include "terse/pipeline/activations.hpp"
#include "terse/pipeline/lane.hpp"

namespace terse::detail {

/// One of a stage's two boundaries: what compresses there, and the messages in both directions.
template <BoundaryPolicy P, Transport T, Executor E>
class Boundary {
  using Lane = typename Lanes<T, E>::Lane;

 public:
  /// To stage `to`, for micro-batches of up to `rows` rows of `elements` elements. `closing` is the size of what ends a
  /// step.
  Boundary(E executor, const P& policy, index_t rows, index_t elements, Lanes<T, E>& all, int to, int window,
           index_t closing)
      : peer(to),
        trained(executor, policy, rows, elements),
        evaluated(executor, ExactActivations{}, rows, elements),
        gradients(executor, policy, rows, elements),
        forward(all, to, std::max(trained.largest_packet(), evaluated.largest_packet()), window,
                Phase::forward),
        backward(all, to, std::max(gradients.largest_packet(), closing), window, Phase::backward) {}

  template <bool Training>
  auto& activations() {
    if constexpr (Training)
      return trained;
    else
      return evaluated;
  }

  int peer;
  Activations<P, E> trained;
  Activations<ExactActivations, E> evaluated;
  ActivationGradients<P, E> gradients;
  Lane forward, backward;
};

}  // namespace terse::detail
