// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "terse/core/config.hpp"
#include "terse/core/error.hpp"
#include "terse/core/view.hpp"
#include "terse/transport/waiters.hpp"

namespace terse::detail {

#if TORCH_VERSION_MAJOR >= 2
using C10dGroup = c10d::Backend;
#else
using C10dGroup = c10d::ProcessGroup;
#endif

/// State that all channels over a process group share: its backend for the host, and the tags that are taken.
struct C10dRoot {
  /// Tag under which ranks agree on the tag of a new channel; the tags of channels are larger.
  static constexpr int meeting = 1 << 24;
  /// A tag of no message.
  static constexpr int never = meeting - 1;

  c10::intrusive_ptr<C10dGroup> group;
  std::shared_ptr<int> next_tag;
  Waiters waiters;

  /// Returns the state of a group. Throws usage_error if the group has no backend for the host.
  static std::shared_ptr<C10dRoot> of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    return known(host_of(group));
  }
  /// Closes this rank's connections: Gloo closes all of them when a wait times out.
  TERSE_COLD void close() noexcept {
    for (int peer = 0; peer < group->getSize(); ++peer) try {
        std::byte none{};
        std::vector<at::Tensor> tensors{bytes_at(&none, 1)};
        if (peer != group->getRank()) group->recv(tensors, peer, never)->wait(std::chrono::milliseconds(1));
      } catch (const std::exception&) {  // as it must
      }
  }
  static at::Tensor bytes_at(std::byte* data, index_t bytes) {
    static std::byte nothing{};  // even an empty tensor needs an address
    return at::from_blob(bytes == 0 ? &nothing : data, {bytes}, at::kByte);
  }

 private:
  /// State kept for the lifetime of a group: no tag is used twice, since messages with it may remain.
  struct Known {
    c10::weak_intrusive_ptr<C10dGroup> group;
    std::weak_ptr<C10dRoot> root;
    std::shared_ptr<int> next_tag;
  };

  static c10::intrusive_ptr<C10dGroup> host_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
#if TORCH_VERSION_MAJOR >= 2
    try {
      return group->getBackend(c10::DeviceType::CPU);
    } catch (const std::exception&) {
      throw usage_error(
          "this process group has no backend for the host, over which terse's messages travel: "
          "init_process_group('gloo'), or 'cpu:gloo,cuda:nccl'",
          group->getRank());
    }
#else
    return group;
#endif
  }
  TERSE_COLD static std::shared_ptr<C10dRoot> known(c10::intrusive_ptr<C10dGroup> group) {
    static std::mutex mutex;
    static std::map<C10dGroup*, Known> groups;
    const std::lock_guard lock(mutex);
    const auto found = groups.find(group.get());
    if (found != groups.end() && found->second.group.expired()) groups.erase(found);  // an earlier group
    auto& [same, kept, next_tag] =
        groups.try_emplace(group.get(), Known{c10::weak_intrusive_ptr<C10dGroup>(group), {}, nullptr})
            .first->second;
    if (!next_tag) next_tag = std::make_shared<int>(meeting + 1);
    std::shared_ptr<C10dRoot> root = kept.lock();
    if (!root) {
      root = std::make_shared<C10dRoot>();
      root->next_tag = next_tag;
      root->group = std::move(group);
      kept = root;
    }
    return root;
  }
};

}  // namespace terse::detail
