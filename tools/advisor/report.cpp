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

/// The full-precision method that this one stands in for, and whether overlapped.
const Row& dense_of(const Advice& advice, const Row& row, const char* how) {
  return *std::find_if(advice.rows.begin(), advice.rows.end(),
                       [&](const Row& other) { return other.name == row.dense + how; });
}

/// By more than headers.
bool sends_less(const Advice& advice, const Row& row) {
  return worth * predict::bytes_sent(row.figures.step.round) <
         predict::bytes_sent(dense_of(advice, row, "").figures.step.round);
}

std::string rate(double bandwidth) {
  const double megabits = bandwidth * 8 / 1e6;
  return megabits < 1000 ? text("%.3g Mbit/s", megabits) : text("%.3g Gbit/s", megabits / 1000);
}

/// Below which bandwidth a method is faster than its full-precision one.
std::string pays(const Advice& advice, const Row& row) {
  const double bandwidth =
      predict::break_even_bandwidth(row.figures.step, dense_of(advice, row, overlapped).figures.step,
                                    advice.network, advice.node.slowdown());
  if (std::isinf(bandwidth)) return "always";
  return bandwidth == 0 ? "never" : rate(bandwidth);
}

/// JSON has no infinity.
std::string finite(double value) { return std::isinf(value) ? "null" : text("%.9g", value); }

std::string head(const Advice& advice) {
  const predict::Network& network = advice.network;
  std::string lines = text("%d ranks; %lld parameters in %zu segment%s; gradient %.4g ms\n", advice.ranks,
                           static_cast<long long>(advice.elements), advice.segments,
                           advice.segments == 1 ? "" : "s", advice.gradient * 1e3);
  lines +=
      text("links, %s: latency %.3g ms, ", advice.measured ? "measured" : "as given", network.latency * 1e3) +
      rate(network.bandwidth);
  if (network.pairs_bandwidth < network.bandwidth) {
    lines += " to one rank, " + rate(network.pairs_bandwidth) + " to all others at once";
    if (network.queue > 0) lines += text(" after the first %.4g kB", network.queue / 1e3);
  }
  lines += "\n";
  if (advice.node.slowdown() > 1)
    lines += text("%d ranks share %d cores here: local passes take %.3g times as long\n", advice.node.ranks,
                  advice.node.cores, advice.node.slowdown());
  return lines + "\n";
}

std::string verdict(const Advice& advice, const std::vector<const Row*>& sorted) {
  const auto fastest =
      std::find_if(sorted.begin(), sorted.end(), [&](const Row* row) { return sends_less(advice, *row); });
  if (fastest == sorted.end())
    return "None of these sends less than full precision: there is nothing to compare it with.\n";
  const Row& best = **fastest;
  const Row& dense =
      **std::find_if(sorted.begin(), sorted.end(), [](const Row* row) { return is_dense(*row); });
  const double least = advice.seconds(best), exact = advice.seconds(dense);
  if (exact < worth * least)
    return text(
               "Sending less will not pay here: in full precision %s takes %.3f ms a step, of which %.3f ms "
               "are "
               "the gradient's,\nand %s, the fastest of those that send less, %.3f ms",
               dense.name.c_str(), exact * 1e3, advice.gradient * 1e3, best.name.c_str(), least * 1e3) +
           (least < exact ? ", which is less than 5 % faster.\n" : ".\n");
  return text(
             "Sending less pays here: %s takes %.3f ms a step, %s, the fastest in full precision, %.3f ms, "
             "%.3g "
             "times as long.\n",
             best.name.c_str(), least * 1e3, dense.name.c_str(), exact * 1e3, exact / least) +
         "The time of a step says nothing about accuracy: docs/choosing.md compares training results.\n";
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
  if (advice.ranks == 1) return "One rank alone sends nothing: there is nothing to compress.\n";
  std::string lines = head(advice);
  std::vector<const Row*> sorted;
  for (const Row& row : advice.rows) sorted.push_back(&row);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Row* a, const Row* b) { return advice.seconds(*a) < advice.seconds(*b); });
  lines += text("%-28s %11s %11s %11s %9s %10s  %s\n", "method", "step, ms", "wire, ms", "local, ms",
                "MB sent", "memory, MB", "faster than dense below");
  for (const Row* row : sorted) {
    const predict::Step& step = row->figures.step;
    lines += text("%-28s %11.3f %11.3f %11.3f %9.4g %10.4g  %s\n", row->name.c_str(),
                  advice.seconds(*row) * 1e3, predict::wire_seconds(step, advice.network) * 1e3,
                  step.local * advice.node.slowdown() * 1e3, predict::bytes_sent(step.round) / 1e6,
                  row->figures.memory / 1e6, is_dense(*row) ? "-" : pays(advice, *row).c_str());
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
