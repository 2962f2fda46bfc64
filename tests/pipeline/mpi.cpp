// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/mpi/communicator.hpp>
#include <boost/mpi/environment.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pipeline/trial.hpp"
#include "terse/terse.hpp"
#include "terse/transport/delayed.hpp"
#include "terse/transport/forwarding.hpp"
#include "terse/transport/mpi.hpp"

// Pipelines over MPI. Run under mpirun with 1 to 4 ranks; all ranks run the same cases in the same order. With `fault NAME
// RANK PASS` it is the job that mpi_faults.py watches dying.

namespace {

using namespace std::chrono_literals;
using namespace trial;
using terse::BasicMpi;
using terse::Delayed;
using terse::GPipe;
using terse::Metered;
using terse::Mpi;
using terse::OneForwardOneBackward;
using terse::Pipeline;
using terse::ThreadGroup;
using terse::Threads;

constexpr Milliseconds patience = 20s;

template <class Transport>
Transport connect(Milliseconds deadline = patience) {
  return Transport(boost::mpi::communicator(), deadline);
}

/// Three steps, an audit and an evaluation.
template <class T, class P, class Plan>
Seat trained(T& transport, const P& policy, const Plan& plan, index_t width, int window = 2) {
  Seat seat;
  Toy toy(transport.rank(), transport.size(), width);
  Pipeline pipeline{policy, transport, toy, {.micro_batch = rows_at_once, .seed = 3, .window = window}, plan};
  train(pipeline, toy, 3, seat);
  pipeline.audit();
  seat.losses.push_back(pipeline.evaluate(batch(5)));
  return seat;
}

/// What threads leave, by rank.
template <class P, class Plan>
Seats over_threads(int ranks, const P& policy, const Plan& plan, index_t width) {
  Seats seats(at(ranks));
  ThreadGroup(ranks, patience).run([&](Threads& transport) {
    seats[at(transport.rank())] = trained(transport, policy, plan, width);
  });
  return seats;
}

/// What must be alike of a stage over MPI and over threads.
struct Digest {
  std::array<double, 4> losses{};
  std::uint64_t hash = 0, copies = 0;
  bool operator==(const Digest&) const = default;
};
Digest digest_of(const Seat& seat) {
  Digest digest;
  REQUIRE(seat.losses.size() == digest.losses.size());
  std::copy(seat.losses.begin(), seat.losses.end(), digest.losses.begin());
  digest.hash = seat.hash;
  for (const Copies& copies : seat.copies)
    for (const auto& [side, rows] : copies)
      for (const auto& [id, row] : rows)
        digest.copies = terse::mix_hash(
            digest.copies, terse::mix_hash(id, terse::detail::hash_bytes(row.data(), row.size())));
  return digest;
}

/// Rank 0 compares all stages with a run over threads of its own.
template <class T, class P, class Plan>
void check_same_bits(T&& transport, const P& policy, const Plan& plan, index_t width, int window = 2) {
  const Seat mine = trained(transport, policy, plan, width, window);
  CAPTURE(mine.outcome.text);
  CHECK(mine.outcome.kind == Kind::returned);
  CHECK(mine.losses.at(0) != mine.losses.at(1));
  Mpi world = connect<Mpi>();
  terse::Assembly<Digest, Mpi> everyone(world);
  const auto all = everyone(world, digest_of(mine), Phase::agree);
  if (transport.rank() != 0) return;
  const Seats right = over_threads(transport.size(), policy, plan, width);
  for (int rank = 0; rank < transport.size(); ++rank) {
    CAPTURE(rank);
    CHECK(all[at(rank)] == digest_of(right[at(rank)]));
  }
}

}  // namespace

TEST_CASE("exact and compressed pipelines leave the bits that they leave over threads") {
  check_same_bits(connect<Mpi>(), terse::ExactActivations{}, GPipe{}, elements);
  check_same_bits(connect<Mpi>(), terse::ExactActivations{}, OneForwardOneBackward{}, elements);
  check_same_bits(connect<Mpi>(), compressed(), GPipe{}, elements);
  check_same_bits(connect<Mpi>(), compressed(), OneForwardOneBackward{}, elements, 8);
}

TEST_CASE("so they do around Metered and Delayed") {
  check_same_bits(Metered<Mpi>(connect<Mpi>()), terse::ExactActivations{}, GPipe{}, elements);
  check_same_bits(Delayed<Mpi>(connect<Mpi>(), {.latency = 1ms, .bytes_per_second = 1e7}), compressed(),
                  GPipe{}, elements);
  check_same_bits(Metered(Delayed<Mpi>(connect<Mpi>(), {.latency = 1ms})), terse::ExactActivations{},
                  OneForwardOneBackward{}, elements);
}

TEST_CASE("messages of several chunks arrive, shorter ones than there is room for, too") {
  // Chunks of 1000 bytes. Two rows of 640 floats take 6; the last micro-batch's only one takes 3, and a verdict's 40 bytes
  // one, of 6 that its receiver has posted. Compressed changes take 1, where whole rows take 6.
  check_same_bits(connect<BasicMpi<1000>>(), terse::ExactActivations{}, GPipe{}, 640);
  check_same_bits(connect<BasicMpi<1000>>(), compressed(), OneForwardOneBackward{}, 640);
  check_same_bits(connect<BasicMpi<7>>(), compressed(), GPipe{}, elements, 1);
  check_same_bits(Delayed<BasicMpi<1000>>(connect<BasicMpi<1000>>(), {}), compressed(), GPipe{}, 640);
  // Too large to be sent eagerly.
  check_same_bits(connect<BasicMpi<30000>>(), terse::ExactActivations{}, OneForwardOneBackward{}, 10000);
  check_same_bits(connect<Mpi>(), compressed(), GPipe{}, 10000);
}

TEST_CASE("Metered counts a pipeline's messages by direction") {
  Metered<Mpi> transport(connect<Mpi>());
  const int rank = transport.rank(), size = transport.size();
  Toy toy(rank, size, elements);
  Pipeline pipeline{terse::ExactActivations{}, transport, toy, {.micro_batch = rows_at_once}, GPipe{}};
  pipeline.train(batch(0));
  // Rows of 256 bytes, header and note; the verdict goes behind the activations.
  const auto activations = static_cast<std::uint64_t>(batch_rows * elements * 4 + micro_batches * 40);
  const terse::Traffic::Count forward = transport.traffic()[Phase::forward];
  const terse::Traffic::Count backward = transport.traffic()[Phase::backward];
  CHECK(forward.bytes_sent == (rank + 1 < size ? activations + 40 : 0));
  CHECK(forward.messages_sent == (rank + 1 < size ? micro_batches + 1 : 0));
  CHECK(forward.messages_received == (rank > 0 ? micro_batches + 1 : 0));
  CHECK(backward.bytes_sent == (rank > 0 ? activations : 0));
  CHECK(backward.messages_sent == (rank > 0 ? micro_batches : 0));
  CHECK(backward.messages_received == (rank + 1 < size ? micro_batches : 0));
}

namespace {

/// Twelve micro-batches of passes of 30 ms: an end waits 180 ms for a message at most, a step of four stages takes 900 ms,
/// and some receives are posted 540 ms before their messages come.
template <class T, class Plan>
void check_slow(T&& transport, const Plan& plan) {
  Toy toy(transport.rank(), transport.size(), elements);
  toy.strike = [](int) { std::this_thread::sleep_for(30ms); };
  Pipeline pipeline{compressed(), transport, toy, {.micro_batch = 1}, plan};
  const Ids ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const Clock::time_point begin = Clock::now();
  const Outcome outcome = outcome_of([&] { pipeline.train(ids); });
  CAPTURE(outcome.text);
  CHECK(outcome.kind == Kind::returned);
  CHECK(Clock::now() - begin > 720ms);
  if (outcome.kind == Kind::returned) pipeline.audit();
}

}  // namespace

TEST_CASE("a step may last longer than the deadline, which counts from when a message is waited for") {
  Mpi world = connect<Mpi>();
  check_slow(connect<Mpi>(450ms), GPipe{});
  terse::barrier(world);
  check_slow(connect<Mpi>(450ms), OneForwardOneBackward{});
  terse::barrier(world);
  check_slow(Delayed<Mpi>(connect<Mpi>(450ms), {.latency = 5ms}), GPipe{});
  terse::barrier(world);
}

TEST_CASE("stages that don't fit are found by all at construction") {
  Mpi world = connect<Mpi>();
  if (world.size() < 2) return;
  const int odd = world.size() - 1, rank = world.rank();
  {
    Mpi transport = connect<Mpi>();
    Toy toy(rank, world.size(), elements);
    const Outcome outcome = outcome_of([&] {
      Pipeline pipeline{
          compressed(), transport, toy, {.micro_batch = 2, .seed = rank == odd ? 4U : 3U}, GPipe{}};
    });
    CHECK(outcome.kind == Kind::mismatch);
    CHECK(outcome.text == "terse: rank " + std::to_string(rank) + ": rank " +
                              std::to_string(rank == odd ? 0 : odd) + " was set up with another seed");
    terse::barrier(world);
  }
  Mpi transport = connect<Mpi>();
  Toy toy(rank, world.size(), rank == odd ? 128 : elements);
  const Outcome outcome = outcome_of([&] {
    Pipeline pipeline{compressed(), transport, toy, {.micro_batch = 2}, GPipe{}};
  });
  CHECK(outcome.kind == Kind::mismatch);
  CHECK(outcome.text == "terse: rank " + std::to_string(rank) + ": stage " + std::to_string(odd - 1) +
                            " gives 64 elements an example, and stage " + std::to_string(odd) + " takes 128");
  terse::barrier(world);
}

TEST_CASE("a value that is not finite is told to all stages by its stage's name") {
  Mpi transport = connect<Mpi>();
  if (transport.size() < 2) return;
  const int culprit = transport.size() / 2;
  Toy toy(transport.rank(), transport.size(), elements);
  if (transport.rank() == culprit)
    toy.strike = [&](int pass) {
      // The last backward pass.
      if (pass == 2 * micro_batches - 1) toy.spoil = std::numeric_limits<float>::quiet_NaN();
    };
  Pipeline pipeline{compressed(), transport, toy, {.micro_batch = rows_at_once}, GPipe{}};
  const Outcome outcome = outcome_of([&] { pipeline.train(batch(0)); });
  CHECK(outcome.kind == Kind::non_finite);
  CHECK(outcome.culprit == culprit);
  CHECK_FALSE(pipeline.torn());
  toy.gradients.assign(toy.gradients.size(), 0);
  pipeline.train(batch(1));
  pipeline.audit();
}

namespace {

/// Steps wait no longer than a deadline of their own, and setting up no longer than the transport's.
class Hasty : public terse::Forwarding<Hasty, Mpi> {
 public:
  class Ticket {
   public:
    Ticket(Mpi::Ticket inner, Milliseconds deadline) : inner_(std::move(inner)), deadline_(deadline) {}
    bool ready() { return inner_.ready(); }
    void wait() { inner_.wait(deadline_); }
    void wait(Milliseconds deadline) { inner_.wait(deadline); }

   private:
    Mpi::Ticket inner_;
    Milliseconds deadline_;
  };

  Hasty(Mpi inner, Milliseconds deadline) : Forwarding(std::move(inner)), deadline_(deadline) {}
  [[nodiscard]] Ticket exchange(std::span<const terse::Send> sends, std::span<const terse::Receive> receives,
                                Phase phase) {
    return {inner_.exchange(sends, receives, phase), phase == Phase::setup ? patience : deadline_};
  }
  Hasty around(Mpi other) const { return {std::move(other), deadline_}; }

 private:
  Milliseconds deadline_;
};

/// A throw, or for each third a stall, before pass `pass` of rank `culprit`, in a transport of its own. All others must
/// give up in time, each naming the neighbour on the culprit's side, and nobody's copies be half-written. Returns what is
/// wrong of that on this rank.
template <class Plan>
std::string fault(Mpi& world, Milliseconds deadline, int culprit, int pass, const Seats& right) {
  const int rank = world.rank();
  const bool stalls = (pass + culprit) % 3 == 0;
  Hasty transport(connect<Mpi>(), deadline);
  Toy toy(rank, world.size(), elements);
  Seat seat;
  Pipeline pipeline{compressed(), transport, toy, {.micro_batch = rows_at_once, .seed = 3}, Plan{}};
  bool over = false;
  if (rank == culprit)
    toy.strike = [&](int now) {
      if (now != pass) return;
      if (!stalls) throw std::runtime_error("out of memory");
      terse::barrier(world);  // where the others go once they have given up
      over = true;
    };
  terse::barrier(world);
  const Clock::time_point begin = Clock::now();
  train(pipeline, toy, 2, seat);
  if (!over) terse::barrier(world);
  // What is still on its way finds its channel.
  terse::barrier(world);

  struct Sides {
    int received = 0, sent = 0;
  };
  const Sides mine{rank > 0 ? moved_of(seat, right[at(rank)], "incoming").least : 0,
                   rank + 1 < world.size() ? moved_of(seat, right[at(rank)], "outgoing").most : 0};
  terse::Assembly<Sides, Mpi> everyone(world);
  const auto all = everyone(world, mine, Phase::agree);
  for (std::size_t s = 0; s + 1 < all.size(); ++s) CHECK(all[s].sent >= all[s + 1].received);

  const std::string& text = seat.outcome.text;
  if (rank != culprit) {
    const int neighbour = culprit > rank ? rank + 1 : rank - 1;
    const std::string head = "terse: rank " + std::to_string(rank) + ": waited " +
                             std::to_string(deadline.count()) + " ms for rank " + std::to_string(neighbour);
    if (seat.outcome.kind != Kind::peer) return "no peer_error: " + text;
    if (seat.outcome.culprit != neighbour || text.find(head) != 0) return "another culprit: " + text;
    if (seat.outcome.when - begin > deadline + 1s) return "too late";
  } else if (!stalls) {
    CHECK(text == "out of memory");
  }
  if (rank != culprit || !stalls) {
    CHECK(seat.torn);
    CHECK(seat.again.kind == Kind::usage);
    pipeline.forget();
    CHECK_FALSE(pipeline.torn());
  }
  return {};
}

template <class Plan>
void check_faults() {
  Mpi world = connect<Mpi>();
  if (world.size() < 2) return;
  const Seats right = over_threads(world.size(), compressed(), Plan{}, elements);
  // In the second step; each of them on four stages.
  const int stride = world.size() == 4 ? 1 : 3;
  for (int culprit = 0; culprit < world.size(); ++culprit)
    for (int pass = 2 * micro_batches + culprit % stride; pass < 4 * micro_batches; pass += stride) {
      CAPTURE(culprit);
      CAPTURE(pass);
      // A busy machine may hold anybody up for as long as a deadline: again, with a longer one.
      std::string wrong;
      bool good = false;
      for (Milliseconds deadline = 200ms; !good && deadline < 1s; deadline *= 2) {
        wrong = fault<Plan>(world, deadline, culprit, pass, right);
        terse::Assembly<char, Mpi> everyone(world);
        const auto all = everyone(world, wrong.empty() ? 1 : 0, Phase::agree);
        good = std::find(all.begin(), all.end(), 0) == all.end();
      }
      CAPTURE(wrong);
      CHECK(good);
    }
}

}  // namespace

TEST_CASE("a stage that throws or stalls before any pass ends the others' waits in time: GPipe") {
  check_faults<GPipe>();
}

TEST_CASE("a stage that throws or stalls before any pass ends the others' waits in time: 1F1B") {
  check_faults<OneForwardOneBackward>();
}

namespace {

/// A job that dies of what happens on `culprit` before pass `pass`.
int die(int argc, char** argv) {
  const std::string name = argv[2];
  const int culprit = std::atoi(argv[3]), pass = std::atoi(argv[4]);
  return Mpi::run(
      argc, argv,
      [&](Mpi& transport) {
        const int rank = transport.rank();
        Toy toy(rank, transport.size(), elements);
        if (rank == culprit)
          toy.strike = [&](int now) {
            if (now != pass) return;
            if (name == "throws") throw std::runtime_error("out of memory");
            if (name == "throws_int") throw 42;
            if (name == "stalls") std::this_thread::sleep_for(20s);
            if (name == "exits") std::exit(3);
            if (name == "exits_well") ::_exit(0);
            if (name == "killed") std::raise(SIGKILL);
          };
        Pipeline pipeline{compressed(), transport, toy, {.micro_batch = rows_at_once, .seed = 3}, GPipe{}};
        for (int step = 0; step < 3; ++step) {
          Ids ids = batch(step);
          if (rank == culprit && step == 1 && name == "other_ids") std::swap(ids[4], ids[5]);
          if (rank == culprit && step == 1 && name == "twice") ids[4] = ids[5];
          if (rank == culprit && step == 1 && name == "leaves") return;
          pipeline.train(ids);
          toy.descend();
        }
      },
      400ms);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 4 && std::string(argv[1]) == "fault") return die(argc, argv);
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
