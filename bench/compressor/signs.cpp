// SPDX-License-Identifier: Apache-2.0

#include "terse/bench/compressor.hpp"
#include "terse/compressor/sign.hpp"

namespace {

using namespace terse;

TERSE_BENCHMARK_COMPRESSOR(Sign);
TERSE_BENCHMARK_COMPRESSOR(ScaledSign<MeanAbs>);
TERSE_BENCHMARK_COMPRESSOR(ScaledSign<RootMeanSquare, PerBlock<4096>>);
TERSE_BENCHMARK_COMPRESSOR(TwoMeanSign<>);

}  // namespace
