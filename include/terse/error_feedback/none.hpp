// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/error_feedback/materialized.hpp"

namespace terse {

/// No error feedback: the error is dropped, y = message. Sound with unbiased compressors only. State: nothing that
/// lasts; n floats hold y between the passes.
struct NoErrorFeedback {
  static constexpr bool corrects = false;

  struct View : detail::Materialized {
    using StreamsOf = View;
    TERSE_HD auto streams() { return hands_over(y, begin); }
    /// commit(i, keep, y, 0) does nothing, so sparse compressors commit only the elements that they send.
    static constexpr bool commits_zero = true;

    TERSE_HD float compensate(index_t, float message) const { return message; }
    TERSE_HD void commit(index_t, bool, float, float) const {}
  };

  template <Executor E>
  struct State {
    buffer<float, typename E::memory> message;
    index_t begin = 0;

    State(const NoErrorFeedback&, index_t begin_, index_t end) : message(end - begin_), begin(begin_) {}
    View view() { return {{message.data(), begin}}; }
    template <class Visit>
    void walk(Visit&&) {}
  };
};
#ifndef None  // a macro of X11
/// The old name; version 0.2 removes it.
using None [[deprecated("its name is NoErrorFeedback")]] = NoErrorFeedback;
#endif

}  // namespace terse
