// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "terse/core/check.hpp"
#include "terse/core/hash.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/transport/agreement.hpp"

namespace terse::detail {

/// Checks whether hyper-parameters of a recipe may differ between segments.
template <class R>
constexpr bool takes_groups() {
  if constexpr (requires { Composed<R>::takes_groups; }) return Composed<R>::takes_groups;
  return false;
}

/// Throws usage_error for a recipe without groups, for an id that no segment has, and for hyper-parameters of a group that must
/// be equal to group 0's.
[[noreturn]] TERSE_COLD void refuse_groups(int first);
[[noreturn]] TERSE_COLD void refuse_group(int id, const std::vector<int>& others);
[[noreturn]] TERSE_COLD void refuse_settings(int id, const SettingsList& theirs, const SettingsList& own);

/// The hyper-parameters of the layout's groups other than 0; group 0 uses those of the recipe itself.
template <class R>
class Groups {
 public:
  Groups(const Layout& layout, const R& recipe) : ids_(layout.groups()) {
    ids_.erase(ids_.begin());
    if constexpr (takes_groups<R>())
      recipes_ = std::vector<R>(ids_.size(), recipe);
    else if (!ids_.empty())
      refuse_groups(ids_.front());
  }

  /// Returns a recipe for each group except 0, in ascending order of groups.
  const std::vector<R>& recipes() const { return recipes_; }
  /// Returns the recipe of group `id`, which is not 0. Throws usage_error if the group has no segment.
  R& at(int id) {
    const auto found = std::lower_bound(ids_.begin(), ids_.end(), id);
    if (found == ids_.end() || *found != id) refuse_group(id, ids_);
    return recipes_[static_cast<std::size_t>(found - ids_.begin())];
  }

  /// Throws usage_error, which names the group, for invalid values, and for values of the whole step that differ from group 0's.
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
  /// Mixes in the settings of all groups, which must be equal on all ranks.
  std::uint64_t mix_into(std::uint64_t hash) const {
    SettingsHash settings{hash};
    if constexpr (takes_groups<R>())
      for (const R& recipe : recipes_) composed(recipe).settings(SettingsVisitor(settings));
    return settings.hash;
  }

 private:
  static std::uint64_t common_hash(const R& recipe) {
    SettingsHash settings{.names = true};
    composed(recipe).common_settings(SettingsVisitor(settings));
    return settings.hash;
  }
  [[noreturn]] TERSE_COLD void refuse_difference(std::size_t k, const R& recipe) const {
    SettingsList theirs, own;
    composed(recipes_[k]).common_settings(SettingsVisitor(theirs));
    composed(recipe).common_settings(SettingsVisitor(own));
    refuse_settings(ids_[k], theirs, own);
  }

  std::vector<int> ids_;  // in ascending order
  std::vector<R> recipes_;
};

}  // namespace terse::detail

#ifndef TERSE_SEPARATE
#include "terse/optimizer/groups.ipp"
#endif
