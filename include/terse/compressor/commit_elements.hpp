// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/executor/sparse.hpp"

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// A functor that commits the decoded values of a message that was transformed as a whole.
template <class Feedback>
struct CommitElements {
  Feedback feedback;
  ArrivedSums decoded;
  TERSE_HD void enter(const Piece& piece) { terse::enter(feedback, piece); }
  TERSE_HD void operator()(const Piece&, index_t i, bool keep) const {
    feedback.commit(i, keep, feedback.load(i), decoded.sums[i - decoded.begin]);
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
