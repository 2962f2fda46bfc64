// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "terse/core/layout.hpp"
#include "terse/interop/libtorch.hpp"

// Keeps to C++17, as does all that knows LibTorch.

namespace terse::interop {

/// Extents of one example at a stage's ends, without the rows. A number an example is {1}.
struct TorchStageShapes {
  std::vector<index_t> input;   ///< empty on the first stage, which reads `TorchStage::batch` instead
  std::vector<index_t> output;  ///< empty on the last stage, which computes the loss instead
};

/// Recomputation and random draws of a TorchStage, and the marks of its module's segments.
struct TorchStageOptions {
  /// Activation checkpointing: a forward pass keeps its input alone, and the backward pass runs the module again.
  /// Costs the time of a forward pass; a micro-batch in flight then needs no memory here but its input. Buffers that
  /// forward passes change, such as the running statistics of batch normalization, are changed twice.
  bool recompute = false;

  /// Set true, the default, if forward passes of training draw from LibTorch's generator of the CPU, as dropout does. They
  /// then draw from a stream that is a function of `seed` and `draws()` alone, and the generator is put back: all schedules
  /// give the same bits, with and without `recompute`. A thread that is no stage must not draw from that generator during
  /// a pass (a data loader that augments, for one: give it a generator of its own), or masks would be others. As LibTorch
  /// has one generator for the whole process, forward passes of stages that are threads take turns. Set false where nothing
  /// draws: passes then overlap.
  /// False, dropout and `recompute` together give wrong gradients. Generators other than that one aren't looked after.
  bool random = true;
  std::uint64_t seed = 0;  ///< of those draws; mix in the stage, and the replica where there are several

  /// May set a segment's rate, weight decay and compression, see FlatModule.
  FlatModule::Mark mark = {};
};

}  // namespace terse::interop
