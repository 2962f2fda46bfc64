// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

#include "terse/pipeline/nccl_lanes.hpp"
#include "terse/transport/thread.hpp"

// What the tests of whole optimizers and pipelines over NCCL share. Device is an executor with a stream.

namespace {

using namespace std::chrono_literals;
constexpr std::chrono::milliseconds patience = 30s;

[[maybe_unused]] int gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? std::min(count, 4) : 0;
}

/// body(transport, executor) as a thread for each of `ranks` GPUs.
template <class Body>
void on_gpus(int ranks, std::chrono::milliseconds deadline, Body body) {
  ThreadGroup(ranks, patience).run([&](Threads& boot) {
    detail::check_cuda(cudaSetDevice(boot.rank()), "cudaSetDevice");
    const detail::OwnStream stream;
    Nccl transport = Nccl::create(boot, stream.handle(), deadline);
    body(transport, Device{stream.handle()});
  });
}

/// After an abort: what is enqueued still runs, and uses its buffers.
[[maybe_unused]] void drain(cudaStream_t stream) {
  while (cudaStreamQuery(stream) == cudaErrorNotReady) std::this_thread::yield();
}

}  // namespace
