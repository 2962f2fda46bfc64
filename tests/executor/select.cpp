// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "terse/device/emulated.hpp"
#include "terse/executor/host.hpp"

#define TERSE_TEST_EXECUTORS terse::executor::host, terse::executor::emulated
#define TERSE_TEST_SLOW terse::executor::emulated

#include "select.inc"

namespace {

struct Reaches {
  const float* values;
  float least;
  bool operator()(terse::index_t i) const { return std::fabs(values[i]) >= least; }
};

/// Numbers become the sums of those before them, and the last one the sum of all.
struct SumKernel {
  static constexpr bool cooperative = true;
  struct Shared {
    bool last;
  };
  std::uint64_t* numbers;
  terse::index_t count;
  std::uint32_t* done;

  template <class Block>
  void operator()(Block& block, Shared& shared) const {
    for (terse::index_t i = block.index(); i < count; i += 3)
      if (block.thread() == i % 256) numbers[i] += 1;
    if (!terse::detail::is_last_block(block, shared.last, done, 3)) return;
    const std::uint64_t all = terse::detail::sum_before(block, numbers, count);
    if (block.thread() == 77) numbers[count] = all;
  }
};

}  // namespace

TEST_CASE("the last block sums up what all have left") {
  using E = terse::executor::emulated;
  for (const index_t count : {1, 2047, 2048, 2049, 5000}) {
    std::vector<std::uint64_t> numbers(static_cast<std::size_t>(count) + 1), sums(numbers.size());
    for (std::size_t k = 0; k < numbers.size(); ++k) numbers[k] = (k * 2654435761) << 8;
    terse::buffer<std::uint64_t, E::memory> there(count + 1);
    terse::buffer<std::uint32_t, E::memory> done(1);
    terse::upload(terse::view<const std::uint64_t>(numbers), there.all());
    E{}.launch(SumKernel{there.data(), count, done.data()}, 3);
    terse::download(terse::view<const std::uint64_t, E::memory>(there.all()),
                    terse::view<std::uint64_t>(sums));
    std::uint64_t before = 0;
    for (std::size_t k = 0; k < sums.size(); ++k) {
      REQUIRE(sums[k] == before);
      before += numbers[k] + 1;
    }
    std::uint32_t left = 1;
    terse::download(terse::view<const std::uint32_t, E::memory>(done.all()),
                    terse::view<std::uint32_t>(&left, 1));
    CHECK(left == 0);
  }
}

TEST_CASE("few elements are selected by one launch") {
  using E = terse::executor::emulated;
  const auto launches = [](terse::index_t count) {
    terse::buffer<float, E::memory> values(count), scratch(terse::select_scratch(E{}, count, 5));
    terse::buffer<std::uint32_t, E::memory> positions(5);
    const terse::index_t before = E::launches();
    terse::select_top(E{}, terse::in<E>(values.all()), 5, scratch.all(), positions.all());
    const terse::index_t top = E::launches() - before;
    terse::list_picks(E{}, Reaches{values.data(), 1}, count, scratch.all(), positions.all());
    return std::pair(top, E::launches() - before - top);
  };
  CHECK(launches(4096) == std::pair<terse::index_t, terse::index_t>(1, 1));
  CHECK(launches(4097) == std::pair<terse::index_t, terse::index_t>(6, 3));
}
