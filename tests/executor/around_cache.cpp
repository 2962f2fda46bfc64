// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <tuple>
#include <vector>

#include "terse/compressor/dense.hpp"
#include "terse/executor/host.hpp"

// Stores around the cache. Compiled for AVX2, without which there are none.

using namespace terse;

namespace {

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

/// Two streams that are only written, of 4 and of 2 bytes, between others.
struct Splits {
  const float* from;
  float* written;
  std::uint16_t* narrow;
  float* held;
  index_t begin;

  using StreamsOf = Splits;
  auto streams() { return reads(from) + writes(written) + updates(held, begin) + writes(narrow); }
  void operator()(const Piece& piece, index_t i, bool keep, float arrived = 0.5F) const {
    written[i] = keep ? from[i] * static_cast<float>(piece.segment + 1) : arrived;
    narrow[i] = static_cast<std::uint16_t>(static_cast<std::int32_t>(written[i] * 1000.0F) & 0xFFFF);
    held[i - begin] += arrived;
  }
};
/// The same functor without streams that verbs know of.
struct SplitsUnseen : Splits {};
static_assert(detail::stores_around_cache && detail::OnlyWrites<Splits> && !detail::OnlyWrites<SplitsUnseen>);

/// Runs F on arrays that begin `shift` elements behind a cache line. Returns the arrays, with what lies around them.
template <class F, class Incoming>
auto left_by(const Range& range, const std::vector<float>& from, const std::uint64_t* mask,
             const Incoming& incoming, index_t shift) {
  const auto size = static_cast<index_t>(from.size());
  buffer<float> written(size + 64), held(size + 64);
  buffer<std::uint16_t> narrow(size + 64);
  std::fill_n(written.data(), size + 64, -7.0F);
  std::fill_n(held.data(), size + 64, 3.0F);
  std::fill_n(narrow.data(), size + 64, std::uint16_t{77});
  REQUIRE(reinterpret_cast<std::uintptr_t>(written.data()) % 64 == 0);
  REQUIRE(reinterpret_cast<std::uintptr_t>(narrow.data()) % 64 == 0);
  F f;
  static_cast<Splits&>(f) = {from.data(), written.data() + shift, narrow.data() + 2 * shift,
                             held.data() + shift, range.begin_offset()};
  for_each(executor::host{}, range, HostMask{mask}, incoming, f);
  return std::tuple(std::vector<float>(written.data(), written.data() + size + 64),
                    std::vector<float>(held.data(), held.data() + size + 64),
                    std::vector<std::uint16_t>(narrow.data(), narrow.data() + size + 64));
}

}  // namespace

TEST_CASE("what is only written is the same on its way around the cache") {
  for (const index_t long_one : {index_t{700}, detail::around_cache_from + 130}) {
    Layout layout;
    layout.add({"a", {65}}).add({"b", {long_one}}).add({"c", {1}}).add({"d", {64}});
    const Range range = layout.range();
    const index_t size = layout.size() + 64;
    std::vector<float> from(at(size)), arrived(from.size());
    std::vector<std::uint64_t> some(at(size / 64 + 1));
    std::mt19937_64 random(90);
    for (std::size_t i = 0; i < from.size(); ++i) {
      from[i] = static_cast<float>(random() % 4096) / 64 - 32;
      arrived[i] = static_cast<float>(random() % 4096) / 64 - 32;
    }
    for (std::uint64_t& word : some) word = random() % 3 == 0 ? ~std::uint64_t{0} : random();
    const Packets<Dense::Code>::Source source{reinterpret_cast<const std::byte*>(arrived.data()), nullptr,
                                              0.25F};
    const Packets<Dense::Code> packets{&source, 1, {}};
    const auto compare = [&](const std::uint64_t* mask, const auto& incoming, index_t shift) {
      CAPTURE(long_one);
      CAPTURE(shift);
      CHECK(left_by<Splits>(range, from, mask, incoming, shift) ==
            left_by<SplitsUnseen>(range, from, mask, incoming, shift));
    };
    compare(nullptr, NoPackets{}, 0);
    compare(some.data(), packets, 0);
    compare(nullptr, packets, 1);
  }
}

int main(int argc, char** argv) {
  if (!__builtin_cpu_supports("avx2")) {
    std::puts("skipped: this processor has no AVX2");
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
