// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "optimizer/support.hpp"
#include "reference/compressed_mixing.hpp"
#include "terse/compressor/random_k.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/graph/matrix.hpp"
#include "terse/optimizer/compressed_gossip.hpp"
#include "terse/optimizer/dm_sgd.hpp"

// Decentralized SGD with compressed packets: against oracles in double, and what holds whatever the compressor does.

using namespace terse;
using namespace terse::test;
using reference::Arenas;

namespace {

/// Directed, so that W is not its own transpose.
using Net = Mixing<graph::DoublyStochasticMatrix>;

reference::Rows rows_of(int ranks) { return reference::circulant(at(ranks), {0.25, 0.125}); }
Net net_of(const reference::Rows& rows) {
  Net net;
  for (const auto& row : rows) net.graph.weights.insert(net.graph.weights.end(), row.begin(), row.end());
  return net;
}
Net net_of(int ranks) { return net_of(rows_of(ranks)); }
/// The graph on which fixed points are known.
reference::Rows pair() { return {{0.75, 0.25}, {0.25, 0.75}}; }

/// Compressed and not, around word edges, with rates and decays of their own.
Layout layers() {
  Layout layout;
  layout.add({"a", {65}});
  layout.add({"none", {0}});
  layout.add({"bias", {7}, 2, 0, false});
  layout.add({"one", {1}});
  layout.add({"c", {130}, 0.5F, 0.5F});
  layout.add({"seven", {9}, 1, 1, false});
  layout.add({"d", {64}});
  return layout;
}

float wavy(std::uint64_t step) { return 0.05F * (1 + 0.5F * std::sin(static_cast<float>(step))); }
struct Wavy {
  template <class R>
  void operator()(R& recipe, std::uint64_t step) const {
    recipe.learning_rate = wavy(step);
  }
};

Arenas gradients(const Layout& layout, std::size_t ranks, std::uint64_t step) {
  Arenas g;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Floats one = gradient(layout, static_cast<int>(rank), step, 1);
    g.emplace_back(one.begin(), one.end());
  }
  return g;
}
Arenas parameters_of(const std::vector<Snapshot>& now) {
  Arenas x;
  for (const Snapshot& one : now) x.emplace_back(one.parameters.begin(), one.parameters.end());
  return x;
}
Arenas state_of(const Layout& layout, const std::vector<Snapshot>& now, const std::string& name) {
  Arenas all;
  for (const Snapshot& one : now) {
    REQUIRE(one.state.parts.contains(name));
    all.push_back(spread_out(layout, one.state, name));
  }
  return all;
}
Arenas start_of(const Layout& layout, std::size_t ranks) {
  const Floats x = start(layout);
  return Arenas(ranks, {x.begin(), x.end()});
}
Arenas zeros(const Layout& layout, std::size_t ranks) {
  return Arenas(ranks, std::vector<double>(at(layout.size())));
}

/// Largest |a - b| over what is typical of b and `scale`, where nothing is in doubt.
template <class Wanted>
double distance(const Layout& layout, const Arenas& a, const Arenas& b, Wanted wanted,
                const std::vector<char>& doubted = {}, double scale = 0) {
  double worst = 0;
  for (std::size_t rank = 0; rank < b.size(); ++rank) {
    const double typical = std::max({rms(layout, b[rank], wanted), scale, 1e-30});
    each(layout, wanted, [&](std::size_t k) {
      if (!doubted.empty() && doubted[k] != 0) return;
      const double error = std::abs(a[rank][k] - b[rank][k]) / (typical + std::abs(b[rank][k]));
      if (!(error <= worst)) worst = error;
    });
  }
  return worst;
}
bool any_one(const Segment&) { return true; }
bool compressed_one(const Segment& segment) { return segment.compress; }
bool excluded_one(const Segment& segment) { return !segment.compress; }
double largest_in(const Arenas& values) {
  double most = 0;
  for (const auto& one : values)
    for (const double value : one) most = std::max(most, std::abs(value));
  return most;
}

/// What each rank sends in a step of `vectors` packets of a fixed size.
template <class Section>
std::uint64_t bytes_of(const Layout& layout, const reference::Rows& rows, std::size_t rank, Section section,
                       std::uint64_t vectors = 1) {
  std::uint64_t receivers = 0, packet = 32 + section(layout.filter(layout.range(), true));
  for (std::size_t i = 0; i < rows.size(); ++i) receivers += i != rank && rows[i][rank] > 0;
  for (const Segment& segment : layout.segments())
    if (!segment.compress) packet += to_eight(4 * static_cast<std::uint64_t>(segment.count));
  return receivers * vectors * packet;
}
/// A scale for each piece, padded together, and its codes.
auto packed_section(std::uint64_t bits) {
  return [=](const Range& range) {
    std::uint64_t codes = 0;
    for (const Piece& piece : range.pieces()) {
      const auto n = static_cast<std::uint64_t>(piece.count);
      codes += bits == 8 ? to_eight(n) : (n + 63) / 64 * 8 * bits;
    }
    return to_eight(4 * range.pieces().size()) + codes;
  };
}
/// Positions and values.
auto largest_section(double ratio) {
  return [=](const Range& range) {
    std::uint64_t bytes = 0;
    for (const Piece& piece : range.pieces()) {
      const auto n = static_cast<std::uint64_t>(piece.count);
      const auto k = static_cast<std::uint64_t>(reference::top_count(ratio, piece.count));
      bytes += to_eight(4 * k) + position_bytes(n, k);
    }
    return bytes;
  };
}
template <class Section>
void check_bytes(const History& ours, const Layout& layout, const reference::Rows& rows, Section section,
                 std::uint64_t vectors = 1) {
  for (const auto& now : ours)
    for (std::size_t rank = 0; rank < now.size(); ++rank) {
      CHECK(now[rank].reduced == 0);
      CHECK(now[rank].spread == bytes_of(layout, rows, rank, section, vectors));
    }
}

/// sum_j W_ij (v_j - v_i) of copies that are all at hand.
Arenas pull(const reference::Rows& rows, const Arenas& v) {
  reference::CompressedMixing mixing;
  mixing.weights = rows;
  return mixing.pull(v);
}

/// Of compressed elements of all steps, how many an oracle did not doubt.
struct Share {
  std::uint64_t sure = 0, all = 0;
  void add(const Layout& layout, const std::vector<char>& doubted) {
    each(layout, compressed_one, [&](std::size_t k) { ++all, sure += doubted[k] == 0; });
  }
  void check() const {
    MESSAGE("compared " << sure << " of " << all << " elements");
    CHECK(sure * 100 >= all * 97);
  }
};

constexpr std::uint64_t steps = 12;
constexpr double margin = 1e-5, tolerance = 2e-6;

using Uniform8 = Uniform<8>;
template <class C>
using MomentumChoco = ChocoSgd<C, Net, MomentumDirection>;

/// Says it were all that is good, and sends nothing but noise.
struct Terrible {
  using Statistic = MaxAbs;
  static constexpr int bits = 2;
  static constexpr bool stochastic = true, unbiased = true, contractive = true, tracks = true;
  static std::uint32_t code(float, float, std::uint32_t random) { return random & 3; }
  static float value(std::uint32_t code, float scale) {
    return (static_cast<float>(code) - 1) * (0.25F * scale);
  }
};
using Garbage = Packed<Terrible, PerSegment>;

template <class R, class Read>
void compare_choco(const R& recipe, int ranks, Share& share, Read read, auto section) {
  CAPTURE(ranks);
  const Layout layout = layers();
  const History ours = run(recipe, layout, ranks, steps, 1, {}, Wavy{});
  check_bytes(ours, layout, rows_of(ranks), section);
  reference::Choco oracle;
  oracle.layout = layout, oracle.weights = rows_of(ranks);
  oracle.weight_decay = static_cast<double>(recipe.weight_decay);
  oracle.consensus_rate = static_cast<double>(recipe.consensus_rate);
  oracle.momentum = static_cast<double>(recipe.momentum_correction.direction.momentum);
  oracle.x = start_of(layout, at(ranks));
  oracle.m = oracle.h = zeros(layout, at(ranks));
  for (std::uint64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    reference::Model model(layout, margin);
    oracle.learning_rate = static_cast<double>(wavy(step));
    oracle.step(gradients(layout, at(ranks), step),
                [&](std::size_t, int, const auto& values) { return read(model, values); });
    const auto& now = ours[step - 1];
    const Arenas x = parameters_of(now), copies = state_of(layout, now, "own_copy");
    CHECK(distance(layout, x, oracle.x, any_one, model.doubted) < tolerance);
    CHECK(distance(layout, copies, oracle.h, compressed_one, model.doubted) < tolerance);
    CHECK(distance(layout, state_of(layout, now, "momentum"), oracle.m, any_one) < tolerance);
    // The sum that is kept instead of the neighbours' copies, after any number of steps.
    CHECK(distance(layout, state_of(layout, now, "mean_copy"), pull(oracle.weights, copies), compressed_one,
                   {}, largest_in(copies)) < 1e-7 * static_cast<double>(step));
    share.add(layout, model.doubted);
    oracle.x = x, oracle.m = state_of(layout, now, "momentum");
    for (std::size_t i = 0; i < copies.size(); ++i)
      each(layout, compressed_one, [&](std::size_t k) { oracle.h[i][k] = copies[i][k]; });
  }
}

template <class C>
MomentumChoco<C> choco(int ranks) {
  return {.weight_decay = 0.1F,
          .consensus_rate = 0.5F,
          .momentum_correction = {{.momentum = 0.5F}},
          .topology = net_of(ranks)};
}

/// Runs 0.5 (x - target of this rank)^2 and gives all ranks' parameters.
template <class R>
Arenas descend(const R& recipe, const Layout& layout, int ranks, int count,
               float (*target)(int rank, index_t i)) {
  Arenas all(at(ranks));
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout};
    Floats x(at(layout.size())), g(x.size());
    for (int step = 0; step < count; ++step) {
      for (std::size_t k = 0; k < x.size(); ++k)
        g[k] = x[k] - target(transport.rank(), static_cast<index_t>(k));
      optimizer.step(x, g);
    }
    all[at(transport.rank())].assign(x.begin(), x.end());
  });
  return all;
}
float opposite(int rank, index_t) { return rank == 0 ? 1.0F : -1.0F; }
float scattered(int rank, index_t i) { return noise(5, rank, 0, i); }

double mean_at(const Arenas& v, std::size_t k) {
  double sum = 0;
  for (const auto& one : v) sum += one[k];
  return sum / static_cast<double>(v.size());
}
/// Largest distance of the means of a and b beside `scale`.
double mean_distance(const Layout& layout, const Arenas& a, const Arenas& b, double scale) {
  double worst = 0;
  each(layout, any_one, [&](std::size_t k) {
    const double error = std::abs(mean_at(a, k) - mean_at(b, k)) / scale;
    if (!(error <= worst)) worst = error;
  });
  return worst;
}

}  // namespace

TEST_CASE("CHOCO follows the oracle, and its sum over neighbours is that of their copies") {
  Share eight, top;
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    compare_choco(
        choco<Uniform8>(ranks), ranks, eight,
        [](reference::Model& model, const auto& values) { return model.nearest8(values); },
        packed_section(8));
    MomentumChoco<TopK<>> some = choco<TopK<>>(ranks);
    some.compressor.selection.ratio = 0.25;
    compare_choco(
        some, ranks, top,
        [](reference::Model& model, const auto& values) { return model.largest(values, 0.25); },
        largest_section(0.25));
  }
  eight.check(), top.check();
}

TEST_CASE("CHOCO with everything sent is adapt-then-combine") {
  const Layout layout = layers();
  for (const int ranks : {2, 3, 7}) {
    MomentumChoco<TopK<>> recipe = choco<TopK<>>(ranks);
    recipe.consensus_rate = 1;
    recipe.compressor.selection.ratio = 1;
    const DmSgd<Net> plain{.weight_decay = recipe.weight_decay,
                           .momentum_correction = recipe.momentum_correction,
                           .topology = recipe.topology};
    const History ours = run(recipe, layout, ranks, steps, 1, {}, Wavy{}),
                  exact = run(plain, layout, ranks, steps, 1, {}, Wavy{});
    for (std::uint64_t step = 1; step <= steps; ++step) {
      const Arenas x = parameters_of(ours[step - 1]), y = parameters_of(exact[step - 1]);
      CHECK(distance(layout, x, y, any_one) < 1e-6);
      // Excluded segments never met the compressor.
      CHECK(distance(layout, x, y, excluded_one) == 0);
    }
  }
}

TEST_CASE("CHOCO's sum over neighbours is bitwise that of their copies where nothing rounds") {
  const Layout layout = layers();
  constexpr int ranks = 4;
  MomentumChoco<TopK<>> recipe{.learning_rate = 0.125F, .consensus_rate = 0.5F, .topology = net_of(ranks)};
  recipe.momentum_correction.direction.momentum = 0;
  recipe.compressor.selection.ratio = 0.5;
  std::vector<Snapshot> now(ranks);
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout};
    Floats x(at(layout.size())), g(x.size());
    const auto sixteenth = [](float value) { return std::floor(value * 16) / 16; };
    for (std::size_t k = 0; k < x.size(); ++k) x[k] = sixteenth(noise(4, 0, 0, static_cast<index_t>(k)));
    for (std::uint64_t step = 1; step <= 3; ++step) {
      for (std::size_t k = 0; k < x.size(); ++k)
        g[k] = sixteenth(noise(3, transport.rank(), step, static_cast<index_t>(k)));
      optimizer.step(x, g);
    }
    optimizer.walk(now[at(transport.rank())].state);
  });
  const Arenas copies = state_of(layout, now, "own_copy");
  CHECK(largest_in(copies) > 0.1);
  CHECK(distance(layout, state_of(layout, now, "mean_copy"), pull(rows_of(ranks), copies), compressed_one) ==
        0);
}

TEST_CASE("DeepSqueeze follows the oracle") {
  Share share;
  const Layout layout = layers();
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    CAPTURE(ranks);
    const DeepSqueeze<ScaledSign<MeanAbs>, Net> recipe{
        .weight_decay = 0.1F, .consensus_rate = 0.25F, .topology = net_of(ranks)};
    const History ours = run(recipe, layout, ranks, steps, 1, {}, Wavy{});
    check_bytes(ours, layout, rows_of(ranks), packed_section(1));
    reference::DeepSqueeze oracle;
    oracle.layout = layout, oracle.weights = rows_of(ranks);
    oracle.weight_decay = static_cast<double>(recipe.weight_decay), oracle.consensus_rate = 0.25;
    oracle.x = start_of(layout, at(ranks)), oracle.e = zeros(layout, at(ranks));
    for (std::uint64_t step = 1; step <= steps; ++step) {
      CAPTURE(step);
      reference::Model model(layout, margin);
      oracle.learning_rate = static_cast<double>(wavy(step));
      oracle.step(gradients(layout, at(ranks), step),
                  [&](std::size_t, int, const auto& values) { return model.signs(values); });
      const auto& now = ours[step - 1];
      const Arenas x = parameters_of(now), errors = state_of(layout, now, "error");
      CHECK(distance(layout, x, oracle.x, any_one, model.doubted) < tolerance);
      CHECK(distance(layout, errors, oracle.e, compressed_one, model.doubted) < tolerance);
      share.add(layout, model.doubted);
      oracle.x = x, oracle.e = errors;
    }
  }
  share.check();
}

TEST_CASE("DCD follows the oracle: parameters move by what packets say") {
  const Layout layout = layers();
  constexpr double ratio = 0.5;
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    CAPTURE(ranks);
    DcdSgd<UnbiasedRandomK, Net> recipe{.weight_decay = 0.1F, .topology = net_of(ranks)};
    recipe.compressor.selection.ratio = ratio;
    const History ours = run(recipe, layout, ranks, steps, 1, {}, Wavy{});
    // Positions are known to everybody.
    check_bytes(ours, layout, rows_of(ranks), [](const Range& range) {
      std::uint64_t bytes = 0;
      for (const Piece& piece : range.pieces())
        bytes += to_eight(4 * static_cast<std::uint64_t>(reference::top_count(ratio, piece.count)));
      return bytes;
    });
    reference::Dcd oracle;
    oracle.layout = layout, oracle.weights = rows_of(ranks);
    oracle.weight_decay = static_cast<double>(recipe.weight_decay);
    oracle.x = start_of(layout, at(ranks));
    for (std::uint64_t step = 1; step <= steps; ++step) {
      CAPTURE(step);
      const auto& now = ours[step - 1];
      const Arenas x = parameters_of(now), before = oracle.x;
      oracle.learning_rate = static_cast<double>(wavy(step));
      oracle.step(gradients(layout, at(ranks), step), [&](std::size_t rank, int, const auto& values) {
        std::vector<double> read(values.size());
        // One element of each stratum, times the stratum's size; the same ones on all ranks.
        for (const Segment& segment : layout.segments()) {
          const index_t n = segment.count, count = reference::top_count(ratio, n);
          for (index_t e = 0; segment.compress && e < count; ++e) {
            const index_t begin = n * e / count, end = n * (e + 1) / count;
            int moved = 0;
            for (std::size_t k = at(segment.offset + begin); k < at(segment.offset + end); ++k) {
              if (x[rank][k] == before[rank][k]) continue;
              CHECK(x[0][k] != before[0][k]);
              read[k] = values[k] * static_cast<double>(end - begin);
              ++moved;
            }
            CHECK(moved == 1);
          }
        }
        return read;
      });
      CHECK(distance(layout, x, oracle.x, any_one) < tolerance);
      CHECK(distance(layout, state_of(layout, now, "consensus"), pull(oracle.weights, x), any_one, {},
                     largest_in(x)) < 1e-7 * static_cast<double>(step));
      oracle.x = x;
    }
  }
}

TEST_CASE("BEER follows the oracle, and its sums over neighbours are those of their copies") {
  Share share;
  const Layout layout = layers();
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    CAPTURE(ranks);
    const Beer<Uniform8, Net> recipe{.weight_decay = 0.1F, .consensus_rate = 0.5F, .topology = net_of(ranks)};
    const History ours = run(recipe, layout, ranks, steps, 1, {}, Wavy{});
    check_bytes(ours, layout, rows_of(ranks), packed_section(8), 2);
    reference::Beer oracle;
    oracle.layout = layout, oracle.weights = rows_of(ranks);
    oracle.weight_decay = static_cast<double>(recipe.weight_decay), oracle.consensus_rate = 0.5;
    oracle.x = start_of(layout, at(ranks));
    oracle.h = oracle.v = oracle.copy = oracle.last = zeros(layout, at(ranks));
    for (std::uint64_t step = 1; step <= steps; ++step) {
      CAPTURE(step);
      reference::Model model(layout, margin);
      oracle.learning_rate = static_cast<double>(wavy(step));
      const Arenas g = gradients(layout, at(ranks), step);
      oracle.step(g, [&](std::size_t, int, const auto& values) { return model.nearest8(values); });
      const auto& now = ours[step - 1];
      const Arenas x = parameters_of(now), h = state_of(layout, now, "own_copy"),
                   copy = state_of(layout, now, "second_own_copy");
      CHECK(distance(layout, x, oracle.x, any_one, model.doubted) < tolerance);
      CHECK(distance(layout, h, oracle.h, compressed_one, model.doubted) < tolerance);
      CHECK(distance(layout, copy, oracle.copy, compressed_one, model.doubted) < 2 * tolerance);
      for (const char* name : {"mean_copy", "second_mean_copy"}) {
        const Arenas& copies = name[0] == 'm' ? h : copy;
        CHECK(distance(layout, state_of(layout, now, name), pull(oracle.weights, copies), compressed_one, {},
                       largest_in(copies)) < 1e-7 * static_cast<double>(step));
      }
      share.add(layout, model.doubted);
      oracle.x = x;
      for (std::size_t i = 0; i < x.size(); ++i)
        each(layout, compressed_one,
             [&](std::size_t k) { oracle.h[i][k] = h[i][k], oracle.copy[i][k] = copy[i][k]; });
      // Kept is what the tracker lacks of the gradient to come.
      Arenas tracker = state_of(layout, now, "tracker");
      const Arenas d = pull(oracle.weights, oracle.copy);
      for (std::size_t i = 0; i < x.size(); ++i)
        each(layout, any_one, [&](std::size_t k) { tracker[i][k] += g[i][k]; });
      Arenas expected = oracle.v;
      for (std::size_t i = 0; i < x.size(); ++i)
        for (const Segment& segment : layout.segments())
          for (std::size_t k = at(segment.offset); k < at(segment.offset + segment.count); ++k)
            expected[i][k] += (segment.compress ? 0.5 : 1) * d[i][k];
      CHECK(distance(layout, tracker, expected, any_one, model.doubted) <
            tolerance * static_cast<double>(step));
      for (std::size_t i = 0; i < x.size(); ++i)
        each(layout, compressed_one, [&](std::size_t k) { oracle.v[i][k] = tracker[i][k] - 0.5 * d[i][k]; });
      // The mean of the trackers is that of the gradients.
      CHECK(mean_distance(layout, tracker, g, 1) < tolerance);
    }
  }
  share.check();
}

TEST_CASE("BEER with everything sent is gradient tracking") {
  const Layout layout = layers();
  constexpr std::size_t ranks = 4;
  Beer<TopK<>, Net> recipe{.topology = net_of(ranks)};
  recipe.compressor.selection.ratio = 1;
  const History ours = run(recipe, layout, ranks, steps, 1, {}, Wavy{});
  Arenas x = start_of(layout, ranks), y = gradients(layout, ranks, 1);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    // x = W x - gamma y, y = W y + g - g'
    const Arenas x_pull = pull(rows_of(ranks), x), y_pull = pull(rows_of(ranks), y),
                 now = gradients(layout, ranks, step), next = gradients(layout, ranks, step + 1);
    for (std::size_t i = 0; i < ranks; ++i)
      for (const Segment& segment : layout.segments())
        for (std::size_t k = at(segment.offset); k < at(segment.offset + segment.count); ++k) {
          x[i][k] += x_pull[i][k] - static_cast<double>(wavy(step)) *
                                        static_cast<double>(segment.learning_rate_scale) * y[i][k];
          y[i][k] += y_pull[i][k] + next[i][k] - now[i][k];
        }
    CHECK(distance(layout, parameters_of(ours[step - 1]), x, any_one) < 1e-5);
  }
}

TEST_CASE("noise instead of packets leaves the mean of the ranks alone") {
  const Layout layout = layers();
  constexpr int ranks = 7;
  constexpr std::uint64_t few = 8;
  const auto check = [&](const auto& recipe) {
    const History ours = run(recipe, layout, ranks, few, 1, {}, Wavy{});
    Arenas x = start_of(layout, ranks);
    for (std::uint64_t step = 1; step <= few; ++step) {
      CAPTURE(step);
      const Arenas g = gradients(layout, ranks, step), now = parameters_of(ours[step - 1]);
      for (std::size_t i = 0; i < ranks; ++i)
        for (const Segment& segment : layout.segments())
          for (std::size_t k = at(segment.offset); k < at(segment.offset + segment.count); ++k)
            x[i][k] -=
                static_cast<double>(wavy(step)) * static_cast<double>(segment.learning_rate_scale) * g[i][k];
      CHECK(mean_distance(layout, now, x, largest_in(now)) < 1e-6);
      x = now;
    }
    // It was noise: ranks are far from each other.
    CHECK(largest_in(pull(rows_of(ranks), x)) > 0.2);
  };
  check(ChocoSgd<Garbage, Net>{.consensus_rate = 0.5F, .topology = net_of(ranks)});
  check(DeepSqueeze<Garbage, Net>{.consensus_rate = 0.5F, .topology = net_of(ranks)});
}

TEST_CASE("two ranks, opposite targets: the fixed points of theory") {
  const Layout layout = Layout::flat(1);
  const auto ends = [&](const auto& recipe, double expected, double error) {
    const Arenas x = descend(recipe, layout, 2, 1500, opposite);
    CHECK(x[0][0] == doctest::Approx(expected).epsilon(error));
    CHECK(x[1][0] == doctest::Approx(-expected).epsilon(error));
  };
  const Net net = net_of(pair());
  ends(MomentumChoco<Uniform8>{.momentum_correction = {{.momentum = 0}}, .topology = net}, 1.0 / 11, 1e-5);
  ends(DeepSqueeze<ScaledSign<MeanAbs>, Net>{.topology = net}, 1.0 / 11, 1e-5);
  ends(DcdSgd<UnbiasedRandomK, Net>{.topology = net}, 1.0 / 6, 1e-5);
  const Arenas x =
      descend(Beer<Uniform8, Net>{.consensus_rate = 0.5F, .topology = net}, layout, 2, 1500, opposite);
  CHECK(std::abs(x[0][0]) < 1e-6);
  CHECK(std::abs(x[1][0]) < 1e-6);
}

TEST_CASE("quadratics: BEER reaches the optimum itself, CHOCO the fixed point of adapt-then-combine") {
  const Layout layout = Layout::flat(64);
  constexpr int ranks = 4;
  constexpr double c = 0.25, ratio = 0.25;
  Arenas targets(ranks), optimum(ranks);
  for (int rank = 0; rank < ranks; ++rank)
    for (index_t k = 0; k < 64; ++k) targets[at(rank)].push_back(static_cast<double>(scattered(rank, k)));
  for (auto& one : optimum)
    for (std::size_t k = 0; k < 64; ++k) one.push_back(mean_at(targets, k));
  Beer<TopK<>, Net> beer{.learning_rate = 0.05F, .consensus_rate = c, .topology = net_of(ranks)};
  beer.compressor.selection.ratio = ratio;
  CHECK(distance(layout, descend(beer, layout, ranks, 1500, scattered), optimum, any_one) < 1e-5);

  MomentumChoco<TopK<>> choco{.learning_rate = 0.02F, .consensus_rate = c, .topology = net_of(ranks)};
  choco.momentum_correction.direction.momentum = 0.5F;
  choco.compressor.selection.ratio = ratio;
  // At rest nothing is left to compress: x = z + c sum_j W_ij (z_j - z_i), z the step by learning_rate / (1 - momentum).
  Arenas x = optimum;
  for (int step = 0; step < 3000; ++step) {
    for (std::size_t i = 0; i < ranks; ++i)
      for (std::size_t k = 0; k < 64; ++k)
        x[i][k] -= static_cast<double>(choco.learning_rate) / 0.5 * (x[i][k] - targets[i][k]);
    const Arenas d = pull(rows_of(ranks), x);
    for (std::size_t i = 0; i < ranks; ++i)
      for (std::size_t k = 0; k < 64; ++k) x[i][k] += c * d[i][k];
  }
  CHECK(distance(layout, x, optimum, any_one) > 0.1);
  CHECK(distance(layout, descend(choco, layout, ranks, 1500, scattered), x, any_one) < 1e-5);
}
