// SPDX-License-Identifier: Apache-2.0
#include "terse/transport/nccl.hpp"
#include "terse/topology/native.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/transport/metered.hpp"
#include "terse/transport/thread.hpp"
#ifdef TERSE_STAND_IN
#include "stand_in.hpp"
#endif

// The NCCL transport, with a thread for each GPU of this machine, 4 at most: built once with CUDA and NCCL (skipped,
// but for the words it has for that, where there is no GPU) and once with their stand-in.

namespace {

using namespace std::chrono_literals;
using terse::index_t;
using terse::Nccl;
using terse::Phase;
using terse::Receive;
using terse::Send;
using terse::Threads;
using Bytes = std::vector<std::byte>;

constexpr std::chrono::milliseconds patience = 30s, short_patience = 400ms;

int gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? std::min(count, 4) : 0;
}

void cuda(cudaError_t result) { terse::detail::check_cuda(result, "in the test"); }

struct Stream {
  cudaStream_t handle = nullptr;
  Stream() { cuda(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(handle); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
};

/// Runs body(boot, stream) as a thread for each GPU.
template <class Body>
void on_gpus(Body body) {
  terse::ThreadGroup(gpus(), patience).run([&](Threads& boot) {
    cuda(cudaSetDevice(boot.rank()));
    const Stream stream;
    body(boot, stream.handle);
  });
}
/// Work behind a batch that was aborted still runs, and still uses its buffers.
void drain(cudaStream_t stream) {
  while (cudaStreamQuery(stream) == cudaErrorNotReady) std::this_thread::yield();
}
/// Runs body(transport) as a thread for each GPU.
template <class Body>
void on_transport(Body body) {
  on_gpus([&](Threads& boot, cudaStream_t stream) {
    Nccl transport = Nccl::create(boot, stream, patience);
    body(transport);
    transport.synchronize();
  });
}

/// The bytes of the message that `from` sends to `to` in `round`: none, few, or many.
Bytes message(int from, int to, int round) {
  const terse::Draw draw =
      terse::Draw::local(static_cast<std::uint64_t>(round), from * 64 + to, 0, terse::Purpose::user);
  constexpr std::array<std::uint64_t, 4> largest{1, 100, 5000, 300000};
  Bytes bytes(draw.below(largest[draw.below(4, 0)], 1));
  for (std::size_t b = 0; b < bytes.size(); ++b)
    bytes[b] = static_cast<std::byte>((draw.bits(2) >> (b % 32)) + b / 32);
  return bytes;
}

/// One batch among all ranks, whose copies to and from the device are on the stream, too.
struct Everybody {
  std::vector<Bytes> out, in, expected;
  std::vector<terse::buffer<std::byte, terse::memory::device>> device;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  cudaStream_t stream;

  Everybody(const Nccl& transport, int round) : stream(transport.stream()) {
    const auto peers = static_cast<std::size_t>(transport.size());
    out.resize(peers), in.resize(peers), expected.resize(peers);
    for (int peer = 0; peer < transport.size(); ++peer) {
      if (peer == transport.rank()) continue;
      const auto p = static_cast<std::size_t>(peer);
      out[p] = message(transport.rank(), peer, round);
      expected[p] = message(peer, transport.rank(), round);
      in[p].assign(expected[p].size(), std::byte{0xEE});
      device.emplace_back(static_cast<index_t>(out[p].size()));
      sends.push_back({peer, device.back().data(), device.back().size()});
      device.emplace_back(static_cast<index_t>(in[p].size()));
      receives.push_back({peer, device.back().data(), device.back().size()});
    }
  }
  void start(Nccl& transport) {
    for (const Send& send : sends)
      cuda(cudaMemcpyAsync(const_cast<std::byte*>(send.data), out[static_cast<std::size_t>(send.peer)].data(),
                           static_cast<std::size_t>(send.bytes), cudaMemcpyHostToDevice, stream));
    auto ticket = transport.exchange(sends, receives, Phase::reduce);
    CHECK(ticket.ready());
    ticket.wait();
    ticket.wait(1ms);
  }
  /// After synchronize(): a copy to pageable memory waits for itself and all before it, without a deadline.
  bool arrived() {
    for (const Receive& receive : receives)
      cuda(cudaMemcpyAsync(in[static_cast<std::size_t>(receive.peer)].data(), receive.data,
                           static_cast<std::size_t>(receive.bytes), cudaMemcpyDeviceToHost, stream));
    return in == expected;
  }
};

struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "terse-nccl-XXXXXX").string();
  Folder() { REQUIRE(::mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
};

/// What `act` throws as an E; another exception fails the test.
template <class E>
std::string thrown(const std::function<void()>& act) {
  try {
    act();
  } catch (const E& failure) {
    return failure.what();
  }
  return "nothing was thrown";
}

}  // namespace

static_assert(terse::Transport<Nccl>);
static_assert(terse::Ticket<Nccl::Ticket>);
static_assert(terse::Transport<terse::Metered<Nccl>>);
static_assert(!std::copyable<Nccl>);

TEST_CASE("every message arrives whole and in the stream's order, without waiting in between") {
  on_transport([](Nccl& end) {
    std::vector<Everybody> batches;
    for (int round = 0; round < 30; ++round) batches.emplace_back(end, round);
    for (Everybody& batch : batches) batch.start(end);
    end.synchronize();
    for (Everybody& batch : batches) CHECK(batch.arrived());
  });
}

TEST_CASE("a message that may be shorter than the room brings the whole room") {
  on_transport([](Nccl& end) {
    if (end.size() < 2 || end.rank() > 1) return;
    terse::buffer<std::byte, terse::memory::device> place(100);
    const Bytes out(100, std::byte{7});
    Bytes in(100);
    if (end.rank() == 0) {
      terse::memory::device::upload(place.data(), out.data(), 100);
      const Send send{1, place.data(), 10, 100};
      end.exchange({&send, 1}, {}, Phase::reduce).wait();
      end.synchronize();
    } else {
      const Receive receive{0, place.data(), 100, true};
      end.exchange({}, {&receive, 1}, Phase::reduce).wait();
      end.synchronize();
      terse::memory::device::download(in.data(), place.data(), 100);
      CHECK(in == out);
    }
  });
}

TEST_CASE("split makes channels of equal color, ranked by key, that don't hear each other") {
  on_transport([](Nccl& end) {
    const int rank = end.rank(), size = end.size();
    Nccl channel = end.split(rank % 2, -rank);
    const int members = (size + 1 - rank % 2) / 2;
    CHECK(channel.size() == members);
    CHECK(channel.rank() == members - 1 - rank / 2);
    CHECK(channel.stream() == end.stream());
    terse::Assembly<int, Nccl> assembly(channel);
    int place = 0;
    for (const int member : assembly(channel, rank, Phase::setup))
      CHECK(member == rank % 2 + 2 * (members - 1 - place++));
    CHECK(place == members);

    Everybody in_end(end, 1), in_channel(channel, 2);
    in_end.start(end);
    in_channel.start(channel);
    channel.synchronize();
    CHECK(in_end.arrived());
    CHECK(in_channel.arrived());
    Nccl moved(std::move(channel));
    CHECK(moved.size() == members);
    CHECK(thrown<terse::usage_error>([&] { moved.split(-1, 0); }).find("NCCL's colors are 0 or more") !=
          std::string::npos);
  });
}

TEST_CASE("a split among the same ranks on the same stream is a handle to the same communicator") {
  on_transport([](Nccl& end) {
    const auto check_made = [&]([[maybe_unused]] int made, int color, int key, cudaStream_t stream) {
      Nccl channel = end.split(color, key, stream);
      CHECK(channel.size() == end.size());
      CHECK(channel.stream() == stream);
      Everybody batch(channel, 3);
      batch.start(channel);
      channel.synchronize();
      CHECK(batch.arrived());
      terse::barrier(end);
#ifdef TERSE_STAND_IN
      CHECK(stand_in::communicators == (1 + made) * end.size());  // each rank counts its handle
#endif
      terse::barrier(end);
    };
    const Stream own;
    const int last = end.size() - 1;
    check_made(0, 0, end.rank(), end.stream());
    check_made(0, 7, 0, end.stream());
    check_made(last > 0 ? 1 : 0, 0, -end.rank(), end.stream());
    check_made(1, 0, end.rank(), own.handle);
    // One rank alone moves to another stream: all ranks make a communicator.
    check_made(1, 0, end.rank(), end.rank() == last ? own.handle : end.stream());
    // The communicator lives as long as one of its handles.
    Nccl first = end.split(0, end.rank());
    { const Nccl second = first.split(0, end.rank()); }
    Everybody batch(first, 4);
    batch.start(first);
    first.synchronize();
    CHECK(batch.arrived());
  });
}

TEST_CASE("host values are gathered in rank order, small ones and large ones, and counted") {
  on_transport([](Nccl& end) {
    terse::Assembly<double, Nccl> assembly(end);
    for (int round = 0; round < 3; ++round) {
      int rank = 0;
      for (const double value : assembly(end, end.rank() + 0.5 * round, Phase::agree))
        CHECK(value == rank++ + 0.5 * round);
      CHECK(rank == end.size());
    }
    const Bytes mine(20000, static_cast<std::byte>(end.rank() + 1));
    Bytes all(mine.size() * static_cast<std::size_t>(end.size()));
    end.all_gather(mine, all);
    bool right = true;
    for (std::size_t b = 0; b < all.size(); ++b)
      right = right && all[b] == static_cast<std::byte>(b / mine.size() + 1);
    CHECK(right);
    CHECK_THROWS_AS(end.all_gather(mine, std::span(all).subspan(1)), const terse::usage_error&);
    terse::barrier(end);

    terse::Metered<Nccl> counted(end.split(0, end.rank()));
    terse::barrier(counted);
    CHECK(counted.traffic()[Phase::barrier].bytes_sent == static_cast<std::uint64_t>(end.size() - 1));
  });
}

TEST_CASE("all_reduce adds up, in place") {
  on_transport([](Nccl& end) {
    std::vector<float> values(1000);
    std::iota(values.begin(), values.end(), static_cast<float>(end.rank()));
    terse::buffer<float, terse::memory::device> place(1000);
    terse::memory::device::upload(place.data(), values.data(), values.size() * sizeof(float));
    end.all_reduce(place.data(), place.size()).wait();
    end.synchronize();
    terse::memory::device::download(values.data(), place.data(), values.size() * sizeof(float));
    bool right = true;
    for (int i = 0; i < 1000; ++i) {
      const float sum = static_cast<float>(end.size() * i + end.size() * (end.size() - 1) / 2);
      right = right && values[static_cast<std::size_t>(i)] == sum;
    }
    CHECK(right);
  });
}

TEST_CASE("reduce_scatter adds up a block for each rank, and all_gather_in_place brings them together") {
  static_assert(terse::ReducesNatively<Nccl>);
  on_transport([](Nccl& end) {
    constexpr terse::index_t count = 320;
    const terse::index_t total = count * end.size();
    std::vector<float> values(static_cast<std::size_t>(total));
    std::iota(values.begin(), values.end(), static_cast<float>(end.rank()));
    terse::buffer<float, terse::memory::device> blocks(total), own(count);
    const std::size_t bytes = values.size() * sizeof(float);
    terse::memory::device::upload(blocks.data(), values.data(), bytes);
    end.reduce_scatter(blocks.data(), own.data(), count).wait();
    end.synchronize();
    terse::memory::device::download(values.data() + end.rank() * count, own.data(), count * sizeof(float));
    terse::memory::device::upload(blocks.data(), values.data(), bytes);
    end.all_gather_in_place(reinterpret_cast<std::byte*>(blocks.data()), count * 4).wait();
    end.synchronize();
    terse::memory::device::download(values.data(), blocks.data(), bytes);
    bool right = true;
    for (terse::index_t i = 0; i < total; ++i) {
      const auto sum = static_cast<float>(end.size() * i + end.size() * (end.size() - 1) / 2);
      right = right && values[static_cast<std::size_t>(i)] == sum;
    }
    CHECK(right);
  });
}

TEST_CASE("ranks meet at a file, which is gone afterwards") {
  const Folder folder;
  on_gpus([&](Threads& boot, cudaStream_t stream) {
    const terse::Rendezvous place{folder.path + "/id", "run.1", boot.rank(), boot.size()};
    Nccl end = Nccl::rendezvous(place, stream, patience);
    CHECK(end.rank() == boot.rank());
    CHECK(end.size() == boot.size());
    Everybody batch(end, 3);
    batch.start(end);
    end.synchronize();
    CHECK(batch.arrived());
    terse::barrier(end);
    CHECK(std::filesystem::is_empty(folder.path));
  });
}

TEST_CASE("a communicator that the program has serves and stays the program's") {
  on_gpus([&](Threads& boot, cudaStream_t stream) {
    ncclUniqueId id{};
    if (boot.rank() == 0) REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    terse::Assembly<ncclUniqueId, Threads> assembly(boot);
    id = assembly(boot, id, Phase::setup)[0];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    ncclCommInitRankConfig(&comm, boot.size(), id, boot.rank(), &config);
    const auto settle = [&] {
      ncclResult_t state = ncclInProgress;
      while (ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress)
        std::this_thread::yield();
      CHECK(state == ncclSuccess);
    };
    settle();
    {
      Nccl end(comm, stream, patience);
      CHECK(end.rank() == boot.rank());
      Everybody batch(end, 4);
      batch.start(end);
      end.synchronize();
      CHECK(batch.arrived());
    }
    ncclCommFinalize(comm);
    settle();
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
  });
}

TEST_CASE("no message goes to oneself or to a rank that is none") {
  on_transport([](Nccl& end) {
    for (const int peer : {-1, end.rank(), end.size()}) {
      const Send send{peer, nullptr, 1};
      const Receive receive{peer, nullptr, 1};
      CHECK_THROWS_AS((void)end.exchange({&send, 1}, {}, Phase::reduce), const terse::usage_error&);
      CHECK_THROWS_AS((void)end.exchange({}, {&receive, 1}, Phase::reduce), const terse::usage_error&);
    }
  });
}

TEST_CASE("whoever waits for a late rank gets peer_error within the deadline, and so does every later call") {
  if (gpus() < 2) return;
  on_gpus([&](Threads& boot, cudaStream_t stream) {
    Nccl end = Nccl::create(boot, stream, patience);
    Nccl channel = end.split(0, boot.rank());
    Everybody warm(channel, 5);  // so that the messages below find their connections made
    warm.start(channel);
    channel.synchronize();
    const bool late = boot.rank() == boot.size() - 1;
    const int culprit = boot.size() == 2 ? 1 : -1;
    Everybody batch(channel, 5);
    if (!late) {
      const auto begin = std::chrono::steady_clock::now();
      bool thrown_in_time = false;
      try {
        batch.start(channel);
        channel.synchronize(short_patience);
      } catch (const terse::peer_error& failure) {
        thrown_in_time = true;
        CHECK(failure.culprit() == culprit);
        CHECK(failure.rank() == boot.rank());
        CHECK(std::string(failure.what()).find("gave up waiting for") != std::string::npos);
        CHECK(std::string(failure.what()).find("in phase 'reduce'") != std::string::npos);
      }
      CHECK(thrown_in_time);
      CHECK(std::chrono::steady_clock::now() - begin >= short_patience);
      CHECK(std::chrono::steady_clock::now() - begin < short_patience + 1s);
      const std::string again = "the NCCL communicators of this rank were aborted: gave up waiting for";
      CHECK(thrown<terse::peer_error>([&] { end.synchronize(); }).find(again) != std::string::npos);
      CHECK(thrown<terse::peer_error>([&] { terse::barrier(channel); }).find(again) != std::string::npos);
      CHECK(thrown<terse::peer_error>([&] { end.split(0, 0); }).find(again) != std::string::npos);
      CHECK(thrown<terse::peer_error>([&] { (void)end.exchange({}, {}, Phase::reduce); }).find(again) !=
            std::string::npos);
    }
    terse::barrier(boot);
    // The late one meets nobody any more, and gives up, too.
    if (late) {
      batch.start(channel);
      CHECK_THROWS_AS(channel.synchronize(short_patience), const terse::peer_error&);
    }
    drain(stream);
  });
}

TEST_CASE("memory is allocated, and zero, while messages wait") {
  if (gpus() < 2) return;
  on_gpus([&](Threads& boot, cudaStream_t stream) {
    Nccl end = Nccl::create(boot, stream, patience);
    Everybody warm(end, 5), batch(end, 5);
    warm.start(end);
    end.synchronize();
    const bool late = boot.rank() == boot.size() - 1;
    if (!late) {
      batch.start(end);
      const terse::buffer<float, terse::memory::device> room(1000);
      CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
      barrier(boot);
      end.synchronize();
      std::vector<float> found(1000, 1);
      download(terse::view<const float, terse::memory::device>(room.all()), terse::view<float>(found));
      CHECK(found == std::vector<float>(1000));
    } else {
      barrier(boot);
      batch.start(end);
      end.synchronize();
    }
  });
}

TEST_CASE("communicators of two creates on a device are aborted together, and a third begins anew") {
  if (gpus() < 2) return;
  on_gpus([&](Threads& boot, cudaStream_t stream) {
    {
      Nccl first = Nccl::create(boot, stream, patience), second = Nccl::create(boot, stream, patience);
      for (Nccl* channel : {&first, &second}) {
        Everybody warm(*channel, 5);
        warm.start(*channel);
        channel->synchronize();
      }
      Everybody waiting(first, 5), behind(second, 5);
      const auto give_up = [&] {
        waiting.start(first);
        behind.start(second);
        CHECK_THROWS_AS(second.synchronize(short_patience), const terse::peer_error&);
        CHECK(thrown<terse::peer_error>([&] {
                first.synchronize(short_patience);
              }).find("were aborted: gave up") != std::string::npos);
        drain(stream);
      };
      const bool late = boot.rank() == boot.size() - 1;
      if (!late) give_up();
      barrier(boot);
      if (late) give_up();
    }
    Nccl third = Nccl::create(boot, stream, patience);
    Everybody batch(third, 5);
    batch.start(third);
    third.synchronize();
    CHECK(batch.arrived());
  });
}

TEST_CASE("a channel on a stream of its own waits for nobody else, and calls its ranks what it is told") {
  if (gpus() < 2) return;
  on_gpus([&](Threads& boot, cudaStream_t stream) {
    const Stream own;
    Nccl end = Nccl::create(boot, stream, patience);
    Nccl channel = end.split(boot.rank() / 2, boot.rank(), own.handle);
    CHECK(channel.stream() == own.handle);
    CHECK(end.stream() == stream);
    if (channel.size() < 2) return;
    channel.name_ranks({10 + boot.rank() / 2 * 2, 11 + boot.rank() / 2 * 2});
    const int mine = 10 + boot.rank(), other = channel.rank() == 0 ? mine + 1 : mine - 1;
    Everybody warm(channel, 6), batch(channel, 6), late(channel, 6);
    warm.start(channel);
    channel.synchronize();
    // Of the first of each pair only; what the other stream has is done meanwhile.
    if (channel.rank() == 0) {
      batch.start(channel);
      end.synchronize(short_patience);
      CHECK(cudaStreamQuery(stream) == cudaSuccess);
      CHECK(cudaStreamQuery(own.handle) == cudaErrorNotReady);
    }
    barrier(boot);
    if (channel.rank() == 1) batch.start(channel);
    channel.synchronize();
    CHECK(batch.arrived());
    barrier(boot);

    if (channel.rank() == 0) {
      late.start(channel);
      try {
        channel.synchronize(short_patience);
        FAIL("nobody is late");
      } catch (const terse::peer_error& failure) {
        CHECK(failure.culprit() == other);
        CHECK(failure.rank() == mine);
        CHECK(failure.what() == "terse: rank " + std::to_string(mine) + ": gave up waiting for rank " +
                                    std::to_string(other) + " in phase 'reduce'");
      }
      channel.abort("too late for that");
      CHECK(thrown<terse::peer_error>([&] { end.synchronize(); }).find("gave up waiting for") !=
            std::string::npos);
    } else {
      channel.abort("the test wants it so");
      const std::string text = ": the NCCL communicators of this rank were aborted: the test wants it so";
      CHECK(thrown<terse::peer_error>([&] { late.start(channel); }) ==
            "terse: rank " + std::to_string(mine) + text);
      CHECK(thrown<terse::peer_error>([&] { end.synchronize(); }) ==
            "terse: rank " + std::to_string(boot.rank()) + text);
    }
    barrier(boot);
    drain(stream);
    drain(own.handle);
  });
}

TEST_CASE("a rank that doesn't split ends the others' wait by its deadline") {
  if (gpus() < 2) return;
  on_gpus([&](Threads& boot, cudaStream_t stream) {
    Nccl end = Nccl::create(boot, stream, short_patience * 5);
    const std::string whom =
        boot.size() == 2 ? "rank 0" : "one or more of " + std::to_string(boot.size()) + " ranks";
    if (boot.rank() > 0)
      CHECK(thrown<terse::peer_error>([&] { end.split(0, 0); }) ==
            "terse: rank " + std::to_string(boot.rank()) + ": gave up waiting for " + whom +
                " in phase 'setup'");
    terse::barrier(boot);
  });
}

TEST_CASE("a deadline of no time is refused, and the longest of any unit doesn't overflow") {
  if (gpus() < 1) return;
  on_gpus([&](Threads& boot, cudaStream_t stream) {
    CHECK_THROWS_AS(Nccl::create(boot, stream, -1s), const terse::usage_error&);
    CHECK_THROWS_AS(Nccl::create(boot, stream, 0s), const terse::usage_error&);
    Nccl end = Nccl::create(boot, stream, std::chrono::seconds::max());
    end.synchronize();
    end.synchronize(std::chrono::hours::max());
  });
}

TEST_CASE("a rank that doesn't come to the file ends the others' wait by its deadline") {
  const Folder folder;
  if (gpus() < 2) return;
  on_gpus([&](Threads& boot, cudaStream_t stream) {
    const terse::Rendezvous place{folder.path + "/id", "run.1", boot.rank(), boot.size()};
    if (boot.rank() != 1)
      CHECK_THROWS_AS(Nccl::rendezvous(place, stream, short_patience), const terse::peer_error&);
    terse::barrier(boot);
    CHECK(std::filesystem::is_empty(folder.path));
  });
}

#ifdef TERSE_STAND_IN
TEST_CASE("an error that NCCL meets on its own ends the wait at once") {
  on_gpus([&](Threads& boot, cudaStream_t stream) {
    Nccl end = Nccl::create(boot, stream, patience);
    terse::barrier(boot);
    stand_in::remote_errors = true;
    if (boot.rank() == 1) {
      // One more than anybody sends.
      terse::buffer<std::byte, terse::memory::device> place(1);
      const Receive receive{0, place.data(), 1};
      auto ticket = end.exchange({}, {&receive, 1}, Phase::spread);
      CHECK_THROWS_AS(end.synchronize(0ms), const terse::peer_error&);
      CHECK_THROWS_AS(ticket.ready(), const terse::peer_error&);
    } else {
      const auto begin = std::chrono::steady_clock::now();
      terse::buffer<std::byte, terse::memory::device> place(1);
      const Receive receive{1, place.data(), 1};
      const std::string text = thrown<terse::peer_error>([&] {
        end.exchange({}, {&receive, 1}, Phase::spread).wait();
        end.synchronize();
      });
      CHECK(text == "terse: rank " + std::to_string(boot.rank()) +
                        ": NCCL, in phase 'spread': remote process exited");
      CHECK(std::chrono::steady_clock::now() - begin < 10s);
    }
    terse::barrier(boot);
  });
  stand_in::remote_errors = false;
}

TEST_CASE("the stand-in ends a program that does what CUDA or NCCL would not survive") {
  /// The signal that ends act(communicator of one rank, stream) in a process of its own; 0 where it comes to its end.
  const auto ends = [](auto act) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(2);
      for (const int what : {SIGABRT, SIGSEGV}) std::signal(what, SIG_DFL);
      const rlimit no_file{0, 0};
      ::setrlimit(RLIMIT_CORE, &no_file);
      ::alarm(60);
      const Stream stream;
      ncclUniqueId id{};
      ncclGetUniqueId(&id);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr;
      ncclCommInitRankConfig(&comm, 1, id, 0, &config);
      for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) ncclCommGetAsyncError(comm, &state);
      act(comm, stream.handle);
      cudaStreamSynchronize(stream.handle);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) == 0 ? 0 : -1;
  };
  static const auto sleeps = [](void*) { std::this_thread::sleep_for(100ms); };
  static const auto device_memory = [] { return static_cast<char*>(terse::memory::device::allocate(64)); };
  const auto send = [](std::ptrdiff_t offset, bool elsewhere) {
    return [=](ncclComm_t comm, cudaStream_t stream) {
      ncclGroupStart();
      ncclSend(device_memory() + offset, 8, ncclInt8, 0, comm, stream);
      int rank = 0;
      if (elsewhere) std::thread([&] { ncclCommUserRank(comm, &rank); }).join();
    };
  };
  CHECK(ends(send(0, false)) == 0);
  CHECK(ends(send(2, false)) == SIGABRT);
  CHECK(ends(send(0, true)) == SIGABRT);
  const auto upload = [](char after) {
    return [=](ncclComm_t, cudaStream_t stream) {
      char *const from = static_cast<char*>(terse::memory::pinned::allocate(64)), *const to = device_memory();
      cudaLaunchHostFunc(stream, sleeps, nullptr);
      cudaMemcpyAsync(to, from, 8, cudaMemcpyHostToDevice, stream);
      from[3] = after;
    };
  };
  CHECK(ends(upload(0)) == 0);
  CHECK(ends(upload(1)) == SIGABRT);
  CHECK(ends([](ncclComm_t, cudaStream_t) { device_memory()[0] = 1; }) == SIGSEGV);
}

TEST_CASE("nothing is left behind") {
  CHECK(stand_in::communicators == 0);
  CHECK(stand_in::allocations == 0);
}
#endif

TEST_CASE("ranks that share a GPU are told so before NCCL starts") {
  const auto share = [](bool neighbours) {
    std::vector<std::string> said(4);
    terse::ThreadGroup(4, patience).run([&](Threads& boot) {
      const std::array<int, 4> devices = neighbours ? std::array{0, 1, 1, 2} : std::array{3, 0, 2, 3};
      cuda(cudaSetDevice(devices[static_cast<std::size_t>(boot.rank())]));
      said[static_cast<std::size_t>(boot.rank())] = Nccl::why_not(boot);
      const Stream stream;
      CHECK(thrown<terse::usage_error>([&] { Nccl::create(boot, stream.handle, patience); }) ==
            "terse: rank " + std::to_string(boot.rank()) + ": " +
                said[static_cast<std::size_t>(boot.rank())]);
    });
    for (const std::string& one : said) CHECK(one == said[0]);
    return said[0];
  };
  if (gpus() >= 4) {
    CHECK(share(true).find("ranks 1 and 2 have the same GPU of ") == 0);
    CHECK(share(false).find("ranks 0 and 3 have the same GPU of ") == 0);
  }
  on_gpus([](Threads& boot, cudaStream_t) { CHECK(Nccl::why_not(boot) == ""); });
}

TEST_SUITE("without a GPU") {
  TEST_CASE("every rank is told that one has no GPU, and why") {
    if (gpus() > 0) return;
    terse::ThreadGroup(2, patience).run([&](Threads& boot) {
      const std::string text = thrown<terse::peer_error>([&] { Nccl::create(boot, nullptr, patience); });
      CHECK(text.find("terse: rank " + std::to_string(boot.rank()) + ": rank 0 can't use NCCL: ") == 0);
      CHECK(text == "terse: rank " + std::to_string(boot.rank()) + ": " + Nccl::why_not(boot));
    });
    const terse::Rendezvous place{"/nowhere/id", "run.1", 0, 1};
    const std::string text = thrown<terse::error>([&] { Nccl::rendezvous(place, nullptr, patience); });
    CHECK(text.find("terse: rank 0: can't use NCCL: ") == 0);
  }
}

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const bool none = gpus() == 0;
  if (none) context.addFilter("test-suite", "without a GPU");
  const int result = context.run();
  return result == 0 && none ? 77 : result;
}
