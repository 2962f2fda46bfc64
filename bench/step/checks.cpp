// SPDX-License-Identifier: Apache-2.0
// What the checks of packets and of replicas cost: steps with Options::check_payload and Options::compare_every beside steps
// without, over threads. Prints a Markdown table. All take turns in 20 rounds of 10 steps; the median of a round's ratios counts.
//
//   bench_checks [RANKS,... [PARAMETERS]]     2 and 4 Mi unless told

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/thread.hpp"

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<const char*, 4> names{"plain", "`check_payload`", "`compare_every` = 1",
                                           "`compare_every` = 10"};
const std::array<terse::Options, names.size()> checks{terse::Options{}, terse::Options{.check_payload = true},
                                                      terse::Options{.compare_every = 1},
                                                      terse::Options{.compare_every = 10}};

constexpr int rounds = 20, steps = 10;
/// Of each check, in each round.
using Seconds = std::array<std::array<double, rounds>, names.size()>;

template <class Recipe>
Seconds measure(const Recipe& recipe, int ranks, terse::index_t n) {
  Seconds seconds{};
  terse::ThreadGroup(ranks).run([&](terse::Threads& transport) {
    const auto layout = terse::Layout::flat(n);
    std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size(), 0.1F);
    std::array<std::optional<terse::Optimizer<Recipe, terse::Threads>>, checks.size()> optimizers;
    for (std::size_t k = 0; k < checks.size(); ++k) {
      optimizers[k].emplace(recipe, transport, layout, checks[k]);
      for (int step = 0; step < 2; ++step)
        optimizers[k]->step(x, g);  // 1-bit Adam's second stage begins with the second
    }
    for (std::size_t round = 0; round < rounds; ++round)
      for (std::size_t k = 0; k < checks.size(); ++k) {
        const auto begin = Clock::now();
        for (int step = 0; step < steps; ++step) optimizers[k]->step(x, g);
        if (transport.rank() == 0)
          seconds[k][round] = std::chrono::duration<double>(Clock::now() - begin).count() / steps;
      }
  });
  return seconds;
}

double median(std::array<double, rounds> values) {
  std::nth_element(values.begin(), values.begin() + rounds / 2, values.end());
  return values[rounds / 2];
}

template <class Recipe>
void print(const char* name, const Recipe& recipe, int ranks, terse::index_t n) {
  const Seconds seconds = measure(recipe, ranks, n);
  std::printf("| %s | %d | %.2f |", name, ranks, median(seconds[0]) * 1e3);
  for (std::size_t k = 1; k < seconds.size(); ++k) {
    std::array<double, rounds> ratios;
    for (std::size_t round = 0; round < rounds; ++round)
      ratios[round] = seconds[k][round] / seconds[0][round];
    std::printf(" %+.1f %% |", 100 * (median(ratios) - 1));
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const terse::index_t n = argc > 2 ? std::atoll(argv[2]) : terse::index_t{4} << 20;
  std::printf("| method | ranks | %s, ms | %s | %s | %s |\n|---|---:|---:|---:|---:|---:|\n", names[0],
              names[1], names[2], names[3]);
  terse::OneBitAdam<> one_bit;
  one_bit.preconditioner.freeze = terse::AtStep{1};
  std::istringstream list(argc > 1 ? argv[1] : "2");
  for (std::string ranks; std::getline(list, ranks, ',');) {
    const int count = std::max(1, std::atoi(ranks.c_str()));
    print("Adam", terse::Adam<>{}, count, n);
    print("1-bit Adam, second stage", one_bit, count, n);
  }
}
