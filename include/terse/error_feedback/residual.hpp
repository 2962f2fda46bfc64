// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>

#include "terse/core/policy.hpp"
#include "terse/error_feedback/materialized.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// The weight of the stored error in the next message: decay. If errors follow the learning rate, it is multiplied
/// by the ratio of the rate at which the error was stored to the current one. At rate 0 a step moves nothing. The
/// round then sends the error but keeps it unchanged.
class Carry {
 public:
  Carry(float decay, bool follows_rate) : decay_(decay), follows_(follows_rate) {}

  void start(float rate) {
    hold_ = follows_ && rate == 0;
    weight_ = hold_ ? 1.0F : decay_;
    if (!follows_ || hold_) return;
    const float stored = std::bit_cast<float>(static_cast<std::uint32_t>(stored_rate_));
    if (stored != 0) weight_ = decay_ * std::min(stored / rate, largest_ratio);
    stored_rate_ = std::bit_cast<std::uint32_t>(rate);
  }
  float weight() const { return weight_; }
  bool hold() const { return hold_; }
  template <class Visit>
  void walk(Visit&& visit) {
    if (follows_) visit("error_rate", stored_rate_);
  }

 private:
  // A rate close to 0 must not make an error infinite.
  static constexpr float largest_ratio = 0x1p32F;
  float decay_;
  bool follows_;
  bool hold_ = false;
  float weight_ = 1;
  std::uint64_t stored_rate_ = 0;  // bits of a float, for checkpoints
};

}  // namespace detail

/// Classic error feedback, which adds the error to the next message:
///
///     y = message + decay (rate' / rate) e        e' = fl(y - C(y)), C(y) as the receiver reads it
///
/// With `follows_rate`, the factor is rate' / rate, the learning rates of the error's round and of this one. So a step
/// x -= rate C(y) applies the error at the rate at which it arose. At rate 0 nothing moves and the error stays
/// unchanged; a ratio above 2^32 counts as 2^32. State: n floats, which hold y between the passes. Source: Seide et
/// al. 2014; Karimireddy et al., ICML 2019; the rates: Zheng, Huang and Kwok, NeurIPS 2019, algorithm 2.
struct Residual {
  static constexpr bool corrects = true;
  static constexpr bool accumulates = true;

  float decay = 1;            ///< in (0, 1]
  bool follows_rate = false;  ///< rescaling of the error when the learning rate changes

  void check() const {
    if (!(decay > 0 && decay <= 1))
      throw usage_error("Residual's decay must be in (0, 1], not " + std::to_string(decay));
  }
  const char* unrecordable(const RecordUse&) const {
    return follows_rate ? "an error feedback that follows the learning rate can't be recorded" : nullptr;
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("decay", static_cast<double>(decay));
    visit("follows_rate", follows_rate ? 1.0 : 0.0);
  }

  struct View : detail::Materialized {
    using StreamsOf = View;
    /// commit(i, keep, y, 0) leaves y unchanged.
    static constexpr bool commits_zero = true;
    float weight = 1;
    bool hold = false;

    TERSE_HD float compensate(index_t i, float message) const {
      return keep_if(!hold, message) + weight * load(i);
    }
    TERSE_HD void commit(index_t i, bool keep, float value, float decoded) const {
      store(i, keep_if(keep, value - keep_if(!hold, decoded)));
    }
  };

  template <Executor E>
  struct State {
    buffer<float, typename E::memory> error;
    index_t begin = 0;
    detail::Carry carry;

    /// Allocates the state of the arena indices [begin, end).
    State(const Residual& policy, index_t begin_, index_t end)
        : error(end - begin_), begin(begin_), carry(policy.decay, policy.follows_rate) {}
    void start(float rate) { carry.start(rate); }
    View view() { return {{error.data(), begin}, carry.weight(), carry.hold()}; }
    template <class Visit>
    void walk(Visit&& visit) {
      visit("error", error.all(), begin);
      carry.walk(visit);
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
