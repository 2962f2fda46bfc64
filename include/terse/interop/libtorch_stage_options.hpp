// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "terse/core/layout.hpp"
#include "terse/interop/libtorch.hpp"

// Compiles as C++17, like all code that includes LibTorch.

namespace terse::interop {

/// The extents of one example at a stage's ends, without the rows. An example of one number has the shape {1}.
struct TorchStageShapes {
  std::vector<index_t> input;   ///< empty on the first stage, which reads `TorchStage::batch` instead
  std::vector<index_t> output;  ///< empty on the last stage, which computes the loss instead
};

/// Recomputation and random draws of a TorchStage, and the marks of its module's segments.
struct TorchStageOptions {
  /// Activation checkpointing: a forward pass keeps only its input, and the backward pass runs the module again. It
  /// costs the time of a forward pass; a micro-batch in flight then holds only its input. Buffers that forward passes
  /// change, such as the running statistics of batch normalization, are changed twice.
  bool recompute = false;

  /// Random draws: true, the default, if forward passes of training draw from LibTorch's generator of the CPU, as
  /// dropout does. They then draw from a stream that depends on `seed` and `draws()` only, and the generator is
  /// restored: all schedules give the same bits, with and without `recompute`. During a pass, a thread that is not a
  /// stage must not draw from that generator, or masks would differ. (Give a data loader that augments a separate
  /// generator.) Since LibTorch has one generator for the whole process, forward passes of stages in different
  /// threads take turns. If the module doesn't draw, set it to false: passes then overlap. With false, dropout and
  /// `recompute` together give wrong gradients. Other generators are not handled.
  bool random = true;
  std::uint64_t seed = 0;  ///< seed of these draws; mix in the stage, and the replica if there are several

  /// Function that may set a segment's rate, weight decay and compression, see FlatModule.
  FlatModule::Mark mark = {};
};

}  // namespace terse::interop
