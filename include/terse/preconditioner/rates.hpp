// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "terse/executor/concept.hpp"

namespace terse {

/// A segment's own rates in this step, read once per piece.
struct Rate {
  float learning_rate = 0;
  float weight_decay = 0;
  bool operator==(const Rate&) const = default;
};

/// The recipe's rates times each segment's scales, for this step.
template <Executor E>
class Rates {
 public:
  explicit Rates(const Layout& layout)
      : rates_(static_cast<index_t>(layout.segments().size())), table_(rates_.size()) {}

  /// Brings the table up to date.
  void set(E executor, const Layout& layout, float learning_rate, float weight_decay) {
    const Rate rate{learning_rate, weight_decay};
    set(executor, layout, rate, rate, {});
  }
  /// The same with other rates for some segments; of those not listed `other` says nothing.
  void set(E executor, const Layout& layout, const Rate& rate, const Rate& other,
           const std::vector<std::uint8_t>& others) {
    if (rate == rate_ && other == other_ && layout.revision() == revision_) return;
    rate_ = rate;
    other_ = other;
    revision_ = layout.revision();
    index_t s = 0;
    for (const Segment& segment : layout.segments()) {
      const bool is_other = !others.empty() && others[static_cast<std::size_t>(s)] != 0;
      const Rate& of_segment = is_other ? other : rate;
      rates_[s++] = {of_segment.learning_rate * segment.learning_rate_scale,
                     of_segment.weight_decay * segment.weight_decay};
    }
    put(executor, view<const Rate>(rates_.all()), out<E, Rate>(table_.all()));
  }
  const Rate* table() const { return table_.data(); }

 private:
  buffer<Rate> rates_;
  buffer<Rate, typename E::memory> table_;
  Rate rate_{-1, -1}, other_{-1, -1};  // of the table
  std::uint64_t revision_ = 0;         // of the layout that it is of
};

}  // namespace terse
