// SPDX-License-Identifier: Apache-2.0
#include "laws/support.hpp"
#include "terse/compressor/cast.hpp"
#include "terse/compressor/min_max.hpp"
#include "terse/compressor/natural.hpp"
#include "terse/compressor/qsgd.hpp"
#include "terse/compressor/sign.hpp"
#include "terse/compressor/ternary.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/error_feedback/stored_residual.hpp"

// Every quantizer of the library through every law, each with some granularity.

namespace {

using namespace terse;  // NOLINT: a test of the library's names

TEST_CASE("signs") {
  holds<Sign>();
  holds<ScaledSign<MeanAbs, PerBlock<128>>>();
  holds<ScaledSign<RootMeanSquare, Whole>>();
  holds<TwoMeanSign<>>();
  holds<UnitSign>();
  holds<UnitTernary>();
}

TEST_CASE("even levels") {
  holds<Uniform<4>>();
  holds<Uniform<2, Stochastic, Symmetric, MaxAbs, PerBlock<128>>>();
  holds<Uniform<1, Stochastic, Symmetric>>();
  holds<Uniform<8, Nearest, Symmetric, TwoRootMeanSquares, Whole>>();
  holds<MinMax<8>>();
  holds<MinMax<3, Stochastic, PerBlock<128>>>();
}

TEST_CASE("levels at random") {
  holds<Qsgd<4>>();
  holds<Qsgd<2, MaxAbs, PerSegment>>();
  holds<Ternary<>>();
  holds<Ternary<ClippedMaxAbs, Whole>>();
  holds<Natural<>>();
}

TEST_CASE("small floats") {
  holds<Cast<bf16>>();
  holds<Cast<fp16>>();
  holds<Cast<e4m3, MaxAbs>>();
}

TEST_CASE("errors in fewer bits") {
  using Blocks = Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<128>>;
  holds<Blocks, Bf16Residual>();
  holds<Blocks, Int8Residual>();
}

}  // namespace
