// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Ranks with one GPU each, over NCCL: terse/cuda.cuh and `cuda::Rank`, which chooses a rank's device and makes its
/// stream, transport and executor. For nvcc; see docs/cuda.md.

#include "terse/cuda.cuh"
#include "terse/device/gpu_rank.hpp"

namespace terse::cuda {

using Rank = detail::GpuRankWith<executor::cuda>;

/// Runs `body(rank)`, with a `cuda::Rank&`, in a thread for each GPU of this machine: see terse::on_all_gpus.
template <class Body>
void on_all_gpus(const Body& body, Deadline deadline = std::chrono::seconds(60)) {
  terse::on_all_gpus<Rank>(body, deadline);
}

}  // namespace terse::cuda
