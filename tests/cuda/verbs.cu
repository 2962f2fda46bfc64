// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"
#include "terse/device/cuda.cuh"

namespace {

/// Few elements come to the kernels for many tiles, too, as on the emulated device.
struct SixTilesAreMany : terse::executor::cuda {
  static constexpr terse::Tuning tuning{.few_tiles = 6};
};

}  // namespace

#define TERSE_TEST_EXECUTORS SixTilesAreMany

#include "executor/verbs.inc"

TEST_CASE("a kernel answers for itself, not for an earlier error") {
  terse::buffer<float, terse::memory::device> place(1);
  CHECK(cudaSetDevice(1 << 20) != cudaSuccess);
  CHECK_NOTHROW(terse::fill(terse::executor::cuda{}, place.all(), 1.0F));
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
}

TEST_CASE("an executor is refused where another device is current") {
  const terse::executor::cuda elsewhere{nullptr, 1 << 20};
  terse::buffer<float, terse::memory::device> place(1);
  CHECK_THROWS_WITH_AS(terse::fill(elsewhere, place.all(), 1.0F),
                       doctest::Contains("call cudaSetDevice(1048576) in each thread that uses it"),
                       terse::usage_error);
}
