// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "terse/momentum_correction/heavy_ball.hpp"
#include "terse/optimizer/parameter_mixing.hpp"
#include "terse/optimizer/stage.hpp"
#include "terse/preconditioner/elementwise.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

template <std::size_t A, std::size_t B>
constexpr std::array<const char*, A + B> joined(const std::array<const char*, A>& a,
                                                const std::array<const char*, B>& b) {
  std::array<const char*, A + B> all{};
  std::size_t k = 0;
  for (const char* name : a) all[k++] = name;
  for (const char* name : b) all[k++] = name;
  return all;
}

/// An element as seen by a policy whose buffers and scalars begin at these places; its buffers are in `values`.
template <class Element, class Real, int Buffer, int Scalar>
struct LocalPart {
  const Element& e;
  Real* values;
  TERSE_HD auto x() const { return e.x(); }
  TERSE_HD auto g() const { return e.g(); }
  TERSE_HD auto rate() const { return e.rate(); }
  TERSE_HD auto decay() const { return e.decay(); }
  TERSE_HD Real& operator[](int k) const { return values[Buffer + k]; }
  TERSE_HD auto scalar(int k) const { return e.scalar(Scalar + k); }
};

}  // namespace detail

/// A local direction made of two policies of Averaging: the step that they compute from this rank's own gradient instead of a
/// mean. `AdaptThenCombine<Locally<ExponentialAverage, AdamVariance>>` is decentralized Adam.
template <class M, class P = NoPreconditioner>
struct Locally {
  static_assert(check_momentum_correction<M>() && check_preconditioner<P>());
  static_assert(!P::facts.layer_wise, "terse: a local direction looks at one element alone");
  static_assert(!P::facts.continues_first_stage,
                "terse: a local direction has no first stage to continue from");
  static_assert(
      !M::facts.asks_hidden && !P::facts.asks_hidden,
      "terse: a local direction treats all segments equally, and ForHiddenMatrices needs to know the hidden "
      "ones. Use one policy for all, or let ranks average (Muon, LocalSgd<Muon<>>)");
  static_assert(!detail::HearsOfSteps<M>,
                "terse: this momentum correction (RowMomentum) hears which steps are taken, and a local "
                "direction takes all of them. Use HeavyBall");
  static_assert(detail::share_no_name<M, P>(),
                "terse: a momentum correction and a preconditioner call a buffer by the same name");
  static constexpr DirectionFacts facts{};
  static constexpr auto state = detail::joined(M::state, P::state);

  M momentum_correction{};  ///< rule that computes the direction from this rank's gradient
  P preconditioner{};       ///< rule that scales the direction

  void check() const {
    detail::check_policy(momentum_correction);
    detail::check_policy(preconditioner);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::policy_settings(momentum_correction, visit);
    detail::policy_settings(preconditioner, visit);
  }

  template <class Real>
  struct Rule {
    using Momentum = typename M::template Rule<Real>;
    using Preconditioning = typename P::template Rule<Real>;
    static constexpr int buffers = static_cast<int>(state.size());
    static constexpr int second_buffer = static_cast<int>(M::state.size());
    static constexpr int second_scalar = detail::scalars_of_rule<Momentum>();
    static constexpr int scalars = second_scalar + detail::scalars_of_rule<Preconditioning>();
    using Values = std::array<Real, static_cast<std::size_t>(buffers == 0 ? 1 : buffers)>;

    Momentum momentum;
    Preconditioning preconditioner;

    auto at_step(std::uint64_t t) const requires(scalars > 0) {
      std::array<Real, static_cast<std::size_t>(scalars)> all{};
      std::size_t k = 0;
      const auto add = [&](const auto& rule) {
        if constexpr (requires { rule.at_step(t); })
          for (const Real value : rule.at_step(t)) all[k++] = value;
      };
      add(momentum);
      add(preconditioner);
      return all;
    }

    template <class Element>
    TERSE_HD Real step(const Element& e, Values& values) const {
      for (int k = 0; k < buffers; ++k) values[static_cast<std::size_t>(k)] = e[k];
      const detail::LocalPart<Element, Real, 0, 0> to_momentum{e, values.data()};
      const detail::LocalPart<Element, Real, second_buffer, second_scalar> to_preconditioner{e,
                                                                                             values.data()};
      const Real g = keep_if(is_finite(e.g()), e.g());
      if constexpr (requires { momentum.exact_direction(to_momentum, g); })
        return preconditioner.step(to_preconditioner, g, momentum.exact_direction(to_momentum, g));
      else
        return preconditioner.step(to_preconditioner, g, momentum.direction(to_momentum, g));
    }
    /// Returns the direction, or NaN if the gradient is not finite, so that the message shows it.
    template <class Element>
    TERSE_HD Real direction(const Element& e) const {
      Values values{};
      const Real u = step(e, values), g = e.g();
      return keep_if(is_finite(g), u, std::numeric_limits<Real>::quiet_NaN());
    }
    template <class Element>
    TERSE_HD void keep(const Element& e) const {
      Values values{};
      step(e, values);
      const bool finite = is_finite(e.g());
      for (int k = 0; k < buffers; ++k) e[k] = keep_if(finite, values[static_cast<std::size_t>(k)], e[k]);
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {rule_of<Real>(momentum_correction), rule_of<Real>(preconditioner)};
  }
};

TERSE_NUMERICS_END

}  // namespace terse
