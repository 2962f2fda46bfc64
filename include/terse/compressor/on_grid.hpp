// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace terse::detail {

/// The part of a compressor that runs on a grid executor: a specialization in a header that hosts don't include.
template <class Compressor>
struct OnGrid {
  static_assert(sizeof(Compressor) == 0,
                "terse: compressors on this executor need terse/device.hpp; terse/cuda.cuh brings it");
};

}  // namespace terse::detail
