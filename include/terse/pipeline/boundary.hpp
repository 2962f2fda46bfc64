// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "terse/pipeline/activation_gradients.hpp"
#include "terse/pipeline/activations.hpp"
#include "terse/pipeline/lane.hpp"
#include "terse/pipeline/options.hpp"

namespace terse::detail {

/// One of a stage's two boundaries: its codecs, and the messages in both directions.
template <BoundaryPolicy P, Transport T, Executor E>
class Boundary {
  using Lane = typename Lanes<T, E>::Lane;

 public:
  /// Creates the boundary to stage `to`, for rows of `elements` elements. `closing` is the size of the last message of a
  /// step.
  Boundary(E executor, const P& policy, const PipelineOptions& options, index_t elements, Lanes<T, E>& all,
           int to, index_t closing)
      : peer(to),
        trained(executor, policy, options.rows(true), elements, options.positions),
        evaluated(executor, ExactActivations{}, options.rows(false), elements, options.positions),
        gradients(executor, policy, options.rows(true), elements, options.positions),
        forward(all, to, std::max(trained.largest_packet(), evaluated.largest_packet()), options.window,
                Phase::forward),
        backward(all, to, std::max(gradients.largest_packet(), closing), options.window, Phase::backward) {}

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
