// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "terse/executor/emulated.hpp"
#include "terse/executor/host.hpp"

#define TERSE_TEST_EXECUTORS terse::executor::host, terse::executor::emulated

#include "verbs.inc"

TEST_CASE("a grid executor refuses more packets than a kernel's arguments hold") {
  using Code = terse::Dense::Code;
  using E = terse::executor::emulated;
  const std::vector<terse::Packets<Code>::Source> sources(65);
  CHECK_THROWS_WITH_AS(
      terse::for_each(E{}, range_of({1}), {}, terse::Packets<Code>{sources.data(), 65, {}}, Sums{}),
      doctest::Contains("takes in up to 64 packets at once, not 65"), terse::usage_error);
}

TEST_CASE("a grid executor joins tiles by halves, by however many blocks") {
  using E = terse::executor::emulated;
  const Range range = range_of({100, 40 * 4096 + 17, 5, 9 * 4096});
  const auto values = random_floats(arena_of(range), 77);
  const auto mask = random_mask(arena_of(range), 78);
  const auto given = upload<E>(values);
  const auto words = upload<E>(mask);
  for (const Units units : {Units{}, Units{0, true}, Units{20 * 4096, false}}) {
    const auto expected =
        reduced<terse::executor::host, terse::RootMeanSquare>(range, units, Read{values.data()}, mask);
    terse::buffer<float, E::memory> scratch(
        terse::reduction_scratch<terse::RootMeanSquare>(E{}, range, units));
    terse::buffer<float, E::memory> scales(units.in_range(range));
    terse::buffer<std::uint32_t, E::memory> bad(1);
    terse::detail::reduce_tiles<terse::RootMeanSquare, false, 2>(
        E{}, range, units, mask_of<E>(words), terse::NoPackets{}, Read{given.data()}, nullptr, scratch.data(),
        scales.data(), bad.data());
    CHECK(download<E>(scales) == expected.scales);
  }
}

TEST_CASE("emulated device memory is closed to host code") {
  terse::buffer<float, terse::memory::emulated> memory(1);
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  // The kernel reads on behalf of the caller, and says so where it can't.
  CHECK(write(ends[1], memory.data(), 1) == -1);
  CHECK(errno == EFAULT);
  {
    const terse::memory::emulated::Open open;
    CHECK(write(ends[1], memory.data(), 1) == 1);
  }
  close(ends[0]);
  close(ends[1]);
}
