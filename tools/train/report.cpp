// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "input_error.hpp"
#include "output.hpp"
#include "picture.hpp"

namespace train {
namespace {

std::vector<double> running_mean(const std::vector<double>& values) {
  const std::size_t window =
      static_cast<std::size_t>(smoothing_window(static_cast<std::int64_t>(values.size())));
  std::vector<double> means(values.size());
  // Summed afresh each time: a sliding sum would carry one infinite loss along for ever.
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t first = i + 1 > window ? i + 1 - window : 0;
    double sum = 0;
    for (std::size_t k = first; k <= i; ++k) sum += values[k];
    means[i] = sum / static_cast<double>(i + 1 - first);
  }
  return means;
}

std::string human_bytes(std::uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  constexpr std::array<const char*, 5> units{"kB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < units.size(); ++unit) value /= 1000;
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, units[unit]);
}

std::string factor(double dense, double sent) {
  if (!(sent > 0) || !(dense > 0)) return "-";
  const double times = dense / sent;
  return fmt::format("{:.{}f}x", times, times < 9.995 ? 2 : 1);
}

// Enough points for a smooth curve on both a linear and a logarithmic axis, few enough for a small picture.
std::vector<std::size_t> points_to_draw(std::size_t steps) {
  std::set<std::size_t> points;
  constexpr int linear = 400;
  constexpr int logarithmic = 150;
  for (int i = 0; i <= linear; ++i)
    points.insert(static_cast<std::size_t>(std::lround(static_cast<double>(steps - 1) * i / linear)));
  for (int i = 0; i <= logarithmic; ++i)
    points.insert(static_cast<std::size_t>(std::lround(
                      std::pow(static_cast<double>(steps), static_cast<double>(i) / logarithmic))) -
                  1);
  return {points.begin(), points.end()};
}

nlohmann::ordered_json picture_of(const std::vector<Run>& runs) {
  using Json = nlohmann::ordered_json;
  const bool seeds_differ =
      std::any_of(runs.begin(), runs.end(), [&](const Run& run) { return run.seed != runs.front().seed; });
  Json by_step = Json::array(), by_bytes = Json::array(), starts = Json::array(),
       sent_at_starts = Json::array();
  std::set<std::int64_t> known_starts;
  std::int64_t longest = 1;
  double lowest = HUGE_VAL, highest = 0, first = 0;
  bool sends = false;
  for (const Run& run : runs) {
    const std::vector<double> loss = running_mean(run.train_loss);
    const auto megabytes = [&run](std::size_t step) {
      return step < run.bytes_after_step.size() ? static_cast<double>(run.bytes_after_step[step]) / 1e6 : 0.0;
    };
    Json over_steps = Json::array(), over_bytes = Json::array();
    if (!loss.empty())
      for (const std::size_t i : points_to_draw(loss.size())) {
        if (!std::isfinite(loss[i]) || loss[i] <= 0) continue;
        over_steps.push_back({i + 1, loss[i]});
        if (megabytes(i) > 0) over_bytes.push_back({megabytes(i), loss[i]});
        lowest = std::min(lowest, loss[i]);
        highest = std::max(highest, loss[i]);
      }
    if (over_steps.empty()) continue;
    if (std::isfinite(loss.front())) first = std::max(first, loss.front());
    longest = std::max(longest, static_cast<std::int64_t>(loss.size()));
    const std::string name =
        seeds_differ ? fmt::format("{}, seed {}", run.optimizer, run.seed) : run.optimizer;
    sends = sends || !over_bytes.empty();
    by_step.push_back({{"name", name}, {"points", std::move(over_steps)}});
    by_bytes.push_back({{"name", name}, {"points", std::move(over_bytes)}});
    // A line after the first few steps would be one on the axis.
    if (run.warmup_steps * 100 > run.steps && run.warmup_steps < run.steps) {
      if (known_starts.insert(run.warmup_steps).second)
        starts.push_back(
            {{"x", run.warmup_steps}, {"text", known_starts.size() == 1 ? "compression starts" : ""}});
      const double sent = megabytes(static_cast<std::size_t>(run.warmup_steps) - 1);
      if (sent > 0) sent_at_starts.push_back({{"x", sent}});
    }
  }
  if (by_step.empty()) throw input_error("there is no loss to plot");
  // A run that diverges leaves the picture, so that the others don't become a flat line.
  if (first > 0) highest = std::min(highest, 2 * first);
  Json loss_axis{
      {"label", fmt::format("training loss, mean of the last {} steps", smoothing_window(longest))},
      {"log", true},
      {"range", {lowest * 0.92, highest * 1.08}}};
  Json panels = Json::array();
  panels.push_back({{"title", "Training loss against step"},
                    {"x", {{"label", "step"}}},
                    {"y", loss_axis},
                    {"series", std::move(by_step)},
                    {"lines", std::move(starts)}});
  loss_axis.erase("label");
  if (sends)
    panels.push_back({{"title", "Training loss against traffic"},
                      {"x", {{"label", "MB sent by a rank"}, {"log", true}}},
                      {"y", loss_axis},
                      {"series", std::move(by_bytes)},
                      {"lines", std::move(sent_at_starts)}});
  return {{"panels", std::move(panels)}};
}

/// Names of optimizers by what they have in common.
using Groups = std::map<std::string, std::vector<std::string>>;

/// Runs of which nothing is to be said are in no group.
template <class What>
Groups groups_of(const std::vector<Run>& runs, const What& what) {
  Groups groups;
  for (const Run& run : runs)
    if (const std::string said = what(run); !said.empty()) groups[said].push_back(run.optimizer);
  return groups;
}

/// The names, separated by commas, in lines of at most `width` columns.
std::string wrapped(const std::string& start, const std::vector<std::string>& names, std::size_t width) {
  std::string text = start;
  std::size_t line = start.size();
  for (const std::string& name : names) {
    const bool last = &name == &names.back();
    if (line + name.size() > width) {
      text += "\n" + std::string(start.size(), ' ');
      line = start.size();
    }
    text += name + (last ? "\n" : ", ");
    line += name.size() + 2;
  }
  return text;
}

/// How far apart the ranks are, where they may be.
std::string format_consensus(const std::vector<Run>& runs, std::size_t width) {
  constexpr const char* row = "{:<{}} {:>10} {:>14}  {:>18}\n";
  std::string text =
      "\n" + fmt::format(row, "accuracy of", width, "mean model", "single models", "consensus distance");
  for (const Run& run : runs)
    if (run.own_models())
      text += fmt::format(row, run.optimizer, width, fmt::format("{:.2f} %", 100 * run.test_accuracy),
                          fmt::format("{:.2f} %", 100 * run.mean_single_accuracy.value_or(0)),
                          fmt::format("{:.2e}", *run.consensus_distance));
  return text + "single models: mean over the ranks; distance: sqrt(mean of ||x_i - mean||^2) / ||mean||\n";
}

/// A line, or nothing.
std::string format_modelled(const Modelled& modelled) {
  std::vector<std::string> parts;
  if (modelled.link())
    parts.push_back(fmt::format("links of {} ms and {}", modelled.delay.value_or(0),
                                modelled.bandwidth ? fmt::format("{} Mbit/s", *modelled.bandwidth)
                                                   : std::string("any number of bytes")));
  if (modelled.straggler)
    parts.push_back(fmt::format("rank {} computes {} times as long", modelled.straggler->rank,
                                modelled.straggler->factor));
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "modelled: " : "; ") + part;
  return text.empty() ? "" : text + "\n";
}

/// How much of their time ranks wait for each other.
std::string format_waiting(const std::vector<Run>& runs, std::size_t width) {
  constexpr const char* row = "{:<{}} {:>10} {:>10} {:>10}\n";
  std::string text = "\n" + fmt::format(row, "waiting", width, "mean", "least", "most");
  const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
  for (const Run& run : runs) {
    if (run.waiting_share.empty()) continue;
    const auto [least, most] = std::minmax_element(run.waiting_share.begin(), run.waiting_share.end());
    const double sum = std::accumulate(run.waiting_share.begin(), run.waiting_share.end(), 0.0);
    text +=
        fmt::format(row, run.optimizer, width, percent(sum / static_cast<double>(run.waiting_share.size())),
                    percent(*least), percent(*most));
  }
  return text + "share of a rank's seconds in steps that it is inside the transport; over the ranks\n";
}

nlohmann::ordered_json number_or_null(const std::optional<double>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json();
}

nlohmann::ordered_json json_of(const Modelled& modelled) {
  if (!modelled.any()) return {};
  nlohmann::ordered_json straggler;
  if (modelled.straggler)
    straggler = {{"rank", modelled.straggler->rank}, {"factor", modelled.straggler->factor}};
  return {{"delay_ms", number_or_null(modelled.delay)},
          {"bandwidth_mbit_per_second", number_or_null(modelled.bandwidth)},
          {"straggler", straggler}};
}

/// Numbers as numbers.
nlohmann::ordered_json json_of(const Settings& settings) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [option, value] : settings) {
    const auto parsed = nlohmann::ordered_json::parse(value, nullptr, false);
    object[option] = parsed.is_number() ? parsed : nlohmann::ordered_json(value);
  }
  return object;
}

}  // namespace

std::int64_t smoothing_window(std::int64_t steps) { return std::max<std::int64_t>(1, steps / 50); }

std::string format_table(const std::vector<Run>& runs) {
  if (runs.empty()) return "";
  constexpr const char* row =
      "{:<{}} {:>8} {:>6}  {:>6} {:>7} {:>7}  {:>7} {:>7}  {:>7} {:>6} {:>6} {:>7}  {:>5}\n";
  std::size_t width = 13;
  for (const Run& run : runs) width = std::max(width, run.optimizer.size());
  const Run& first = runs.front();
  std::string text = fmt::format("{} rank{} ({}{})", first.ranks, first.ranks == 1 ? "" : "s",
                                 first.transport, first.device == "cpu" ? "" : ", " + first.device);
  // Dense steps have but one topology; what was asked for shows in runs that compress.
  const auto compresses = [](const Run& run) { return run.bytes_sent_per_compressed_step > 0; };
  const Groups topologies =
      groups_of(runs, [&](const Run& run) { return compresses(run) ? run.topology : ""; });
  if (topologies.size() < 2)
    text += fmt::format(", {}", topologies.empty() ? first.topology : topologies.begin()->first);
  if (first.label_skew) text += fmt::format(", label skew {}", *first.label_skew);
  text += fmt::format(", seed {}, {} steps", first.seed, first.steps);
  const Groups starts = groups_of(runs, [&](const Run& run) {
    return run.warmup_steps > 0 && run.warmup_steps < run.steps
               ? fmt::format("compressed after step {}", run.warmup_steps)
               : "";
  });
  const bool one_start = starts.size() == 1 && static_cast<std::ptrdiff_t>(starts.begin()->second.size()) ==
                                                   std::count_if(runs.begin(), runs.end(), compresses);
  if (one_start) text += ", " + starts.begin()->first;
  text += "\n" + format_modelled(first.modelled) + "\n";
  text += fmt::format(
      "{:<{}} {:>8} {:>6}  {:>6} {:>15}  {:>15}  {:>29}  {:>5}\n", "", width, "test", "final", "",
      "sent by a rank", "less than dense",
      first.modelled.any() ? "------ modelled seconds ------" : "---------- seconds ----------", "ranks");
  const std::size_t header = text.size();
  text += fmt::format(row, "optimizer", width, "accuracy", "loss", "rounds", "in all", "a step*", "in all",
                      "a step*", "compute", "local", "comm.", "total", "alike");
  text += std::string(text.size() - header - 1, '-') + "\n";
  for (const Run& run : runs) {
    const std::vector<double> loss = running_mean(run.train_loss);
    const double dense_step = static_cast<double>(run.dense_bytes_per_step);
    const double compressed = static_cast<double>(run.bytes_sent_per_compressed_step);
    text += fmt::format(
        row, run.optimizer, width, fmt::format("{:.2f} %", 100 * run.test_accuracy),
        loss.empty() ? "-" : fmt::format("{:.4f}", loss.back()), run.communication_rounds,
        human_bytes(run.bytes_sent_per_rank),
        compressed > 0 ? human_bytes(run.bytes_sent_per_compressed_step) : "-",
        factor(dense_step * static_cast<double>(run.steps), static_cast<double>(run.bytes_sent_per_rank)),
        factor(dense_step, compressed), fmt::format("{:.1f}", run.seconds.compute),
        fmt::format("{:.1f}", run.seconds.local_passes), fmt::format("{:.1f}", run.seconds.communication),
        fmt::format("{:.1f}", run.seconds.total),
        run.own_models()  ? "-"
        : run.ranks_agree ? "yes"
                          : "NO");
  }
  const bool own_models =
      std::any_of(runs.begin(), runs.end(), [](const Run& run) { return run.own_models(); });
  const bool gossips = std::any_of(runs.begin(), runs.end(),
                                   [&](const Run& run) { return run.own_models() && compresses(run); });
  text += gossips ? "* the last step that was compressed or went to neighbours\n"
                  : "* the last compressed step\n";
  const auto add_groups = [&text](const Groups& groups) {
    for (const auto& [what, names] : groups) text += wrapped(what + ": ", names, 110);
  };
  if (topologies.size() > 1) add_groups(topologies);
  if (!one_start) add_groups(starts);
  if (own_models) text += format_consensus(runs, width);
  if (first.modelled.any()) text += format_waiting(runs, width);
  return text;
}

void print_table(std::FILE* out, const std::vector<Run>& runs) {
  const std::string text = format_table(runs);
  print(out, text);
}

void write_json(const std::string& path, const std::vector<Run>& runs) {
  std::string text = "{\"runs\": [";
  for (const Run& run : runs) {
    const nlohmann::ordered_json object{
        {"optimizer", run.optimizer},
        {"transport", run.transport},
        {"device", run.device},
        {"ranks", run.ranks},
        {"topology", run.topology},
        {"seed", run.seed},
        {"label_skew", number_or_null(run.label_skew)},
        {"steps", run.steps},
        {"warmup_steps", run.warmup_steps},
        {"settings", json_of(run.settings)},
        {"modelled", json_of(run.modelled)},
        {"test_accuracy", run.test_accuracy},
        {"train_loss", run.train_loss},
        {"communication_rounds", run.communication_rounds},
        {"bytes_sent_per_rank", run.bytes_sent_per_rank},
        {"bytes_sent_per_compressed_step", run.bytes_sent_per_compressed_step},
        {"dense_bytes_per_step", run.dense_bytes_per_step},
        {"parameters_hash", run.parameters_hash},
        {"ranks_agree", run.ranks_agree},
        {"waiting_share", run.waiting_share},
        {"mean_single_accuracy", number_or_null(run.mean_single_accuracy)},
        {"consensus_distance", number_or_null(run.consensus_distance)},
        {"seconds",
         {{"compute", run.seconds.compute},
          {"local_passes", run.seconds.local_passes},
          {"communication", run.seconds.communication},
          {"total", run.seconds.total}}},
    };
    // One run a line: indented, the array of losses would take a line for each step.
    text += (&run == &runs.front() ? "\n" : ",\n") + object.dump();
  }
  write_output(path, text + "\n]}\n");
}

void write_csv(const std::string& path, const std::vector<Run>& runs) {
  std::string text = "optimizer,seed,step,loss,bytes,consensus_distance\n";
  for (const Run& run : runs)
    for (std::size_t i = 0; i < run.train_loss.size(); ++i) {
      const bool last = i + 1 == run.train_loss.size();
      text += fmt::format("{},{},{},{:.9g},{},{}\n", run.optimizer, run.seed, i + 1, run.train_loss[i],
                          i < run.bytes_after_step.size() ? std::to_string(run.bytes_after_step[i]) : "",
                          last && run.own_models() ? fmt::format("{:.9g}", *run.consensus_distance) : "");
    }
  write_output(path, text);
}

void write_plot(const std::string& path, const std::vector<Run>& runs) {
  if (runs.empty()) throw input_error("there is no run to plot");
  write_picture(path, picture_of(runs));
}

}  // namespace train
