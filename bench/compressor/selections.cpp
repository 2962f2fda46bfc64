// SPDX-License-Identifier: Apache-2.0

#include "terse/bench/compressor.hpp"
#include "terse/compressor/chain.hpp"
#include "terse/compressor/random_k.hpp"
#include "terse/compressor/threshold.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/compressor/uniform.hpp"

namespace {

using namespace terse;

/// CocktailSGD's: a tenth at random, of that the largest fifth, four bits each.
using Cocktail = Chain<Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<128>>, Strata<false>, Largest>;

TERSE_BENCHMARK_COMPRESSOR_NAMED("TopK 1 %", TopK<>{.selection = {.ratio = 0.01}});
TERSE_BENCHMARK_COMPRESSOR_NAMED("TopK 0.1 %", TopK<>{.selection = {.ratio = 0.001}});
TERSE_BENCHMARK_COMPRESSOR_NAMED("RandomK 1 %", RandomK{.selection = {.ratio = 0.01}});
// One normal number in a hundred is that large; of sums with errors, one in ten.
TERSE_BENCHMARK_COMPRESSOR_NAMED("Threshold 2.6",
                                 Threshold<>{.selection = {.threshold = 2.576F, .most_ratio = 0.25}});
TERSE_BENCHMARK_COMPRESSOR_NAMED("Chain 10 % > 20 % > 4 bits",
                                 Cocktail{.selection = {.first = {.ratio = 0.1}, .second = {.ratio = 0.2}}});

}  // namespace
