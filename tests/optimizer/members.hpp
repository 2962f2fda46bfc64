// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "terse/terse.hpp"

// Set-up of the tests of ranks that are lost and of ranks that join.

namespace terse::test {

/// An event for which threads wait, for at most 100 seconds.
class Event {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(100), [&] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

/// Returns the sum of the ranks' values.
inline double sum_of(Threads& ranks, double value) {
  double sum = 0;
  for (const double one : all_gather(ranks, value)) sum += one;
  return sum;
}

constexpr index_t elements = 128;

inline Layout layout_of() {
  Layout layout;
  layout.add({.name = "one", .shape = {elements / 2}});
  layout.add({.name = "two", .shape = {elements / 2}});
  return layout;
}

/// The gradient of |x - rank|^2 / 2 for each element.
inline void gradient(int rank, const std::vector<float>& x, std::vector<float>& g) {
  for (std::size_t i = 0; i < x.size(); ++i) g[i] = x[i] - static_cast<float>(rank);
}

/// A visitor that copies a state's parts.
struct Copy {
  std::map<std::string, std::vector<std::byte>>& parts;
  template <class T>
  void operator()(const std::string& name, view<T> part, index_t) const {
    const auto* bytes = reinterpret_cast<const std::byte*>(part.data());
    parts[name].assign(bytes, bytes + part.size() * static_cast<index_t>(sizeof(T)));
  }
  void operator()(const std::string& name, std::uint64_t& value) const {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    parts[name].assign(bytes, bytes + sizeof value);
  }
};
template <class Optimizer>
std::map<std::string, std::vector<std::byte>> state_of(Optimizer& optimizer) {
  std::map<std::string, std::vector<std::byte>> parts;
  optimizer.walk(Copy{parts});
  return parts;
}

}  // namespace terse::test
