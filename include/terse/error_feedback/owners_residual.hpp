// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/error_feedback/none.hpp"
#include "terse/error_feedback/residual.hpp"

namespace terse {

/// NoErrorFeedback for what a rank sends, and Residual for the mean where its owner compresses it again: for methods that keep what was not
/// sent themselves, in the parameters (CocktailSgd). Others refuse it beside biased compressors: there what a rank does not send is
/// lost.
///
/// State: the owner's error, see the topology; n floats hold messages between the passes.
struct OwnersResidual : NoErrorFeedback {
  static constexpr bool corrects = true;
  static constexpr bool accumulates = true;
  using OfOwners = Residual;
};

}  // namespace terse
