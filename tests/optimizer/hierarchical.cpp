// SPDX-License-Identifier: Apache-2.0
#include "terse/exchange/hierarchical.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <set>

#include "support.hpp"
#include "terse/laws/topology.hpp"
#include "terse/optimizer/deep_gradient_compression.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/power_sgd.hpp"
#include "terse/transport/nodes.hpp"

// Hierarchical: the same as its outer topology among nodes, share by share; what it sends where; errors.

using namespace terse;
using namespace terse::test;

namespace {

constexpr auto patience = std::chrono::seconds(20);

Layout some_layers() {
  Layout layout;
  layout.add({"a", {65, 63}});
  layout.add({"b", {7}, 0.5F, 0, false});
  layout.add({"c", {1500}});
  layout.add({"d", {64}});
  layout.add({"e", {130}, 1, 1, false});
  return layout;
}

/// A layout of one share alone: a segment for each of its pieces, and where they are in the whole.
struct Share {
  Layout layout;
  std::vector<index_t> places;

  Share(const Layout& whole, const Portion& chunk) {
    const auto add = [&](const Range& range) {
      for (const Piece& piece : range.pieces()) {
        Segment segment = whole.segments()[at(piece.segment)];
        segment.name += "+" + std::to_string(piece.offset);
        segment.shape = {piece.count};
        layout.add(std::move(segment));
        places.push_back(piece.offset);
      }
    };
    add(chunk.compressed);
    add(chunk.dense);
  }
  Floats cut(const Floats& whole) const {
    Floats part(at(layout.size()));
    for (std::size_t s = 0; s < places.size(); ++s) {
      const Segment& segment = layout.segments()[s];
      std::copy_n(whole.begin() + places[s], segment.count, part.begin() + segment.offset);
    }
    return part;
  }
  void paste(const Floats& part, Floats& whole) const {
    for (std::size_t s = 0; s < places.size(); ++s) {
      const Segment& segment = layout.segments()[s];
      std::copy_n(part.begin() + segment.offset, segment.count, whole.begin() + places[s]);
    }
  }
};

/// Multiples of 2^-10 below 2, so that sums of a few are exact.
float coarse(std::uint64_t seed, int rank, std::uint64_t step, index_t i) {
  return std::round(noise(seed, rank, step, i) * 1024) / 1024;
}
/// Of a node, and what one of its ranks has instead: `apart` of even size, which cancels among the ranks of a node.
Floats node_gradient(const Layout& layout, int node, std::uint64_t step) {
  Floats g(at(layout.size()));
  for (const Segment& segment : layout.segments())
    for (index_t i = segment.offset; i < segment.offset + segment.count; ++i)
      g[at(i)] = coarse(1, 0, 0, i) + coarse(2, node, step, i);
  return g;
}
Floats rank_gradient(const Layout& layout, int node, int local, std::uint64_t step, bool apart) {
  Floats g = node_gradient(layout, node, step);
  if (apart)
    for (const Segment& segment : layout.segments())
      for (index_t i = segment.offset; i < segment.offset + segment.count; ++i)
        g[at(i)] += (local % 2 == 0 ? 1.0F : -1.0F) * coarse(3, node + local / 2, step, i);
  return g;
}

/// Parameters of all ranks after `steps` steps over any transport.
template <class R, Transport T>
Floats train(const R& recipe, T& transport, int ranks_per_node, const Layout& layout, std::uint64_t steps,
             bool apart) {
  Optimizer optimizer{recipe, transport, layout};
  Floats x = start(layout);
  for (std::uint64_t step = 1; step <= steps; ++step)
    optimizer.step(x, rank_gradient(layout, transport.rank() / ranks_per_node,
                                    transport.rank() % ranks_per_node, step, apart));
  return x;
}

/// `Method<Hierarchical<Inner, Outer>>` on nodes has the bits of Method<Outer> among as many ranks as there are nodes, on
/// each share by itself.
template <class Inner, class Outer, template <class> class Method, class Make>
void check_shares(const Make& make, int nodes, int ranks_per_node, bool apart) {
  CAPTURE(type_name<Inner>());
  CAPTURE(type_name<Outer>());
  CAPTURE(nodes);
  CAPTURE(ranks_per_node);
  const Layout layout = some_layers();
  constexpr std::uint64_t steps = 9;
  using Both = Method<Hierarchical<Inner, Outer>>;
  std::vector<Floats> found(at(nodes * ranks_per_node));
  ThreadGroup(nodes * ranks_per_node, patience).run([&](Threads& transport) {
    Both recipe = make(Both{});
    recipe.topology.ranks_per_node = ranks_per_node;
    found[at(transport.rank())] = train(recipe, transport, ranks_per_node, layout, steps, apart);
  });
  for (const Floats& one : found) CHECK(one == found[0]);

  Floats wanted = start(layout);
  const auto recipe = make(Method<Outer>{});
  const Plan plan(recipe.compressor, layout, layout.range(), ranks_per_node, false);
  for (const Portion& chunk : plan.chunks) {
    const Share share(layout, chunk);
    ThreadGroup(nodes, patience).run([&](Threads& transport) {
      Optimizer optimizer{recipe, transport, share.layout};
      Floats x = share.cut(start(layout));
      for (std::uint64_t step = 1; step <= steps; ++step)
        optimizer.step(x, share.cut(node_gradient(layout, transport.rank(), step)));
      if (transport.rank() == 0) share.paste(x, wanted);
    });
  }
  CHECK(found[0] == wanted);
}

template <class P>
using OneBit = OneBitAdam<ScaledSign<MeanAbs>, P>;
template <class P>
using Sgd = ErrorFeedbackSgd<Uniform<4>, P>;
template <class P>
using TopKSgd = ErrorFeedbackSgd<TopK<>, P>;
template <class P>
using Dgc = DeepGradientCompression<P>;

struct MakeOneBit {
  template <class R>
  R operator()(R recipe) const {
    recipe.learning_rate = 0.01F;
    recipe.weight_decay = 0.01F;
    recipe.preconditioner.freeze = AtStep{4};
    return recipe;
  }
};
struct MakeSgd {
  template <class R>
  R operator()(R recipe) const {
    recipe.learning_rate = 0.01F;
    return recipe;
  }
};
struct MakeSparse {
  template <class R>
  R operator()(R recipe) const {
    recipe.learning_rate = 0.01F;
    recipe.compressor.selection.ratio = 0.1;
    return recipe;
  }
};

/// Ranks that are threads, as nodes of `ranks_per_node`.
Nodes<Metered<Threads>, Metered<Threads>> as_nodes(Threads& transport, int ranks_per_node) {
  const int node = transport.rank() / ranks_per_node, local = transport.rank() % ranks_per_node;
  return {Metered<Threads>(transport.split(node, local)), Metered<Threads>(transport.split(local, node))};
}

/// Which peers a rank sends to.
struct Watched {
  using memory = terse::memory::host;
  using Ticket = Threads::Ticket;
  Threads inner;
  std::set<int>* peers;

  int rank() const { return inner.rank(); }
  int size() const { return inner.size(); }
  Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    if (phase == Phase::reduce || phase == Phase::spread)
      for (const Send& send : sends) peers->insert(send.peer);
    return inner.exchange(sends, receives, phase);
  }
  Watched split(int color, int key) { return {inner.split(color, key), peers}; }
};

}  // namespace

TEST_CASE("the laws of topologies hold for hierarchies") {
  const auto check = [](const auto& topology, std::vector<int> worlds) {
    const laws::Report report =
        laws::check_topology(topology, laws::Options{}, {worlds.data(), worlds.size()});
    CHECK_MESSAGE(report, report.text());
  };
  check(Hierarchical<>{2}, {2, 4, 8});
  check(Hierarchical<Ring, Ring>{3}, {3, 6});
  check(Hierarchical<ScatterGather, AllGather>{2}, {4, 6});
  check(Hierarchical<Ring, Star>{2, {}, {1}}, {4, 6});
  check(Hierarchical<ScatterGather, Hierarchical<>>{2, {}, {2}}, {8});
  check(Hierarchical<>{1}, {1, 2, 3});
}

TEST_CASE("bits of the outer topology on each share") {
  for (const bool apart : {false, true}) {
    CAPTURE(apart);
    check_shares<ScatterGather, ScatterGather, Sgd>(MakeSgd{}, 2, 2, apart);
    check_shares<Ring, ScatterGather, Sgd>(MakeSgd{}, 3, 4, apart);
    check_shares<ScatterGather, AllGather, TopKSgd>(MakeSparse{}, 2, 4, apart);
    check_shares<Ring, Star, TopKSgd>(MakeSparse{}, 3, 2, apart);
  }
  // Momentum of a rank is that of its node where all ranks of a node have the same gradient.
  check_shares<ScatterGather, ScatterGather, OneBit>(MakeOneBit{}, 2, 2, false);
  check_shares<ScatterGather, ScatterGather, OneBit>(MakeOneBit{}, 2, 4, false);
  check_shares<Ring, ScatterGather, OneBit>(MakeOneBit{}, 3, 2, false);
  check_shares<ScatterGather, Ring, OneBit>(MakeOneBit{}, 2, 2, false);
  check_shares<ScatterGather, AllGather, OneBit>(MakeOneBit{}, 3, 2, false);
  // Factor masking hears what the node has sent.
  check_shares<ScatterGather, ScatterGather, Dgc>(MakeSparse{}, 2, 2, false);
  check_shares<Ring, AllGather, Dgc>(MakeSparse{}, 3, 4, false);
}

TEST_CASE("nodes of one rank are their outer topology, and one node is exact") {
  const Layout layout = some_layers();
  const auto run = [&](const auto& recipe, int ranks) {
    std::vector<Floats> x(at(ranks));
    ThreadGroup(ranks, patience).run([&](Threads& transport) {
      x[at(transport.rank())] = train(recipe, transport, 1, layout, 9, false);
    });
    return x;
  };
  using H = Hierarchical<>;
  CHECK(run(MakeOneBit{}(OneBit<H>{.topology = {1}}), 3) == run(MakeOneBit{}(OneBit<ScatterGather>{}), 3));
  CHECK(run(Adam<H>{.topology = {1}}, 3) == run(Adam<>{}, 3));
  CHECK(run(Adam<H>{.topology = {3}}, 3) == run(Adam<>{}, 3));
  using Rings = Hierarchical<Ring, Ring>;
  CHECK(run(MakeOneBit{}(OneBit<Rings>{.topology = {1}}), 3) == run(MakeOneBit{}(OneBit<Ring>{}), 3));
}

TEST_CASE("other methods go over hierarchies: low rank, clipped Adam, local SGD") {
  const Layout layout = some_layers();
  using H = Hierarchical<>;
  const auto distance = [&](const auto& one, const auto& other, float bound, const Options& options = {}) {
    std::vector<Floats> a(4), b(4);
    const auto run = [&](const auto& recipe, std::vector<Floats>& result) {
      ThreadGroup(4, patience).run([&](Threads& transport) {
        Optimizer optimizer{recipe, transport, layout, options};
        Floats x = start(layout);
        for (std::uint64_t step = 1; step <= 8; ++step)
          optimizer.step(x, gradient(layout, transport.rank(), step, 1));
        result[at(transport.rank())] = x;
      });
    };
    run(one, a);
    run(other, b);
    float most = 0, moved = 0;
    const Floats from = start(layout);
    for (std::size_t i = 0; i < a[0].size(); ++i) {
      most = std::max(most, std::abs(a[0][i] - b[0][i]));
      moved = std::max(moved, std::abs(a[0][i] - from[i]));
    }
    CHECK(most <= bound);
    CHECK(moved > 100 * bound);
    for (const Floats& x : a) CHECK(x == a[0]);
  };
  distance(PowerSgd<2, H>{.learning_rate = 0.01F, .topology = {2}}, PowerSgd<2>{.learning_rate = 0.01F},
           1e-5F);
  distance(Adam<H>{.learning_rate = 0.01F, .topology = {2}}, Adam<>{.learning_rate = 0.01F}, 1e-5F);
  distance(MomentumSgd<H>{.learning_rate = 0.1F, .topology = {2}}, MomentumSgd<>{.learning_rate = 0.1F},
           1e-6F, {.clip_norm = 1});
  distance(LocalSgd<Adam<>, H>{.period = 4, .topology = {2}}, LocalSgd<Adam<>>{.period = 4}, 1e-5F);
}

TEST_CASE("what goes between nodes is the formula's, to the byte, over two transports with the bits of one") {
  const Layout layout = some_layers();
  for (const int ranks_per_node : {2, 4}) {
    CAPTURE(ranks_per_node);
    const int nodes = 2, ranks = nodes * ranks_per_node;
    using H = Hierarchical<ScatterGather, Ring>;
    auto recipe = MakeOneBit{}(OneBit<H>{});
    recipe.topology.ranks_per_node = ranks_per_node;
    recipe.preconditioner.freeze = AtStep{1};
    std::vector<Floats> over_one(at(ranks)), over_two(at(ranks));
    ThreadGroup(ranks, patience).run([&](Threads& transport) {
      over_one[at(transport.rank())] = train(recipe, transport, ranks_per_node, layout, 6, true);
    });
    ThreadGroup(ranks, patience).run([&](Threads& transport) {
      auto two = as_nodes(transport, ranks_per_node);
      CHECK(two.rank() == transport.rank());
      recipe.topology.ranks_per_node = 0;  // as the transport has them
      Optimizer optimizer{recipe, two, layout};
      Floats x = start(layout);
      const auto sent = [](Metered<Threads>& level) {
        return level.traffic()[Phase::reduce].bytes_sent + level.traffic()[Phase::spread].bytes_sent;
      };
      std::uint64_t inside = 0, across = 0;
      const int node = two.rank() / ranks_per_node, local = two.rank() % ranks_per_node;
      for (std::uint64_t step = 1; step <= 6; ++step) {
        inside = sent(two.inside()), across = sent(two.across());
        optimizer.step(x, rank_gradient(layout, node, local, step, true));
      }
      over_two[at(two.rank())] = x;

      // A share's packets: a header, a word of bits for 64 elements of each piece, a scale for it; 4 bytes for others.
      const Plan plan(recipe.compressor, layout, layout.range(), ranks_per_node, false);
      const auto bytes = [](const Range& compressed, const Range& dense) {
        std::uint64_t total = 32, scales = 0;
        for (const Piece& piece : compressed.pieces())
          total += static_cast<std::uint64_t>((piece.count + 63) / 64 * 8), scales += 4;
        for (const Piece& piece : dense.pieces())
          total += to_eight(static_cast<std::uint64_t>(4 * piece.count));
        return total + to_eight(scales);
      };
      const Portion& own = plan.chunks[at(local)];
      const std::vector<Range> bits = own.compressed.cut(nodes), floats = own.dense.cut(nodes);
      // Around a ring of two each rank sends the other's chunk of the share, and then the sum of its own.
      const auto other = at(node), mine = at(1 - node);
      CHECK(sent(two.across()) - across ==
            bytes(bits[other], floats[other]) + bytes(bits[mine], floats[mine]));
      std::uint64_t within = 0;
      const std::uint64_t share = bytes({}, own.compressed) + bytes({}, own.dense) - 32;
      for (int peer = 0; peer < ranks_per_node; ++peer) {
        const Portion& theirs = plan.chunks[at(peer)];
        if (peer != local) within += bytes({}, theirs.compressed) + bytes({}, theirs.dense) - 32 + share;
      }
      CHECK(sent(two.inside()) - inside == within);
    });
    CHECK(over_one == over_two);
  }
}

TEST_CASE("behind one type for all transports, and metered, a hierarchy over nodes has the same bits") {
  const Layout layout = some_layers();
  auto recipe = MakeOneBit{}(OneBit<Hierarchical<Ring, ScatterGather>>{});
  recipe.topology.ranks_per_node = 2;
  std::vector<Floats> plain(4), any(4), metered(4);
  ThreadGroup(4, patience).run([&](Threads& transport) {
    plain[at(transport.rank())] = train(recipe, transport, 2, layout, 6, true);
    auto as_found = recipe;
    as_found.topology.ranks_per_node = 0;
    AnyTransport one(as_nodes(transport, 2));
    any[at(transport.rank())] = train(as_found, one, 2, layout, 6, true);
    auto nodes = as_nodes(transport, 2);
    Metered both(nodes.split(0, transport.rank()));
    metered[at(transport.rank())] = train(as_found, both, 2, layout, 6, true);
    for (const Phase phase : {Phase::reduce, Phase::spread}) {
      const std::uint64_t sent = both.traffic()[phase].bytes_sent;
      CHECK(sent > 0);
      CHECK(sent == nodes.inside().traffic()[phase].bytes_sent + nodes.across().traffic()[phase].bytes_sent);
    }
  });
  CHECK(any == plain);
  CHECK(metered == plain);
}

TEST_CASE("with rings on both levels a rank sends to one rank of its node and one of another") {
  const Layout layout = some_layers();
  std::vector<std::set<int>> peers(9);
  ThreadGroup(9, patience).run([&](Threads& transport) {
    std::set<int> inside, across;
    const int node = transport.rank() / 3, local = transport.rank() % 3;
    Nodes two(Watched{transport.split(node, local), &inside}, Watched{transport.split(local, node), &across});
    train(MakeOneBit{}(OneBit<Hierarchical<Ring, Ring>>{}), two, 3, layout, 6, true);
    CHECK(inside == std::set{(local + 1) % 3});
    CHECK(across == std::set{(node + 1) % 3});
  });
}

TEST_CASE("a hierarchy goes on from a checkpoint of its state") {
  const Layout layout = some_layers();
  using R = OneBit<Hierarchical<>>;
  const R recipe = [] {
    R one = MakeOneBit{}(R{});
    one.topology.ranks_per_node = 2;
    return one;
  }();
  struct Copy {
    std::map<std::string, std::vector<float>>& parts;
    std::map<std::string, std::uint64_t>& numbers;
    bool save;
    void operator()(const std::string& name, view<float> part, index_t) {
      if (save)
        parts[name].assign(part.begin(), part.end());
      else
        std::copy(parts.at(name).begin(), parts.at(name).end(), part.begin());
    }
    void operator()(const std::string& name, view<std::uint64_t> part, index_t) {
      for (index_t k = 0; k < part.size(); ++k) (*this)(name + std::to_string(k), part[k]);
    }
    void operator()(const std::string& name, std::uint64_t& number) {
      if (save)
        numbers[name] = number;
      else
        number = numbers.at(name);
    }
  };
  ThreadGroup(4, patience).run([&](Threads& transport) {
    std::map<std::string, std::vector<float>> parts;
    std::map<std::string, std::uint64_t> numbers;
    Floats x = start(layout), kept;
    const auto steps = [&](auto& optimizer, Floats& parameters, std::uint64_t from, std::uint64_t to) {
      for (std::uint64_t step = from; step <= to; ++step)
        optimizer.step(parameters, gradient(layout, transport.rank(), step, 1));
    };
    Optimizer optimizer{recipe, transport, layout};
    steps(optimizer, x, 1, 7);
    kept = x;
    optimizer.walk(Copy{parts, numbers, true});
    steps(optimizer, x, 8, 12);
    Optimizer again{recipe, transport, layout};
    again.walk(Copy{parts, numbers, false});
    steps(again, kept, 8, 12);
    CHECK(kept == x);
  });
}

TEST_CASE("what is wrong with an outer topology is reported by the world's ranks") {
  ThreadGroup(4, patience).run([](Threads& transport) {
    using H = Hierarchical<ScatterGather, Star>;
    int reporter = -1;
    try {
      Optimizer optimizer{Adam<H>{.topology = {2, {}, {2}}}, transport, Layout::flat(100)};
    } catch (const usage_error& failure) {
      reporter = failure.rank();
      CHECK(std::string(failure.what()).find("Star's center is rank 2, of 2 ranks") != std::string::npos);
    }
    CHECK(reporter == transport.rank());
  });
}

TEST_CASE("nodes that are not full are refused, and nobody waits") {
  const Layout layout = Layout::flat(100);
  const auto refusal = [&](int ranks, const auto& construct) {
    std::atomic<int> refused{0};
    std::string what;
    try {
      ThreadGroup(ranks, std::chrono::seconds(5)).run([&](Threads& transport) {
        try {
          construct(transport);
        } catch (const error&) {
          ++refused;
          throw;
        }
      });
    } catch (const error& failure) {
      what = failure.what();
    }
    CHECK(refused == ranks);
    return what;
  };
  const auto says = [](const std::string& text, const char* words) { return text.find(words) != text.npos; };
  const auto with = [&](int ranks_per_node) {
    return refusal(6, [&](Threads& transport) {
      Optimizer optimizer{Adam<Hierarchical<>>{.topology = {ranks_per_node}}, transport, layout};
    });
  };
  CHECK(says(with(4), "ranks_per_node is 4, of 6 ranks: it must divide them into full nodes"));
  CHECK(says(with(0), "ranks_per_node is 0, but this transport has no nodes"));
  CHECK(says(with(-2), "ranks_per_node is -2"));
  CHECK(says(refusal(4,
                     [&](Threads& transport) {
                       auto two = as_nodes(transport, 2);
                       Optimizer optimizer{Adam<Hierarchical<>>{.topology = {4}}, two, layout};
                     }),
             "ranks_per_node is 4, and the transport has nodes of 2 ranks"));
}

TEST_CASE("the mean of parameters over two transports has the bits of one") {
  const Layout layout = some_layers();
  ThreadGroup(6, patience).run([&](Threads& transport) {
    auto two = as_nodes(transport, 2);
    AnyTransport any(as_nodes(transport, 2));
    const auto mean_over = [&](auto& over) {
      Optimizer optimizer{Adam<Hierarchical<>>{.topology = {2}}, over, layout};
      const Floats x = gradient(layout, transport.rank(), 1, 1);
      Floats to(x.size());
      optimizer.mean_parameters(x, to);
      return to;
    };
    const Floats wanted = mean_over(transport);
    CHECK(wanted != gradient(layout, transport.rank(), 1, 1));
    CHECK(mean_over(two) == wanted);
    CHECK(mean_over(any) == wanted);
  });
}
