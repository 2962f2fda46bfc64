// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "terse/executor/host.hpp"

#define TERSE_TEST_EXECUTORS terse::executor::host

namespace {

/// A copy in the executor's memory.
template <class E, class T>
terse::buffer<T, typename E::memory> upload(const std::vector<T>& values) {
  terse::buffer<T, typename E::memory> copy(static_cast<terse::index_t>(values.size()));
  terse::copy(E{}, terse::in<E, T>(values), copy.all());
  return copy;
}

/// A copy in host memory.
template <class E, class T>
std::vector<T> download(const terse::buffer<T, typename E::memory>& values) {
  std::vector<T> copy(static_cast<std::size_t>(values.size()));
  terse::copy(E{}, values.all(), terse::out<E, T>(copy));
  return copy;
}

}  // namespace

#include "verbs.inc"
