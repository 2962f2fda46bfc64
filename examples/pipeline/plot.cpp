// SPDX-License-Identifier: Apache-2.0
#include "plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "../../tools/train/gnuplot.hpp"
#include "../../tools/train/input_error.hpp"
#include "../../tools/train/output.hpp"
#include "report.hpp"

namespace pipeline {
namespace {

struct Curve {
  std::string name;
  const char* colour;
  const char* dashes;
  std::vector<double> losses, megabytes;  // after each epoch, means over the seeds
};

/// Okabe and Ito's colours, which the colour-blind tell apart, too. Exact is black, direct dashed.
std::vector<Curve> curves_of(const Options& options, const std::vector<Run>& runs) {
  constexpr std::array colours{"#0072B2", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#E69F00"};
  std::size_t next = 0;
  std::vector<Curve> curves;
  for (const auto& group : by_coding(options, runs)) {
    const Coding& coding = group.front()->coding;
    const bool exact = coding.method == Method::exact;
    Curve curve{name(coding),
                exact ? "#000000" : colours[next % colours.size()],
                coding.method == Method::direct ? "(6,4)" : "1",
                {},
                {}};
    if (!exact) ++next;
    for (std::size_t e = 0; e < group.front()->epochs.size(); ++e) {
      std::vector<double> losses, megabytes;
      for (const Run* run : group) {
        const Epoch& epoch = run->epochs[e];
        losses.push_back(epoch.loss);
        megabytes.push_back(static_cast<double>(epoch.forward_bytes + epoch.backward_bytes) / 1e6);
      }
      curve.losses.push_back(spread_of(losses).mean);
      curve.megabytes.push_back(spread_of(megabytes).mean);
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

/// A vertical axis over the losses: logarithmic where they fall far.
class Axis {
 public:
  Axis(double lowest, double highest) : logarithmic_(highest > 2 * lowest) {
    const double low = scaled(lowest), high = scaled(highest), room = 0.05 * (high - low);
    low_ = low - room;
    high_ = high + room;
  }
  /// From 0 to 1, at the top.
  double height(double loss) const { return (scaled(loss) - low_) / (high_ - low_); }
  std::string script() const {
    if (!logarithmic_) return fmt::format("set yrange [{:.6g}:{:.6g}]\n", low_, high_);
    std::string ticks;
    for (double decade = 1e-6; decade < 1e6; decade *= 10)
      for (const double part : {1, 2, 3, 4, 5, 6, 8}) {
        const double place = height(part * decade);
        if (place >= 0 && place <= 1)
          ticks += fmt::format("{}{:g}", ticks.empty() ? "" : ", ", part * decade);
      }
    return fmt::format("set logscale y\nset yrange [{:.6g}:{:.6g}]\nset ytics ({})\n", std::exp(low_),
                       std::exp(high_), ticks);
  }

 private:
  double scaled(double loss) const { return logarithmic_ ? std::log(loss) : loss; }

  bool logarithmic_;
  double low_ = 0, high_ = 1;
};

/// Where labels may stand that belong to these heights, without touching each other.
std::vector<double> spread_out(const std::vector<double>& heights) {
  constexpr double apart = 0.062;
  std::vector<std::size_t> order(heights.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return heights[a] < heights[b]; });
  std::vector<double> places = heights;
  for (int round = 0; round < 500; ++round) {
    for (double& place : places) place = std::clamp(place, 0.025, 0.975);
    for (std::size_t k = 1; k < order.size(); ++k) {
      double &below = places[order[k - 1]], &above = places[order[k]];
      const double missing = apart - (above - below);
      if (missing <= 0) continue;
      below -= missing / 2;
      above += missing / 2;
    }
  }
  return places;
}

std::string gnuplot_script(const Options& options, const std::vector<Curve>& curves) {
  double lowest = HUGE_VAL, highest = 0, most = 0, least = HUGE_VAL;
  std::string data, by_epoch, by_bytes, labels;
  std::vector<double> heights;
  for (std::size_t c = 0; c < curves.size(); ++c) {
    const Curve& curve = curves[c];
    std::string rows;
    for (std::size_t e = 0; e < curve.losses.size(); ++e) {
      rows += fmt::format("{} {:.6g} {:.6g}\n", e + 1, curve.losses[e], curve.megabytes[e]);
      lowest = std::min(lowest, curve.losses[e]);
      highest = std::max(highest, curve.losses[e]);
    }
    most = std::max(most, curve.megabytes.back());
    least = std::min(least, curve.megabytes.front());
    data += fmt::format("$curve{} << EOD\n{}EOD\n", c, rows);
    const std::string style =
        fmt::format("with linespoints pt 7 ps 0.45 lc rgb '{}' lw 2 dt {}", curve.colour, curve.dashes);
    by_epoch += fmt::format("{}$curve{} using 1:2 {}", c == 0 ? "" : ", ", c, style);
    by_bytes += fmt::format("{}$curve{} using 3:2 {}", c == 0 ? "" : ", ", c, style);
  }
  const Axis axis(lowest, highest);
  for (const Curve& curve : curves) heights.push_back(axis.height(curve.losses.back()));
  const std::vector<double> places = spread_out(heights);
  for (std::size_t c = 0; c < curves.size(); ++c)
    labels += fmt::format(
        "set label {0} '{1}  {2:.3f}' at graph 1.045, graph {4:.4f} left textcolor rgb '{5}'\n"
        "set arrow {0} from graph 1.005, graph {3:.4f} to graph 1.038, graph {4:.4f} nohead lc rgb '{5}' lw "
        "1\n",
        c + 1, curves[c].name, curves[c].losses.back(), heights[c], places[c], curves[c].colour);
  return data +
         fmt::format(
             "set terminal svg size 1120,430 font 'sans-serif,14' background '#ffffff' linewidth 1\n"
             "set encoding utf8\n"
             "set multiplot\n"
             "set border 3 lc rgb '#444444' lw 1\n"
             "set tics nomirror out scale 0.6 textcolor rgb '#222222'\n"
             "set grid xtics ytics lc rgb '#e6e6e6' lw 1 lt 1\n"
             "unset key\n{}"
             "set tmargin screen 0.885\nset bmargin screen 0.14\n"
             "set lmargin screen 0.068\nset rmargin screen 0.44\n"
             "set ylabel 'training loss{}' offset 0.6,0\n"
             "set title 'Loss against epochs' font 'sans-serif,16' offset 0,-0.3\n"
             "set xlabel 'epoch' offset 0,0.3\nset xrange [1:{}]\n{}plot {}\n",
             axis.script(), options.task == Task::text ? ", nats a character" : "", options.epochs, labels,
             by_epoch) +
         fmt::format(
             "unset label\nunset arrow\nunset ylabel\nset format y ''\n"
             "set lmargin screen 0.605\nset rmargin screen 0.985\n"
             "set title 'Loss against traffic' font 'sans-serif,16' offset 0,-0.3\n"
             "set xlabel 'MB sent by all stages, both ways' offset 0,0.3\n"
             "set logscale x\nset xtics add (2,5,20,50,200,500)\nset xrange [{:.6g}:{:.6g}]\nplot {}\nunset "
             "multiplot\n",
             least * 0.85, most * 1.1, by_bytes);
}

}  // namespace

void write_plot(const Options& options, const std::vector<Run>& runs) {
  std::string picture;
  try {
    picture = train::draw(gnuplot_script(options, curves_of(options, runs)));
  } catch (const train::input_error& fault) {
    throw train::input_error(fmt::format("{}: can't be drawn: {}", options.plot, fault.what()));
  }
  train::write_output(options.plot, picture);
}

}  // namespace pipeline
