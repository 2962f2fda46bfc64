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
  explicit Rates(const Layout& layout)
      : rates_(static_cast<index_t>(layout.segments().size())), table_(rates_.size()) {}

  /// Brings the table up to date.
  void set(E executor, const Layout& layout, float learning_rate, float weight_decay) {
    if (learning_rate != learning_rate_ || weight_decay != weight_decay_) {
      learning_rate_ = learning_rate;
      weight_decay_ = weight_decay;
      index_t s = 0;
      for (const Segment& segment : layout.segments())
        rates_[s++] = {learning_rate * segment.learning_rate_scale, weight_decay * segment.weight_decay};
      put(executor, view<const Rate>(rates_.all()), out<E, Rate>(table_.all()));
    }
  }
  const Rate* table() const { return table_.data(); }

 private:
  buffer<Rate> rates_;
  buffer<Rate, typename E::memory> table_;
  float learning_rate_ = -1, weight_decay_ = -1;  // of the table
};

/// A preconditioner of the frozen kind learns a variance while gradients arrive in full precision, decides
/// when to stop, and scales compressed updates by what it learned.
template <class P>
concept FreezingPreconditioner = requires(const P& preconditioner) {
  preconditioner.check();
  { preconditioner.update_clip } -> std::convertible_to<float>;
};

}  // namespace terse
