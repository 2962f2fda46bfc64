// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/executor/statistic.hpp"
#include "terse/preconditioner/adam.hpp"

namespace terse {

/// Freeze after step `step`: steps 1 ... step are full precision, step + 1 is the first compressed one.
struct AtStep {
  std::uint64_t step = 1;
};

/// Freeze after the first step t > max(learning_rate_warmup_steps, horizon) at which the L1 norm a(t) of the
/// variance has settled: min(a(t) / a(t - horizon), a(t - horizon) / a(t)) >= threshold. horizon = 1 / (1 -
/// beta2) is one memory of the variance. Source: Tang et al., "1-bit Adam", ICML 2021, section 7.1.
struct VarianceRatio {
  float threshold = 0.96F;
  std::uint64_t horizon = 1000;
  std::uint64_t learning_rate_warmup_steps = 0;
};

TERSE_NUMERICS_BEGIN

namespace detail {

struct Sum : SumOfSquares {
  TERSE_HD static void terms(float x, float (&term)[1]) { term[0] = x; }
};

struct Read {
  const float* from;
  TERSE_HD Sample operator()(const Piece&, index_t i, bool) const { return {from[i], 0}; }
};

struct IsPositive {
  const float* variance;
  TERSE_HD std::uint32_t operator()(const Piece&, index_t i, bool, float, std::uint32_t) const {
    return variance[i] > 0 ? 1U : 0U;
  }
};

/// variance becomes 1 / (sqrt(variance) + epsilon), and what has none stays where it is.
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

/// The compressed step's own rule: the momentum becomes the mean m, and with d = 1 / (sqrt(v) + epsilon) of
/// the freeze
///
///     x = x - learning_rate * (clamp(m d, -update_clip, update_clip) + weight_decay x)
template <Number P = float>
struct FrozenUpdate {
  float* momentum;
  const float* inverse;
  Weights<P> parameters;
  const Rate* rates;
  float update_clip;
  Rate rate{};

  TERSE_HD void enter(const Piece& piece) { rate = rates[piece.segment]; }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    // What is read comes before what is written, which the compiler can't know to be elsewhere.
    const float wanted = mean * inverse[i], x = parameters[i];
    const float below = wanted > update_clip ? update_clip : wanted;
    const float direction = below < -update_clip ? -update_clip : below;
    momentum[i] = mean;
    parameters.set(i, x - rate.learning_rate * (direction + rate.weight_decay * x));
  }
};

TERSE_NUMERICS_END

/// Adam's variance, learned in full precision and then frozen. Coordinates that have none at the freeze are
/// masked: they don't move, keep no error and don't count in a scale (weight decay, which is decoupled, still
/// applies).
///
/// `update_clip` bounds |m d| after the freeze. The paper has no bound (infinity): there a coordinate whose
/// variance is tiny but not zero takes steps of m / sqrt(v) without limit once the scale of its segment
/// replaces its own momentum, and training ends in NaN. 10 is far above what Adam itself does (about 1).
/// Source: Tang et al., "1-bit Adam", ICML 2021, algorithm 1.
struct FrozenVariance {
  static constexpr std::uint64_t longest_horizon = std::uint64_t{1} << 30;  // a float each

  std::variant<AtStep, VarianceRatio> freeze = VarianceRatio{};
  float update_clip = 10;

  void check() const {
    if (const auto* at = std::get_if<AtStep>(&freeze); at != nullptr && at->step < 1)
      throw usage_error("freeze = AtStep{0}: at least one full-precision step is needed to learn a variance");
    if (const auto* ratio = std::get_if<VarianceRatio>(&freeze);
        ratio != nullptr && (ratio->horizon < 1 || ratio->horizon > longest_horizon ||
                             !(ratio->threshold > 0 && ratio->threshold <= 1)))
      throw usage_error(
          "freeze = VarianceRatio needs a horizon of 1 to 2^30 steps and a threshold in (0, 1]");
    if (!(update_clip > 0)) throw usage_error("update_clip must be positive; infinity is the paper's rule");
  }

  template <class Visit>
  void settings(Visit&& visit) const {
    if (const auto* at = std::get_if<AtStep>(&freeze)) visit("freeze_step", static_cast<double>(at->step));
    if (const auto* ratio = std::get_if<VarianceRatio>(&freeze)) {
      visit("freeze_threshold", static_cast<double>(ratio->threshold));
      visit("freeze_horizon", static_cast<double>(ratio->horizon));
      visit("learning_rate_warmup_steps", static_cast<double>(ratio->learning_rate_warmup_steps));
    }
    visit("update_clip", static_cast<double>(update_clip));
  }

  /// When to freeze, and the mask that results. State: n / 64 words; VarianceRatio also keeps horizon + 1
  /// floats. On a device VarianceRatio waits for it in each full-precision step.
  template <Executor E>
  class Freezing {
   public:
    Freezing(E executor, const FrozenVariance& rule, const Range& compressed, index_t arena)
        : compressed_(compressed), mask_(arena / alignment), one_(1), bad_(1) {
      if (const auto* ratio = std::get_if<VarianceRatio>(&rule.freeze))
        norms_ = buffer<float>(static_cast<index_t>(ratio->horizon) + 1);
      for (const Piece& piece : compressed.pieces()) pieces_.emplace_back(std::vector<Piece>{piece});
      scratch_ = Floats(reduction_scratch<detail::Sum>(executor, compressed, Units{0, true}));
    }

    bool frozen() const { return frozen_ != 0; }
    /// Throws usage_error where the rule has come to need more memory than there is.
    void check(const FrozenVariance& rule) const {
      const auto* ratio = std::get_if<VarianceRatio>(&rule.freeze);
      if (!frozen() && ratio != nullptr && norms_.size() != static_cast<index_t>(ratio->horizon) + 1)
        throw usage_error(
            "VarianceRatio, and its horizon, are taken at construction and can't be changed to " +
            std::to_string(ratio->horizon));
    }
    Mask<typename E::memory> mask() const { return {mask_.data()}; }

    /// Called after each full-precision step; freezes when the rule says so.
    void observe(E executor, const FrozenVariance& rule, std::uint64_t step, float epsilon, float* variance,
                 float* momentum) {
      if (!due(executor, rule, step, variance)) return;
      for (const Range& piece : pieces_)
        pack<1, false>(executor, piece, Units{}, Mask<typename E::memory>{}, detail::IsPositive{variance},
                       in<E>(one_.all()),
                       reinterpret_cast<std::byte*>(mask_.data() + piece.begin_offset() / alignment),
                       Draw::shared(0, 0, Purpose::quantization));
      for_each(executor, compressed_, detail::Invert{variance, momentum, epsilon});
      frozen_ = 1;
    }

    template <class Visit>
    void walk(Visit&& visit) {
      visit("frozen", frozen_);
      visit("mask", mask_.all(), index_t{0});
      if (norms_.size() > 0) visit("variance_norms", norms_.all(), index_t{0});
    }

   private:
    bool due(E executor, const FrozenVariance& rule, std::uint64_t step, const float* variance) {
      if (const auto* at = std::get_if<AtStep>(&rule.freeze)) return step >= at->step;
      const auto& ratio = std::get<VarianceRatio>(rule.freeze);
      const auto place = [&](std::uint64_t t) { return static_cast<index_t>(t % (ratio.horizon + 1)); };
      reduce<detail::Sum>(executor, compressed_, Units{0, true}, Mask<typename E::memory>{}, NoPackets{},
                          detail::Read{variance}, scratch_.all(), one_.all(), bad_.data());
      float now = 0;
      fetch(executor, in<E>(one_.all()), view<float>(&now, 1));
      norms_[place(step)] = now;
      if (step <= ratio.horizon || step <= ratio.learning_rate_warmup_steps) return false;
      const float then = norms_[place(step - ratio.horizon)];
      return then > 0 && now > 0 && std::min(now / then, then / now) >= ratio.threshold;
    }

    using Floats = buffer<float, typename E::memory>;

    Range compressed_;
    std::vector<Range> pieces_;
    std::uint64_t frozen_ = 0;
    buffer<std::uint64_t, typename E::memory> mask_;
    buffer<float> norms_;
    Floats scratch_, one_;
    buffer<std::uint32_t, typename E::memory> bad_;
  };
};

}  // namespace terse
