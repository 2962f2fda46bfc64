// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/core/hash.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/levels.hpp"

namespace terse {

/// One transport made of two: `inside` among the ranks of a node, such as Threads of a process or Nccl on a machine, and
/// `across` among the ranks with equal numbers on all nodes, such as Mpi between processes. Rank r has number r mod L on
/// node r / L, for nodes of L ranks. It is for Hierarchical, whose messages stay on one level, and for methods that only
/// gather and agree. A message between two ranks on different nodes and with different numbers is a usage_error.
///
///     terse::Nodes nodes(std::move(thread), terse::Mpi(communicator_of_this_thread));
///
/// Over Threads and Mpi each thread needs its own communicator, and MPI must have been started with MPI_THREAD_MULTIPLE.
/// Constructors are collective. They throw mismatch_error on all ranks if nodes have different sizes, if a rank's number
/// across is not its node's, or if two ranks of a node meet different nodes across. A wait ends by the deadline of the
/// transport for which it waits.
template <Transport Inside, Transport Across>
class Nodes {
  static_assert(std::same_as<typename Inside::memory, typename Across::memory>,
                "terse: both levels of Nodes carry messages of one memory; put ThroughHost around a "
                "transport of host memory");
  /// Lists of a batch in flight; recycled, so that steady traffic allocates nothing.
  struct Batch {
    std::vector<Send> sends_inside, sends_across;
    std::vector<Receive> receives_inside, receives_across;
    int node = 0, local = 0, width = 1;  // this rank's place
    bool used = false;
  };
  struct Release {
    void operator()(Batch* batch) const { batch->used = false; }
  };
  using Used = std::unique_ptr<Batch, Release>;

 public:
  using memory = typename Inside::memory;

  class Ticket {
   public:
    Ticket(Ticket&& other) noexcept = default;
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(batch_, other.batch_);
      std::swap(inside_, other.inside_);
      std::swap(across_, other.across_);
      return *this;
    }

    bool ready() {
      const bool inside = inside_.ready(), across = across_.ready();
      if (inside && across) batch_.reset();
      return inside && across;
    }
    void wait() {
      inside_.wait();
      across_.wait();
      batch_.reset();
    }
    void wait(Deadline deadline) {
      const auto until = detail::time_after(deadline);
      inside_.wait(deadline);
      across_.wait(detail::time_left(until - std::chrono::steady_clock::now()));
      batch_.reset();
    }
    /// See KnowsAwaited.
    int awaited() requires(KnowsAwaited<TicketOf<Inside>>&& KnowsAwaited<TicketOf<Across>>) {
      if (batch_ == nullptr) return -1;
      const int local = inside_.awaited(), node = local < 0 ? across_.awaited() : batch_->node;
      return node < 0 ? -1 : node * batch_->width + (local < 0 ? batch_->local : local);
    }

   private:
    friend class Nodes;
    Ticket(Used batch, TicketOf<Inside> inside, TicketOf<Across> across)
        : batch_(std::move(batch)), inside_(std::move(inside)), across_(std::move(across)) {}

    Used batch_;
    TicketOf<Inside> inside_;
    TicketOf<Across> across_;
  };

  Nodes(Inside inside, Across across) : inside_(std::move(inside)), across_(std::move(across)) {
    require_full_nodes();
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
    Used batch(&unused_batch());
    batch->used = true;
    share_out(sends, batch->sends_inside, batch->sends_across);
    share_out(receives, batch->receives_inside, batch->receives_across);
    auto across = across_.exchange(batch->sends_across, batch->receives_across, phase);
    auto inside = inside_.exchange(batch->sends_inside, batch->receives_inside, phase);
    return Ticket(std::move(batch), std::move(inside), std::move(across));
  }

  /// Gathers host bytes of all ranks, first across and then inside. Sends (nodes - 1) blocks across, and (L - 1) times as
  /// many as there are nodes inside.
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

  /// Waits for messages in flight on transports that work in a stream's order.
  void synchronize() requires(detail::in_stream_order<Inside> || detail::in_stream_order<Across>) {
    detail::await_messages(inside_);
    detail::await_messages(across_);
  }
  auto stream() const requires requires(const Inside& level) { level.stream(); }
  { return inside_.stream(); }

  /// Makes the transport of this rank's part. Each part must again consist of full nodes of equal size, such as all
  /// ranks, one node's, or each rank alone; otherwise all ranks throw usage_error.
  Nodes split(int color, int key) {
    const detail::Call call(detail::Verb::split);
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
  /// Checks whether these ranks, in this order, are nodes one after another, with ranks of equal numbers on each.
  bool is_full(const std::vector<std::pair<int, int>>& members) const {
    const int width = inside_.size();
    const auto node = [&](std::size_t k) { return members[k].second / width; };
    const auto local = [&](std::size_t k) { return members[k].second % width; };
    std::size_t ranks = 1;
    while (ranks < members.size() && node(ranks) == node(0)) ++ranks;
    if (members.size() % ranks != 0) return false;
    for (std::size_t k = 0; k < members.size(); ++k)
      if (node(k) != node(k - k % ranks) || local(k) != local(k % ranks)) return false;
    return true;
  }

  /// Position that a rank reports, its findings about other ranks, and the first fault.
  struct Place {
    int node, nodes, local, ranks;
    std::uint64_t mark;  // of its node
    std::uint64_t met;   // a hash of the marks of all nodes
    char fault[320];
    std::uint64_t sum;  // checksum of all these fields, for gathers without an Assembly
  };
  static std::uint64_t sum_of(Place place) {
    place.sum = 0;
    return detail::hash_bytes(reinterpret_cast<const std::byte*>(&place), sizeof place);
  }
  /// Places of the ranks across. Their exchange continues after construction if messages can be host values and reach all.
  class Column {
   public:
    Column(Across& across, const Place& mine) : places_(static_cast<std::size_t>(across.size()), mine) {
      Place& own = places_[static_cast<std::size_t>(across.rank())];
      own.sum = sum_of(own);
      if constexpr (GathersHostBytes<Across>)
        if (!std::is_same_v<memory, terse::memory::host> || detail::node_size(across) > 0) {
          across.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(places_)),
                            Phase::setup);
          return;
        }
      for (Place& place : places_) {
        if (&place == &own) continue;
        const int peer = static_cast<int>(&place - places_.data());
        sends_.push_back({peer, reinterpret_cast<const std::byte*>(&own), sizeof own, 0});
        receives_.push_back({peer, reinterpret_cast<std::byte*>(&place), sizeof place, false});
      }
      ticket_.emplace(across.exchange(sends_, receives_, Phase::setup));
    }
    std::span<const Place> operator()() {
      if (ticket_) ticket_->wait();
      return places_;
    }
    /// Waits before an error, since others may still read this rank's place. The wait is short, since one of them may
    /// never arrive.
    void linger() {
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
      try {
        while (ticket_ && !ticket_->ready() && std::chrono::steady_clock::now() < until) {
        }
      } catch (const error&) {
        // This rank's own error is more specific.
      }
    }

   private:
    std::vector<Place> places_;
    std::vector<Send> sends_;
    std::vector<Receive> receives_;
    std::optional<TicketOf<Across>> ticket_;
  };

  /// Throws mismatch_error, with the fault, on all ranks if one has found a fault.
  TERSE_COLD void require_full_nodes() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    Place mine{across_.rank(),
               across_.size(),
               inside_.rank(),
               inside_.size(),
               mix_hash(static_cast<std::uint64_t>(now), reinterpret_cast<std::uintptr_t>(this)),
               0,
               {},
               0};
    const auto on_node = [&] {
      Assembly<Place, Inside> node(inside_);
      const std::span<const Place> places = node(inside_, mine, Phase::setup);
      mine.mark = places[0].mark;
      listen(mine, places, [&](const Place& other) {
        return other.node == mine.node && other.nodes == mine.nodes && other.ranks == mine.ranks;
      });
      for (const Place& other : places)
        if (other.met != places[0].met)
          say(mine, "ranks 0 and " + std::to_string(other.local) + " of node " + std::to_string(mine.node) +
                        " meet different nodes across: Nodes requires the same nodes in the same order for "
                        "all ranks of a node");
    };
    const auto on_column = [&](Column& column) {
      for (std::size_t node = 0; node < column().size(); ++node)
        if (const Place& other = column()[node]; other.sum != sum_of(other))
          say(mine, "what rank " + std::to_string(mine.local) + " of node " + std::to_string(node) +
                        " was damaged on its way");
      listen(mine, column(), [&](const Place& other) {
        return other.local == mine.local && other.nodes == mine.nodes && other.ranks == mine.ranks;
      });
    };
    on_node();
    Column column(across_, mine);
    // There is a rank 0 on every node; others may wait across for a rank that doesn't exist.
    if (mine.local == 0) on_column(column);
    on_node();
    if (mine.fault[0] == '\0') {
      on_column(column);
      for (const Place& place : column()) mine.met = mix_hash(mine.met, place.mark);
      // If all ranks of a node find their columns in order and with equal nodes, that node has met every rank of these
      // nodes. So after any fault, each node has a rank that has seen it.
      on_node();
    }
    if (mine.fault[0] == '\0') return;
    column.linger();
    throw mismatch_error(mine.fault, rank());
  }
  /// Records the first fault that others have found or that their places show.
  template <class Fits>
  static void listen(Place& mine, std::span<const Place> places, const Fits& fits) {
    for (const Place& place : places)
      if (place.fault[0] != '\0')
        say(mine, std::string(place.fault, ::strnlen(place.fault, sizeof place.fault)));
      else if (!fits(place))
        say(mine, "rank " + std::to_string(place.local) + " of node " + std::to_string(place.node) +
                      " is one of " + std::to_string(place.ranks) + " on its node and of " +
                      std::to_string(place.nodes) + " nodes, and rank " + std::to_string(mine.local) +
                      " of node " + std::to_string(mine.node) + " one of " + std::to_string(mine.ranks) +
                      " and of " + std::to_string(mine.nodes) +
                      ": Nodes requires full nodes, and across them ranks of equal number");
  }
  static void say(Place& mine, const std::string& fault) {
    if (mine.fault[0] == '\0') fault.copy(mine.fault, sizeof mine.fault - 1);
  }

  void require_way(int peer) const {
    if (peer < 0 || peer >= size() ||
        (peer / inside_.size() != across_.rank() && peer % inside_.size() != inside_.rank()))
      throw usage_error("no message can go between rank " + std::to_string(rank()) + " and rank " +
                            std::to_string(peer) +
                            " of Nodes, which share neither node nor number: use Hierarchical",
                        rank());
  }
  /// Divides messages into those to ranks of the same node, by their numbers there, and those to other nodes.
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
    batch.node = across_.rank(), batch.local = inside_.rank(), batch.width = inside_.size();
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
