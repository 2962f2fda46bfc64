// SPDX-License-Identifier: Apache-2.0
// LibTorch and the library for the units that g++ compiles.
#include <torch/torch.h>

#include <terse/interop/libtorch.hpp>
#include <terse/terse.hpp>
