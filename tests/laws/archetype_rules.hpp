// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "terse/executor/statistic.hpp"
#include "terse/momentum_correction/concept.hpp"
#include "terse/momentum_correction/mixing_rule.hpp"
#include "terse/preconditioner/concept.hpp"

// Rules with nothing but what their contracts promise, written without looking at the library's own. Each does what a rule of
// the library does, so that archetypes.cpp can compare the bits. OMIT_ macros take a member away, and WRONG_ macros add an
// optional one that can't be called as it is meant: see tests/compile_fail/omissions.py.

namespace archetype {

using terse::index_t;

TERSE_NUMERICS_BEGIN

/// HeavyBall.
struct Correction {
#if !defined(OMIT_CORRECTION_FACTS)
  static constexpr terse::CorrectionFacts facts{};
#endif
#if !defined(OMIT_CORRECTION_STATE)
  static constexpr std::array<const char*, 1> state{"velocity"};
#endif

  template <class Real>
  struct Rule {
#if !defined(OMIT_CORRECTION_DIRECTION)
    template <class Element>
    Real direction(const Element& e, Real mean) const {
      const Real v = static_cast<Real>(0.9F) * e[0] + mean;
      if (terse::is_finite(v)) e[0] = v;
      return e[0];
    }
#endif
#if defined(WRONG_CORRECTION_MESSAGE)
    template <class Element>
    Real message(const Element& e) {
      return e.g();
    }
#endif
#if defined(WRONG_CORRECTION_EXACT_DIRECTION)
    template <class Element>
    Real exact_direction(const Element&) const {
      return 0;
    }
#endif
#if defined(WRONG_CORRECTION_SENT)
    template <class Element>
    void sent(const Element&, Real) const {}
#endif
#if defined(WRONG_CORRECTION_MEAN_GRADIENT)
    template <class Element>
    void mean_gradient(const Element&, Real) const {}
#endif
#if defined(WRONG_CORRECTION_BALANCE)
    template <class Layers>
    void balance(const Layers&, Real) const {}
#endif
#if defined(WRONG_CORRECTION_CARRY)
    template <class Element>
    void carry(const Element&) const {}
#endif
#if defined(WRONG_CORRECTION_AT_STEP)
    Real at_step(std::uint64_t) const { return 1; }
#endif
#if defined(OMIT_CORRECTION_RULE)
    Real unmade;
#endif
#if defined(WRONG_CORRECTION_PARAMETERS)
    Real beta;
#endif
  };
#if defined(WRONG_CORRECTION_PARAMETERS)
  float beta = 0.9F, forgotten = 1;
  constexpr std::array<terse::HyperParameter, 1> hyper_parameters() const { return {{{"beta", beta}}}; }
#endif
#if defined(WRONG_CORRECTION_SETTINGS)
  float beta = 0.9F;
#endif
#if defined(WRONG_CORRECTION_CHECK)
  void check() {}
#endif
};

/// AdagradSum.
struct Preconditioner {
#if !defined(OMIT_PRECONDITIONER_FACTS)
  static constexpr terse::PreconditionerFacts facts{};
#endif
#if !defined(OMIT_PRECONDITIONER_STATE)
  static constexpr std::array<const char*, 1> state{"squares"};
#endif

  template <class Real>
  struct Rule {
#if !defined(OMIT_PRECONDITIONER_STEP)
    template <class Element>
    Real step(const Element& e, Real mean, Real direction) const {
      const Real squares = e[0] + mean * mean;
      if (terse::is_finite(squares)) e[0] = squares;
      return direction / (std::sqrt(squares) + static_cast<Real>(1e-10F));
    }
#endif
#if defined(WRONG_PRECONDITIONER_DENOMINATOR)
    template <class Element>
    Real denominator(const Element& e) {
      return e[0];
    }
#endif
#if defined(WRONG_PRECONDITIONER_CARRY)
    template <class Element>
    void carry(const Element&) const {}
#endif
#if defined(WRONG_PRECONDITIONER_TAKES_PART)
    template <class Element>
    Real takes_part(const Element& e) const {
      return e[0];
    }
#endif
#if defined(WRONG_PRECONDITIONER_AT_STEP)
    std::array<float, 1> at_step() const { return {1}; }
#endif
#if defined(OMIT_PRECONDITIONER_RULE)
    Real unmade;
#endif
  };
};

/// LayerWise<NoPreconditioner>.
struct Layers {
  static constexpr terse::PreconditionerFacts facts{.layer_wise = true};
  static constexpr std::array<const char*, 0> state{};
#if defined(WRONG_LAYERS_STATE)
  static constexpr const char* layer_state = "factors";
#endif

  template <class Real>
  struct Rule {
#if !defined(OMIT_LAYERS_MEASURES)
    using measures = terse::Statistics<terse::EuclideanNorm, terse::EuclideanNorm>;
#endif
    template <class Element>
    Real step(const Element&, Real, Real direction) const {
      return direction;
    }
#if !defined(OMIT_LAYERS_MEASURED)
    template <class Element>
    Real measured(int k, const Element& e, Real u) const {
      return k == 0 ? e.x() : u + e.decay() * e.x();
    }
#endif
#if !defined(OMIT_LAYERS_FACTOR)
    template <class Layer>
    Real factor(const Layer& layer) const {
      const Real x = layer.measured(0), step = layer.measured(1);
      if (!(x > 0 && step > 0)) return 1;
      return std::fmin(std::fmax(x / step, static_cast<Real>(0.01F)), static_cast<Real>(10));
    }
#endif
#if defined(WRONG_LAYERS_MOVE)
    template <class Element>
    Real move(const Element&, Real) const {
      return 0;
    }
#endif
#if defined(WRONG_LAYERS_OBSERVE)
    template <class Layer>
    void observe(const Layer&) const {}
#endif
  };
};

/// AdaptThenCombine<GradientDirection>.
struct Mixing {
#if !defined(OMIT_MIXING_FACTS)
#if defined(WRONG_MIXING_ADAPT)
  static constexpr terse::MixingFacts facts{.combines_first = true};
#elif defined(WRONG_MIXING_TAKE_UP)
  static constexpr terse::MixingFacts facts{.moves_by_packet = true};
#else
  static constexpr terse::MixingFacts facts{};
#endif
#endif
#if !defined(OMIT_MIXING_STATE)
  static constexpr std::array<const char*, 0> state{};
#endif

  template <class Real>
  struct Rule {
#if !defined(OMIT_MIXING_OUTGOING)
    template <class Element>
    Real outgoing(const Element& e) const {
      return e.x() - e.rate() * e.g();
    }
#endif
#if !defined(OMIT_MIXING_UPDATE)
    template <class Element>
    Real update(const Element&, Real own, Real difference) const {
      return own + difference;
    }
#endif
#if defined(WRONG_MIXING_AT_STEP)
    void at_step(std::uint64_t) const {}
#endif
#if defined(OMIT_MIXING_RULE)
    Real unmade;
#endif
  };
#if defined(WRONG_MIXING_EIGENVALUES)
  float eigenvalues_above() const { return 0; }
#endif
};

/// GradientTracker.
struct Tracking {
  static constexpr terse::MixingFacts facts{.vectors = 2, .second_by_difference = true};
  static constexpr std::array<const char*, 1> state{"tracker"};

  template <class Real>
  struct Rule {
#if !defined(OMIT_TRACKING_OUTGOING)
    template <class Element>
    Real outgoing(terse::Vector<0>, const Element& e) const {
      return e.x() - e.rate() * (e[0] + e.g());
    }
#endif
    template <class Element>
    Real outgoing(terse::Vector<1>, const Element& e) const {
      return e[0] + e.g();
    }
#if !defined(OMIT_TRACKING_UPDATE)
    template <class Element>
    Real update(terse::Vector<0>, const Element&, Real own, Real difference) const {
      return own + difference;
    }
#endif
#if !defined(OMIT_TRACKING_SECOND_UPDATE)
    template <class Element>
    void update(terse::Vector<1>, const Element& e, Real, Real difference) const {
      e[0] += difference;
    }
#endif
  };
};

/// MomentumDirection.
struct Direction {
#if !defined(OMIT_DIRECTION_FACTS)
  static constexpr terse::DirectionFacts facts{};
#endif
#if !defined(OMIT_DIRECTION_STATE)
  static constexpr std::array<const char*, 1> state{"velocity"};
#endif

  template <class Real>
  struct Rule {
#if !defined(OMIT_DIRECTION_DIRECTION)
    template <class Element>
    Real direction(const Element& e) const {
      return static_cast<Real>(0.9F) * e[0] + e.g();
    }
#endif
#if !defined(OMIT_DIRECTION_KEEP)
    template <class Element>
    void keep(const Element& e) const {
      e[0] = static_cast<Real>(0.9F) * e[0] + e.g();
    }
#endif
#if defined(WRONG_DIRECTION_AT_STEP)
    void at_step(std::uint64_t) const {}
#endif
#if defined(OMIT_DIRECTION_RULE)
    Real unmade;
#endif
  };
};

TERSE_NUMERICS_END

}  // namespace archetype
