// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "baseline.hpp"

namespace terse::bench {

/// One bit an element, by one loop for each operation, each as good as the compiler makes it.
BaselineMaker plain_one_bit();
/// The same with a byte for each sign.
BaselineMaker plain_sign_bytes();
/// Eight bits an element, scaled by the largest magnitude.
BaselineMaker plain_eight_bits();
/// The largest 1 % of all elements, by a heap of pairs.
BaselineMaker heap_top_k();
/// ... by std::nth_element on a copy of the magnitudes.
BaselineMaker nth_element_top_k();

}  // namespace terse::bench
