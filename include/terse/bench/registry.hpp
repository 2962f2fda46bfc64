// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

#include "terse/core/layout.hpp"

namespace terse::bench {

/// Sizes of the messages in floats, for the first-level cache, the second-level cache, perhaps the last-level cache, memory.
inline constexpr index_t sizes[] = {index_t{4} << 10, index_t{256} << 10, index_t{4} << 20,
                                    index_t{64} << 20};

/// Registers the benchmark "<who>/<what>/<n>".
template <class Run>
void add(const std::string& who, const std::string& what, index_t n, Run run) {
  benchmark::RegisterBenchmark((who + "/" + what + "/" + std::to_string(n)).c_str(), std::move(run))
      ->Unit(benchmark::kMicrosecond);
}

/// The object that successive benchmarks of one subject and size share, since it takes long to make.
struct Held {
  std::string key;
  std::shared_ptr<void> object;
};
/// Returns the object of the last benchmark, one for the process.
inline Held& held() {
  static Held one;
  return one;
}

/// Returns the T of the last benchmark if it had this subject and size. Otherwise frees it and makes a new one from
/// `arguments`.
template <class T, class... Arguments>
std::shared_ptr<T> reused(const std::string& who, index_t n, const Arguments&... arguments) {
  const std::string key = who + "/" + std::to_string(n) + "/" + typeid(T).name();
  if (held().key != key) {
    held() = {};
    held() = {key, std::make_shared<T>(arguments...)};
  }
  return std::static_pointer_cast<T>(held().object);
}

}  // namespace terse::bench
