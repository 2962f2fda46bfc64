// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/local/outer_step.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

template <Number P>
struct PullBackStep {
  ParameterRef<P> parameters;
  const float* anchor;
  float* velocity;
  const StepScalars* now;
  int ratio_at;  // see StepOutside
  float pullback, momentum;
  float ratio = 1;

  TERSE_HD void enter(const Piece&) { ratio = now->own[static_cast<std::size_t>(ratio_at)]; }
  TERSE_HD void operator()(const Piece&, index_t i) const {
    const float z = anchor[i];
    // Exact at both ends, pullback 0 and 1.
    const float x = (1 - pullback) * parameters[i] + pullback * z;
    velocity[i] = momentum * ratio * velocity[i] + (z - x);
    parameters.set(i, x);
  }
};

struct AheadOfAnchor {
  const float *anchor, *velocity;
  TERSE_HD float operator()(const Piece&, index_t i) const { return anchor[i] - velocity[i]; }
};

template <Number P>
struct CorrectDelay {
  ParameterRef<P> parameters;
  const float* mean;
  float* snapshot;

  TERSE_HD void operator()(const Piece&, index_t i) const {
    const float x = mean[i] + (parameters[i] - snapshot[i]);
    snapshot[i] = x;
    parameters.set(i, x);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

/// How a late mean enters the model, Overlap-Local-SGD's way: x_i is pulled towards the anchor z, which has momentum
/// of its own. With a = pullback, b = anchor_momentum and gamma the learning rate,
///
///     x_i = (1 - a) x_i + a z        v_i = b r v_i + (z - x_i)        next z = mean_i (z - v_i)
///
/// v is gamma times the paper's; r, the ratio of the learning rates of two rounds, rescales it. a = 0 leaves the
/// ranks alone, a = 1 takes back every step: neither is Local SGD. At b = 0, (1 - a) mean x + a z moves by (1 - a)
/// gamma times the mean gradient in every step. Source: Wang, Liang and Joshi, "Overlap Local-SGD", ICASSP 2020,
/// equations 3 to 8.
struct PullBack {
  float pullback = 0.6F;
  float anchor_momentum = 0.7F;

  void check() const {
    require(pullback >= 0 && pullback <= 1, "pullback must be in [0, 1]", static_cast<double>(pullback));
    check_beta("anchor_momentum", anchor_momentum);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("pullback", static_cast<double>(pullback));
    visit("anchor_momentum", static_cast<double>(anchor_momentum));
  }
  template <Number P>
  detail::PullBackStep<P> step(ParameterRef<P> x, const float* mean, float* own, const StepScalars* now,
                               int ratio_at) const {
    return {x, mean, own, now, ratio_at, pullback, anchor_momentum};
  }
  template <Number P>
  static detail::AheadOfAnchor message(ParameterRef<P>, const float* mean, const float* own) {
    return {mean, own};
  }
  /// Whether `own` starts at the initial parameters rather than at 0.
  static constexpr bool keeps_snapshot = false;
};

/// CoCoD-SGD's way: x_i = mean of what was sent + what this rank has done since. Nothing is taken back. Source: Shen
/// et al., "Faster distributed deep net training: computation and communication decoupled stochastic gradient
/// descent", IJCAI 2019, algorithm 1.
struct DelayCorrection {
  static void check() {}
  template <class Visit>
  void settings(Visit&&) const {}
  template <Number P>
  static detail::CorrectDelay<P> step(ParameterRef<P> x, const float* mean, float* own, const StepScalars*,
                                      int) {
    return {x, mean, own};
  }
  template <Number P>
  static detail::ReadParameters<P> message(ParameterRef<P> x, const float*, const float*) {
    return {x};
  }
  static constexpr bool keeps_snapshot = true;
};

}  // namespace terse
