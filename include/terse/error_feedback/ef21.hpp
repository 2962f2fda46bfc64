// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/error_feedback/materialized.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// An error feedback that sends the difference between the message and a copy that the receivers also keep:
///
///     d_i = C(message_i - h_i)        mean = h + mean_i d_i        h_i += rate d_i        h += rate mean_i d_i
///
/// h is the mean of all h_i, on every rank, so the mean of the d_i must not be compressed again (use AllGather). Rate 1
/// with a contractive compressor is EF21; a rate below 1 with an unbiased one is DIANA (rate <= 1 / (1 + omega)). No
/// error accumulates. State: h_i and h, n floats each, and n floats for the message. Source: Richtarik, Sokolov and
/// Fatkhullin, NeurIPS 2021, algorithm 2; Mishchenko et al. 2019, algorithm 1.
struct Ef21 {
  static constexpr bool corrects = true;
  static constexpr bool needs_contraction = true;
  static constexpr bool single_stage = true;

  float rate = 1;  ///< in (0, 1]

  void check() const {
    if (!(rate > 0 && rate <= 1))
      throw usage_error("Ef21's rate must be in (0, 1], not " + std::to_string(rate));
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("rate", static_cast<double>(rate));
  }

  struct View : detail::Materialized {
    static constexpr bool commits_zero = true;
    float* own = nullptr;   // h_i
    float* mean = nullptr;  // h
    float rate = 1;

    using StreamsOf = View;
    TERSE_HD auto streams() { return updates(y, begin) + updates(own, begin) + updates(mean, begin); }
    TERSE_HD auto compensated() { return reads(own, begin) + writes(y, begin); }
    TERSE_HD auto committed() { return reads(y, begin) + updates(own, begin); }
    TERSE_HD auto received() { return updates(mean, begin); }
    TERSE_HD float compensate(index_t i, float message) const { return message - own[i - begin]; }
    TERSE_HD void commit(index_t i, bool keep, float, float decoded) const {
      own[i - begin] += keep_if(keep, rate * decoded);
    }
    TERSE_HD float receive(index_t i, bool keep, float arrived) const {
      const float h = mean[i - begin];
      mean[i - begin] = h + keep_if(keep, rate * arrived);
      return h + arrived;
    }
    /// Initializes the copies from an exact round: h_i is this rank's message, h the mean.
    TERSE_HD void seed(index_t i, float message, float exact) const {
      own[i - begin] = message;
      mean[i - begin] = exact;
    }
  };

  template <Executor E>
  struct State {
    buffer<float, typename E::memory> message, own, mean;
    index_t begin = 0;
    float rate;

    State(const Ef21& policy, index_t begin_, index_t end)
        : message(end - begin_), own(end - begin_), mean(end - begin_), begin(begin_), rate(policy.rate) {}
    View view() { return {{message.data(), begin}, own.data(), mean.data(), rate}; }
    template <class Visit>
    void walk(Visit&& visit) {
      visit("own_copy", own.all(), begin);
      visit("mean_copy", mean.all(), begin);
    }
  };
};

/// The old name, which version 0.2 removes.
using Difference [[deprecated("its name is Ef21")]] = Ef21;

TERSE_NUMERICS_END

}  // namespace terse
