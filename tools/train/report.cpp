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

#include "gnuplot.hpp"
#include "input_error.hpp"
#include "output.hpp"

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

std::string gnuplot_script(const std::vector<Run>& runs) {
  // Okabe and Ito's colours, which the colour-blind tell apart too; after them the same with gaps.
  constexpr std::array<const char*, 6> colours{"#0072B2", "#D55E00", "#009E73",
                                               "#CC79A7", "#E69F00", "#56B4E9"};
  constexpr std::array<const char*, 3> gaps{"1", "(9,3)", "(3,3)"};
  const bool seeds_differ =
      std::any_of(runs.begin(), runs.end(), [&](const Run& run) { return run.seed != runs.front().seed; });

  std::string data;
  std::string by_step;
  std::string by_bytes;
  std::string lines_by_step;
  std::string lines_by_bytes;
  std::set<std::int64_t> starts;
  std::int64_t longest = 1;
  double lowest = HUGE_VAL;
  double highest = 0;
  double first = 0;
  const auto dashed_line = [](double x, int tag) {
    return fmt::format(
        "set arrow {} from {:.9g}, graph 0 to {:.9g}, graph 1 nohead lc rgb '#777777' lw 1.2 dt (7,5)\n", tag,
        x, x);
  };
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const Run& run = runs[r];
    const std::vector<double> loss = running_mean(run.train_loss);
    const auto megabytes = [&run](std::size_t step) {
      return step < run.bytes_after_step.size() ? static_cast<double>(run.bytes_after_step[step]) / 1e6 : 0.0;
    };
    std::string rows;
    bool sends = false;
    if (!loss.empty())
      for (const std::size_t i : points_to_draw(loss.size())) {
        if (!std::isfinite(loss[i]) || loss[i] <= 0) continue;
        rows += fmt::format("{} {:.6g} {:.6g}\n", i + 1, loss[i], megabytes(i));
        sends = sends || megabytes(i) > 0;
        lowest = std::min(lowest, loss[i]);
        highest = std::max(highest, loss[i]);
      }
    if (rows.empty()) continue;
    if (std::isfinite(loss.front())) first = std::max(first, loss.front());
    longest = std::max(longest, static_cast<std::int64_t>(loss.size()));
    data += fmt::format("$run{} << EOD\n{}EOD\n", r, rows);
    const std::string title =
        seeds_differ ? fmt::format("{}, seed {}", run.optimizer, run.seed) : run.optimizer;
    const std::string style =
        fmt::format("with lines lc rgb '{}' lw {} dt {} title '{}'", colours[r % colours.size()],
                    runs.size() > 3 ? 1.6 : 2.4, gaps[r / colours.size() % gaps.size()], title);
    by_step += fmt::format("{}$run{} using 1:2 {}", by_step.empty() ? "" : ", ", r, style);
    if (sends)
      by_bytes +=
          fmt::format("{}$run{} using ($3 > 0 ? $3 : NaN):2 {}", by_bytes.empty() ? "" : ", ", r, style);
    // A line after the first few steps would be one on the axis.
    if (run.warmup_steps * 100 > run.steps && run.warmup_steps < run.steps) {
      if (starts.insert(run.warmup_steps).second)
        lines_by_step += dashed_line(static_cast<double>(run.warmup_steps), static_cast<int>(r) + 1);
      const double sent = megabytes(static_cast<std::size_t>(run.warmup_steps) - 1);
      if (sent > 0) lines_by_bytes += dashed_line(sent, static_cast<int>(r) + 1);
    }
  }
  if (by_step.empty()) throw input_error("there is no loss to plot");
  // A run that diverges leaves the picture, lest the others become a flat line.
  if (first > 0) highest = std::min(highest, 2 * first);

  std::string script = data;
  // A long legend stands beside the panels, not in one of them.
  const bool beside_panels = runs.size() > 4;
  const int panels = by_bytes.empty() ? 560 : 1040;
  const int legend = beside_panels ? 280 : 0;
  const std::size_t height = std::max<std::size_t>(430, 80 + 23 * runs.size());
  const double pixel = 1.0 / (panels + legend);
  script += fmt::format(
      "set terminal svg size {},{} font 'Helvetica,14' background '#ffffff' linewidth 1\n"
      "set encoding utf8\n"
      "set multiplot layout 1,{} margins {:.4f},{:.4f},0.145,0.885 spacing {:.4f}\n"
      "set border 3 lc rgb '#444444' lw 1\n"
      "set tics nomirror out scale 0.6 textcolor rgb '#222222'\n"
      "set grid xtics ytics lc rgb '#e4e4e4' lw 1 lt 1\n"
      "set logscale y\n"
      "set yrange [{:.6g}:{:.6g}]\n",
      panels + legend, height, by_bytes.empty() ? 1 : 2, (by_bytes.empty() ? 70 : 73) * pixel,
      (panels - 16) * pixel, 36 * pixel, lowest * 0.92, highest * 1.08);
  std::string ticks;
  for (const double tick : {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2,  0.25, 0.3,  0.4,
                            0.5,   0.7,   1.0,   1.5,  2.0,  3.0,  5.0, 10.0, 20.0, 50.0, 100.0})
    ticks += fmt::format("{}{}", ticks.empty() ? "" : ", ", tick);
  script += fmt::format("set ytics ({})\nunset mytics\n", ticks);
  script += fmt::format(
      "set key {} Left reverse samplen 2.2 spacing 1.25 textcolor rgb '#222222'\n"
      "set title 'Training loss against step' font 'Helvetica,16' offset 0,-0.3\n"
      "set ylabel 'loss, mean of the last {} steps' offset 0.6,0\n"
      "set xlabel 'step' offset 0,0.3\n"
      "set xrange [0:{}]\n",
      beside_panels ? fmt::format("at screen {:.4f},0.885 left top", (panels - 4) * pixel) : "top right",
      smoothing_window(longest), longest);
  script += lines_by_step;
  if (!starts.empty()) {
    // To the left of a late line, lest it runs into the legend.
    const bool late = *starts.begin() > longest * 2 / 5;
    script += fmt::format(
        "set label 1 'compression starts' at {}, graph 0.965 {} font 'Helvetica,12' textcolor rgb "
        "'#555555'\n",
        *starts.begin(), late ? "right offset -0.7,0" : "left offset 0.7,0");
  }
  script += "plot " + by_step + "\n";
  if (!by_bytes.empty()) {
    script +=
        "unset arrow\nunset label 1\nunset ylabel\nunset key\n"
        "set format y ''\n"
        "set title 'Training loss against traffic' font 'Helvetica,16'\n"
        "set xlabel 'megabytes sent per rank (logarithmic)'\n"
        "set logscale x\nset xrange [*:*] noextend\nset format x '%g'\n";
    script += lines_by_bytes;
    script += "plot " + by_bytes + "\n";
  }
  return script + "unset multiplot\n";
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
  std::string picture;
  try {
    picture = draw(gnuplot_script(runs));
  } catch (const input_error& fault) {
    throw input_error(fmt::format("{}: can't be drawn: {}", path, fault.what()));
  }
  // gnuplot takes a single font; browsers that lack it should fall back on something alike.
  const std::string one_font = "font-family=\"Helvetica\"";
  const std::string fonts = "font-family=\"Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif\"";
  for (std::size_t at = 0; (at = picture.find(one_font, at)) != std::string::npos; at += fonts.size())
    picture.replace(at, one_font.size(), fonts);
  write_output(path, picture);
}

}  // namespace train
