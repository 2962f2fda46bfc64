// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "terse/executor/emulated.hpp"
#include "terse/executor/host.hpp"

#define TERSE_TEST_EXECUTORS terse::executor::host, terse::executor::emulated
#define TERSE_TEST_SLOW terse::executor::emulated

#include "select.inc"

TEST_CASE("few elements are selected by one launch") {
  using E = terse::executor::emulated;
  const auto launches = [](terse::index_t count) {
    terse::buffer<float, E::memory> values(count), scratch(terse::select_scratch(E{}, count, 5));
    terse::buffer<std::uint32_t, E::memory> positions(5);
    const terse::index_t before = E::launches();
    terse::select_top(E{}, terse::in<E>(values.all()), 5, scratch.all(), positions.all());
    const terse::index_t top = E::launches() - before;
    terse::list_picks(E{}, terse::detail::ReachesMagnitude{values.data(), 1}, count, scratch.all(),
                      positions.all());
    return std::pair(top, E::launches() - before - top);
  };
  CHECK(launches(4096) == std::pair<terse::index_t, terse::index_t>(1, 1));
  CHECK(launches(4097) == std::pair<terse::index_t, terse::index_t>(10, 3));  // on a device CUB's scan is two
}
