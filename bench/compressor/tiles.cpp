// SPDX-License-Identifier: Apache-2.0

#include "terse/bench/compressor.hpp"
#include "terse/compressor/tiled.hpp"

namespace {

using namespace terse;

constexpr double few = 32.0 / 4096;

TERSE_BENCHMARK_COMPRESSOR_NAMED("TopK 32 of 4096", TopK<>{.selection = {.ratio = few}});
TERSE_BENCHMARK_COMPRESSOR_NAMED("Tiles TopK 32 of 4096", Tiles<>{.inner = {.selection = {.ratio = few}}});
TERSE_BENCHMARK_COMPRESSOR_NAMED("Dct TopK 32 of 4096", Dct<>{.inner = {.selection = {.ratio = few}}});

}  // namespace
