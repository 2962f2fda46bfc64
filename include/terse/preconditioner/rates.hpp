// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "terse/executor/concept.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// A segment's rates in this step, read once per piece.
struct Rate {
  float learning_rate = 0;  ///< the recipe's learning rate times the segment's scale
  float weight_decay = 0;   ///< the recipe's weight decay times the segment's scale
  bool operator==(const Rate&) const = default;
};

TERSE_NUMERICS_END

/// The recipe's rates times each segment's scales, for this step.
template <Executor E>
class Rates {
 public:
  explicit Rates(const Layout& layout)
      : rates_(static_cast<index_t>(layout.segments().size())), table_(rates_.size()) {
    given_.reserve(2 * layout.groups().size());
  }

  /// Updates the table.
  void set(E executor, const Layout& layout, float learning_rate, float weight_decay) {
    const Rate rate{learning_rate, weight_decay};
    set(executor, layout, std::span(&rate, 1), [](std::size_t) { return std::size_t{0}; });
  }
  /// Updates the table from several rates: segment s has rate number which(s), equal in each call.
  template <class Which>
  void set(E executor, const Layout& layout, std::span<const Rate> rates, const Which& which) {
    if (std::equal(rates.begin(), rates.end(), given_.begin(), given_.end()) &&
        layout.revision() == revision_)
      return;
    given_.assign(rates.begin(), rates.end());
    revision_ = layout.revision();
    for (std::size_t s = 0; s < layout.segments().size(); ++s) {
      const Segment& segment = layout.segments()[s];
      const Rate& of_segment = rates[which(s)];
      rates_[static_cast<index_t>(s)] = {of_segment.learning_rate * segment.learning_rate_scale,
                                         of_segment.weight_decay * segment.weight_decay};
    }
    put(executor, view<const Rate>(rates_.all()), out<E, Rate>(table_.all()));
  }
  const Rate* table() const { return table_.data(); }

 private:
  buffer<Rate> rates_;
  buffer<Rate, typename E::memory> table_;
  std::vector<Rate> given_;     // the rates from which the table was made
  std::uint64_t revision_ = 0;  // and the layout's revision
};

}  // namespace terse
