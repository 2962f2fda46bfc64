// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "cuda_nccl.hpp"
#include "terse/transport/any.hpp"
#include "workshop.hpp"

namespace train {

// A workshop on this thread's current GPU. `stream`, a cudaStream_t, must be what gradients are in the order of. Only a
// build with CUDA has these. Collective.

/// Messages go by way of the host.
std::unique_ptr<Workshop> make_cuda_workshop(terse::AnyTransport transport, void* stream);
/// As they are; see TheWorkshop for `traffic`.
std::unique_ptr<Workshop> make_cuda_workshop(DeviceTransport transport, const terse::Traffic& traffic,
                                             void* stream);

}  // namespace train
