// SPDX-License-Identifier: Apache-2.0
// Full-precision steps of Adam over threads, small ones to large ones: all pairs and a ring. Prints a Markdown table. Both
// take turns; the best of 20 rounds of 50 steps counts. With --sharded: steps with and without sharded state, of Adam and of Muon;
// all four take turns, and the table has the median of 20 rounds of 10 steps, of Muon 1, and the median of a round's ratios.
//
//   bench_latency [RANKS,...]                           2,4 by default
//   bench_latency --sharded [RANKS,... [PARAMETERS]]    2 and 4 Mi by default; Muon's matrices have 512 x 512

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/muon.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/optimizer/sharded.hpp"
#include "terse/transport/thread.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using BySize = terse::Adam<terse::BySize<>>;

struct Best {
  double pairs = std::numeric_limits<double>::infinity(), ring = pairs;
};

Best measure(int ranks, terse::index_t n) {
  Best best;
  terse::ThreadGroup(ranks).run([&](terse::Threads& transport) {
    const auto layout = terse::Layout::flat(n);
    std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size(), 0.1F);
    terse::Optimizer pairs{BySize{.topology = {.from = n + 1}}, transport, layout};
    terse::Optimizer ring{BySize{.topology = {.from = 0}}, transport, layout};
    const auto time = [&](auto& optimizer, double& least) {
      const auto begin = Clock::now();
      for (int step = 0; step < 50; ++step) optimizer.step(x, g);
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count() / 50;
      if (transport.rank() == 0) least = std::min(least, seconds);
    };
    for (int round = 0; round < 20; ++round) {
      time(pairs, best.pairs);
      time(ring, best.ring);
    }
  });
  return best;
}

constexpr int rounds = 20;
using Rounds = std::array<double, rounds>;

double median(Rounds values) {
  std::nth_element(values.begin(), values.begin() + rounds / 2, values.end());
  return values[rounds / 2];
}

/// Measures steps of both recipes in turns, and prints a row.
template <class Inner>
void compare(const char* name, int ranks, const terse::Layout& layout, int steps) {
  Rounds whole{}, sharded{}, ratios{};
  terse::ThreadGroup(ranks, std::chrono::seconds(60)).run([&](terse::Threads& transport) {
    std::vector<float> x(static_cast<std::size_t>(layout.size()), 0.5F), g(x.size());
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = 0.01F * static_cast<float>(i % 13) - 0.06F;
    terse::Optimizer plain{Inner{}, transport, layout};
    terse::Optimizer divided{terse::Sharded<Inner>{}, transport, layout};
    const auto time = [&](auto& optimizer) {
      barrier(transport);
      const auto begin = Clock::now();
      for (int step = 0; step < steps; ++step) optimizer.step(x, g);
      return std::chrono::duration<double>(Clock::now() - begin).count() / steps;
    };
    time(plain), time(divided);
    for (std::size_t round = 0; round < rounds; ++round) {
      const double first = time(plain), second = time(divided);
      if (transport.rank() == 0) whole[round] = first, sharded[round] = second;
    }
  });
  for (std::size_t round = 0; round < rounds; ++round) ratios[round] = sharded[round] / whole[round];
  std::printf("| `%s` | %d | %.1f | %.1f | %.2f |\n", name, ranks, median(whole) * 1e3, median(sharded) * 1e3,
              median(ratios));
  std::fflush(stdout);
}

int compare_sharded(const char* ranks_list, terse::index_t n) {
  constexpr terse::index_t side = 512;
  terse::Layout matrices;
  for (terse::index_t k = 0; k < std::max<terse::index_t>(1, n / (side * side)); ++k)
    matrices.add({.name = std::to_string(k), .shape = {side, side}, .hidden = true});
  std::printf("| method | ranks | every rank, ms | sharded, ms | ratio |\n|---|---:|---:|---:|---:|\n");
  std::istringstream list(ranks_list);
  for (std::string ranks; std::getline(list, ranks, ',');) {
    const int count = std::max(1, std::atoi(ranks.c_str()));
    compare<terse::Adam<>>("Adam<>", count, terse::Layout::flat(n), 10);
    compare<terse::Muon<>>("Muon<>", count, matrices, 1);
  }
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--sharded") == 0)
    return compare_sharded(argc > 2 ? argv[2] : "2",
                           argc > 3 ? std::atoll(argv[3]) : terse::index_t{4} << 20);
  std::printf(
      "| ranks | parameters | all pairs, us | ring, us | ring / all pairs |\n|---:|---:|---:|---:|---:|\n");
  std::istringstream list(argc > 1 ? argv[1] : "2,4");
  for (std::string ranks; std::getline(list, ranks, ',');)
    for (const terse::index_t n : {10'240, 65'536, 131'072, 262'144, 524'288, 1'048'576}) {
      const Best best = measure(std::max(1, std::atoi(ranks.c_str())), n);
      std::printf("| %s | %lld | %.1f | %.1f | %.2f |\n", ranks.c_str(), static_cast<long long>(n),
                  best.pairs * 1e6, best.ring * 1e6, best.ring / best.pairs);
      std::fflush(stdout);
    }
  return EXIT_SUCCESS;
}
