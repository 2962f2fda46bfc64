// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "terse/core/policy.hpp"
#include "terse/laws/report.hpp"

// Laws of a policy's self-description: buffer names and settings.

namespace terse::laws::detail {

/// Describes a fault in the names of buffers; "" if there is none.
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

/// Describes the fault of policies that have members but visit none: ranks compare only visited settings. "" if there is none.
template <class... Policies>
std::string settings_fault(const Policies&... policies) {
  const auto silent = [](const auto& policy) {
    int visited = 0;
    terse::detail::policy_settings(policy, [&](const char*, double) { ++visited; });
    return !std::is_empty_v<std::decay_t<decltype(policy)>> && visited == 0;
  };
  if ((silent(policies) || ...))
    return "it has hyper-parameters, but neither hyper_parameters() nor settings(visit) shows them, so ranks "
           "that differ in them would not be detected";
  return "";
}

/// A judge of the laws of rules that also records accesses to buffers or scalars that a rule has not declared.
class Judge {
 public:
  explicit Judge(Report& report) : report_(report) {}

  /// Checks a law; `violation()` returns "" if it holds.
  template <class Violation>
  void operator()(const char* law, const Violation& violation) {
    try {
      conclude(law, violation());
    } catch (const std::out_of_range&) {
      within_ = false;
    }
  }
  void bounds() {
    conclude("bounds", within_ ? "" : "e[k] or e.scalar(k) is asked for a k that `state` or at_step has not");
  }

 private:
  void conclude(const char* law, const std::string& what) {
    if (what.empty())
      report_.passed.emplace_back(law);
    else
      report_.failures.push_back({law, what});
  }

  Report& report_;
  bool within_ = true;
};

}  // namespace terse::laws::detail
