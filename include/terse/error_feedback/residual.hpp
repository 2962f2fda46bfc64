// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/error_feedback/materialized.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// Sends the error again with the next message: y = message + e, e' = fl(y - C(y)), C(y) as the receiver
/// reads it. State: n floats, which hold y between the passes. Source: Seide et al. 2014; Karimireddy et al.,
/// ICML 2019.
struct Residual {
  static constexpr bool corrects = true;

  struct View : detail::Materialized {
    TERSE_HD float compensate(index_t i, float message) const { return message + load(i); }
    TERSE_HD void commit(index_t i, bool keep, float value, float decoded) const {
      store(i, keep_if(keep, value - decoded));
    }
  };

  template <Executor E>
  struct State {
    buffer<float, typename E::memory> error;
    index_t begin = 0;

    /// Room for the arena indices [begin, end).
    State(index_t begin_, index_t end) : error(end - begin_), begin(begin_) {}
    View view() { return {{error.data(), begin}}; }
    template <class Visit>
    void walk(Visit&& visit) {
      visit("error", error.all(), begin);
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
