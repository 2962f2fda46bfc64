// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>

#include "terse/core/vector.hpp"
#include "terse/momentum_correction/heavy_ball.hpp"

namespace terse {

/// What is true of a mixing rule's arithmetic.
struct MixingFacts {
  int vectors = 1;  ///< how many travel together, 1 or 2
  bool before_gradient =
      false;  ///< outgoing needs no gradient, so that messages may travel while it is computed
  bool combines_first =
      false;  ///< the gradient is wanted at the mixture: outgoing, update, the gradient, adapt(e)
  bool moves_by_packet =
      false;  ///< compressed segments: update(e, decoded, 0) with what the own packet says, and
              ///< then take_up(e, difference)
  bool needs_fixed = false;            ///< keeps sums over neighbours from step to step
  bool needs_fixed_symmetric = false;  ///< diverges on directed graphs or those that change from step to step
  bool needs_spectrum = false;   ///< diverges where a fixed symmetric W has an eigenvalue at or below -1/3
  bool allows_push_sum = false;  ///< may run on push-sum weights
  bool second_by_difference = false;  ///< the second vector's update does not read its `own`
};

/// What a method of decentralized SGD does to one element: the momentum correction of ParameterMixing. A copyable
/// policy of hyper-parameters with
///
///     static constexpr MixingFacts facts{...};
///     static constexpr std::array<const char*, N> state{...};    names of its buffers, n floats each, which start at 0
///     template <class Real> struct Rule                          the arithmetic for one element, and its parameters
///     template <class Real> Rule<Real> rule() const
///
/// and, where it has hyper-parameters, check() and settings(visit). An element e shows x(), the parameter (after decoupled
/// weight decay), held(), the same before it, g(), the scaled gradient, rate(), the learning rate, ratio(), that over the
/// last step's (0 after 0), e[k], buffer k, and scalar(k). A rule has
///
///     outgoing(e)                        z, what travels; changes nothing, and may be asked again
///     update(e, own, difference) -> x   from z and sum_j W_ij (z_j - z_i), which is exactly 0 where all agree
///     adapt(e) -> x                     where facts.combines_first
///     take_up(e, difference)            where facts.moves_by_packet
///     at_step(t)                        optional: std::array<Real, N>, what e.scalar(k) is in step t = 1, 2, ...
///
/// or, with two vectors, outgoing and update for Vector<0>{} and Vector<1>{} as first argument; update for the second
/// comes after that for the first and returns nothing. Arithmetic is templated on Real so that oracles run the same
/// text in double. Optional: `double eigenvalues_above() const` of the policy, a limit that all eigenvalues of a symmetric,
/// fixed W must exceed.
template <class M>
concept MixingRule = std::copyable<M> && requires(const M& policy) {
  requires std::same_as<const MixingFacts, decltype(M::facts)>;
  M::state.size();
  policy.template rule<float>();
  policy.template rule<double>();
};

/// Says in words what a type lacks to be a mixing rule.
template <class M>
constexpr bool check_mixing_rule() {
  static_assert(
      requires { requires std::same_as<const MixingFacts, decltype(M::facts)>; },
      "terse: a mixing rule states `static constexpr MixingFacts facts{...}`");
  static_assert(
      requires { M::state.size(); },
      "terse: a mixing rule names its buffers: `static constexpr std::array<const char*, N> state{...}`");
  static_assert(
      requires(const M& policy) {
        policy.template rule<float>();
        policy.template rule<double>();
      },
      "terse: a mixing rule needs `template <class Real> Rule<Real> rule() const`, its arithmetic in float "
      "and, "
      "for oracles, in double");
  return MixingRule<M>;
}

/// The mark of a local direction, which rules such as AdaptThenCombine step along. A copyable policy with facts, state,
/// rule<Real>(), check() and settings(visit) as a mixing rule's; its rule has
///
///     direction(e)     where this rank's own gradient points; changes nothing, and may be asked again
///     keep(e)          changes the buffers, once in a step
///     at_step(t)       optional
struct DirectionFacts {};

TERSE_NUMERICS_BEGIN

namespace detail {

/// v or, with Nesterov, g + momentum v, by products: a choice would keep loops from being vectorized.
template <class Real>
TERSE_HD Real ahead(bool nesterov, Real momentum, Real g, Real v) {
  const Real fresh = nesterov ? 1 : 0, kept = nesterov ? momentum : 1;
  return fresh * g + kept * v;
}

}  // namespace detail

/// The local direction of a step: the gradient.
struct GradientDirection {
  static constexpr DirectionFacts facts{};
  static constexpr std::array<const char*, 0> state{};

  template <class Real>
  struct Rule {
    template <class Element>
    TERSE_HD Real direction(const Element& e) const {
      return e.g();
    }
    template <class Element>
    TERSE_HD void keep(const Element&) const {}
  };
  template <class Real>
  Rule<Real> rule() const {
    return {};
  }
};

/// The local direction of a step: m = momentum m + g, in buffer 0; with Nesterov g + momentum m.
struct MomentumDirection {
  static constexpr DirectionFacts facts{};
  static constexpr std::array<const char*, 1> state{"momentum"};
  float momentum = 0.9F;
  bool nesterov = false;

  void check() const { check_beta("momentum", momentum); }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::momentum_settings(momentum, nesterov, visit);
  }

  template <class Real>
  struct Rule {
    Real momentum;
    bool nesterov = false;
    template <class Element>
    TERSE_HD Real velocity(const Element& e) const {
      return momentum * e[0] + e.g();
    }
    template <class Element>
    TERSE_HD Real direction(const Element& e) const {
      return detail::ahead(nesterov, momentum, e.g(), velocity(e));
    }
    template <class Element>
    TERSE_HD void keep(const Element& e) const {
      e[0] = velocity(e);
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {static_cast<Real>(momentum), nesterov};
  }
};

TERSE_NUMERICS_END

}  // namespace terse
