// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "terse/compressor/cast.hpp"
#include "terse/compressor/dense.hpp"
#include "terse/compressor/min_max.hpp"
#include "terse/compressor/natural.hpp"
#include "terse/compressor/qsgd.hpp"
#include "terse/compressor/sign.hpp"
#include "terse/compressor/ternary.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/error_feedback/ef21.hpp"
#include "terse/laws/device.hpp"

// Every quantizer of the library in the device's kernels, against the host.

namespace {

using namespace terse;  // NOLINT: a test of the library's names

template <class C, class F = laws::DefaultFeedback<C>>
void holds() {
  const laws::Report report = laws::check_device<C, F>();
  CHECK_MESSAGE(report, report.text());
}

/// Gives other codes where nobody but the emulated device's kernels ask.
struct Drifting : quantizer::SignBit<MeanAbs> {
  TERSE_HD static std::uint32_t code(float value, float scale, std::uint32_t random) {
    static int calls = 0;
    return quantizer::SignBit<MeanAbs>::code(value, scale, random) ^ (++calls % 30000 == 0 ? 1U : 0U);
  }
};

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
  holds<Uniform<8, Nearest, Symmetric, TwoRootMeanSquares, Whole>>();
  holds<MinMax<3, Stochastic, PerBlock<128>>>();
}

TEST_CASE("levels at random") {
  holds<Qsgd<4>>();
  holds<Ternary<ClippedMaxAbs, Whole>>();
  holds<Natural<>>();
}

TEST_CASE("small floats, and errors that are differences") {
  holds<Cast<bf16>>();
  holds<Cast<fp16, MaxAbs>>();
  holds<Cast<e4m3, MaxAbs>>();
  holds<ScaledSign<MeanAbs>, Ef21>();
}

TEST_CASE("other bits are noticed") {
  const laws::Report report = laws::check_device<Packed<Drifting, PerSegment>, Residual>();
  CHECK(report.broke("the host's bits"));
}

}  // namespace
