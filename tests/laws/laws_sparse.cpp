// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "laws/support.hpp"
#include "terse/compressor/chain.hpp"
#include "terse/compressor/random_k.hpp"
#include "terse/compressor/threshold.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/compressor/uniform.hpp"

// Every selection of the library through every law.

namespace {

using namespace terse;  // NOLINT: a test of the library's names

TEST_CASE("the largest") {
  holds(TopK<>{.selection = {.ratio = 0.1}});
  holds(TopK<Whole>{.selection = {.ratio = 0.05}});
  holds(WarmupTopK<>{.selection = {.ratio = 0.02, .warmup_steps = 100}});
}

TEST_CASE("those above a threshold") {
  holds(Threshold<>{.selection = {.threshold = 0.5F, .most_ratio = 1}});
  holds(Threshold<Whole>{.selection = {.threshold = 0.01F, .most_ratio = 0.1}});
}

TEST_CASE("random ones") {
  holds(RandomK{.selection = {.ratio = 0.1}});
  holds(UnbiasedRandomK{.selection = {.ratio = 0.1}});
}

TEST_CASE("chains") {
  using Coder = Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<128>>;
  const laws::Options few{.draws = 500};
  holds(Chain<Dense, Strata<false>, Largest>{.selection = {{.ratio = 0.3}, {.ratio = 0.3}}}, few);
  holds(Chain<Coder, Strata<false>, Largest>{.selection = {{.ratio = 0.3}, {.ratio = 0.3}}}, few);
  holds(
      Chain<Uniform<4>, Largest, Above>{.selection = {{.ratio = 0.3}, {.threshold = 0.1F, .most_ratio = 1}}});
  // Each selection draws for itself: else some elements would never be picked.
  holds(Chain<Dense, Strata<false>, Strata<false>>{.selection = {{.ratio = 0.5}, {.ratio = 0.5}}}, few);
}

TEST_CASE("nothing at all") { holds<Dense>(); }

}  // namespace
