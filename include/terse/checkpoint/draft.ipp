// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/checkpoint/draft.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint {

TERSE_CORE std::filesystem::path Draft::file(const std::string& name) {
  if (!detail::names_part(name))
    throw usage_error("'" + name + "' can't be the name of a file in a checkpoint");
  names_.insert(name);
  return folder_ / name;
}

TERSE_CORE void Draft::write(const std::string& name, const std::string& contents) {
  const std::filesystem::path to = file(name);
  detail::naming(to, [&] { replace_file(to, contents); });
}

}  // namespace terse::checkpoint
