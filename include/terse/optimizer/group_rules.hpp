// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "terse/preconditioner/rates.hpp"

namespace terse::detail {

/// The rules of one stage.
template <class M, class P>
struct StageRules {
  M momentum;
  P preconditioner;
};

/// The rules of one stage for each group, in the executor's memory.
template <Executor E, class Rules>
class RulesTable {
 public:
  RulesTable() = default;
  explicit RulesTable(std::size_t groups) : rules_(static_cast<index_t>(groups)), there_(bytes_of(rules_)) {}

  void take(std::size_t place, const Rules& rules) {
    Rules& mine = rules_[static_cast<index_t>(place)];
    changed_ = changed_ || std::memcmp(&mine, &rules, sizeof rules) != 0;
    std::memcpy(&mine, &rules, sizeof rules);
  }
  void bring(E executor) {
    if (!changed_) return;
    put(executor, view<const std::byte>(reinterpret_cast<const std::byte*>(rules_.data()), there_.size()),
        out<E, std::byte>(there_.all()));
    changed_ = false;
  }
  /// Returns the table, or nullptr if there is none.
  const Rules* table() const { return reinterpret_cast<const Rules*>(there_.data()); }

 private:
  static index_t bytes_of(const buffer<Rules>& rules) {
    return rules.size() * static_cast<index_t>(sizeof(Rules));
  }
  buffer<Rules> rules_;
  // Bytes, since rules need not be default-constructible.
  buffer<std::byte, typename E::memory> there_;
  bool changed_ = true;
};

/// The rules of two stages and their rates in this step, for each group of the layout. Groups are indexed by their place in
/// Layout::groups; group 0 has place 0. If all segments are in group 0 there are no tables, and functors contain the rules. Grid
/// executors always have tables, so that records of steps can be replayed with other hyper-parameters.
template <Executor E, class First, class Second>
class GroupedRules {
 public:
  GroupedRules(E executor, const Layout& layout) {
    const std::vector<int> groups = layout.groups();
    rates_.resize(2 * groups.size());
    if (groups.size() > 1 || GridExecutor<E>) {
      first_ = RulesTable<E, First>(groups.size());
      second_ = RulesTable<E, Second>(groups.size());
    }
    if (groups.size() == 1) return;
    for (const Segment& segment : layout.segments())
      places_.push_back(static_cast<std::uint32_t>(
          std::lower_bound(groups.begin(), groups.end(), segment.group) - groups.begin()));
    there_ = buffer<std::uint32_t, typename E::memory>(static_cast<index_t>(places_.size()));
    put(executor, view<const std::uint32_t>(places_), out<E, std::uint32_t>(there_.all()));
  }

  /// Sets the rules of one group. compressed: the rates of its compressed segments; exact: those of all others.
  void take(std::size_t place, const First& first, const Second& second, const Rate& exact,
            const Rate& compressed) {
    rates_[2 * place] = compressed;
    rates_[2 * place + 1] = exact;
    if (first_.table() == nullptr) return;
    first_.take(place, first);
    second_.take(place, second);
  }
  /// Copies changed tables to the executor's memory.
  void bring(E executor) {
    if (first_.table() == nullptr) return;
    first_.bring(executor);
    second_.bring(executor);
  }

  std::span<const Rate> rates() const { return rates_; }
  /// Returns the index of a segment's rate in rates().
  std::size_t rate_of(std::size_t segment, bool exact) const {
    return (places_.empty() ? 0 : 2 * std::size_t{places_[segment]}) + (exact ? 1 : 0);
  }
  const std::uint32_t* places() const { return there_.data(); }
  const First* first() const { return first_.table(); }
  const Second* second() const { return second_.table(); }

 private:
  std::vector<Rate> rates_;
  std::vector<std::uint32_t> places_;  // of segments
  buffer<std::uint32_t, typename E::memory> there_;
  RulesTable<E, First> first_;
  RulesTable<E, Second> second_;
};

}  // namespace terse::detail
