// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace terse {

/// The reaction to gradients that are not finite: NaN, infinity, and magnitudes beyond 2^63, whose squares overflow.
/// All ranks decide the same.
///
///   throw_   : every rank throws non_finite_error before any parameter changes
///   skip     : no rank takes the step; an Optimizer pays a read-only pass and an 8-byte agreement for it
///   zero     : the element's message counts as 0 on that rank
///
/// In a pipeline it applies to activations, gradients and losses, and costs nothing. With all three values, such
/// messages count as 0.
enum class NonFinite { throw_, skip, zero };

}  // namespace terse
