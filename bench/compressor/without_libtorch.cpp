// SPDX-License-Identifier: Apache-2.0
#include "baseline.hpp"

namespace terse::bench {

BaselineMaker libtorch_one_bit() { return nullptr; }

}  // namespace terse::bench
