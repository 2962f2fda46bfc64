// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <type_traits>

#include "terse/core/policy.hpp"

// Laws of what a policy says of itself.

namespace terse::laws::detail {

/// Returns what is wrong with the names of buffers; "" if nothing is.
template <class... Names>
std::string names_fault(const Names&... lists) {
  std::set<std::string> seen;
  std::string fault;
  const auto add = [&](const char* name) {
    if (!fault.empty()) return;
    if (std::string(name).empty())
      fault = "a buffer has an empty name";
    else if (!seen.insert(name).second)
      fault = "two buffers are called '" + std::string(name) + "'";
  };
  const auto add_all = [&](const auto& list) {
    for (const char* name : list) add(name);
  };
  (add_all(lists), ...);
  return fault;
}

/// Returns what is wrong with policies that have members and show none of them: ranks compare what they visit. "" if nothing is.
template <class... Policies>
std::string settings_fault(const Policies&... policies) {
  const auto silent = [](const auto& policy) {
    int visited = 0;
    terse::detail::policy_settings(policy, [&](const char*, double) { ++visited; });
    return !std::is_empty_v<std::decay_t<decltype(policy)>> && visited == 0;
  };
  if ((silent(policies) || ...))
    return "it has hyper-parameters, and settings(visit) shows none: ranks that differ in them would not "
           "know";
  return "";
}

}  // namespace terse::laws::detail
