// SPDX-License-Identifier: Apache-2.0

// elastic PICTURE.svg [DATA]: 1-bit Adam on Fashion-MNIST over thread ranks, 4 that save, 3 that go on and save, 6 that go on;
// next to 4 that never stop. Draws both losses.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../../tools/train/idx.hpp"
#include "../../tools/train/picture.hpp"
#include "terse/checkpoint/folder.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/terse.hpp"

namespace {

using namespace terse;
namespace fs = std::filesystem;

constexpr index_t inputs = 784, hidden = 64, classes = 10;
constexpr std::int64_t batch = 96;  // of all ranks together, however many there are
constexpr std::uint64_t freeze = 150, first_stop = 400, second_stop = 800, end = 1200;
constexpr std::ptrdiff_t window = 25;  // steps that a point of the curve is the mean of

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

nlohmann::ordered_json means_of(const std::vector<double>& losses) {
  auto points = nlohmann::ordered_json::array();
  for (auto last = losses.begin(); losses.end() - last >= window; last += window)
    points.push_back({last + window - losses.begin(), std::accumulate(last, last + window, 0.0) / window});
  return points;
}

nlohmann::ordered_json picture_of(const std::vector<double>& whole, const std::vector<double>& elastic) {
  return {
      {"panels",
       {{{"x", {{"label", "step, of 96 training images"}, {"range", {0, end}}}},
         {"y", {{"label", "training loss, mean of 25 steps"}, {"log", true}}},
         {"series",
          {{{"name", "4 ranks without a stop"}, {"points", means_of(whole)}, {"width", 6}, {"color", "pale"}},
           {{"name", "4 ranks, from step 400 on 3, from step 800 on 6"}, {"points", means_of(elastic)}}}},
         {"lines",
          {{{"x", freeze}, {"text", "compression starts"}},
           {{"x", first_stop}, {"text", "3 ranks resume"}},
           {{"x", second_stop}, {"text", "6 ranks resume"}}}}}}}};
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
  train::write_picture(arguments[1], picture_of(whole, elastic));
  return 0;
} catch (const std::exception& fault) {
  std::fprintf(stderr, "elastic: %s\n", fault.what());
  return 1;
}
