// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "../../tools/train/output.hpp"

namespace pipeline {
namespace {

using Runs = std::vector<const Run*>;
using Json = nlohmann::ordered_json;

Spread over(const Runs& runs, const std::function<double(const Run&)>& value) {
  std::vector<double> values;
  for (const Run* run : runs) values.push_back(value(*run));
  return spread_of(values);
}
double mean_over(const Runs& runs, const std::function<double(const Run&)>& value) {
  return over(runs, value).mean;
}
/// The mean over stages that `counts`.
double mean_of_stages(const Run& run, double StageNumbers::*number, bool StageNumbers::*counts = nullptr) {
  std::vector<double> values;
  for (const StageNumbers& stage : run.stages)
    if (counts == nullptr || stage.*counts) values.push_back(stage.*number);
  return spread_of(values).mean;
}

std::string with_deviation(const Spread& spread, int digits, double factor = 1) {
  const std::string mean = fmt::format("{:.{}f}", factor * spread.mean, digits);
  return spread.deviation > 0 ? fmt::format("{} ±{:.{}f}", mean, factor * spread.deviation, digits) : mean;
}

/// Columns as wide as what is in them: "±" has two bytes and one column.
std::string aligned_table(const std::vector<std::vector<std::string>>& rows, std::size_t rule_behind) {
  const auto columns = [](const std::string& text) {
    std::size_t count = 0;
    for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
    return count;
  };
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], columns(row[c]));
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (std::size_t c = 0; c < widths.size(); ++c) {
      const std::string blanks(widths[c] - columns(rows[r][c]), ' ');
      line += c == 0 ? rows[r][c] + blanks : "  " + blanks + rows[r][c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (r == rule_behind) {
      std::size_t width = 0;
      for (const std::size_t one : widths) width += one + 2;
      text += std::string(width - 2, '-') + "\n";
    }
  }
  return text;
}

std::string head(const Options& options, const Run& run) {
  std::string text = fmt::format(
      "{}: {} stage{} ({}), {}{}, {} epochs, batches of {} in micro-batches of {}, seed{} {}",
      name(options.task), options.stages, options.stages == 1 ? "" : "s",
      options.transport == Transport::mpi ? "mpi" : "threads",
      options.schedule.gpipe ? "GPipe" : fmt::format("1F1B {} ahead", options.schedule.other.ahead),
      options.recompute ? " with recomputation" : "", options.epochs, options.batch, options.micro_batch,
      options.seeds.size() == 1 ? "" : "s", fmt::join(options.seeds, ", "));
  if (options.replicas > 1)
    text += fmt::format("\n{} replicas of each stage, {} averages between them", options.replicas,
                        name(options.averaging));
  if (options.link.any())
    text += fmt::format("\nlinks of {}{:g} ms",
                        run.megabits > 0 ? fmt::format("{:.1f} Mbit/s and ", run.megabits) : std::string(),
                        options.link.delay_ms);
  return text + "\n\n";
}

Json json_of(const Run& run) {
  Json epochs = Json::array(), stages = Json::array();
  for (const Epoch& epoch : run.epochs)
    epochs.push_back({{"training_loss", epoch.loss},
                      {"test_loss", epoch.test_loss},
                      {"test_accuracy", epoch.accuracy},
                      {"forward_bytes_so_far", epoch.forward_bytes},
                      {"backward_bytes_so_far", epoch.backward_bytes},
                      {"replica_bytes_so_far", epoch.replica_bytes},
                      {"change", epoch.change},
                      {"error", epoch.error},
                      {"seconds", epoch.seconds}});
  for (const StageNumbers& stage : run.stages)
    stages.push_back({{"change", stage.remembers ? Json(stage.change) : Json()},
                      {"error", stage.remembers ? Json(stage.error) : Json()},
                      {"forward_seconds", stage.forward_seconds},
                      {"backward_seconds", stage.backward_seconds},
                      {"coding_seconds", stage.coding_seconds},
                      {"waiting_seconds", stage.waiting_seconds},
                      {"total_seconds", stage.total_seconds},
                      {"optimizer_seconds", stage.beside_training},
                      {"forward_pass_seconds", stage.forward_pass},
                      {"backward_pass_seconds", stage.backward_pass},
                      {"forward_message_bytes", stage.forward_message},
                      {"backward_message_bytes", stage.backward_message}});
  const Coding& coding = run.coding;
  return {{"method", name(coding.method)},
          {"forward_bits", coding.forward_bits},
          {"backward_bits", coding.backward_bits},
          {"seed", run.seed},
          {"megabits_per_second", run.megabits > 0 ? Json(run.megabits) : Json()},
          {"micro_batches", run.micro_batches},
          {"step_seconds", run.step_seconds},
          {"predicted_seconds", run.predicted_seconds},
          {"epochs", epochs},
          {"stages", stages}};
}

}  // namespace

Spread spread_of(const std::vector<double>& values) {
  Spread spread;
  const auto count = static_cast<double>(values.size());
  for (const double value : values) spread.mean += value / count;
  double square = 0;
  for (const double value : values) square += (value - spread.mean) * (value - spread.mean);
  if (values.size() > 1) spread.deviation = std::sqrt(square / (count - 1));
  return spread;
}

std::vector<Runs> by_coding(const Options& options, const std::vector<Run>& runs) {
  // Seed by seed, and for each the codings in their order.
  std::vector<Runs> groups(options.codings.size());
  for (std::size_t r = 0; r < runs.size(); ++r) groups[r % groups.size()].push_back(&runs[r]);
  return groups;
}

std::string format_table(const Options& options, const std::vector<Run>& runs) {
  if (runs.empty()) return "";
  const bool text = options.task == Task::text;
  std::vector<std::vector<std::string>> rows{
      {"", "training", text ? "held-out" : "test", "MB", "MB", "", "", "", "seconds", "", "", "", "ms", "ms"},
      {"method", "loss", text ? "loss" : "accuracy", "forward", "backward", "change", "error", "bubble",
       "forward", "backward", "coding", "waiting", "a step", "predicted"}};
  if (options.replicas > 1) {
    rows[0].push_back("MB between");
    rows[1].push_back("replicas");
  }
  for (const Runs& group : by_coding(options, runs)) {
    const auto stage_mean = [&](double StageNumbers::*number) {
      return mean_over(group, [&](const Run& run) { return mean_of_stages(run, number); });
    };
    const auto percent_of_change = [&](double StageNumbers::*number) {
      if (group.front()->coding.method != Method::changes || options.epochs == 1 || options.stages == 1)
        return std::string("-");
      return fmt::format("{:.1f} %", 100 * mean_over(group, [&](const Run& run) {
                                       return mean_of_stages(run, number, &StageNumbers::remembers);
                                     }));
    };
    const auto last = [&](double Epoch::*number) {
      return over(group, [&](const Run& run) { return run.epochs.back().*number; });
    };
    const auto megabytes = [&](std::uint64_t Epoch::*number) {
      return fmt::format("{:.1f}", mean_over(group, [&](const Run& run) {
                           return static_cast<double>(run.epochs.back().*number) / 1e6;
                         }));
    };
    const auto seconds = [&](double StageNumbers::*number) {
      return fmt::format("{:.2f}", stage_mean(number));
    };
    rows.push_back(
        {name(group.front()->coding), with_deviation(last(&Epoch::loss), 4),
         text ? with_deviation(last(&Epoch::test_loss), 4)
              : with_deviation(last(&Epoch::accuracy), 2, 100) + " %",
         megabytes(&Epoch::forward_bytes), megabytes(&Epoch::backward_bytes),
         percent_of_change(&StageNumbers::change), percent_of_change(&StageNumbers::error),
         fmt::format("{:.0f} %", 100 * stage_mean(&StageNumbers::waiting_seconds) /
                                     stage_mean(&StageNumbers::total_seconds)),
         seconds(&StageNumbers::forward_seconds), seconds(&StageNumbers::backward_seconds),
         seconds(&StageNumbers::coding_seconds), seconds(&StageNumbers::waiting_seconds),
         fmt::format("{:.2f}", 1e3 * mean_over(group, [](const Run& run) { return run.step_seconds; })),
         fmt::format("{:.2f}",
                     1e3 * mean_over(group, [](const Run& run) { return run.predicted_seconds; }))});
    if (options.replicas > 1) rows.back().push_back(megabytes(&Epoch::replica_bytes));
  }
  return head(options, runs.front()) + aligned_table(rows, 1);
}

void write_json(const Options& options, const std::vector<Run>& runs) {
  Json all = Json::array();
  for (const Run& run : runs) all.push_back(json_of(run));
  const Json whole{{"task", name(options.task)},
                   {"stages", options.stages},
                   {"replicas", options.replicas},
                   {"averaging", options.replicas > 1 ? Json(name(options.averaging)) : Json()},
                   {"transport", options.transport == Transport::mpi ? "mpi" : "threads"},
                   {"schedule", options.schedule.gpipe ? "gpipe" : "1f1b"},
                   {"ahead", options.schedule.gpipe ? Json() : Json(options.schedule.other.ahead)},
                   {"batch", options.batch},
                   {"micro_batch", options.micro_batch},
                   {"epochs", options.epochs},
                   {"epochs_before", options.epochs_before},
                   {"learning_rate", options.learning_rate},
                   {"warm_up", options.warm_up},
                   {"held_out", options.held_out > 0 ? Json(options.held_out) : Json()},
                   {"recompute", options.recompute},
                   {"delay_ms", options.link.delay_ms},
                   {"runs", all}};
  if (options.json == "-")
    train::print(stdout, whole.dump() + "\n");
  else
    train::write_output(options.json, whole.dump(2) + "\n");
}

}  // namespace pipeline
