// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "terse/transport/concept.hpp"

namespace terse {

/// One transport of two: `inside` among the ranks of a node, such as Threads of a process or Nccl on a machine, and `across`
/// among the ranks of one number on all nodes, such as Mpi between processes. Rank r is the (r mod L)-th of node r / L, of
/// nodes of L ranks. For Hierarchical, whose messages never go but one way or the other, and for methods that only gather and
/// agree; a message between two ranks that share neither node nor number has no way to go and is a usage_error.
///
///     terse::Nodes nodes(std::move(thread), terse::Mpi(communicator_of_this_thread));
///
/// Over Threads and Mpi each thread needs a communicator of its own, and MPI to have been started with MPI_THREAD_MULTIPLE.
/// Constructors are collective, and throw mismatch_error where nodes have different sizes or a rank has another
/// number across than its node. A wait ends by the deadline of the transport that it waits for.
template <Transport Inside, Transport Across>
class Nodes {
  static_assert(std::same_as<typename Inside::memory, typename Across::memory>,
                "terse: both levels of Nodes carry messages of one memory; put ThroughHost around a "
                "transport of host memory");
  /// The lists of a batch under way; recycled, so that steady traffic allocates nothing.
  struct Batch {
    std::vector<Send> sends_inside, sends_across;
    std::vector<Receive> receives_inside, receives_across;
    bool used = false;
  };

 public:
  using memory = typename Inside::memory;

  class Ticket {
   public:
    Ticket(Ticket&& other) noexcept
        : batch_(std::exchange(other.batch_, nullptr)),
          inside_(std::move(other.inside_)),
          across_(std::move(other.across_)) {}
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(batch_, other.batch_);
      std::swap(inside_, other.inside_);
      std::swap(across_, other.across_);
      return *this;
    }
    ~Ticket() { finish(); }

    bool ready() {
      const bool inside = inside_.ready(), across = across_.ready();
      if (inside && across) finish();
      return inside && across;
    }
    void wait() {
      inside_.wait();
      across_.wait();
      finish();
    }
    void wait(std::chrono::milliseconds deadline) {
      const auto until = detail::time_after(deadline);
      inside_.wait(deadline);
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      across_.wait(std::max(left, std::chrono::milliseconds(0)));
      finish();
    }

   private:
    friend class Nodes;
    Ticket(Batch* batch, TicketOf<Inside> inside, TicketOf<Across> across)
        : batch_(batch), inside_(std::move(inside)), across_(std::move(across)) {}
    void finish() {
      if (batch_ != nullptr) std::exchange(batch_, nullptr)->used = false;
    }

    Batch* batch_;
    TicketOf<Inside> inside_;
    TicketOf<Across> across_;
  };

  Nodes(Inside inside, Across across) : inside_(std::move(inside)), across_(std::move(across)) {
    // Each rank hears of its node's ranks what they know of theirs across: so everybody knows of everybody.
    struct Place {
      int node, nodes, local, ranks;
      bool operator==(const Place&) const = default;
    };
    const Place mine{across_.rank(), across_.size(), inside_.rank(), inside_.size()};
    std::string fault;
    const auto look = [&](auto& level, const auto& fits) {
      Assembly<Place, std::remove_reference_t<decltype(level)>> everyone(level);
      for (const Place& place : everyone(level, mine, Phase::setup))
        if (fault.empty() && !fits(place))
          fault = "rank " + std::to_string(place.local) + " of node " + std::to_string(place.node) +
                  " is one of " + std::to_string(place.ranks) + " on its node and of " +
                  std::to_string(place.nodes) + " nodes, and rank " + std::to_string(mine.local) +
                  " of node " + std::to_string(mine.node) + " one of " + std::to_string(mine.ranks) +
                  " and of " + std::to_string(mine.nodes) +
                  ": Nodes wants full nodes, and across them ranks of one number";
    };
    look(inside_, [&](const Place& other) {
      return other.node == mine.node && other.nodes == mine.nodes && other.ranks == mine.ranks;
    });
    look(across_, [&](const Place& other) {
      return other.local == mine.local && other.nodes == mine.nodes && other.ranks == mine.ranks;
    });
    agree(fault);
    for (int k = 0; k < 2; ++k) add_batch();
  }

  int rank() const { return across_.rank() * inside_.size() + inside_.rank(); }
  int size() const { return across_.size() * inside_.size(); }
  int ranks_per_node() const { return inside_.size(); }
  Inside& inside() { return inside_; }
  Across& across() { return across_; }

  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    for (const Send& send : sends) require_way(send.peer);
    for (const Receive& receive : receives) require_way(receive.peer);
    Batch& batch = unused_batch();
    share_out(sends, batch.sends_inside, batch.sends_across);
    share_out(receives, batch.receives_inside, batch.receives_across);
    batch.used = true;
    try {
      auto across = across_.exchange(batch.sends_across, batch.receives_across, phase);
      return Ticket(&batch, inside_.exchange(batch.sends_inside, batch.receives_inside, phase),
                    std::move(across));
    } catch (...) {
      batch.used = false;
      throw;
    }
  }

  /// Host bytes of all ranks, across first and then inside. Sends (nodes - 1) blocks, and (L - 1) times as many as there are
  /// nodes.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase phase) {
    const std::size_t bytes = mine.size();
    const auto nodes = static_cast<std::size_t>(across_.size()),
               ranks = static_cast<std::size_t>(inside_.size());
    column_.resize(nodes * bytes);
    table_.resize(ranks * column_.size());
    detail::gather_host_bytes(across_, gather_across_, mine, column_, phase);
    detail::gather_host_bytes(inside_, gather_inside_, column_, table_, phase);
    for (std::size_t node = 0; node < nodes; ++node)
      for (std::size_t local = 0; local < ranks; ++local)
        std::copy_n(table_.data() + (local * nodes + node) * bytes, bytes,
                    all.data() + (node * ranks + local) * bytes);
  }

  /// Waits for what transports that work in a stream's order have under way.
  void synchronize() {
    await_messages(inside_);
    await_messages(across_);
  }
  auto stream() const requires requires(const Inside& level) { level.stream(); }
  { return inside_.stream(); }

  /// Of parts that are full nodes of equal size again, such as all ranks, one node's, or each rank alone; otherwise
  /// usage_error on all ranks.
  Nodes split(int color, int key) {
    struct Choice {
      int color, key;
    };
    Assembly<Choice, Nodes> assembly(*this);
    const std::span<const Choice> choices = assembly(*this, {color, key}, Phase::setup);
    std::map<int, std::vector<std::pair<int, int>>> parts;  // color -> key, rank
    for (int peer = 0; peer < size(); ++peer) {
      const Choice& choice = choices[static_cast<std::size_t>(peer)];
      parts[choice.color].emplace_back(choice.key, peer);
    }
    for (auto& [part, members] : parts) {
      std::sort(members.begin(), members.end());
      if (!is_full(members))
        throw usage_error("the ranks of color " + std::to_string(part) +
                              " are no full nodes of equal size, side by side: Nodes can't be split so",
                          rank());
    }
    return Nodes(inside_.split(color, key), across_.split(color, key));
  }

 private:
  /// Whether these ranks in this order are nodes side by side, with ranks of the same numbers on each.
  bool is_full(const std::vector<std::pair<int, int>>& members) const {
    const int width = inside_.size();
    const auto node = [&](std::size_t k) { return members[k].second / width; };
    const auto local = [&](std::size_t k) { return members[k].second % width; };
    std::size_t ranks = 1;
    while (ranks < members.size() && node(ranks) == node(0)) ++ranks;
    if (members.size() % ranks != 0) return false;
    std::set<int> seen;
    for (std::size_t k = 0; k < members.size(); ++k) {
      if (k % ranks == 0 && !seen.insert(node(k)).second) return false;
      if (node(k) != node(k - k % ranks) || local(k) != local(k % ranks)) return false;
    }
    return true;
  }

  /// Throws on all ranks where one has found a fault.
  void agree(const std::string& fault) {
    char fine = fault.empty() ? 1 : 0;
    const auto ask = [&](auto& level) {
      Assembly<char, std::remove_reference_t<decltype(level)>> everyone(level);
      for (const char theirs : everyone(level, fine, Phase::setup)) fine = fine != 0 ? theirs : fine;
    };
    ask(inside_), ask(across_), ask(inside_);
    if (fine == 0)
      throw mismatch_error(
          fault.empty() ? "another rank finds that nodes or their numbers don't match" : fault, rank());
  }

  void require_way(int peer) const {
    if (peer < 0 || peer >= size() ||
        (peer / inside_.size() != across_.rank() && peer % inside_.size() != inside_.rank()))
      throw usage_error("no message can go between rank " + std::to_string(rank()) + " and rank " +
                            std::to_string(peer) +
                            " of Nodes, which share neither node nor number: use Hierarchical",
                        rank());
  }
  /// Messages to ranks of the same node, by their numbers there, and to others.
  template <class Message>
  void share_out(std::span<const Message> messages, std::vector<Message>& inside,
                 std::vector<Message>& across) {
    inside.clear();
    across.clear();
    for (Message message : messages) {
      const int node = message.peer / inside_.size(), local = message.peer % inside_.size();
      const bool here = node == across_.rank();
      message.peer = here ? local : node;
      (here ? inside : across).push_back(message);
    }
  }
  Batch& unused_batch() {
    for (const std::unique_ptr<Batch>& batch : batches_)
      if (!batch->used) return *batch;
    return add_batch();
  }
  Batch& add_batch() {
    Batch& batch = *batches_.emplace_back(std::make_unique<Batch>());
    const auto ranks = static_cast<std::size_t>(inside_.size()),
               nodes = static_cast<std::size_t>(across_.size());
    batch.sends_inside.reserve(ranks);
    batch.receives_inside.reserve(ranks);
    batch.sends_across.reserve(nodes);
    batch.receives_across.reserve(nodes);
    return batch;
  }

  Inside inside_;
  Across across_;
  std::vector<std::unique_ptr<Batch>> batches_;
  detail::HostGather gather_inside_, gather_across_;
  std::vector<std::byte> column_, table_;  // of all nodes; of all ranks
};

}  // namespace terse
