// SPDX-License-Identifier: Apache-2.0
#include "plain_step.hpp"

#include <cmath>

namespace terse::bench {

PlainStep::PlainStep(std::ptrdiff_t n, const float* m, const float* d, const float* g, float* x)
    : n_(n),
      m0_(m),
      d_(d),
      g_(g),
      x_(x),
      m_(m, m + n),
      error_(static_cast<std::size_t>(n)),
      sign_(static_cast<std::size_t>(n)),
      temporary_(static_cast<std::size_t>(n)),
      bytes_(static_cast<std::size_t>(n)),
      packed_(static_cast<std::size_t>(n / 8)) {}

void PlainStep::local() {
  const std::ptrdiff_t n = n_;
  float *m = m_.data(), *e = error_.data(), *s = sign_.data(), *t = temporary_.data();
  std::uint8_t *b = bytes_.data(), *p = packed_.data();
  const float* g = g_;

  // Momentum, in place: m.mul_(beta1), m.add_(g, alpha = 1 - beta1).
  for (std::ptrdiff_t i = 0; i < n; ++i) m[i] *= 0.9F;
  for (std::ptrdiff_t i = 0; i < n; ++i) m[i] += 0.1F * g[i];
  // Compensation: m.add_(error).
  for (std::ptrdiff_t i = 0; i < n; ++i) m[i] += e[i];
  // Scale: norm(m) / sqrt(n), in 64 partial sums so that it vectorizes.
  float partial[64] = {};
  for (std::ptrdiff_t i = 0; i + 64 <= n; i += 64)
    for (int l = 0; l < 64; ++l) partial[l] += m[i + l] * m[i + l];
  double sum = 0;
  for (const float one : partial) sum += static_cast<double>(one);
  const auto scale = static_cast<float>(std::sqrt(sum / static_cast<double>(n)));
  // Error: error.set_(m - scale * m.sign().add_(1).bool().float().add_(-0.5).mul_(2)).
  for (std::ptrdiff_t i = 0; i < n; ++i) s[i] = static_cast<float>((m[i] > 0) - (m[i] < 0));
  for (std::ptrdiff_t i = 0; i < n; ++i) s[i] += 1;
  for (std::ptrdiff_t i = 0; i < n; ++i) b[i] = s[i] != 0 ? 1 : 0;
  for (std::ptrdiff_t i = 0; i < n; ++i) s[i] = static_cast<float>(b[i]);
  for (std::ptrdiff_t i = 0; i < n; ++i) s[i] += -0.5F;
  for (std::ptrdiff_t i = 0; i < n; ++i) s[i] *= 2;
  for (std::ptrdiff_t i = 0; i < n; ++i) t[i] = scale * s[i];
  for (std::ptrdiff_t i = 0; i < n; ++i) e[i] = m[i] - t[i];
  // Bits: a byte for each sign, packed by a second pass.
  for (std::ptrdiff_t i = 0; i < n; ++i) b[i] = m[i] >= 0 ? 1 : 0;
  for (std::ptrdiff_t i = 0; i < n / 8; ++i) {
    unsigned byte = 0;
    for (int bit = 0; bit < 8; ++bit) byte |= static_cast<unsigned>(b[8 * i + bit]) << bit;
    p[i] = static_cast<std::uint8_t>(byte);
  }
  // What comes back: unpack to bytes, to floats, to +-1, times the scale, into the momentum.
  for (std::ptrdiff_t i = 0; i < n / 8; ++i)
    for (int bit = 0; bit < 8; ++bit) b[8 * i + bit] = static_cast<std::uint8_t>((p[i] >> bit) & 1);
  for (std::ptrdiff_t i = 0; i < n; ++i) s[i] = static_cast<float>(b[i]);
  for (std::ptrdiff_t i = 0; i < n; ++i) s[i] += -0.5F;
  for (std::ptrdiff_t i = 0; i < n; ++i) s[i] *= 2;
  for (std::ptrdiff_t i = 0; i < n; ++i) m[i] = s[i] * scale;
  // Update: p.add_(m * d, alpha = -lr). The division by sqrt(v) + eps is spared here as it is in terse.
  const float* d = d_;
  float* x = x_;
  for (std::ptrdiff_t i = 0; i < n; ++i) t[i] = m[i] * d[i];
  for (std::ptrdiff_t i = 0; i < n; ++i) x[i] += -1e-3F * t[i];
}

}  // namespace terse::bench
