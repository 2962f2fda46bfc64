// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/policies.hpp"
#include "terse/optimizer/recipe.hpp"

namespace terse {

/// Who the outer step is named after; they differ in what they add to one and the same step.
enum class OuterKind { slow_mo, classical_block, nesterov_block, di_lo_co };

/// The two points of an outer step with momentum, from which parameters for evaluation can be read: where it stands, and
/// where its momentum alone would take it. Those with Nesterov step on from the point ahead, the others from the current.
enum class ReadOut { current, look_ahead };

/// The outer step of local methods. With D = anchor - mean_i x_i, how the ranks have moved since the last one,
///
///     v = momentum r v + D        x = anchor - rate v, or with Nesterov anchor - rate (D + momentum v)
///
/// and x is the next anchor. r is 1 or, for SlowMo, the ratio of this learning rate to that of the last outer step:
/// its u = v / learning_rate is kept in units of the gradient. Nothing is divided by a rate that may be 0.
///
///     SlowMo                 rate = alpha, momentum = beta, r
///     BMUF, classical        rate = zeta, momentum = eta; at a constant learning rate the same as SlowMo
///     BMUF, Nesterov         rate = zeta, momentum = eta, Nesterov; x is the point ahead, and the model in the end the
///                            current one, see ReadOut
///     DiLoCo                 the same with other defaults
///
/// Sources: Wang et al., "SlowMo", ICLR 2020, algorithm 1; Chen and Huo, "Scalable training of deep learning machines
/// by incremental block training", ICASSP 2016; Douillard et al., "DiLoCo", 2023, algorithm 1.
template <OuterKind Kind>
struct OuterMomentum {
  static constexpr bool keeps_anchor = true;
  static constexpr bool nesterov = Kind == OuterKind::nesterov_block || Kind == OuterKind::di_lo_co;
  static constexpr bool follows_rate = Kind == OuterKind::slow_mo;

  float rate = Kind == OuterKind::di_lo_co ? 0.7F : 1;
  float momentum = Kind == OuterKind::slow_mo ? 0.5F : 0.9F;

  void check() const {
    check_rate("the outer rate", rate);
    check_beta("the outer momentum", momentum);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("outer_rate", static_cast<double>(rate));
    visit("outer_momentum", static_cast<double>(momentum));
  }
  /// How far along the velocity a point lies from the anchor.
  float ahead(ReadOut which) const {
    if (nesterov) return which == ReadOut::current ? rate * momentum : 0;
    return which == ReadOut::look_ahead ? -rate * momentum : 0;
  }
};

/// The outer step of Local SGD: x = mean_i x_i. No state.
struct PlainAverage {
  static constexpr bool keeps_anchor = false;
  static constexpr bool nesterov = false;
  static constexpr bool follows_rate = false;
  static void check() {}
  template <class Visit>
  void settings(Visit&&) const {}
};

namespace detail {

/// Says in words what a type lacks to be the inner recipe of a local method.
template <class Inner>
constexpr bool check_inner() {
  constexpr bool policy = kind_of<Inner>() != PolicyKind::none;
  static_assert(
      !policy,
      "terse: this is a policy, and local methods expect an inner optimizer first, and policies behind "
      "it: DiLoCo<Adam<>, Ring>");
  if constexpr (!policy) return check_recipe<Inner>();
  return false;
}

/// The step of an inner recipe that is alone in its world: random numbers of its rank's own, lest all ranks round alike.
template <class Input>
Input drawing_apart(Input input, int rank) {
  if (rank >= 0) input.context.seed = mix_hash(input.context.seed, static_cast<std::uint64_t>(rank) + 1);
  return input;
}

/// Runs a part of a recipe that is alone in its world, where it calls itself rank 0, so that its errors name `rank`;
/// -1: the recipe is not alone.
template <class Act>
void by_itself(int rank, Act act) {
  try {
    act();
  } catch (const non_finite_error& failure) {
    if (rank < 0) throw;
    throw_non_finite(flags_of(rank), rank, static_cast<std::uint64_t>(failure.step()));
  }
}

}  // namespace detail

TERSE_NUMERICS_BEGIN

namespace detail {

/// Parameters as a message.
template <Number P>
struct ReadParameters {
  ParameterRef<P> parameters;
  TERSE_HD float operator()(const Piece&, index_t i) const { return parameters[i]; }
};

/// A gradient before it is scaled.
template <Number G>
struct Raw {
  const G* gradients;
  TERSE_HD float operator()(const Piece&, index_t i) const { return widened(gradients[i]); }
};

struct WriteMean {
  float* to;
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const { to[i] = mean; }
};

/// How far this rank has come from the anchor.
template <Number P>
struct Move {
  ParameterRef<P> parameters;
  const float* anchor;
  TERSE_HD float operator()(const Piece&, index_t i) const { return anchor[i] - parameters[i]; }
};

template <Number P>
struct KeepAnchor {
  ParameterRef<P> parameters;
  float* anchor;
  TERSE_HD void operator()(const Piece&, index_t i) const { anchor[i] = parameters[i]; }
};

template <Number P>
struct TakeMean {
  ParameterRef<P> parameters;
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const { parameters.set(i, mean); }
};

/// Parameters from the anchor and the mean move.
template <Number P>
struct MoveAnchor {
  ParameterRef<P> parameters;
  float* anchor;
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    const float x = anchor[i] - mean;
    anchor[i] = x;
    parameters.set(i, x);
  }
};

struct OuterPoint {
  const float *anchor, *velocity;
  float* to;
  float ahead;
  TERSE_HD void operator()(const Piece&, index_t i) const { to[i] = anchor[i] + ahead * velocity[i]; }
};

template <Number P, bool Nesterov>
struct StepOutside {
  ParameterRef<P> parameters;
  float *anchor, *velocity;
  const StepScalars* now;
  int ratio_at;  // the place of this step's learning rate over that of the last outer step
  float rate, momentum;
  float ratio = 1;

  TERSE_HD void enter(const Piece&) { ratio = now->own[static_cast<std::size_t>(ratio_at)]; }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    const float v = momentum * ratio * velocity[i] + mean;
    const float x = anchor[i] - rate * (Nesterov ? mean + momentum * v : v);
    velocity[i] = v;
    anchor[i] = x;
    parameters.set(i, x);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
