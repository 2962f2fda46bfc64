// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "terse/executor/concept.hpp"

namespace terse {

/// A segment's own rates in this step, read once per piece.
struct Rate {
  float learning_rate = 0;
  float weight_decay = 0;
};

/// The recipe's rates times each segment's scales, for this step.
template <Executor E>
class Rates {
 public:
  explicit Rates(const Layout& layout) : table_(static_cast<index_t>(layout.segments().size())) {}

  const Rate* set(const Layout& layout, float learning_rate, float weight_decay) {
    index_t s = 0;
    for (const Segment& segment : layout.segments())
      table_[s++] = {learning_rate * segment.learning_rate_scale, weight_decay * segment.weight_decay};
    return table_.data();
  }

 private:
  buffer<Rate, typename E::memory> table_;
};

/// A preconditioner of the frozen kind learns a variance while gradients arrive in full precision, decides
/// when to stop, and scales compressed updates by what it learned.
template <class P>
concept FreezingPreconditioner = requires(const P& preconditioner) {
  preconditioner.check();
  { preconditioner.update_clip } -> std::convertible_to<float>;
  typename P::Freezing;
};

}  // namespace terse
