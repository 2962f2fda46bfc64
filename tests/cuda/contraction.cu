// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <cstdio>

#include "terse/core/config.hpp"

// That device code is compiled with the flags that give it the host's bits: a product and a sum are rounded apart, not
// contracted into one operation. Exits with 77 where there is no device.

TERSE_NUMERICS_BEGIN

namespace {

// (1 + e)^2 - (1 + 2 e) for e = 2^-12 is e^2 exactly when contracted, and 0 when the square is rounded first: to 24 bits
// it has a tie, to even.
TERSE_HD float rest(float a, float b) { return a * a - b; }

__global__ void on_device(float a, float b, float* result) { *result = rest(a, b); }

}  // namespace

TERSE_NUMERICS_END

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 77;
  const volatile float e = 1.0F / 4096;
  const float a = 1 + e, b = 1 + 2 * e;
  float* place = nullptr;
  float result = -1;
  if (cudaMalloc(reinterpret_cast<void**>(&place), sizeof *place) != cudaSuccess) return 1;
  on_device<<<1, 1>>>(a, b, place);
  const cudaError_t copied = cudaMemcpy(&result, place, sizeof result, cudaMemcpyDeviceToHost);
  cudaFree(place);
  if (copied != cudaSuccess) {
    std::fprintf(stderr, "the kernel: %s\n", cudaGetErrorString(copied));
    return 1;
  }
  const float expected = rest(a, b);
  std::printf("device %g, host %g\n", static_cast<double>(result), static_cast<double>(expected));
  return result == 0 && expected == 0 ? 0 : 1;
}
