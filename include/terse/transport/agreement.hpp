// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "terse/core/hash.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/call.hpp"

namespace terse {

namespace detail {

/// A value that must be equal on all ranks of a channel.
struct Agreed {
  const char* name;  ///< name in the error: "rank 2 was set up with another <name>"
  std::uint64_t value;
};

/// Function that adds text to the error of ranks that differ. It takes the values of all ranks, in rank order, and may query
/// ranks.
using MoreToSay = std::function<std::string(const std::vector<std::uint64_t>& all)>;

/// Returns the hash of this rank's fields. Throws mismatch_error if the values of all ranks, `all`, differ from them.
TERSE_COLD std::uint64_t compare_fields(std::span<const Agreed> fields, const std::vector<std::uint64_t>& all,
                                        int here, const MoreToSay& more);

/// Waits until all ranks have found the difference that this rank is about to throw: those that hear of its end first would take it
/// for lost.
template <Transport T>
TERSE_COLD void meet_before_error(T& channel) {
  try {
    barrier(channel, Phase::setup);
  } catch (const peer_error&) {
    // A rank that has left the barrier may have ended its program.
  }
}
/// Returns compare(), which throws mismatch_error on all ranks if it does on one.
template <Transport T, class Compare>
TERSE_COLD auto compare_together(T& channel, const Compare& compare) {
  try {
    return compare();
  } catch (const mismatch_error&) {
    meet_before_error(channel);
    throw;
  }
}

}  // namespace detail

/// Compares the fields of all ranks and returns their hash. Collective. Throws mismatch_error that names the first field
/// that differs, and the rank. If ranks differ, all of them call `more`, whose text ends the error.
template <Transport T>
TERSE_COLD std::uint64_t agree(T& channel, std::span<const detail::Agreed> fields,
                               const detail::MoreToSay& more = nullptr) {
  const detail::Call call(detail::Verb::agree);
  std::vector<std::uint64_t> mine;
  for (const detail::Agreed& field : fields) mine.push_back(field.value);
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(channel.size()));
  detail::CheckedGather gather(channel.size());
  gather(channel, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), Phase::setup);
  return detail::compare_together(channel,
                                  [&] { return detail::compare_fields(fields, all, channel.rank(), more); });
}

namespace detail {

/// Hyper-parameters as settings(visit) lists them, by visit(name, double).
struct SettingsList {
  std::vector<std::string> names;
  std::vector<double> values;

  void operator()(const char* name, double value);
  std::uint64_t hash() const;
};

/// Visitor that mixes values, or names and values, of hyper-parameters into a hash.
struct SettingsHash {
  std::uint64_t hash = 0;
  bool names = false;

  void operator()(const char* name, double value);
};

/// Throws mismatch_error if the numbers of hyper-parameters, or their values, differ from `mine` on any rank; both lists are
/// in rank order.
void compare_counts(std::span<const std::uint64_t> all, const SettingsList& mine, const char* what, int rank);
void compare_values(std::span<const double> all, const SettingsList& mine, const char* what, int rank);

/// Compares hyper-parameters. Collective. Throws mismatch_error that names the first one that differs, the rank, and both
/// values: "rank 2 was set up with <what>: learning_rate is 0.01 there and 0.001 here".
template <Transport T>
TERSE_COLD void agree_on_settings(T& channel, const char* what, const SettingsList& mine) {
  const Call call(Verb::agree);
  Assembly<std::uint64_t, T> counts(channel);
  const auto numbers = counts(channel, mine.values.size(), Phase::setup);
  compare_together(channel, [&] { compare_counts(numbers, mine, what, channel.rank()); });
  std::vector<double> all(mine.values.size() * static_cast<std::size_t>(channel.size()));
  CheckedGather gather(channel.size());
  gather(channel, std::as_bytes(std::span(mine.values)), std::as_writable_bytes(std::span(all)),
         Phase::setup);
  compare_together(channel, [&] { compare_values(all, mine, what, channel.rank()); });
}

}  // namespace detail

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/transport/agreement.ipp"
#endif
