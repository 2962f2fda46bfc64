// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "terse/core/check.hpp"
#include "terse/core/policy.hpp"
#include "terse/error_feedback/concept.hpp"
#include "terse/momentum_correction/concept.hpp"
#include "terse/optimizer/averaging_layers.hpp"
#include "terse/optimizer/group_rules.hpp"
#include "terse/preconditioner/freeze.hpp"

// The parts of a stage of TwoStages.

namespace terse::detail {

/// The policies and rates of one stage.
template <class M, class P>
struct Stage {
  using Momentum = M;
  using Preconditioner = P;

  float learning_rate = 0;
  float weight_decay = 0;
  M momentum_correction{};
  P preconditioner{};

  StageRules<typename M::template Rule<float>, typename P::template Rule<float>> rules() const {
    return {rule_of<float>(momentum_correction), rule_of<float>(preconditioner)};
  }
  void check() const {
    check_rate("learning_rate", learning_rate);
    check_rate("weight_decay", weight_decay);
    check_policy(momentum_correction);
    check_policy(preconditioner);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("learning_rate", static_cast<double>(learning_rate));
    visit("weight_decay", static_cast<double>(weight_decay));
    policy_settings(momentum_correction, visit);
    policy_settings(preconditioner, visit);
  }
};

/// The rule that ends the warm-up of an Averaging; the warm-up is its first, exact steps.
struct WarmUp : AtStep {
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("warmup_steps", static_cast<double>(step));
  }
};

/// A part that exists only in some two-stage methods.
template <bool Has, class T>
struct OptionalIf : std::optional<T> {};
template <class T>
struct OptionalIf<false, T> {};

/// Checks whether a policy keeps a buffer of this name.
template <class Policy>
bool keeps(std::string_view name) {
  for (const char* own : Policy::state)
    if (name == own) return true;
  return false;
}
template <class Some, class Others>
constexpr bool disjoint(const Some& some, const Others& others) {
  for (const char* one : some)
    for (const char* other : others)
      if (std::string_view(one) == other) return false;
  return true;
}
template <class M, class P>
constexpr bool share_no_name() {
  return disjoint(M::state, P::state) && disjoint(layer_state_of<M>(), layer_state_of<P>());
}

/// Checks whether one of two lists of statistics begins with the other.
template <class... A>
constexpr bool measure_alike(Statistics<A...>, Statistics<>) {
  return true;
}
template <class B, class... Bs>
constexpr bool measure_alike(Statistics<>, Statistics<B, Bs...>) {
  return true;
}
template <class A, class... As, class B, class... Bs>
constexpr bool measure_alike(Statistics<A, As...>, Statistics<B, Bs...>) {
  return std::is_same_v<A, B> && measure_alike(Statistics<As...>{}, Statistics<Bs...>{});
}
template <class P>
using MeasuresBy = typename MeasuresOf<typename P::template Rule<float>>::type;
/// The longer of two lists of statistics.
template <class P1, class P2>
using AllMeasures =
    std::conditional_t<(MeasuresBy<P1>::count > MeasuresBy<P2>::count), MeasuresBy<P1>, MeasuresBy<P2>>;

/// The polynomial sequence by which a preconditioner orthogonalizes; NoSequence if it doesn't.
template <class P>
struct SequenceOf {
  using type = NoSequence;
};
template <class P>
requires(P::facts.orthogonalizes) struct SequenceOf<P> {
  using type = typename P::Sequence;
};

/// Reports, with a readable static_assert, the reason why two stages, or the one of an Averaging, can't be run with error
/// feedback F.
template <class First, class Second, class F, bool OneStage>
constexpr bool check_stages() {
  using P1 = typename First::Preconditioner;
  using P2 = typename Second::Preconditioner;
  static_assert(!OneStage || !P2::facts.continues_first_stage,
                "terse: this preconditioner (FrozenVariance, for one) continues from the state of a first "
                "stage: use it in the second stage of a Staged");
  static_assert(OneStage || !starts_exactly<F>(),
                "terse: after a failed step the copies of Ef21 restart from exact gradients, and the "
                "second stage of a Staged has none. Use Residual");
  static_assert(
      share_no_name<typename First::Momentum, P1>() && share_no_name<typename Second::Momentum, P2>(),
      "terse: a momentum correction and a preconditioner call a buffer by the same name, and would write "
      "into one");
  static_assert(P1::facts.layer_wise == P2::facts.layer_wise &&
                    P1::facts.least_dimensions == P2::facts.least_dimensions,
                "terse: both stages must be layer-wise, over the same layers, or none: they share the values "
                "between the sweeps");
  static_assert(OneStage || !(P1::facts.orthogonalizes || P2::facts.orthogonalizes),
                "terse: a preconditioner that orthogonalizes (NewtonSchulz, PolarExpress) is for an "
                "Averaging: of the two "
                "stages of a Staged each would have a sequence of its own for the same matrices");
  static_assert(
      !(HearsOfSteps<typename First::Momentum> || HearsOfSteps<typename Second::Momentum>) ||
          (P1::facts.orthogonalizes && P2::facts.orthogonalizes),
      "terse: this momentum correction (RowMomentum) hears which steps are taken, and this preconditioner "
      "takes all of them in one sweep. Use OrthogonalRows, or HeavyBall");
  static_assert(
      measure_alike(MeasuresBy<P1>{}, MeasuresBy<P2>{}),
      "terse: the statistics that the two stages measure of a layer must be of the same kinds, place "
      "by place, as far as both go");
  return true;
}

}  // namespace terse::detail
