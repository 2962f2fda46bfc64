// SPDX-License-Identifier: Apache-2.0

// The library's momentum corrections, preconditioners and mixing rules keep the laws of rules, and each law finds what breaks it.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "terse/laws/mixing_rule.hpp"
#include "terse/laws/rule.hpp"
#include "terse/momentum_correction/averaged.hpp"
#include "terse/momentum_correction/balanced_average.hpp"
#include "terse/momentum_correction/combine.hpp"
#include "terse/momentum_correction/compressed_differences.hpp"
#include "terse/momentum_correction/displacement.hpp"
#include "terse/momentum_correction/doubly_averaged.hpp"
#include "terse/momentum_correction/exact_diffusion.hpp"
#include "terse/momentum_correction/factor_masking.hpp"
#include "terse/momentum_correction/local_lion.hpp"
#include "terse/momentum_correction/majority_vote.hpp"
#include "terse/momentum_correction/mixed_gradient.hpp"
#include "terse/momentum_correction/quasi_global.hpp"
#include "terse/momentum_correction/tracking.hpp"
#include "terse/preconditioner/frozen_layer_rates.hpp"
#include "terse/preconditioner/frozen_variance.hpp"
#include "terse/preconditioner/layer_wise.hpp"

namespace {

using namespace terse;

template <class M>
void holds(const M& policy = {}) {
  const laws::Report report = laws::check_momentum_correction(policy);
  CHECK_MESSAGE(report, report.text());
  CHECK(report.passed.size() + report.not_applicable.size() == 7);
}
template <class P>
void divides(const P& policy = {}) {
  const laws::Report report = laws::check_preconditioner(policy);
  CHECK_MESSAGE(report, report.text());
  CHECK(report.passed.size() + report.not_applicable.size() == 7);
}

TERSE_NUMERICS_BEGIN

/// A momentum correction that breaks one law.
enum class Fault {
  names,
  settings,
  bounds,
  precision,
  agreement,
  exact_agreement,
  finite,
  finite_mean,
  rest,
  rest_of_buffers
};
template <Fault F>
struct Broken {
  static constexpr CorrectionFacts facts{.rests_at_zero = F == Fault::rest || F == Fault::rest_of_buffers};
  static constexpr std::array<const char*, 2> state{"momentum", F == Fault::names ? "momentum" : "other"};
  float beta = 0.5F;

  template <class Visit>
  void settings(Visit&& visit) const {
    if (F != Fault::settings) visit("beta", static_cast<double>(beta));
  }

  template <class Real>
  struct Rule {
    template <class Element>
    Real message(const Element& e) const {
      if (F == Fault::finite) e[0] = e.g();
      return e.g();
    }
    template <class Element>
    Real direction(const Element& e, Real mean) const {
      if (F == Fault::bounds) return e[2];
      if (F == Fault::rest) return mean + Real{0.5F} * static_cast<Real>(mean == 0);
      if (F == Fault::rest_of_buffers) e[1] = e[1] / 2 + mean;
      if (F == Fault::agreement) return mean + e.g();
      if (F == Fault::finite_mean) e[1] = (1 + mean * mean) * (1 + mean * mean);
      if (F == Fault::precision) return static_cast<Real>(static_cast<int>(mean * 100)) / 100 + e[1];
      return mean;
    }
    template <class Element>
    Real exact_direction(const Element& e, Real mean) const {
      if (F == Fault::exact_agreement) e[0] = e.g();
      if (F == Fault::precision && sizeof(Real) == sizeof(float)) return mean * Real{1.001F};
      return mean;
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {};
  }
};

TERSE_NUMERICS_END

/// A layer-wise preconditioner that breaks one law by its numbers of layers.
enum class LayerFault { none, names, bounds, precision, agreement, finite, statistics };
template <LayerFault F>
struct BrokenLayers {
  static constexpr PreconditionerFacts facts{.layer_wise = true};
  static constexpr std::array<const char*, 1> state{"variance"};
  static constexpr std::array<const char*, 1> layer_state{F == LayerFault::names ? "variance" : "factor"};

  template <class Real>
  struct Rule {
    using measures = Statistics<EuclideanNorm>;
    template <class Element>
    Real step(const Element& e, Real, Real direction) const {
      return F == LayerFault::agreement ? direction + e.g() : direction;
    }
    template <class Element>
    Real measured(int, const Element&, Real u) const {
      return u;
    }
    template <class Layer>
    Real factor(const Layer& layer) const {
      const Real norm = layer.measured(F == LayerFault::statistics ? 1 : 0);
      Real& last = layer[F == LayerFault::bounds ? 1 : 0];
      const Real factor = (1 + last) / (2 + last);
      last = F == LayerFault::finite ? norm * norm * norm : norm / (1 + norm);
      if (F == LayerFault::precision && sizeof(Real) == sizeof(float)) last = 0;
      return factor;
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {};
  }
};

template <LayerFault F>
void breaks_layers(const char* law) {
  const laws::Report report = laws::check_preconditioner<BrokenLayers<F>>();
  CHECK_MESSAGE(report.broke(law), report.text());
}

template <Fault F>
void breaks(const char* law) {
  const laws::Report report = laws::check_momentum_correction<Broken<F>>();
  CHECK_MESSAGE(report.broke(law), report.text());
}

TEST_CASE("momentum corrections keep the laws") {
  holds<NoMomentum>();
  for (const bool nesterov : {false, true}) {
    holds(HeavyBall{.nesterov = nesterov});
    holds(LocalMomentumBefore{.nesterov = nesterov});
    holds(FactorMasking{.nesterov = nesterov});
  }
  holds<MajorityVote>();
  holds<Votes<Tie::zero>>();
  for (const bool corrects : {false, true}) holds(ExponentialAverage{.bias_correction = corrects});
  holds<NesterovAverage>();
  holds<LocalAverage>();
  holds<BalancedAverage>();
  holds<LionInterpolation>();
  holds<LocalLion<>>();
  holds<LocalLion<Averaged>>();
}

TEST_CASE("preconditioners keep the laws") {
  divides<NoPreconditioner>();
  divides<SignStep>();
  for (const bool corrects : {false, true}) divides(AdamVariance{.bias_correction = corrects});
  divides<AmsgradVariance>();
  divides<AdagradSum>();
  divides<LayerWise<AdamVariance>>();
  for (const bool nesterov : {false, true}) divides(LarsRates{.nesterov = nesterov});
  divides<FrozenVariance>();
  divides<FrozenLayerRates<>>();
  // Its fresh variance squares what the momentum's move stands for, which is larger than any mean.
  const laws::Report report = laws::check_rules(BalancedAverage{}, FrozenLayerRates<>{});
  CHECK_MESSAGE(report, report.text());
}

TEST_CASE("laws find what breaks them") {
  breaks<Fault::names>("names");
  breaks<Fault::settings>("settings");
  breaks<Fault::bounds>("bounds");
  breaks<Fault::precision>("precision");
  breaks<Fault::agreement>("agreement");
  breaks<Fault::exact_agreement>("agreement");
  breaks<Fault::finite>("finite");
  breaks<Fault::finite_mean>("finite");
  breaks<Fault::rest>("rest");
  breaks<Fault::rest_of_buffers>("rest");
  divides<BrokenLayers<LayerFault::none>>();
  breaks_layers<LayerFault::names>("names");
  breaks_layers<LayerFault::bounds>("bounds");
  breaks_layers<LayerFault::statistics>("bounds");
  breaks_layers<LayerFault::precision>("precision");
  breaks_layers<LayerFault::agreement>("agreement");
  breaks_layers<LayerFault::finite>("finite");
}

TEST_CASE("In a long run Adam's corrected variance in fp32 is that of the decimal coefficient in double") {
  struct Element {
    float* v;
    float& operator[](int) const { return *v; }
    float scalar(int) const { return 1; }
  };
  const auto rule = rule_of<float>(AdamVariance{.beta2 = 0.999F});
  const Draw draw = Draw::local(1, 0, 0, Purpose::user);
  float v = 0;
  double expected = 0, farthest = 0;
  for (std::uint64_t t = 1; t <= 20'000; ++t) {
    const float g = static_cast<float>(draw.bits(t) >> 40) * 0x1p-23F - 1;
    rule.step(Element{&v}, g, 1.0F);
    expected = 0.999 * expected + (1 - 0.999) * (double{g} * double{g});
    const double corrected = double{v} * double{rule.at_step(t)[0]};
    farthest = std::max(farthest, std::abs(corrected / (expected / (1 - std::pow(0.999, t))) - 1));
  }
  // 0.999F is not 0.999. 1 - 0.999F, which is exact, makes the weights' sum 1 all the same; 0.001F would be off by 1.3e-5.
  CHECK(farthest < 3e-6);
}

}  // namespace

namespace {

template <class M>
void mixes(const M& policy = {}) {
  const laws::Report report = laws::check_mixing_rule(policy);
  CHECK_MESSAGE(report, report.text());
  CHECK(report.passed.size() + report.not_applicable.size() == 8);
}

TERSE_NUMERICS_BEGIN

/// x + c (sum of differences) - rate m, in two vectors: the second one is the gradient. Breaks one law.
enum class MixFault {
  none,
  names,
  settings,
  bounds,
  impure,
  reads_gradient,
  reads_own,
  precision,
  mean,
  drifts,
  explodes
};
template <MixFault F>
struct BrokenMixing {
  static constexpr MixingFacts facts{
      .vectors = 2, .before_gradient = F == MixFault::reads_gradient, .second_by_difference = true};
  static constexpr std::array<const char*, 2> state{"momentum", F == MixFault::names ? "momentum" : "other"};
  float beta = 0.5F;

  template <class Visit>
  void settings(Visit&& visit) const {
    if (F != MixFault::settings) visit("beta", static_cast<double>(beta));
  }

  template <class Real>
  struct Rule {
    Real beta;
    template <class Element>
    Real outgoing(Vector<0>, const Element& e) const {
      if (F == MixFault::impure) e[1] += 1;
      if (F == MixFault::precision && sizeof(Real) == sizeof(float)) return e.x() * Real{1.001F};
      return F == MixFault::reads_gradient ? e.x() - e.rate() * e.g() : e.x();
    }
    template <class Element>
    Real outgoing(Vector<1>, const Element& e) const {
      return e.g();
    }
    template <class Element>
    Real update(Vector<0>, const Element& e, Real own, Real difference) const {
      if (F == MixFault::bounds) return e[2];
      const Real push = F == MixFault::drifts ? 0 : F == MixFault::explodes ? -2 * difference : difference;
      const Real off = F == MixFault::mean ? difference * difference : 0;
      return own + push + off - e.rate() * (beta * e[0] + e.g());
    }
    template <class Element>
    void update(Vector<1>, const Element& e, Real own, Real difference) const {
      e[0] = beta * e[0] + difference + (F == MixFault::reads_own ? own : e.g());
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {static_cast<Real>(beta)};
  }
};

TERSE_NUMERICS_END

template <MixFault F>
void breaks_mixing(const char* law) {
  const laws::Report report = laws::check_mixing_rule<BrokenMixing<F>>();
  CHECK_MESSAGE(report.broke(law), report.text());
}

}  // namespace

TEST_CASE("mixing rules keep the laws") {
  mixes<AdaptThenCombine<GradientDirection>>();
  mixes<AdaptWithCombine<GradientDirection>>();
  mixes<CombineThenAdapt>();
  mixes<ExactDiffusion<GradientDirection>>();
  for (const bool nesterov : {false, true}) {
    mixes(AdaptThenCombine<MomentumDirection>{{.nesterov = nesterov}});
    mixes(AdaptWithCombine<MomentumDirection>{{.nesterov = nesterov}});
    mixes(ExactDiffusion<MomentumDirection>{{.nesterov = nesterov}});
  }
  mixes<DifferenceDescent>();
  mixes<CompressedTracker>();
  mixes<Displacement>();
  mixes<DoublyAveraged>();
  mixes<MixedGradient>();
  mixes<QuasiGlobal>();
  mixes<GradientTracker>();
  mixes<MomentumTracker>();
}

TEST_CASE("laws find what breaks a mixing rule") {
  mixes<BrokenMixing<MixFault::none>>();
  breaks_mixing<MixFault::names>("names");
  breaks_mixing<MixFault::settings>("settings");
  breaks_mixing<MixFault::bounds>("bounds");
  breaks_mixing<MixFault::impure>("pure");
  breaks_mixing<MixFault::reads_gradient>("facts");
  breaks_mixing<MixFault::reads_own>("facts");
  breaks_mixing<MixFault::precision>("precision");
  breaks_mixing<MixFault::mean>("mean");
  breaks_mixing<MixFault::drifts>("consensus");
  breaks_mixing<MixFault::explodes>("consensus");
}
