// SPDX-License-Identifier: Apache-2.0

// What momentum does to decentralized SGD when data differ between ranks: where each method comes to rest,
// measured with the library's optimizers on threads and worked out. The flow: options -> problem -> curves ->
// table and files.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../../tools/train/output.hpp"
#include "options.hpp"
#include "report.hpp"
#include "terse/core/error.hpp"

namespace {

constexpr int failed = 1;
constexpr int bad_input = 2;

void complain(const std::string& line) { std::fprintf(stderr, "inconsistency_bias: %s\n", line.c_str()); }

/// Shows on a terminal what is being worked on.
void show_progress(const std::string& graph, bias::Method method) {
  if (isatty(STDERR_FILENO) != 0)
    std::fprintf(stderr, "\r\033[K%s, %s ...", graph.c_str(), bias::title(method));
}
void end_progress() {
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
}

std::vector<bias::NamedGraph> graphs_of(const bias::Options& options) {
  if (options.problem == "two-node") return {bias::two_node_graph()};
  std::vector<bias::NamedGraph> graphs = bias::named_graphs(options.seed);
  if (options.graph != "all")
    graphs.erase(std::remove_if(graphs.begin(), graphs.end(),
                                [&](const auto& one) { return one.name != options.graph; }),
                 graphs.end());
  return graphs;
}

bias::Experiment experiment_on(const bias::NamedGraph& graph, const bias::Problem& problem,
                               const bias::Options& options) {
  std::string unfit;
  try {
    graph.check(problem.ranks);
  } catch (const terse::usage_error& fault) {
    const std::string sentence = std::string(fault.what()).substr(std::string("terse: ").size());
    if (options.graph != "all") throw bias::input_error(fmt::format("--graph {}: {}", graph.name, sentence));
    unfit = sentence;
  }
  bias::Experiment experiment{graph.name, {}};
  for (const bias::Method method : bias::all_methods) {
    show_progress(graph.name, method);
    bias::Curve curve;
    std::optional<double> expected;
    if (unfit.empty()) {
      curve = bias::run(method, problem, graph, options.settings);
      expected = bias::expected_error(method, problem, graph, options.settings);
    } else {
      curve.refused = unfit;
    }
    experiment.results.push_back(bias::judge(method, std::move(curve), expected, problem, options.settings));
  }
  end_progress();
  return experiment;
}

/// Prints and writes what came out, and returns the exit code.
int report(const bias::Options& options, const bias::Problem& problem,
           const std::vector<bias::Experiment>& experiments) {
  train::Outputs write(complain);
  write([&] { train::print(stdout, bias::format_table(options, problem, experiments)); });
  if (!options.json.empty()) write([&] { bias::write_json(options, experiments); });
  if (!options.csv.empty()) write([&] { bias::write_csv(options, experiments); });
  if (!options.plot.empty()) write([&] { bias::write_plot(options, problem, experiments.front()); });
  if (!write.all_written()) return bad_input;
  for (const bias::Experiment& experiment : experiments)
    for (const bias::Result& result : experiment.results)
      if (result.end == bias::End::elsewhere) {
        complain(fmt::format("{} on {} rests away from its fixed point: a bug, or a rate beyond fp32",
                             bias::title(result.method), experiment.graph));
        return failed;
      }
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::optional<bias::Options> options = bias::parse_options(argc, argv);
    if (!options) return EXIT_SUCCESS;
    const bias::Problem problem =
        options->problem == "two-node" ? bias::two_node() : bias::regression(options->ranks, options->seed);
    std::vector<bias::Experiment> experiments;
    for (const bias::NamedGraph& graph : graphs_of(*options))
      experiments.push_back(experiment_on(graph, problem, *options));
    return report(*options, problem, experiments);
  } catch (const bias::input_error& fault) {
    complain(fault.what());
    return bad_input;
  } catch (const std::exception& fault) {
    complain(fault.what());
    return failed;
  }
}
