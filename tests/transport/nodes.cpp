// SPDX-License-Identifier: Apache-2.0
#include "terse/transport/nodes.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/transport/any.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/metered.hpp"
#include "terse/transport/thread.hpp"

// Nodes whose ranks are threads: collectives, parts, and what is no full nodes.

namespace {

using namespace terse;
using namespace std::chrono_literals;

constexpr auto deadline = 5s;

/// doctest counts from one thread at a time.
std::mutex turn;
template <class Check>
void in_turn(const Check& check) {
  const std::lock_guard lock(turn);
  check();
}
std::size_t at(int k) { return static_cast<std::size_t>(k); }

Nodes<Metered<Threads>, Metered<Threads>> as_nodes(Threads& transport, int ranks_per_node) {
  const int node = transport.rank() / ranks_per_node, local = transport.rank() % ranks_per_node;
  return {Metered<Threads>(transport.split(node, local)), Metered<Threads>(transport.split(local, node))};
}

/// Of all magnitudes, so that each order of a sum has its own bits.
template <class V>
std::vector<V> values(int rank, index_t count) {
  const Draw draw = Draw::local(1, rank, 0, Purpose::user);
  std::vector<V> all;
  for (index_t i = 0; i < count; ++i) {
    const auto k = static_cast<std::size_t>(2 * i);
    all.push_back(static_cast<V>(std::ldexp(static_cast<double>(draw.below(1 << 23, k)) - (1 << 22),
                                            static_cast<int>(draw.below(60, k + 1)) - 50)));
  }
  return all;
}

template <class V>
struct Results {
  std::vector<V> sent, mean, gathered;
  bool alike = false, unlike = true;
  bool operator==(const Results&) const = default;
};
template <class V, Transport T>
Results<V> collect(T& transport, index_t count, int root) {
  const std::vector<V> mine = values<V>(transport.rank(), count);
  Results<V> results{mine, mine, std::vector<V>(mine.size() * at(transport.size()))};
  broadcast(transport, results.sent, root);
  mean(transport, results.mean);
  all_gather(transport, mine, results.gathered);
  results.alike = equal(transport, results.sent);
  results.unlike = equal(transport, mine);
  return results;
}
template <class V>
void check_collectives(int nodes, int ranks_per_node, index_t count, int root) {
  ThreadGroup(nodes * ranks_per_node, deadline).run([&](Threads& transport) {
    const Results<V> wanted = collect<V>(transport, count, root);
    auto two = as_nodes(transport, ranks_per_node);
    Metered metered(as_nodes(transport, ranks_per_node));
    AnyTransport any(as_nodes(transport, ranks_per_node));
    const bool fine = collect<V>(two, count, root) == wanted;
    const bool fine_metered = collect<V>(metered, count, root) == wanted;
    const bool fine_any = collect<V>(any, count, root) == wanted;
    in_turn([&] {
      CAPTURE(nodes);
      CAPTURE(ranks_per_node);
      CAPTURE(count);
      CAPTURE(root);
      CHECK(wanted.alike);
      CHECK(wanted.unlike == (count == 0 || transport.size() == 1));
      CHECK(wanted.sent == values<V>(root, count));
      CHECK(fine);
      CHECK(fine_metered);
      CHECK(fine_any);
    });
  });
}

/// What all ranks were told by make(transport), which must throw mismatch_error on each of the first `told`, long before
/// the deadline.
template <class Make>
std::vector<std::string> refusals(int ranks, int told, const Make& make) {
  std::vector<std::string> said(at(told));
  const auto begin = std::chrono::steady_clock::now();
  ThreadGroup(ranks, deadline).run([&](Threads& transport) {
    try {
      make(transport);
    } catch (const mismatch_error& failure) {
      said[at(transport.rank())] = failure.what();
    }
    barrier(transport);
  });
  CHECK(std::chrono::steady_clock::now() - begin < deadline / 2);
  return said;
}
void all_say(const std::vector<std::string>& said, const char* words) {
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    CAPTURE(rank);
    CHECK_MESSAGE(said[rank].find(words) != std::string::npos, said[rank]);
  }
}

}  // namespace

TEST_CASE("collectives over nodes have the bits of those over one transport") {
  for (const auto& [nodes, ranks] : {std::pair{1, 3}, {3, 1}, {2, 2}, {2, 3}, {3, 2}})
    // Fewer than ranks, one message's worth and one more, and shares that don't come out even.
    for (const index_t count : {0, 1, 5, 1024, 1025, 3001})
      for (const int root : {nodes * ranks / 2, nodes * ranks - 1})
        check_collectives<float>(nodes, ranks, count, root);
  check_collectives<double>(3, 2, 1001, 4);
}

TEST_CASE("a mean over nodes sends between them what one rank's values are, and their share") {
  ThreadGroup(6, deadline).run([](Threads& transport) {
    auto two = as_nodes(transport, 3);
    const auto sent = [](Metered<Threads>& level) { return level.traffic().bytes_sent(); };
    const std::uint64_t inside = sent(two.inside()), across = sent(two.across());
    std::vector<float> x(1200, 1.0F);
    mean(two, x);
    in_turn([&] {
      // All agree on the size first, in two hops.
      CHECK(sent(two.across()) - across == 4 * (1200 / 2 + 1200 / 3 / 2) + 12);
      CHECK(sent(two.inside()) - inside == 4 * 2 * (1200 / 3 * 2) + 12 * 2 * 2);
    });
  });
}

TEST_CASE("what is refused over one transport is refused over nodes, by all ranks") {
  all_say(refusals(4, 4,
                   [](Threads& transport) {
                     auto two = as_nodes(transport, 2);
                     std::vector<float> x(transport.rank() == 3 ? 7 : 8);
                     mean(two, x);
                   }),
          "rank 0 gives 8 elements to a collective, and rank 3 7");
}

TEST_CASE("nodes that are not full are refused by all ranks, and nobody waits") {
  const char* const full = "Nodes requires full nodes, and across them ranks of equal number";
  // 2, 2, 1; 3, 2; 4, 4, 4, 1.
  all_say(refusals(5, 5, [](Threads& transport) { as_nodes(transport, 2); }), full);
  all_say(refusals(5, 5, [](Threads& transport) { as_nodes(transport, 3); }), full);
  all_say(refusals(13, 13, [](Threads& transport) { as_nodes(transport, 4); }), full);
  // 1, 2, 3.
  all_say(refusals(6, 6,
                   [](Threads& transport) {
                     constexpr int node[] = {0, 1, 1, 2, 2, 2}, local[] = {0, 0, 1, 0, 1, 2};
                     const int rank = transport.rank();
                     Nodes two(transport.split(node[rank], rank), transport.split(local[rank], rank));
                   }),
          full);
  // Two ranks that stand crosswise.
  all_say(refusals(4, 4,
                   [](Threads& transport) {
                     const int rank = transport.rank();
                     Nodes two(transport.split(rank / 2, rank),
                               transport.split(rank == 0 || rank == 3 ? 0 : 1, rank));
                   }),
          full);
  // Ranks of number 1 that count nodes the other way round.
  all_say(refusals(6, 6,
                   [](Threads& transport) {
                     const int rank = transport.rank();
                     Nodes two(transport.split(rank / 2, rank),
                               transport.split(rank % 2, rank % 2 == 0 ? rank : -rank));
                   }),
          full);
}

TEST_CASE("a node with more ranks than others is refused before anybody waits for the one that isn't there") {
  // Rank 5 is what the last rank of node 1 would meet across, and makes no Nodes.
  all_say(refusals(6, 5,
                   [](Threads& transport) {
                     constexpr int node[] = {0, 0, 1, 1, 1, 2}, column[] = {0, 1, 0, 1, 2, 2};
                     const int rank = transport.rank();
                     auto inside = transport.split(node[rank], rank);
                     auto across = transport.split(column[rank], -(node[rank] == 2 ? 9 : 1 - node[rank]));
                     if (rank < 2) Nodes two(std::move(inside), std::move(across));
                     if (rank >= 2 && rank < 5) Nodes two(std::move(inside), AnyTransport(std::move(across)));
                   }),
          "one of 3");
}

TEST_CASE("ranks of a node that meet different nodes are refused, though all numbers fit") {
  // Nodes 0 and 1 meet, and 2 and 3; ranks of number 1 of nodes 0 and 3, and 2 and 1.
  all_say(refusals(8, 8,
                   [](Threads& transport) {
                     const int rank = transport.rank(), node = rank / 2;
                     const int color = rank % 2 == 0 ? node / 2 : 2 + (node == 1 || node == 2 ? 1 : 0);
                     Nodes two(transport.split(node, rank), transport.split(color, node % 2));
                   }),
          "meet different nodes across");
}

TEST_CASE("parts of nodes are nodes: other orders, some nodes, one number, one rank") {
  constexpr int nodes = 4, ranks = 3;
  ThreadGroup(nodes * ranks, deadline).run([](Threads& transport) {
    auto all = as_nodes(transport, ranks);
    const int rank = all.rank(), node = rank / ranks, local = rank % ranks;
    struct Part {
      int color, key, width, size, rank;
    };
    const Part parts[] = {
        {0, rank, ranks, nodes * ranks, rank},                       // all
        {0, 0, ranks, nodes * ranks, rank},                          // by their old ranks
        {0, -rank, ranks, nodes * ranks, nodes * ranks - 1 - rank},  // backwards on both levels
        {0, node * ranks - local, ranks, nodes * ranks, node * ranks + 2 - local},      // backwards inside
        {node % 2, rank, ranks, 2 * ranks, node / 2 * ranks + local},                   // every other node
        {node / 3, rank, ranks, (node < 3 ? 3 : 1) * ranks, node % 3 * ranks + local},  // three nodes and one
        {local == 1 ? 1 : 0, rank, local == 1 ? 1 : 2, local == 1 ? nodes : 2 * nodes,
         local == 1 ? node : node * 2 + local / 2},  // two of each node, and the third
        {node, rank, ranks, ranks, local},           // a node
        {rank, 0, 1, 1, 0},                          // alone
    };
    for (const Part& part : parts) {
      auto channel = all.split(part.color, part.key);
      const std::vector<int> members = all_gather(channel, rank);
      std::vector<float> x = values<float>(channel.rank(), 2000);
      mean(channel, x);
      const bool same = equal(channel, x);
      in_turn([&] {
        CAPTURE(&part - parts);
        CAPTURE(rank);
        CHECK(channel.size() == part.size);
        CHECK(channel.rank() == part.rank);
        CHECK(channel.ranks_per_node() == part.width);
        CHECK(members[at(part.rank)] == rank);
        CHECK(same);
        // Who stands beside a rank of the part has stood beside it before.
        for (int peer = 0; peer < part.size; ++peer)
          CHECK((peer / part.width == part.rank / part.width) == (members[at(peer)] / ranks == node));
      });
    }
  });
}

TEST_CASE("parts that are no full nodes side by side are refused on all ranks") {
  const auto refused = [](int nodes, int ranks, const auto& color, const auto& key, int named) {
    std::vector<std::string> said(at(nodes * ranks));
    ThreadGroup(nodes * ranks, deadline).run([&](Threads& transport) {
      auto all = as_nodes(transport, ranks);
      const int rank = all.rank();
      try {
        auto part = all.split(color(rank), key(rank));
      } catch (const usage_error& failure) {
        said[at(rank)] = failure.what();
      }
      // They can go on.
      auto again = all.split(0, rank);
      barrier(again);
    });
    all_say(said, ("the ranks of color " + std::to_string(named) + " are no full nodes").c_str());
  };
  const auto nought = [](int) { return 0; };
  const auto itself = [](int rank) { return rank; };
  // Two ranks of one node and one of another.
  refused(
      2, 2, [](int rank) { return rank == 3 ? 1 : 0; }, nought, 0);
  // As many of both, but 0 and 1 of the one, 0 and 2 of the other.
  refused(
      2, 3, [](int rank) { return rank == 2 || rank == 4 ? 7 : 5; }, nought, 5);
  // One of each node, and not of one number.
  refused(
      2, 2, [](int rank) { return rank == 0 || rank == 3 ? 3 : 4; }, nought, 3);
  // All of them, but by turns from both nodes.
  refused(
      2, 2, nought, [](int rank) { return rank % 2 * 2 + rank / 2; }, 0);
  // The second node backwards.
  refused(
      2, 2, nought, [](int rank) { return rank < 2 ? rank : -rank + 9; }, 0);
  // Two of the first node, then the second, then what is left of the first.
  refused(
      2, 3, nought, [](int rank) { return rank == 2 ? 9 : rank; }, 0);
  // A node, and two halves of others that make none.
  refused(
      3, 2, [](int rank) { return rank == 3 || rank == 4 ? 1 : 0; }, itself, 0);
  // The others' parts are full.
  refused(
      3, 2, [](int rank) { return rank < 2 || rank == 5 ? rank / 2 : 1; }, itself, 1);
}

TEST_CASE("ranks that share neither node nor number have no way") {
  ThreadGroup(4, deadline).run([](Threads& transport) {
    auto two = as_nodes(transport, 2);
    const std::byte byte{};
    const Send send{3 - two.rank(), &byte, 1, 1};
    in_turn([&] {
      CHECK_THROWS_WITH_AS((void)two.exchange({&send, 1}, {}, Phase::reduce),
                           doctest::Contains("share neither node nor number"), usage_error);
    });
  });
}
