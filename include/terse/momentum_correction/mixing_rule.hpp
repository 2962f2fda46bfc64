// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>

#include "terse/core/vector.hpp"
#include "terse/momentum_correction/heavy_ball.hpp"

namespace terse {

/// What a method of decentralized SGD does to one element: the momentum correction of ParameterMixing. A copyable
/// policy of hyper-parameters with
///
///     state                 std::array of names, one for each buffer of n floats that it keeps; they start at 0
///     check(), settings(visit)
///     template <class Real> Rule, and rule<Real>()      the arithmetic, below, with its hyper-parameters
///
/// An element e shows x(), the parameter (after decoupled weight decay), held(), the same before it, g(), the scaled
/// gradient, rate(), the learning rate, ratio(), that over the last step's (0 after 0), and e[k], buffer k. A rule
/// has
///
///     propose(e)                        z, what travels; changes nothing, and may be asked again
///     settle(e, own, difference) -> x   from z and sum_j W_ij (z_j - z_i), which is exactly 0 where all agree
///
/// or, with `vectors` = 2, each of them for Vector<0>{} and Vector<1>{} as first argument; settle for the second
/// comes after that for the first and returns nothing. Arithmetic is templated on Real so that oracles run the same
/// text in double. Optional, all false by default:
///
///     before_gradient          propose needs no gradient, so that messages may travel while it is computed
///     combines_first           the gradient is wanted at the mixture: propose, settle, the gradient, adapt(e) -> x
///     moves_by_packet          compressed segments: settle(e, decoded, 0) with what the own packet says, and then
///                              take_up(e, difference)
///     needs_fixed              keeps sums over neighbours from step to step
///     needs_fixed_symmetric    diverges on directed graphs or those that change from step to step
///     needs_spectrum           diverges where a fixed symmetric W has an eigenvalue at or below -1/3
///     allows_push_sum          may run on push-sum weights
///     second_by_difference     the second vector's settle does not read its `own`
///
/// and `double eigenvalues_above() const`, a limit that all eigenvalues of a symmetric, fixed W must exceed.
template <class M>
concept MixingRule = std::copyable<M> && requires(const M& policy) {
  M::state.size();
  policy.check();
  policy.template rule<float>();
  policy.template rule<double>();
};

template <class M>
constexpr bool check_mixing_rule() {
  static_assert(MixingRule<M>,
                "terse: a mixing rule needs `static constexpr std::array<const char*, N> state`, check(), "
                "settings(visit) "
                "and rule<Real>(), whose result has propose(e) and settle(e, own, difference)");
  return MixingRule<M>;
}

namespace detail {

template <class M>
constexpr int vectors_of() {
  if constexpr (requires { M::vectors; }) return M::vectors;
  return 1;
}
#define TERSE_RULE_TRAIT(name)                           \
  template <class M>                                     \
  constexpr bool name() {                                \
    if constexpr (requires { M::name; }) return M::name; \
    return false;                                        \
  }
TERSE_RULE_TRAIT(before_gradient)
TERSE_RULE_TRAIT(combines_first)
TERSE_RULE_TRAIT(moves_by_packet)
TERSE_RULE_TRAIT(needs_fixed)
TERSE_RULE_TRAIT(needs_fixed_symmetric)
TERSE_RULE_TRAIT(needs_spectrum)
TERSE_RULE_TRAIT(allows_push_sum)
TERSE_RULE_TRAIT(second_by_difference)
#undef TERSE_RULE_TRAIT

}  // namespace detail

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
  static constexpr int buffers = 0;
  static void check() {}
  template <class Visit>
  void settings(Visit&&) const {}

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
  static constexpr int buffers = 1;
  float momentum = 0.9F;
  bool nesterov = false;

  void check() const { detail::check_momentum(momentum); }
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
