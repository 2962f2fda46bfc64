// SPDX-License-Identifier: Apache-2.0

// elastic PICTURE.svg [DATA]: 1-bit Adam on Fashion-MNIST over thread ranks, 4 that save, 3 that go on and save, 6 that go on;
// beside 4 that never stop. Draws both losses with gnuplot.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../../tools/train/gnuplot.hpp"
#include "../../tools/train/idx.hpp"
#include "../../tools/train/output.hpp"
#include "terse/checkpoint/folder.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/terse.hpp"

namespace {

using namespace terse;
namespace fs = std::filesystem;

constexpr index_t inputs = 784, hidden = 64, classes = 10;
constexpr std::int64_t batch = 96;  // of all ranks together, however many there are
constexpr std::uint64_t freeze = 150, first_stop = 400, second_stop = 800, end = 1200;
constexpr std::size_t window = 25;  // steps that a point of the curve is the mean of

Layout layers() {
  Layout layout;
  layout.add({"w1", {hidden, inputs}})
      .add({"b1", {hidden}})
      .add({"w2", {classes, hidden}})
      .add({"b2", {classes}});
  return layout;
}

/// One hidden layer of ReLU, softmax and cross entropy.
class Network {
 public:
  explicit Network(const Layout& layout)
      : layout_(layout), gradient_(static_cast<std::size_t>(layout.size())) {}

  std::vector<float> start() const {
    std::vector<float> x(gradient_.size());
    const Draw draw = Draw::shared(1, 0, Purpose::user);
    for (const Segment& segment : layout_.segments()) {
      const float most = 1 / std::sqrt(static_cast<float>(segment.name.back() == '1' ? inputs : hidden));
      for (index_t i = segment.offset; i < segment.offset + segment.count; ++i)
        x[static_cast<std::size_t>(i)] =
            most * (static_cast<float>(draw.bits(static_cast<std::uint64_t>(i)) >> 40) * 0x1p-23F - 1);
    }
    return x;
  }

  void clear() { std::fill(gradient_.begin(), gradient_.end(), 0.0F); }
  const std::vector<float>& gradient() const { return gradient_; }
  /// Adds `weight` times the gradient of one picture; returns its loss.
  double add(const std::vector<float>& x, const float* picture, std::int64_t label, float weight) {
    const float *w1 = x.data() + at(0), *b1 = x.data() + at(1), *w2 = x.data() + at(2),
                *b2 = x.data() + at(3);
    float h[hidden], z[classes], dh[hidden] = {};
    for (index_t j = 0; j < hidden; ++j)
      h[j] = std::max(0.0F, std::inner_product(picture, picture + inputs, w1 + j * inputs, b1[j]));
    for (index_t c = 0; c < classes; ++c) z[c] = std::inner_product(h, h + hidden, w2 + c * hidden, b2[c]);
    const float largest = *std::max_element(z, z + classes);
    float sum = 0;
    for (float& value : z) sum += value = std::exp(value - largest);
    const double loss = -std::log(static_cast<double>(z[label] / sum));
    float *g1 = gradient_.data() + at(0), *gb1 = gradient_.data() + at(1), *g2 = gradient_.data() + at(2),
          *gb2 = gradient_.data() + at(3);
    for (index_t c = 0; c < classes; ++c) {
      const float d = weight * (z[c] / sum - (c == label ? 1.0F : 0.0F));
      gb2[c] += d;
      for (index_t j = 0; j < hidden; ++j) {
        g2[c * hidden + j] += d * h[j];
        dh[j] += d * w2[c * hidden + j];
      }
    }
    for (index_t j = 0; j < hidden; ++j) {
      if (h[j] <= 0) continue;
      gb1[j] += dh[j];
      for (index_t i = 0; i < inputs; ++i) g1[j * inputs + i] += dh[j] * picture[i];
    }
    return loss;
  }

 private:
  index_t at(std::size_t segment) const { return layout_.segments()[segment].offset; }

  Layout layout_;
  std::vector<float> gradient_;
};

/// Trains up to step `until` on `ranks` ranks, from what is in `folder`, if anything, and saves there.
void run(const train::Dataset& data, int ranks, std::uint64_t until, const fs::path& folder,
         std::vector<double>& losses) {
  ThreadGroup(ranks, std::chrono::seconds(60)).run([&](Threads& transport) {
    const Layout layout = layers();
    Network network(layout);
    Optimizer optimizer{OneBitAdam<>{.learning_rate = 1e-3F, .preconditioner = {.freeze = AtStep{freeze}}},
                        transport, layout};
    std::vector<float> x = network.start();
    checkpoint::Folder checkpoints(folder, transport);
    checkpoints.load(optimizer, x, checkpoint::Elastic::yes);
    std::vector<std::int64_t> order(static_cast<std::size_t>(data.count));
    const std::uint64_t steps_per_epoch = static_cast<std::uint64_t>(data.count / batch);
    std::optional<std::uint64_t> epoch;
    const std::int64_t share = batch / ranks;
    while (optimizer.steps() < until) {
      // The batch of all ranks stays as large, so that steps say how far the data have come.
      if (const std::uint64_t now = optimizer.steps() / steps_per_epoch; epoch != now) {
        epoch = now;
        std::iota(order.begin(), order.end(), 0);
        const Draw draw = Draw::shared(1, now, Purpose::shuffle);
        for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[draw.below(i + 1, i)]);
      }
      const auto first = static_cast<std::int64_t>(optimizer.steps() % steps_per_epoch) * batch;
      network.clear();
      double loss = 0;
      for (std::int64_t k = 0; k < share; ++k) {
        const std::int64_t picture = order[static_cast<std::size_t>(first + share * transport.rank() + k)];
        loss += network.add(x, data.images.data() + picture * inputs,
                            data.labels[static_cast<std::size_t>(picture)], 1 / static_cast<float>(share));
      }
      optimizer.step(x, network.gradient());
      const std::vector<double> all = all_gather(transport, loss / static_cast<double>(share));
      if (transport.rank() == 0) losses.push_back(std::accumulate(all.begin(), all.end(), 0.0) / ranks);
    }
    checkpoints.save(optimizer, x);
  });
}

std::string points_of(const char* name, const std::vector<double>& losses) {
  std::string text = std::string("$") + name + " << EOD\n";
  for (std::size_t i = window; i <= losses.size(); i += window)
    text += std::to_string(i) + " " +
            std::to_string(std::accumulate(losses.begin() + static_cast<std::ptrdiff_t>(i - window),
                                           losses.begin() + static_cast<std::ptrdiff_t>(i), 0.0) /
                           static_cast<double>(window)) +
            "\n";
  return text + "EOD\n";
}

std::string script_of(const std::vector<double>& whole, const std::vector<double>& elastic) {
  const auto line = [](std::uint64_t step, const char* words) {
    const std::string at = std::to_string(step);
    return "set arrow from " + at + ", graph 0 to " + at +
           ", graph 1 nohead lc rgb '#777777' lw 1.2 dt (7,5)\nset label '" + words + "' at " + at +
           ", graph 0.06 offset 0.6,0 font 'Helvetica,12' textcolor rgb '#555555'\n";
  };
  return "set terminal svg size 760,420 font 'Helvetica,14' background '#ffffff' linewidth 1\nset encoding "
         "utf8\n" +
         points_of("whole", whole) + points_of("elastic", elastic) +
         "set border 3 lc rgb '#444444' lw 1\nset tics nomirror out scale 0.6 textcolor rgb '#222222'\n"
         "set grid xtics ytics lc rgb '#e4e4e4' lw 1 lt 1\nset logscale y\nset yrange [0.25:1.2]\n"
         "set ytics (0.3, 0.4, 0.5, 0.7, 1)\nset xrange [0:" +
         std::to_string(end) +
         "]\nset key top right Left reverse samplen 2.2 spacing 1.25 textcolor rgb '#222222'\n"
         "set xlabel 'step, of 96 pictures'\nset ylabel 'training loss, mean of " +
         std::to_string(window) + " steps'\n" + line(freeze, "compressed") +
         line(first_stop, "3 ranks continue") + line(second_stop, "6 ranks continue") +
         "plot $whole using 1:2 with lines lw 2.2 lc rgb '#9cc3ea' title '4 ranks that never stop', "
         "$elastic using 1:2 with lines lw 1.6 lc rgb '#b5482a' title '4, 3 and 6 ranks'\n";
}

double last_mean(const std::vector<double>& losses) {
  return std::accumulate(losses.end() - 100, losses.end(), 0.0) / 100;
}

}  // namespace

int main(int count, char** arguments) try {
  if (count < 2) {
    std::fprintf(stderr, "usage: %s PICTURE.svg [DATA]\n", arguments[0]);
    return 2;
  }
  const train::Dataset data =
      train::load_images_labels(count > 2 ? arguments[2] : train::default_data_directory, true);
  std::string pattern = (fs::temp_directory_path() / "terse-elastic-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("can't make a folder for checkpoints");
  const fs::path folder = pattern;
  std::vector<double> whole, elastic;
  run(data, 4, end, folder / "whole", whole);
  run(data, 4, first_stop, folder / "elastic", elastic);
  run(data, 3, second_stop, folder / "elastic", elastic);
  run(data, 6, end, folder / "elastic", elastic);
  fs::remove_all(folder);
  std::printf("training loss, mean of the last 100 of %d steps: 4 ranks %.4f; 4, 3 and 6 ranks %.4f\n",
              static_cast<int>(end), last_mean(whole), last_mean(elastic));
  train::write_output(arguments[1], train::draw(script_of(whole, elastic)));
  return 0;
} catch (const std::exception& fault) {
  std::fprintf(stderr, "elastic: %s\n", fault.what());
  return 1;
}
