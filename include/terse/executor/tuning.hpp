// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace terse {

/// The tuning of a grid executor's kernels for functors that name their streams. It changes the speed, but no bit of
/// the results, and the best values differ between GPUs. An executor states it as a constant member `tuning`, see
/// executor::tuned_cuda.
struct Tuning {
  /// Threads of a block, of which 16 process a tile: 32, 64, 128 or 256.
  int threads = 64;
  /// Rows of 64 elements whose loads a thread has in flight at a time, four elements of each. 0 means 8, 4 or 2, by
  /// the number of streams. Kernels that pack codes of less than 8 bits take 8.
  int rows = 0;
  /// The minimum number of blocks whose registers must fit into a multiprocessor; 0 for the compiler's choice.
  int resident_blocks = 0;
  /// If there are fewer tiles of 4096 elements than this, a sum takes a block of 256 threads for each, regardless of
  /// `threads`.
  std::int64_t few_tiles = 4096;

  friend constexpr bool operator==(const Tuning&, const Tuning&) = default;
};

namespace detail {

/// Threads of a block without tuning, and the maximum that a tuning may set.
inline constexpr int block_threads = 256;

/// A tuned executor, or a kernel that can be tuned.
template <class T>
concept SaysTuning = requires {
  T::tuning;
};

template <class E>
constexpr Tuning tuning_of() {
  if constexpr (SaysTuning<E>) {
    constexpr Tuning tuning = E::tuning;
    static_assert(tuning.threads == 32 || tuning.threads == 64 || tuning.threads == 128 ||
                      tuning.threads == block_threads,
                  "terse: Tuning::threads is 32, 64, 128 or 256");
    static_assert(tuning.few_tiles >= 0, "terse: Tuning::few_tiles is 0 or more");
    static_assert(
        tuning.rows >= 0 && tuning.rows <= 16 && tuning.resident_blocks >= 0 && tuning.resident_blocks <= 32,
        "terse: Tuning::rows is 0 to 16, Tuning::resident_blocks 0 to 32");
    return tuning;
  } else {
    return {};
  }
}

/// Returns a kernel's tuning, or the default if it can't be tuned.
template <class Kernel>
constexpr Tuning tuning_of_kernel() {
  if constexpr (SaysTuning<Kernel>)
    return Kernel::tuning;
  else
    return {.threads = block_threads};
}

}  // namespace detail
}  // namespace terse
