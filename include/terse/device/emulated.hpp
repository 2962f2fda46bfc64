// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/device/emulated_memory.hpp"
#include "terse/device/emulated_threads.hpp"
#include "terse/device/verbs/pack.hpp"
#include "terse/device/verbs/reduce.hpp"
#include "terse/device/verbs/select.hpp"
#include "terse/device/verbs/sparse.hpp"

namespace terse {

namespace executor {

/// Executor that runs the device's kernels on the host, thread by thread, in memory that host code can't access. Code
/// that works here fails on a device only for reasons of the device itself. For tests and debuggers; slow. Compressors
/// and optimizers also require terse/device.hpp.
struct emulated {
  using memory = terse::memory::emulated;
  using staging = terse::memory::host;
  static constexpr bool grid = true;
  /// Tuning for tests: even with few elements, the kernels for many tiles are used.
  static constexpr Tuning tuning{.few_tiles = 6};

  /// The launches between `begin` and `end` on this thread, for replay: the counterpart of a CUDA graph.
  class Recording {
   public:
    static void begin() { under_way().emplace(); }
    static Recording end() { return std::move(*std::exchange(under_way(), std::nullopt)); }
    void replay() const {
      for (const std::function<void()>& launch : launches_) launch();
    }

   private:
    friend struct emulated;
    static std::optional<Recording>& under_way() {
      thread_local std::optional<Recording> recording;
      return recording;
    }
    std::vector<std::function<void()>> launches_;
  };

  /// Returns the number of kernels and copies that this thread has launched so far.
  static index_t& launches() {
    thread_local index_t count = 0;
    return count;
  }

  /// Returns the largest number of argument bytes of a kernel that this thread has launched; it may be set back to
  /// 0.
  static std::size_t& most_argument_bytes() {
    thread_local std::size_t most = 0;
    return most;
  }

  template <class Kernel>
  void launch(const Kernel& kernel, index_t blocks) const {
    launch_any(detail::AnyKernel::of(kernel), blocks);
  }
  void move(void* to, const void* from, std::size_t bytes) const {
    ++launches();
    if (auto& recording = Recording::under_way(); recording) {
      recording->launches_.push_back([=] { emulated{}.move(to, from, bytes); });
      return;
    }
    const memory::Open open;
    std::memcpy(to, from, bytes);
  }
  void bring(void* to, const void* from, std::size_t bytes) const { move(to, from, bytes); }
  void send(void* to, const void* from, std::size_t bytes) const { move(to, from, bytes); }
  /// Throws terse::error while recording, as CUDA does.
  void synchronize() const {
    if (Recording::under_way()) throw error("a wait for the device can't be recorded");
  }

 private:
  static void launch_any(detail::AnyKernel kernel, index_t blocks) {
    detail::EmulatedThreads::check_blocks(blocks);
    ++launches();
    most_argument_bytes() = std::max(most_argument_bytes(), kernel.bytes);
    if (auto& recording = Recording::under_way(); recording) {
      const auto kept = std::make_shared<std::vector<std::byte>>(kernel.bytes);
      std::memcpy(kept->data(), kernel.kernel, kernel.bytes);
      kernel.kernel = kept->data();
      recording->launches_.push_back([=] {
        (void)kept;
        launch_any(kernel, blocks);
      });
      return;
    }
    thread_local const auto threads = std::make_unique<detail::EmulatedThreads>();
    const memory::Open open;
    for (index_t index = 0; index < blocks; ++index) threads->run(kernel, index);
  }
};

}  // namespace executor
}  // namespace terse
