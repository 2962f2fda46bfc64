// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <nccl.h>

// Links what terse::nccl and terse-nccl say; calls nothing, since the machine may have no device.
int main(int count, char**) {
  int version = 0;
  if (count > 1 && ncclGetVersion(&version) == ncclSuccess)
    return cudaRuntimeGetVersion(&version) != cudaSuccess;
}
