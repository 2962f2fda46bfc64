// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "terse/core/hash.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/call.hpp"

namespace terse {

/// Something that must be alike on all ranks of a channel.
struct Agreed {
  const char* name;  ///< as an error says it: "rank 2 was set up with another <name>"
  std::uint64_t value;
};

namespace detail {

struct NothingMore {
  template <class All>
  std::string operator()(const All&) const {
    return "";
  }
};

}  // namespace detail

/// Compares the fields of all ranks and returns their hash. Collective. Throws mismatch_error that names the first field
/// that differs, and the rank. `more(all)` is asked of all ranks what else there is to say where ranks differ, from the values of
/// all ranks, one rank after the other, and may ask ranks for more.
template <Transport T, class More = detail::NothingMore>
TERSE_COLD std::uint64_t agree(T& channel, std::span<const Agreed> fields, const More& more = {}) {
  const detail::Call call(detail::Verb::agree);
  std::vector<std::uint64_t> mine;
  for (const Agreed& field : fields) mine.push_back(field.value);
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(channel.size()));
  detail::CheckedGather gather(channel.size());
  gather(channel, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), Phase::setup);
  for (std::size_t k = 0; k < all.size(); ++k)
    if (all[k] != mine[k % mine.size()])
      throw mismatch_error("rank " + std::to_string(k / mine.size()) + " was set up with another " +
                               fields[k % mine.size()].name + more(all),
                           channel.rank());
  std::uint64_t hash = 0;
  for (const std::uint64_t field : mine) hash = mix_hash(hash, field);
  return hash;
}

/// Hyper-parameters, as settings(visit) shows them: visit(name, double).
struct SettingsList {
  std::vector<std::string> names;
  std::vector<double> values;

  void operator()(const char* name, double value) {
    names.emplace_back(name);
    values.push_back(value);
  }
  std::uint64_t hash() const {
    std::uint64_t hash = 0;
    for (std::size_t k = 0; k < names.size(); ++k)
      hash = mix_hash(mix_hash(hash, names[k].c_str()), std::bit_cast<std::uint64_t>(values[k]));
    return hash;
  }
};

/// Compares hyper-parameters. Collective. Throws mismatch_error that names the first one that differs, the rank, and both
/// values: "rank 2 was set up with <what>: learning_rate is 0.01 there and 0.001 here".
template <Transport T>
TERSE_COLD void agree_on_settings(T& channel, const char* what, const SettingsList& mine) {
  const detail::Call call(detail::Verb::agree);
  const std::size_t count = mine.values.size();
  const auto differs = [&](std::size_t rank, const std::string& name, double theirs, double own) {
    char values[80];
    std::snprintf(values, sizeof values, " is %.9g there and %.9g here", theirs, own);
    throw mismatch_error("rank " + std::to_string(rank) + " was set up with " + what + ": " + name + values,
                         channel.rank());
  };
  Assembly<std::uint64_t, T> counts(channel);
  std::size_t rank = 0;
  for (const std::uint64_t theirs : counts(channel, count, Phase::setup)) {
    if (theirs != count)
      differs(rank, "their number", static_cast<double>(theirs), static_cast<double>(count));
    ++rank;
  }
  std::vector<double> all(count * static_cast<std::size_t>(channel.size()));
  detail::CheckedGather gather(channel.size());
  gather(channel, std::as_bytes(std::span(mine.values)), std::as_writable_bytes(std::span(all)),
         Phase::setup);
  for (std::size_t k = 0; k < all.size(); ++k)
    if (std::bit_cast<std::uint64_t>(all[k]) != std::bit_cast<std::uint64_t>(mine.values[k % count]))
      differs(k / count, mine.names[k % count], all[k], mine.values[k % count]);
}

}  // namespace terse
