// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "terse/executor/numerics.hpp"

// Says what an Optimizer that is compiled with the same flags would be refused for. flags.py compiles it with wrong ones.

int main() {
  try {
    terse::detail::check_numerics(terse::numerics_of(terse::executor::host{}), 0);
  } catch (const terse::usage_error& refusal) {
    std::puts(refusal.what());
  }
}

#ifdef __CUDACC__
__global__ void on_device(std::uint64_t* faults) { *faults = terse::detail::numerics_faults(); }
#endif
