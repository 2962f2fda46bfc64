// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "terse/core/error.hpp"
#include "terse/optimizer/guards.hpp"

// Steps that a device's stream records, see Optimizer::record.

namespace terse::detail {

template <class F>
void check_recordable_feedback(const F& feedback, int rank) {
  if constexpr (requires { feedback.follows_rate; })
    if (feedback.follows_rate)
      throw usage_error("an error feedback that follows the learning rate can't be recorded", rank);
  if constexpr (requires { feedback.clear_every; })
    if (feedback.clear_every > 0)
      throw usage_error(
          "an error feedback that is cleared now and then can't be recorded: set its clear_every to 0", rank);
}
/// Those within the levels of a topology.
template <class P>
void check_recordable_within(const P& topology, int rank) {
  if constexpr (requires { topology.inner.error_feedback; })
    check_recordable_feedback(topology.inner.error_feedback, rank);
  if constexpr (requires { topology.waits(); })
    if (topology.waits())
      throw usage_error(
          "a topology that waits for norms or weights of packets (MedianClip, weights) can't be recorded",
          rank);
  if constexpr (requires { topology.outer; }) check_recordable_within(topology.outer, rank);
}
/// Throws usage_error where a recipe's steps differ in more than numbers. `begun`: messages of the next one have left.
template <class R>
TERSE_COLD void check_recordable(const R& recipe, bool begun, int rank) {
  if constexpr (requires { recipe.recordable(); })
    if (!recipe.recordable() || begun)
      throw usage_error(
          "this recipe's steps differ in more than numbers (neighbours, exact averages, messages "
          "sent before the step) and can't be recorded",
          rank);
  if constexpr (requires { recipe.error_feedback; }) check_recordable_feedback(recipe.error_feedback, rank);
  if constexpr (requires { recipe.topology; }) check_recordable_within(recipe.topology, rank);
}

/// What a record is of: it serves steps of the same kind.
class Record {
 public:
  void take(bool full_precision, bool masks) {
    there_ = true;
    full_precision_ = full_precision;
    masks_ = masks;
  }
  /// Throws usage_error if the next step is of another kind.
  void check(bool full_precision, bool masks, const StepGuard& guard) const {
    if (!there_ || full_precision_ != full_precision)
      guard.refuse(std::string("this step averages ") + (full_precision ? "exactly" : "compressed messages") +
                   ", and there is no record of such a step; record again where full_precision() changes");
    if (!full_precision && masks_ != masks)
      guard.refuse(
          "which elements take part has changed since the record, by a checkpoint or a mask: record again");
  }

 private:
  bool there_ = false, full_precision_ = false, masks_ = false;
};

}  // namespace terse::detail
