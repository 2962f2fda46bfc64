// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <mpi.h>

#include <boost/mpi/environment.hpp>
#include <cstdio>
#include <optional>

#include "support.hpp"
#include "terse/exchange/hierarchical.hpp"
#include "terse/topology/native.hpp"
#include "terse/transport/any.hpp"
#include "terse/transport/delayed.hpp"
#include "terse/transport/metered.hpp"
#include "terse/transport/mpi.hpp"
#include "terse/transport/nodes.hpp"

// Hierarchies over MPI, MPI's own collectives, and nodes that are processes with a thread for each rank.

using namespace terse;
using namespace terse::test;

namespace {

std::optional<Mpi> world;

Layout some_layers() {
  Layout layout;
  layout.add({"a", {65, 63}}).add({"b", {70}, 1, 1, false}).add({"c", {1500}});
  return layout;
}

template <class R, Transport T>
Floats train(const R& recipe, T& transport, const Options& options = {}) {
  const Layout layout = some_layers();
  Optimizer optimizer{recipe, transport, layout, options};
  Floats x = start(layout);
  for (std::uint64_t step = 1; step <= 8; ++step)
    optimizer.step(x, gradient(layout, transport.rank(), step, 1));
  return x;
}
template <class R>
Floats over_threads(const R& recipe, int ranks, const Options& options = {}) {
  Floats x;
  ThreadGroup(ranks, std::chrono::seconds(30)).run([&](Threads& transport) {
    const Floats mine = train(recipe, transport, options);
    if (transport.rank() == 0) x = mine;
  });
  return x;
}
float distance(const Floats& a, const Floats& b) {
  float most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}
template <class P>
OneBitAdam<P> one_bit() {
  return {.learning_rate = 0.01F, .preconditioner = {.freeze = AtStep{4}}, .topology = {2}};
}

}  // namespace

TEST_CASE("hierarchies have the bits of threads") {
  using Rings = Hierarchical<Ring, Ring>;
  CHECK(train(one_bit<Rings>(), *world) == over_threads(one_bit<Rings>(), world->size()));
  CHECK(train(Adam<Rings>{.topology = {2}}, *world) ==
        over_threads(Adam<Rings>{.topology = {2}}, world->size()));
}

TEST_CASE("MPI's own collectives take the mean, alike on all ranks") {
  static_assert(ReducesNatively<Mpi>);
  const Floats native = train(Adam<Native>{.learning_rate = 0.01F}, *world, {.clip_norm = 1});
  CHECK(equal(*world, native));
  CHECK(distance(native, over_threads(Adam<>{.learning_rate = 0.01F}, world->size(), {.clip_norm = 1})) <
        1e-5F);
  const Floats both = train(one_bit<Hierarchical<Native, Ring>>(), *world);
  CHECK(equal(*world, both));
  CHECK(distance(both, start(some_layers())) > 0.02F);
}

TEST_CASE("a native sum may be beyond what a gradient may be") {
  const Layout layout = some_layers();
  Optimizer optimizer{Adam<Native>{.learning_rate = 0.01F}, *world, layout};
  Floats x = start(layout);
  const Floats before = x;
  Floats g(x.size());
  g[0] = 0x1.8p62F;
  for (int step = 1; step <= 3; ++step) optimizer.step(x, g);
  CHECK(x[0] == doctest::Approx(before[0] - 0.03));
}

TEST_CASE("decorators hand MPI's own collectives on, and count them") {
  static_assert(ReducesNatively<Metered<Mpi>> && ReducesNatively<AnyTransport> &&
                !ReducesNatively<Delayed<Mpi>>);
  const Layout layout = some_layers();
  const Adam<Native> recipe{.learning_rate = 0.01F};
  const Floats plain = over_threads(Adam<>{.learning_rate = 0.01F}, world->size());
  Metered<AnyTransport> metered(AnyTransport(Metered<Mpi>(world->split(0, world->rank()))));
  Optimizer optimizer{recipe, metered, layout};
  Floats x = start(layout);
  for (std::uint64_t step = 1; step <= 8; ++step) {
    const auto sent = [&] {
      return metered.traffic()[Phase::reduce].bytes_sent + metered.traffic()[Phase::spread].bytes_sent;
    };
    const std::uint64_t before = sent();
    optimizer.step(x, gradient(layout, world->rank(), step, 1));
    CHECK(sent() - before == static_cast<std::uint64_t>(optimizer.bytes_per_step().full_precision));
  }
  CHECK(equal(*world, x));
  CHECK(distance(x, plain) < 1e-5F);
  CHECK(metered.traffic()[Phase::spread].messages_received == 8 * at(world->size() - 1));
}

TEST_CASE("blocks that MPI can't count go in parts") {
  // As if MPI could count to 100.
  BasicMpi<100> transport(boost::mpi::communicator(), std::chrono::seconds(30));
  const int ranks = transport.size(), rank = transport.rank();
  for (const index_t count : {0, 1, 25, 26, 99, 100, 101, 250}) {
    CAPTURE(count);
    const auto value = [&](int from, index_t k) { return static_cast<float>(from * 1000 + k); };
    Floats blocks, own(at(count), -1.0F), all(at(ranks * count));
    for (index_t k = 0; k < ranks * count; ++k) blocks.push_back(value(rank, k));
    transport.reduce_scatter(blocks.data(), own.data(), count).wait();
    for (index_t k = 0; k < count; ++k) {
      float sum = 0;
      for (int from = 0; from < ranks; ++from) sum += value(from, rank * count + k);
      CHECK(own[at(k)] == sum);
    }
    std::copy(own.begin(), own.end(), all.begin() + rank * count);
    transport.all_gather_in_place(reinterpret_cast<std::byte*>(all.data()), 4 * count).wait();
    Floats wanted(all.size());
    terse::all_gather(*world, own, wanted);
    CHECK(all == wanted);
  }
  const Floats native = train(Adam<Native>{.learning_rate = 0.01F}, transport);
  CHECK(equal(*world, native));
  CHECK(distance(native, over_threads(Adam<>{.learning_rate = 0.01F}, ranks)) < 1e-5F);
}

TEST_CASE("collectives over nodes whose levels are both MPI's") {
  const int width = world->size() / 2, rank = world->rank();
  Nodes two(world->split(rank / width, rank), world->split(rank % width, rank));
  Floats mine = gradient(some_layers(), rank, 1, 1), wanted = mine;
  mean(*world, wanted);
  mean(two, mine);
  CHECK(mine == wanted);
  mine = gradient(some_layers(), rank, 2, 1), wanted = mine;
  broadcast(*world, wanted, 1);
  broadcast(two, mine, 1);
  CHECK(mine == wanted);
}

TEST_CASE("a gradient that isn't finite, or another rate, is found by who adds up natively") {
  const Layout layout = some_layers();
  for (const bool once : {true, false}) {
    CAPTURE(once);
    Optimizer optimizer{Adam<Native>{}, *world, layout};
    Floats x = start(layout);
    Floats g = gradient(layout, world->rank(), 1, 1);
    optimizer.step(x, g);
    const Floats before = x;
    if (once) {
      if (world->rank() == 1) g[70] = std::numeric_limits<float>::infinity();
      try {
        optimizer.step(x, g);
        CHECK(false);
      } catch (const non_finite_error& failure) {
        CHECK(failure.culprit() == 1);
      }
      g[70] = 0;
    } else {
      if (world->rank() == 1) optimizer.recipe.learning_rate = 0.5F;
      CHECK_THROWS_WITH_AS(optimizer.step(x, g), doctest::Contains("hyper-parameters"), wire_error);
    }
    CHECK(x == before);
    if (once) optimizer.step(x, g);
  }
}

TEST_CASE("a rank that stays away from a native sum ends it by the deadline") {
  using namespace std::chrono_literals;
  // In a communicator of its own, which nobody uses afterwards.
  Mpi hurried(boost::mpi::communicator(), 300ms);
  std::vector<float> blocks(at(4 * world->size())), own(4);
  if (world->rank() == 0) {
    const auto begin = std::chrono::steady_clock::now();
    auto ticket = hurried.reduce_scatter(blocks.data(), own.data(), 4);
    CHECK_THROWS_WITH_AS(ticket.wait(), doctest::Contains("one or more of"), peer_error);
    CHECK(std::chrono::steady_clock::now() - begin < 1300ms);
    barrier(*world);
    ticket.wait(20s);
  } else {
    barrier(*world);
    hurried.reduce_scatter(blocks.data(), own.data(), 4).wait(20s);
  }
}

TEST_CASE("threads in a process and MPI between processes have the bits of threads alone") {
  int provided = 0;
  MPI_Query_thread(&provided);
  REQUIRE(provided == MPI_THREAD_MULTIPLE);
  const int nodes = world->size();
  // A communicator for each thread, made in the same order by all processes.
  std::vector<Mpi> across;
  for (int thread = 0; thread < 2; ++thread) across.push_back(world->split(0, world->rank()));
  Floats x;
  using Rings = Hierarchical<ScatterGather, Ring>;
  ThreadGroup(2, std::chrono::seconds(30)).run([&](Threads& thread) {
    Nodes two(thread.split(0, thread.rank()), std::move(across[at(thread.rank())]));
    CHECK(two.size() == 2 * nodes);
    auto recipe = one_bit<Rings>();
    recipe.topology.ranks_per_node = 0;
    const Floats mine = train(recipe, two);
    if (thread.rank() == 1) x = mine;
    barrier(thread);
  });
  CHECK(x == over_threads(one_bit<Rings>(), 2 * nodes));
}

TEST_CASE("a process with more threads than others is told so, and so are all of their threads, at once") {
  // A communicator for each thread that any process has; where it has fewer, nobody uses the last one.
  for (const bool first : {false, true}) {
    CAPTURE(first);
    const int threads = (world->rank() == 0) == first ? 3 : 2;
    std::vector<Mpi> across;
    for (int thread = 0; thread < 3; ++thread) across.push_back(world->split(0, world->rank()));
    std::vector<std::string> said(at(threads));
    const auto begin = std::chrono::steady_clock::now();
    ThreadGroup(threads, std::chrono::seconds(30)).run([&](Threads& thread) {
      try {
        Nodes two(thread.split(0, thread.rank()), std::move(across[at(thread.rank())]));
      } catch (const mismatch_error& failure) {
        said[at(thread.rank())] = failure.what();
      }
      barrier(thread);
    });
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
    for (const std::string& one : said) {
      CAPTURE(one);
      CHECK(one.find("one of 3") != one.npos);
      CHECK(one.find("Nodes requires full nodes") != one.npos);
    }
    barrier(*world);
  }
}

TEST_CASE("processes that don't make full nodes are all told so") {
  // Nodes of 3 ranks among 2, 4 ...: 1 + 1, 3 + 1.
  const int rank = world->rank(), size = world->size(), width = size == 2 ? 1 : 3;
  const int node = size == 2 ? 0 : rank / width;
  const int local = size == 2 ? rank : rank % width;
  CHECK_THROWS_WITH_AS(Nodes(world->split(node, rank), world->split(size == 2 ? 0 : local, rank)),
                       doctest::Contains("Nodes requires full nodes"), mismatch_error);
  barrier(*world);
}

int main(int argc, char** argv) {
  const boost::mpi::environment environment(argc, argv, boost::mpi::threading::multiple);
  world.emplace(boost::mpi::communicator(), std::chrono::seconds(30));
  doctest::Context context(argc, argv);
  const int result = context.run();
  world.reset();
  return result;
}
