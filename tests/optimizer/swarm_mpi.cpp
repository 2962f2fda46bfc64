// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "swarm_support.hpp"
#include "terse/checkpoint/checkpoint.hpp"
#include "terse/optimizer/local/async_swarm_sgd.hpp"
#include "terse/transport/mpi.hpp"

// SwarmSGD over MPI, with any number of ranks up to eight: by a schedule the bits of threads; mailboxes; and without a
// schedule.

using namespace terse;
using namespace terse::test;

namespace {

Mpi* world = nullptr;

/// The hash of this rank's parameters after all steps.
template <class R, class T>
std::string hash_of(const R& recipe, T& transport) {
  const Layout layout = odd_sizes();
  Optimizer optimizer{recipe, transport, layout};
  Floats x = start(layout);
  while (optimizer.steps() < 30) {
    optimizer.learning_rate(warm_and_cool(optimizer.steps() + 1));
    optimizer.step(x, Quadratics::gradient<float>(at(transport.rank()), x));
  }
  return checkpoint::parameters_hash(layout, x);
}

template <class R>
void check(const R& recipe) {
  CAPTURE(type_name<R>());
  CAPTURE(world->rank());
  const std::string over_mpi = hash_of(recipe, *world);
  // Each process plays all ranks once more, as threads.
  std::vector<std::string> threads(at(world->size()));
  on_ranks(world->size(),
           [&](Threads& transport) { threads[at(transport.rank())] = hash_of(recipe, transport); });
  CHECK(over_mpi == threads[at(world->rank())]);
  if (world->size() > 2) CHECK(threads[0] != threads[1]);
}

std::byte nth(int rank, std::uint64_t k) {
  return static_cast<std::byte>(k * 31 + static_cast<std::uint64_t>(rank));
}

bool all_are(const std::vector<std::byte>& bytes, std::byte one) {
  return bytes[0] == one && std::memcmp(&bytes[0], &bytes[1], bytes.size() - 1) == 0;
}

/// A packet of one byte's copies, published and fetched by all at their own pace; rank 0 is the first to finish.
template <class T>
void check_mailbox(T& transport) {
  // Long enough to be met half-written.
  constexpr std::size_t bytes = 500'001;
  const int rank = transport.rank(), size = transport.size();
  auto mailbox = transport.mailbox(bytes);
  std::vector<std::byte> mine(bytes), place(bytes, std::byte{7});
  CHECK(mailbox.fetch(size - 1, place) == 0);
  CHECK(all_are(place, std::byte{7}));
  barrier(transport);
  std::vector<std::uint64_t> last(at(size));
  std::uint64_t torn = 0, fetched = 0;
  const std::uint64_t publications = rank == 0 ? 20 : 60;
  for (std::uint64_t k = 1; k <= publications; ++k) {
    std::memset(mine.data(), static_cast<int>(nth(rank, k)), bytes);
    mailbox.publish(mine);
    for (int peer = 0; peer < size; ++peer) {
      const std::uint64_t version = mailbox.fetch(peer, place);
      if (version == 0) continue;
      ++fetched;
      if (!all_are(place, nth(peer, version))) ++torn;
      if (version < last[at(peer)] || (peer == rank && version != k)) ++torn;
      last[at(peer)] = version;
    }
  }
  CHECK(torn == 0);
  CHECK(fetched >= publications);
  if (rank == 0) return;  // and waits in the mailbox's end, where it stays readable
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (mailbox.fetch(0, place) < 20 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  CHECK(mailbox.fetch(0, place) == 20);
  CHECK(all_are(place, nth(0, 20)));
}

}  // namespace

static_assert(Mailbox<terse::detail::MpiMailbox<Mpi>> && HasMailbox<Mpi> && HasMailbox<Metered<Mpi>>);

TEST_CASE("by a schedule each rank ends with the bits that it has among threads") {
  check(Blocking{.schedule = {.graph = {3}, .period = 2}});
  check(NonBlocking{.schedule = {.period = 3, .spacing = graph::Spacing::geometric, .seed = 1}});
  check(OnLattice{.schedule = {.period = 2}, .compressor = {0.1F}});
}

TEST_CASE("a packet is fetched whole, from ranks that publish others and from those that have finished") {
  check_mailbox(*world);
  // Packets in several parts.
  BasicMpi<4096> parts(boost::mpi::communicator(), std::chrono::seconds(30));
  check_mailbox(parts);
}

TEST_CASE("wrong sizes and ranks are refused") {
  terse::detail::MpiMailbox<Mpi> mailbox = world->mailbox(4);
  std::vector<std::byte> small(3), right(4);
  CHECK_THROWS_AS(mailbox.publish(small), usage_error);
  CHECK_THROWS_AS(mailbox.fetch(0, small), usage_error);
  CHECK_THROWS_AS(mailbox.fetch(world->size(), right), usage_error);
  if (world->size() > 1) CHECK_THROWS_AS((void)world->mailbox(4 + world->rank()), usage_error);
  terse::detail::MpiMailbox<Mpi> moved(std::move(mailbox));
  moved.publish(right);
  CHECK(moved.fetch(world->rank(), right) == 1);
  moved.close();
}

TEST_CASE("the end of a mailbox waits for others up to the deadline") {
  if (world->size() == 1) return;
  Mpi hurried(boost::mpi::communicator(), std::chrono::milliseconds(100));
  terse::detail::MpiMailbox<Mpi> mailbox = hurried.mailbox(4);
  if (world->rank() == 0) {
    CHECK_THROWS_AS(mailbox.close(), peer_error);
    barrier(*world);
  } else {
    barrier(*world);
    // Rank 0 is gone from there, and its window still is.
    std::vector<std::byte> place(4);
    CHECK(mailbox.fetch(0, place) == 0);
  }
}

TEST_CASE("without a schedule ranks of different speeds converge together") {
  const Layout layout = odd_sizes();
  Floats x = start(layout);
  {
    Optimizer optimizer{AsyncSwarmSgd<MomentumSgd<>>{.inner = plain(), .period = 2}, *world, layout};
    barrier(*world);
    const int steps = world->rank() == 0 ? 60 : 180;
    for (int step = 1; step <= steps; ++step) {
      std::this_thread::sleep_for(std::chrono::microseconds(world->rank() == 0 ? 3000 : 1000));
      optimizer.learning_rate(0.1F * (1 - static_cast<float>(step - 1) / static_cast<float>(steps)));
      optimizer.step(x, Quadratics::gradient<float>(at(world->rank()), x));
    }
  }
  Assembly<std::array<float, 64>, Mpi> everyone(*world);
  std::array<float, 64> some{};
  std::copy_n(x.begin() + 128, some.size(), some.begin());
  double wide = 0;
  for (const auto& other : everyone(*world, some, Phase::agree))
    for (std::size_t k = 0; k < some.size(); ++k)
      wide += std::pow(static_cast<double>(other[k] - some[k]), 2) / 64 / world->size();
  CHECK(wide < 0.02);
}

int main(int argc, char** argv) {
  return Mpi::run(argc, argv, [&](Mpi& transport) {
    world = &transport;
    if (doctest::Context(argc, argv).run() != 0) throw error("a check has failed", transport.rank());
  });
}
