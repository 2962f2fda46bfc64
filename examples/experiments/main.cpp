// SPDX-License-Identifier: Apache-2.0

// Small trainings that show what each method is about: the experiments of docs/experiments.md, each in a unit of its own. The
// flow: options -> rows, seed after seed -> tables in Markdown, and a CSV file for examples/experiments/plot.

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "../../tools/train/idx.hpp"
#include "../../tools/train/output.hpp"
#include "experiment.hpp"
#include "options.hpp"
#include "terse/core/error.hpp"

namespace {

using namespace experiments;

constexpr int failed = 1, bad_input = 2;

void complain(const std::string& line) { std::fprintf(stderr, "experiments: %s\n", line.c_str()); }

/// A part of Fashion-MNIST, normalized, its first pixel at 0.
Dataset load(const std::string& directory, bool training) {
  Dataset data = train::load_images_labels(directory, training);
  for (std::int64_t k = 0; k < data.count; ++k)
    data.images[static_cast<std::size_t>(k * data.rows * data.columns)] = 0;
  return data;
}

/// The mean over seeds and, in brackets where it shows, the sample's standard deviation.
std::string cell(const Column& column, const std::vector<Figures>& seeds) {
  double sum = 0, squares = 0;
  for (const Figures& figures : seeds) sum += figures.*column.value;
  const auto count = static_cast<double>(seeds.size());
  for (const Figures& figures : seeds) squares += std::pow(figures.*column.value - sum / count, 2);
  const std::string mean = fmt::format("{:.{}f}", sum / count, column.digits);
  if (seeds.size() < 2) return mean;
  const std::string deviation = fmt::format("{:.{}f}", std::sqrt(squares / (count - 1)), column.digits);
  return deviation.find_first_of("123456789") == std::string::npos ? mean : mean + " (" + deviation + ")";
}

/// Prints the row, and appends its figures to the CSV text.
void make_row(const Experiment& experiment, const Row& row, const Options& options, const Task& task,
              std::string& csv) {
  std::string line = fmt::format("| {} |", row.name);
  try {
    std::vector<Figures> seeds;
    for (std::uint64_t k = 0; k < options.seeds; ++k) {
      seeds.push_back(row.measure(task, options.first_seed + k));
      for (const Column& column : experiment.columns)
        csv += fmt::format("{},\"{}\",{},{},{:.9g}\n", experiment.name, row.name, options.first_seed + k,
                           column.title, seeds.back().*column.value);
    }
    for (const Column& column : experiment.columns) line += fmt::format(" {} |", cell(column, seeds));
  } catch (const terse::usage_error& refusal) {
    line += fmt::format(" refused: {} |", refusal.what());
  }
  train::print(stdout, line + "\n");
}

void make(const Experiment& experiment, const Options& options, const Task& task, std::string& csv) {
  std::string head = fmt::format("\n| {} |", experiment.name), rule = "|---|";
  for (const Column& column : experiment.columns) {
    head += fmt::format(" {} |", column.title);
    rule += "---:|";
  }
  train::print(stdout, head + "\n" + rule + "\n");
  for (const Row& row : experiment.rows)
    if (row.name.find(options.only) != std::string::npos) make_row(experiment, row, options, task, csv);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<Experiment> all = all_experiments();
    std::vector<std::string> known;
    for (const Experiment& experiment : all) known.push_back(experiment.name);
    const std::optional<Options> options = parse_options(argc, argv, known);
    if (!options) return EXIT_SUCCESS;
    const Task task{load(options->data, true), load(options->data, false)};
    std::string csv = "experiment,row,seed,column,value\n";
    for (const std::string& name : options->names)
      for (const Experiment& experiment : all)
        if (experiment.name == name) make(experiment, *options, task, csv);
    if (!options->csv.empty()) train::write_output(options->csv, csv);
    return EXIT_SUCCESS;
  } catch (const input_error& fault) {
    complain(fault.what());
    return bad_input;
  } catch (const std::exception& fault) {
    complain(fault.what());
    return failed;
  }
}
