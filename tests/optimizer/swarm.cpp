// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

#include "reference/swarm.hpp"
#include "swarm_support.hpp"
#include "terse/checkpoint/checkpoint.hpp"
#include "terse/graph/verify.hpp"

// SwarmSGD by a shared schedule: the schedule, oracles in double, what a meeting does, resume.

using namespace terse;
using namespace terse::test;
using graph::Spacing;

namespace {

constexpr std::uint64_t steps = 40;
using Meetings = graph::Spaced<graph::RandomMatching>;

struct Training {
  std::uint64_t count = steps;
  bool looks = true;   ///< into the state, which completes meetings under way
  float apart = 0;     ///< at the start
  bool learns = true;  ///< otherwise a rate of 0 leaves meetings alone
};

template <class R>
History train(const R& recipe, int ranks, const Training& training = {}) {
  History history(training.count, std::vector<Snapshot>(at(ranks)));
  on_ranks(ranks, [&](Threads& raw) {
    Metered<Threads> transport(raw.split(0, raw.rank()));
    Optimizer optimizer{recipe, transport, odd_sizes()};
    Floats x = own_start(odd_sizes(), raw.rank(), training.apart);
    for (std::uint64_t step = 1; step <= training.count; ++step) {
      optimizer.learning_rate(training.learns ? warm_and_cool(step) : 0);
      const std::uint64_t before = transport.traffic().bytes_sent();
      optimizer.step(x, Quadratics::gradient<float>(at(raw.rank()), x));
      Snapshot& snapshot = history[step - 1][at(raw.rank())];
      snapshot.spread = transport.traffic().bytes_sent() - before;
      if (training.looks) optimizer.walk(snapshot.state);
      snapshot.parameters = x;
    }
  });
  return history;
}

/// A packet that is not compressed.
std::uint64_t plain_packet() {
  const Layout layout = odd_sizes();
  std::uint64_t bytes = 32;
  for (const Segment& segment : layout.segments())
    bytes += to_eight(4 * static_cast<std::uint64_t>(segment.count));
  return bytes;
}

double value(const Floats& x, std::size_t k) { return static_cast<double>(x[k]); }

std::vector<double> mean_of(const std::vector<Snapshot>& ranks) {
  std::vector<double> mean(ranks[0].parameters.size());
  for (const Snapshot& one : ranks)
    for (std::size_t k = 0; k < mean.size(); ++k)
      mean[k] += value(one.parameters, k) / static_cast<double>(ranks.size());
  return mean;
}
double worst_gap(const std::vector<double>& a, const std::vector<double>& b) {
  return relative_error(odd_sizes(), a, b, any_one, 1);
}
double square_distance(const Floats& a, const Floats& b) {
  double sum = 0;
  each(odd_sizes(), any_one, [&](std::size_t k) { sum += std::pow(value(a, k) - value(b, k), 2); });
  return sum;
}
/// Gamma: the ranks' square distances from their mean.
double disagreement(const std::vector<Snapshot>& ranks) {
  const std::vector<double> mean = mean_of(ranks);
  double sum = 0;
  for (const Snapshot& one : ranks)
    each(odd_sizes(), any_one,
         [&](std::size_t k) { sum += std::pow(value(one.parameters, k) - mean[k], 2); });
  return sum;
}

/// fp32 beside double on numbers around 1.
constexpr double tolerance = 1e-5;

}  // namespace

TEST_CASE("schedules are graphs of pairs, the same for all ranks") {
  const auto check = [](const auto& graph) {
    for (const int size : {1, 2, 3, 4, 7, 8}) graph::verify(graph, size, 60);
  };
  static_assert(graph::check_graph<graph::RandomEdge>() && graph::check_graph<Meetings>());
  static_assert(graph::PairGraph<graph::RandomMatching> && graph::PairGraph<graph::RandomEdge> &&
                graph::PairGraph<Meetings> && !graph::PairGraph<graph::OnePeerExponential> &&
                !graph::PairGraph<graph::Lazy<graph::RandomMatching>>);
  check(graph::RandomEdge{.seed = 4});
  check(Meetings{.graph = {.seed = 2}, .period = 3});
  check(Meetings{.graph = {.seed = 2}, .period = 3, .spacing = Spacing::geometric});
  check(graph::Spaced<graph::RandomEdge>{.period = 2, .spacing = Spacing::geometric, .seed = 5});
  CHECK_THROWS_WITH_AS((Meetings{.period = 0}.check(2)), doctest::Contains("period must be at least 1"),
                       usage_error);
}

TEST_CASE("all edges are equally likely, one in a round") {
  constexpr int size = 6, rounds = 15000;
  std::map<std::pair<int, int>, int> counts;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    int meeting = 0;
    for (int rank = 0; rank < size; ++rank) {
      const int peer = graph::RandomEdge{.seed = 9}.partner(rank, size, round);
      meeting += peer >= 0 ? 1 : 0;
      if (peer > rank) ++counts[{rank, peer}];
    }
    REQUIRE(meeting == 2);
  }
  CHECK(counts.size() == 15);
  double chi_squared = 0;
  for (const auto& one : counts) chi_squared += std::pow(one.second - rounds / 15.0, 2) / (rounds / 15.0);
  CHECK(chi_squared < 36);  // 14 degrees of freedom: 0.1 %
  int same = 0;
  for (std::uint64_t round = 0; round < 1000; ++round)
    same +=
        graph::RandomEdge{1}.partner(0, size, round) == graph::RandomEdge{2}.partner(0, size, round) ? 1 : 0;
  CHECK(same < 700);  // both alone in 4 / 9 of the rounds, and a few more
}

TEST_CASE("fixed spacing takes the graph's rounds in order, after every period") {
  const Meetings schedule{.graph = {.seed = 3}, .period = 5};
  for (std::uint64_t round = 0; round < 100; ++round)
    for (int rank = 0; rank < 7; ++rank)
      CHECK(schedule.partner(rank, 7, round) ==
            (round % 5 == 4 ? graph::RandomMatching{3}.partner(rank, 7, round / 5) : -1));
}

TEST_CASE("between a rank's meetings lies a geometric number of steps, of its own") {
  constexpr std::uint64_t period = 4, rounds = 40000;
  for (const std::uint64_t seed : std::initializer_list<std::uint64_t>{0, 7}) {
    // The graph's own draws have the same seed.
    const Meetings schedule{{.seed = seed}, period, Spacing::geometric, seed};
    std::vector<int> counts(20);
    int meetings = 0, together = 0, others = 0;
    std::uint64_t last = 0;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const int mine = schedule.partner(0, 4, round);
      if (mine < 0) continue;
      // Whether the other pair meets, too, is another draw.
      others += schedule.partner(mine == 3 ? 2 : mine == 1 ? 3 : 1, 4, round) >= 0 ? 1 : 0;
      ++together;
      const std::uint64_t gap = round + 1 - last;
      last = round + 1;
      ++meetings;
      ++counts[std::min<std::size_t>(gap, counts.size()) - 1];
    }
    const double p = 1.0 / period;
    CHECK(meetings == doctest::Approx(rounds * p).epsilon(0.03));
    CHECK(static_cast<double>(others) / together == doctest::Approx(p).epsilon(0.1));
    double chi_squared = 0, tail = 1;
    for (std::size_t gap = 0; gap < counts.size(); ++gap) {
      const double expected = meetings * (gap + 1 < counts.size() ? tail * p : tail);
      chi_squared += std::pow(counts[gap] - expected, 2) / expected;
      tail *= 1 - p;
    }
    CHECK(chi_squared < 44);  // 19 degrees of freedom: 0.1 %
  }
}

namespace {

template <class R>
void compare(R recipe, const MomentumSgd<>& inner) {
  CAPTURE(type_name<R>());
  recipe.inner = inner;
  constexpr bool blocking = std::is_same_v<R, Blocking> || std::is_same_v<R, OnEdges>;
  std::uint64_t turn = 0;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    const std::uint64_t number = turn++;
    recipe.schedule.period = std::initializer_list<std::uint64_t>{3, 1, 2, 3, 2}.begin()[number];
    recipe.schedule.spacing = ranks == 2 || ranks == 7 ? Spacing::fixed : Spacing::geometric;
    recipe.schedule.graph.seed = recipe.schedule.seed = number;
    const History ours = train(recipe, ranks);
    reference::Swarm<reference::MomentumSgd<>> oracle(
        odd_sizes(), at(ranks),
        {.momentum = static_cast<double>(inner.momentum_correction.momentum),
         .weight_decay = static_cast<double>(inner.weight_decay)},
        start(odd_sizes()));
    oracle.blocking = blocking;
    int meetings = 0;
    for (std::uint64_t step = 1; step <= steps; ++step) {
      CAPTURE(step);
      const std::vector<int> partners = partners_of(recipe, ranks, step);
      oracle.step(static_cast<double>(warm_and_cool(step)), Quadratics::gradient<double>, partners);
      const reference::Arenas x = oracle.x();
      for (std::size_t rank = 0; rank < x.size(); ++rank) {
        const Snapshot& now = ours[step - 1][rank];
        REQUIRE(relative_error(odd_sizes(), now.parameters, x[rank], any_one, 1) < tolerance);
        CHECK(now.spread == (partners[rank] >= 0 ? plain_packet() : 0));
        if (partners[rank] < 0) continue;
        ++meetings;
        const Floats& other = ours[step - 1][at(partners[rank])].parameters;
        if (blocking)
          CHECK(now.parameters == other);
        else if (step > 8 && step < 38)
          CHECK(now.parameters != other);
      }
    }
    CHECK((meetings > 4) == (ranks > 1));
    if (blocking) continue;
    // Looking completes meetings under way; otherwise they land when they are needed.
    const History unseen = train(recipe, ranks, {.looks = false});
    for (std::size_t step = 0; step < steps; ++step)
      for (std::size_t rank = 0; rank < at(ranks); ++rank)
        REQUIRE(unseen[step][rank].parameters == ours[step][rank].parameters);
  }
}

}  // namespace

TEST_CASE("blocking meetings follow their equations, and partners end with the same bits") {
  compare(Blocking{}, {.weight_decay = 0.1F});
  compare(OnEdges{}, plain());
}

TEST_CASE("non-blocking ones do: copies are averaged, and steps made meanwhile are added") {
  compare(NonBlocking{}, {.weight_decay = 0.1F});
  compare(NonBlocking{}, plain());
}

TEST_CASE("a meeting keeps the mean and takes half the pairs' square distances from the disagreement") {
  const auto check = [](const auto& recipe) {
    for (const int ranks : {2, 3, 4, 7}) {
      CAPTURE(ranks);
      const History ours = train(recipe, ranks, {.count = 6, .apart = 1, .learns = false});
      for (std::uint64_t step = 2; step <= 6; ++step) {
        CAPTURE(step);
        const std::vector<Snapshot>&was = ours[step - 2], &is = ours[step - 1];
        const std::vector<int> partners = partners_of(recipe, ranks, step);
        double halves = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const Floats& mine = was[at(rank)].parameters;
          if (partners[at(rank)] < 0)
            CHECK(is[at(rank)].parameters == mine);
          else if (partners[at(rank)] > rank)
            halves += 0.5 * square_distance(mine, was[at(partners[at(rank)])].parameters);
        }
        // Numbers up to 1.5, rounded once.
        CHECK(worst_gap(mean_of(is), mean_of(was)) < 1.2e-7);
        const double before = disagreement(was), after = disagreement(is);
        CHECK(std::abs(before - halves - after) <= 1e-6 * before);
      }
    }
  };
  check(Blocking{.schedule = {.period = 1}});
  check(OnEdges{.schedule = {.period = 1}});
}

TEST_CASE("non-blocking meetings keep the mean, with what is on its way") {
  for (const Spacing spacing : {Spacing::fixed, Spacing::geometric})
    for (const int ranks : {2, 3, 7}) {
      CAPTURE(ranks);
      const NonBlocking recipe{.schedule = {.graph = {5}, .period = 2, .spacing = spacing}};
      const History ours = train(recipe, ranks, {.count = 16, .apart = 1, .learns = false});
      // The first meeting enters after the second period.
      if (spacing == Spacing::fixed) CHECK(ours[2][0].parameters == own_start(odd_sizes(), 0, 1));
      const auto whole = [&](std::size_t step) {
        std::vector<double> mean = mean_of(ours[step]);
        for (const Snapshot& one : ours[step])
          each(odd_sizes(), any_one, [&](std::size_t k) { mean[k] += one.state.parts.at("met")[k] / ranks; });
        return mean;
      };
      for (std::size_t step = 1; step < 16; ++step) CHECK(worst_gap(whole(step), whole(step - 1)) < 1.8e-7);
      // With a partner for everybody and at a fixed spacing all take up together.
      for (std::size_t step = 1; step < 16 && ranks == 2; ++step)
        CHECK(worst_gap(mean_of(ours[step]), mean_of(ours[step - 1])) < 1.8e-7);
      CHECK(disagreement(ours[15]) < 0.7 * disagreement(ours[0]));
    }
}

TEST_CASE("two ranks that meet after each step average their gradients") {
  const History swarm = train(Blocking{.schedule = {.period = 1}}, 2);
  reference::MomentumSgd<> oracle(odd_sizes(), 2, {.momentum = static_cast<double>(0.9F)},
                                  start(odd_sizes()));
  for (std::uint64_t step = 1; step <= steps; ++step) {
    reference::Arenas gradients;
    for (std::size_t rank = 0; rank < 2; ++rank)
      gradients.push_back(Quadratics::gradient<double>(rank, oracle.parameters));
    oracle.step(gradients, static_cast<double>(warm_and_cool(step)));
    for (const Snapshot& one : swarm[step - 1])
      REQUIRE(relative_error(odd_sizes(), one.parameters, oracle.parameters, any_one, 1) < tolerance);
  }
}

TEST_CASE("through a lattice a meeting is the plain one within half a step, and keeps the mean") {
  constexpr float lattice_step = 0.01F;  // reaches 1.275
  // Codes of 8 bits, and a checksum for each of six pieces.
  const std::uint64_t packet = 32 + 6 * 8 + 8 + 8 + 64 + 72 + 8 + 1000;
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    const Training meets_only{.count = 5, .apart = 1, .learns = false};
    const History ours =
        train(OnLattice{.schedule = {.period = 1}, .compressor = {lattice_step}}, ranks, meets_only);
    const History late =
        train(LateOnLattice{.schedule = {.period = 1}, .compressor = {lattice_step}}, ranks, meets_only);
    for (std::uint64_t step = 2; step <= 5; ++step) {
      const std::vector<int> partners = partners_of(OnLattice{.schedule = {.period = 1}}, ranks, step);
      double worst = 0;
      for (std::size_t rank = 0; rank < at(ranks); ++rank) {
        const Floats &was = ours[step - 2][rank].parameters, &is = ours[step - 1][rank].parameters;
        CHECK(ours[step - 1][rank].spread == (partners[rank] < 0 ? 0 : packet));
        if (partners[rank] < 0) {
          CHECK(is == was);
          continue;
        }
        const Floats& other = ours[step - 2][at(partners[rank])].parameters;
        each(odd_sizes(), any_one, [&](std::size_t k) {
          worst = std::max(worst, std::abs(value(is, k) - (value(was, k) + value(other, k)) / 2));
        });
      }
      CHECK(worst < 0.5 * static_cast<double>(lattice_step) + 2e-7);
      CHECK(worst > 0.4 * static_cast<double>(lattice_step));
      CHECK(worst_gap(mean_of(ours[step - 1]), mean_of(ours[step - 2])) < 1.2e-7);
      // The same meetings, taken up a step later.
      if (ranks % 2 == 0)
        for (std::size_t rank = 0; rank < at(ranks) && step == 2; ++rank)
          CHECK(relative_error(odd_sizes(), late[1][rank].parameters, ours[0][rank].parameters, any_one, 1) <
                1e-6);
    }
  }
}

TEST_CASE("parameters beyond the lattice's bound are an error for those who meet, and stay as they are") {
  const auto check = [](const auto& recipe, std::int64_t noticed) {
    for (const float apart : {0.125F, 0.13F}) {
      std::vector<std::int64_t> errors(2, 0);
      on_ranks(2, [&](Threads& raw) {
        Metered<Threads> transport(raw.split(0, raw.rank()));
        Optimizer optimizer{recipe, transport, odd_sizes()};
        Floats x = start(odd_sizes());
        // The last element, so that all else has been read by then.
        if (transport.rank() == 1) x[at(odd_sizes().segments().back().offset + 999)] += apart;
        const Floats before = x, none(x.size());
        optimizer.learning_rate(0);
        try {
          for (int step = 0; step < 4; ++step) optimizer.step(x, none);
        } catch (const wire_error& failure) {
          errors[at(transport.rank())] = failure.step();
          CHECK(std::string(failure.what()).find("differ by more than the compressor's bound") !=
                std::string::npos);
          CHECK(x == before);
        }
      });
      const std::int64_t expected = apart < 0.1275F ? 0 : noticed;
      CHECK(errors == std::vector<std::int64_t>{expected, expected});
    }
  };
  check(OnLattice{.schedule = {.period = 2}, .compressor = {0.001F}}, 2);
  check(LateOnLattice{.schedule = {.period = 2}, .compressor = {0.001F}}, 2);
}

namespace {

/// Step `saved` is saved; `last` steps without a break, and with one, end alike.
template <class R>
void check_resume(const R& recipe, int ranks, std::uint64_t saved, std::uint64_t last) {
  CAPTURE(type_name<R>());
  CAPTURE(saved);
  const auto folder = std::filesystem::temp_directory_path() / ("terse_swarm_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::vector<Floats> unbroken(at(ranks)), resumed(at(ranks));
  on_ranks(ranks, [&](Threads& raw) {
    // Counts nothing here; one type of optimizer less to compile.
    Metered<Threads> transport(raw.split(0, raw.rank()));
    const std::size_t rank = at(transport.rank());
    const auto train = [&](auto& optimizer, Floats& x, std::uint64_t until) {
      while (optimizer.steps() < until) {
        optimizer.learning_rate(warm_and_cool(optimizer.steps() + 1));
        optimizer.step(x, Quadratics::gradient<float>(rank, x));
      }
    };
    const auto file = folder / std::to_string(rank);
    Optimizer one{recipe, transport, odd_sizes()}, two{recipe, transport, odd_sizes()},
        three{recipe, transport, odd_sizes()};
    Floats &x = unbroken[rank] = start(odd_sizes()), y = x, &z = resumed[rank] = x;
    train(one, x, last);
    train(two, y, saved);
    checkpoint::save(file, two, y);
    train(two, y, last);
    CHECK(y == x);
    // Has been elsewhere, and is in the middle of something.
    train(three, z, 7);
    checkpoint::load(file, three, z);
    CHECK(three.steps() == saved);
    train(three, z, last);
  });
  std::filesystem::remove_all(folder);
  CHECK(resumed == unbroken);
}

}  // namespace

TEST_CASE("a run goes on from a file as if nothing had happened, between meetings and with one under way") {
  for (const std::uint64_t saved : std::initializer_list<std::uint64_t>{11, 12}) {
    check_resume(Blocking{.schedule = {.period = 4, .spacing = Spacing::geometric}}, 3, saved, 25);
    check_resume(NonBlocking{.schedule = {.period = 4}}, 3, saved, 25);
    check_resume(LateOnLattice{.schedule = {.period = 4}, .compressor = {0.05F}}, 2, saved, 25);
  }
}
