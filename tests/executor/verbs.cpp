// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

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

namespace {

/// Runs `act` in a process of its own, without its messages; the signal that ended it, 0 where it came to its end.
template <class Act>
int signal_of(Act act) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(2);
    std::signal(SIGABRT, SIG_DFL);
    const rlimit no_file{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_file);
    ::alarm(60);
    act();
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) == 0 ? 0 : -1;
}

struct WritesWhatItReads {
  float* x;
  using StreamsOf = WritesWhatItReads;
  auto streams() { return terse::reads(x); }
  void operator()(const Piece&, index_t i) const { x[i] = 1; }
};
struct ReadsWhatItWrites {
  float* x;
  using StreamsOf = ReadsWhatItWrites;
  auto streams() { return terse::writes(x); }
  void operator()(const Piece&, index_t i) const { x[i] += 1; }
};

}  // namespace

TEST_CASE(
    "an emulated device refuses what a device would, and streams that aren't what they are said to be") {
  using E = terse::executor::emulated;
  alignas(16) float values[8]{};
  CHECK(signal_of([&] { terse::detail::load_quad(values + 4); }) == 0);
  CHECK(signal_of([&] { terse::detail::load_quad(values + 1); }) == SIGABRT);
  CHECK(signal_of([&] { terse::detail::store_quad(values + 2, {}); }) == SIGABRT);
  const Range range = range_of({1000});
  CHECK(signal_of([&] {
          terse::buffer<float, E::memory> x(1024);
          terse::for_each(E{}, range, WritesWhatItReads{x.data()});
        }) == SIGABRT);
  terse::buffer<float, E::memory> x(1024);
  terse::for_each(E{}, range, ReadsWhatItWrites{x.data()});
  const std::vector<float> found = download<E>(x);
  CHECK(std::isnan(found[0]));
  CHECK(found[999] == 1);  // behind the last whole row
}
