// SPDX-License-Identifier: Apache-2.0
// What examples/experiments trains with, on pictures that are made here.

#include "../../examples/experiments/experiment.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "terse/optimizer/adam.hpp"

using namespace experiments;

namespace {

/// Noise, and a bright row that tells the class.
Dataset pictures(std::int64_t count, std::uint64_t seed) {
  Dataset data{.count = count, .rows = 28, .columns = 28};
  const terse::Draw draw = terse::Draw::shared(seed, 0, terse::Purpose::user);
  for (std::int64_t k = 0; k < count; ++k) {
    data.labels.push_back(k % 10);
    for (std::int64_t i = 0; i < 784; ++i) {
      const float noise =
          static_cast<float>(draw.bits(static_cast<std::uint64_t>(k * 784 + i)) >> 40) * 0x1p-24F;
      data.images.push_back(i == 0 ? 0 : noise + (i / 28 == 2 * (k % 10) + 4 ? 1.0F : 0.0F));
    }
  }
  return data;
}

/// The loss in double, neuron by neuron.
double loss_of(const std::vector<double>& x, const terse::Layout& layout, const Dataset& data,
               const Batch& batch) {
  double sum = 0;
  for (const std::int64_t k : batch) {
    std::vector<double> in(data.images.begin() + k * 784, data.images.begin() + (k + 1) * 784);
    for (std::size_t layer = 0; layer < 6; layer += 2) {
      const terse::Segment &w = layout.segments()[layer], &b = layout.segments()[layer + 1];
      std::vector<double> out;
      for (terse::index_t m = 0; m < b.count; ++m) {
        double z = x[static_cast<std::size_t>(b.offset + m)];
        for (std::size_t n = 0; n < in.size(); ++n)
          z += x[static_cast<std::size_t>(w.offset + m * static_cast<terse::index_t>(in.size())) + n] * in[n];
        out.push_back(layer < 4 ? std::max(z, 0.0) : z);
      }
      in = out;
    }
    double all = 0;
    for (const double z : in) all += std::exp(z);
    sum += std::log(all) - in[static_cast<std::size_t>(data.labels[static_cast<std::size_t>(k)])];
  }
  return sum / static_cast<double>(batch.size());
}

}  // namespace

TEST_CASE("the gradient is the loss's") {
  const Dataset data = pictures(40, 1);
  // More than are worked on at a time, and not a multiple of that.
  Batch batch;
  for (std::int64_t k = 0; k < 35; ++k) batch.push_back(k);
  for (const int width : {Model::usual_width, 64}) {
    const terse::Layout layout = Model::layout(width);
    const std::vector<float> x = Model::start(1, width);
    REQUIRE(static_cast<terse::index_t>(x.size()) == layout.size());
    std::vector<float> g(x.size());
    const double loss = Model(width).gradient(x, data, batch, g);
    std::vector<double> at(x.begin(), x.end());
    CHECK(loss == doctest::Approx(loss_of(at, layout, data, batch)).epsilon(1e-5));

    for (const terse::Segment& segment : layout.segments())
      for (const terse::index_t i : {segment.offset + 5, segment.offset + segment.count - 1}) {
        const auto place = static_cast<std::size_t>(i);
        constexpr double h = 1e-5;
        const double here = at[place];
        at[place] = here + h;
        const double above = loss_of(at, layout, data, batch);
        at[place] = here - h;
        const double below = loss_of(at, layout, data, batch);
        at[place] = here;
        INFO(width << ", " << segment.name << ", element " << i - segment.offset);
        CHECK(static_cast<double>(g[place]) ==
              doctest::Approx((above - below) / (2 * h)).epsilon(1e-3).scale(1e-3));
      }
    // Nothing comes from a pixel that is 0.
    CHECK(g[0] == 0);
    CHECK(g[784] == 0);
  }
}

TEST_CASE("a training ends where its figures say") {
  const Task task{pictures(500, 1), pictures(200, 2)};
  const Training training{.steps = 90, .ranks = 2, .batch = 16};
  const Maker adam = maker(terse::Adam<>{.learning_rate = 2e-3F});
  const Figures figures = run(task, training, adam, 3);
  CHECK(figures.loss > 0);
  CHECK(figures.loss < 1);  // of ten classes unseen: 2.3
  CHECK(figures.accuracy > 0.9);
  CHECK(figures.spread == 0);
  CHECK(figures.dead == 0);
  // Each rank sends half of what it has, and half of the mean.
  CHECK(figures.bytes > 4.0 * 118'282);
  CHECK(figures.bytes < 4.0 * 118'282 + 1000);
  CHECK(figures.burst >= figures.bytes);
  CHECK(run(task, training, adam, 3).loss == figures.loss);
  CHECK(run(task, training, adam, 4).loss != figures.loss);
}
