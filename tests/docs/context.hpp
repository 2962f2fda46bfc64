// SPDX-License-Identifier: Apache-2.0
#pragma once

// What snippets in the documentation find around them, see check.py.

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "terse/checkpoint/checkpoint.hpp"
#include "terse/checkpoint/elastic.hpp"
#include "terse/checkpoint/folder.hpp"
#include "terse/checkpoint/pipeline.hpp"
#include "terse/checkpoint/stop_signal.hpp"
#include "terse/laws/check.hpp"
#include "terse/predict/predict.hpp"
#include "terse/terse.hpp"
#include "terse/transport/delayed.hpp"

/// Computes something, it doesn't matter what.
void compute_gradients(std::vector<float>& parameters, std::vector<float>& gradients);

/// A stage of a pipeline.
struct SomeStage {
  terse::index_t input_elements() const;
  terse::index_t output_elements() const;
  const float* forward(const terse::MicroBatch&, const float*);
  const float* backward(const terse::MicroBatch&, const float*);
  double loss(const terse::MicroBatch&);
  const terse::Layout& layout() const;
};

/// The parameters of a function around each snippet.
#define TERSE_DOCS_CONTEXT                                                                           \
  [[maybe_unused]] terse::Threads &transport, [[maybe_unused]] terse::Threads &threads,              \
      [[maybe_unused]] terse::Threads &ranks, [[maybe_unused]] const terse::Layout &layout,          \
      [[maybe_unused]] std::vector<float>&parameters, [[maybe_unused]] std::vector<float>&gradients, \
      [[maybe_unused]] terse::OneBitAdam<> recipe,                                                   \
      [[maybe_unused]] terse::Optimizer<terse::OneBitAdam<>, terse::Threads>&optimizer,              \
      [[maybe_unused]] terse::index_t n, [[maybe_unused]] std::uint64_t epoch,                       \
      [[maybe_unused]] std::int64_t position, [[maybe_unused]] double loss
