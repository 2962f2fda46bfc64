// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace advise {

namespace predict = terse::predict;

namespace {

// What is worth another method; predictions aren't better.
constexpr double worth = 1.05;
constexpr const char* overlapped = "+overlap";

[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...) {
  char line[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(line, sizeof line, format, values);
  va_end(values);
  return line;
}

bool is_dense(const Row& row) { return row.name == row.dense || row.name == row.dense + overlapped; }

/// Below which bandwidth, bytes/s, a method is faster than its full-precision one.
double break_even(const Advice& advice, const Row& row) {
  const auto dense = std::find_if(advice.rows.begin(), advice.rows.end(),
                                  [&](const Row& other) { return other.name == row.dense + overlapped; });
  return predict::break_even_bandwidth(row.figures.step, dense->figures.step, advice.network,
                                       advice.node.slowdown());
}

std::string pays(double bandwidth) {
  if (std::isinf(bandwidth)) return "always";
  if (bandwidth == 0) return "never";
  const double megabits = bandwidth * 8 / 1e6;
  return megabits < 1000 ? text("%.3g Mbit/s", megabits) : text("%.3g Gbit/s", megabits / 1000);
}

/// JSON has no infinity.
std::string finite(double value) { return std::isinf(value) ? "null" : text("%.9g", value); }

std::string head(const Advice& advice) {
  const predict::Network& network = advice.network;
  std::string lines = text("%d rank%s; %lld parameters in %zu segment%s; gradient %.4g s\n", advice.ranks,
                           advice.ranks == 1 ? "" : "s", static_cast<long long>(advice.elements),
                           advice.segments, advice.segments == 1 ? "" : "s", advice.gradient);
  lines += text("links, %s: latency %.3g ms, %.4g Mbit/s", advice.measured ? "measured" : "as given",
                network.latency * 1e3, network.bandwidth * 8 / 1e6);
  if (advice.measured)
    lines += text(" to one rank, %.4g Mbit/s to all others at once behind the first %.4g kB",
                  network.pairs_bandwidth * 8 / 1e6, network.queue / 1e3);
  lines += "\n";
  if (advice.node.slowdown() > 1)
    lines += text("%d ranks share %d cores here: local passes take %.3g times as long\n", advice.node.ranks,
                  advice.node.cores, advice.node.slowdown());
  return lines + "\n";
}

std::string verdict(const Advice& advice, const std::vector<const Row*>& sorted) {
  const Row& best =
      **std::find_if(sorted.begin(), sorted.end(), [](const Row* row) { return !is_dense(*row); });
  const Row& dense =
      **std::find_if(sorted.begin(), sorted.end(), [](const Row* row) { return is_dense(*row); });
  const double least = advice.seconds(best), exact = advice.seconds(dense);
  if (exact < worth * least)
    return text(
        "Compression will not pay here: in full precision %s takes %.3g s a step, of which %.3g s are the "
        "gradient's,\nand %s, the fastest of those that send less, %.3g s.\n",
        dense.name.c_str(), exact, advice.gradient, best.name.c_str(), least);
  return text(
             "Compression pays here: %s takes %.3g s a step, %s, the fastest in full precision, %.3g s, %.3g "
             "times "
             "as long.\n",
             best.name.c_str(), least, dense.name.c_str(), exact, exact / least) +
         "A step is not a result: which of them train a model as well, docs/choosing.md says.\n";
}

}  // namespace

void Advice::add(const Method& method, const Figures& figures) {
  rows.push_back({method.name, method.dense, figures});
  if (!method.overlaps) return;
  rows.push_back({method.name + overlapped, method.dense, figures});
  rows.back().figures.step.overlap = predict::Overlap::slices;
}

double Advice::seconds(const Row& row) const {
  return predict::seconds(row.figures.step, network, node.slowdown());
}

std::string report(const Advice& advice) {
  std::string lines = head(advice);
  if (advice.ranks == 1) return lines + "One rank alone sends nothing: there is nothing to compress.\n";
  std::vector<const Row*> sorted;
  for (const Row& row : advice.rows) sorted.push_back(&row);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Row* a, const Row* b) { return advice.seconds(*a) < advice.seconds(*b); });
  lines += text("%-28s %9s %9s %9s %9s %10s  %s\n", "method", "step, s", "wire, s", "local, s", "MB sent",
                "memory, MB", "faster than dense below");
  for (const Row* row : sorted) {
    const predict::Step& step = row->figures.step;
    lines += text("%-28s %9.4g %9.3g %9.3g %9.4g %10.4g  %s\n", row->name.c_str(), advice.seconds(*row),
                  predict::wire_seconds(step, advice.network), step.local * advice.node.slowdown(),
                  predict::bytes_sent(step.round) / 1e6, row->figures.memory / 1e6,
                  is_dense(*row) ? "-" : pays(break_even(advice, *row)).c_str());
  }
  return lines + "\n" + verdict(advice, sorted);
}

std::string json(const Advice& advice) {
  const predict::Network& network = advice.network;
  std::string line = text(
      "{\"ranks\": %d, \"latency\": %.9g, \"per_message\": %.9g, \"bandwidth\": %s, "
      "\"pairs_bandwidth\": %s, \"queue\": %.9g, \"slowdown\": %.9g, \"methods\": [",
      advice.ranks, network.latency, network.per_message, finite(network.bandwidth).c_str(),
      finite(network.pairs_bandwidth).c_str(), network.queue, advice.node.slowdown());
  for (const Row& row : advice.rows) {
    const predict::Step& step = row.figures.step;
    line += text(
        "%s{\"method\": \"%s\", \"seconds\": %.9g, \"gradient\": %.9g, \"wire\": %.9g, \"local\": %.9g, "
        "\"bytes\": %.9g, \"memory\": %.9g}",
        &row == &advice.rows.front() ? "" : ", ", row.name.c_str(), advice.seconds(row), step.gradient,
        predict::wire_seconds(step, network), step.local, predict::bytes_sent(step.round),
        row.figures.memory);
  }
  return line + "]}\n";
}

}  // namespace advise
