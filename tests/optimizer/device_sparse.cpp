// SPDX-License-Identifier: Apache-2.0
#include "terse/executor/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include "device_sparse.inc"

#include "optimizer/launches.hpp"

TEST_CASE("sparse steps take as many launches and copies whatever the number of ranks") {
  Layout small, large;
  for (int k = 0; k < 20; ++k) small.add({"t" + std::to_string(k), {40 + k}, 1, 1, k % 4 != 0});
  large.add({"a", {9000}}).add({"b", {20}, 1, 1, false}).add({"c", {70}});
  const TopK<> lists{.selection = {.ratio = 0.01}}, bitmaps{.selection = {.ratio = 0.1}};
  const Threshold<> above{.selection = {.threshold = 3.0F, .most_ratio = 0.5}};
  const RandomK random{.selection = {.ratio = 0.01}};
  for (const int ranks : {2, 4, 8, 16}) {
    CAPTURE(ranks);
    const auto all = [&](const auto& compressor, const Layout& layout) {
      using C = std::remove_cvref_t<decltype(compressor)>;
      const index_t gathered =
          launches_of(ErrorFeedbackSgd<C, HeavyBall, AllGather>{.compressor = compressor}, layout, ranks);
      return std::pair(gathered, launches_of(ErrorFeedbackSgd<C, HeavyBall, ScatterGather>{.compressor = compressor},
                                             layout, ranks));
    };
    MESSAGE(ranks);
    const auto say = [&](auto pair) { MESSAGE(pair.first << " " << pair.second); };
    say(all(lists, small)); say(all(lists, large)); say(all(bitmaps, large)); say(all(above, large)); say(all(random, large));
  }
}
