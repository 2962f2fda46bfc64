// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/averaging.hpp"

namespace terse {

/// Two Averagings with one state: exact steps by First until `when` ends this stage, then steps by Second. Buffers with equal
/// names are one buffer, so that Second continues from First's state. At the change, these are called once for each compressed
/// element:
///
///     carry(e, denominator)     of Second's preconditioner, to change its buffers; denominator is the divisor of First's
///     takes_part(e)             of Second's preconditioner, then: elements for which it is false are masked. They are not
///                               sent, and their mean is 0, or what the error feedback makes of 0
///     carry(e, keep)            of Second's momentum correction; keep: whether it takes part
///
/// and then, for all layers at once, balance(layers) of Second's momentum correction. If both stages are layer-wise,
/// each step of First also calls observe(layer, factor) of Second's preconditioner, with First's factor.
///
/// Elements that a user masks (Optimizer::mask) have denominator 0 and never take part, regardless of the preconditioner. For
/// them, a momentum correction without carry sets its buffers to 0.
///
/// Segments that are not compressed use First, with its rates, in both stages; their gradients are sent in Second's packets. `when`
/// is an AtStep, a VarianceRatio, a Freeze or a custom rule, see StageSwitch. An AtStep requires its step.
///
///     Staged<Averaging<ExponentialAverage, AdamVariance>, Averaging<LocalAverage, FrozenVariance, Sign>>{
///         .first = {.learning_rate = 1e-3F}, .second = {.learning_rate = 1e-3F}, .when = {1000}}          1-bit Adam
///
/// Each stage has separate rates, decay and betas.
template <class First, class Second, StageSwitch When = AtStep>
struct Staged {
  static_assert(
      requires {
        typename First::compressor_type;
        typename Second::compressor_type;
      },
      "terse: a stage is an Averaging<...>; composition() of a named optimizer returns one");
  static_assert(First::compressor_type::lossless, "terse: the first stage averages exactly");
  static_assert(!Second::compressor_type::lossless,
                "terse: the second stage has a compressor: two exact stages are one");

  First first{};    ///< exact Averaging
  Second second{};  ///< Averaging with a compressor
  When when{};      ///< rule that ends the first stage

  void check() const {
    if (first.warmup_steps > 0 || second.warmup_steps > 0)
      throw usage_error("warmup_steps of a stage must be 0: `when` sets the length of the first stage");
  }
  detail::TwoStages<typename First::Stage, typename Second::Stage, typename Second::compressor_type,
                    typename Second::error_feedback_type, typename Second::topology_type, When>
  composition() const {
    return {first.stage(), second.stage(), second.compressor, second.error_feedback, second.topology, when};
  }
};

}  // namespace terse
