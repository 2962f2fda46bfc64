// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/error_feedback/none.hpp"
#include "terse/error_feedback/residual.hpp"

namespace terse {

/// NoErrorFeedback for a rank's own messages, and Residual for the mean if its owner compresses it again. Use it for
/// methods that keep the unsent part themselves (CocktailSgd, DisTrO). Other methods reject it with biased compressors,
/// because the unsent part would be lost.
///
/// State: the owner's error, see the topology; n floats hold messages between the passes.
struct OwnersResidual : NoErrorFeedback {
  static constexpr bool corrects = true;
  static constexpr bool accumulates = true;
  using OfOwners = Residual;
};

}  // namespace terse
