// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/checkpoint/checkpoint.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint::detail {

TERSE_CORE void require_same(const std::filesystem::path& file, const File& read, const Metadata& expected,
                             const Layout& layout) {
  for (const auto& [key, value] : expected)
    if (const std::string& found = read.metadata(key); found != value)
      throw foreign_checkpoint_error(
          about(file, "was saved with another " + key + ": " +
                          (key == "layout" ? layout_difference(read, layout)
                                           : "it says '" + found + "', this run '" + value + "'")));
}

}  // namespace terse::checkpoint::detail
