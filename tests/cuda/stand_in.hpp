// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

// CUDA's runtime and NCCL, as far as the NCCL transport calls them, in host memory with ranks as threads: for
// machines without a GPU. A stream is a queue worked off by a thread of its own; a copy to host memory that is not
// page-locked returns when it is done, and ends the program if it takes 20 seconds. Calls on a communicator are through
// only after it has been asked a few times, and are enqueued no earlier, as NCCL may do; whoever uses it in between, or
// sends another length than is received, ends the program.
namespace stand_in {

inline constexpr int gpus = 4;

/// Whether a communicator that is aborted shows up on the others as ncclRemoteError, as it does across machines.
extern std::atomic<bool> remote_errors;
/// Communicators and device allocations that live.
extern std::atomic<int> communicators, allocations;

}  // namespace stand_in
