// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace terse {

/// What to do about gradients that are not finite: NaN, infinity, and magnitudes beyond 2^63, whose squares
/// overflow. All ranks decide alike.
///
///   throw_   : every rank throws non_finite_error before any parameter changes
///   skip     : no rank takes the step; an Optimizer pays a read-only pass and an 8-byte agreement for it
///   zero     : the element's message counts as 0 on that rank
///
/// In a pipeline it is about activations, gradients and losses, costs nothing, and messages count as 0 with all three.
enum class NonFinite { throw_, skip, zero };

}  // namespace terse
