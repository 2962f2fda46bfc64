// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "terse/core/separate.hpp"
#include "terse/transport/agreement.hpp"

namespace terse::detail {

TERSE_CORE std::uint64_t compare_fields(std::span<const Agreed> fields, const std::vector<std::uint64_t>& all,
                                        int here, const MoreToSay& more) {
  for (std::size_t k = 0; k < all.size(); ++k) {
    const Agreed& field = fields[k % fields.size()];
    if (all[k] == field.value) continue;
    const std::string what = field.name + (more ? more(all) : "");
    throw mismatch_error("rank " + std::to_string(k / fields.size()) + " was set up with another " + what,
                         here);
  }
  std::uint64_t hash = 0;
  for (const Agreed& field : fields) hash = mix_hash(hash, field.value);
  return hash;
}

[[noreturn]] TERSE_COLD TERSE_CORE void throw_setting(std::size_t rank, const char* what,
                                                      const std::string& name, double theirs, double own,
                                                      int here) {
  throw mismatch_error(sentence("rank %zu was set up with %s: %s is %.9g there and %.9g here", rank, what,
                                name.c_str(), theirs, own),
                       here);
}

TERSE_CORE void compare_counts(std::span<const std::uint64_t> all, const SettingsList& mine, const char* what,
                               int rank) {
  const std::size_t count = mine.values.size();
  for (std::size_t k = 0; k < all.size(); ++k)
    if (all[k] != count)
      throw_setting(k, what, "their number", static_cast<double>(all[k]), static_cast<double>(count), rank);
}

TERSE_CORE void compare_values(std::span<const double> all, const SettingsList& mine, const char* what,
                               int rank) {
  const std::size_t count = mine.values.size();
  for (std::size_t k = 0; k < all.size(); ++k)
    if (std::bit_cast<std::uint64_t>(all[k]) != std::bit_cast<std::uint64_t>(mine.values[k % count]))
      throw_setting(k / count, what, mine.names[k % count], all[k], mine.values[k % count], rank);
}

TERSE_CORE void SettingsList::operator()(const char* name, double value) {
  names.emplace_back(name);
  values.push_back(value);
}

TERSE_CORE void SettingsHash::operator()(const char* name, double value) {
  if (names) hash = mix_hash(hash, name);
  hash = mix_hash(hash, std::bit_cast<std::uint64_t>(value));
}

TERSE_CORE std::uint64_t SettingsList::hash() const {
  std::uint64_t hash = 0;
  for (std::size_t k = 0; k < names.size(); ++k)
    hash = mix_hash(mix_hash(hash, names[k].c_str()), std::bit_cast<std::uint64_t>(values[k]));
  return hash;
}

}  // namespace terse::detail
