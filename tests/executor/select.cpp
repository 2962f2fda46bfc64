// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "terse/executor/select.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace {

using terse::index_t;
using terse::executor::host;
using Values = std::vector<float>;
using Positions = std::vector<std::uint32_t>;

/// All positions: larger magnitudes first, equal ones in order.
Positions ranked(terse::in<host> values) {
  Positions positions(static_cast<std::size_t>(values.size()));
  std::iota(positions.begin(), positions.end(), 0U);
  std::stable_sort(positions.begin(), positions.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::fabs(values[a]) > std::fabs(values[b]);
  });
  return positions;
}

Positions selected(terse::in<host> values, index_t k) {
  // Exactly what is asked for, so that the address sanitizer sees what lies beyond.
  Values scratch(static_cast<std::size_t>(terse::select_scratch(values.size(), k)), 1.0F);
  Positions positions(static_cast<std::size_t>(k));
  terse::select_top(host{}, values, k, scratch, positions);
  return positions;
}

void check_against(const Positions& order, terse::in<host> values, index_t k) {
  Positions expected(order.begin(), order.begin() + k);
  std::sort(expected.begin(), expected.end());
  const bool same = selected(values, k) == expected;
  CAPTURE(values.size());
  CAPTURE(k);
  CHECK(same);
}

void check_all(terse::in<host> values) {
  const Positions order = ranked(values);
  const index_t n = values.size();
  for (const index_t k : {index_t{0}, index_t{1}, n / 100, n / 10, n / 4, n / 4 + 1, n / 2, n - 1, n})
    if (k >= 0 && k <= n) check_against(order, values, k);
}

template <class Make>
Values filled(index_t n, Make make) {
  std::mt19937 random(7);
  Values values(static_cast<std::size_t>(n));
  for (index_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = make(i, random);
  return values;
}

float normal(std::mt19937& random) { return std::normal_distribution<float>()(random); }

/// 1 where the sample of n elements looks.
std::vector<char> sampled(index_t n) {
  std::vector<char> seen(static_cast<std::size_t>(n));
  for (index_t b = 0; b < terse::detail::sample_size(n) / terse::detail::sample_block; ++b)
    std::fill_n(seen.begin() + terse::detail::sample_begin(n, b), terse::detail::sample_block, char{1});
  return seen;
}

constexpr index_t sizes[] = {0, 1, 2, 7, 63, 64, 65, 1000, 4095, 16383, 16384, 16385, 70001, 300000};
constexpr index_t sampled_sizes[] = {16384, 70001, 300000};

}  // namespace

TEST_CASE("select_top takes the largest magnitudes, of equal ones the first") {
  for (const index_t n : sizes) check_all(filled(n, [](index_t, auto& random) { return normal(random); }));
}

TEST_CASE("select_top takes the first of many ties") {
  for (const index_t n : sizes) {
    check_all(filled(n, [](index_t, auto& random) { return static_cast<float>(random() % 5) - 2; }));
    check_all(filled(n, [](index_t, auto& random) { return random() % 200 == 0 ? normal(random) : 0.0F; }));
    check_all(filled(n, [](index_t, auto&) { return -3.0F; }));
  }
}

TEST_CASE("select_top holds zeros of both signs equal") {
  for (const index_t n : sizes)
    check_all(filled(n, [](index_t, auto& random) { return random() % 2 == 0 ? 0.0F : -0.0F; }));
}

TEST_CASE("select_top knows every finite number") {
  for (const index_t n : sizes) {
    check_all(filled(n, [](index_t, auto& random) {  // denormals
      return std::bit_cast<float>(static_cast<std::uint32_t>(random() & 0x807FFFFF));
    }));
    check_all(filled(n, [](index_t, auto& random) {
      const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      return std::isfinite(x) ? x : std::numeric_limits<float>::max();
    }));
  }
}

TEST_CASE("select_top needs no particular order") {
  for (const index_t n : sizes) {
    check_all(filled(n, [](index_t i, auto&) { return static_cast<float>(i); }));
    check_all(filled(n, [n](index_t i, auto&) { return static_cast<float>(i - n); }));
  }
}

TEST_CASE("select_top starts at any element") {
  const Values values = filled(70001, [](index_t, auto& random) { return normal(random); });
  for (index_t offset = 1; offset < 16; offset += 7)
    check_all(terse::in<host>(values).part(offset, 70001 - offset));
}

TEST_CASE("select_top is exact where its sample misleads") {
  for (const index_t n : sampled_sizes) {
    const std::vector<char> seen = sampled(n);
    const auto at = [&](index_t i) { return seen[static_cast<std::size_t>(i)] != 0; };
    // The sample sees nothing large, only what is large, and zeros where the rest is equal.
    check_all(filled(n, [&](index_t i, auto& random) { return normal(random) * (at(i) ? 1e-6F : 1.0F); }));
    check_all(filled(n, [&](index_t i, auto& random) { return normal(random) * (at(i) ? 1.0F : 1e-6F); }));
    check_all(filled(n, [&](index_t i, auto&) { return at(i) ? 0.0F : 1.0F; }));
  }
}

TEST_CASE("select_top is exact where about k elements are above a magnitude that most have") {
  for (const index_t n : sampled_sizes)
    for (const index_t percent : {101, 110, 130}) {
      const index_t k = n / 100, more = k * percent / 100;
      Values values = filled(n, [](index_t, auto&) { return 1.0F; });
      for (index_t j = 0; j < more; ++j)
        values[static_cast<std::size_t>(j * n / more)] = 2.0F + static_cast<float>(j * 7 % more);
      const Positions order = ranked(values);
      for (const index_t picks : {k - 1, k, more - 1, more, more + 1}) check_against(order, values, picks);
    }
}

TEST_CASE("select_top is exact for any number of candidates") {
  for (const index_t n : sampled_sizes) {
    const std::vector<char> seen = sampled(n);
    const auto seen_count = std::count(seen.begin(), seen.end(), char{1});
    for (const index_t k : {n / 20, n / 10, n / 5})
      for (const index_t large : {k - 1, k, k + 1, terse::detail::candidates(k) - 1,
                                  terse::detail::candidates(k), terse::detail::candidates(k) + 1}) {
        // All that the sample sees is large and equal, and so many besides are just as large.
        index_t besides = large - seen_count;
        if (besides < 0 || large > n) continue;
        const Values values = filled(n, [&](index_t i, auto&) {
          return seen[static_cast<std::size_t>(i)] != 0 || besides-- > 0 ? 2.0F : 1.0F;
        });
        check_against(ranked(values), values, k);
      }
  }
}

TEST_CASE("select_scratch grows with either argument") {
  for (const index_t n : {0, 1000, 16383, 16384, 100000, 1 << 24})
    for (const index_t k : {0, 1, 100, 4096, 20000, 1 << 20}) {
      CHECK(terse::select_scratch(n, k) <= terse::select_scratch(n + 1, k));
      CHECK(terse::select_scratch(n, k) <= terse::select_scratch(n, k + 1));
    }
}

TEST_CASE("select_above takes the first that reach the threshold") {
  for (const index_t n : sizes) {
    const Values values = filled(n, [](index_t, auto& random) { return normal(random); });
    for (const float threshold :
         {-1.0F, -0.0F, 0.0F, 1e-40F, 0.5F, n > 5 ? -std::fabs(values[5]) : 2.0F,
          n > 5 ? std::fabs(values[5]) : 2.0F, 3.0F, std::numeric_limits<float>::max(),
          std::numeric_limits<float>::infinity()}) {
      Positions all;
      for (index_t i = 0; i < n; ++i)
        if (std::fabs(values[static_cast<std::size_t>(i)]) >= threshold)
          all.push_back(static_cast<std::uint32_t>(i));
      const auto found = static_cast<index_t>(all.size());
      for (const index_t room : {index_t{0}, index_t{1}, index_t{64}, found - 1, found, found + 1, n}) {
        if (room < 0) continue;
        Positions positions(static_cast<std::size_t>(room), 0xFFFFFFFF);
        const index_t written = terse::select_above(host{}, values, threshold, positions);
        CAPTURE(n);
        CAPTURE(threshold);
        CAPTURE(room);
        REQUIRE(written == std::min(found, room));
        const bool same = std::equal(positions.begin(), positions.begin() + written, all.begin());
        CHECK(same);
        const bool rest_untouched = std::all_of(positions.begin() + written, positions.end(),
                                                [](std::uint32_t p) { return p == 0xFFFFFFFF; });
        CHECK(rest_untouched);
      }
    }
  }
}
