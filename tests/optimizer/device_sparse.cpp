// SPDX-License-Identifier: Apache-2.0
#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include "device_sparse.inc"

#include "optimizer/launches.hpp"

TEST_CASE("sparse steps take as many launches and copies whatever the number of ranks") {
  // docs/cuda.md says so.
  Layout few, small, large;
  few.add({"exact", {300}, 1, 1, false});
  for (int k = 0; k < 6; ++k) few.add({"t" + std::to_string(k), {60 + k}});
  small.add({"exact", {1100}, 1, 1, false});
  for (int k = 0; k < 20; ++k) small.add({"t" + std::to_string(k), {60 + k}});
  large.add({"exact", {600}, 1, 1, false}).add({"a", {4500}}).add({"b", {70}});
  const auto gathered = [](const auto& compressor, const Layout& layout, int ranks) {
    using C = std::remove_cvref_t<decltype(compressor)>;
    return launches_of(ErrorFeedbackSgd<C, HeavyBall, AllGather>{.compressor = compressor}, layout, ranks);
  };
  const auto scattered = [](const auto& compressor, const Layout& layout, int ranks) {
    using C = std::remove_cvref_t<decltype(compressor)>;
    return launches_of(ErrorFeedbackSgd<C, HeavyBall, ScatterGather>{.compressor = compressor}, layout,
                       ranks);
  };
  const TopK<> lists{.selection = {.ratio = 0.005}}, bitmaps{.selection = {.ratio = 0.3}};
  const Threshold<> above{.selection = {.threshold = 3.0F, .most_ratio = 0.5}};
  const Picks<TwoMagnitudeSign<>> signs{.selection = {.ratio = 0.005}};
  const Tiles<64, Picks<TwoMagnitudeSign<>>> tiles{.inner = {.selection = {.ratio = 0.005}}};
  const RandomK random{.selection = {.ratio = 0.01}};
  for (const int ranks : {2, 16}) {
    CAPTURE(ranks);
    CHECK(gathered(bitmaps, small, ranks) == 12);
    CHECK(scattered(bitmaps, small, ranks) == 19);
    CHECK(gathered(random, small, ranks) == 13);
    CHECK(scattered(random, small, ranks) == 21);
  }
  for (const int ranks : {2, 3}) CHECK(gathered(tiles, few, ranks) == 12);
  CHECK(scattered(tiles, few, 2) == 19);
  CHECK(scattered(signs, few, 2) == 19);
  for (const int ranks : {2, 8}) {
    CAPTURE(ranks);
    CHECK(gathered(lists, large, ranks) == 18);
    CHECK(gathered(bitmaps, large, ranks) == 19);
    CHECK(gathered(above, large, ranks) == 20);
    CHECK(gathered(cocktail(0.95, 0.3), large, ranks) == 23);
    CHECK(scattered(bitmaps, large, ranks) == 19);
  }
  CHECK(scattered(lists, Layout::flat(8000), 2) == 16);
  CHECK(scattered(lists, Layout::flat(8400), 2) == 28);
}

TEST_CASE("the first fault is that of the lowest unit, however many there are") {
  detail::Findings findings;
  detail::Report{&findings, index_t{1} << 20}.note(0, detail::SectionFault::descending);
  detail::Report{&findings, 3}.last().note(7, detail::SectionFault::not_finite);
  CHECK(findings.fault() == detail::SectionFault::not_finite);
  detail::Report{&findings, 3}.next().note((index_t{1} << 32) - 1, detail::SectionFault::beyond_end);
  CHECK(findings.fault() == detail::SectionFault::beyond_end);
  detail::Report{&findings, 2}.last().note((index_t{1} << 32) - 1, detail::SectionFault::goes_on);
  CHECK(findings.fault() == detail::SectionFault::goes_on);
  detail::Report{&findings, index_t{1} << 30}.note(0, detail::SectionFault::descending);
  CHECK(findings.fault() == detail::SectionFault::goes_on);
}

TEST_CASE("a tile's numbers are divided by its sides without a division") {
  int wrong = 0;
  for (int by = 1; by <= 64; ++by)
    for (int number = 0; number <= 4096; ++number) {
      const detail::Divisor divisor(by);
      wrong += divisor.quotient(number) != number / by || divisor.rest(number) != number % by ? 1 : 0;
    }
  CHECK(wrong == 0);
}
