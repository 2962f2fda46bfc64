// SPDX-License-Identifier: Apache-2.0
#include "stand_in.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "terse/device/emulated.hpp"

std::atomic<bool> stand_in::remote_errors = false, stand_in::connecting_blocks = false;
std::atomic<int> stand_in::function_delay = 0, stand_in::message_delay = 0;
std::atomic<int> stand_in::communicators = 0, stand_in::allocations = 0, stand_in::streams = 0,
                 stand_in::events = 0;

namespace {

using Bytes = std::vector<std::byte>;
// A device's memory, open to the host only while an emulated::Open lives.
using terse::memory::emulated;

// One lock for everything: ranks are few and messages small.
std::mutex everything;
std::condition_variable change;

[[noreturn]] void misuse(const char* what) {
  std::fprintf(stderr, "stand-in for NCCL: %s\n", what);
  std::abort();
}

/// Work on a stream: `done` is called, under the lock, until it says so; then `run` without the lock, if there is one.
struct Work {
  std::function<bool()> done;
  std::function<void()> run;
  int delay = 0;  // microseconds, before either
};

thread_local int device = 0;

}  // namespace

struct CUstream_st {
  const int device = ::device;
  std::deque<Work> queue;
  bool over = false;
  std::thread worker{[this] {
    std::unique_lock lock(everything);
    for (;;) {
      change.wait(lock, [&] { return over || !queue.empty(); });
      if (over) return;
      if (const int delay = queue.front().delay; delay > 0) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(delay));
        lock.lock();
      }
      change.wait(lock, [&] { return over || queue.front().done(); });
      if (over) return;
      if (const auto& run = queue.front().run) {
        lock.unlock();
        run();
        lock.lock();
      }
      queue.pop_front();
      change.notify_all();
    }
  }};
};

struct CUevent_st {
  struct Mark {
    bool reached = false;
  };
  std::shared_ptr<Mark> last;  // none before the first record
};

namespace {

std::set<CUstream_st*> all_streams;

/// Under the lock, without a deadline but for the program's own.
template <class Condition>
void wait_in_vain_for(std::unique_lock<std::mutex>& lock, const char* what, Condition condition) {
  if (!change.wait_for(lock, std::chrono::seconds(20), condition)) misuse(what);
}
void wait_for_device() {
  std::unique_lock lock(everything);
  wait_in_vain_for(lock, "a wait for the whole device, whose streams wait for others", [] {
    for (const CUstream_st* stream : all_streams)
      if (stream->device == device && !stream->queue.empty()) return false;
    return true;
  });
}

/// What the members of a communicator share.
struct Group {
  struct Message {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    bool taken = false;
  };
  struct Split {
    std::map<int, std::tuple<int, int>> choices;  // rank -> color, key
    std::map<int, std::shared_ptr<Group>> parts;  // color -> group
  };
  int size = 0;
  int arrived = 0, finalized = 0;
  bool aborted = false;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> lanes;  // from, to
  std::set<std::pair<int, int>> senders, receivers;                           // who has called for a lane
  std::map<int, std::map<int, Bytes>> collectives;  // number -> rank -> contribution
  std::map<int, Split> splits;
};

std::map<std::string, std::shared_ptr<Group>> groups;  // by unique id
std::map<const void*, std::size_t> page_locked;        // bytes

/// A copy between a device and page-locked memory that is on its stream.
struct Copying {
  const std::byte* begin;  // on the host
  std::size_t bytes;
  bool overlaps(const void* other, std::size_t count) const {
    const auto* first = static_cast<const std::byte*>(other);
    return begin < first + count && first < begin + bytes;
  }
};
std::list<Copying> copying;

}  // namespace

struct ncclComm {
  ncclComm(std::shared_ptr<Group> group_, int rank_) : group(std::move(group_)), rank(rank_) {}
  std::shared_ptr<Group> group;
  int rank;
  int collectives = 0, splits = 0;
  bool finalized = false, destroyed = false;
  std::shared_ptr<bool> aborted = std::make_shared<bool>(false);
  std::shared_ptr<int> busy = std::make_shared<int>(0);  // its operations on streams
  std::function<bool()> pending;                         // the call under way; says whether it is through
  int polls = 0;                                         // times that it still says no
  std::thread::id grouping;                              // who has it in an open group
};

namespace {

/// What a thread has called since ncclGroupStart.
struct Open {
  struct Transfer {
    bool send;
    int peer;
    std::byte* data;
    std::size_t bytes;
  };
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Transfer> transfers;
};
thread_local Open batch;

ncclComm_t idle(ncclComm_t comm) {
  if (comm == nullptr || comm->destroyed) misuse("a communicator that is none");
  if (comm->pending) misuse("a call on a communicator whose last call is not through");
  if (comm->finalized) misuse("a call on a finalized communicator");
  if (comm->grouping != std::thread::id() && comm->grouping != std::this_thread::get_id())
    misuse("a call on a communicator that another thread has in a group");
  return comm;
}

/// Sums demand it, and messages that aren't aligned are copied byte by byte.
void require_aligned(const void* place, std::size_t bytes) {
  if (bytes > 0 && reinterpret_cast<std::uintptr_t>(place) % 4 != 0)
    misuse("a buffer that doesn't begin at a multiple of 4 bytes");
}

ncclResult_t later(ncclComm_t comm, std::function<bool()> pending) {
  comm->pending = std::move(pending);
  comm->polls = 3;
  return ncclInProgress;
}

void enqueue(cudaStream_t stream, std::function<bool()> done, int delay = 0) {
  stream->queue.push_back({std::move(done), nullptr, delay});
  change.notify_all();
}
/// An operation of a communicator.
template <class Done>
void enqueue(cudaStream_t stream, const std::shared_ptr<int>& busy, Done done, int delay = 0) {
  ++*busy;
  enqueue(
      stream,
      [=]() mutable {
        if (!done()) return false;
        --*busy;
        return true;
      },
      delay);
}

/// `count` floats of the sum over ranks of their blocks, from the first-th on.
void add_up(const std::map<int, Bytes>& all, std::size_t first, std::size_t count, void* to) {
  const emulated::Open memory;
  for (std::size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (const auto& [_, block] : all) {
      float value = 0;
      std::memcpy(&value, block.data() + (first + i) * sizeof value, sizeof value);
      sum += value;
    }
    std::memcpy(static_cast<std::byte*>(to) + i * sizeof sum, &sum, sizeof sum);
  }
}

/// Enqueues a collective: contributes at its turn, and finishes with everybody's.
ncclResult_t collective(ncclComm_t comm, cudaStream_t stream, const void* from, std::size_t bytes,
                        std::function<void(const std::map<int, Bytes>&)> finish) {
  const std::lock_guard lock(everything);
  idle(comm);
  const int number = comm->collectives++;
  const auto group = comm->group;
  return later(comm, [=, rank = comm->rank, aborted = comm->aborted, busy = comm->busy] {
    enqueue(stream, busy, [=, contributed = false]() mutable {
      if (*aborted) return true;
      auto& all = group->collectives[number];
      if (!contributed) {
        const auto* begin = static_cast<const std::byte*>(from);
        const emulated::Open memory;
        all[rank] = Bytes(begin, begin + bytes);
        contributed = true;
        change.notify_all();
      }
      if (static_cast<int>(all.size()) < group->size) return false;
      for (const auto& [_, block] : all)
        if (block.size() != bytes) misuse("ranks gather blocks of different sizes");
      finish(all);
      return true;
    });
    return true;
  });
}

bool is_pageable(const void* place) {
  const auto behind = page_locked.upper_bound(place);
  if (behind == page_locked.begin()) return true;
  const auto& [begin, bytes] = *std::prev(behind);
  return static_cast<const std::byte*>(place) >= static_cast<const std::byte*>(begin) + bytes;
}

void discard(ncclComm_t comm) {
  comm->destroyed = true;
  --stand_in::communicators;
  delete comm;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) { return *count = stand_in::gpus, cudaSuccess; }
cudaError_t cudaGetDevice(int* number) { return *number = device, cudaSuccess; }
cudaError_t cudaSetDevice(int number) { return device = number, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int number) {
  *properties = {};
  return properties->uuid.bytes[0] = static_cast<char>(1 + number), cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the stand-in"; }

cudaError_t cudaMalloc(void** place, size_t bytes) {
  ++stand_in::allocations;
  return *place = emulated::allocate(bytes), cudaSuccess;
}
cudaError_t cudaFree(void* place) {
  if (place == nullptr) return cudaSuccess;
  --stand_in::allocations;
  wait_for_device();
  return emulated::release(place), cudaSuccess;
}
cudaError_t cudaMallocHost(void** place, size_t bytes) {
  ++stand_in::allocations;
  *place = std::calloc(bytes, 1);
  const std::lock_guard lock(everything);
  page_locked[*place] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* place) {
  if (place == nullptr) return cudaSuccess;
  --stand_in::allocations;
  wait_for_device();
  const std::lock_guard lock(everything);
  page_locked.erase(place);
  return std::free(place), cudaSuccess;
}
cudaError_t cudaMemset(void* place, int value, size_t bytes) {
  const emulated::Open memory;
  return std::memset(place, value, bytes), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* place, int value, size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(everything);
  const auto set = [=] {
    const emulated::Open memory;
    std::memset(place, value, bytes);
  };
  stream->queue.push_back({[] { return true; }, set, 0});
  change.notify_all();
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return wait_for_device(), cudaSuccess; }
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  const emulated::Open memory;
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  std::unique_lock lock(everything);
  if (bytes == 0) return cudaSuccess;
  const void* const host = kind == cudaMemcpyHostToDevice ? from : to;
  if (kind == cudaMemcpyDeviceToDevice || is_pageable(host)) {
    const auto done = std::make_shared<bool>(false);
    enqueue(stream, [=] {
      const emulated::Open memory;
      return std::memcpy(to, from, bytes), *done = true;
    });
    if (kind == cudaMemcpyDeviceToHost)
      wait_in_vain_for(lock, "a copy to pageable memory waits for work that doesn't end",
                       [&] { return *done; });
    return cudaSuccess;
  }
  // Until the copy is made the host may neither read what shall come nor change what goes.
  const bool alone = std::none_of(copying.begin(), copying.end(),
                                  [&](const Copying& other) { return other.overlaps(host, bytes); });
  Bytes expected;
  if (alone && kind == cudaMemcpyDeviceToHost)
    std::memset(to, 0xFF, bytes);
  else if (alone)
    expected.assign(static_cast<const std::byte*>(from), static_cast<const std::byte*>(from) + bytes);
  const auto here = copying.insert(copying.end(), {static_cast<const std::byte*>(host), bytes});
  enqueue(stream, [=] {
    if (!expected.empty() && std::memcmp(from, expected.data(), bytes) != 0)
      misuse("page-locked memory was changed while it was being copied");
    copying.erase(here);
    const emulated::Open memory;
    return std::memcpy(to, from, bytes), true;
  });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const std::lock_guard lock(everything);
  ++stand_in::streams;
  return all_streams.insert(*stream = new CUstream_st), cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(everything);
    --stand_in::streams;
    all_streams.erase(stream);
    stream->over = true;
    change.notify_all();
  }
  stream->worker.join();
  return delete stream, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  std::unique_lock lock(everything);
  wait_in_vain_for(lock, "a wait for a stream that waits for others", [&] { return stream->queue.empty(); });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  const std::lock_guard lock(everything);
  stream->queue.push_back({[] { return true; }, [=] { function(data); }, stand_in::function_delay});
  change.notify_all();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  ++stand_in::events;
  return *event = new CUevent_st, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  --stand_in::events;
  return delete event, cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(everything);
  event->last = std::make_shared<CUevent_st::Mark>();
  enqueue(stream, [mark = event->last] { return mark->reached = true; });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(everything);
  if (event->last) enqueue(stream, [mark = event->last] { return mark->reached; });
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const std::lock_guard lock(everything);
  return stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "an error of the stand-in";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> number = 0;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "group %d", ++number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const std::lock_guard lock(everything);
  if (config->blocking != 0) misuse("a communicator that blocks");
  auto& group = groups[id.internal];
  if (!group) group = std::make_shared<Group>();
  group->size = size;
  ++group->arrived;
  ++stand_in::communicators;
  *comm = new ncclComm(group, rank);
  return later(*comm, [group] { return group->arrived == group->size; });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* config) {
  const std::lock_guard lock(everything);
  if (config->blocking != 0) misuse("a communicator that blocks");
  idle(comm);
  *part = nullptr;
  const auto group = comm->group;
  const int rank = comm->rank, number = comm->splits++;
  group->splits[number].choices[rank] = {color, key};
  return later(comm, [=] {
    Group::Split& split = group->splits[number];
    if (static_cast<int>(split.choices.size()) < group->size) return false;
    std::vector<std::pair<int, int>> order;
    for (const auto& [peer, choice] : split.choices)
      if (std::get<0>(choice) == color) order.emplace_back(std::get<1>(choice), peer);
    std::sort(order.begin(), order.end());
    auto& child = split.parts[color];
    if (!child) child = std::make_shared<Group>();
    child->size = static_cast<int>(order.size());
    int place = 0;
    while (order[static_cast<std::size_t>(place)].second != rank) ++place;
    ++stand_in::communicators;
    *part = new ncclComm(child, place);
    return true;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard lock(everything);
  if (comm == nullptr || comm->destroyed) misuse("a communicator that is none");
  if (stand_in::remote_errors && comm->group->aborted && (comm->pending || *comm->busy > 0))
    return *state = ncclRemoteError, ncclSuccess;
  if (comm->pending && comm->polls-- <= 0 && comm->pending()) comm->pending = nullptr;
  *state = comm->pending ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  const std::lock_guard lock(everything);
  return *rank = idle(comm)->rank, ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* size) {
  const std::lock_guard lock(everything);
  return *size = idle(comm)->group->size, ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::lock_guard lock(everything);
  idle(comm)->finalized = true;
  ++comm->group->finalized;
  return later(comm, [group = comm->group] { return group->finalized == group->size; });
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(everything);
  if (comm->pending || !comm->finalized) misuse("destroyed without finalizing");
  return discard(comm), ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::lock_guard lock(everything);
  comm->group->aborted = *comm->aborted = true;
  for (auto& [ends, lane] : comm->group->lanes)
    if (ends.first == comm->rank) lane.clear();
  change.notify_all();
  return discard(comm), ncclSuccess;
}

ncclResult_t ncclGroupStart() { return ++batch.depth, ncclSuccess; }
ncclResult_t ncclGroupEnd() {
  if (--batch.depth > 0 || batch.transfers.empty()) return ncclSuccess;
  const std::lock_guard lock(everything);
  const Open mine = std::exchange(batch, {});
  mine.comm->grouping = {};
  const ncclComm_t comm = idle(mine.comm);
  for (const Open::Transfer& transfer : mine.transfers)
    if (transfer.send)
      comm->group->senders.insert({comm->rank, transfer.peer});
    else
      comm->group->receivers.insert({transfer.peer, comm->rank});
  return later(comm, [=, rank = comm->rank, group = comm->group, aborted = comm->aborted, busy = comm->busy] {
    for (const Open::Transfer& transfer : mine.transfers)
      if (stand_in::connecting_blocks && !(transfer.send ? group->receivers.contains({rank, transfer.peer})
                                                         : group->senders.contains({transfer.peer, rank})))
        return false;
    const auto work = [=, posted = std::vector<std::shared_ptr<Group::Message>>(),
                       received = std::set<std::size_t>(), sent = false]() mutable {
      if (*aborted) return true;
      if (!sent)
        for (const Open::Transfer& transfer : mine.transfers)
          if (transfer.send) {
            posted.push_back(std::make_shared<Group::Message>(Group::Message{transfer.data, transfer.bytes}));
            group->lanes[{rank, transfer.peer}].push_back(posted.back());
          }
      if (!std::exchange(sent, true)) change.notify_all();
      bool all = true;
      for (std::size_t k = 0; k < mine.transfers.size(); ++k) {
        const Open::Transfer& transfer = mine.transfers[k];
        if (transfer.send || received.count(k) > 0) continue;
        auto& lane = group->lanes[{transfer.peer, rank}];
        all = all && !lane.empty();
        if (lane.empty()) continue;
        if (lane.front()->bytes != transfer.bytes) misuse("the receiver wants another length than is sent");
        const emulated::Open memory;
        if (transfer.bytes > 0) std::memcpy(transfer.data, lane.front()->data, transfer.bytes);
        lane.front()->taken = true;
        lane.pop_front();
        received.insert(k);
        change.notify_all();
      }
      for (const auto& message : posted) all = all && message->taken;
      return all;
    };
    enqueue(mine.stream, busy, work, stand_in::message_delay);
    return true;
  });
}

static ncclResult_t transfer(bool send, const void* data, size_t bytes, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
  if (batch.depth == 0) misuse("a message outside a group");
  if (batch.comm != nullptr && (batch.comm != comm || batch.stream != stream))
    misuse("a group of two communicators");
  const std::lock_guard lock(everything);
  idle(comm)->grouping = std::this_thread::get_id();
  require_aligned(data, bytes);
  batch.comm = comm;
  batch.stream = stream;
  batch.transfers.push_back({send, peer, static_cast<std::byte*>(const_cast<void*>(data)), bytes});
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* data, size_t bytes, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return transfer(true, data, bytes, peer, comm, stream);
}
ncclResult_t ncclRecv(void* data, size_t bytes, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return transfer(false, data, bytes, peer, comm, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t bytes, ncclDataType_t, ncclComm_t comm,
                           cudaStream_t stream) {
  return collective(comm, stream, from, bytes, [=](const std::map<int, Bytes>& all) {
    const emulated::Open memory;
    for (const auto& [rank, block] : all)
      std::memcpy(static_cast<std::byte*>(to) + static_cast<std::size_t>(rank) * bytes, block.data(), bytes);
  });
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t stream) {
  require_aligned(from, count), require_aligned(to, count);
  return collective(comm, stream, from, count * sizeof(float),
                    [=](const std::map<int, Bytes>& all) { add_up(all, 0, count, to); });
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t stream) {
  const auto rank = static_cast<std::size_t>(comm->rank);
  const auto ranks = static_cast<std::size_t>(comm->group->size);
  require_aligned(from, count), require_aligned(to, count);
  return collective(comm, stream, from, ranks * count * sizeof(float),
                    [=](const std::map<int, Bytes>& all) { add_up(all, rank * count, count, to); });
}

}  // extern "C"
