// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>

#include "terse/core/error.hpp"
#include "terse/core/separate.hpp"
#include "terse/transport/trace.hpp"

namespace terse {

TERSE_CORE Trace::Trace(int rank, int ranks, std::size_t events)
    : rank_(rank), waits_(static_cast<std::size_t>(ranks) + 1), in_step_(waits_.size()) {
  if (events == 0) throw usage_error("a trace needs room for at least one event", rank);
  events_.resize(events);
}

TERSE_CORE void Trace::step() {
  const auto longest = std::max_element(in_step_.begin(), in_step_.end() - 1);
  if (longest != in_step_.end() - 1 && *longest > 0)
    ++waits_[static_cast<std::size_t>(longest - in_step_.begin())].steps;
  std::fill(in_step_.begin(), in_step_.end(), 0.0);
  ++steps_;
}

TERSE_CORE void Trace::add(const Event& event) {
  events_[added_++ % events_.size()] = event;
  const std::size_t place = place_of(event.awaited);
  waits_[place].seconds += event.waited;
  in_step_[place] += event.waited;
}

TERSE_CORE std::vector<Trace::Event> Trace::events() const {
  std::vector<Event> found;
  for (std::uint64_t k = lost(); k < added_; ++k) found.push_back(events_[k % events_.size()]);
  return found;
}

TERSE_CORE std::string Trace::json(double shift) const {
  std::array<char, 512> line{};
  std::string text;
  const auto put = [&](auto... values) {
    std::snprintf(line.data(), line.size(), values...);
    text += text.empty() ? "" : ",\n";
    text += line.data();
  };
  put(R"({"ph":"M","name":"process_name","pid":%d,"args":{"name":"rank %d"}})", rank_, rank_);
  put(R"({"ph":"M","name":"thread_name","pid":%d,"tid":0,"args":{"name":"waits"}})", rank_);
  std::uint64_t number = lost();
  for (const Event& event : events()) {
    const double begin = 1e6 * (event.begin + shift), end = begin + 1e6 * event.seconds;
    const char* const phase = name(event.phase);
    const auto step = static_cast<unsigned long long>(event.step),
               id = static_cast<unsigned long long>(number++);
    const auto bytes = static_cast<unsigned long long>(event.bytes_sent);
    put(R"({"ph":"b","cat":"messages","name":"%s","id":%llu,"pid":%d,"tid":0,"ts":%.3f,"args":{"step":%llu,"bytes sent":%llu}})",
        phase, id, rank_, begin, step, bytes);
    put(R"({"ph":"e","cat":"messages","name":"%s","id":%llu,"pid":%d,"tid":0,"ts":%.3f})", phase, id, rank_,
        end);
    if (event.waited <= 0) continue;
    const std::string whom = event.awaited == unknown ? "" : " of rank " + std::to_string(event.awaited);
    put(R"({"ph":"X","name":"%s%s","pid":%d,"tid":0,"ts":%.3f,"dur":%.3f,"args":{"step":%llu}})", phase,
        whom.c_str(), rank_, end - 1e6 * event.waited, 1e6 * event.waited, step);
  }
  return text;
}

TERSE_CORE std::string who_was_waited_for(std::span<const Trace::Waits> all, int ranks, std::uint64_t steps) {
  const auto count = static_cast<std::size_t>(ranks);
  std::vector<Trace::Waits> sums(count);
  for (std::size_t k = 0; k < all.size(); ++k)
    if (const std::size_t whom = k % (count + 1); whom < count) {
      sums[whom].seconds += all[k].seconds;
      sums[whom].steps += all[k].steps;
    }
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return sums[a].seconds > sums[b].seconds; });
  std::array<char, 160> line{};
  std::string text;
  for (const std::size_t whom : order) {
    if (sums[whom].seconds <= 0) continue;
    // Share of the steps of the ranks that could wait for it.
    const double share =
        static_cast<double>(sums[whom].steps) / std::max(1.0, static_cast<double>(steps) * (ranks - 1));
    std::snprintf(line.data(), line.size(),
                  "each other rank waited %.3g s for rank %zu, its longest wait in %.0f %% of the steps\n",
                  sums[whom].seconds / std::max(1, ranks - 1), whom, 100 * share);
    text += line.data();
  }
  return text;
}

}  // namespace terse
