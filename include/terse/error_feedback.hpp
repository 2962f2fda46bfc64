// SPDX-License-Identifier: Apache-2.0
#pragma once

// Error feedback: the treatment of the compression error, which a rank keeps and adds to later messages.
// docs/error-feedback.md has formulas and refused pairs.
//
//     NoErrorFeedback                                 nothing is kept: for unbiased compressors
//     Residual                                        the error is added to the next message
//     MomentumResidual                                a part of what was sent stays, as momentum (Dion)
//     OwnersResidual                                  only the owners of chunks keep errors
//     StoredResidual<Q>, Bf16Residual, Int8Residual   Residual with errors in fewer bits
//     AveragedResidual<Q>                             a moving average of errors (LoCo)
//     Ef21                                            differences to a copy that all ranks keep (EF21, DIANA)
//     ErrorControl                                    errors and copies in balance (EControl)
//     Remembered<H>                                   copies of activations, between the stages of a pipeline (AC-SGD)
//     Observed<F>                                     F with a report of norms (CompressionReport)
//
// laws/error_feedback.hpp checks its promises. terse/error_feedback/concept.hpp has the contract, and
// examples/custom_error_feedback.cpp a complete custom one.

#include "terse/error_feedback/averaged_residual.hpp"  // IWYU pragma: export
#include "terse/error_feedback/concept.hpp"            // IWYU pragma: export
#include "terse/error_feedback/ef21.hpp"               // IWYU pragma: export
#include "terse/error_feedback/error_control.hpp"      // IWYU pragma: export
#include "terse/error_feedback/momentum_residual.hpp"  // IWYU pragma: export
#include "terse/error_feedback/none.hpp"               // IWYU pragma: export
#include "terse/error_feedback/observed.hpp"           // IWYU pragma: export
#include "terse/error_feedback/owners_residual.hpp"    // IWYU pragma: export
#include "terse/error_feedback/remembered.hpp"         // IWYU pragma: export
#include "terse/error_feedback/residual.hpp"           // IWYU pragma: export
#include "terse/error_feedback/stored_residual.hpp"    // IWYU pragma: export
