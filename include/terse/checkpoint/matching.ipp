// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/checkpoint/matching.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint::detail {

TERSE_CORE void require_size(const std::filesystem::path& file, const Layout& layout, index_t size) {
  if (size != layout.size())
    fail(file, "needs parameters of " + std::to_string(layout.size()) + " elements, as the layout has, not " +
                   std::to_string(size));
}

TERSE_CORE std::string layout_difference(const File& file, const Layout& layout) {
  const Unmatched differ = compare(file, layout, "", [](const Segment&) {});
  const auto is_first = [](const std::vector<std::string>& names, const Segment& segment) {
    return !names.empty() && names.front() == segment.name;
  };
  const auto shape_of = [&](const std::string& name) {
    return " " + described(file.shape(parameters_name(name)));
  };
  std::string text;
  const auto add = [&](const std::string& sentence) { text += (text.empty() ? "" : ", ") + sentence; };
  for (const Segment& segment : layout.segments()) {
    const std::string name = "segment " + quoted(segment.name), shape = " " + described(segment.shape);
    if (is_first(differ.missing, segment)) add("it has no " + name + shape);
    if (is_first(differ.mismatched, segment))
      add("its " + name + " has the shape" + shape_of(segment.name) + " and this run's" + shape);
  }
  if (!differ.unexpected.empty())
    add("this run has no segment " + quoted(differ.unexpected.front()) + shape_of(differ.unexpected.front()));
  if (text.empty())
    return "segments have the same names and shapes, and another order or other rates, weight decays, groups "
           "or "
           "flags: give them those of the run that saved it, before the load";
  return text + ". load_matching loads the parts that fit";
}

}  // namespace terse::checkpoint::detail
