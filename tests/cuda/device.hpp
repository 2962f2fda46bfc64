// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <doctest/doctest.h>

#include <cstdio>
#include <string_view>

#include "terse/device/cuda.cuh"

// Runs the cases that are included before or after it, or exits with 77 where there is no device. With --kernels it prints how many
// kernels are loaded beforehand.
int main(int count, char** arguments) {
  if (count > 1 && std::string_view(arguments[1]) == "--kernels")
    return std::printf("%zu\n", terse::detail::kernels().size()) < 0;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 77;
  return doctest::Context(count, arguments).run();
}
