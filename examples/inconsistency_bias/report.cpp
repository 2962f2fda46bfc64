// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "../../tools/train/output.hpp"
#include "../../tools/train/picture.hpp"

namespace bias {
namespace {

const char* word_of(End end) {
  switch (end) {
    case End::at_rest:
      return "at rest";
    case End::rounding:
      return "fp32 rounding";
    case End::falling:
      return "still moving";
    case End::elsewhere:
      return "not at its fixed point";
    case End::diverged:
      return "diverged";
    case End::refused:
      return "refused";
  }
  return "?";
}

bool has_limit(const Result& result) { return result.end != End::diverged && result.end != End::refused; }

/// Of the tenth of a curve that ends `tenths` tenths before its end.
double mean_of_tenth(const std::vector<double>& errors, std::size_t tenths) {
  const std::size_t count = errors.size() / 10, end = errors.size() - tenths * count;
  double sum = 0;
  for (std::size_t k = end - count; k < end; ++k) sum += errors[k];
  return sum / static_cast<double>(count);
}

std::string settings_line(const Options& options, const Problem& problem) {
  const Settings& settings = options.settings;
  std::string line = fmt::format("{}: ", problem.name);
  if (problem.is_square()) line += fmt::format("{} ranks, seed {}, ", problem.ranks, options.seed);
  return line + fmt::format("learning rate {:g}, beta {:g}, {} iterations", settings.learning_rate,
                            settings.beta, settings.iterations);
}

std::string note_of(const Result& result) {
  if (result.end == End::at_rest) return "";
  if (result.end == End::refused) return fmt::format("refused: {}", result.curve.refused);
  if (result.end == End::diverged)
    return result.curve.diverged
               ? fmt::format("diverged: overflow after {} iterations", result.curve.errors.size())
               : "diverged";
  return word_of(result.end);
}

std::string format_one(const Problem& problem, const Experiment& experiment) {
  constexpr const char* row = "{:<18}  {:>11}  {:>11}  {:>14}  {:>7}  {}";
  const std::string what = problem.is_square()
                               ? "limit: mean over the last tenth of (1/n) sum_i ||x_i - x*||^2 / ||x*||^2"
                               : "limit: |x_i|, mean over the last tenth";
  std::string text = fmt::format("{}, {}\n\n", experiment.graph, what);
  const std::string head = fmt::format(row, "method", "limit", "expected", "relative error", "x DSGD", "");
  text += head + "\n" + std::string(head.size() + 14, '-') + "\n";
  const Result& plain = experiment.results.front();
  for (const Result& result : experiment.results) {
    const bool meets = result.end == End::at_rest && result.expected.has_value();
    std::string line = fmt::format(
        row, title(result.method), has_limit(result) ? fmt::format("{:.4e}", result.limit) : "-",
        result.expected ? (*result.expected > 0 ? fmt::format("{:.4e}", *result.expected) : "0") : "-",
        meets ? fmt::format("{:.1e}", std::abs(result.limit / *result.expected - 1)) : "-",
        result.end == End::at_rest && plain.end == End::at_rest
            ? fmt::format("{:.2f}", result.limit / plain.limit)
            : "-",
        note_of(result));
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string format_all(const std::vector<Experiment>& experiments) {
  constexpr int width = 9;
  // A word of the title to a line.
  const std::map<Method, std::array<const char*, 2>> heads{
      {Method::dsgd, {"", "DSGD"}},
      {Method::dmsgd, {"", "DmSGD"}},
      {Method::da_dmsgd, {"DA-", "DmSGD"}},
      {Method::awc_dmsgd, {"AWC-", "DmSGD"}},
      {Method::momentum_consensus, {"momentum", "consens."}},
      {Method::decentlam, {"Decent-", "LaM"}},
      {Method::qg_dmsgd, {"QG-", "DmSGD"}},
      {Method::d2, {"", "D2"}},
      {Method::gradient_tracking, {"gradient", "tracking"}},
      {Method::momentum_tracking, {"momentum", "tracking"}}};
  std::string text = "limit: mean over the last tenth of (1/n) sum_i ||x_i - x*||^2 / ||x*||^2\n\n";
  for (const std::size_t line : {0U, 1U}) {
    text += fmt::format("{:<22}", line == 0 ? "" : "graph");
    for (const Method method : all_methods) text += fmt::format("{:>{}}", heads.at(method)[line], width);
    text += "\n";
  }
  text += std::string(22 + width * all_methods.size(), '-') + "\n";
  std::map<std::string, std::vector<std::string>> reasons;
  bool any_rounding = false, any_falling = false;
  for (const Experiment& experiment : experiments) {
    text += fmt::format("{:<22}", experiment.graph);
    for (const Result& result : experiment.results) {
      const char* mark = result.end == End::rounding ? "*" : result.end == End::falling ? "~" : "";
      any_rounding = any_rounding || result.end == End::rounding;
      any_falling = any_falling || result.end == End::falling;
      if (result.end == End::refused) {
        std::vector<std::string>& graphs = reasons[result.curve.refused];
        if (graphs.empty() || graphs.back() != experiment.graph) graphs.push_back(experiment.graph);
      }
      text += fmt::format(
          "{:>{}}",
          has_limit(result) ? fmt::format("{}{:.1e}", mark, result.limit) : std::string(word_of(result.end)),
          width);
    }
    text += "\n";
  }
  text += "\n";
  if (any_rounding) text += "* fp32 rounding ends the curve here; the method itself would converge further\n";
  if (any_falling) text += "~ not yet converged: needs more iterations\n";
  for (const auto& [reason, graphs] : reasons)
    text += fmt::format("refused: {} ({})\n", reason, fmt::join(graphs, ", "));
  return text;
}

nlohmann::ordered_json json_of(const Experiment& experiment) {
  nlohmann::ordered_json methods;
  for (const Result& result : experiment.results) {
    nlohmann::ordered_json one;
    one["limit"] = has_limit(result) ? nlohmann::ordered_json(result.limit) : nullptr;
    one["expected"] = result.expected ? nlohmann::ordered_json(*result.expected) : nullptr;
    const bool meets = result.end == End::at_rest && result.expected.has_value();
    one["relative_error"] =
        meets ? nlohmann::ordered_json(std::abs(result.limit / *result.expected - 1)) : nullptr;
    one["end"] = word_of(result.end);
    if (result.end == End::refused) one["reason"] = result.curve.refused;
    one["iterations"] = result.curve.errors.size();
    methods[name(result.method)] = std::move(one);
  }
  return methods;
}

/// Width and dashes of a method's line: methods that come to rest together lie on each other.
struct Line {
  Method method;
  double width;
  int dash;
};
constexpr std::array lines{Line{Method::awc_dmsgd, 2, 0},         Line{Method::dmsgd, 2, 0},
                           Line{Method::da_dmsgd, 2, 0},          Line{Method::dsgd, 6, 0},
                           Line{Method::decentlam, 2, 0},         Line{Method::momentum_consensus, 2, 1},
                           Line{Method::qg_dmsgd, 2, 2},          Line{Method::d2, 2, 0},
                           Line{Method::gradient_tracking, 2, 0}, Line{Method::momentum_tracking, 2, 1}};

struct Point {
  std::size_t iteration;
  double error;
};

/// A curve with few points: after its steep beginning the mean of each 12 iterations, a multiple of the periods of
/// graphs whose neighbours change.
std::vector<Point> thinned(const std::vector<double>& errors) {
  constexpr std::size_t begin = 120, window = 12;
  std::vector<Point> points;
  for (std::size_t k = 0; k < std::min(begin, errors.size()); ++k) points.push_back({k + 1, errors[k]});
  for (std::size_t k = begin; k + window <= errors.size(); k += window) {
    double sum = 0;
    for (std::size_t i = k; i < k + window; ++i) sum += errors[i];
    points.push_back({k + window / 2, sum / window});
  }
  return points;
}

/// The iteration after which a curve stays within `factor` of its limit.
std::size_t arrival(const std::vector<Point>& points, double limit, double factor) {
  for (std::size_t k = points.size(); k-- > 0;)
    if (!(points[k].error < factor * limit && points[k].error > limit / factor)) return points[k].iteration;
  return 1;
}

/// Somewhat later than `last`, a round number, and no more than there is.
std::size_t end_of_axis(std::size_t last, std::size_t iterations) {
  const std::size_t wanted = last + last / 3, unit = wanted > 2000 ? 1000 : wanted > 200 ? 100 : 10;
  return std::min((wanted / unit + 1) * unit, iterations);
}

/// Left, how the biased methods come to rest; right, how far the others go.
nlohmann::ordered_json picture_of(const Options& options, const Problem& problem,
                                  const Experiment& experiment) {
  using Json = nlohmann::ordered_json;
  constexpr double far = 10, near = 1e-16;  // the picture ends there
  Json series = Json::array();
  double lowest = 1, highest = near, lowest_bias = 1;
  std::size_t biased = 0, all = 0;
  for (const Line& line : lines) {
    const Result& result = *std::find_if(experiment.results.begin(), experiment.results.end(),
                                         [&](const Result& one) { return one.method == line.method; });
    const std::vector<Point> points = thinned(result.curve.errors);
    Json shown = Json::array();
    for (const auto& [iteration, error] : points) {
      if (!(error > near && error < far)) continue;
      shown.push_back({iteration, error});
      lowest = std::min(lowest, error);
      highest = std::max(highest, error);
    }
    if (shown.empty()) continue;
    if (has_limit(result)) all = std::max(all, arrival(points, result.limit, 2));
    if (result.end == End::at_rest) {
      lowest_bias = std::min(lowest_bias, result.limit);
      biased = std::max(biased, arrival(points, result.limit, 1.1));
    }
    const std::string end = has_limit(result) ? fmt::format("{:.1e}", result.limit) : word_of(result.end);
    Json one{{"name", fmt::format("{} ({})", title(line.method), end)},
             {"points", std::move(shown)},
             {"width", line.width},
             {"dash", line.dash}};
    if (line.method == Method::dsgd) one["color"] = "pale";
    series.push_back(std::move(one));
  }
  const auto iterations = static_cast<std::size_t>(options.settings.iterations);
  const auto panel = [&](const char* words, std::size_t end, double low) {
    return Json{{"title", words},
                {"x", {{"label", "iteration"}, {"range", {0, end_of_axis(end, iterations)}}}},
                {"y", {{"log", true}, {"range", {low / 2, highest * 1.2}}}},
                {"series", series}};
  };
  Json left = panel("The methods with a bias come to rest", biased, lowest_bias);
  left["y"]["label"] = problem.is_square() ? "mean of |x_i − x*|² / |x*|²" : "|x_i|";
  return {{"panels", {std::move(left), panel("The others go on to the rounding of fp32", all, lowest)}},
          {"title", "In brackets: the limit"}};
}

}  // namespace

Result judge(Method method, Curve curve, std::optional<double> expected, const Problem& problem,
             const Settings& settings) {
  Result result{method, std::move(curve), expected, 0, End::refused};
  if (!result.curve.refused.empty()) return result;
  result.end = End::diverged;
  if (result.curve.diverged || result.curve.errors.size() < 20) return result;
  result.limit = mean_of_tenth(result.curve.errors, 0);
  // No better than the starting point, or than ranks that never talk.
  if (!(result.limit <= 1)) return result;

  const auto length = [&](double error) { return problem.is_square() ? std::sqrt(error) : error; };
  const double grain = 3 * length(problem.rounding_error(settings.learning_rate, settings.beta));
  const double before = mean_of_tenth(result.curve.errors, 1), moved = std::abs(result.limit - before);
  if (!expected) {
    // Where neighbours change, so does the error, for ever; it falls no more.
    result.end = moved < 0.3 * before ? End::at_rest : End::falling;
  } else if (std::abs(length(result.limit) - length(*expected)) <= 0.005 * length(*expected) + grain) {
    result.end = result.limit > 1.5 * *expected ? End::rounding : End::at_rest;
  } else {
    // At rest is what has stopped, next to how far it came and has to go.
    const double first = mean_of_tenth(result.curve.errors, 9);
    const bool stopped =
        moved <= 0.02 * std::abs(result.limit - *expected) && moved <= 0.01 * std::abs(result.limit - first);
    result.end = stopped ? End::elsewhere : End::falling;
  }
  return result;
}

std::string format_table(const Options& options, const Problem& problem,
                         const std::vector<Experiment>& experiments) {
  std::string text = settings_line(options, problem) + "\n";
  return text +
         (experiments.size() == 1 ? format_one(problem, experiments.front()) : format_all(experiments));
}

void write_json(const Options& options, const std::vector<Experiment>& experiments) {
  nlohmann::ordered_json object{{"problem", options.problem}};
  if (options.problem == "regression") {
    object["ranks"] = options.ranks;
    object["seed"] = options.seed;
  }
  object["learning_rate"] = options.settings.learning_rate;
  object["beta"] = options.settings.beta;
  object["iterations"] = options.settings.iterations;
  if (experiments.size() == 1) {
    object["graph"] = experiments.front().graph;
    object["methods"] = json_of(experiments.front());
  } else {
    for (const Experiment& experiment : experiments)
      object["graphs"][experiment.graph]["methods"] = json_of(experiment);
  }
  train::write_output(options.json, object.dump(2) + "\n");
}

void write_csv(const Options& options, const std::vector<Experiment>& experiments) {
  std::string text = "graph,method,iteration,error\n";
  for (const Experiment& experiment : experiments)
    for (const Result& result : experiment.results)
      for (std::size_t k = 0; k < result.curve.errors.size(); ++k)
        text += fmt::format("{},{},{},{:.9g}\n", experiment.graph, name(result.method), k + 1,
                            result.curve.errors[k]);
  train::write_output(options.csv, text);
}

void write_plot(const Options& options, const Problem& problem, const Experiment& experiment) {
  train::write_picture(options.plot, picture_of(options, problem, experiment));
}

}  // namespace bias
