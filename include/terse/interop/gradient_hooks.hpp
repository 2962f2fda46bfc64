// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "terse/interop/libtorch.hpp"

// Compiles as C++17, like interop/libtorch.hpp.

namespace terse::interop {

/// The time at which the gradients of a step leave this rank.
enum class Leave {
  when_final,  ///< each gradient once the last backward pass has made it; from then on nothing may change it
  in_step      ///< all gradients after the backward passes; until then the program may change them
};

/// Hooks that report each final gradient of a FlatModule's parameters while the backward pass still computes others,
/// so that communication overlaps with the backward pass:
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
/// The hooks are on LibTorch's accumulators of gradients. For each parameter that a backward pass reaches, these run
/// once, however often the graph uses the parameter. Parameters that a pass doesn't reach, and passes outside of
/// `begin` and `end`, are not reported. The thread that runs the pass calls `ready`. `backward()` throws an
/// exception of `ready` unchanged, and `end` throws it again.
///
/// **Gradients** are zero at `begin`, and from then on only backward passes may change them. Whether another change
/// counts would depend on the gradients that have been sent. So `end` compares the bits of each gradient with those
/// after its last backward pass. It also detects changes through `data()` and pointers. It reads all gradients two
/// more times, the first time while they are in cache. It also refuses a step without any pass if passes came before
/// `begin`. If a program changes gradients itself, it must begin the step with `Leave::in_step`; then `ready` is not
/// called.
///
/// **On a GPU** a gradient is final in the order of a stream. `ready` is called when its kernels are enqueued on LibTorch's
/// current stream of the calling thread, which is one of LibTorch's own. Changes of gradients are not detected there.
///
/// Use one object per module, since the hooks of several objects would all be called. The FlatModule must outlive it and
/// stay at its address.
class GradientHooks {
 public:
  using Ready = std::function<void(index_t segment)>;

  /// Installs the hooks. Throws the errors of `FlatModule::check_gradients`.
  GradientHooks(const FlatModule& flat, Ready ready) : flat_(flat), ready_(std::move(ready)) {
    flat.check_gradients();
    const auto count = static_cast<index_t>(flat.layout().segments().size());
    for (index_t segment = 0; segment < count; ++segment) watched_.emplace_back(*this, segment);
  }
  // Not copyable: hooks point here.
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  ~GradientHooks() = default;

  /// Begins a step whose gradients are the sums over `passes` backward passes: gradients are final in the last one.
  /// Forgets the previous step. Throws usage_error for less than one pass, and the errors of
  /// `FlatModule::check_gradients`.
  void begin(int passes = 1, Leave leave = Leave::when_final) {
    if (passes < 1)
      throw usage_error("a step takes at least one backward pass, not " + std::to_string(passes));
    flat_.check_gradients();
    for (Watched& one : watched_) {
      one.calls = 0;
      one.bits = 0;
    }
    fault_ = nullptr;
    passes_ = passes;
    leave_ = leave;
  }

  /// Ends the passes: gradients that have not been reported are final now, too. Throws usage_error without `begin`,
  /// for a changed gradient that may have been sent, or for a parameter that has left the arenas
  /// (`FlatModule::check_gradients`). If a pass threw an exception from here, throws it again.
  void end() {
    if (fault_) std::rethrow_exception(fault_);
    if (passes_ == 0) throw usage_error("step() without begin(): call begin() before backward()");
    if (std::exchange(stray_, false) &&
        std::all_of(watched_.begin(), watched_.end(), [](const Watched& one) { return one.calls == 0; }))
      throw usage_error(
          "backward passes came before begin() and none since, so that their gradients would be lost: call "
          "begin() before backward()");
    flat_.check_gradients();
    if (leave_ == Leave::when_final && flat_.device().is_cpu())
      for (const Watched& one : watched_) check_unchanged(one);
    passes_ = 0;
  }

  /// Returns the parameters that no backward pass has reached since `begin`. Their gradients are zero.
  std::vector<std::string> unused() const {
    std::vector<std::string> names;
    for (const Watched& one : watched_)
      if (one.calls == 0) names.push_back(name(one));
    return names;
  }

 private:
  /// A parameter, with the hook on its accumulator while this object lives.
  struct Watched {
    Watched(GradientHooks& hooks, index_t segment_)
        : segment(segment_),
          accumulator(torch::autograd::impl::grad_accumulator(hooks.flat_.parameter(segment))),
          hook(accumulator->add_post_hook(std::make_unique<Hook>(hooks, *this))) {}
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;
    ~Watched() { accumulator->del_post_hook(hook); }

    index_t segment;
    // Kept, since a parameter only holds its accumulator weakly, and would make a new one without the hook. The
    // pointer's type depends on LibTorch's version.
    decltype(torch::autograd::impl::grad_accumulator(torch::Tensor())) accumulator;
    std::uintptr_t hook;
    int calls = 0;           // calls since begin
    std::uint64_t bits = 0;  // bits of the gradient after the last call
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
    if (passes_ == 0) {
      stray_ = true;
      return;
    }
    try {
      if (++one.calls > passes_)
        throw usage_error("backward pass " + std::to_string(one.calls) +
                          " of this step has changed the gradient of '" + name(one) +
                          "', which was final after " + std::to_string(passes_) +
                          ": give begin() the number of backward passes of a step");
      // Checked before it is sent: if the gradient were in other memory, zeros would be sent.
      flat_.check_gradient(one.segment);
      if (leave_ == Leave::in_step) return;
      if (flat_.device().is_cpu()) one.bits = bits_of(one);
      if (one.calls == passes_) ready_(one.segment);
    } catch (...) {
      fault_ = std::current_exception();
      throw;
    }
  }

  void check_unchanged(const Watched& one) const {
    if (bits_of(one) == one.bits) return;
    throw usage_error(
        "the gradient of parameter '" + name(one) + "' " +
        (one.calls == 0 ? "is not zero, though no backward pass since begin() has reached it"
                        : "was changed after its last backward pass, when it may have left for "
                          "other ranks") +
        ": begin a step whose gradients the program changes with Leave::in_step, or clip them by "
        "Options::clip_norm");
  }

  /// Sums the gradient's bits, so that a change of a single element is always detected; 0 for zeros.
  std::uint64_t bits_of(const Watched& one) const {
    const Segment& segment = flat_.layout().segments()[static_cast<std::size_t>(one.segment)];
    std::uint64_t sum = 0, odd = 1, word;
    // Segments end in padding, which is zero.
    for (index_t i = 0; i < segment.count; i += 2, odd += 0x9E3779B97F4A7C16) {
      std::memcpy(&word, flat_.gradients() + segment.offset + i, sizeof word);
      sum += (word ^ (word >> 32)) * odd;
    }
    return sum;
  }

  const std::string& name(const Watched& one) const {
    return flat_.layout().segments()[static_cast<std::size_t>(one.segment)].name;
  }

  const FlatModule& flat_;
  Ready ready_;
  std::deque<Watched> watched_;  // a deque, since elements must not move
  bool stray_ = false;           // true if a backward pass came before begin, since the last step
  int passes_ = 0;               // passes of the current step; 0 if no step has begun
  Leave leave_ = Leave::when_final;
  std::exception_ptr fault_;
};

}  // namespace terse::interop
