// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "terse/transport/any.hpp"
#include "terse/transport/metered.hpp"

namespace train {

using DeviceTransport = terse::AnyTransportOf<terse::memory::device>;

// Only a build with NCCL has what cuda_nccl.cpp defines.

/// Why the ranks of this transport, each with its current GPU, can't use NCCL; in the same words on all ranks, and empty if
/// nothing is known. Collective.
std::string why_no_nccl(terse::AnyTransport& boot);

/// NCCL among the ranks of `boot`, in the order of a stream, a cudaStream_t, and what it counts into. Collective. No wait lasts
/// longer than the deadline.
std::pair<DeviceTransport, const terse::Traffic&> connect_nccl(terse::AnyTransport& boot, void* stream,
                                                               std::chrono::milliseconds deadline);

/// The files of loaded libraries that are an NCCL. A process that has two must not use either: which one a call reaches is a
/// matter of order, and their communicators don't know of each other.
std::vector<std::string> loaded_nccls();

}  // namespace train
