// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "terse/core/draw.hpp"

// Guards for the state of LibTorch and of a module that a pass changes and restores at its end. Compiles as C++17.

namespace terse::detail {

/// A guard that lends LibTorch's generator of the CPU to one pass. Passes in other threads take turns.
class LentGenerator {
 public:
  /// Takes the generator if the pass draws (`random`); its draws are a function of `seed` and `number` only.
  LentGenerator(bool random, std::uint64_t seed, std::uint64_t number) {
    if (!random) return;
    static std::mutex turns;
    turn_ = std::unique_lock<std::mutex>(turns);
    generator_ = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    before_ = generator_.get_state();
    generator_.set_current_seed(Draw::shared(seed, number, Purpose::user).bits(0));
  }
  LentGenerator(const LentGenerator&) = delete;
  LentGenerator& operator=(const LentGenerator&) = delete;
  ~LentGenerator() {
    if (!generator_.defined()) return;
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(before_);
  }

 private:
  std::unique_lock<std::mutex> turn_;
  at::Generator generator_;
  torch::Tensor before_;
};

/// A guard that sets a module and its submodules to evaluation. `train` reaches all submodules, so modes are restored
/// from parents to children.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) {
    for (const auto& part : module.modules(false)) parts_.emplace_back(part.get(), part->is_training());
    top_ = {&module, module.is_training()};
    module.eval();
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;
  ~EvaluationMode() {
    top_.first->train(top_.second);
    for (const auto& [part, training] : parts_)
      if (part->is_training() != training) part->train(training);
  }

 private:
  std::pair<torch::nn::Module*, bool> top_;
  std::vector<std::pair<torch::nn::Module*, bool>> parts_;
};

}  // namespace terse::detail
