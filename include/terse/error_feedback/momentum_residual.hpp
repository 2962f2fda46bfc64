// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/check.hpp"
#include "terse/error_feedback/materialized.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// An error that is also a momentum: a part of each sent value stays in it.
///
///     y = message + m        m' = fl(y - (1 - momentum) C(y)), C(y) as the receiver reads it
///
/// An element that is never sent accumulates as a plain sum. One that is always sent is heavy-ball momentum: m' = momentum
/// (m + message) if C(y) = y. With momentum 0 it equals Residual. State: n floats, which hold y between the passes. Source:
/// Ahn et al., "Dion: distributed orthonormalized updates", 2025 (arXiv 2504.05295), algorithm 1.
struct MomentumResidual {
  static constexpr bool corrects = true;
  static constexpr bool accumulates = true;

  float momentum = 0.95F;  ///< in [0, 1)

  void check() const { detail::check_beta("momentum", momentum); }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("momentum", static_cast<double>(momentum));
  }

  struct View : detail::Materialized {
    using StreamsOf = View;
    /// commit(i, keep, y, 0) leaves y unchanged.
    static constexpr bool commits_zero = true;
    float taken_out = 1;

    TERSE_HD float compensate(index_t i, float message) const { return message + load(i); }
    TERSE_HD void commit(index_t i, bool keep, float value, float decoded) const {
      store(i, keep_if(keep, value - taken_out * decoded));
    }
  };

  template <Executor E>
  struct State {
    buffer<float, typename E::memory> error;
    index_t begin = 0;
    float taken_out = 1;

    /// Allocates the state of the arena indices [begin, end).
    State(const MomentumResidual& policy, index_t begin_, index_t end)
        : error(end - begin_), begin(begin_), taken_out(1 - policy.momentum) {}
    View view() { return {{error.data(), begin}, taken_out}; }
    template <class Visit>
    void walk(Visit&& visit) {
      visit("error", error.all(), begin);
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
