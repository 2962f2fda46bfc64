// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

// CUDA's runtime and NCCL, as far as the NCCL transport calls them, in host memory with ranks as threads: for
// machines without a GPU. A stream is a queue worked off by a thread of its own; a copy to host memory that is not
// page-locked returns when it is done, and ends the program if it takes 20 seconds. Calls on a communicator are through
// only after it has been asked a few times, and are enqueued no earlier, as NCCL may do; whoever uses it in between, or
// sends another length than is received, ends the program. So does a wait for a stream or for a whole device that takes
// 20 seconds: those have no deadline; a call on a communicator that another thread has in a group; a message or a sum that
// doesn't begin at a multiple of 4 bytes. A device's memory faults where the host touches it while nothing works on it.
// Page-locked memory holds 0xFF from the call that copies to it until the copy is made, and the program ends if a source
// changes meanwhile.
namespace stand_in {

inline constexpr int gpus = 4;

/// Whether a communicator that is aborted shows up as ncclRemoteError on the other ranks' that have something under way,
/// as it does across machines.
extern std::atomic<bool> remote_errors;
/// Whether the first message between two ranks of a communicator, in one direction, is enqueued only once both of them
/// have called for it.
extern std::atomic<bool> connecting_blocks;
/// Microseconds that a function of the host waits on its stream before it runs, and a message before it is looked for, so
/// that what should wait for them and doesn't comes too early.
extern std::atomic<int> function_delay, message_delay;
/// Communicators, device allocations, streams and events that live.
extern std::atomic<int> communicators, allocations, streams, events;

}  // namespace stand_in
