// SPDX-License-Identifier: Apache-2.0

#include "terse/bench/compressor.hpp"
#include "terse/compressor/cast.hpp"

namespace {

using namespace terse;

TERSE_BENCHMARK_COMPRESSOR(Cast<bf16>);
TERSE_BENCHMARK_COMPRESSOR(Cast<fp16, MaxAbs>);
TERSE_BENCHMARK_COMPRESSOR(Cast<e4m3, MaxAbs>);
TERSE_BENCHMARK_COMPRESSOR(Cast<e5m2, MaxAbs>);

}  // namespace
