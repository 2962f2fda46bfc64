// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "terse/transport/any.hpp"
#include "workshop.hpp"

namespace train {

/// A workshop on this thread's current GPU. `stream`, a cudaStream_t, must be what gradients are in the order of. Only a
/// build with CUDA has it. Collective.
std::unique_ptr<Workshop> make_cuda_workshop(terse::AnyTransport transport, void* stream);

}  // namespace train
