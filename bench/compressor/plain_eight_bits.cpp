// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "plain.hpp"
#include "terse/core/view.hpp"

namespace terse::bench {
namespace {

class PlainEightBits final : public Baseline {
 public:
  explicit PlainEightBits(index_t n) : n_(n), error_(n), y_(n), scaled_(n), codes_(n) {}

  void encode(const float* message) override {
    float *y = y_.data(), *t = scaled_.data(), *e = error_.data();
    std::int8_t* q = codes_.data();
    for (index_t i = 0; i < n_; ++i) y[i] = message[i] + e[i];
    // In 64 partial maxima so that it vectorizes.
    float partial[64] = {};
    for (index_t i = 0; i < n_; i += 64)
      for (index_t l = 0; l < 64; ++l) partial[l] = std::max(partial[l], std::fabs(y[i + l]));
    step_ = *std::max_element(partial, partial + 64) / 127;
    const float inverse = step_ > 0 ? 1 / step_ : 0;
    for (index_t i = 0; i < n_; ++i) t[i] = y[i] * inverse;
    for (index_t i = 0; i < n_; ++i) q[i] = static_cast<std::int8_t>(std::nearbyintf(t[i]));
    for (index_t i = 0; i < n_; ++i) t[i] = static_cast<float>(q[i]) * step_;
    for (index_t i = 0; i < n_; ++i) e[i] = y[i] - t[i];
  }
  void accumulate(float* x, float rate) override {
    float* t = scaled_.data();
    const std::int8_t* q = codes_.data();
    for (index_t i = 0; i < n_; ++i) t[i] = static_cast<float>(q[i]) * step_;
    for (index_t i = 0; i < n_; ++i) x[i] -= rate * t[i];
  }
  std::ptrdiff_t bytes() const override { return n_ + 4; }

 private:
  index_t n_;
  buffer<float> error_, y_, scaled_;
  buffer<std::int8_t> codes_;
  float step_ = 0;
};

}  // namespace

BaselineMaker plain_eight_bits() {
  return [](std::ptrdiff_t n) -> std::unique_ptr<Baseline> { return std::make_unique<PlainEightBits>(n); };
}

}  // namespace terse::bench
