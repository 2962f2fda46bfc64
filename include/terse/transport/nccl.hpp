// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terse/transport/assembly.hpp"
#include "terse/transport/nccl_channel.hpp"
#include "terse/transport/rendezvous.hpp"

namespace terse {

/// A transport whose ranks have one GPU each, over NCCL. Buffers are in device memory, and all work is in the order of
/// one stream. An exchange sends the results of earlier work on it, and later work sees the received data.
///
/// The host does not wait for messages. `exchange` returns when they are enqueued; for the first message between two
/// ranks this requires both ranks. `Ticket::wait()` only checks for errors. To wait with a deadline, call
/// `synchronize()`. A plain cudaStreamSynchronize has no deadline and never returns if a peer is gone.
///
/// Messages are sent with the receiver's room, since NCCL requires equal lengths on both sides. For a `Receive` with
/// `up_to` all `room` bytes arrive, so a `Send`'s buffer must have that many.
///
/// Errors: if a peer is gone or late, a peer_error is thrown, whose culprit is -1 unless there are two ranks, because
/// NCCL doesn't name the peer. All communicators of this rank on its device, from any `create`, are then aborted, and
/// every later call throws. Work enqueued after an aborted batch still runs, on buffers that were not filled:
/// parameters that it updates are lost. If NCCL rejects arguments it is a usage_error, if CUDA fails a terse::error.
///
/// `exchange`, `all_reduce` and `synchronize` allocate nothing, though NCCL does when it connects two ranks. The
/// transport uses the CUDA device that was current at its construction; keep it current in every thread that uses it.
class Nccl {
  using Channel = detail::NcclChannel;

 public:
  using memory = terse::memory::device;

  /// A ticket: its buffers must stay in place until the stream has passed its batch; the lists need not. Never blocks.
  class Ticket {
   public:
    Ticket(Ticket&&) = default;
    Ticket& operator=(Ticket&&) = default;

    /// Returns true, since the stream orders all work. Throws as `exchange` does if NCCL has met an error.
    bool ready() {
      Channel::Lock lock = channel_->open();
      channel_->done(lock, channel_->comm);
      return true;
    }
    void wait() { ready(); }
    void wait(Deadline) { ready(); }

   private:
    friend class Nccl;
    explicit Ticket(Channel* channel) : channel_(channel) {}
    Channel* channel_;
  };

  /// Makes a separate channel from `communicator`, which remains the caller's: it is not used for messages, not
  /// destroyed and not aborted. Collective; no operation of `communicator` may be in flight. If `communicator` is a
  /// blocking one, no deadline holds for this call.
  explicit Nccl(ncclComm_t communicator, cudaStream_t stream, Deadline deadline = std::chrono::seconds(60))
      : channel_(std::make_shared<Channel>(detail::NcclFamily::of_this_device(), stream, deadline)) {
    check(ncclCommUserRank(communicator, &channel_->rank), "ncclCommUserRank");
    check(ncclCommCount(communicator, &channel_->size), "ncclCommCount");
    split_from(communicator, 0, channel_->rank, /*abortable=*/false);
  }

  /// Returns the reason why the ranks of `boot` can't use NCCL with their current devices: a rank has no device, or two
  /// ranks have one device. The text is equal on all ranks; it is empty if no reason is known. Collective. For programs
  /// that then use ThroughHost.
  template <Transport Boot>
  static std::string why_not(Boot& boot) {
    Assembly<Card, Boot> assembly(boot);
    return find_obstacle(assembly(boot, Card(false), Phase::setup)).text;
  }

  /// Makes a transport among the ranks of `boot`, a transport of host memory that is used only here. Collective. No wait
  /// lasts longer than `deadline`, here or later. Throws the text of `why_not` on all ranks: peer_error if a rank has no
  /// usable GPU, usage_error if two ranks have one GPU.
  template <Transport Boot>
  requires std::same_as<typename Boot::memory, terse::memory::host>
  static Nccl create(Boot& boot, cudaStream_t stream, Deadline deadline = std::chrono::seconds(60)) {
    Assembly<Card, Boot> assembly(boot);
    const std::span<const Card> cards = assembly(boot, Card(boot.rank() == 0), Phase::setup);
    if (const Obstacle obstacle = find_obstacle(cards); obstacle.culprit >= 0)
      throw peer_error(obstacle.text, obstacle.culprit, boot.rank());
    else if (!obstacle.text.empty())
      throw usage_error(obstacle.text, boot.rank());
    return Nccl(cards[0].id, boot.rank(), boot.size(), stream, deadline, detail::time_after(deadline));
  }

  /// Makes a transport among ranks that share only a file, see Rendezvous. Collective. `deadline` holds for the file and
  /// the construction together, and for each wait later.
  static Nccl rendezvous(const Rendezvous& place, cudaStream_t stream,
                         Deadline deadline = std::chrono::seconds(60)) {
    const Channel::Clock::time_point until = detail::time_after(deadline);
    ncclUniqueId id{};
    place.check();
    if (const std::string fault = find_fault(place.rank == 0 ? &id : nullptr); !fault.empty())
      throw error("can't use NCCL: " + fault, place.rank);
    const auto bytes = std::as_writable_bytes(std::span(id.internal));
    if (place.rank != 0) {
      place.fetch(bytes, deadline);
      return Nccl(id, place.rank, place.size, stream, deadline, until);
    }
    place.publish(bytes);
    // Withdraws the file when the ranks have met or rank 0 has given up: after that no rank may read it.
    struct Withdrawal {
      const Rendezvous& place;
      ~Withdrawal() { place.withdraw(); }
    } const withdrawal{place};
    return Nccl(id, place.rank, place.size, stream, deadline, until);
  }

  /// Closes the channel. Collective among the ranks of a machine: all destroy their channels in the same order. Waits for
  /// the others, up to the deadline.
  ~Nccl() = default;
  Nccl(Nccl&&) = default;
  Nccl& operator=(Nccl&&) = default;

  int rank() const { return channel_->rank; }
  int size() const { return channel_->size; }
  cudaStream_t stream() const { return channel_->stream; }

  /// Waits only until the batch is enqueued.
  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    for (const Send& send : sends) require_peer(send.peer);
    for (const Receive& receive : receives) require_peer(receive.peer);
    Channel& channel = *channel_;
    channel.phase = phase;
    {
      Channel::Lock lock = channel.open();
      ncclResult_t result = ncclGroupStart();
      // Sender and receiver omit messages without bytes.
      for (const Receive& receive : receives)
        if (receive.bytes > 0 && result == ncclSuccess)
          result = ncclRecv(receive.data, static_cast<std::size_t>(receive.bytes), ncclInt8, receive.peer,
                            channel.comm, channel.stream);
      for (const Send& send : sends)
        if (const index_t bytes = std::max(send.bytes, send.room); bytes > 0 && result == ncclSuccess)
          result = ncclSend(send.data, static_cast<std::size_t>(bytes), ncclInt8, send.peer, channel.comm,
                            channel.stream);
      const ncclResult_t end = ncclGroupEnd();
      channel.check(lock, result);
      channel.check(lock, end);
    }
    enqueued();
    return Ticket(&channel);
  }

  /// Sums `count` floats over all ranks, in place. NCCL chooses the order by the machine's links, the size and its
  /// version: the bits are NOT equal from run to run, nor to those of other transports. On the stream, like `exchange`.
  [[nodiscard]] Ticket all_reduce(float* data, index_t count, Phase phase = Phase::reduce) {
    return collective(phase, [&](Channel& channel) {
      return ncclAllReduce(data, data, static_cast<std::size_t>(count), ncclFloat32, ncclSum, channel.comm,
                           channel.stream);
    });
  }

  /// Starts NCCL's own reduce-scatter and all-gather, see ReducesNatively. The order of sums is that of all_reduce.
  [[nodiscard]] Ticket reduce_scatter(const float* blocks, float* own, index_t count) {
    return collective(Phase::reduce, [&](Channel& channel) {
      return ncclReduceScatter(blocks, own, static_cast<std::size_t>(count), ncclFloat32, ncclSum,
                               channel.comm, channel.stream);
    });
  }
  [[nodiscard]] Ticket all_gather_in_place(std::byte* blocks, index_t bytes) {
    return collective(Phase::spread, [&](Channel& channel) {
      return ncclAllGather(blocks + rank() * bytes, blocks, static_cast<std::size_t>(bytes), ncclInt8,
                           channel.comm, channel.stream);
    });
  }

  /// Gathers host bytes of every rank on every rank, in rank order: `all` is size() blocks of `mine`'s size. Collective.
  /// Blocks until all earlier work on the stream is done. The first call, and later calls with more bytes, allocate.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase phase = Phase::setup) {
    channel_->all_gather(mine, all, phase);
  }

  /// Waits for all work on the stream; after that all received data is in its place. Throws peer_error and aborts at
  /// the deadline, or at once if NCCL meets an error. Throws error if the work on the stream failed.
  void synchronize(Deadline deadline) { channel_->synchronize(deadline); }
  void synchronize() { synchronize(channel_->deadline); }

  /// Makes a channel on this stream, see below.
  Nccl split(int color, int key) { return split(color, key, stream()); }
  /// Makes a channel on any stream, which must outlive it. Messages of this channel and those of a channel on another
  /// stream don't wait for each other. Waits for this channel's stream first, as NCCL demands. `color` is 0 or more. If
  /// all ranks keep their numbers and their stream, the new channel is a second handle to this communicator: the stream's
  /// order, in which all ranks send, holds for both, and a second communicator would take memory of the device.
  Nccl split(int color, int key, cudaStream_t stream) {
    if (color < 0)
      throw usage_error("NCCL's colors are 0 or more, and this is " + std::to_string(color), rank());
    if (all_stay(color, key, stream)) return Nccl(channel_);
    Nccl part(std::make_shared<Channel>(channel_->family, stream, channel_->deadline));
    part.channel_->rank = rank();  // for error texts, until the new communicator exists
    part.channel_->size = size();
    part.split_from(channel_->comm, color, key, /*abortable=*/true);
    return part;
  }

  /// Sets the names of this communicator's ranks in error texts, one for each. By default they are 0, 1, ...
  void name_ranks(std::vector<int> names) { channel_->names = std::move(names); }

  /// Aborts all communicators of this rank on its device, so that work on their streams no longer waits for messages.
  /// Every later call throws peer_error with this reason. Does nothing after an abort.
  void abort(const std::string& reason) noexcept { channel_->give_up(reason); }

 private:
  explicit Nccl(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
  Nccl(const ncclUniqueId& id, int rank, int size, cudaStream_t stream, Deadline deadline,
       Channel::Clock::time_point until)
      : channel_(std::make_shared<Channel>(detail::NcclFamily::of_this_device(), stream, deadline)) {
    Channel& channel = *channel_;
    channel.rank = rank;
    channel.size = size;
    ncclConfig_t config = Channel::config();
    {
      Channel::Lock lock = channel.open();
      channel.check(lock, ncclCommInitRankConfig(&channel.comm, size, id, rank, &config));
    }
    channel.settle(channel.comm, until);
  }

  /// Checks whether a split gives all ranks one color, their present numbers and their present streams. Collective.
  bool all_stay(int color, int key, cudaStream_t onto) {
    const std::array mine{color, key, onto == stream() ? 1 : 0};
    std::vector<std::array<int, 3>> all(static_cast<std::size_t>(size()));
    all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
    // Ranks with equal keys keep their order.
    return std::all_of(all.begin(), all.end(),
                       [&](const auto& one) { return one[0] == color && one[2] == 1; }) &&
           std::is_sorted(all.begin(), all.end(), [](const auto& a, const auto& b) { return a[1] < b[1]; });
  }

  void split_from(ncclComm_t parent, int color, int key, bool abortable) {
    Channel& channel = *channel_;
    ncclConfig_t config = Channel::config();
    const Channel::Clock::time_point until = detail::time_after(channel.deadline);
    {
      Channel::Lock lock = channel.open();
      channel.check(lock, ncclCommSplit(parent, color, key, &channel.comm, &config));
    }
    try {
      channel.settle(parent, until);
    } catch (...) {
      // NCCL will still write the handle, and only an abort of the parent could prevent that.
      if (!abortable) channel.family->abandoned.push_back(std::move(channel_));
      throw;
    }
    channel.settle(channel.comm, until);
    check(ncclCommUserRank(channel.comm, &channel.rank), "ncclCommUserRank");
    check(ncclCommCount(channel.comm, &channel.size), "ncclCommCount");
  }

  template <class Call>
  Ticket collective(Phase phase, const Call& call) {
    Channel& channel = *channel_;
    channel.phase = phase;
    {
      Channel::Lock lock = channel.open();
      channel.check(lock, call(channel));
    }
    enqueued();
    return Ticket(&channel);
  }

  void enqueued() { channel_->settle(channel_->comm, detail::time_after(channel_->deadline)); }

  void require_peer(int peer) const {
    if (peer < 0 || peer >= size() || peer == rank())
      throw usage_error(
          "no message can go between rank " + std::to_string(rank()) + " and rank " + std::to_string(peer),
          rank());
  }

  static void check(ncclResult_t result, const char* call) {
    if (result != ncclSuccess) throw usage_error(std::string(call) + ": " + ncclGetErrorString(result));
  }

  /// Data that a rank sends to the others before they use NCCL. Rank 0 also makes the id.
  struct Card {
    ncclUniqueId id{};
    char fault[120]{}, host[65]{};
    cudaUUID_t gpu{};

    Card() = default;
    explicit Card(bool makes_id) {
      const std::string found = find_fault(makes_id ? &id : nullptr);
      found.copy(fault, sizeof fault - 1);
      int device = 0;
      cudaDeviceProp properties{};
      if (found.empty() && cudaGetDevice(&device) == cudaSuccess &&
          cudaGetDeviceProperties(&properties, device) == cudaSuccess)
        gpu = properties.uuid;
      // The rule by which NCCL itself distinguishes machines.
      if (const char* const named = std::getenv("NCCL_HOSTID"); named != nullptr)
        std::string_view(named).copy(host, sizeof host - 1);
      else
        ::gethostname(host, sizeof host - 1);
    }
    bool shares_with(const Card& other) const {
      return std::string_view(host) == other.host && std::memcmp(&gpu, &other.gpu, sizeof gpu) == 0;
    }
  };
  struct Obstacle {
    std::string text;
    int culprit = -1;  // rank without a usable GPU
  };
  static Obstacle find_obstacle(std::span<const Card> cards) {
    for (std::size_t rank = 0; rank < cards.size(); ++rank)
      if (cards[rank].fault[0] != '\0')
        return {"rank " + std::to_string(rank) + " can't use NCCL: " + cards[rank].fault,
                static_cast<int>(rank)};
    for (std::size_t rank = 0; rank < cards.size(); ++rank)
      for (std::size_t other = 0; other < rank; ++other)
        if (cards[rank].shares_with(cards[other]))
          return {"ranks " + std::to_string(other) + " and " + std::to_string(rank) +
                  " have the same GPU of " + cards[rank].host +
                  ", and NCCL takes one for each rank: choose them with cudaSetDevice, or take ThroughHost"};
    return {};
  }

  /// Returns the reason why this rank can't take part; empty if none is known. Also makes the id, on rank 0.
  static std::string find_fault(ncclUniqueId* id) {
    int device = 0;
    if (const cudaError_t result = cudaGetDevice(&device); result != cudaSuccess)
      return cudaGetErrorString(result);
    if (id != nullptr)
      if (const ncclResult_t result = ncclGetUniqueId(id); result != ncclSuccess)
        return ncclGetErrorString(result);
    return {};
  }

  std::shared_ptr<Channel> channel_;  // of all handles that share a communicator
};

}  // namespace terse
