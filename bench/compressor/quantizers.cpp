// SPDX-License-Identifier: Apache-2.0

#include "terse/bench/compressor.hpp"
#include "terse/compressor/min_max.hpp"
#include "terse/compressor/natural.hpp"
#include "terse/compressor/qsgd.hpp"
#include "terse/compressor/ternary.hpp"
#include "terse/compressor/uniform.hpp"

namespace {

using namespace terse;

TERSE_BENCHMARK_COMPRESSOR(Uniform<2>);
TERSE_BENCHMARK_COMPRESSOR(Uniform<4>);
TERSE_BENCHMARK_COMPRESSOR(Uniform<8>);
TERSE_BENCHMARK_COMPRESSOR_NAMED("Uniform<4, Stochastic, PerBlock<512>>",
                                 Uniform<4, Stochastic, Symmetric, MaxAbs, PerBlock<512>>{});
TERSE_BENCHMARK_COMPRESSOR_NAMED("Uniform<8, Stochastic>", Uniform<8, Stochastic, Symmetric>{});
TERSE_BENCHMARK_COMPRESSOR(MinMax<4>);
TERSE_BENCHMARK_COMPRESSOR(MinMax<8>);
TERSE_BENCHMARK_COMPRESSOR(Qsgd<4>);
TERSE_BENCHMARK_COMPRESSOR(Ternary<>);
TERSE_BENCHMARK_COMPRESSOR(Natural<>);

}  // namespace
