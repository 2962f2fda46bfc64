// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <tuple>

#include "terse/device/emulated.hpp"
#include "terse/executor/host.hpp"
#include "terse/executor/parallel.hpp"

namespace {

/// Shares ranges of any length.
struct ThreeThreads : terse::executor::parallel {
  ThreeThreads() : parallel(team_of_three()) { shared_from = 1; }

 private:
  static const parallel& team_of_three() {
    static const parallel team(3);
    return team;
  }
};

}  // namespace

#define TERSE_TEST_EXECUTORS terse::executor::host, ThreeThreads, terse::executor::emulated

#include "verbs.inc"

TEST_CASE("a grid executor refuses more packets than a kernel's arguments hold") {
  using Code = terse::Dense::Code;
  using E = terse::executor::emulated;
  const std::vector<terse::Packets<Code>::Source> sources(65);
  CHECK_THROWS_WITH_AS(
      terse::for_each(E{}, range_of({1}), {}, terse::Packets<Code>{sources.data(), 65, {}}, Sums{}),
      doctest::Contains("takes in up to 64 packets at once, not 65"), terse::usage_error);
}

namespace {

/// Compares a reduction whose blocks join up to `Near` tiles with the host's.
template <index_t Near>
void compare_joined(const Range& range, Units units) {
  using E = terse::executor::emulated;
  const auto values = random_floats(arena_of(range), 77);
  const auto mask = random_mask(arena_of(range), 78);
  const auto given = upload<E>(values);
  const auto words = upload<E>(mask);
  const auto expected =
      reduced<terse::executor::host, terse::RootMeanSquare>(range, units, Read{values.data()}, mask);
  terse::buffer<float, E::memory> scratch(terse::reduction_scratch<terse::RootMeanSquare>(E{}, range, units),
                                          terse::uninitialized);
  terse::buffer<float, E::memory> scales(units.in_range(range));
  terse::buffer<std::uint32_t, E::memory> bad(1);
  const index_t before = E::launches();
  terse::detail::reduce_tiles<terse::RootMeanSquare, false, Near>(
      E{}, range, units, mask_of<E>(words), terse::NoPackets{}, Read{given.data()}, nullptr, scratch.data(),
      scales.data(), bad.data());
  CHECK(download<E>(scales) == expected.scales);
  CHECK(E::launches() - before == 2);
}

}  // namespace

TEST_CASE("a grid executor joins tiles by halves, by however many blocks") {
  const Range some_tiles = range_of({100, 40 * 4096 + 17, 5, 9 * 4096});
  for (const Units units : {Units{}, Units{0, true}, Units{20 * 4096, false}})
    compare_joined<2>(some_tiles, units);
  compare_joined<512>(range_of({5, 600 * 4096 + 17, 4096}), Units{0, true});
}

TEST_CASE("kernels of few pieces and packets have few arguments, and all give the host's results") {
  using E = terse::executor::emulated;
  using Code = terse::Dense::Code;
  for (const int pieces : {1, 32, 33, 129}) {
    const Range range = range_of(std::vector<index_t>(static_cast<std::size_t>(pieces), 5));
    const auto floats = random_floats(6 * pieces + 64, 90);
    const auto given = upload<E>(floats);
    for (const int packets : {1, 32, 33, 64}) {
      CAPTURE(pieces);
      CAPTURE(packets);
      const auto sums = [&]<class Ex>(Ex, const float* from) {
        std::vector<terse::Packets<Code>::Source> sources;
        for (int k = 0; k < packets; ++k)
          sources.push_back({reinterpret_cast<const std::byte*>(from + 2 * (k % 32)), nullptr, 0.5F});
        return decoded<Ex, Code>(range, sources, {});
      };
      E::most_argument_bytes() = 0;
      CHECK(sums(E{}, given.data()) == sums(terse::executor::host{}, floats.data()));
      // A range of 129 pieces takes a kernel for many and one for the last.
      CHECK((E::most_argument_bytes() <= 4096) == (pieces <= 32 && packets <= 32));
    }
  }
}

TEST_CASE("a grid executor puts values of any number into its memory, as arguments of up to 4 KiB") {
  using E = terse::executor::emulated;
  for (const index_t count : {0, 1, 5, 127, 128, 129, 4063, 4064, 4065, 10000}) {
    CAPTURE(count);
    std::vector<std::byte> bytes(static_cast<std::size_t>(count));
    for (std::size_t k = 0; k < bytes.size(); ++k) bytes[k] = static_cast<std::byte>(k * 7 % 251);
    auto there = upload<E>(std::vector<std::byte>(bytes.size() + 1, std::byte{0xEE}));
    const index_t before = E::launches();
    E::most_argument_bytes() = 0;
    terse::put(E{}, terse::view<const std::byte>(bytes), terse::out<E, std::byte>(there.data(), count));
    CHECK(E::launches() - before == (count + 4063) / 4064);
    CHECK(E::most_argument_bytes() <= (count == 0 ? 0 : count <= 128 ? 144 : 4096));
    auto found = download<E>(there);
    CHECK(found.back() == std::byte{0xEE});
    found.pop_back();
    CHECK(found == bytes);
  }
}

namespace {

template <terse::Tuning tuned>
struct Tuned : terse::executor::emulated {
  static constexpr terse::Tuning tuning = tuned;
};

/// What wide kernels of each kind leave: a statistic, codes, what was handed over, and an update from what came in.
template <terse::Executor E>
auto left_by_wide_kernels(const Range& range) {
  const auto given = upload<E>(random_floats(arena_of(range), 80));
  auto y = upload<E>(random_floats(arena_of(range), 81));
  const auto words = upload<E>(random_mask(arena_of(range), 82));
  const Units units{4096, false};
  const auto mask = mask_of<E>(words);
  terse::buffer<float, typename E::memory> scratch(
      terse::reduction_scratch<terse::MeanAbs>(E{}, range, units));
  terse::buffer<float, typename E::memory> scales(units.in_range(range));
  terse::buffer<std::uint32_t, typename E::memory> bad(1);
  auto wire =
      upload<E>(std::vector<std::byte>(static_cast<std::size_t>(wire_bytes<2>(range)), std::byte{0xFF}));
  const Draw draw = Draw::local(3, 1, 4, terse::Purpose::quantization);
  terse::reduce<terse::MeanAbs>(E{}, range, units, mask, terse::NoPackets{},
                                HandingAddTo{{given.data(), y.data(), 0}}, scratch.all(), scales.all(),
                                bad.data());
  terse::pack<2, true>(E{}, range, units, mask, HandedTakeSign{{y.data(), 0}},
                       terse::in<E, float>(scales.all()), wire.data(), draw);
  terse::for_each(E{}, range, ScaleBy{y.data(), y.data(), 2});
  return std::tuple(download<E>(scales), download<E>(wire), download<E>(y));
}

}  // namespace

TEST_CASE("tunings leave the same bits") {
  for (const std::vector<index_t>& counts : {std::vector<index_t>{100, 2 * 4096 + 777, 64}, {7 * 4096}}) {
    const Range range = range_of(counts);
    const auto expected = left_by_wide_kernels<terse::executor::emulated>(range);
    CHECK(left_by_wide_kernels<Tuned<terse::Tuning{.threads = 32, .rows = 1}>>(range) == expected);
    CHECK(left_by_wide_kernels<Tuned<terse::Tuning{.threads = 128, .rows = 8}>>(range) == expected);
    CHECK(left_by_wide_kernels<Tuned<terse::Tuning{.threads = 256, .rows = 2, .resident_blocks = 2}>>(
              range) == expected);
    CHECK(left_by_wide_kernels<Tuned<terse::Tuning{.few_tiles = 0}>>(range) == expected);
    CHECK(left_by_wide_kernels<Tuned<terse::Tuning{}>>(range) == expected);
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
