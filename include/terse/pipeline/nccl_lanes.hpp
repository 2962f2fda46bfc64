// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "terse/device/memory.hpp"
#include "terse/pipeline/lane.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/nccl.hpp"

// Pipelines over NCCL. NCCL's messages are ordered by a stream, and a receive that is posted early blocks its stream
// until the message arrives. So each lane has its own stream and its own communicator of two ranks; events synchronize
// these streams with the stage's computation. The host enqueues a step without waiting for messages, and then waits for
// all of them with the transport's deadline, which must be longer than a step. On the last stage it also waits before
// each loss.
//
// NCCL requires the same length on both sides, and lengths follow from the examples. So all stages agree on the examples
// before each batch, by messages of 16 bytes. This waits for the stream, so that no stage is a batch ahead of another.
//
// While messages are in flight, nothing may wait for the whole device, since that would wait for them: no cudaMalloc,
// cudaFree or cudaDeviceSynchronize in a stage's passes. Up to four receives wait in kernels. If their streams share
// hardware queues with the stage's stream (CUDA_DEVICE_MAX_CONNECTIONS, 8 unless set), the stage's kernels wait for
// them. A failed step, which leaves the pipeline torn, ends the transport: all of its communicators are aborted, so
// that the other stages get an error. A checkpoint or forget() can't repair that.

namespace terse::detail {

/// One direction of a boundary: a connected channel between the two stages, on its own stream.
template <Transport T>
struct StreamChannel {
  OwnStream stream;
  T channel;
};

/// A Lane ordered by two streams: the executor's, on which packets are written and read, and the channel's.
template <Transport T>
class StreamLane {
 public:
  template <class StreamLanes>
  StreamLane(StreamLanes& all, int peer, index_t largest, int window, Phase phase)
      : own_(&all.of(peer, phase)),
        compute_(all.compute()),
        window_(window),
        largest_(aligned(largest)),
        phase_(phase),
        slots_(largest_ * window, uninitialized) {}

  std::byte* slot(index_t j) { return slots_.data() + j % window_ * largest_; }

  template <class Bytes>
  void open(index_t count, const Bytes& bytes) {
    count_ = count;
    for (index_t j = 0; j < std::min<index_t>(window_, count); ++j) post(j, bytes(j));
  }
  void take(index_t j) { arrived_[place(j)].hold(compute_); }
  template <class Bytes>
  void release(index_t j, const Bytes& bytes) {
    if (j + window_ >= count_) return;
    free_[place(j)].mark(compute_);
    free_[place(j)].hold(own_->stream.handle());
    post(j + window_, bytes(j + window_));
  }

  void prepare(index_t j) { arrived_[place(j)].hold(compute_); }
  void send(index_t j, index_t bytes) {
    free_[place(j)].mark(compute_);
    free_[place(j)].hold(own_->stream.handle());
    const Send send{1 - own_->channel.rank(), slot(j), bytes};
    own_->channel.exchange(std::span<const Send>(&send, 1), {}, phase_).wait();
    arrived_[place(j)].mark(own_->stream.handle());
  }
  void drain() { await_messages(own_->channel); }
  /// Aborts the channel: otherwise its messages in flight would mix with those of another step, or cause a deadlock.
  void abandon() { own_->channel.abort("a step of the pipeline failed on this stage"); }

 private:
  std::size_t place(index_t j) const { return static_cast<std::size_t>(j % window_); }
  void post(index_t j, index_t bytes) {
    const Receive receive{1 - own_->channel.rank(), slot(j), bytes};
    own_->channel.exchange({}, std::span<const Receive>(&receive, 1), phase_).wait();
    arrived_[place(j)].mark(own_->stream.handle());
  }

  StreamChannel<T>* own_;
  cudaStream_t compute_;
  int window_;
  index_t largest_, count_ = 0;
  Phase phase_;
  buffer<std::byte, typename T::memory> slots_;
  std::array<StreamEvent, most_in_lane> arrived_;  // the slot's message is received, or sent
  std::array<StreamEvent, most_in_lane> free_;     // the slot's message is read, or written
};

/// The channels, two for each boundary. All stages connect even boundaries before odd ones, since connecting waits
/// for both sides.
template <Transport T, Executor E>
requires InStreamOrder<T>
class Lanes<T, E> {
 public:
  using Lane = StreamLane<T>;
  static constexpr bool exact = true;

  Lanes(T& transport, const E& executor)
      : compute_(executor.stream),
        rank_(transport.rank()),
        channel_((check(transport), transport.split(0, transport.rank()))) {
    for (const int parity : {0, 1})
      for (const Phase phase : {Phase::forward, Phase::backward}) {
        OwnStream stream;
        T pair = transport.split((rank_ + parity) / 2, rank_, stream.handle());
        if (pair.size() == 1) continue;
        const int first = rank_ - pair.rank();
        pair.name_ranks(std::vector<int>{first, first + 1});
        connect(pair, pair.rank() == (phase == Phase::forward ? 0 : 1), phase);
        place(first < rank_, phase).emplace(StreamChannel<T>{std::move(stream), std::move(pair)});
      }
  }

  T& channel() { return channel_; }
  cudaStream_t compute() const { return compute_; }
  StreamChannel<T>& of(int peer, Phase phase) { return *place(peer < rank_, phase); }

 private:
  void check(const T& transport) const {
    if (transport.stream() != compute_)
      throw usage_error("the transport works on another CUDA stream than the executor", rank_);
  }
  std::optional<StreamChannel<T>>& place(bool before, Phase phase) {
    return channels_[before ? 0 : 1][phase == Phase::forward ? 0 : 1];
  }
  /// Connects a channel by sending one byte in the direction of all later messages.
  static void connect(T& pair, bool sends, Phase phase) {
    buffer<std::byte, typename T::memory> hello(1);
    const Send send{1 - pair.rank(), hello.data(), 1};
    const Receive receive{1 - pair.rank(), hello.data(), 1};
    pair.exchange(std::span<const Send>(&send, sends ? 1 : 0),
                  std::span<const Receive>(&receive, sends ? 0 : 1), phase)
        .wait();
    await_messages(pair);
  }

  cudaStream_t compute_;
  int rank_;
  T channel_;
  std::array<std::array<std::optional<StreamChannel<T>>, 2>, 2> channels_;
};

}  // namespace terse::detail
