// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <limits>
#include <vector>

#include "../../tools/train/output.hpp"
#include "../../tools/train/parse.hpp"
#include "../../tools/train/picture.hpp"

namespace bias {
namespace {

/// An option's value as text, before CLI11 converts it: its own ranges let "nan" pass.
template <class Number>
CLI::Validator number(const std::string& wanted, const std::function<bool(Number)>& allowed) {
  const auto fault = [=](std::string& given) -> std::string {
    Number value{};
    const char* const end = given.data() + given.size();
    const auto [rest, error] = std::from_chars(given.data(), end, value);
    if (error == std::errc{} && rest == end && allowed(value)) return "";
    return fmt::format("'{}' is not {}", given, wanted);
  };
  return {fault, ""};
}

CLI::Validator one_of(const std::vector<std::string>& words) {
  const auto fault = [=](std::string& given) -> std::string {
    if (std::find(words.begin(), words.end(), given) != words.end()) return "";
    return fmt::format("'{}' is not one of {}", given, fmt::join(words, ", "));
  };
  return {fault, ""};
}

std::string fault_of_file(std::string& given) {
  return given.empty() ? "needs a path, but got an empty one" : "";
}

std::vector<std::string> graph_names() {
  std::vector<std::string> names;
  for (const NamedGraph& one : named_graphs(0)) names.push_back(one.name);
  return names;
}

void add_options(CLI::App& app, Options& o) {
  std::vector<std::string> graphs = graph_names();
  const std::string known = fmt::format("{}", fmt::join(graphs, ", "));
  graphs.push_back("all");
  const CLI::Validator file(fault_of_file, "");
  const auto positive = [](double value) {
    return value > 0 && static_cast<float>(value) > 0 &&
           value <= static_cast<double>(std::numeric_limits<float>::max());
  };

  std::string group = "Problem";
  const auto in_group = [&group](CLI::Option* option, const char* type) {
    option->group(group)->type_name(type);
  };
  in_group(app.add_option("--problem", o.problem, "see below [two-node]")
               ->check(one_of({"two-node", "regression"})),
           "two-node|regression");
  in_group(app.add_option("--graph", o.graph, "of the regression: a name below, or all [mesh]")
               ->check(one_of(graphs)),
           "NAME");
  in_group(app.add_option("--ranks", o.ranks, "of the regression [8]")
               ->check(number<int>("a whole number from 2 to 32", [](int n) { return n >= 2 && n <= 32; })),
           "N");
  in_group(app.add_option("--seed", o.seed, "of the regression's data and of random matchings [1]")
               ->check(number<std::uint64_t>("a whole number from 0 to 18446744073709551615",
                                             [](std::uint64_t) { return true; })),
           "N");

  group = "Methods";
  in_group(
      app.add_option("--learning-rate", o.settings.learning_rate, "of all methods [0.1, regression 0.001]")
          ->check(number<double>("a number above 0", positive)),
      "RATE");
  in_group(
      app.add_option("--beta", o.settings.beta, "momentum [0.9, regression 0.8]")
          ->check(number<double>("a number of at least 0 and below 1",
                                 [](double value) { return value >= 0 && static_cast<float>(value) < 1; })),
      "BETA");
  in_group(
      app.add_option("--iterations", o.settings.iterations, "steps of each method [3000, regression 2000]")
          ->check(number<int>("a whole number from 20 to 1000000",
                              [](int n) { return n >= 20 && n <= 1'000'000; })),
      "N");
  app.add_flag("--unchecked", o.settings.unchecked, "also run combinations that the library refuses")
      ->group(group);

  group = "Output";
  in_group(app.add_option("--json", o.json, "write limits and settings")->check(file), "FILE");
  in_group(app.add_option("--csv", o.csv, "write the error after each iteration")->check(file), "FILE");
  in_group(app.add_option("--plot", o.plot, "draw it")->check(file), "FILE.svg");

  train::add_help(app);
  app.footer(fmt::format(
      "Problems:\n"
      "  two-node    f_i(x) = (x - c_i)^2 / 2, c = (1, -1), W = [[3/4, 1/4], [1/4, 3/4]]: the limit |x_i|, "
      "which\n"
      "              would be 0 without bias, and its closed form\n"
      "  regression  f_i(x) = ||A_i x - y_i||^2 / 2 with 50 x 30 matrices: the mean square of the ranks' "
      "errors over\n"
      "              that of the optimum, and that of the exact fixed point, if W does not change\n\n"
      "Graphs:\n  {}\n\n"
      "Examples:\n"
      "  inconsistency_bias                                       all methods against their closed forms\n"
      "  inconsistency_bias --problem regression --plot bias.svg  curves on the mesh\n"
      "  inconsistency_bias --problem regression --graph all      limits on all graphs\n"
      "  inconsistency_bias --problem regression --graph directed-exponential --unchecked\n"
      "                                                           DecentLaM where it diverges\n\n"
      "Exit codes: 0 done, 1 a limit is not where theory says, 2 an option or a file can't be used.",
      [&known] {
        // In lines of the width of the rest.
        std::string text = known;
        if (const std::size_t comma = text.rfind(", ", 100); text.size() > 100 && comma != std::string::npos)
          text.replace(comma, 2, ",\n  ");
        return text;
      }()));
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv, std::FILE* out) {
  Options options;
  CLI::App app("Shows the effect of momentum on decentralized SGD when data differ between ranks.",
               "inconsistency_bias");
  app.get_formatter()->column_width(34);
  add_options(app, options);
  if (!train::parse(app, argc, argv, out)) return std::nullopt;
  const bool two_nodes = options.problem == "two-node";
  if (two_nodes)
    for (const char* option : {"--graph", "--ranks", "--seed"})
      if (app.count(option) > 0) throw input_error(fmt::format("{}: requires --problem regression", option));
  if (app.count("--learning-rate") == 0) options.settings.learning_rate = two_nodes ? 0.1 : 0.001;
  if (app.count("--beta") == 0) options.settings.beta = two_nodes ? 0.9 : 0.8;
  if (app.count("--iterations") == 0) options.settings.iterations = two_nodes ? 3000 : 2000;
  train::check_picture("--plot", options.plot);
  if (!options.plot.empty() && options.graph == "all")
    throw input_error("--plot: draws one graph; choose one by --graph");
  // Now: a typing error should not cost the run.
  train::check_output("--json", options.json);
  train::check_output("--csv", options.csv);
  train::check_drawing("--plot", options.plot);
  return options;
}

}  // namespace bias
