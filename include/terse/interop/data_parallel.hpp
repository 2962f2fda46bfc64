// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __cplusplus < 202002L
#error "terse is C++20, but for interop/libtorch.hpp and gradient_hooks.hpp: compile with -std=c++20 or later"
#else

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/interop/gradient_hooks.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/collectives.hpp"

// C++20, which clang doesn't take LibTorch before 2 as: such a program keeps it in a unit of its own, see
// interop/gradient_hooks.hpp.

namespace terse::interop {

/// A LibTorch module that is trained on all ranks at once, each on samples of its own. Gradients travel while the backward pass
/// computes those of the layers before, as with PyTorch's DistributedDataParallel, but with any optimizer of terse.
///
///     Net net;                                              // any torch::nn::Module, or a holder of one
///     terse::interop::DataParallel model(net, terse::Adam<>{.learning_rate = 1e-3F}, transport);
///     for (...) {
///       model.begin();                                      // zeroes the gradients
///       loss_of(net, batch).backward();                     // they leave in slices, the last layers' first
///       model.step();
///     }
///
/// What leaves when is `Optimizer::begin`'s affair, and so is what can't leave early; a step's bits don't depend on it.
/// Neither does what is refused: a gradient that something else than a backward pass has changed is found by `step`, unless
/// the step began with Leave::in_step. See GradientHooks for what that costs.
///
/// Construction is collective, and so are steps. All ranks start from rank 0's module, buffers and frozen parameters
/// included; later changes of those stay each rank's own.
///
/// A parameter that a rank's passes don't reach counts with a gradient of zero there; `unused` names it.
///
/// **Errors.** What a step throws, `backward()` may throw as well, with its own type: peer_error and wire_error of messages
/// under way, mismatch_error of a first step, usage_error. `step` then throws it again: nothing was changed, but gradients have
/// left, and the other ranks wait for the rest until their deadline. An exception of the program's own before the first
/// gradient is final harms nothing: `begin` again.
///
/// The module is on the CPU and float32; see FlatModule for what else it must be. It outlives this object, whose arenas
/// its parameters stay in. Checkpoints with its buffers: interop/checkpoint.hpp.
template <class R, Transport T>
class DataParallel {
  static_assert(std::is_same_v<typename T::memory, memory::host>,
                "terse: DataParallel steps on the CPU; its transport is one for messages in host memory");

 public:
  /// `mark` may set segments' rates, weight decay and compression, see FlatModule. Throws usage_error for a module that can't be
  /// flat or has nothing to train, and what Optimizer's constructor throws.
  DataParallel(torch::nn::Module& module, R recipe, T& transport, const Options& options = {},
               const FlatModule::Mark& mark = {})
      : module_(module),
        flat_(trainable(module, mark)),
        optimizer_(std::move(recipe), transport, flat_.layout(), options),
        hooks_(flat_, [this](index_t segment) { leave(segment); }) {
    broadcast(optimizer_.channel(), parameters());
    for (const auto& item : module.named_parameters())
      if (!item.value().requires_grad()) copy_from_first(item.value());
    for (const auto& item : module.named_buffers()) copy_from_first(item.value());
  }
  /// Of what TORCH_MODULE makes.
  template <class M>
  DataParallel(const torch::nn::ModuleHolder<M>& module, R recipe, T& transport, const Options& options = {},
               const FlatModule::Mark& mark = {})
      : DataParallel(*module.ptr(), std::move(recipe), transport, options, mark) {}
  // Hooks point here.
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;
  ~DataParallel() = default;

  /// Zeroes the gradients. Those of the step are the sums over the next `passes` backward passes, times `gradient_scale`: 4 passes
  /// with a scale of 1 / 4 are their mean. They leave during the last one alone. Passes outside of `begin` and `step` are
  /// the program's own affair. With Leave::in_step nothing leaves before `step`, and until then the program may change this
  /// rank's gradients. Throws usage_error when gradients of a step have left that `step` hasn't finished, and what
  /// `FlatModule::check_gradients` throws.
  void begin(int passes = 1, float gradient_scale = 1, Leave leave = Leave::when_final) {
    if (sending_)
      throw usage_error("gradients of the step before have left, and step() hasn't finished it",
                        optimizer_.rank(), static_cast<std::int64_t>(optimizer_.steps() + 1));
    hooks_.begin(passes, leave);
    flat_.zero_gradients();
    gradient_scale_ = gradient_scale;
  }

  /// Sends what hasn't left, and steps. Throws usage_error without `begin` and for changed gradients that may have left, what
  /// `Optimizer::step` throws, and what `backward` has thrown from here.
  StepResult step() {
    hooks_.end();
    sending_ = false;
    return optimizer_.step(parameters(), gradients(), gradient_scale_);
  }

  /// The parameters that no backward pass of the last step has reached on this rank.
  std::vector<std::string> unused() const { return hooks_.unused(); }

  /// For checkpoints, rates and masks.
  Optimizer<R, T>& optimizer() { return optimizer_; }
  const Optimizer<R, T>& optimizer() const { return optimizer_; }
  const FlatModule& flat() const { return flat_; }
  torch::nn::Module& module() const { return module_; }
  view<float> parameters() { return {flat_.parameters(), flat_.size()}; }
  view<float> gradients() { return {flat_.gradients(), flat_.size()}; }

 private:
  static FlatModule trainable(torch::nn::Module& module, const FlatModule::Mark& mark) {
    FlatModule flat(module, mark);
    if (flat.layout().segments().empty())
      throw usage_error("the module has no parameter that requires a gradient, so there is nothing to train");
    return flat;
  }

  void copy_from_first(const torch::Tensor& tensor) {
    if (!tensor.defined()) return;
    torch::NoGradGuard no_grad;
    const torch::Tensor dense = tensor.contiguous();
    broadcast(optimizer_.channel(), view<std::byte>(static_cast<std::byte*>(dense.data_ptr()),
                                                    static_cast<index_t>(dense.nbytes())));
    if (!dense.is_same(tensor)) tensor.copy_(dense);
  }

  void leave(index_t segment) {
    if (!sending_) {
      sending_ = true;
      optimizer_.begin(parameters(), gradients(), gradient_scale_);
    }
    optimizer_.ready(segment);
  }

  torch::nn::Module& module_;
  FlatModule flat_;
  Optimizer<R, T> optimizer_;
  GradientHooks hooks_;
  float gradient_scale_ = 1;
  bool sending_ = false;
};

}  // namespace terse::interop

#endif
