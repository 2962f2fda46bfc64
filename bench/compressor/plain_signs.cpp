// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>

#include "plain.hpp"
#include "terse/core/view.hpp"

namespace terse::bench {
namespace {

/// y = message + error; its root mean square, in 64 partial sums so that it vectorizes.
float compensate(const float* message, const float* error, float* y, index_t n) {
  for (index_t i = 0; i < n; ++i) y[i] = message[i] + error[i];
  float partial[64] = {};
  for (index_t i = 0; i < n; i += 64)
    for (index_t l = 0; l < 64; ++l) partial[l] += y[i + l] * y[i + l];
  double sum = 0;
  for (const float one : partial) sum += static_cast<double>(one);
  return static_cast<float>(std::sqrt(sum / static_cast<double>(n)));
}

class PlainOneBit final : public Baseline {
 public:
  PlainOneBit(index_t n, bool packed)
      : n_(n), packs_(packed), error_(n), y_(n), sign_(n), bytes_(n), bits_(packed ? n / 8 : 0) {}

  void encode(const float* message) override {
    float *y = y_.data(), *s = sign_.data(), *e = error_.data();
    std::uint8_t* b = bytes_.data();
    scale_ = compensate(message, e, y, n_);
    for (index_t i = 0; i < n_; ++i) s[i] = y[i] < 0 ? -1.0F : 1.0F;
    for (index_t i = 0; i < n_; ++i) s[i] *= scale_;
    for (index_t i = 0; i < n_; ++i) e[i] = y[i] - s[i];
    for (index_t i = 0; i < n_; ++i) b[i] = y[i] < 0 ? 0 : 1;
    if (!packs_) return;
    std::uint8_t* p = bits_.data();
    for (index_t i = 0; i < n_ / 8; ++i) {
      unsigned byte = 0;
      for (int bit = 0; bit < 8; ++bit) byte |= static_cast<unsigned>(b[8 * i + bit]) << bit;
      p[i] = static_cast<std::uint8_t>(byte);
    }
  }
  void accumulate(float* x, float rate) override {
    float* s = sign_.data();
    std::uint8_t* b = bytes_.data();
    if (packs_)
      for (index_t i = 0; i < n_ / 8; ++i)
        for (int bit = 0; bit < 8; ++bit) b[8 * i + bit] = static_cast<std::uint8_t>(bits_[i] >> bit & 1);
    for (index_t i = 0; i < n_; ++i) s[i] = static_cast<float>(b[i]) * 2 - 1;
    for (index_t i = 0; i < n_; ++i) s[i] *= scale_;
    for (index_t i = 0; i < n_; ++i) x[i] -= rate * s[i];
  }
  std::ptrdiff_t bytes() const override { return (packs_ ? n_ / 8 : n_) + 4; }

 private:
  index_t n_;
  bool packs_;
  buffer<float> error_, y_, sign_;
  buffer<std::uint8_t> bytes_, bits_;
  float scale_ = 0;
};

}  // namespace

BaselineMaker plain_one_bit() {
  return [](std::ptrdiff_t n) -> std::unique_ptr<Baseline> { return std::make_unique<PlainOneBit>(n, true); };
}
BaselineMaker plain_sign_bytes() {
  return
      [](std::ptrdiff_t n) -> std::unique_ptr<Baseline> { return std::make_unique<PlainOneBit>(n, false); };
}

}  // namespace terse::bench
