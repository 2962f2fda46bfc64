// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <doctest/doctest.h>

// Runs the cases that are included before or after it, or exits with 77 where there is no device.
int main(int count, char** arguments) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 77;
  return doctest::Context(count, arguments).run();
}
