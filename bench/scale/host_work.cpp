// SPDX-License-Identifier: Apache-2.0
// What a step costs a rank's processor besides waiting, as ranks become more: the optimizer's part and that of the transport's
// calls, for a model so small that ranks count, not parameters. Prints Markdown tables, rank 0, microseconds, the least of some steps;
// "grows" says by how much from a row to the next, and ">" marks what has grown faster than the ranks. Ranks are threads, so that
// the transport's calls wake each other on shared cores; the optimizer's own part is like that of other transports.
//
//   bench_host_work [RANKS,...]     4,16,64,256 unless told

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "terse/exchange/hierarchical.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/predict/predict.hpp"
#include "terse/topology/star.hpp"
#include "terse/transport/thread.hpp"

namespace {

using namespace terse;

constexpr index_t parameters = index_t{64} * 256;  // a chunk's unit for each of the most ranks

struct Work {
  double local = std::numeric_limits<double>::infinity(), transport = local;  // s
  double messages = 0;
};

template <class R>
Work measure(const R& recipe, int ranks) {
  Work least;
  ThreadGroup(ranks, std::chrono::seconds(120)).run([&](Threads& transport) {
    predict::Recording recording;
    predict::Recorded over(transport.split(0, transport.rank()), recording);
    Optimizer optimizer{recipe, over, Layout::flat(parameters)};
    for (int round = 0; round < 5; ++round) {
      const predict::Rehearsal rehearsal = predict::rehearse(optimizer, recording, round == 0 ? 3 : 0, 1, 1);
      if (transport.rank() != 0) continue;
      least.local = std::min(least.local, rehearsal.local);
      least.transport = std::min(least.transport, recording.processor_seconds);
      least.messages = predict::messages(rehearsal.round);
    }
  });
  return least;
}

template <class Recipe>
Recipe compressed() {
  Recipe recipe{.learning_rate = 1e-3F};
  recipe.preconditioner.freeze = AtStep{2};
  return recipe;
}

/// One row for each number of ranks; `make` has a recipe for so many.
template <class Make>
void print(const char* what, const std::vector<int>& ranks, const Make& make) {
  Work last;
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    const Work now = measure(make(ranks[k]), ranks[k]);
    const double more = k > 0 ? static_cast<double>(ranks[k]) / ranks[k - 1] : 1;
    const auto grows = [&](double from, double to) {
      if (k == 0) return std::string();
      char text[32];
      // A quarter is what the same program's runs differ by.
      std::snprintf(text, sizeof text, "%.1f%s", to / from, to / from > 1.25 * more ? " >" : "");
      return std::string(text);
    };
    std::printf("| %s | %d | %.0f | %.1f | %s | %.1f | %s |\n", what, ranks[k], now.messages, now.local * 1e6,
                grows(last.local, now.local).c_str(), now.transport * 1e6,
                grows(last.transport, now.transport).c_str());
    std::fflush(stdout);
    last = now;
  }
}

int node_of(int ranks) {
  int node = static_cast<int>(std::sqrt(ranks));
  while (ranks % node != 0) --node;
  return node;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> ranks;
  std::istringstream list(argc > 1 ? argv[1] : "4,16,64,256");
  for (std::string one; std::getline(list, one, ',');) {
    char* end = nullptr;
    const long number = std::strtol(one.c_str(), &end, 10);
    if (*end != '\0' || number < 1 || number > 256) {
      const bool help = one == "--help";
      std::fprintf(help ? stdout : stderr,
                   "bench_host_work [RANKS,...]     numbers of ranks, 1 to 256 [4,16,64,256]\n");
      return help ? EXIT_SUCCESS : 2;
    }
    ranks.push_back(static_cast<int>(number));
  }
  std::printf(
      "| | ranks | messages | optimizer, us | grows | transport's calls, us | grows |\n"
      "|---|---:|---:|---:|---:|---:|---:|\n");
  using Hierarchy = Hierarchical<ScatterGather, ScatterGather>;
  print("Adam, BySize", ranks, [](int) { return Adam<BySize<>>{}; });
  print("Adam, Ring", ranks, [](int) { return Adam<Ring>{}; });
  print("Adam, Star's center", ranks, [](int) { return Adam<Star>{}; });
  print("Adam, Hierarchical", ranks,
        [](int all) { return Adam<Hierarchy>{.topology = {.ranks_per_node = node_of(all)}}; });
  print("OneBitAdam, ScatterGather", ranks, [](int) { return compressed<OneBitAdam<ScatterGather>>(); });
  print("OneBitAdam, Ring", ranks, [](int) { return compressed<OneBitAdam<Ring>>(); });
  print("OneBitAdam, AllGather", ranks, [](int) { return compressed<OneBitAdam<AllGather>>(); });
  print("OneBitAdam, Star's center", ranks, [](int) { return compressed<OneBitAdam<Star>>(); });
  print("OneBitAdam, BySize", ranks, [](int) { return compressed<OneBitAdam<BySize<>>>(); });
  print("OneBitAdam, Hierarchical", ranks, [](int all) {
    auto recipe = compressed<OneBitAdam<Hierarchy>>();
    recipe.topology.ranks_per_node = node_of(all);
    return recipe;
  });
  return EXIT_SUCCESS;
}
