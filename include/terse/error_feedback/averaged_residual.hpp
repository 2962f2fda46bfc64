// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/error_feedback/stored_residual.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// A quantizer for AveragedResidual that keeps floats unchanged. AveragedResidual reads an error again after its
/// message has been made. So messages can't overwrite the errors, as those of Residual do. (StoredResidual<Unrounded>
/// equals Residual.)
struct Unrounded {
  using Statistic = Unscaled;
  static constexpr int bits = 32;
  static constexpr bool stochastic = false;
  TERSE_HD static float code(float value, Unscaled::Scale, std::uint32_t) { return value; }
  TERSE_HD static float value(float code, Unscaled::Scale) { return code; }
};

namespace detail {

/// A view of stored errors that keeps a share of each error in place.
template <class View>
struct Averaged : View {
  static constexpr bool commits_zero = false;
  float share = 0;

  TERSE_HD void commit(index_t i, bool keep, float value, float decoded) const {
    const float left = value - decoded;
    this->store(i, keep_if(keep, keep_if(share != 0, share * this->error(i) + left, left)));
  }
};

}  // namespace detail

/// StoredResidual that sends a share of the error per round:
///
///     y = message + gain w e        e' = round_Q(fl((1 - gain) w e + y - C(y)))        w = decay (rate' / rate)
///
/// The unsent part accumulates in e, for any gain. It is sent over about 1 / gain rounds, in which compression noise
/// averages out. Let y = message + a; then gain e is LoCo's moving average, a' = (1 - gain) a + gain (y - C(y)). With a
/// gain of 1 it equals StoredResidual. e is reset to 0 every `clear_every` rounds; rounds at rate 0 do not count if
/// errors follow the rate.
///
/// State, memory on a device and supported compressors are those of StoredResidual; errors have 8 bits by default,
/// and 32 with AveragedResidual<Unrounded>. Source: Xie et al., "LoCo: low-bit communication adaptor for large-scale
/// model training", 2024.
template <class Q = quantizer::UniformLevels<8, Nearest, Symmetric, MaxAbs>, index_t Block = 4096>
struct AveragedResidual {
  using Stored = StoredResidual<Q, Block>;
  static constexpr bool corrects = true;
  static constexpr bool accumulates = true;
  static constexpr index_t block = Block;

  float gain = 0.2F;                ///< in (0, 1]
  std::uint64_t clear_every = 512;  ///< in rounds; 0: never
  float decay = 1;                  ///< in (0, 1]
  bool follows_rate = false;        ///< see Residual

  void check() const {
    stored().check();
    if (!(gain > 0 && gain <= 1))
      throw usage_error("AveragedResidual's gain must be in (0, 1], not " + std::to_string(gain));
  }
  const char* unrecordable(const RecordUse& use) const {
    if (clear_every == 0) return stored().unrecordable(use);
    return "an error feedback that is cleared now and then can't be recorded: set its clear_every to 0";
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("gain", static_cast<double>(gain));
    visit("clear_every", static_cast<double>(clear_every));
    stored().settings(visit);
  }

  template <Executor E>
  struct State : Stored::template State<E> {
    using Base = typename Stored::template State<E>;

    State(const AveragedResidual& policy, index_t begin_, index_t end)
        : Base(policy.stored(), begin_, end), gain_(policy.gain), clear_every_(policy.clear_every) {}
    void start(float rate) {
      Base::start(rate);
      cleared_ = clear_every_ > 0 && !this->carry.hold() && rounds_++ % clear_every_ == 0;
    }
    auto view() {
      detail::Averaged<decltype(Base::view())> view{Base::view()};
      const float weight = cleared_ ? 0.0F : this->carry.weight();
      view.weight = gain_ * weight;
      view.share = (1 - gain_) * weight;
      return view;
    }
    template <class Visit>
    void walk(Visit&& visit) {
      Base::walk(visit);
      if (clear_every_ > 0) visit("error_rounds", rounds_);
    }

   private:
    float gain_;
    std::uint64_t clear_every_;
    std::uint64_t rounds_ = 0;
    bool cleared_ = false;
  };

 private:
  Stored stored() const { return {decay, follows_rate}; }
};

TERSE_NUMERICS_END

}  // namespace terse
