// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <variant>

#include "terse/preconditioner/concept.hpp"
#include "terse/preconditioner/element_mask.hpp"
#include "terse/preconditioner/freeze.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// The denominator of a preconditioner at the end of the first stage, frozen. Let d = 1 / denominator:
///
///     u = clamp(direction d, -update_clip, update_clip)
///
/// Elements without a learned variance at the freeze are masked: they don't move, keep no error and don't count in a scale. Weight
/// decay still applies to them, since it is decoupled. It is for the second stage of a two-stage method, see Staged.
///
/// `update_clip` bounds |direction d|. The paper has no bound (infinity). Then the scale of a segment replaces the
/// momentum of its elements, and an element with a tiny variance above zero takes unbounded steps m / sqrt(v): training
/// ends in NaN. The default of 10 is far above the steps of Adam itself (about 1). `freeze` determines when the first
/// stage is over. Source: Tang et al., "1-bit Adam", ICML 2021, algorithm 1.
struct FrozenVariance {
  static constexpr PreconditionerFacts facts{.continues_first_stage = true};
  static constexpr std::array<const char*, 1> state{
      "variance"};  // of compressed segments, after the freeze: d

  std::variant<AtStep, VarianceRatio> freeze = VarianceRatio{};  ///< the end of the first stage
  float update_clip = 10;  ///< bound of |direction d|; infinity for the paper's rule

  void check() const {
    Freeze{freeze}.check();
    if (!(update_clip > 0)) throw usage_error("update_clip must be positive; infinity is the paper's rule");
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    Freeze{freeze}.settings(visit);
    visit("update_clip", static_cast<double>(update_clip));
  }

  template <class Real>
  struct Rule {
    Real clip;
    template <class Element>
    TERSE_HD Real step(const Element& e, Real, Real direction) const {
      const Real wanted = direction * e[0];
      const Real below = wanted > clip ? clip : wanted;
      return below < -clip ? -clip : below;
    }
    template <class Element>
    TERSE_HD void carry(const Element& e, Real denominator) const {
      e[0] = keep_if(denominator > 0, 1 / denominator);
    }
    /// Returns the factor on the direction, 0 for an element without a learned variance.
    template <class Element>
    TERSE_HD Real reciprocal(const Element& e) const {
      return e[0];
    }
    template <class Element>
    TERSE_HD bool takes_part(const Element& e) const {
      return e[0] > 0;
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {static_cast<Real>(update_clip)};
  }
};

namespace detail {

struct IsPositive {
  const float* variance;
  TERSE_HD bool operator()(const Piece&, index_t i, bool) const { return variance[i] > 0; }
};

/// Replaces variance by 1 / (sqrt(variance) + epsilon), and sets the momentum of elements without a variance to 0.
struct Invert {
  float* variance;
  float* momentum;
  float epsilon;
  TERSE_HD void operator()(const Piece&, index_t i) const {
    const bool live = variance[i] > 0;
    variance[i] = keep_if(live, 1 / (std::sqrt(variance[i]) + epsilon));
    momentum[i] = keep_if(live, momentum[i]);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

namespace detail {

/// Freezing for recipes that are not compositions of policies.
template <Executor E>
class Freezing {
 public:
  Freezing(E executor, const Freeze& rule, const Range& compressed, const Layout& layout, float most_masked)
      : compressed_(compressed),
        watch_(rule, executor, compressed),
        mask_(executor, compressed, layout.size(), {layout, most_masked, ""}) {}

  bool frozen() const { return frozen_ != 0; }
  /// Throws usage_error if the changed rule requires more memory than was allocated.
  void check(const Freeze& rule) const {
    if (!frozen()) watch_.check(rule);
  }
  Mask<typename E::memory> mask() const { return mask_.mask(); }
  MaskedElements& masked_elements() { return mask_.masked; }

  /// Called after each full-precision step; freezes if the rule says so, unless that would mask too many elements.
  void observe(E executor, const Freeze& rule, std::uint64_t step, float epsilon, float* variance,
               float* momentum) {
    if (!watch_.due(rule, executor, step, variance)) return;
    if (!mask_.settle([&](bool) { return IsPositive{variance}; })) return;
    for_each(executor, compressed_, Invert{variance, momentum, epsilon});
    frozen_ = 1;
  }
  template <class Visit>
  void walk(Visit&& visit) {
    visit("frozen", frozen_);
    mask_.walk(visit);
    watch_.walk(visit);
  }

 private:
  Range compressed_;
  Freeze::Watch<E> watch_;
  ElementMask<E> mask_;
  std::uint64_t frozen_ = 0;
};

}  // namespace detail

}  // namespace terse
