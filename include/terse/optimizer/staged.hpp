// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/averaging.hpp"

namespace terse {

/// Two Averagings and one state: exact steps by First until `when` says that they are over, and steps by Second from then
/// on. Buffers of one name are one buffer, so that Second goes on with what First has learned. In between, once, for each
/// element that is compressed,
///
///     carry(e, denominator)     of Second's preconditioner, to change its buffers; denominator is what First's divides by
///     takes_part(e)             of Second's preconditioner, then: elements for which it is false are masked, nothing of
///                               them is sent, and the mean is 0 for them, or what the error feedback makes of that
///     carry(e, keep)            of Second's momentum correction; keep: whether it takes part
///
/// and then, for all layers at once, balance(layers) of Second's momentum correction. Where both stages are layer-wise,
/// observe(layer, factor) of Second's preconditioner is asked in each step of First, whose factor it is.
///
/// What a user's mask leaves out (Optimizer::mask) has denominator 0 and takes no part, whatever the preconditioner says; buffers
/// of a momentum correction without carry become 0 there.
///
/// Segments that are not compressed follow First to the end, its rates too, their gradients in Second's packets. `when` is an AtStep, a
/// VarianceRatio, a Freeze or a rule of the user's own, see StageSwitch. An AtStep must be told its step.
///
///     Staged<Averaging<ExponentialAverage, AdamVariance>, Averaging<LocalAverage, FrozenVariance, Sign>>{
///         .first = {.learning_rate = 1e-3F}, .second = {.learning_rate = 1e-3F}, .when = {1000}}          1-bit Adam
///
/// Each stage has rates, decay and betas of its own.
template <class First, class Second, StageSwitch When = AtStep>
struct Staged {
  static_assert(
      requires {
        typename First::compressor_type;
        typename Second::compressor_type;
      },
      "terse: a stage is an Averaging<...>; that of a named optimizer is what its composition() returns");
  static_assert(First::compressor_type::lossless, "terse: the first stage averages exactly");
  static_assert(!Second::compressor_type::lossless,
                "terse: the second stage has a compressor: two exact stages are one");

  First first{};    ///< an exact Averaging
  Second second{};  ///< one with a compressor
  When when{};      ///< when the first stage is over

  void check() const {
    if (first.warmup_steps > 0 || second.warmup_steps > 0)
      throw usage_error("warmup_steps of a stage must be 0: `when` says how long the first one lasts");
  }
  detail::TwoStages<typename First::Stage, typename Second::Stage, typename Second::compressor_type,
                    typename Second::error_feedback_type, typename Second::topology_type, When>
  composition() const {
    return {first.stage(), second.stage(), second.compressor, second.error_feedback, second.topology, when};
  }
};

}  // namespace terse
