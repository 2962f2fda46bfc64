// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "terse/core/check.hpp"
#include "terse/core/policy.hpp"
#include "terse/error_feedback/concept.hpp"
#include "terse/preconditioner/freeze.hpp"
#include "terse/preconditioner/layer_statistic.hpp"

// What a stage of TwoStages is made of.

namespace terse::detail {

/// The policies of one stage, and its rates.
template <class M, class P>
struct Stage {
  using Momentum = M;
  using Preconditioner = P;

  float learning_rate = 0;
  float weight_decay = 0;
  M momentum_correction{};
  P preconditioner{};

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

/// The first steps of an Averaging, which are exact.
struct WarmUp : AtStep {
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("warmup_steps", static_cast<double>(step));
  }
};

/// Whether a policy keeps a buffer of this name.
template <class Policy>
bool keeps(std::string_view name) {
  for (const char* own : Policy::state)
    if (name == own) return true;
  return false;
}
template <class M, class P>
constexpr bool share_no_name() {
  for (const char* one : M::state)
    for (const char* other : P::state)
      if (std::string_view(one) == other) return false;
  return true;
}

/// Says in words why two stages, or the one of an Averaging, can't be run with error feedback F.
template <class First, class Second, class F, bool OneStage>
constexpr bool check_stages() {
  using P1 = typename First::Preconditioner;
  using P2 = typename Second::Preconditioner;
  static_assert(
      !OneStage || !P2::facts.continues_first_stage,
      "terse: this preconditioner (FrozenVariance, for one) goes on with what a first stage has learned: it "
      "is for the second stage of a Staged");
  static_assert(
      OneStage || !starts_exactly<F>(),
      "terse: the copies of Difference start anew from exact gradients after a step that failed, and the "
      "second stage of a Staged has none. Use Residual");
  static_assert(
      share_no_name<typename First::Momentum, P1>() && share_no_name<typename Second::Momentum, P2>(),
      "terse: a momentum correction and a preconditioner call a buffer by the same name, and would write "
      "into one");
  static_assert(P1::facts.layer_wise == P2::facts.layer_wise &&
                    P1::facts.least_dimensions == P2::facts.least_dimensions,
                "terse: both stages must be layer-wise, over the same layers, or none: what is kept between "
                "the sweeps is "
                "the same");
  return true;
}

/// What layer-wise preconditioners keep between the two sweeps.
template <Executor E>
struct Layers {
  LayerStatistic<E> weights, norms;
  buffer<float, typename E::memory> steps;
  buffer<std::uint8_t, typename E::memory> compressed;  // by segment
  Range all;                                            // made here, for a step allocates nothing

  Layers(E executor, const Layout& layout, std::size_t least_dimensions)
      : weights(executor, layout, least_dimensions),
        norms(executor, layout, least_dimensions),
        steps(layout.size()),
        compressed(static_cast<index_t>(layout.segments().size())),
        all(layout.range()) {}
};

}  // namespace terse::detail
