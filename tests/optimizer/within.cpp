// SPDX-License-Identifier: Apache-2.0
#include "terse/topology/within.hpp"

#include <doctest/doctest.h>

#include "support.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/exchange/hierarchical.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/transport/nodes.hpp"

// Hierarchies that compress on both levels.

using namespace terse;
using namespace terse::test;

namespace {

constexpr auto patience = std::chrono::seconds(20);
constexpr index_t block = 128;

template <int Bits>
using Int = Uniform<Bits, Nearest, Symmetric, MaxAbs, PerBlock<block>>;
using Four = Int<4>;
using Eight = Int<8>;
template <class Inside, class C = Four>
using Sgd = ErrorFeedbackSgd<C, Hierarchical<Inside, ScatterGather>>;

Layout layers() {
  Layout layout;
  layout.add({"a", {65, 21}})
      .add({"b", {7}, 0.5F, 0, false})
      .add({"c", {300}})
      .add({"d", {130}, 1, 1, false});
  return layout;
}

/// Multiples of 2^-10 below 2, so that sums of a few are exact.
Floats coarse(const Layout& layout, int rank, std::uint64_t step) {
  Floats g = gradient(layout, rank, step, 0);
  for (float& value : g) value = std::round(value * 1024) / 1024;
  return g;
}

/// Parameters of all ranks after some steps on gradients(rank, step).
template <class R, class Gradients>
std::vector<Floats> train(const R& recipe, const Layout& layout, int ranks, std::uint64_t steps,
                          const Gradients& gradients) {
  std::vector<Floats> last(at(ranks));
  ThreadGroup(ranks, patience).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout};
    Floats x(at(layout.size()));
    for (std::uint64_t step = 1; step <= steps; ++step) optimizer.step(x, gradients(transport.rank(), step));
    last[at(transport.rank())] = x;
  });
  for (const Floats& one : last) CHECK(one == last[0]);
  return last;
}

/// How far from -mean of all ranks' gradients, which stay, a run has moved a step on average.
template <class R>
double off(const R& recipe, const Layout& layout, int ranks, std::uint64_t steps) {
  std::vector<Floats> g;
  for (int rank = 0; rank < ranks; ++rank) g.push_back(gradient(layout, rank, 1, 0));
  const Floats x =
      train(recipe, layout, ranks, steps, [&](int rank, std::uint64_t) { return g[at(rank)]; })[0];
  double worst = 0;
  each(
      layout, [](const Segment& segment) { return segment.compress; },
      [&](std::size_t k) {
        double mean = 0;
        for (const Floats& one : g) mean += static_cast<double>(one[k]) / ranks;
        worst = std::max(worst, std::abs(static_cast<double>(x[k]) / static_cast<double>(steps) + mean));
      });
  return worst;
}

/// Bytes of a packet of Int<Bits>: scales, codes, full precision.
template <int Bits>
std::uint64_t packet(const Range& compressed, const Range& dense) {
  std::uint64_t scales = 0, bytes = 32;
  for (const Piece& piece : compressed.pieces()) {
    const auto n = static_cast<std::uint64_t>(piece.count);
    scales += 4 * ((n + block - 1) / block);
    bytes += Bits < 8 ? (n + 63) / 64 * 8 * Bits : to_eight(n);
  }
  for (const Piece& piece : dense.pieces()) bytes += to_eight(4 * static_cast<std::uint64_t>(piece.count));
  return bytes + to_eight(scales);
}

}  // namespace

TEST_CASE("of what loses nothing the mean of two levels is that of one, to the bit") {
  const Layout layout = layers();
  const TopK<> all{.selection = {.ratio = 1}};
  for (const auto& [ranks, local] : {std::pair{4, 2}, {8, 2}, {8, 4}, {2, 2}, {2, 1}}) {
    const auto gradients = [&](int rank, std::uint64_t step) { return coarse(layout, rank, step); };
    const Sgd<Within<TopK<>>, TopK<>> two{
        .learning_rate = 0.5F, .compressor = all, .topology = {local, {.compressor = all}, {}}};
    const ErrorFeedbackSgd<TopK<>, ScatterGather> one{.learning_rate = 0.5F, .compressor = all};
    CHECK(train(two, layout, ranks, 4, gradients)[0] == train(one, layout, ranks, 4, gradients)[0]);
  }
}

TEST_CASE("a sum of 4 bits on two levels is within both levels' bounds") {
  const Layout layout = layers();
  constexpr int ranks = 6;
  double largest = 0;
  for (int rank = 0; rank < ranks; ++rank)
    for (const float g : gradient(layout, rank, 1, 0))
      largest = std::max(largest, std::abs(static_cast<double>(g)));
  // A rank's own, rounded to 7 levels of either sign, or 127; then a node's mean; and the mean of these, by its owner.
  const double four = largest / 14, eight = largest / 254, between = 2 * 1.2 * largest / 14;
  const TopK<> all{.selection = {.ratio = 1}};
  const auto once = [&](const auto& recipe) { return off(recipe, layout, ranks, 1); };
  CHECK(once(Sgd<Within<Four>>{.learning_rate = 1, .topology = {3, {}, {}}}) <= four + between);
  CHECK(once(Sgd<Within<Eight>>{.learning_rate = 1, .topology = {3, {}, {}}}) <= eight + between);
  const double within =
      once(Sgd<Within<Four>, TopK<>>{.learning_rate = 1, .compressor = all, .topology = {3, {}, {}}});
  CHECK(within <= four + 1e-6);
  CHECK(within > four / 10);
}

TEST_CASE("what both levels lose comes back") {
  const Layout layout = layers();
  constexpr std::uint64_t steps = 64;
  const double kept = off(Sgd<Within<Four>>{.learning_rate = 1, .topology = {2, {}, {}}}, layout, 4, steps);
  const double lost =
      off(Sgd<Within<Four, Unchecked<NoErrorFeedback>>>{.learning_rate = 1, .topology = {2, {}, {}}}, layout,
          4, steps);
  CHECK(kept < 0.5 / steps);
  CHECK(lost > 4 * kept);
}

TEST_CASE("each rank rounds by a stream of its own, and all read the same on the way back") {
  const Layout layout = Layout::flat(4000);
  constexpr int ranks = 8, local = 2;
  using Ternary = Uniform<2, Stochastic, Symmetric, MaxAbs, PerBlock<block>>;
  const TopK<> all{.selection = {.ratio = 1}};
  // All have the same, between -1 and 1, so that levels are -1, 0, 1.
  Floats g(at(layout.size()));
  for (index_t i = 0; i < layout.size(); ++i) g[at(i)] = i % block == 0 ? 1.0F : 0.9F * noise(1, 0, 0, i);
  const auto same = [&](int, std::uint64_t) { return g; };
  const auto variance = [&](const auto& recipe) {
    const Floats x = train(recipe, layout, ranks, 1, same)[0];
    double square = 0, expected = 0;
    for (std::size_t k = 0; k < g.size(); ++k) {
      const auto v = static_cast<double>(g[k]), size = std::abs(v);
      square += std::pow(static_cast<double>(x[k]) + v, 2);
      expected += size * (1 - size);
    }
    return square / expected;
  };
  const double there = variance(Sgd<Within<Ternary, NoErrorFeedback>, TopK<>>{
      .learning_rate = 1, .compressor = all, .topology = {local, {}, {}}});
  CHECK(there * ranks == doctest::Approx(1).epsilon(0.1));
  const double back = variance(Sgd<Within<TopK<>, Residual, Ternary>, TopK<>>{
      .learning_rate = 1, .compressor = all, .topology = {local, {.compressor = all}, {}}});
  CHECK(back == doctest::Approx(1).epsilon(0.1));
  // Two roundings draw from two random streams. With one stream for both, small values would grow by a fifth.
  Floats small(at(layout.size()));
  for (index_t i = 0; i < layout.size(); ++i)
    small[at(i)] = i % block == 0 ? 1.0F : 0.45F * noise(2, 0, 0, i);
  const auto small_ones = [&](int, std::uint64_t) { return small; };
  const Floats x = train(
      Sgd<Within<Ternary, NoErrorFeedback, Ternary>, TopK<>>{
          .learning_rate = 1, .compressor = all, .topology = {local, {}, {}}},
      layout, local, 1, small_ones)[0];
  double grown = 0, size = 0;
  for (std::size_t k = 0; k < small.size(); ++k) {
    grown -= static_cast<double>(x[k] + small[k]) * (small[k] < 0 ? -1 : 1);
    size += std::abs(static_cast<double>(small[k]));
  }
  CHECK(std::abs(grown) < 0.08 * size);
}

TEST_CASE("what goes within nodes and between them is the formula's, to the byte") {
  const Layout layout = layers();
  const int nodes = 2, local = 3;
  using Back = Uniform<8, Stochastic, Symmetric, MaxAbs, PerBlock<block>>;
  const Sgd<Within<Eight, Residual, Back>> recipe{.learning_rate = 0.1F};
  ThreadGroup(nodes * local, patience).run([&](Threads& transport) {
    const int node = transport.rank() / local, number = transport.rank() % local;
    Nodes two(Metered<Threads>(transport.split(node, number)),
              Metered<Threads>(transport.split(number, node)));
    Optimizer optimizer{recipe, two, layout};
    Floats x = start(layout);
    const auto sent = [](Metered<Threads>& level) {
      return level.traffic()[Phase::reduce].bytes_sent + level.traffic()[Phase::spread].bytes_sent;
    };
    optimizer.step(x, gradient(layout, two.rank(), 1, 0));
    const std::uint64_t inside = sent(two.inside()), across = sent(two.across());
    optimizer.step(x, gradient(layout, two.rank(), 2, 0));

    const Plan plan(recipe.compressor, layout, layout.range(), local, false);
    std::uint64_t within = 0;
    for (int peer = 0; peer < local; ++peer)
      if (peer != number)
        within += packet<8>(plan.chunks[at(peer)].compressed, plan.chunks[at(peer)].dense) +
                  packet<8>(plan.chunks[at(number)].compressed, plan.chunks[at(number)].dense);
    const std::vector<Range> codes = plan.chunks[at(number)].compressed.cut(nodes),
                             floats = plan.chunks[at(number)].dense.cut(nodes);
    const std::uint64_t between =
        packet<4>(codes[at(1 - node)], floats[at(1 - node)]) + packet<4>(codes[at(node)], floats[at(node)]);
    CHECK(sent(two.inside()) - inside == within);
    CHECK(sent(two.across()) - across == between);
    CHECK(static_cast<std::uint64_t>(optimizer.bytes_per_step().compressed) == within + between);
  });
}

TEST_CASE("a hierarchy that compresses within nodes goes on from its state, and after a step that failed") {
  const Layout layout = layers();
  using Back = Uniform<8, Stochastic, Symmetric, MaxAbs, PerBlock<block>>;
  const Sgd<Within<Eight, Residual, Back>> recipe{.learning_rate = 0.1F, .topology = {2, {}, {}}};
  std::vector<Floats> last(4);
  ThreadGroup(4, patience).run([&](Threads& transport) {
    std::map<std::string, std::vector<float>> parts;
    std::map<std::string, std::uint64_t> numbers;
    const auto copy = [&](bool save) {
      return [&, save]<class Part, class... Begin>(const std::string& name, Part&& part, Begin...) {
        if constexpr (std::is_same_v<std::remove_cvref_t<Part>, view<float>>) {
          if (save) parts[name].assign(part.begin(), part.end());
          if (!save) std::copy(parts.at(name).begin(), parts.at(name).end(), part.begin());
        } else if constexpr (sizeof...(Begin) == 0) {
          if (save) numbers[name] = part;
          if (!save) part = numbers.at(name);
        }
      };
    };
    const auto go_on = [&](auto& optimizer, Floats& x, std::uint64_t from, std::uint64_t to) {
      for (std::uint64_t step = from; step <= to; ++step)
        optimizer.step(x, gradient(layout, transport.rank(), step, 0));
    };
    Optimizer one{recipe, transport, layout}, other{recipe, transport, layout};
    Floats x = start(layout), bad = x;
    go_on(one, x, 1, 5);
    one.walk(copy(true));
    CHECK(parts.count("within_error") == 1);
    other.walk(copy(false));
    Floats y = x;
    go_on(one, x, 6, 9);
    go_on(other, y, 6, 9);
    CHECK(x == y);
    if (transport.rank() == 1) bad[3] = std::numeric_limits<float>::quiet_NaN();
    try {
      one.step(x, bad);
      CHECK(false);
    } catch (const non_finite_error& failure) {
      CHECK(failure.culprit() == 1);
    }
    CHECK(x == y);
    go_on(one, x, 10, 12);
    CHECK(x != y);
    last[at(transport.rank())] = x;
  });
  for (const Floats& one : last) CHECK(one == last[0]);
}
