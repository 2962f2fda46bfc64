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

// C++20. Clang can't compile LibTorch before version 2 as C++20. In such a program, keep LibTorch in a separate
// unit, see interop/gradient_hooks.hpp.

namespace terse::interop {

namespace detail {

/// The optimizer of a DataParallel over T. The other one is in interop/data_parallel_cuda.hpp.
template <class R, class T>
struct StepsOf {
  static_assert(std::is_same_v<typename T::memory, memory::host>,
                "terse: for a module on a GPU include terse/interop/data_parallel_cuda.hpp");
  using type = Optimizer<R, T>;
  static type make(R recipe, T& transport, const FlatModule& flat, const Options& options) {
    if (!flat.device().is_cpu())
      throw usage_error(
          "the module lies on " + flat.device().str() +
              ", and this transport carries messages in host memory: give DataParallel one of device "
              "memory, see terse/interop/data_parallel_cuda.hpp",
          transport.rank());
    return type(std::move(recipe), transport, flat.layout(), options);
  }
};

}  // namespace detail

/// A LibTorch module in data-parallel training: all ranks train it, each on its own samples. Communication of
/// gradients overlaps with the backward pass, as with PyTorch's DistributedDataParallel, but with any optimizer of
/// terse.
///
///     Net net;                                              // any torch::nn::Module, or a holder of one
///     terse::interop::DataParallel model(net, terse::Adam<>{.learning_rate = 1e-3F}, transport);
///     for (...) {
///       model.begin();                                      // zeroes the gradients
///       loss_of(net, batch).backward();                     // they leave in slices, the last layers' first
///       model.step();
///     }
///
/// `Optimizer::begin` decides which gradients are sent early; the bits of a step don't depend on it. It does
/// not affect the detection of errors: `step` detects a gradient that something other than a backward pass has changed,
/// unless the step began with Leave::in_step. See GradientHooks for its cost.
///
/// Construction and steps are collective. All ranks start from rank 0's module, including buffers and frozen
/// parameters. Later changes of buffers and frozen parameters stay on their rank.
///
/// If a rank's passes don't reach a parameter, its gradient there is zero; `unused` names it.
///
/// **Errors.** `backward()` may throw the errors of a step, with their own types: peer_error and wire_error of
/// messages in flight, mismatch_error of a first step, and usage_error. `step` then throws it again. Then nothing has
/// changed, but some gradients have been sent, and the other ranks wait for the rest until their deadline. If the
/// program throws an exception before the first gradient is final, there is no harm: call `begin` again.
///
/// The module must be float32, on the CPU with a transport of host memory. With interop/data_parallel_cuda.hpp it may be on
/// a GPU with a transport of device memory. See FlatModule for the other requirements. It must outlive this object, and its
/// parameters stay in the arenas. Checkpoints with its buffers: interop/checkpoint.hpp.
template <class R, Transport T>
class DataParallel {
  using Steps = detail::StepsOf<R, T>;
  using Floats = view<float, typename T::memory>;

 public:
  /// Type of the optimizer: Optimizer<R, T> on the CPU, GpuOptimizer<R, T> on a GPU.
  using optimizer_type = typename Steps::type;

  /// Constructs on all ranks. `mark` may set segments' rates, weight decay and compression, see FlatModule. Throws
  /// usage_error for a module that can't be flat or has no trained parameter, and the errors of Optimizer's
  /// constructor.
  DataParallel(torch::nn::Module& module, R recipe, T& transport, const Options& options = {},
               const FlatModule::Mark& mark = {})
      : module_(module),
        flat_(trainable(module, mark)),
        optimizer_(Steps::make(std::move(recipe), transport, flat_, options)),
        hooks_(flat_, [this](index_t segment) { leave(segment); }) {
    broadcast(optimizer_.channel(), parameters());
    for (const auto& item : module.named_parameters())
      if (!item.value().requires_grad()) copy_from_first(item.value());
    for (const auto& item : module.named_buffers()) copy_from_first(item.value());
  }
  /// Constructs from the module in a holder of TORCH_MODULE.
  template <class M>
  DataParallel(const torch::nn::ModuleHolder<M>& module, R recipe, T& transport, const Options& options = {},
               const FlatModule::Mark& mark = {})
      : DataParallel(*module.ptr(), std::move(recipe), transport, options, mark) {}
  // Not copyable: hooks point here.
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;
  ~DataParallel() = default;

  /// Zeroes the gradients and begins a step. Its gradients are the sums over the next `passes` backward passes, times
  /// `gradient_scale`: for gradient accumulation, 4 passes with a scale of 1 / 4 give their mean. Gradients are sent
  /// only during the last pass. Passes outside of `begin` and `step` do not count. With Leave::in_step gradients are
  /// sent in `step`, and until then the program may change this rank's gradients. If gradients have been sent for a
  /// step that `step` hasn't finished, throws usage_error. Throws the errors of `FlatModule::check_gradients`.
  void begin(int passes = 1, float gradient_scale = 1, Leave leave = Leave::when_final) {
    if (sending_)
      throw usage_error("gradients of the step before have left, and step() hasn't finished it",
                        optimizer_.rank(), static_cast<std::int64_t>(optimizer_.steps() + 1));
    hooks_.begin(passes, leave);
    flat_.zero_gradients();
    gradient_scale_ = gradient_scale;
  }

  /// Sends the remaining gradients, and steps. Throws usage_error without `begin`, and for changed gradients that
  /// may have been sent. Throws the errors of `Optimizer::step`, and again those that `backward` has thrown.
  StepResult step() {
    hooks_.end();
    sending_ = false;
    return optimizer_.step(parameters(), gradients(), gradient_scale_);
  }

  /// Returns the parameters that no backward pass of the last step has reached on this rank.
  std::vector<std::string> unused() const { return hooks_.unused(); }

  /// Returns the optimizer, for checkpoints, rates and masks.
  optimizer_type& optimizer() { return optimizer_; }
  const optimizer_type& optimizer() const { return optimizer_; }
  const FlatModule& flat() const { return flat_; }
  torch::nn::Module& module() const { return module_; }
  Floats parameters() { return {flat_.parameters(), flat_.size()}; }
  Floats gradients() { return {flat_.gradients(), flat_.size()}; }

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
    const torch::Tensor dense = tensor.to(flat_.device()).contiguous();
    broadcast(optimizer_.channel(),
              view<std::byte, typename T::memory>(static_cast<std::byte*>(dense.data_ptr()),
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
  optimizer_type optimizer_;
  GradientHooks hooks_;
  float gradient_scale_ = 1;
  bool sending_ = false;
};

}  // namespace terse::interop

#endif
