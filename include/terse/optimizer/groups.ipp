// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <string>

#include "terse/core/separate.hpp"
#include "terse/optimizer/groups.hpp"

namespace terse::detail {

TERSE_CORE void refuse_groups(int first) {
  throw usage_error(
      "the layout has segments of group " + std::to_string(first) +
      ", and this recipe has the same hyper-parameters in all segments: groups are for methods that "
      "average over all ranks by Averaging or Staged (Adam, Lamb, OneBitAdam, MomentumSgd ...), and "
      "local methods around these (LocalSgd, DiLoCo, OverlapLocalSgd ...); take `.group` out of the "
      "layout, or another recipe");
}

TERSE_CORE void refuse_group(int id, const std::vector<int>& others) {
  std::string text = "no segment is of group " + std::to_string(id) + "; the layout has groups 0";
  for (const int other : others) text += ", " + std::to_string(other);
  throw usage_error(text);
}

TERSE_CORE void refuse_settings(int id, const SettingsList& theirs, const SettingsList& own) {
  std::size_t i = 0;
  while (i < own.names.size() && i < theirs.names.size() && own.names[i] == theirs.names[i] &&
         std::bit_cast<std::uint64_t>(own.values[i]) == std::bit_cast<std::uint64_t>(theirs.values[i]))
    ++i;
  const auto say = [&](const SettingsList& list) {
    return i == list.names.size() ? "no more of them"
                                  : sentence("%s %.9g", list.names[i].c_str(), list.values[i]);
  };
  throw usage_error("group " + std::to_string(id) + " has " + say(theirs) + ", and group 0 " + say(own) +
                    ": settings of whole steps (compressor, error feedback, topology, periods, the end of a "
                    "first stage) must be equal in all groups, and so must the learning rate if errors or "
                    "outer steps follow it; set them in optimizer.recipe and in each optimizer.group(id)");
}

}  // namespace terse::detail
