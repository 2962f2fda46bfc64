// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <algorithm>
#include <cmath>

#include "terse/core/draw.hpp"

namespace experiments {
namespace {

constexpr int lanes = 32;

/// to[m][lane] = sum over n of w[m * row + n * column] from[n][lane]. Two rows at a time: their sums stay in registers.
void multiply(const float* w, int row, int column, int rows, int columns, const float* from, float* to) {
  for (int m = 0; m < rows; m += 2) {
    float a[lanes] = {}, b[lanes] = {};
    for (int n = 0; n < columns; ++n) {
      const float u = w[m * row + n * column], v = w[(m + 1) * row + n * column];
      const float* const f = from + n * lanes;
      for (int lane = 0; lane < lanes; ++lane) {
        a[lane] += u * f[lane];
        b[lane] += v * f[lane];
      }
    }
    std::copy_n(a, lanes, to + m * lanes);
    std::copy_n(b, lanes, to + (m + 1) * lanes);
  }
}

/// g[m][n] += sum over lanes of d[m][lane] from[lane][n].
void add_products(const float* d, int rows, const float* from, int columns, float* g) {
  constexpr int together = 4;
  for (int m = 0; m < rows; ++m)
    for (int lane = 0; lane < lanes; lane += together) {
      const float *const s = d + m * lanes + lane, *const f = from + lane * columns;
      float* const to = g + m * columns;
      for (int n = 0; n < columns; ++n)
        to[n] +=
            (s[0] * f[n] + s[1] * f[columns + n]) + (s[2] * f[2 * columns + n] + s[3] * f[3 * columns + n]);
    }
}

void add_biases(const float* biases, int rows, float* to) {
  for (int m = 0; m < rows; ++m)
    for (int lane = 0; lane < lanes; ++lane) to[m * lanes + lane] += biases[m];
}
void add_sums(const float* d, int rows, float* g) {
  for (int m = 0; m < rows; ++m)
    for (int lane = 0; lane < lanes; ++lane) g[m] += d[m * lanes + lane];
}

void rectify(std::vector<float>& values) {
  for (float& value : values) value = std::max(value, 0.0F);
}
/// Where the unit was off, nothing comes back.
void silence(const std::vector<float>& values, std::vector<float>& d) {
  for (std::size_t i = 0; i < d.size(); ++i) d[i] = values[i] > 0 ? d[i] : 0;
}

void turn(const float* from, int rows, int columns, float* to) {
  for (int m = 0; m < rows; ++m)
    for (int n = 0; n < columns; ++n) to[n * rows + m] = from[m * columns + n];
}

constexpr float least_probability = 1e-30F;

/// Replaces the scores of one example, a lane, by their exponentials over the largest's, and returns the sum.
float exponentials(float* scores, int classes) {
  float largest = scores[0], sum = 0;
  for (int c = 1; c < classes; ++c) largest = std::max(largest, scores[c * lanes]);
  for (int c = 0; c < classes; ++c) sum += scores[c * lanes] = std::exp(scores[c * lanes] - largest);
  return sum;
}
double loss_of(float exponential, float sum) {
  return -std::log(static_cast<double>(std::max(exponential / sum, least_probability)));
}

}  // namespace

Model::Offsets::Offsets(int width)
    : w1(0),
      b1(width * inputs),
      w2(b1 + width),
      b2(w2 + width * width),
      w3(b2 + width),
      b3(w3 + classes * width),
      size(b3 + classes) {}

Model::Model(int width)
    : hidden_(width),
      at_(width),
      pictures_(lanes * inputs),
      columns_(inputs * lanes),
      first_(static_cast<std::size_t>(width) * lanes),
      second_(first_.size()),
      scores_(classes * lanes),
      d_first_(first_.size()),
      d_second_(first_.size()),
      turned_(first_.size()) {}

terse::Layout Model::layout(int width) {
  terse::Layout layout;
  layout.add({"first.weight", {width, inputs}})
      .add({"first.bias", {width}})
      .add({"second.weight", {width, width}})
      .add({"second.bias", {width}})
      .add({"last.weight", {classes, width}})
      .add({"last.bias", {classes}});
  return layout;
}

std::vector<float> Model::start(std::uint64_t seed, int width) {
  const Offsets at(width);
  std::vector<float> x(static_cast<std::size_t>(layout(width).size()));
  const terse::Draw draw = terse::Draw::shared(seed, 0, terse::Purpose::initialization);
  for (int i = 0; i < at.size; ++i) {
    const float most = 1 / std::sqrt(static_cast<float>(i < at.w2 ? inputs : width));
    x[static_cast<std::size_t>(i)] =
        most * (static_cast<float>(draw.bits(static_cast<std::uint64_t>(i)) >> 40) * 0x1p-23F - 1);
  }
  return x;
}

void Model::forward(const float* x, const Dataset& data, const std::int64_t* batch, int count) {
  std::fill(pictures_.begin() + count * inputs, pictures_.end(), 0.0F);
  for (int k = 0; k < count; ++k)
    std::copy_n(data.images.data() + batch[k] * inputs, inputs, pictures_.data() + k * inputs);
  turn(pictures_.data(), lanes, inputs, columns_.data());
  multiply(x + at_.w1, inputs, 1, hidden_, inputs, columns_.data(), first_.data());
  add_biases(x + at_.b1, hidden_, first_.data());
  rectify(first_);
  multiply(x + at_.w2, hidden_, 1, hidden_, hidden_, first_.data(), second_.data());
  add_biases(x + at_.b2, hidden_, second_.data());
  rectify(second_);
  multiply(x + at_.w3, hidden_, 1, classes, hidden_, second_.data(), scores_.data());
  add_biases(x + at_.b3, classes, scores_.data());
}

double Model::gradient(const std::vector<float>& x, const Dataset& data, const Batch& batch,
                       std::vector<float>& g) {
  std::fill(g.begin(), g.end(), 0.0F);
  const float weight = 1 / static_cast<float>(batch.size());
  double loss = 0;
  for (std::size_t done = 0; done < batch.size(); done += lanes) {
    const int count = static_cast<int>(std::min<std::size_t>(lanes, batch.size() - done));
    forward(x.data(), data, batch.data() + done, count);
    // Scores become their gradient: softmax less 1 at the label.
    for (int k = 0; k < lanes; ++k) {
      float* const z = scores_.data() + k;
      if (k >= count) {
        for (int c = 0; c < classes; ++c) z[c * lanes] = 0;
        continue;
      }
      const float sum = exponentials(z, classes);
      const auto label =
          static_cast<int>(data.labels[static_cast<std::size_t>(batch[done + static_cast<std::size_t>(k)])]);
      loss += loss_of(z[label * lanes], sum);
      for (int c = 0; c < classes; ++c)
        z[c * lanes] = weight * (z[c * lanes] / sum - (c == label ? 1.0F : 0.0F));
    }
    turn(second_.data(), hidden_, lanes, turned_.data());
    add_products(scores_.data(), classes, turned_.data(), hidden_, g.data() + at_.w3);
    add_sums(scores_.data(), classes, g.data() + at_.b3);
    multiply(x.data() + at_.w3, 1, hidden_, hidden_, classes, scores_.data(), d_second_.data());
    silence(second_, d_second_);
    turn(first_.data(), hidden_, lanes, turned_.data());
    add_products(d_second_.data(), hidden_, turned_.data(), hidden_, g.data() + at_.w2);
    add_sums(d_second_.data(), hidden_, g.data() + at_.b2);
    multiply(x.data() + at_.w2, 1, hidden_, hidden_, hidden_, d_second_.data(), d_first_.data());
    silence(first_, d_first_);
    add_products(d_first_.data(), hidden_, pictures_.data(), inputs, g.data() + at_.w1);
    add_sums(d_first_.data(), hidden_, g.data() + at_.b1);
  }
  return loss / static_cast<double>(batch.size());
}

Score Model::score(const std::vector<float>& x, const Dataset& data, std::int64_t count) {
  std::int64_t right = 0;
  double loss = 0;
  for (std::int64_t done = 0; done < count; done += lanes) {
    std::int64_t batch[lanes];
    const int some = static_cast<int>(std::min<std::int64_t>(lanes, count - done));
    for (int k = 0; k < some; ++k) batch[k] = done + k;
    forward(x.data(), data, batch, some);
    for (int k = 0; k < some; ++k) {
      float* const z = scores_.data() + k;
      int best = 0;
      for (int c = 1; c < classes; ++c)
        if (z[c * lanes] > z[best * lanes]) best = c;
      const auto label = static_cast<int>(data.labels[static_cast<std::size_t>(done + k)]);
      right += best == label;
      const float sum = exponentials(z, classes);
      loss += loss_of(z[label * lanes], sum);
    }
  }
  const auto all = static_cast<double>(count);
  return {loss / all, static_cast<double>(right) / all};
}

}  // namespace experiments
