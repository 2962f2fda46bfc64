// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "terse/core/check.hpp"
#include "terse/core/hash.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/transport/agreement.hpp"

namespace terse::detail {

/// Whether a recipe can have other hyper-parameters in one segment than in another.
template <class R>
constexpr bool takes_groups() {
  if constexpr (requires { Composed<R>::takes_groups; }) return Composed<R>::takes_groups;
  return false;
}

/// The hyper-parameters of the layout's groups other than 0, whose are the recipe's own.
template <class R>
class Groups {
 public:
  Groups(const Layout& layout, const R& recipe) : ids_(layout.groups()) {
    ids_.erase(ids_.begin());
    if constexpr (takes_groups<R>())
      recipes_ = std::vector<R>(ids_.size(), recipe);
    else if (!ids_.empty())
      throw usage_error(
          "the layout has segments of group " + std::to_string(ids_.front()) +
          ", and this recipe has the same hyper-parameters in all segments: groups are for methods that "
          "average over all ranks by Averaging or Staged (Adam, Lamb, OneBitAdam, MomentumSgd ...), and "
          "local methods around these (LocalSgd, DiLoCo, OverlapLocalSgd ...); take `.group` out of the "
          "layout, or another recipe");
  }

  /// One for each group but 0, in ascending order.
  const std::vector<R>& recipes() const { return recipes_; }
  /// Of group `id`, which is not 0. Throws usage_error where no segment is of it.
  R& at(int id) {
    const auto found = std::lower_bound(ids_.begin(), ids_.end(), id);
    if (found == ids_.end() || *found != id) {
      std::string text = "no segment is of group " + std::to_string(id) + "; the layout has groups 0";
      for (const int other : ids_) text += ", " + std::to_string(other);
      throw usage_error(text);
    }
    return recipes_[static_cast<std::size_t>(found - ids_.begin())];
  }

  /// Throws usage_error, which names the group, for values that can't work, and for those that hold for a whole step and
  /// are not group 0's.
  void check(const R& recipe) const {
    if constexpr (takes_groups<R>())
      for (std::size_t k = 0; k < recipes_.size(); ++k) {
        try {
          check_values(recipes_[k]);
        } catch (const usage_error& fault) {
          refuse_part("group " + std::to_string(ids_[k]), fault);
        }
        if (common_hash(recipes_[k]) != common_hash(recipe)) refuse_difference(k, recipe);
      }
  }
  /// Mixes in what must be alike on all ranks.
  std::uint64_t mix_into(std::uint64_t hash) const {
    if constexpr (takes_groups<R>())
      for (const R& recipe : recipes_) {
        const auto mix_in = [&](const char*, double value) {
          hash = mix_hash(hash, std::bit_cast<std::uint64_t>(value));
        };
        composed(recipe).settings(SettingsVisitor(mix_in));
      }
    return hash;
  }

 private:
  static std::uint64_t common_hash(const R& recipe) {
    std::uint64_t hash = 0;
    const auto mix_in = [&](const char* name, double value) {
      hash = mix_hash(mix_hash(hash, name), std::bit_cast<std::uint64_t>(value));
    };
    composed(recipe).common_settings(SettingsVisitor(mix_in));
    return hash;
  }
  [[noreturn]] TERSE_COLD void refuse_difference(std::size_t k, const R& recipe) const {
    SettingsList theirs, own;
    composed(recipes_[k]).common_settings(SettingsVisitor(theirs));
    composed(recipe).common_settings(SettingsVisitor(own));
    std::size_t i = 0;
    while (i < own.names.size() && i < theirs.names.size() && own.names[i] == theirs.names[i] &&
           std::bit_cast<std::uint64_t>(own.values[i]) == std::bit_cast<std::uint64_t>(theirs.values[i]))
      ++i;
    const auto say = [&](const SettingsList& list) {
      if (i == list.names.size()) return std::string("no more of them");
      char value[32];
      std::snprintf(value, sizeof value, " %.9g", list.values[i]);
      return list.names[i] + value;
    };
    throw usage_error(
        "group " + std::to_string(ids_[k]) + " has " + say(theirs) + ", and group 0 " + say(own) +
        ": what belongs to whole steps (compressor, error feedback, topology, periods, the end of a first "
        "stage) is alike in all groups, and so is the learning rate where errors or outer steps follow it; "
        "set it in optimizer.recipe and in each optimizer.group(id)");
  }

  std::vector<int> ids_;  // in ascending order
  std::vector<R> recipes_;
};

}  // namespace terse::detail
