// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "terse/interop/libtorch.hpp"

// Like interop/libtorch.hpp this keeps to C++17.

namespace terse::interop {

/// Says of each parameter of a FlatModule that its gradient is final, while the backward pass that makes it still
/// computes those of other parameters. So gradients can travel meanwhile:
///
///     GradientHooks hooks(flat, [&](index_t segment) { optimizer.ready(segment); });
///     for (...) {
///       flat.zero_gradients();
///       optimizer.begin(parameters, gradients);
///       hooks.begin();
///       loss_of(net, batch).backward();      // calls ready, mostly for the last parameter first
///       hooks.end();
///       optimizer.step(parameters, gradients);
///     }
///
/// It hangs on LibTorch's accumulators of gradients, which run once in a backward pass for each parameter that the pass
/// reaches, however often the graph uses it; a pass that reaches it not, or is outside of `begin` and `end`, says nothing
/// of it. `ready` is called by the thread that runs the pass. What it throws comes out of `backward()` as it was thrown,
/// and out of `end` again.
///
/// For modules on the CPU. One object for a module; of several each would be told. The FlatModule must outlive it and stay
/// where it is.
class GradientHooks {
 public:
  using Ready = std::function<void(index_t segment)>;

  /// Throws usage_error for a module that is not on the CPU: on a GPU a gradient is final only in the order of its stream.
  GradientHooks(const FlatModule& flat, Ready ready) : flat_(flat), ready_(std::move(ready)) {
    if (!flat.device().is_cpu())
      throw usage_error(
          "gradients are told of as they become final on the CPU alone, and the module lies on " +
          flat.device().str());
    const auto count = static_cast<index_t>(flat.layout().segments().size());
    for (index_t segment = 0; segment < count; ++segment) watched_.emplace_back(*this, segment);
  }
  // Hooks point here.
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  ~GradientHooks() = default;

  /// A step begins, whose gradients are the sums over `passes` backward passes: the last one's are final. Forgets the
  /// step before.
  void begin(int passes = 1) {
    if (passes < 1)
      throw usage_error("a step takes at least one backward pass, not " + std::to_string(passes));
    for (Watched& one : watched_) one.calls = 0;
    fault_ = nullptr;
    passes_ = passes;
  }

  /// The passes are over: what has not been told of by now has its final gradient, too. Throws usage_error where `begin` is
  /// missing or a parameter has left the arenas (`FlatModule::check_gradients`), and what a pass has thrown from here.
  void end() {
    if (fault_) std::rethrow_exception(fault_);
    if (passes_ == 0) throw usage_error("a step ends that no begin() came before");
    passes_ = 0;
    flat_.check_gradients();
  }

  /// The parameters that no backward pass has reached since `begin`. Their gradients are zero.
  std::vector<std::string> unused() const {
    std::vector<std::string> names;
    for (const Watched& one : watched_)
      if (one.calls == 0) names.push_back(name(one));
    return names;
  }

 private:
  /// One parameter, and the hook on its accumulator while this lives.
  struct Watched {
    Watched(GradientHooks& hooks, index_t segment_)
        : segment(segment_),
          accumulator(torch::autograd::impl::grad_accumulator(hooks.flat_.parameter(segment))) {
      // None of a parameter that was frozen after it became flat.
      if (accumulator) hook = accumulator->add_post_hook(std::make_unique<Hook>(hooks, *this));
    }
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;
    ~Watched() {
      if (accumulator) accumulator->del_post_hook(hook);
    }

    index_t segment;
    // Kept, since a parameter holds its accumulator weakly and would make another one, without the hook.
    std::shared_ptr<torch::autograd::Node> accumulator;
    std::uintptr_t hook = 0;
    int calls = 0;  // since begin
  };

  struct Hook : torch::autograd::FunctionPostHook {
    Hook(GradientHooks& hooks_, Watched& watched_) : hooks(hooks_), watched(watched_) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) override {
      hooks.accumulated(watched);
      return outputs;
    }
    GradientHooks& hooks;
    Watched& watched;
  };

  void accumulated(Watched& one) {
    if (fault_) std::rethrow_exception(fault_);
    if (passes_ == 0) return;
    try {
      if (++one.calls > passes_)
        throw usage_error("backward pass " + std::to_string(one.calls) +
                          " of this step has changed the gradient of '" + name(one) +
                          "', which was final after " + std::to_string(passes_) +
                          ": give begin() the number of backward passes of a step");
      // Before it leaves: a gradient elsewhere would have left zeros here.
      flat_.check_gradient(one.segment);
      if (one.calls == passes_) ready_(one.segment);
    } catch (...) {
      fault_ = std::current_exception();
      throw;
    }
  }

  const std::string& name(const Watched& one) const {
    return flat_.layout().segments()[static_cast<std::size_t>(one.segment)].name;
  }

  const FlatModule& flat_;
  Ready ready_;
  std::deque<Watched> watched_;  // whose elements stay where they are
  int passes_ = 0;               // of the step that has begun; 0: none has
  std::exception_ptr fault_;
};

}  // namespace terse::interop
