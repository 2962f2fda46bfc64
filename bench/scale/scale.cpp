// SPDX-License-Identifier: Apache-2.0
// Rounds among many ranks: what terse::predict says of 2 to 1024, beside a simulation of their messages, up to 256, and beside
// real rounds over modelled links (terse::Delayed), up to 16 thread ranks. Prints Markdown tables; see --help.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "simulation.hpp"
#include "terse/exchange/hierarchical.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/predict/predict.hpp"
#include "terse/topology/star.hpp"
#include "terse/transport/delayed.hpp"
#include "terse/transport/thread.hpp"

namespace {

using namespace terse;
using simulation::Message;
using simulation::Order;
using simulation::Port;
using simulation::Schedule;

const char* const usage =
    R"(Rounds among many ranks: predicted, simulated and run over modelled links. Prints Markdown tables.

  bench_scale                        all of them
  bench_scale --predict              predictions alone; --simulate and --run likewise
  bench_scale --check                fails where predictions and simulation of 64 ranks differ by more than 5 %
  bench_scale ... --per-message S    seconds that each message keeps a port busy besides its bytes [1e-6]
)";

// All pairs lose this much of a link to queues: Ring's time over ScatterGather's with 4 ranks, 10 million parameters and links
// of 100 Mbit/s (docs/topologies.md, "Full precision, by size").
constexpr double share_of_all_pairs = 0.80;
constexpr int ranks_per_node = 8;
constexpr Port node{5e-6, 1e-6, 20e9};  // within a node, an assumption

struct Case {
  Port port;
  double elements, packet;  // bytes of the packet between nodes, and anywhere in flat topologies
};
enum Topology { all_pairs, all_pairs_in_queues, ring, native, star, all_gather, two_levels, count };
const char* name(int topology) {
  const char* const names[] = {"all pairs", "all pairs, queues", "ring",     "halving and doubling",
                               "star",      "all-gather",        "hierarchy"};
  return names[topology];
}

/// A network's latency is a whole small message's.
predict::Network network_of(const Port& port) {
  return {port.latency + port.per_message, port.per_message, port.bandwidth, port.bandwidth, 0};
}

/// Nothing where a topology isn't there for so many ranks.
std::optional<predict::TwoLevels> round_of(int topology, int ranks, const Case& job) {
  const bool dense = job.packet == 4 * job.elements;
  switch (topology) {
    case all_pairs:
    case all_pairs_in_queues:
      return predict::TwoLevels{{}, predict::scatter_gather(ranks, job.packet)};
    case ring:
      return predict::TwoLevels{{}, predict::ring(ranks, job.packet)};
    case native:
      if (!dense) return std::nullopt;
      return predict::TwoLevels{{}, predict::native(ranks, job.packet)};
    case star:
      return predict::TwoLevels{{}, predict::star_center(ranks, job.packet)};
    case all_gather:
      return predict::TwoLevels{{}, predict::all_gather(ranks, job.packet)};
    default:
      if (ranks % ranks_per_node != 0 || ranks == ranks_per_node) return std::nullopt;
      return predict::hierarchical(ranks, ranks_per_node, static_cast<index_t>(job.elements), job.packet,
                                   predict::scatter_gather, predict::scatter_gather);
  }
}
double seconds_of(int topology, const predict::TwoLevels& round, const Port& port) {
  predict::Network network = network_of(port);
  if (topology == all_pairs_in_queues) network.pairs_bandwidth *= share_of_all_pairs;
  return predict::seconds(round, network_of(node), network);
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", seconds);
  return text;
}

/// A difference in percent, which is not -0 where it is none to so many digits.
std::string percent(double difference, int digits) {
  const double unit = std::pow(10, digits);
  char text[32];
  std::snprintf(text, sizeof text, "%+.*f %%", digits, std::round(100 * difference * unit) / unit + 0.0);
  return text;
}

void print_predictions(double per_message) {
  const int rank_counts[] = {2, 4, 8, 16, 64, 256, 1024};
  for (const double elements : {1e7, 1e9})
    for (const Port port : {Port{1e-4, per_message, 1.25e8}, Port{5e-6, per_message, 1.25e10}})
      for (const double bits : {32.0, 1.0}) {
        const Case job{port, elements, elements * bits / 8};
        std::printf("\n%.0f million parameters, %.0f Gbit/s, %.3g ms, %.0f bit: seconds of a round\n\n|",
                    elements / 1e6, port.bandwidth * 8e-9, port.latency * 1e3, bits);
        for (const int ranks : rank_counts) std::printf(" | W = %d", ranks);
        std::printf(" |\n|---%s\n", "|---:|---:|---:|---:|---:|---:|---:|");
        // Of the library's own topologies, with all pairs either way; another one must be faster by more than 1 %.
        const auto best_of = [&](int pairs, int ranks) {
          int least = pairs;
          double seconds = std::numeric_limits<double>::infinity();
          for (const int topology : {pairs, int{ring}, int{star}, int{all_gather}, int{two_levels}})
            if (const auto round = round_of(topology, ranks, job))
              if (const double its = seconds_of(topology, *round, port); its < 0.99 * seconds)
                least = topology, seconds = its;
          return least;
        };
        for (int topology = 0; topology < count; ++topology) {
          if (!round_of(topology, 1024, job)) continue;
          std::printf("| %s", name(topology));
          for (std::size_t k = 0; k < std::size(rank_counts); ++k) {
            const auto round = round_of(topology, rank_counts[k], job);
            const std::string text = round ? seconds_text(seconds_of(topology, *round, port)) : std::string();
            std::printf(" | %s", text.c_str());
          }
          std::printf(" |\n");
        }
        for (const int pairs : {all_pairs, all_pairs_in_queues}) {
          std::printf("\nBest where all pairs lose %s:", pairs == all_pairs ? "nothing" : "a fifth");
          int last = -1;
          for (const int ranks : rank_counts) {
            const int now = best_of(pairs, ranks);
            if (now != last) std::printf("%s %s from %d", last < 0 ? "" : ",", name(now), ranks);
            last = now;
          }
          std::printf("\n");
        }
      }
  std::printf("\n| messages that a rank sends");
  for (const int ranks : rank_counts) std::printf(" | W = %d", ranks);
  std::printf(" |\n|---|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const int topology : {all_pairs, ring, native, star, all_gather, two_levels}) {
    std::printf("| %s", topology == star ? "star's center" : name(topology));
    for (const int ranks : rank_counts) {
      const auto round = round_of(topology, ranks, {{}, 1, 4});
      double sent = 0;
      if (round)
        for (const predict::Round& one : {round->inside, round->across})
          for (const predict::Batch& batch : one) sent += batch.sent > 0 ? batch.count * batch.messages : 0;
      std::printf(round ? " | %.0f" : " | ", sent);
    }
    std::printf(" |\n");
  }
}

/// The messages of a round, as optimizers send them.
simulation::Result simulate(int topology, int ranks, const Case& job, Order order) {
  const Port* const port = &job.port;
  const double chunk = job.packet / ranks;
  std::vector<const Port*> ports;
  switch (topology) {
    case all_pairs:
      ports = {port, port};
      break;
    case ring:
      ports.assign(2 * static_cast<std::size_t>(ranks - 1), port);
      break;
    case all_gather:
      ports = {port};
      break;
    case star:
      ports = {port, port};
      break;
    default:
      ports = {&node, port, port, &node};
  }
  Schedule schedule(ranks, ports);
  switch (topology) {
    case all_pairs:
      for (const std::size_t phase : {0U, 1U}) all_to_all(schedule, phase, chunk, order, 0, 1, ranks);
      break;
    case ring:
      for (int rank = 0; rank < ranks; ++rank)
        for (std::size_t phase = 0; phase < ports.size(); ++phase)
          schedule.add(rank, phase, {(rank + 1) % ranks, chunk});
      break;
    case all_gather:
      all_to_all(schedule, 0, job.packet, order, 0, 1, ranks);
      break;
    case star:
      for (int rank = 1; rank < ranks; ++rank) {
        schedule.add(rank, 0, {0, job.packet});
        schedule.add(0, 1, {rank, job.packet});
      }
      break;
    default: {
      const int nodes = ranks / ranks_per_node;
      for (int k = 0; k < nodes; ++k)
        for (const std::size_t phase : {0U, 3U})
          all_to_all(schedule, phase, 4 * job.elements / ranks_per_node, order, k * ranks_per_node, 1,
                     ranks_per_node);
      for (int k = 0; k < ranks_per_node; ++k)
        for (const std::size_t phase : {1U, 2U})
          all_to_all(schedule, phase, chunk, order, k, ranks_per_node, nodes);
    }
  }
  return run(schedule);
}

struct Compared {
  double predicted = 0;
  simulation::Result by_shift, by_rank;
  double error() const { return predicted / by_shift.seconds - 1; }
};
std::optional<Compared> compare(int topology, int ranks, const Case& job) {
  const auto round = round_of(topology, ranks, job);
  if (!round) return std::nullopt;
  return Compared{seconds_of(topology, *round, job.port), simulate(topology, ranks, job, Order::by_shift),
                  simulate(topology, ranks, job, Order::by_rank)};
}

void print_simulations(double per_message) {
  std::printf(
      "\n10 million parameters, simulated and predicted\n\n"
      "| network | bits | topology | W | predicted, s | simulated, by shift | error | by rank / by shift | "
      "queue by shift, "
      "MB | by rank, MB |\n|---|---:|---|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const Port port : {Port{1e-4, per_message, 1.25e8}, Port{5e-6, per_message, 1.25e10}})
    for (const double bits : {32.0, 1.0})
      for (const int topology : {all_pairs, ring, star, all_gather, two_levels})
        for (const int ranks : {4, 16, 64, 256})
          if (const auto both = compare(topology, ranks, {port, 1e7, 1e7 * bits / 8}))
            std::printf("| %.0f Gbit/s | %.0f | %s | %d | %s | %s | %s | %.2f | %.3g | %.3g |\n",
                        port.bandwidth * 8e-9, bits, name(topology), ranks,
                        seconds_text(both->predicted).c_str(), seconds_text(both->by_shift.seconds).c_str(),
                        percent(both->error(), 1).c_str(), both->by_rank.seconds / both->by_shift.seconds,
                        std::round(both->by_shift.queue) * 1e-6, std::round(both->by_rank.queue) * 1e-6);
}

/// Predictions and simulation within 5 %, and all pairs by rank slower, since they crowd.
bool check() {
  bool fine = true;
  for (const double bits : {32.0, 1.0})
    for (const int topology : {all_pairs, ring, star, all_gather, two_levels}) {
      const auto both = compare(topology, 64, {{5e-6, 1e-6, 1.25e10}, 1e7, 1e7 * bits / 8});
      const bool near = std::abs(both->error()) <= 0.05;
      const bool crowds = topology != all_pairs || both->by_rank.seconds > 1.4 * both->by_shift.seconds;
      std::printf("%s, %.0f bits, 64 ranks: predicted %.3g s, simulated %.3g s, by rank %.3g s%s\n",
                  name(topology), bits, both->predicted, both->by_shift.seconds, both->by_rank.seconds,
                  near && crowds ? "" : ": wrong");
      fine = fine && near && crowds;
    }
  return fine;
}

constexpr index_t small = index_t{1} << 17;
constexpr std::chrono::milliseconds latency{2};

struct Ran {
  double measured = 0, predicted = 0;
};
/// A step over modelled links: the median of some, and what the formula says with the local passes as rehearsed.
template <class R>
Ran run_steps(const R& recipe, int ranks, double bandwidth, const predict::TwoLevels& round) {
  Ran ran;
  ThreadGroup(ranks, std::chrono::seconds(60)).run([&](Threads& threads) {
    predict::Recording recording;
    predict::Recorded over(Delayed<Threads>(threads.split(0, threads.rank()),
                                            {.latency = latency, .bytes_per_second = bandwidth}),
                           recording);
    Optimizer optimizer{recipe, over, Layout::flat(small)};
    const predict::Rehearsal rehearsal = predict::rehearse(optimizer, recording, 2, 1, 1);
    std::vector<float> x(static_cast<std::size_t>(small)), g(x.size(), 0.1F);
    std::vector<double> times;
    for (int step = 0; step < 3; ++step) {
      barrier(threads);
      const auto begin = std::chrono::steady_clock::now();
      optimizer.step(x, g);
      barrier(threads);
      times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    if (threads.rank() != 0) return;
    std::sort(times.begin(), times.end());
    const predict::Network network =
        predict::ideal_network(std::chrono::duration<double>(latency).count(), bandwidth);
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    ran = {times[1], predict::seconds(round, network, network) +
                         rehearsal.local * predict::Node{ranks, cores}.slowdown()};
  });
  return ran;
}

void print_runs() {
  std::printf(
      "\nReal steps of %lld parameters over modelled links, %lld ms\n\n"
      "| bits | topology | W | predicted, s | measured, s | error |\n|---:|---|---:|---:|---:|---:|\n",
      static_cast<long long>(small), static_cast<long long>(latency.count()));
  const auto print = [](int bits, const char* what, int ranks, const Ran& ran) {
    std::printf("| %d | %s | %d | %.3f | %.3f | %s |\n", bits, what, ranks, ran.predicted, ran.measured,
                percent(ran.predicted / ran.measured - 1, 0).c_str());
    std::fflush(stdout);
  };
  const auto one_bit = [](auto recipe) {
    recipe.preconditioner.freeze = AtStep{1};
    return recipe;
  };
  const double n = static_cast<double>(small), dense = 4 * n, bit = n / 8;
  const auto flat = [](const predict::Round& round) { return predict::TwoLevels{{}, round}; };
  for (const int ranks : {2, 4, 8, 16}) {
    constexpr double fast = 1e7, slow = 4e5;  // bytes/s, so that a packet takes 50 and 40 ms
    using Pairs = ScatterGather;
    using Hierarchy = Hierarchical<ScatterGather, ScatterGather>;
    print(32, name(all_pairs), ranks,
          run_steps(Adam<BySize<>>{.topology = {.from = small}}, ranks, fast,
                    flat(predict::scatter_gather(ranks, dense))));
    print(32, name(ring), ranks, run_steps(Adam<Ring>{}, ranks, fast, flat(predict::ring(ranks, dense))));
    print(1, name(all_pairs), ranks,
          run_steps(one_bit(OneBitAdam<Pairs>{}), ranks, slow, flat(predict::scatter_gather(ranks, bit))));
    print(1, name(ring), ranks,
          run_steps(one_bit(OneBitAdam<Ring>{}), ranks, slow, flat(predict::ring(ranks, bit))));
    print(1, name(star), ranks,
          run_steps(one_bit(OneBitAdam<Star>{}), ranks, slow, flat(predict::star_center(ranks, bit))));
    print(1, name(all_gather), ranks,
          run_steps(one_bit(OneBitAdam<AllGather>{}), ranks, slow, flat(predict::all_gather(ranks, bit))));
    if (ranks < 4) continue;
    // Nodes of two ranks, all on the same links.
    OneBitAdam<Hierarchy> levels{};
    levels.topology.ranks_per_node = 2;
    print(1, "hierarchy, 2 ranks a node", ranks,
          run_steps(
              one_bit(levels), ranks, fast,
              predict::hierarchical(ranks, 2, small, bit, predict::scatter_gather, predict::scatter_gather)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string what;
  double per_message = 1e-6;
  for (int k = 1; k < argc; ++k) {
    const std::string option = argv[k];
    if (option == "--help") {
      std::fputs(usage, stdout);
      return EXIT_SUCCESS;
    }
    if (option == "--per-message") {
      char* end = nullptr;
      per_message = k + 1 < argc ? std::strtod(argv[++k], &end) : -1;
      if (end == nullptr || end == argv[k] || *end != '\0' || !(per_message >= 0) ||
          std::isinf(per_message)) {
        std::fputs("bench_scale: --per-message needs a number of seconds, 0 or more: 1e-6\n", stderr);
        return 2;
      }
    } else if (option == "--predict" || option == "--simulate" || option == "--run" || option == "--check") {
      what = option;
    } else {
      std::fprintf(stderr, "bench_scale: there is no option %s\n%s", argv[k], usage);
      return 2;
    }
  }
  if (what == "--check") return check() ? EXIT_SUCCESS : EXIT_FAILURE;
  if (what.empty() || what == "--predict") print_predictions(per_message);
  if (what.empty() || what == "--simulate") print_simulations(per_message);
  if (what.empty() || what == "--run") print_runs();
  return EXIT_SUCCESS;
}
