// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/concept.hpp"

namespace terse {

/// Decides what a rank does about its compression error. Its `State<E>` belongs to one rank and covers the
/// arena indices [begin, end); a `View` of it enters the verbs and has, for arena index i,
///
///     compensate(i, message) -> y, what shall be sent        load(i), store(i, y): y between the two passes
///     commit(i, keep, y, decoded): what the receiver reads is known; masked elements keep no error
///
/// `corrects` says whether errors come back later, which a biased compressor needs to converge.
template <class F>
concept ErrorFeedback = requires {
  { F::corrects } -> std::convertible_to<bool>;
};

/// Whether this pair converges; the sentence is for people.
template <class C, class F>
constexpr bool check_feedback() {
  static_assert(
      C::unbiased || F::corrects,
      "terse: a biased compressor (Sign, for one) needs error feedback: without it the error of every step "
      "is "
      "lost and the optimizer need not converge (Karimireddy et al., ICML 2019). Use Residual, not None");
  return C::unbiased || F::corrects;
}

}  // namespace terse
