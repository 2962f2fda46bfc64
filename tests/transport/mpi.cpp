// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <boost/mpi/communicator.hpp>
#include <boost/mpi/environment.hpp>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/laws/transport.hpp"
#include "terse/terse.hpp"
#include "terse/transport/cuda_aware_mpi.hpp"
#include "terse/transport/mpi.hpp"

// The MPI transport. Run under mpirun with 1, 2, 3 or 4 ranks; TERSE_TEST_BIG=1 adds messages of more than
// one chunk, for which two ranks need about 1.1 GB each. All ranks run the same cases in the same order. With `late PLACE RANK
// HOW` it is the job that mpi_late.py watches waiting.

namespace {

using namespace std::chrono_literals;
using terse::index_t;
using terse::Mpi;
using terse::Phase;
using terse::Receive;
using terse::Send;
using Bytes = std::vector<std::byte>;

constexpr std::chrono::milliseconds patience = 20s;

/// The bytes of the message that `from` sends to `to` in `round`: none, few, or too many to be sent eagerly.
Bytes message(int from, int to, int round) {
  const terse::Draw draw =
      terse::Draw::local(static_cast<std::uint64_t>(round), from * 64 + to, 0, terse::Purpose::user);
  constexpr std::array<std::uint64_t, 4> largest{1, 100, 5000, 300000};
  const std::uint64_t size = draw.below(largest[draw.below(4, 0)], 1);
  Bytes bytes(size);
  for (std::uint64_t b = 0; b < size; ++b)
    bytes[b] = static_cast<std::byte>((draw.bits(2) >> (b % 32)) + b / 32);
  return bytes;
}

/// One batch among all ranks of a transport, with buffers of its own.
struct Everybody {
  std::deque<Bytes> out, in, expected;
  std::vector<Send> sends;
  std::vector<Receive> receives;

  Everybody(const Mpi& transport, int round) {
    for (int peer = 0; peer < transport.size(); ++peer) {
      if (peer == transport.rank()) continue;
      const Bytes& mine = out.emplace_back(message(transport.rank(), peer, round));
      const Bytes& theirs = expected.emplace_back(message(peer, transport.rank(), round));
      Bytes& place = in.emplace_back(theirs.size(), std::byte{0xEE});
      sends.push_back({peer, mine.data(), static_cast<index_t>(mine.size())});
      receives.push_back({peer, place.data(), static_cast<index_t>(place.size())});
    }
  }
  bool arrived() const { return in == expected; }
};

/// Asks a ticket until it is ready, 10 seconds at most.
template <class Ticket>
bool poll(Ticket& ticket) {
  const auto until = std::chrono::steady_clock::now() + 10s;
  while (std::chrono::steady_clock::now() < until) {
    if (ticket.ready()) return true;
    std::this_thread::yield();
  }
  return false;
}

Mpi transport() { return Mpi(boost::mpi::communicator(), patience); }

}  // namespace

static_assert(terse::Transport<Mpi>);
static_assert(terse::Ticket<Mpi::Ticket>);

TEST_CASE("the laws of transports hold") {
  Mpi world = transport();
  const terse::laws::Report report = terse::laws::check_transport(world);
  CHECK_MESSAGE(report, report.text());
}

TEST_CASE("every message arrives whole, whatever its size") {
  Mpi end = transport();
  for (int round = 0; round < 30; ++round) {
    Everybody batch(end, round);
    auto ticket = end.exchange(batch.sends, batch.receives, Phase::reduce);
    if (round % 2 == 0)
      CHECK(poll(ticket));
    else
      ticket.wait();
    ticket.wait();
    CHECK(ticket.ready());
    CHECK(batch.arrived());
  }
}

TEST_CASE("batches in flight arrive in their own places, in whatever order they are awaited") {
  Mpi end = transport();
  for (int round = 0; round < 10; ++round) {
    Everybody a(end, 3 * round), b(end, 3 * round + 1), c(end, 3 * round + 2);
    auto first = end.exchange(a.sends, a.receives, Phase::reduce);
    auto second = end.exchange(b.sends, b.receives, Phase::reduce);
    auto third = end.exchange(c.sends, c.receives, Phase::spread);
    Mpi::Ticket moved(std::move(first));
    std::swap(moved, second);
    if (end.rank() % 2 == 0) {
      third.wait();
      second.wait();
      moved.wait();
    } else {
      moved.wait();
      second.wait();
      third.wait();
    }
    CHECK(a.arrived());
    CHECK(b.arrived());
    CHECK(c.arrived());
  }
}

TEST_CASE("ready says when a batch has arrived, without waiting") {
  Mpi end = transport();
  if (end.size() < 2 || end.rank() > 1) return;
  const int peer = 1 - end.rank();
  int in = 0;
  const int out = 42;
  const Receive receive{peer, reinterpret_cast<std::byte*>(&in), sizeof in};
  const Send send{peer, reinterpret_cast<const std::byte*>(&out), sizeof out};
  if (end.rank() == 0) {
    auto ticket = end.exchange({}, {&receive, 1}, Phase::reduce);
    CHECK_FALSE(ticket.ready());
    end.exchange({&send, 1}, {}, Phase::reduce).wait();  // the peer starts when this has come
    CHECK(poll(ticket));
    CHECK(in == 42);
  } else {
    end.exchange({}, {&receive, 1}, Phase::reduce).wait();
    end.exchange({&send, 1}, {}, Phase::reduce).wait();
  }
}

TEST_CASE("split makes channels of equal color, ranked by key") {
  Mpi end = transport();
  const int rank = end.rank(), size = end.size();
  Mpi channel = end.split(rank % 2, -rank);
  const int members = (size + 1 - rank % 2) / 2;
  CHECK(channel.size() == members);
  CHECK(channel.rank() == members - 1 - rank / 2);
  terse::Assembly<int, Mpi> assembly(channel);
  int place = 0;
  for (const int member : assembly(channel, rank, Phase::setup))
    CHECK(member == rank % 2 + 2 * (members - 1 - place++));
  CHECK(place == members);

  // The channel and its parent don't hear each other, whoever comes first.
  Everybody in_end(end, 1), in_channel(channel, 2);
  auto one = end.exchange(in_end.sends, in_end.receives, Phase::reduce);
  auto two = channel.exchange(in_channel.sends, in_channel.receives, Phase::reduce);
  two.wait();
  one.wait();
  CHECK(in_end.arrived());
  CHECK(in_channel.arrived());
}

TEST_CASE("two transports on one communicator don't hear each other") {
  Mpi first = transport(), second = transport();
  Everybody a(first, 1), b(second, 2);
  auto one = first.exchange(a.sends, a.receives, Phase::reduce);
  auto two = second.exchange(b.sends, b.receives, Phase::reduce);
  two.wait();
  one.wait();
  CHECK(a.arrived());
  CHECK(b.arrived());
}

TEST_CASE("an assembly shows everyone's value in rank order, and a barrier comes back") {
  Mpi end = transport();
  terse::Assembly<double, Mpi> assembly(end);
  for (int round = 0; round < 3; ++round) {
    int rank = 0;
    for (const double value : assembly(end, end.rank() + 0.5 * round, Phase::agree))
      CHECK(value == rank++ + 0.5 * round);
    CHECK(rank == end.size());
  }
  terse::barrier(end);
  Mpi patient(boost::mpi::communicator(), std::chrono::milliseconds::max());
  if (patient.rank() == 0) std::this_thread::sleep_for(20ms);
  terse::barrier(patient);
}

TEST_CASE("Metered counts what goes through MPI") {
  terse::Metered<Mpi> end(transport());
  terse::barrier(end);
  auto channel = end.split(0, 0);
  terse::barrier(channel);
  const auto others = static_cast<std::uint64_t>(end.size() - 1);
  CHECK(end.traffic()[Phase::barrier].bytes_sent == 2 * others);
  CHECK(end.traffic()[Phase::barrier].messages_received == 2 * others);
}

TEST_CASE("a wait that outlasts the deadline names the peer that is missing") {
  Mpi world = transport();
  if (world.size() < 2) return;
  Mpi end = world.split(0, world.rank());
  const int missing = end.size() - 1;
  if (end.rank() != missing) {
    Bytes out(8), in(8);
    std::vector<Send> sends;
    std::vector<Receive> receives;
    std::deque<Bytes> places;
    for (int peer = 0; peer < end.size(); ++peer) {
      if (peer == end.rank()) continue;
      places.emplace_back(8);
      sends.push_back({peer, out.data(), 8});
      receives.push_back({peer, places.back().data(), 8});
    }
    const auto begin = std::chrono::steady_clock::now();
    auto ticket = end.exchange(sends, receives, Phase::spread);
    bool thrown = false;
    try {
      ticket.wait(300ms);
    } catch (const terse::peer_error& failure) {
      thrown = true;
      CHECK(failure.culprit() == missing);
      CHECK(failure.rank() == end.rank());
      CHECK(std::string(failure.what()) ==
            "terse: rank " + std::to_string(end.rank()) + ": waited 300 ms for rank " +
                std::to_string(missing) +
                " in phase 'spread': late, or in another call; all ranks make the same "
                "calls in the same order (optimizers, steps, checkpoints, means)");
    }
    CHECK(thrown);
    const auto waited = std::chrono::steady_clock::now() - begin;
    CHECK(waited >= 300ms);
    CHECK(waited < 1300ms);
  }
  // The other channels are still good.
  terse::barrier(world);
}

TEST_CASE("a ticket's own deadline is the transport's where none is given") {
  Mpi world = transport();
  if (world.size() < 2) return;
  Mpi end(boost::mpi::communicator(), 200ms);
  Mpi channel = end.split(0, 0);
  if (end.rank() == 0) {
    std::byte in{};
    const Receive receive{1, &in, 1};
    const auto begin = std::chrono::steady_clock::now();
    CHECK_THROWS_AS(end.exchange({}, {&receive, 1}, Phase::reduce).wait(), const terse::peer_error&);
    const Receive again{1, &in, 1};
    CHECK_THROWS_AS(channel.exchange({}, {&again, 1}, Phase::reduce).wait(), const terse::peer_error&);
    CHECK(std::chrono::steady_clock::now() - begin < 1400ms);
  }
  terse::barrier(world);
}

TEST_CASE("a rank that says that it is at work is waited for, and so are those that wait for it") {
  Mpi world = transport();
  const int last = world.size() - 1;
  if (last < 1) return;
  terse::AnyTransport end(terse::Metered(Mpi(boost::mpi::communicator(), 500ms)));
  terse::AnyTransport channel = end.split(0, end.rank());
  // Each waits for the one behind it, and that one for the last.
  const auto meet = [&] {
    int in = 0;
    const int out = 1;
    const Receive receive{end.rank() + 1, reinterpret_cast<std::byte*>(&in), sizeof in};
    const Send send{end.rank() - 1, reinterpret_cast<const std::byte*>(&out), sizeof out};
    if (end.rank() < last) channel.exchange({}, {&receive, 1}, Phase::reduce).wait();
    if (end.rank() > 0) channel.exchange({&send, 1}, {}, Phase::reduce).wait();
  };
  for (int k = 0; end.rank() == last && k < 28; ++k) {
    std::this_thread::sleep_for(50ms);
    end.here();
  }
  meet();
  // Signs of the past hold nobody up for longer.
  terse::barrier(channel);
  const auto begin = std::chrono::steady_clock::now();
  if (end.rank() == last) std::this_thread::sleep_for(1200ms);
  if (end.rank() == last - 1) CHECK_THROWS_AS(meet(), const terse::peer_error&);
  const auto waited = std::chrono::steady_clock::now() - begin;
  if (end.rank() == last - 1) CHECK(waited > 490ms);
  if (end.rank() == last - 1) CHECK(waited < 1150ms);
  terse::barrier(world);
}

TEST_CASE(
    "a deadline that no wait could keep is refused, and the longest of any unit is none that overflows") {
  CHECK_THROWS_AS(Mpi(boost::mpi::communicator(), 0s), const terse::usage_error&);
  CHECK_THROWS_AS(Mpi(boost::mpi::communicator(), -1s), const terse::usage_error&);
  CHECK_THROWS_AS(Mpi::finalize(-1s), const terse::usage_error&);
  int argc = 0;
  char** argv = nullptr;
  CHECK(Mpi::run(
            argc, argv, [](Mpi&) { FAIL("it was run"); }, -1s) == EXIT_FAILURE);
  Mpi end(boost::mpi::communicator(), std::chrono::seconds::max());
  if (end.rank() == 0) std::this_thread::sleep_for(100ms);
  terse::barrier(end);
  auto mailbox = end.mailbox(8);
  if (end.rank() == 0) std::this_thread::sleep_for(100ms);
}

TEST_CASE("a receive that is posted before a split gets what its peer sends after it") {
  Mpi end = transport();
  if (end.size() < 2) return;
  int in = 0;
  const int out = 42;
  const Receive receive{1, reinterpret_cast<std::byte*>(&in), sizeof in};
  const Send send{0, reinterpret_cast<const std::byte*>(&out), sizeof out};
  const bool first = end.rank() == 0, second = end.rank() == 1;
  auto early = end.exchange({}, {&receive, first ? 1U : 0U}, Phase::reduce);
  Mpi channel = end.split(end.rank() % 2, 0);
  end.exchange({&send, second ? 1U : 0U}, {}, Phase::reduce).wait();
  early.wait();
  CHECK(in == (first ? 42 : 0));
}

TEST_CASE(
    "a split that one rank comes late to fails on all, and other channels and later splits don't hear of "
    "it") {
  Mpi world = transport();
  if (world.size() < 2) return;
  {
    Mpi end(boost::mpi::communicator(), 200ms);
    const int late = end.size() - 1;
    if (end.rank() == late) std::this_thread::sleep_for(500ms);
    bool thrown = false;
    try {
      Mpi channel = end.split(0, 0);
    } catch (const terse::peer_error& failure) {
      thrown = true;
      const int missing = end.rank() == late ? 0 : late;
      CHECK(std::string(failure.what())
                .find(": waited 200 ms for rank " + std::to_string(missing) +
                      " in phase 'setup' of a split: late, or in another call; ") != std::string::npos);
    }
    CHECK(thrown);
  }
  terse::barrier(world);
  for (int round = 0; round < 3; ++round) {
    Mpi channel = world.split(round % 2 == 0 ? 0 : world.rank() % 2, 0);
    Everybody batch(channel, round);
    channel.exchange(batch.sends, batch.receives, Phase::reduce).wait();
    CHECK(batch.arrived());
  }
}

TEST_CASE("ranks in different calls are told in which") {
  Mpi world = transport();
  if (world.size() < 2) return;
  const bool first = world.rank() == 0;
  std::string said;
  try {
    if (first)
      terse::equal(world, std::vector<int>(3));
    else
      terse::broadcast(world, std::uint64_t{7});
  } catch (const terse::mismatch_error& failure) {
    said = failure.what();
  }
  CHECK(said.find(first ? "rank 1 is in a broadcast of one value, and this rank in a comparison (phase "
                          "'setup'): all ranks "
                        : "rank 0 is in a comparison, and this rank in a broadcast of one value (phase "
                          "'setup'): all ranks ") != std::string::npos);
  terse::barrier(world);

  // A message that is longer than expected, and one that is shorter.
  Mpi channel(boost::mpi::communicator(), patience);
  said.clear();
  try {
    if (first)
      terse::mean(channel, 1.0);
    else
      terse::all_gather(channel, static_cast<char>(channel.rank()));
  } catch (const terse::wire_error& failure) {
    CHECK(first);
    said = failure.what();
  } catch (const terse::peer_error& failure) {
    CHECK(failure.culprit() == -1);
    said = failure.what();
  }
  CAPTURE(said);
  CHECK(said.find(
            first ? "the message from rank 1 (phase 'setup') does not match its checksum"
                  : "MPI reports a message that has failed in phase 'setup' of an all_gather of one value, "
                    "as one does that is longer than this rank expects; all ranks make the same calls") !=
        std::string::npos);
  terse::barrier(world);
}

TEST_CASE("OneBitAdam leaves the same parameters on all ranks") {
  Mpi end = transport();
  terse::Layout layout;
  layout.add({"weight", {300}}).add({"bias", {10}, 1, 0, false});
  terse::OneBitAdam<terse::Sign, terse::FrozenVariance, terse::Ring> recipe;
  recipe.preconditioner.freeze = terse::AtStep{2};
  terse::Optimizer optimizer{recipe, end, layout};
  std::vector<float> parameters(static_cast<std::size_t>(layout.size()), 1.0F);
  for (std::uint64_t step = 0; step < 6; ++step) {
    std::vector<float> gradients;
    const terse::Draw draw = terse::Draw::local(1, end.rank(), step, terse::Purpose::user);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      gradients.push_back(static_cast<float>(draw.below(1000, i)) - 500);
    optimizer.step(parameters, gradients);
  }
  CHECK_FALSE(optimizer.full_precision());
  CHECK(parameters[0] != 1.0F);
  std::uint64_t hash = 0;
  for (const float x : parameters) hash = terse::mix_hash(hash, std::bit_cast<std::uint32_t>(x));
  terse::Assembly<std::uint64_t, Mpi> hashes(end);
  for (const std::uint64_t other : hashes(end, hash, Phase::agree)) CHECK(other == hash);
}

TEST_CASE("an MPI library that does not report that it reads device memory is refused for that") {
  using Direct = terse::CudaAwareMpi<terse::executor::host>;
  terse::Mpi transport;
  if (Direct::supported()) {
    Direct direct(transport.split(0, transport.rank()), {});
    const int mine = direct.rank();
    std::vector<int> all(static_cast<std::size_t>(direct.size()));
    direct.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                      terse::Phase::setup);
    for (int rank = 0; rank < direct.size(); ++rank) CHECK(all[static_cast<std::size_t>(rank)] == rank);
  } else {
    CHECK_THROWS_WITH_AS(Direct(transport.split(0, transport.rank()), {}),
                         doctest::Contains("does not report that it reads device memory"),
                         terse::usage_error);
  }
}

TEST_CASE("messages of up to a size arrive, in as many chunks as there is room for") {
  // Chunks of 1000 bytes: none, some or all of the three that are posted carry anything.
  terse::BasicMpi<1000> transport(boost::mpi::communicator(), patience);
  constexpr index_t room = 2500;
  for (const index_t size : {0, 1, 999, 1000, 1001, 2000, 2499, 2500}) {
    const Bytes out(static_cast<std::size_t>(size), std::byte{7});
    std::deque<Bytes> in;
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (int peer = 0; peer < transport.size(); ++peer) {
      if (peer == transport.rank()) continue;
      Bytes& place = in.emplace_back(static_cast<std::size_t>(room), std::byte{0xEE});
      sends.push_back({peer, out.data(), size, room});
      receives.push_back({peer, place.data(), room, true});
    }
    transport.exchange(sends, receives, Phase::reduce).wait();
    for (const Bytes& place : in)
      for (std::size_t b = 0; b < place.size(); ++b)
        REQUIRE(place[b] == (b < out.size() ? std::byte{7} : std::byte{0xEE}));
  }
  // The next message finds no chunk left over.
  terse::barrier(transport);
}

TEST_CASE("a message of more than one chunk arrives whole") {
  const char* big = std::getenv("TERSE_TEST_BIG");
  Mpi end(boost::mpi::communicator(), 120s);
  if (big == nullptr || std::string(big) != "1" || end.size() < 2 || end.rank() > 1) return;
  // 0 sends, 1 receives; each 8 bytes hold their own number.
  const index_t words = (Mpi::chunk_bytes + 4096) / 8;
  std::vector<std::uint64_t> data(static_cast<std::size_t>(words));
  if (end.rank() == 0) {
    for (std::size_t w = 0; w < data.size(); ++w) data[w] = w + 1;
    const Send send{1, reinterpret_cast<const std::byte*>(data.data()), 8 * words};
    end.exchange({&send, 1}, {}, Phase::reduce).wait();
  } else {
    const Receive receive{0, reinterpret_cast<std::byte*>(data.data()), 8 * words};
    end.exchange({}, {&receive, 1}, Phase::reduce).wait();
    std::size_t wrong = 0;
    for (std::size_t w = 0; w < data.size(); ++w) wrong += data[w] != w + 1;
    CHECK(wrong == 0);
  }
}

namespace {

/// Where the job that mpi_late.py watches has a rank that is late, and whether this is the rank.
struct Late {
  std::string place, how;
  bool culprit = false;

  void at(const char* here) const {
    if (!culprit || place != here) return;
    if (how == "stops") std::raise(SIGSTOP);
    std::this_thread::sleep_for(20s);
  }
};
Late late;

}  // namespace

// MPI's own calls, as its profiling interface has them, with a rank that stops in them.
extern "C" {
int MPI_Comm_split(MPI_Comm from, int color, int key, MPI_Comm* to) {
  late.at("MPI_Comm_split");
  return PMPI_Comm_split(from, color, key, to);
}
int MPI_Win_allocate(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void* base, MPI_Win* window) {
  late.at("MPI_Win_allocate");
  return PMPI_Win_allocate(size, unit, info, comm, base, window);
}
int MPI_Win_free(MPI_Win* window) {
  late.at("MPI_Win_free");
  return PMPI_Win_free(window);
}
int MPI_Finalize() {
  late.at("MPI_Finalize");
  return PMPI_Finalize();
}
}

namespace {

int wait_for_one(int argc, char** argv) {
  constexpr std::chrono::milliseconds deadline = 600ms;
  const char* const rank_of_job = std::getenv("OMPI_COMM_WORLD_RANK");
  late = {argv[2], argv[4], rank_of_job != nullptr && std::string(rank_of_job) == argv[3]};
  late.at("MPI_Init");
  return Mpi::run(
      argc, argv,
      [&](Mpi& transport) {
        late.at("constructor");
        Mpi second(boost::mpi::communicator(), deadline);
        late.at("split");
        Mpi channel = second.split(0, transport.rank());
        late.at("parts");
        Mpi part = second.split(transport.rank() % 2, 0);
        late.at("mailbox");
        auto mailbox = channel.mailbox(8);
        late.at("mailbox_end");
        mailbox.close();
        late.at("end");
      },
      deadline);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 4 && std::string(argv[1]) == "late") return wait_for_one(argc, argv);
  const boost::mpi::environment environment(argc, argv);
  doctest::Context context(argc, argv);
  const int result = context.run();
  // All ranks or none: a rank that failed must not leave the others waiting in MPI_Finalize.
  if (result != 0) {
    std::fprintf(stderr, "rank %d failed\n", boost::mpi::communicator().rank());
    boost::mpi::environment::abort(result);
  }
  return result;
}
