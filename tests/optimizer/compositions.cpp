// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "compositions.hpp"

// Compositions that average exactly, against the oracle of all compositions and, where a rule is first met, against its
// paper's formula. Those with compressors are in compositions_compressed.cpp, those of two stages in
// compositions_staged.cpp.

using namespace terse;
using namespace terse::test;

namespace {

// fp32 against double: 30 steps round parameters and buffers by up to 2^-24 of themselves each. What is measured is 2e-7 to
// 6e-7 of the largest; an error in a rule is larger by orders of magnitude.
constexpr double rounding = 2e-6;

/// Policies in all orders make one type.
template <template <class...> class Of, class A, class B, class C>
constexpr bool any_order = std::is_same_v<Of<A, B, C>, Of<A, C, B>>&&
    std::is_same_v<Of<A, B, C>, Of<B, A, C>>&& std::is_same_v<Of<A, B, C>, Of<B, C, A>>&&
        std::is_same_v<Of<A, B, C>, Of<C, A, B>>&& std::is_same_v<Of<A, B, C>, Of<C, B, A>>;

static_assert(any_order<OneBitAdam, TopK<>, AllGather, Residual>);
static_assert(any_order<OneBitAdam, TopK<>, Ring, Residual>);
static_assert(any_order<OneBitAdam, FrozenVariance, ScaledSign<MeanAbs>, AllGather>);
static_assert(any_order<Adam, TopK<>, AllGather, Residual>);
static_assert(any_order<Adam, Qsgd<4>, NoErrorFeedback, Ring>);
static_assert(any_order<Averaging, TopK<>, AllGather, Residual>);
static_assert(any_order<Averaging, NesterovAverage, AmsgradVariance, TopK<>>);
static_assert(any_order<Averaging, HeavyBall, Sign, Ring>);
static_assert(any_order<Averaging, LionInterpolation, SignStep, Ef21>);
template <class... Ps>
using SlowSgd = SlowMo<MomentumSgd<>, Ps...>;
template <class... Ps>
using BlockwiseSgd = Bmuf<MomentumSgd<>, Ps...>;
static_assert(any_order<SlowSgd, Inside::together, Uniform<8>, Residual>);
static_assert(any_order<BlockwiseSgd, Block::classical, Uniform<8>, Residual>);

// What is left out is what would be given.
static_assert(std::is_same_v<Averaging<>,
                             Averaging<NoMomentum, NoPreconditioner, Dense, NoErrorFeedback, ScatterGather>>);
static_assert(std::is_same_v<Adam<TopK<>>, Adam<TopK<>, Residual, ScatterGather>>);
static_assert(std::is_same_v<Adam<Qsgd<4>>, Adam<Qsgd<4>, NoErrorFeedback, ScatterGather>>);
static_assert(std::is_same_v<Adam<UnbiasedRandomK>, Adam<UnbiasedRandomK, NoErrorFeedback, AllGather>>);
static_assert(std::is_same_v<Averaging<TopK<>, Ef21>, Averaging<TopK<>, Ef21, AllGather>>);
static_assert(std::is_same_v<OneBitAdam<>, OneBitAdam<Sign, Residual, ScatterGather, FrozenVariance>>);
// They differ in a default.
template <class R>
using Composition = decltype(R{}.composition());
static_assert(
    std::is_same_v<Composition<CompAms<>>, Composition<Amsgrad<ScaledSign<MeanAbs>, Residual, AllGather>>>);
static_assert(
    std::is_same_v<Composition<CompAms<TopK<>>>, Composition<Amsgrad<TopK<>, Residual, AllGather>>>);
static_assert(Amsgrad<TopK<>>{}.bias_correction && !CompAms<>{}.bias_correction);
static_assert(std::is_same_v<PowerSgd<2>, MomentumSgd<LowRank<2>>>);
static_assert(std::is_same_v<SlowSgd<Uniform<8>>, SlowSgd<Inside::alone, Uniform<8>, Residual>>);
static_assert(std::is_same_v<BlockwiseSgd<Uniform<8>>, BlockwiseSgd<Block::nesterov, Uniform<8>, Residual>>);
static_assert(!std::is_same_v<BlockwiseSgd<>, BlockwiseSgd<Block::classical>>);

/// A preconditioner of the user's own, after AdaBelief: it divides by how far means are from an average of its own.
struct Belief {
  static constexpr PreconditionerFacts facts{};
  static constexpr std::array<const char*, 2> state{"average", "belief"};

  float beta1 = 0.9F;
  float beta2 = 0.99F;

  template <class Visit>
  void settings(Visit&& visit) const {
    visit("beta1", static_cast<double>(beta1));
    visit("beta2", static_cast<double>(beta2));
  }

  template <class Real>
  struct Rule {
    Real beta1, beta2;
    std::array<Real, 2> at_step(std::uint64_t t) const {
      return {bias_correction(beta1, t), bias_correction(beta2, t)};
    }
    template <class Element>
    Real step(const Element& e, Real mean, Real direction) const {
      e[0] = beta1 * e[0] + (1 - beta1) * mean;
      const Real away = mean - e[0];
      e[1] = beta2 * e[1] + (1 - beta2) * (away * away) + Real(1e-8F);
      return e.scalar(0) * direction / std::sqrt(e.scalar(1) * e[1]);
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {static_cast<Real>(beta1), static_cast<Real>(beta2)};
  }
};

double in_double(float value) { return static_cast<double>(value); }
std::vector<double> zeros() { return std::vector<double>(at(few_layers().size())); }

}  // namespace

TEST_CASE("recipes keep the names that checkpoints have of them") {
  CHECK(type_name<Adam<>>().rfind("terse::AdamOf<terse::Dense, terse::None, ", 0) == 0);
  CHECK(type_name<CompAms<TopK<>, Residual, AllGather>>() ==
        type_name<Amsgrad<TopK<>, Residual, AllGather>>());
  CHECK(type_name<Amsgrad<>>().rfind("terse::AmsgradOf<terse::Dense, terse::None, ", 0) == 0);
}

TEST_CASE("dense methods follow the oracle") {
  const Training clipped{.clip_norm = 3}, four{.ranks = 4, .steps = 40};
  follows_oracle(Adam<>{.learning_rate = 0.03F, .weight_decay = 0.1F}, rounding, clipped);
  follows_oracle(Adam<>{.learning_rate = 0.03F, .bias_correction = false}, rounding);
  follows_oracle(AdamW<>{.learning_rate = 0.03F, .beta1 = 0.8F, .beta2 = 0.9F, .weight_decay = 0.5F},
                 rounding);
  follows_oracle(Amsgrad<>{.learning_rate = 3e-3F, .weight_decay = 0.1F}, rounding, clipped);
  follows_oracle(Nadam<>{.learning_rate = 0.03F, .weight_decay = 0.1F}, rounding);
  follows_oracle(Adagrad<>{.learning_rate = 0.1F, .weight_decay = 0.1F}, rounding);
  follows_oracle(RmsProp<>{.learning_rate = 0.01F, .weight_decay = 0.1F}, rounding);
  follows_oracle(Lion<>{.learning_rate = 0.01F, .weight_decay = 0.1F}, rounding);
  follows_oracle(Lamb<>{.learning_rate = 0.03F, .weight_decay = 0.1F}, rounding, clipped);
  follows_oracle(Lamb<>{.learning_rate = 0.03F, .min_coefficient = 0.9F, .max_coefficient = 1.1F}, rounding);
  // Over other topologies: the ring adds up in another order.
  follows_oracle(Nadam<Ring>{.learning_rate = 0.03F, .weight_decay = 0.1F}, rounding, four);
  follows_oracle(Nadam<Star>{.learning_rate = 0.03F, .weight_decay = 0.1F, .topology = {.center = 2}},
                 rounding, four);
  follows_oracle(Adam<Star>{.learning_rate = 0.01F}, rounding, clipped);
  follows_oracle(Adam<Ring>{.learning_rate = 0.01F}, rounding, clipped);
  follows_oracle(Lamb<AllGather>{.learning_rate = 0.03F, .weight_decay = 0.1F}, rounding, four);
  for (const bool nesterov : {false, true}) {
    follows_oracle(Lars<>{.learning_rate = 0.05F, .nesterov = nesterov, .weight_decay = 0.1F, .trust = 0.7F},
                   rounding, clipped);
    follows_oracle(
        MomentumSgd<>{
            .learning_rate = 0.03F, .weight_decay = 0.1F, .momentum_correction = {.nesterov = nesterov}},
        rounding, four);
  }
}

TEST_CASE("compositions without a name follow the oracle") {
  follows_oracle(Averaging<LionInterpolation, AdamVariance>{.learning_rate = 0.03F, .weight_decay = 0.1F},
                 rounding);
  follows_oracle(Averaging<HeavyBall, AdagradSum>{.learning_rate = 0.03F}, rounding);
  follows_oracle(
      Averaging<NesterovAverage, LayerWise<AmsgradVariance>>{
          .learning_rate = 0.03F, .weight_decay = 0.1F, .preconditioner = {.max_coefficient = 1}},
      rounding);
  follows_oracle(Averaging<LionInterpolation, LayerWise<SignStep>>{.learning_rate = 0.03F}, rounding);
  // Momentum before compression is momentum on the mean where nothing is compressed.
  follows_oracle(Averaging<LocalMomentumBefore, AdamVariance>{.learning_rate = 0.03F}, rounding);
  follows_oracle(Averaging<LocalAverage, AdamVariance>{.learning_rate = 0.03F}, rounding);
  follows_oracle(Averaging<FactorMasking>{.learning_rate = 0.03F}, rounding);
  follows_oracle(Averaging<MajorityVote, SignStep>{.learning_rate = 0.01F}, rounding);
  // Policies of the user's own are policies.
  follows_oracle(Averaging<NesterovAverage, Belief>{.learning_rate = 0.003F}, rounding);
}

TEST_CASE("a momentum correction and a preconditioner don't share a buffer that both call by one name") {
  follows_oracle(Averaging<HeavyBall, LarsRates>{.learning_rate = 0.01F, .preconditioner = {.trust = 0.7F}},
                 rounding);
}

// The oracle runs the rules' own text. These don't.
TEST_CASE("rules compute what their papers say") {
  const double beta1 = in_double(0.9F), beta2 = in_double(0.999F), slow = in_double(0.99F);
  const double epsilon = in_double(1e-8F);
  auto m = zeros(), v = zeros(), w = zeros();

  follows_formula(Adam<>{.learning_rate = 0.03F, .weight_decay = 0.1F}, rounding,
                  [&](std::size_t k, double g, double t) {
                    m[k] = beta1 * m[k] + (1 - beta1) * g;
                    v[k] = beta2 * v[k] + (1 - beta2) * g * g;
                    const double root = std::sqrt(v[k] / (1 - std::pow(beta2, t)));
                    return m[k] / (1 - std::pow(beta1, t)) / (root + epsilon);
                  });

  m = zeros();
  follows_formula(Lion<>{.learning_rate = 0.01F, .weight_decay = 0.1F}, rounding,
                  [&](std::size_t k, double g, double) {
                    const double c = beta1 * m[k] + (1 - beta1) * g;
                    m[k] = slow * m[k] + (1 - slow) * g;
                    return c > 0 ? 1.0 : c < 0 ? -1.0 : 0.0;
                  });

  // PyTorch's, whose largest variance is corrected as the last one is.
  m = v = zeros();
  follows_formula(Amsgrad<>{.learning_rate = 0.03F, .beta2 = 0.9F, .weight_decay = 0.1F}, rounding,
                  [&](std::size_t k, double g, double t) {
                    m[k] = beta1 * m[k] + (1 - beta1) * g;
                    v[k] = in_double(0.9F) * v[k] + (1 - in_double(0.9F)) * g * g;
                    w[k] = std::max(w[k], v[k]);
                    const double root = std::sqrt(w[k]) / std::sqrt(1 - std::pow(in_double(0.9F), t));
                    return m[k] / (1 - std::pow(beta1, t)) / (root + epsilon);
                  });
  // The papers'.
  m = v = w = zeros();
  follows_formula(Amsgrad<>{.learning_rate = 3e-3F, .weight_decay = 0.1F, .bias_correction = false}, rounding,
                  [&](std::size_t k, double g, double) {
                    m[k] = beta1 * m[k] + (1 - beta1) * g;
                    v[k] = beta2 * v[k] + (1 - beta2) * g * g;
                    w[k] = std::max(w[k], v[k]);
                    return m[k] / (std::sqrt(w[k]) + epsilon);
                  });
  // With a memory so short that the largest variance is not the last one.
  m = v = w = zeros();
  follows_formula(Amsgrad<>{.learning_rate = 0.03F, .beta2 = 0.5F, .bias_correction = false}, rounding,
                  [&](std::size_t k, double g, double) {
                    m[k] = beta1 * m[k] + (1 - beta1) * g;
                    v[k] = 0.5 * v[k] + 0.5 * g * g;
                    w[k] = std::max(w[k], v[k]);
                    return m[k] / (std::sqrt(w[k]) + epsilon);
                  });

  // PyTorch's: products of what changes from step to step.
  for (const float momentum_decay : {0.004F, 0.0F, 1.0F}) {
    m = v = zeros();
    std::vector<double> products{1};
    const auto mu = [&](double t) {
      return beta1 * (1 - 0.5 * std::pow(0.96, t * in_double(momentum_decay)));
    };
    for (double t = 1; t < 70; ++t) products.push_back(products.back() * mu(t));
    follows_formula(Nadam<>{.learning_rate = 0.03F, .weight_decay = 0.1F, .momentum_decay = momentum_decay},
                    rounding,
                    [&](std::size_t k, double g, double t) {
                      m[k] = beta1 * m[k] + (1 - beta1) * g;
                      v[k] = beta2 * v[k] + (1 - beta2) * g * g;
                      const auto step = static_cast<std::size_t>(t);
                      const double ahead = mu(t + 1) * m[k] / (1 - products[step + 1]) +
                                           (1 - mu(t)) * g / (1 - products[step]);
                      return ahead / (std::sqrt(v[k] / (1 - std::pow(beta2, t))) + epsilon);
                    },
                    {.steps = 60});
  }
  m = v = zeros();
  follows_formula(
      Nadam<>{.learning_rate = 0.03F, .weight_decay = 0.1F, .momentum_decay = NesterovAverage::at_once},
      rounding, [&](std::size_t k, double g, double t) {
        m[k] = beta1 * m[k] + (1 - beta1) * g;
        v[k] = beta2 * v[k] + (1 - beta2) * g * g;
        const double ahead =
            beta1 * m[k] / (1 - std::pow(beta1, t + 1)) + (1 - beta1) * g / (1 - std::pow(beta1, t));
        return ahead / (std::sqrt(v[k] / (1 - std::pow(beta2, t))) + epsilon);
      });

  v = zeros();
  follows_formula(Adagrad<>{.learning_rate = 0.1F, .weight_decay = 0.1F}, rounding,
                  [&](std::size_t k, double g, double) {
                    v[k] += g * g;
                    return g / (std::sqrt(v[k]) + in_double(1e-10F));
                  });

  v = zeros();
  follows_formula(RmsProp<>{.learning_rate = 0.01F, .weight_decay = 0.1F}, rounding,
                  [&](std::size_t k, double g, double) {
                    v[k] = slow * v[k] + (1 - slow) * g * g;
                    return g / (std::sqrt(v[k]) + epsilon);
                  });
}

TEST_CASE("ranks compare what PyTorch's names have of their own, and values that can't work are refused") {
  const auto fault = [](const auto& of_rank_0, const auto& of_others) {
    std::array<std::string, 2> said;
    ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
      try {
        Optimizer optimizer{transport.rank() == 0 ? of_rank_0 : of_others, transport, few_layers()};
        Floats x(at(few_layers().size())), g = x;
        optimizer.step(x, g);
      } catch (const error& fault) {
        said[at(transport.rank())] = fault.what();
      }
    });
    return said[0] + said[1];
  };
  const Nadam<> nadam;
  CHECK(fault(nadam, nadam).empty());
  CHECK(fault(nadam, Nadam<>{.momentum_decay = 0.5F}).find("momentum_decay is ") != std::string::npos);
  CHECK(fault(Amsgrad<>{}, Amsgrad<>{.bias_correction = false}).find("bias_correction is ") !=
        std::string::npos);
  const Nadam<> backward{.momentum_decay = -1};
  CHECK(fault(backward, backward).find("momentum_decay must be") != std::string::npos);
}
