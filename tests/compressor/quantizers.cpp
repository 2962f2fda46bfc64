// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "terse/compressor/cast.hpp"
#include "terse/compressor/min_max.hpp"
#include "terse/compressor/natural.hpp"
#include "terse/compressor/qsgd.hpp"
#include "terse/compressor/sign.hpp"
#include "terse/compressor/ternary.hpp"
#include "terse/compressor/two_magnitudes.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/device/emulated.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/executor/host.hpp"
#include "terse/preconditioner/layer_statistic.hpp"

// Quantizers against oracles in double, written from the formulas: code books, nearest levels, exact means
// and variances over all random words, contraction, statistics, and the same through Packed.

namespace {

using namespace terse;  // NOLINT: a test of the library's names

using Floats = std::vector<float>;

constexpr float tiniest = std::numeric_limits<float>::denorm_min();
constexpr float biggest = 0x1p66F;  // the largest scale that packets may have
constexpr std::uint32_t words = 65536;

constexpr std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

std::uint64_t random_bits(std::uint64_t seed, index_t i) {
  return Draw::shared(7, seed, Purpose::user).bits(static_cast<std::uint64_t>(i));
}
/// Uniform in (-1, 1).
float uniform(std::uint64_t seed, index_t i) {
  return (static_cast<float>(random_bits(seed, i) >> 40) + 0.5F) * 0x1p-23F - 1.0F;
}
Floats light(index_t n, std::uint64_t seed) {
  Floats x;
  for (index_t i = 0; i < n; ++i) x.push_back(uniform(seed, i));
  return x;
}
/// Many magnitudes, few of them large.
Floats heavy(index_t n, std::uint64_t seed) {
  Floats x = light(n, seed);
  for (float& value : x) value = std::copysign(std::exp(20 * std::abs(value)) * 1e-5F, value);
  return x;
}
Floats one_hot(index_t n) {
  Floats x(at(n), 0.0F);
  x[at(n / 2)] = -3.0F;
  return x;
}
Floats alternating(index_t n) {
  Floats x(at(n), 0.75F);
  for (std::size_t i = 1; i < x.size(); i += 2) x[i] = -x[i];
  return x;
}

std::vector<Floats> vectors() {
  std::vector<Floats> all;
  for (const index_t n : {1, 2, 3, 16, 1000}) {
    for (const std::uint64_t seed : {1U, 2U, 3U}) {
      all.push_back(light(n, seed));
      all.push_back(heavy(n, seed));
    }
    all.push_back(one_hot(n));
    all.push_back(Floats(at(n), 0.3F));
    all.push_back(Floats(at(n), -7.0F));
    all.push_back(alternating(n));
    // One large element, and others of the same small size.
    for (const float size : {0.5F, 0.25F, 0.1F, 0.03F, 0.001F}) {
      all.push_back(Floats(at(n), size));
      all.back()[0] = 1;
    }
  }
  return all;
}

template <class S>
typename S::Scale scale_of(const Floats& x) {
  std::array<float, at(S::width)> total{};
  total.fill(S::initial);
  for (const float value : x) {
    float term[S::width];
    S::terms(value, term);
    terse::detail::join_terms<S>(total.data(), 1, term, 1);
  }
  return S::finish(total.data(), static_cast<index_t>(x.size()));
}

template <class Q>
double read(std::uint32_t code, typename Q::Statistic::Scale scale) {
  return static_cast<double>(Q::value(code, scale));
}

double square(double x) { return x * x; }
double square_norm(const Floats& x) {
  double sum = 0;
  for (const float value : x) sum += square(static_cast<double>(value));
  return sum;
}

/// Exact over all random words.
struct Moments {
  double mean = 0;
  double error = 0;  // E (C(x) - x)^2
};
template <class Q>
Moments moments(float x, typename Q::Statistic::Scale scale) {
  Moments m;
  for (std::uint32_t random = 0; random < words; ++random) {
    const double value = read<Q>(Q::code(x, scale, random), scale);
    m.mean += value / words;
    m.error += square(value - static_cast<double>(x)) / words;
  }
  return m;
}

/// E ||C(x) - x||^2 of a unit, over `steps` evenly spaced random words.
template <class Q>
double square_error(const Floats& x, std::uint32_t steps) {
  const auto scale = scale_of<typename Q::Statistic>(x);
  double sum = 0;
  for (const float value : x)
    for (std::uint32_t k = 0; k < steps; ++k) {
      const std::uint32_t random = Q::stochastic ? (2 * k + 1) * words / (2 * steps) : 0;
      sum += square(read<Q>(Q::code(value, scale, random), scale) - static_cast<double>(value)) / steps;
    }
  return sum;
}

// ------------------------------------------------------------------------------------ what all must satisfy

template <class Scale>
std::vector<Scale> wild_scales() {
  const Floats floats{0.0F, -0.0F, tiniest, 1e-30F, 1.0F, 0x1p63F, biggest, -1.0F, -biggest};
  if constexpr (std::is_empty_v<Scale>) {
    return {Scale{}};
  } else if constexpr (std::is_same_v<Scale, float>) {
    return floats;
  } else {
    std::vector<Scale> pairs;
    for (const float first : floats)
      for (const float second : floats) pairs.push_back({first, second});
    return pairs;
  }
}

template <class Q>
void check_total() {
  using S = typename Q::Statistic;
  constexpr std::uint32_t codes = 1U << Q::bits;
  static_assert(check_quantizer<Q>());

  index_t wild = 0;
  for (const auto scale : wild_scales<typename S::Scale>())
    for (std::uint32_t code = 0; code < codes; ++code) wild += !std::isfinite(Q::value(code, scale));
  CHECK(wild == 0);

  // Elements that a mask hides, or whose unit overflowed, meet scales that know nothing of them.
  const Floats values{0.0F, -0.0F, tiniest, -tiniest, 1e-30F, 1.0F, -1.0F, 3e7F, 0x1p63F, -0x1p63F};
  wild = 0;
  std::vector<typename S::Scale> scales{scale_of<S>({})};
  for (const float first : values)
    for (const float second : values) scales.push_back(scale_of<S>({first, second}));
  for (const auto scale : scales)
    for (const float value : values)
      for (const std::uint32_t random : {0U, 1U, 32768U, 65535U}) {
        const std::uint32_t code = Q::code(value, scale, Q::stochastic ? random : 0);
        wild += code >= codes || !std::isfinite(Q::value(code, scale));
      }
  CHECK(wild == 0);

  if constexpr (!std::is_empty_v<typename S::Scale>)
    for (std::uint32_t code = 0; code < codes; ++code) CHECK(Q::value(code, scale_of<S>({})) == 0);

  // Zeros of both signs stay zeros, in units of zeros and, where there is a code for zero, in all.
  for (const float zero : {0.0F, -0.0F})
    for (const std::uint32_t random : {0U, 65535U}) {
      if constexpr (!std::is_empty_v<typename S::Scale>) {
        const auto none = scale_of<S>({0.0F, zero});
        CHECK(Q::value(Q::code(zero, none, random), none) == 0);
      }
      if constexpr (Q::represents_zero) {
        const auto some = scale_of<S>({zero, 2.0F});
        CHECK(Q::value(Q::code(zero, some, random), some) == 0);
      }
    }

  // Units so small that reciprocals overflow come back as small.
  for (const float small : {tiniest, 1e-40F, 1e-38F}) {
    const auto scale = scale_of<S>({small, -small});
    if constexpr (!std::is_empty_v<typename S::Scale>)
      CHECK(std::abs(Q::value(Q::code(small, scale, 65535), scale)) <= 2 * small);
  }
}

template <class Q>
void check_contraction() {
  if constexpr (requires { Q::contractive; } && Q::contractive) {
    for (const Floats& x : vectors()) {
      const double delta = Q::delta(static_cast<index_t>(x.size()));
      CHECK(delta > 0);
      CHECK(delta <= 1);
      CAPTURE(x.size());
      CAPTURE(x[0]);
      CAPTURE(x.back());
      CHECK(square_error<Q>(x, Q::stochastic ? 512 : 1) <= (1 - delta + 1e-6) * square_norm(x));
    }
  }
  if constexpr (Q::unbiased) {
    for (const Floats& x : vectors()) {
      CAPTURE(x.size());
      CAPTURE(x[0]);
      CAPTURE(x.back());
      const double omega = Q::omega(static_cast<index_t>(x.size()));
      CHECK(square_error<Q>(x, 512) <= (omega * 1.001 + 1e-6) * square_norm(x));
    }
  }
}

/// Messages of size 1 with signs that come and go, and ones that stay.
template <class Q>
double largest_residual(int steps) {
  Floats e(16, 0.0F);
  double largest = 0;
  for (int step = 0; step < steps; ++step) {
    Floats y = e;
    for (std::size_t i = 0; i < y.size(); ++i)
      y[i] += i < 4 ? 0.001F * static_cast<float>(i)
                    : uniform(static_cast<std::uint64_t>(100 + step / 7), static_cast<index_t>(i));
    const auto scale = scale_of<typename Q::Statistic>(y);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto random = static_cast<std::uint32_t>(
          random_bits(static_cast<std::uint64_t>(50000 + step), static_cast<index_t>(i)) & 0xFFFF);
      e[i] = y[i] - Q::value(Q::code(y[i], scale, Q::stochastic ? random : 0), scale);
      largest = std::max(largest, static_cast<double>(std::abs(e[i])));
    }
  }
  return largest;
}

template <class Q>
void check_all() {
  check_total<Q>();
  check_contraction<Q>();
  if (Q::tracks) CHECK(largest_residual<Q>(1000) < 20);
}

/// Unbiased to 2^-17 of the distance between the levels around x, and to what fp32 rounds.
template <class Q>
void check_mean(float x, typename Q::Statistic::Scale scale, double step) {
  CAPTURE(x);
  CAPTURE(step);
  const double exact = static_cast<double>(x);
  CHECK(std::abs(moments<Q>(x, scale).mean - exact) <= step * 0x1.01p-17 + std::abs(exact) * 0x1p-21);
}

/// A nearest level: no code reads closer, but for what fp32 rounds.
template <class Q>
void check_nearest(const Floats& x) {
  const auto scale = scale_of<typename Q::Statistic>(x);
  std::vector<double> book;
  for (std::uint32_t code = 0; code < 1U << Q::bits; ++code) book.push_back(read<Q>(code, scale));
  index_t wrong = 0;
  for (const float value : x) {
    const double exact = static_cast<double>(value);
    double best = std::numeric_limits<double>::infinity();
    for (const double level : book) best = std::min(best, std::abs(level - exact));
    const double found = std::abs(read<Q>(Q::code(value, scale, 0), scale) - exact);
    wrong += !(found <= best + 1e-6 * std::abs(exact));
  }
  CHECK(wrong == 0);
}

template <class Q>
std::vector<double> book_of(typename Q::Statistic::Scale scale) {
  std::vector<double> book;
  for (std::uint32_t code = 0; code < 1U << Q::bits; ++code) book.push_back(read<Q>(code, scale));
  std::sort(book.begin(), book.end());
  book.erase(std::unique(book.begin(), book.end()), book.end());
  return book;
}

bool close(double a, double b, double tolerance = 1e-6) {
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}
bool close(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) { return close(x, y); });
}

template <int Bits>
void check_uniform() {
  CAPTURE(Bits);
  const float s = 1.7F;
  const double scale = static_cast<double>(s);
  const Floats x = heavy(300, 9), y = light(300, 10);

  using Even = quantizer::UniformLevels<Bits, Nearest, Symmetric, MaxAbs>;
  using EvenMean = quantizer::UniformLevels<Bits, Stochastic, Symmetric, MaxAbs>;
  const int top = Bits == 1 ? 1 : (1 << (Bits - 1)) - 1;
  std::vector<double> book;
  for (int t = -top; t <= top; ++t)
    if (Bits > 1 || t != 0) book.push_back(scale * t / top);
  CHECK(close(book_of<Even>(s), book));
  CHECK(book_of<Even>(s).back() == scale);
  CHECK(book_of<Even>(s).front() == -scale);
  for (const Floats& values : {x, y}) {
    check_nearest<Even>(values);
    check_nearest<quantizer::UniformLevels<Bits, Nearest, Symmetric, TwoRootMeanSquares>>(values);
  }
  check_all<Even>();
  check_all<EvenMean>();
  check_all<quantizer::UniformLevels<Bits, Nearest, Symmetric, TwoRootMeanSquares>>();
  check_all<quantizer::UniformLevels<Bits, Stochastic, Symmetric, TwoRootMeanSquares>>();
  const double step = Bits == 1 ? 2 * scale : scale / top;
  for (const float part : {1.0F, -1.0F, 0.9999F, -0.77F, 0.5F, 0.123456F, -0.0101F, 3e-6F, 0.0F})
    check_mean<EvenMean>(part * s, s, step);
  CHECK(EvenMean::unbiased);
  CHECK(!Even::unbiased);
  CHECK(!quantizer::UniformLevels<Bits, Stochastic, Symmetric, TwoRootMeanSquares>::unbiased);

  if constexpr (Bits >= 2) {
    using Odd = quantizer::UniformLevels<Bits, Nearest, Asymmetric, MaxAbs>;
    using OddMean = quantizer::UniformLevels<Bits, Stochastic, Asymmetric, MaxAbs>;
    const int half = 1 << (Bits - 1);
    book.clear();
    for (int t = -half; t < half; ++t) book.push_back(scale * t / half);
    CHECK(close(book_of<Odd>(s), book));
    for (const Floats& values : {x, y}) {
      check_nearest<Odd>(values);
      check_nearest<quantizer::UniformLevels<Bits, Nearest, Asymmetric, TwoRootMeanSquares>>(values);
    }
    check_all<Odd>();
    check_all<OddMean>();
    check_all<quantizer::UniformLevels<Bits, Nearest, Asymmetric, TwoRootMeanSquares>>();
    check_all<quantizer::UniformLevels<Bits, Stochastic, Asymmetric, TwoRootMeanSquares>>();
    CHECK(!OddMean::unbiased);
    // The largest positive element loses a step, whatever the rounding.
    CHECK(close(read<Odd>(Odd::code(s, s, 0), s), scale * (half - 1) / half));
    CHECK(close(read<OddMean>(OddMean::code(s, s, 65535), s), scale * (half - 1) / half));
    for (const float part : {-1.0F, -0.77F, 0.123456F, -0.0101F})
      check_mean<OddMean>(part * s * (static_cast<float>(half - 1) / static_cast<float>(half)), s,
                          scale / half);
    // The bound is met: one element at the book's lossy end and the others half a step from zero.
    for (const index_t n : {1, 2, 10, 1000}) {
      Floats worst(at(n), 0.5F * s / static_cast<float>(half));
      worst[0] = s;
      CHECK(square_error<Odd>(worst, 1) ==
            doctest::Approx((1 - Odd::delta(n)) * square_norm(worst)).epsilon(1e-4));
      worst.assign(at(n), 0.49999F * s / static_cast<float>(top));
      worst[0] = s;
      CHECK(square_error<Even>(worst, 1) ==
            doctest::Approx((1 - Even::delta(n)) * square_norm(worst)).epsilon(1e-3));
    }
  }
}

/// omega of a scale by the largest magnitude is met by one large element and equal small ones.
template <class Q>
void check_max_scaled_omega(int levels) {
  // Not for longer units: 16 random bits round the probability of a small element's level.
  for (const index_t n : {2, 17, 1000}) {
    const double omega = Q::omega(n);
    const auto small = static_cast<float>(1 / (2 * (1 + omega)) / levels);
    const double others = static_cast<double>(n - 1);
    const double error = others * moments<Q>(small, 1.0F).error,
                 norm = 1 + others * square(static_cast<double>(small));
    CHECK(error == doctest::Approx(omega * norm).epsilon(1e-3));
  }
}

}  // namespace

// -------------------------------------------------------------------------------------------------- rounding

TEST_CASE("rounding is to the nearest even integer, or exact in the mean") {
  index_t wrong = 0;
  for (int quarter = -1024; quarter <= 1024; ++quarter) {
    const auto t = static_cast<float>(quarter) / 4;
    wrong += Nearest::round(t, 0) != static_cast<std::int32_t>(std::nearbyint(t));
    if (quarter % 4 == 0)
      wrong += Stochastic::round(t, 0) != quarter / 4 || Stochastic::round(t, 65535) != quarter / 4;
  }
  CHECK(wrong == 0);
  CHECK(Nearest::round(254.4999F, 0) == 254);
  for (const float t : {0.3F, -0.3F, 254.7F, -200.001F, 1e-5F, -1e-5F, 0.99999F, 77.5F}) {
    double sum = 0;
    for (std::uint32_t random = 0; random < words; ++random) sum += Stochastic::round(t, random);
    CHECK(std::abs(sum / words - static_cast<double>(t)) <= 0x1.1p-17);
  }
}

TEST_CASE("square roots for bounds") {
  for (const double x : {0.0, 1e-9, 0.25, 1.0, 2.0, 1000.0, 1e12, 1e18})
    CHECK(detail::square_root(x) == doctest::Approx(std::sqrt(x)).epsilon(1e-12));
  static_assert(detail::square_root(9) == 3);
}

// ------------------------------------------------------------------------------------------------ code books

TEST_CASE("uniform levels: 1 bit") { check_uniform<1>(); }
TEST_CASE("uniform levels: 2 bits") { check_uniform<2>(); }
TEST_CASE("uniform levels: 3 bits") { check_uniform<3>(); }
TEST_CASE("uniform levels: 8 bits") { check_uniform<8>(); }

TEST_CASE("uniform levels: which pairs track") {
  static_assert(quantizer::UniformLevels<2, Nearest, Asymmetric, TwoRootMeanSquares>::contractive);
  static_assert(quantizer::UniformLevels<2, Nearest, Symmetric, MaxAbs>::contractive);
  // Constant units lie half a step from zero, and come back as zeros.
  static_assert(!quantizer::UniformLevels<2, Nearest, Symmetric, TwoRootMeanSquares>::tracks);
  static_assert(quantizer::UniformLevels<3, Nearest, Symmetric, TwoRootMeanSquares>::contractive);
  static_assert(!quantizer::UniformLevels<1, Nearest, Symmetric, MaxAbs>::tracks);
  static_assert(!quantizer::UniformLevels<2, Stochastic, Symmetric, MaxAbs>::tracks);
  static_assert(quantizer::UniformLevels<2, Stochastic, Asymmetric, MaxAbs>::tracks);
  static_assert(quantizer::UniformLevels<3, Stochastic, Symmetric, MaxAbs>::tracks);
  static_assert(!quantizer::UniformLevels<2, Stochastic, Asymmetric, TwoRootMeanSquares>::tracks);
  static_assert(quantizer::UniformLevels<3, Stochastic, Asymmetric, TwoRootMeanSquares>::tracks);
  using Stuck = quantizer::UniformLevels<2, Nearest, Symmetric, TwoRootMeanSquares>;
  const float scale = scale_of<TwoRootMeanSquares>({1.0F, 1.0F});
  CHECK(Stuck::value(Stuck::code(1.0F, scale, 0), scale) == 0);
}

TEST_CASE("omegas are met") {
  check_max_scaled_omega<quantizer::UniformLevels<2, Stochastic, Symmetric, MaxAbs>>(1);
  check_max_scaled_omega<quantizer::UniformLevels<4, Stochastic, Symmetric, MaxAbs>>(7);
  check_max_scaled_omega<quantizer::QsgdLevels<4, MaxAbs>>(7);
  check_max_scaled_omega<quantizer::TernaryLevels<MaxAbs>>(1);
  CHECK(quantizer::TernaryLevels<MaxAbs>::omega(100) == doctest::Approx(4.5));
  using Coin = quantizer::UniformLevels<1, Stochastic, Symmetric, MaxAbs>;
  CHECK(square_error<Coin>(one_hot(100), words) ==
        doctest::Approx(Coin::omega(100) * square_norm(one_hot(100))));
  CHECK(moments<quantizer::NaturalPowers>(4.0F / 3, 4.0F / 3).error / square(4.0 / 3) ==
        doctest::Approx(0.125).epsilon(1e-3));
}

template <int Bits>
void check_min_max() {
  CAPTURE(Bits);
  using N = quantizer::MinMaxLevels<Bits, Nearest>;
  using R = quantizer::MinMaxLevels<Bits, Stochastic>;
  using S = typename N::Statistic;
  constexpr int last = (1 << Bits) - 1;
  const typename N::Scale scale{-0.5F, 0.25F};
  std::vector<double> book;
  for (int c = 0; c <= last; ++c) book.push_back(-0.5 + 0.25 * c);
  CHECK(book_of<N>(scale) == book);
  check_all<N>();
  check_all<R>();
  CHECK(N::tracks == (Bits >= 2));
  for (const Floats& x : {light(300, 4), heavy(300, 5)}) check_nearest<N>(x);
  for (const float part : {0.0F, 0.001F, 0.2F, 0.5F, 0.77F, 1.0F})
    check_mean<R>(-0.5F + 0.25F * part * static_cast<float>(last), scale, 0.25);

  // Constants come back exactly.
  for (const float x : {0.0F, -0.0F, 1.0F, -3.3F, 1e-20F, tiniest, 0x1p63F, -0x1p63F})
    for (const std::size_t n : {1U, 5U}) {
      const auto same = scale_of<S>(Floats(n, x));
      CHECK(N::value(N::code(x, same, 0), same) == x);
      CHECK(R::value(R::code(x, same, 65535), same) == x);
    }

  // An offset that is large beside the range: within half a step and the offset's own rounding.
  for (const float offset : {1e3F, -1e6F, 1e7F}) {
    Floats x = light(50, 6);
    for (float& value : x) value += offset;
    const auto given = scale_of<S>(x);
    for (const float value : x) {
      const double error = std::abs(read<N>(N::code(value, given, 0), given) - static_cast<double>(value));
      CHECK(error <= static_cast<double>(given.step) / 2 + std::abs(static_cast<double>(offset)) * 0x1p-23);
    }
  }
}

TEST_CASE("minimum and maximum") {
  check_min_max<1>();
  check_min_max<2>();
  check_min_max<4>();
  check_min_max<8>();
}

template <int Bits, class Norm>
void check_qsgd() {
  CAPTURE(Bits);
  using Q = quantizer::QsgdLevels<Bits, Norm>;
  constexpr int levels = (1 << (Bits - 1)) - 1;
  std::vector<double> book;
  for (int t = -levels; t <= levels; ++t) book.push_back(2.5 * t / levels);
  CHECK(close(book_of<Q>(2.5F), book));
  check_all<Q>();
  for (const float x : {2.5F, -2.5F, 2.3F, -0.7F, 0.0F, 1e-4F, -1.25F}) check_mean<Q>(x, 2.5F, 2.5 / levels);
  CHECK(Q::value(Q::code(-2.5F, 2.5F, 77), 2.5F) == -2.5F);
}

TEST_CASE("QSGD") {
  check_qsgd<2, EuclideanNorm>();
  check_qsgd<4, EuclideanNorm>();
  check_qsgd<8, EuclideanNorm>();
  check_qsgd<2, MaxAbs>();
  check_qsgd<4, MaxAbs>();
  check_qsgd<8, MaxAbs>();
  CHECK(quantizer::QsgdLevels<4, EuclideanNorm>::omega(512) == doctest::Approx(std::sqrt(512.0) / 7));
  CHECK(quantizer::QsgdLevels<8, EuclideanNorm>::omega(512) == doctest::Approx(512.0 / (127 * 127)));
  static_assert(!quantizer::QsgdLevels<8, EuclideanNorm>::tracks && quantizer::QsgdLevels<3, MaxAbs>::tracks);
  static_assert(!quantizer::QsgdLevels<2, MaxAbs>::tracks);
}

TEST_CASE("ternary") {
  using T = quantizer::TernaryLevels<MaxAbs>;
  using Clipped = quantizer::TernaryLevels<ClippedMaxAbs>;
  CHECK(book_of<T>(1.5F) == std::vector<double>{-1.5, 0, 1.5});
  check_all<T>();
  check_all<Clipped>();
  for (const float x : {1.5F, -1.5F, 0.2F, -1.0F, 0.0F, 1e-5F}) {
    check_mean<T>(x, 1.5F, 1.5);
    check_mean<Clipped>(x, 1.5F, 1.5);
  }
  CHECK(moments<Clipped>(-4.0F, 1.5F).mean == -1.5);
  static_assert(T::unbiased && !Clipped::unbiased && !T::tracks && !Clipped::tracks);
}

TEST_CASE("natural compression") {
  using Q = quantizer::NaturalPowers;
  check_all<Q>();
  for (const float scale : {1.0F, 1.3F, 2.0F, 3e-20F, 0x1p63F}) {
    const auto top = static_cast<int>(std::ceil(std::log2(static_cast<double>(scale))));
    std::vector<double> book{0};
    for (int j = 0; j < 127; ++j)
      if (top - j >= -149) {
        book.push_back(std::ldexp(1.0, top - j));
        book.push_back(-book.back());
      }
    std::sort(book.begin(), book.end());
    CHECK(book_of<Q>(scale) == book);
  }
  for (const float x : {3.0F, -2.9F, 2.0F, 0.7F, -1e-3F, 1.0001F, 1.9999F, 1e-10F})
    check_mean<Q>(x, 3.0F, std::exp2(std::floor(std::log2(static_cast<double>(std::abs(x))))));
  // Below the least power, P / 2^126, between 0 and it; P is 2^63 here.
  for (const float part : {0.3F, 0.99F, -0.5F, 0.001F}) check_mean<Q>(part * 0x1p-63F, 0x1p63F, 0x1p-63);
  // Subnormal numbers under a subnormal scale.
  for (const int k : {1, 3, 100, 1000}) {
    const float x = static_cast<float>(k) * tiniest;
    check_mean<Q>(x, x, static_cast<double>(x));
  }
  // Beyond the scale, as an element that a mask hides may be.
  CHECK(Q::value(Q::code(1e30F, 1.0F, 65535), 1.0F) == 1);
  CHECK(Q::value(Q::code(-1e30F, 1.0F, 0), 1.0F) == -1);
  for (int k = -20; k <= 20; ++k)
    for (const std::uint32_t random : {0U, 65535U}) {
      const float x = std::ldexp(-1.0F, k);
      CHECK(Q::value(Q::code(x, 0x1.8p20F, random), 0x1.8p20F) == x);
    }
}

// ----------------------------------------------------------------------------------------------------- casts

/// Magnitudes of the format's finite codes, in order, from the definition.
template <class Format>
std::vector<double> format_values() {
  std::vector<double> values;
  for (int code = 0; code < 1 << (Format::exponent_bits + Format::mantissa_bits); ++code) {
    const int exponent = code >> Format::mantissa_bits;
    const double mantissa = std::ldexp(code & ((1 << Format::mantissa_bits) - 1), -Format::mantissa_bits);
    const double value = exponent == 0 ? std::ldexp(mantissa, 1 - Format::bias)
                                       : std::ldexp(1 + mantissa, exponent - Format::bias);
    if (value > static_cast<double>(Format::largest)) break;
    values.push_back(value);
  }
  return values;
}

template <class Format>
void check_cast(std::uint32_t last) {
  using Q = quantizer::CastTo<Format, Unscaled>;
  check_total<Q>();
  check_contraction<Q>();
  const std::vector<double> values = format_values<Format>();
  CHECK(values.size() == last + 1);
  CHECK(values.back() == static_cast<double>(Format::largest));
  constexpr std::uint32_t sign = 1U << (Q::bits - 1);
  index_t wrong = 0;
  for (std::uint32_t code = 0; code < sign; ++code) {
    const double value = values[std::min(code, last)];
    wrong += read<Q>(code, {}) != value || read<Q>(code | sign, {}) != -value;
    wrong += std::signbit(Q::value(code | sign, {})) != true;
    if (code <= last)
      for (const std::uint32_t both : {code, code | sign})
        wrong += Q::code(Q::value(both, {}), {}, 0) != both;
  }
  CHECK(wrong == 0);

  const auto check = [&](float x) {
    const double size = std::abs(static_cast<double>(x));
    const auto above = std::lower_bound(values.begin(), values.end(), size);
    std::uint32_t nearest = last;
    if (above != values.end()) {
      nearest = static_cast<std::uint32_t>(above - values.begin());
      if (nearest > 0) {
        const double up = values[nearest] - size, down = size - values[nearest - 1];
        // Of powers of two alone none is even: ties go up, but that with 0.
        const bool tie_down = Format::mantissa_bits > 0 ? nearest % 2 == 1 : nearest == 1;
        if (down < up || (down == up && tie_down)) --nearest;
      }
    }
    if (std::signbit(x)) nearest |= sign;
    wrong += Q::code(x, {}, 0) != nearest;
  };
  // Any bits within the range of inputs, the format's own range, and the halves between its numbers.
  for (index_t i = 0; i < 40000; ++i) {
    const std::uint64_t bits = random_bits(20, i);
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::abs(x) <= largest_finite) check(x);
    const double value = values[static_cast<std::size_t>(bits >> 32) % (values.size() - 1)];
    const double next = *std::upper_bound(values.begin(), values.end(), value);
    const auto tie = static_cast<float>((value + next) / 2);
    if (tie <= largest_finite)
      for (const float near : {tie, std::nextafter(tie, 0.0F), std::nextafter(tie, biggest), -tie})
        check(near);
  }
  CHECK(wrong == 0);
}

template <class Format>
void check_scaled_cast() {
  using Q = quantizer::CastTo<Format, MaxAbs>;
  check_all<Q>();
  const std::vector<double> values = format_values<Format>();
  for (const float most : {1.0F, 3e-7F, 123.0F, 0x1p63F}) {
    const double factor = static_cast<double>(most) / static_cast<double>(Format::largest);
    for (std::size_t c = 0; c < values.size(); c += 1 + values.size() / 300)
      CHECK(close(read<Q>(static_cast<std::uint32_t>(c), most), values[c] * factor));
    Floats x = heavy(200, 30);
    for (float& value : x) value *= most / 1e4F;
    x[7] = -most;
    if constexpr (Q::bits == 8) check_nearest<Q>(x);
    CHECK(close(read<Q>(Q::code(-most, most, 0), most), -static_cast<double>(most)));
  }
}

TEST_CASE("casts round to the nearest number, ties to even, and saturate") {
  check_cast<bf16>(0x7F7F);
  check_cast<fp16>(0x7BFF);
  check_cast<e4m3>(0x7E);
  check_cast<e5m2>(0x7B);
  check_cast<e3m0>(0x7);
  CHECK(quantizer::CastTo<e4m3, Unscaled>::code(1e9F, {}, 0) == 0x7E);
  CHECK(quantizer::CastTo<e5m2, Unscaled>::code(-1e9F, {}, 0) == 0xFB);
}

TEST_CASE("scaled casts use the format's range") {
  check_scaled_cast<fp16>();
  check_scaled_cast<e4m3>();
  check_scaled_cast<e5m2>();
  check_scaled_cast<e3m0>();
  static_assert(quantizer::CastTo<bf16, Unscaled>::contractive &&
                !quantizer::CastTo<fp16, Unscaled>::contractive);
  CHECK(largest_residual<quantizer::CastTo<fp16, Unscaled>>(1000) < 20);
  CHECK(largest_residual<quantizer::CastTo<e4m3, Unscaled>>(1000) < 20);
}

// ----------------------------------------------------------------------------------------------------- signs

TEST_CASE("signs") {
  check_all<quantizer::SignBit<MeanAbs>>();
  check_all<quantizer::SignBit<RootMeanSquare>>();
  check_all<quantizer::TwoMeanBit>();
  check_all<quantizer::UnitSignBit>();
  check_all<quantizer::SignAndMagnitude>();
  static_assert(!quantizer::SignBit<RootMeanSquare>::contractive &&
                quantizer::SignBit<RootMeanSquare>::tracks);
  static_assert(quantizer::SignBit<MeanAbs>::contractive && !quantizer::SignBit<MaxAbs>::tracks &&
                !quantizer::UnitSignBit::tracks);
  for (const index_t n : {1, 2, 100}) {
    const Floats x = one_hot(n);
    CHECK(square_error<quantizer::SignBit<MeanAbs>>(x, 1) ==
          doctest::Approx((1 - quantizer::SignBit<MeanAbs>::delta(n)) * square_norm(x)));
  }
  const TwoMeans::Scale means{-2, 3};
  CHECK(quantizer::TwoMeanBit::value(quantizer::TwoMeanBit::code(-0.1F, means, 0), means) == -2);
  CHECK(quantizer::TwoMeanBit::value(quantizer::TwoMeanBit::code(0.1F, means, 0), means) == 3);
  CHECK(quantizer::TwoMeanBit::code(0.0F, means, 0) == 1);
  CHECK(quantizer::TwoMeanBit::code(-0.0F, means, 0) == 1);
  CHECK(quantizer::UnitSignBit::value(quantizer::UnitSignBit::code(-5.0F, {}, 0), {}) == -1);
  CHECK(quantizer::UnitSignBit::value(quantizer::UnitSignBit::code(-0.0F, {}, 0), {}) == 1);
}

TEST_CASE("two magnitudes are the best two for exponential tails, and better than one for others'") {
  const auto error = [](const Floats& x) {
    return std::pair(square_error<quantizer::SignBit<MeanAbs>>(x, 1),
                     square_error<quantizer::SignAndMagnitude>(x, 1));
  };
  // Magnitudes from 7 on.
  Floats tail;
  for (index_t i = 0; i < 20000; ++i) {
    const double u = (static_cast<double>(i) + 0.5) / 20000;
    tail.push_back(static_cast<float>((i % 2 == 0 ? 1 : -1) * (7 - std::log(u))));
  }
  check_nearest<quantizer::SignAndMagnitude>(tail);
  const auto [one, two] = error(tail);
  CHECK(two / one == doctest::Approx(0.3524).epsilon(0.005));
  // Of all pairs of levels none is better by more than a hundredth.
  double best = one;
  for (double low = 7; low < 9; low += 0.05)
    for (double high = low; high < 13; high += 0.05) {
      double sum = 0;
      for (const float x : tail) {
        const double size = std::abs(static_cast<double>(x));
        sum += std::min((size - low) * (size - low), (size - high) * (size - high));
      }
      best = std::min(best, sum);
    }
  CHECK(two <= 1.01 * best);
  Floats even;
  for (index_t i = 0; i < 1000; ++i) even.push_back(uniform(1, i));
  CHECK(error(even).second < 0.7 * error(even).first);
}

TEST_CASE(
    "what values of few bits lose of the 64 largest of 4096: the figures of docs/compressors/sparse.md") {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  for (const bool heavy : {false, true}) {
    double squares = 0, two = 0, one = 0, even = 0;
    for (int tile = 0; tile < 400; ++tile) {
      Floats x;
      for (int i = 0; i < 4096; ++i) {
        double value = normal(random);
        if (heavy) {
          double sum = 0;
          for (int k = 0; k < 3; ++k) sum += std::pow(normal(random), 2);
          value /= std::sqrt(sum / 3);
        }
        x.push_back(static_cast<float>(value));
      }
      std::sort(x.begin(), x.end(), [](float a, float b) { return std::abs(a) > std::abs(b); });
      x.resize(64);
      // Each tile counts alike.
      const double norm = square_norm(x);
      squares += 1;
      two += square_error<quantizer::SignAndMagnitude>(x, 1) / norm;
      one += square_error<quantizer::SignBit<MeanAbs>>(x, 1) / norm;
      even += square_error<quantizer::UniformLevels<2, Nearest, Symmetric, MaxAbs>>(x, 1) / norm;
    }
    const auto error = [&](double sum) { return std::sqrt(sum / squares); };
    CHECK(error(two) == doctest::Approx(heavy ? 0.29 : 0.063).epsilon(0.04));
    CHECK(error(one) == doctest::Approx(heavy ? 0.44 : 0.110).epsilon(0.04));
    CHECK(error(even) == doctest::Approx(heavy ? 0.82 : 0.41).epsilon(0.04));
  }
}

// ------------------------------------------------------------------------------------- statistics and Packed

namespace {

/// What a unit's scale should be, in double.
struct Oracle {
  double n = 0, squares = 0, absolute = 0, largest = 0, low = 0, high = 0;
  double below = 0, below_count = 0, above = 0, above_count = 0;
  static constexpr double sums = 1e-4;  // what adding floats one by one may cost

  void add(float value) {
    const double x = static_cast<double>(value);
    low = n == 0 ? x : std::min(low, x);
    high = n == 0 ? x : std::max(high, x);
    n += 1;
    squares += x * x;
    absolute += std::abs(x);
    largest = std::max(largest, std::abs(x));
    (x < 0 ? below : above) += x;
    (x < 0 ? below_count : above_count) += 1;
  }
  double rms() const { return n > 0 ? std::sqrt(squares / n) : 0; }

  bool agrees(MaxAbs, float scale) const { return static_cast<double>(scale) == largest; }
  bool agrees(EuclideanNorm, float scale) const {
    return close(static_cast<double>(scale), std::sqrt(squares), sums);
  }
  bool agrees(TwoRootMeanSquares, float scale) const {
    return close(static_cast<double>(scale), 2 * rms(), sums);
  }
  bool agrees(ClippedMaxAbs, float scale) const {
    return close(static_cast<double>(scale), std::min(largest, 2.5 * rms()), sums);
  }
  template <int Bits>
  bool agrees(terse::detail::LowAndStep<Bits>, typename terse::detail::LowAndStep<Bits>::Scale scale) const {
    return static_cast<double>(scale.low) == low &&
           close(static_cast<double>(scale.step), (high - low) / ((1 << Bits) - 1));
  }
  bool agrees(MinAndMax, MinAndMax::Scale scale) const {
    return static_cast<double>(scale.low) == low && static_cast<double>(scale.high) == high;
  }
  bool agrees(TwoMeans, TwoMeans::Scale scale) const {
    return close(static_cast<double>(scale.low), below_count > 0 ? below / below_count : 0, sums) &&
           close(static_cast<double>(scale.high), above_count > 0 ? above / above_count : 0, sums);
  }
  bool agrees(TwoMagnitudes, TwoMagnitudes::Scale scale) const {
    const double mean = n > 0 ? absolute / n : 0;
    const double deviation = n > 0 ? std::sqrt(std::max(squares / n - mean * mean, 0.0)) : 0;
    const double off = 2e-6 * mean + sums * deviation;
    return std::abs(static_cast<double>(scale.low) - std::max(mean - 0.4063757 * deviation, 0.0)) <= off &&
           std::abs(static_cast<double>(scale.high) - (mean + 1.5936243 * deviation)) <= off;
  }
  bool agrees(Unscaled, Unscaled::Scale) const { return true; }
};

template <class S>
void check_statistic() {
  for (const Floats& x : vectors()) {
    Oracle oracle;
    for (const float value : x) oracle.add(value);
    CHECK(oracle.agrees(S{}, scale_of<S>(x)));
  }
  CHECK(Oracle{}.agrees(S{}, scale_of<S>({})));
  // What a mask hides stands as `initial`, which joins without a trace.
  for (const float x : {0.0F, 2.0F, -3.0F, 0x1p62F, -0x1p63F}) {
    std::array<float, at(S::width)> term, none;
    S::terms(x, *reinterpret_cast<float(*)[S::width]>(term.data()));
    none.fill(S::initial);
    auto before = term, after = none;
    terse::detail::join_terms<S>(before.data(), 1, none.data(), 1);
    terse::detail::join_terms<S>(after.data(), 1, term.data(), 1);
    CHECK(before == term);
    CHECK(after == term);
  }
}

struct Read {
  const float* from;
  Residual::View feedback;
  Sample operator()(const Piece&, index_t i, bool) const {
    const float y = feedback.compensate(i, from[i]);
    feedback.store(i, y);
    return {y, 0};
  }
};

struct Take {
  float* to;
  void operator()(const Piece&, index_t i, bool, float sum) const { to[i] = sum; }
};

/// Reads an arena, and says nothing of streams.
struct Unnamed {
  const float* values;
  TERSE_HD float operator()(const Piece&, index_t i) const { return values[i]; }
};

/// The scale of one unit, by an executor.
template <class S, class E, class Values>
typename S::Scale measured(const Floats& x, Units units) {
  const Range range({{0, 0, static_cast<index_t>(x.size())}});
  buffer<float, typename E::memory> values(aligned(static_cast<index_t>(x.size()))),
      scratch(reduction_scratch<S>(E{}, range, units), uninitialized);
  buffer<typename S::Scale, typename E::memory> scale(1);
  buffer<std::uint32_t, typename E::memory> bad(1);
  upload(view<const float>(x), values.all().part(0, static_cast<index_t>(x.size())));
  reduce<S>(E{}, range, units, Mask<typename E::memory>{}, NoPackets{},
            terse::detail::AsSample<Values>{{values.data()}}, scratch.all(), scale.all(), bad.data());
  typename S::Scale result;
  fetch(E{}, in<E, typename S::Scale>(scale.all()), view<typename S::Scale>(&result, 1));
  return result;
}

/// A packet's scales, codes and residual, element by element, against Q called alone.
template <class C>
void check_packed() {
  using E = executor::host;
  using Q = typename C::Quantizer;
  using S = typename C::Statistic;
  constexpr bool unscaled = std::is_empty_v<typename S::Scale>;
  const C compressor;
  for (const bool masked : {false, true}) {
    const Range range({{0, 0, 1000}, {1, 1024, 1}, {2, 1152, 64}, {3, 1216, 5000}});
    const index_t arena = range.end_offset();
    const Floats message = heavy(arena, 40), before = light(arena, 41);
    std::vector<std::uint64_t> bits;
    for (index_t w = 0; w < arena / 64; ++w)
      bits.push_back(masked && w % 3 == 0 ? random_bits(42, w) : ~0ULL);
    const HostMask mask{masked ? bits.data() : nullptr};
    Floats error = before;
    const Residual::View feedback{{error.data(), 0}};

    typename C::template Workspace<E> workspace(E{}, compressor, range);
    std::vector<std::uint64_t> wire(at((compressor.wire_bytes(range) + 7) / 8), ~0ULL);
    auto* section = reinterpret_cast<std::byte*>(wire.data());
    const EncodeContext context{3, Draw::local(1, 0, 3, Purpose::quantization),
                                Draw::shared(1, 3, Purpose::selection)};
    std::uint32_t bad = 0;
    if constexpr (C::measured) {
      compressor.measure(E{}, workspace, range, mask, NoPackets{}, Read{message.data(), feedback}, &bad);
      compressor.encode(E{}, workspace, range, mask, feedback, 0, context, section);
    } else {
      compressor.measure_and_encode(E{}, workspace, range, mask, NoPackets{}, Read{message.data(), feedback},
                                    feedback, context, section, &bad);
    }
    CHECK(bad == 0);
    CHECK(compressor.fault(range, section, compressor.wire_bytes(range)) == nullptr);
    Floats decoded(at(arena), -1.0F);
    const auto source = compressor.source(range, section, 1.0F, context.shared);
    for_each(E{}, range, HostMask{}, compressor.incoming(&source, 1), Take{decoded.data()});

    index_t scales = 0, codes = 0, wrong = 0;
    const Units units = C::units();
    std::vector<Oracle> oracles(at(units.in_range(range)));
    std::vector<typename S::Scale> given(oracles.size());
    if constexpr (!unscaled) std::memcpy(given.data(), section, given.size() * sizeof(typename S::Scale));
    for (const bool second : {false, true}) {
      std::size_t unit = 0;
      for (const Piece& piece : range.pieces()) {
        for (index_t i = 0; i < piece.count; ++i) {
          if (!units.whole && units.size > 0 && i > 0 && i % units.size == 0) ++unit;
          const index_t place = piece.offset + i;
          const bool keep = (bits[at(place / 64)] >> (place % 64) & 1) != 0;
          const float y = message[at(place)] + before[at(place)];
          if (!second) {
            if (keep) oracles[unit].add(y);
            continue;
          }
          std::array<std::uint16_t, 8> random;
          const auto words_of_eight = context.local.block(static_cast<std::uint64_t>(place / 8));
          std::memcpy(random.data(), words_of_eight.data(), sizeof random);
          const std::uint32_t code =
              Q::code(y, given[unit], Q::stochastic ? random[at(place % 8)] : std::uint32_t{0});
          const float value = Q::value(code, given[unit]);
          wrong += decoded[at(place)] != value;
          wrong += error[at(place)] != (keep ? y - value : 0.0F);
        }
        if (!second) codes += code_bytes<Q::bits>(piece.count);
        if (!units.whole) ++unit;
      }
    }
    CHECK(wrong == 0);
    for (std::size_t u = 0; u < oracles.size(); ++u) CHECK(oracles[u].agrees(S{}, given[u]));
    if constexpr (!unscaled)
      scales = static_cast<index_t>(given.size() * sizeof(typename S::Scale) + 7) / 8 * 8;
    CHECK(compressor.wire_bytes(range) == scales + codes);
  }
}

}  // namespace

TEST_CASE("statistics") {
  check_statistic<MaxAbs>();
  check_statistic<EuclideanNorm>();
  check_statistic<TwoRootMeanSquares>();
  check_statistic<ClippedMaxAbs>();
  check_statistic<MinAndMax>();
  check_statistic<TwoMeans>();
  check_statistic<TwoMagnitudes>();
  check_statistic<Unscaled>();
}

TEST_CASE("two magnitudes keep the deviation of what is nearly equal, the same on a device") {
  using E = executor::host;
  using Device = executor::emulated;
  // Of one block, of few, and of so many that other kernels join them.
  for (const index_t n : {64, 300, 9000, 900000})
    for (const double spread : {1e-2, 1e-3, 1e-4, 1e-5}) {
      CAPTURE(n);
      CAPTURE(spread);
      Floats x = light(n, 17);
      double mean = 0, square = 0;
      for (float& one : x) {
        one = static_cast<float>(1.3 + spread * static_cast<double>(one)) * (one < 0 ? -1.0F : 1.0F);
        mean += std::abs(static_cast<double>(one)) / static_cast<double>(n);
      }
      for (const float one : x) square += std::pow(std::abs(static_cast<double>(one)) - mean, 2);
      const double deviation = std::sqrt(square / static_cast<double>(n));
      const auto scale = measured<TwoMagnitudes, E, terse::detail::Stored>(x, {});
      // Two roundings of numbers near 1.
      CHECK(std::abs(static_cast<double>(scale.low) - (mean - 0.4063757 * deviation)) < 3e-7);
      CHECK(std::abs(static_cast<double>(scale.high) - (mean + 1.5936243 * deviation)) < 3e-7);
      CHECK(scale == measured<TwoMagnitudes, Device, terse::detail::Stored>(x, {}));
      CHECK(scale == measured<TwoMagnitudes, Device, Unnamed>(x, {}));
      CHECK(measured<TwoMagnitudes, E, Unnamed>(x, {0, true}) ==
            measured<TwoMagnitudes, Device, Unnamed>(x, {0, true}));
    }
}

TEST_CASE("through Packed: signs") {
  check_packed<TwoMeanSign<>>();
  check_packed<UnitSign>();
}
TEST_CASE("through Packed: uniform") {
  check_packed<Uniform<4, Nearest, Asymmetric, TwoRootMeanSquares, PerBlock<128>>>();
  check_packed<Uniform<3, Stochastic, Symmetric>>();
}
TEST_CASE("through Packed: minimum and maximum") { check_packed<MinMax<5, Nearest, Whole>>(); }
TEST_CASE("through Packed: QSGD") { check_packed<Qsgd<4>>(); }
TEST_CASE("through Packed: ternary") { check_packed<Ternary<ClippedMaxAbs>>(); }
TEST_CASE("through Packed: natural") { check_packed<Natural<PerBlock<64>>>(); }
TEST_CASE("through Packed: casts") {
  check_packed<Cast<fp16, MaxAbs>>();
  check_packed<Cast<e4m3>>();
}
