// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/error_feedback/materialized.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// Ef21 that also sends a share of the error:
///
///     y_i = message_i + eta e_i - h_i        mean = h + mean_i C(y_i)
///     e_i += message_i - h_i - C(y_i)        h_i += C(y_i)        h += mean_i C(y_i)
///
/// e_i accumulates how far this rank's messages exceed its copies, and eta is the strength with which it pulls. eta =
/// 0 gives Ef21 at rate 1. With eta of the order of the compressor's contraction, the pull is fast and doesn't
/// oscillate. A failed round changes no e_i. As with Ef21, the first round is exact: it initializes h_i, and
/// sets e_i to 0. The mean must not be compressed again. State: e_i, h_i and h, n floats each, and n floats for the
/// message. Source: Gao, Islamov and Stich, "EControl", ICLR 2024.
struct ErrorControl {
  static constexpr bool corrects = true;
  static constexpr bool follows_changes = true;
  static constexpr bool single_stage = true;

  float eta = 0.03F;  ///< in [0, 1]

  void check() const {
    if (!(eta >= 0 && eta <= 1))
      throw usage_error("ErrorControl's eta must be in [0, 1], not " + std::to_string(eta));
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("eta", static_cast<double>(eta));
  }

  struct View : detail::Materialized {
    static constexpr bool commits_zero = true;
    float* error = nullptr;  // e_i
    float* own = nullptr;    // h_i
    float* mean = nullptr;   // h
    float eta = 0;

    using StreamsOf = View;
    TERSE_HD auto streams() {
      return updates(y, begin) + updates(error, begin) + updates(own, begin) + updates(mean, begin);
    }
    TERSE_HD auto compensated() { return reads(error, begin) + reads(own, begin) + writes(y, begin); }
    TERSE_HD auto committed() { return updates(y, begin) + updates(own, begin); }
    TERSE_HD auto received() { return reads(y, begin) + updates(error, begin) + updates(mean, begin); }
    TERSE_HD float compensate(index_t i, float message) const {
      const index_t l = i - begin;
      return message - own[l] + eta * error[l];
    }
    /// Stores the unsent part in y's place for `receive`.
    TERSE_HD void commit(index_t i, bool keep, float value, float decoded) const {
      store(i, keep_if(keep, value - decoded));
      own[i - begin] += keep_if(keep, decoded);
    }
    TERSE_HD float receive(index_t i, bool keep, float arrived) const {
      const index_t l = i - begin;
      // y - C(y) = message + eta e - h - C(y)
      error[l] = keep_if(keep, error[l] - eta * error[l] + load(i), error[l]);
      return mean[l] += keep_if(keep, arrived);
    }
    /// Initializes the copies from an exact round: h_i is this rank's message, h the mean.
    TERSE_HD void seed(index_t i, float message, float exact) const {
      error[i - begin] = 0;
      own[i - begin] = message;
      mean[i - begin] = exact;
    }
  };

  template <Executor E>
  struct State {
    buffer<float, typename E::memory> message, error, own, mean;
    index_t begin = 0;
    float eta;

    State(const ErrorControl& policy, index_t begin_, index_t end)
        : message(end - begin_),
          error(end - begin_),
          own(end - begin_),
          mean(end - begin_),
          begin(begin_),
          eta(policy.eta) {}
    View view() { return {{message.data(), begin}, error.data(), own.data(), mean.data(), eta}; }
    template <class Visit>
    void walk(Visit&& visit) {
      visit("error", error.all(), begin);
      visit("own_copy", own.all(), begin);
      visit("mean_copy", mean.all(), begin);
    }
  };
};

/// The old name, which version 0.2 removes.
using Controlled [[deprecated("its name is ErrorControl")]] = ErrorControl;

TERSE_NUMERICS_END

}  // namespace terse
