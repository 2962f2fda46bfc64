// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

#include "terse/core/layout.hpp"

namespace terse::bench {

/// Floats of the messages: in the first-level cache, in the second-level cache, in the last one perhaps, in memory.
inline constexpr index_t sizes[] = {index_t{4} << 10, index_t{256} << 10, index_t{4} << 20,
                                    index_t{64} << 20};

/// Registers the benchmark "<who>/<what>/<n>".
template <class Run>
void add(const std::string& who, const std::string& what, index_t n, Run run) {
  benchmark::RegisterBenchmark((who + "/" + what + "/" + std::to_string(n)).c_str(), std::move(run))
      ->Unit(benchmark::kMicrosecond);
}

/// Benchmarks of one subject and size follow each other, and share what took long to make.
struct Held {
  std::string key;
  std::shared_ptr<void> object;
};
/// What the last benchmark left: the process has one.
inline Held& held() {
  static Held one;
  return one;
}

/// The T that the last benchmark worked on, if that was of this subject and size; else a new one, made from
/// `arguments` after the last has been freed.
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
