// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "terse/core/error.hpp"
#include "terse/core/policy.hpp"
#include "terse/optimizer/guards.hpp"

// Checks of steps that a device's stream records, see Optimizer::record.

namespace terse::detail {

/// Throws usage_error if a recipe's steps differ in more than numbers, so that a record can't replace them. `begun`: messages of the
/// next step have been sent.
template <class R>
TERSE_COLD void check_recordable(const R& recipe, const RecordUse& use, bool full_precision, bool begun,
                                 int rank) {
  if constexpr (requires { recipe.recordable(); })
    if (!recipe.recordable() || begun)
      throw usage_error(
          "this recipe's steps differ in more than numbers (neighbours, exact averages, messages "
          "sent before the step) and can't be recorded",
          rank);
  if constexpr (requires { recipe.unrecordable(use, full_precision); })
    if (const char* why = recipe.unrecordable(use, full_precision)) throw usage_error(why, rank);
}

/// The kind of the recorded step: a record is valid for steps of this kind only.
class Record {
 public:
  void take(std::uint64_t step, bool full_precision, bool masks) {
    step_ = step;
    full_precision_ = full_precision;
    masks_ = masks;
  }
  /// Throws usage_error if the next step is of another kind.
  void check(bool full_precision, bool masks, const StepGuard& guard) const {
    if (step_ == 0 || full_precision_ != full_precision)
      guard.refuse(std::string("this step averages ") + (full_precision ? "exactly" : "compressed messages") +
                   ", and there is no record of such a step; record again where full_precision() changes");
    if (!full_precision && masks_ != masks)
      guard.refuse(
          "which elements take part has changed since the record, by a checkpoint or a mask: record again");
  }
  /// Returns the recorded step; 0 if there is no record.
  std::uint64_t step() const noexcept { return step_; }

 private:
  std::uint64_t step_ = 0;
  bool full_precision_ = false, masks_ = false;
};

}  // namespace terse::detail
