// SPDX-License-Identifier: Apache-2.0
#pragma once

// Momentum corrections: the message that a rank sends, and the direction made from the mean. Formulas:
// docs/algorithms/averaging.md. For mixing rules and local directions see docs/algorithms/parameter-mixing.md.
//
//     NoMomentum, HeavyBall                          the gradient is sent; momentum, if any, comes after the mean
//     ExponentialAverage, NesterovAverage            the gradient is sent; Adam's and NAdam's moving averages
//     LionInterpolation                              the gradient is sent; Lion's two averages
//     LocalMomentumBefore, SmoothedGradient          each rank's own momentum is sent
//     LocalAverage, BalancedAverage                  the common average, moved by the rank's gradient, is sent: 1-bit Adam, 1-bit LAMB
//     FactorMasking                                  momentum that is reset where it was sent: deep gradient compression
//     MajorityVote, Votes<Tie>, LocalLion<Outcome>   signs, and their majority
//     RowMomentum                                    momentum of whole rows: Dion2
//
// laws/rule.hpp checks its promises. terse/momentum_correction/concept.hpp has the contract, and
// examples/custom_optimizer.cpp a complete custom one.

#include "terse/momentum_correction/averaged.hpp"           // IWYU pragma: export
#include "terse/momentum_correction/balanced_average.hpp"   // IWYU pragma: export
#include "terse/momentum_correction/concept.hpp"            // IWYU pragma: export
#include "terse/momentum_correction/factor_masking.hpp"     // IWYU pragma: export
#include "terse/momentum_correction/heavy_ball.hpp"         // IWYU pragma: export
#include "terse/momentum_correction/local_lion.hpp"         // IWYU pragma: export
#include "terse/momentum_correction/majority_vote.hpp"      // IWYU pragma: export
#include "terse/momentum_correction/row_momentum.hpp"       // IWYU pragma: export
#include "terse/momentum_correction/smoothed_gradient.hpp"  // IWYU pragma: export
