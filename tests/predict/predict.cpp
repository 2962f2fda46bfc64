// SPDX-License-Identifier: Apache-2.0
#include "terse/predict/predict.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>

#include "terse/graph/graphs.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/dm_sgd.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/momentum_sgd.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/topology/star.hpp"
#include "terse/transport/delayed.hpp"
#include "terse/transport/thread.hpp"

// Formulas by hand, and what optimizers really send.

using namespace terse;
namespace p = terse::predict;

namespace {

constexpr int ranks = 4;
// 64 elements a chunk's unit, so that all chunks are alike.
constexpr index_t n = 64 * ranks * 16;
constexpr double header = 32, note = 8;

struct Seen {
  p::Round round;
  StepBytes ahead;
  double local = 0;
};

/// What rank `which` does in an average step.
template <class R>
Seen see(const R& recipe, int which = 0, int before = 2, int steps = 1) {
  Seen seen;
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    p::Recording recording;
    p::Recorded over(transport.split(0, transport.rank()), recording);
    Optimizer optimizer{recipe, over, Layout::flat(n)};
    const p::Rehearsal rehearsal = p::rehearse(optimizer, recording, before, steps);
    if (transport.rank() == which) seen = {rehearsal.round, optimizer.bytes_per_step(), rehearsal.local};
  });
  return seen;
}

/// The same batches, apart from headers and notes of packets, of which a batch has as many as messages.
void check_alike(const p::Round& seen, const p::Round& formula, double packets_in_message = 1) {
  CHECK(p::phases(seen) == p::phases(formula));
  CHECK(p::messages(seen) == p::messages(formula));
  CHECK(p::bytes_sent(seen) >= p::bytes_sent(formula));
  CHECK(p::bytes_sent(seen) <=
        p::bytes_sent(formula) + p::messages(formula) * packets_in_message * (header + note));
  const p::Network network = p::ideal_network(0, 1);
  CHECK(p::seconds(seen, network) >= p::seconds(formula, network));
  CHECK(p::seconds(seen, network) <=
        p::seconds(formula, network) + p::messages(formula) * packets_in_message * (header + note));
}

OneBitAdam<ScatterGather> one_bit() {
  OneBitAdam<ScatterGather> recipe{.learning_rate = 1e-3F};
  recipe.preconditioner.freeze = AtStep{2};
  return recipe;
}

}  // namespace

TEST_CASE("rounds by hand") {
  // 4 ranks, 800 bytes, 10 s of latency, 2 s a further message, 100 bytes a second.
  const p::Network network{10, 2, 100, 50, 0};
  // Two batches of 3 messages, 600 bytes each, at 50 bytes a second: 2 (10 + 4 + 12).
  CHECK(p::seconds(p::scatter_gather(4, 800), network) == doctest::Approx(52));
  // Six batches of one message of 200 bytes: 6 (10 + 2).
  CHECK(p::seconds(p::ring(4, 800), network) == doctest::Approx(72));
  CHECK(p::phases(p::ring(4, 800)) == 6);
  CHECK(p::bytes_sent(p::ring(4, 800)) == doctest::Approx(1200));
  CHECK(p::bytes_sent(p::scatter_gather(4, 800)) == doctest::Approx(1200));
  // The first 200 bytes of each batch find room in the queue: 2 (10 + 4 + 2 + 8).
  CHECK(p::seconds(p::scatter_gather(4, 800), p::Network{10, 2, 100, 50, 200}) == doctest::Approx(48));
  CHECK(p::seconds(p::scatter_gather(4, 800), p::Network{10, 2, 100, 50, 1000}) == doctest::Approx(40));
  // One batch of 3 messages, 2400 bytes: 10 + 4 + 48.
  CHECK(p::seconds(p::all_gather(4, 800), network) == doctest::Approx(62));
  // The center takes 2400 bytes and sends as many.
  CHECK(p::seconds(p::star_center(4, 800), network) == doctest::Approx(124));
  CHECK(p::bytes_sent(p::star_center(4, 800)) == doctest::Approx(2400));
  CHECK(p::bytes_sent(p::star_leaf(4, 800)) == doctest::Approx(800));
  // Halving and doubling among 4: 2 and 2 batches, 600 bytes each half.
  CHECK(p::seconds(p::native(4, 800), network) == doctest::Approx(4 * 10 + 12));
  // Two neighbours: one batch of 2 messages, 1600 bytes.
  CHECK(p::seconds(p::gossip(2, 800), network) == doctest::Approx(10 + 2 + 32));
  for (const p::Round& alone : {p::scatter_gather(1, 800), p::ring(1, 800), p::all_gather(1, 800),
                                p::star_center(1, 800), p::native(1, 800), p::gossip(0, 800)})
    CHECK(p::seconds(alone, network) == 0);
}

TEST_CASE("the size of chunks decides between all pairs and a ring") {
  CHECK(p::by_size(4, 4 * 65536 - 4) == p::scatter_gather(4, 4.0 * (4 * 65536 - 4)));
  CHECK(p::by_size(4, 4 * 65536) == p::ring(4, 4.0 * 4 * 65536));
  CHECK(p::by_size(4, 400, 100) == p::ring(4, 1600));
}

TEST_CASE("of a large model the size of a slice decides") {
  // 16 MiB are 4 Mi elements: 64 ranks have chunks of 65,536, more ranks smaller ones, however large the model is.
  const index_t large = index_t{24} << 22;
  const double packet = 4.0 * static_cast<double>(large);
  CHECK(p::by_size(64, large) == p::ring(64, packet));
  CHECK(p::by_size(65, large) == p::scatter_gather(65, packet));
  CHECK(p::by_size(65, large, 1 << 16, 0) == p::ring(65, packet));  // in one
  // 5 Mi elements are two slices, of half of them each.
  CHECK(p::by_size(41, index_t{5} << 20) == p::scatter_gather(41, 20.0 * (1 << 20)));
}

TEST_CASE("numbers of ranks that can't be are refused by name") {
  for (const auto& formula :
       {p::scatter_gather, p::ring, p::all_gather, p::star_center, p::star_leaf, p::native})
    for (const int wrong : {0, -3}) CHECK_THROWS_AS(formula(wrong, 1e6), usage_error);
  CHECK_THROWS_WITH_AS(p::ring(-3, 1e6), "terse: ring: ranks is -3, and must be 1 or more", usage_error);
  CHECK_THROWS_AS(p::by_size(0, 1000), usage_error);
  CHECK_THROWS_AS(p::hierarchical(0, 2, 1000, 4e3, p::ring, p::ring), usage_error);
  CHECK_THROWS_WITH_AS(p::gossip(-1, 1e6), "terse: gossip: degree is -1, and must be 0 or more", usage_error);
}

TEST_CASE("a hierarchy has its inner rounds and a share of its outer ones") {
  // 8 ranks, 2 a node, 100 floats, packets of 40 bytes: 2 batches of 200 bytes inside, 6 of 5 bytes among 4 nodes.
  const p::TwoLevels round = p::hierarchical(8, 2, 100, 40, p::scatter_gather, p::ring);
  CHECK(p::bytes_sent(round.inside) == doctest::Approx(400));
  CHECK(p::bytes_sent(round.across) == doctest::Approx(30));
  CHECK(p::seconds(round, p::ideal_network(1, 100), p::ideal_network(10, 5)) ==
        doctest::Approx(2 * (1 + 2) + 6 * (10 + 1)));
  CHECK_THROWS_AS(p::hierarchical(8, 3, 100, 40, p::ring, p::ring), usage_error);
}

TEST_CASE("topologies send what the formulas say, and the optimizer says so beforehand") {
  const double dense = 4.0 * n;
  const auto check = [&](const Seen& seen, const p::Round& formula) {
    check_alike(seen.round, formula);
    CHECK(p::bytes_sent(seen.round) == static_cast<double>(seen.ahead.full_precision));
    CHECK(seen.local > 0);
  };
  check(see(Adam<Ring>{}), p::ring(ranks, dense));
  check(see(Adam<BySize<>>{.topology = {.from = n}}), p::scatter_gather(ranks, dense));
  check(see(Adam<BySize<>>{.topology = {.from = 0}}), p::by_size(ranks, n, 0));
  check(see(Adam<Star>{}, 0), p::star_center(ranks, dense));
  check(see(Adam<Star>{}, 1), p::star_leaf(ranks, dense));
  check(see(DmSgd<Mixing<graph::Ring>>{}), p::gossip(2, dense));
  // Bits and one scale a chunk; n / 8 bytes of them.
  const Seen compressed = see(one_bit(), 2, 3);
  CHECK(p::bytes_sent(compressed.round) == static_cast<double>(compressed.ahead.compressed));
  check_alike(compressed.round, p::scatter_gather(ranks, n / 8.0));
}

TEST_CASE("steps that send now and then count as fractions") {
  const Seen seen = see(LocalSgd<MomentumSgd<>>{.period = 4}, 0, 4, 4);
  const StepBytes ahead = seen.ahead;
  CHECK(p::bytes_sent(seen.round) ==
        doctest::Approx(static_cast<double>(ahead.full_precision + ahead.compressed) / 4));
  CHECK(p::phases(seen.round) == doctest::Approx(2.0 / 4));
}

TEST_CASE("a step's time, overlapped or not") {
  const p::Network network = p::ideal_network(0.5, 100);
  p::Step step{.gradient = 3, .local = 1, .round = {{1, 100, 100, 2}}};
  CHECK(p::wire_seconds(step, network) == doctest::Approx(3));
  CHECK(p::seconds(step, network) == doctest::Approx(3 + 1 + 3));
  CHECK(p::seconds(step, network, 2) == doctest::Approx(3 + 2 + 3));
  step.overlap = p::Overlap::slices;
  step.slices = 4;
  CHECK(p::seconds(step, network) == doctest::Approx(3 + 3.0 / 4 + 1));
  // The latencies of a second wave of slices come on top.
  step.waves = 2;
  CHECK(p::wire_seconds(step, network) == doctest::Approx(4));
  CHECK(p::seconds(step, network) == doctest::Approx(4 + 3.0 / 4 + 1));
  step.waves = 1;
  step.overlap = p::Overlap::steps;
  CHECK(p::seconds(step, network) == doctest::Approx(4));
  step.round = p::repeated(step.round, 2);
  CHECK(p::seconds(step, network) == doctest::Approx(6));
}

TEST_CASE("where two methods break even") {
  const p::Network network{0.5, 0, 100, 50, 0};
  const p::Step dense{.gradient = 3, .local = 1, .round = {{1, 1000, 1000}}};
  const p::Step small{.gradient = 3, .local = 2, .round = {{1, 100, 100}}};
  // 900 bytes less for one second more.
  CHECK(p::break_even_bandwidth(small, dense, network) == doctest::Approx(900));
  CHECK(p::break_even_bandwidth(small, dense, network, 3) == doctest::Approx(300));
  // More bytes are slower on slow links, however fast they are elsewhere; fewer of them for less work never are.
  CHECK(p::break_even_bandwidth(dense, small, network) == 0);
  const p::Step tiny{.gradient = 3, .round = {{1, 100, 100}}};
  CHECK(p::break_even_bandwidth(tiny, dense, network) == std::numeric_limits<double>::infinity());
  CHECK(p::break_even_bandwidth(dense, dense, network) == 0);
  // All pairs at half of the bandwidth: 1 + 1.5 beside 10.5, of which the other has 1000 / b.
  const p::Step pairs{.gradient = 3, .local = 2, .round = {{3, 100, 100}}};
  CHECK(p::break_even_bandwidth(pairs, dense, network) == doctest::Approx(800));
}

TEST_CASE("where an overlapped step is faster in the middle alone") {
  // Two ranks, 8 MB or 1 MB each way. Messages of 8 MB hide behind a gradient of 1 s where links are faster than 8 MB/s.
  const p::Network network = p::ideal_network(0, 1e9);
  const p::Step dense{
      .gradient = 1, .local = 0.02, .round = p::ring(2, 8e6), .overlap = p::Overlap::slices, .slices = 100};
  const p::Step step{.gradient = 1, .local = 0.01, .round = p::ring(2, 1e6)};
  // 8e6 / b + 1 / 100 + 0.02 = 1 + 1e6 / b + 0.01.
  const double even = p::break_even_bandwidth(step, dense, network);
  CHECK(even == doctest::Approx(7e6 / 0.98));
  const auto faster = [&](double bandwidth) {
    const p::Network other = p::with_bandwidth(network, bandwidth);
    return p::seconds(step, other) < p::seconds(dense, other);
  };
  CHECK(faster(0.99 * even));
  CHECK(!faster(1.01 * even));
  CHECK(!faster(2e7));
  CHECK(faster(1e12));
}

TEST_CASE("slices hide nothing where ranks share cores") {
  const p::Network network = p::ideal_network(0, 8e6);
  p::Step step{
      .gradient = 1, .local = 0.25, .round = p::ring(2, 8e6), .overlap = p::Overlap::slices, .slices = 4};
  CHECK(p::seconds(step, network) == doctest::Approx(1 + 0.25 + 0.25));
  CHECK(p::seconds(step, network, 2) == doctest::Approx(1 + 1 + 0.5));
  p::Step plain = step;
  plain.overlap = p::Overlap::none;
  plain.local = 0.125;
  CHECK(p::break_even_bandwidth(step, plain, network, 2) == 0);
  step.overlap = p::Overlap::steps;
  CHECK(p::seconds(step, network, 2) == doctest::Approx(1.5));
}

TEST_CASE("figures that no network has are refused") {
  CHECK_NOTHROW(p::check(p::Network{}));
  CHECK_NOTHROW(p::check(p::ideal_network(1e-3, 1e9)));
  CHECK_THROWS_AS(p::ideal_network(-1, 1e9), usage_error);
  CHECK_THROWS_AS(p::ideal_network(0, 0), usage_error);
  CHECK_THROWS_AS(p::ideal_network(std::nan(""), 1), usage_error);
  CHECK_THROWS_AS(p::with_bandwidth(p::Network{}, 0), usage_error);
  CHECK_THROWS_AS(p::check(p::Network{0, -1, 1, 1, 0}), usage_error);
  CHECK_THROWS_AS(p::check(p::Network{0, 0, 1, 1, -1}), usage_error);
}

TEST_CASE("a node's ranks share its cores") {
  CHECK(p::Node{4, 2}.slowdown() == 2);
  CHECK(p::Node{2, 4}.slowdown() == 1);
}

TEST_CASE("a modelled network is measured as what it is") {
  p::Network found;
  ThreadGroup(3, std::chrono::seconds(30)).run([&](Threads& transport) {
    using namespace std::chrono_literals;
    Delayed slow(transport.split(0, transport.rank()), {.latency = 5ms, .bytes_per_second = 20e6});
    const p::Network network = p::measure_network(slow, {.rounds = 1, .seconds = 0.02});
    if (transport.rank() == 1) found = network;
  });
  // Never faster than the model, and not by much slower, whatever else the machine does.
  CHECK(found.latency >= 5e-3);
  CHECK(found.latency < 50e-3);
  CHECK(found.bandwidth < 22e6);
  CHECK(found.bandwidth > 5e6);
  CHECK(found.pairs_bandwidth <= found.bandwidth);
  CHECK(found.pairs_bandwidth > 3e6);
}

TEST_CASE("a rank alone has no network") {
  ThreadGroup(1).run([](Threads& transport) {
    const p::Network network = p::measure_network(transport);
    CHECK(network.latency == 0);
    CHECK(std::isinf(network.bandwidth));
    CHECK_NOTHROW(p::check(network));
  });
}
