// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda_nccl.hpp"
#include "places.hpp"
#include "terse/checkpoint/folder.hpp"
#include "terse/cuda.cuh"

namespace train {

/// What the units of nvcc are instantiated for, whatever messages go over.
struct OnCuda : Place<DeviceTransport, terse::executor::cuda> {
  template <class Optimizer>
  static void save(const std::filesystem::path& file, Optimizer& optimizer, const float* parameters) {
    terse::checkpoint::save(file, optimizer, terse::in<Executor>(parameters, optimizer.layout().size()));
  }
  template <class Optimizer>
  static void load(const terse::checkpoint::Manifest& manifest, Optimizer& optimizer, float* parameters) {
    terse::checkpoint::load(manifest, optimizer, terse::out<Executor>(parameters, optimizer.layout().size()));
  }
};

}  // namespace train
