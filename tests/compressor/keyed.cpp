// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "terse/compressor/lattice.hpp"
#include "terse/compressor/moniqua.hpp"

// Keyed compressors against oracles in long double: coordinates and wire, the bound from both sides, checksums.

namespace {

using namespace terse;  // NOLINT: a test of the library's names

using Floats = std::vector<float>;
using real = long double;

constexpr float nan_ = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float biggest = std::numeric_limits<float>::max();

constexpr std::size_t at(index_t i) { return static_cast<std::size_t>(i); }
std::uint64_t random_bits(std::uint64_t seed, index_t i) {
  return Draw::shared(11, seed, Purpose::user).bits(static_cast<std::uint64_t>(i));
}
/// Uniform in (-1, 1).
real uniform(std::uint64_t seed, index_t i) {
  return (static_cast<real>(random_bits(seed, i) >> 11) + 0.5L) * 0x1p-52L - 1;
}
EncodeContext context(std::uint64_t step, int rank = 0) {
  return {step, Draw::local(3, rank, step, Purpose::quantization), Draw::shared(3, step, Purpose::selection)};
}

struct Fetch {
  const float* from;
  float operator()(const Piece&, index_t i) const { return from[i]; }
};
struct Store {
  float* to;
  void operator()(const Piece&, index_t i, float value) const { to[i] = value; }
};

template <class C>
std::vector<std::byte> encode(C compressor, const Range& range, const Floats& x, std::uint32_t& bad,
                              std::uint64_t step = 1) {
  // Sections lie at multiples of 8 bytes; what comes after must stay as it is.
  const auto bytes = at(compressor.wire_bytes(range));
  buffer<std::byte> section(static_cast<index_t>(bytes) + 8);
  for (std::size_t b = 0; b < 8; ++b) section.data()[bytes + b] = std::byte{0x5A};
  compressor.encode(executor::host{}, range, Fetch{x.data()}, context(step), section.data(), bad);
  for (std::size_t b = 0; b < 8; ++b) CHECK(section.data()[bytes + b] == std::byte{0x5A});
  return {section.data(), section.data() + bytes};
}
template <class C>
std::vector<std::byte> encode(C compressor, const Range& range, const Floats& x) {
  std::uint32_t bad = 0;
  auto section = encode(compressor, range, x, bad);
  CHECK(bad == 0);
  return section;
}
template <class C>
bool verify(C compressor, const Range& range, const std::vector<std::byte>& section, const Floats& key) {
  return compressor.verify(executor::host{}, range, section.data(), Fetch{key.data()});
}
constexpr float untouched = -7777;
template <class C>
Floats decode(C compressor, const Range& range, const std::vector<std::byte>& section, const Floats& key,
              bool& right) {
  Floats y(key.size(), untouched);
  right = compressor.decode(executor::host{}, range, section.data(), Fetch{key.data()}, Store{y.data()});
  return y;
}

template <int Bits, class R>
real step_of(Lattice<Bits, R> c) {
  return static_cast<real>(c.step);
}
template <int Bits, class R>
real step_of(Moniqua<Bits, R> c) {
  return static_cast<real>(c.step());
}
template <int Bits, class R>
real bound_of(Lattice<Bits, R> c) {
  return static_cast<real>(c.bound());
}
template <int Bits, class R>
real bound_of(Moniqua<Bits, R> c) {
  return static_cast<real>(c.bound);
}

/// f(compressor, Bits) for all bits and roundings. Moniqua is the same grid with a step of its own.
template <int Bits, class F>
void with_bits(F f) {
  CAPTURE(Bits);
  f(Lattice<Bits>{.step = 0.037F}, Bits);
  if constexpr (Bits >= 2) f(Lattice<Bits, Stochastic>{.step = 0.037F}, Bits);
  if constexpr (Bits == 3) f(Moniqua<Bits, Stochastic>{.bound = 1.3F}, Bits);
  if constexpr (Bits == 8) f(Moniqua<Bits>{.bound = 1.3F}, Bits);
}
template <class F>
void with_all(F f) {
  with_bits<1>(f);
  with_bits<2>(f);
  with_bits<3>(f);
  with_bits<4>(f);
  with_bits<5>(f);
  with_bits<6>(f);
  with_bits<7>(f);
  with_bits<8>(f);
  with_bits<16>(f);
}

Layout layout_of(const std::vector<index_t>& sizes) {
  Layout layout;
  for (std::size_t k = 0; k < sizes.size(); ++k) layout.add({"s" + std::to_string(k), {sizes[k]}});
  return layout;
}
const std::vector<std::vector<index_t>> shapes{
    {}, {1}, {63}, {64}, {65}, {4095}, {4096}, {4097}, {8192}, {1, 1}, {65, 4097, 3}, {4096, 63, 4160, 1}};

/// The code of a piece's element as the wire says, by hand.
std::uint32_t code_on_wire(const std::byte* piece, int bits, index_t i) {
  if (bits >= 8) {
    std::uint32_t code = 0;
    std::memcpy(&code, piece + i * (bits / 8), static_cast<std::size_t>(bits / 8));
    return code;
  }
  std::uint32_t code = 0;
  for (int b = 0; b < bits; ++b) {
    const index_t byte = i / 64 * 8 * bits + 8 * b + i % 64 / 8;
    code |= ((std::to_integer<std::uint32_t>(piece[byte]) >> (i % 8)) & 1U) << b;
  }
  return code;
}

std::uint64_t weight(std::uint64_t i) {
  i = (i + 1) * 0x9E3779B97F4A7C15;
  i = (i ^ (i >> 30)) * 0xBF58476D1CE4E5B9;
  i = (i ^ (i >> 27)) * 0x94D049BB133111EB;
  return (i ^ (i >> 31)) | 1;
}

}  // namespace

TEST_CASE("traits and parameters") {
  static_assert(check_compressor<Lattice<4>>() && check_compressor<Moniqua<16, Stochastic>>());
  static_assert(Traits<Lattice<4>>::keyed && Traits<Moniqua<4>>::keyed);
  static_assert(!Lattice<8>::unbiased && Lattice<8, Stochastic>::unbiased);
  static_assert(!Moniqua<8>::unbiased && Moniqua<8, Stochastic>::unbiased);
  static_assert(!Traits<Lattice<8>>::contractive && !Lattice<8>::lossless);
  for (const float wrong : {0.0F, -1.0F, nan_, infinity, 0x1.1p63F}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(Lattice<4>{.step = wrong}.check(), usage_error);
    CHECK_THROWS_AS(Moniqua<4>{.bound = wrong}.check(), usage_error);
  }
  for (const float good : {1e-45F, 1e-3F, 0x1p63F}) {
    CHECK_NOTHROW(Lattice<4>{.step = good}.check());
    CHECK_NOTHROW(Moniqua<4>{.bound = good}.check());
  }
  std::string seen;
  const auto visit = [&](const char* name, double value) {
    seen += std::string(name) + "=" + std::to_string(value) + ";";
  };
  Lattice<4>{.step = 0.5F}.settings(visit);
  Moniqua<4>{.bound = 0.25F}.settings(visit);
  CHECK(seen == "step=0.500000;bound=0.250000;");
  CHECK(Lattice<8>{.step = 2}.bound() == 255);
  CHECK(Lattice<8, Stochastic>{.step = 2}.bound() == 254);
  CHECK(Moniqua<2>{.bound = 3}.step() == doctest::Approx(2).epsilon(1e-5));
  CHECK(Moniqua<2, Stochastic>{.bound = 3}.step() == doctest::Approx(3).epsilon(1e-5));
}

TEST_CASE("wire: sizes, codes and checksums are as documented") {
  with_all([](auto c, int bits) {
    const real s = step_of(c);
    for (const auto& sizes : shapes) {
      const Layout layout = layout_of(sizes);
      const Range range = layout.range();
      index_t checks = 0, codes = 0;
      for (const index_t n : sizes) {
        checks += 8 * ((n + 4095) / 4096);
        codes += bits < 8 ? (n + 63) / 64 * 8 * bits : (n * bits + 63) / 64 * 8;
      }
      REQUIRE(c.wire_bytes(range) == checks + codes);
      Floats x(at(layout.size()), nan_);  // padding is never read
      for (const Piece& piece : range.pieces())
        for (index_t i = 0; i < piece.count; ++i)
          x[at(piece.offset + i)] = static_cast<float>(uniform(1, i) * 3000 * s);
      const auto section = encode(c, range, x);

      const std::byte *check = section.data(), *wire = section.data() + checks;
      index_t wrong = 0;
      for (const Piece& piece : range.pieces()) {
        std::uint64_t sum = 0;
        for (index_t i = 0; i < piece.count; ++i) {
          // Of the two coordinates around x that of the code; the nearest one where that is what is asked.
          const auto code = static_cast<std::int64_t>(code_on_wire(wire, bits, i));
          const real t = static_cast<real>(x[at(piece.offset + i)]) / s;
          auto z = static_cast<std::int64_t>(decltype(c)::unbiased ? std::floor(t) : std::nearbyint(t));
          const std::int64_t modulus = std::int64_t{1} << bits;
          if (decltype(c)::unbiased && (z & (modulus - 1)) != code) ++z;
          wrong += (z & (modulus - 1)) != code;
          const auto a = static_cast<std::uint64_t>(piece.offset + i);
          sum += weight(64 + a / 64) * weight(a % 64) * static_cast<std::uint64_t>(z);
          if (i % 4096 == 4095 || i + 1 == piece.count) {
            std::uint64_t sent;
            std::memcpy(&sent, check, 8);
            wrong += sent != sum;
            check += 8;
            sum = 0;
          }
        }
        wire += code_bytes<decltype(c)::Grid::bits>(piece.count);
      }
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("within the bound decoding is right, and never called wrong") {
  with_all([](auto c, int bits) {
    const real s = step_of(c), bound = bound_of(c), q = static_cast<real>(1 << bits);
    const real most = c.unbiased ? s : s / 2;
    for (const auto& sizes : shapes)
      // Offsets up to 10^6 times the modulus; there numbers of fp32 lie many steps apart.
      for (const real offset : {0.0L, 1.0L, 1000.0L, 1e6L}) {
        const Layout layout = layout_of(sizes);
        const Range range = layout.range();
        Floats x(at(layout.size()), nan_), key = x;
        for (const Piece& piece : range.pieces())
          for (index_t l = 0; l < piece.count; ++l) {
            const index_t i = piece.offset + l;
            x[at(i)] = static_cast<float>(uniform(2, i) * (offset * q + 3) * s);
            // At a step's border, and keys at the far edge.
            if (l % 3 == 0 && offset <= 1)
              x[at(i)] = static_cast<float>(
                  (std::floor(uniform(3, i) * 3 * q) + (l % 2 == 0 ? 0.4999L : 0.5001L)) * s);
            const real away = l % 5 < 3 ? uniform(4, i) : (l % 2 == 0 ? 0.99999L : -0.99999L);
            key[at(i)] = static_cast<float>(static_cast<real>(x[at(i)]) + away * bound);
            if (std::abs(static_cast<real>(key[at(i)]) - static_cast<real>(x[at(i)])) > 0.99999L * bound)
              key[at(i)] = static_cast<float>(static_cast<real>(x[at(i)]) + 0.999L * away * bound);
            if (std::abs(static_cast<real>(key[at(i)]) - static_cast<real>(x[at(i)])) > 0.99999L * bound)
              key[at(i)] = x[at(i)];
          }
        const auto section = encode(c, range, x);
        CHECK(verify(c, range, section, key));
        CHECK(verify(c, range, section, x));
        bool right = false, own = false;
        const Floats y = decode(c, range, section, key, right), self = decode(c, range, section, x, own);
        CHECK(right);
        CHECK(own);
        index_t far = 0, off = 0, touched = 0;
        std::vector<bool> in_piece(x.size());
        for (const Piece& piece : range.pieces())
          for (index_t i = piece.offset; i < piece.offset + piece.count; ++i) {
            in_piece[at(i)] = true;
            const real exact = static_cast<real>(x[at(i)]), got = static_cast<real>(y[at(i)]);
            far += !(std::abs(got - exact) <=
                     most * (1 + 0x1p-12L) + std::abs(exact) * 0x1p-23L);  // and the rounding to fp32
            off += got != static_cast<real>(
                              static_cast<float>(static_cast<double>(std::nearbyint(got / s) * s))) &&
                   offset <= 1;
          }
        for (std::size_t i = 0; i < y.size(); ++i) touched += !in_piece[i] && y[i] != untouched;
        CHECK(far == 0);
        CHECK(off == 0);
        CHECK(touched == 0);
        // Who sent it knows what readers make of it.
        CHECK(y == self);
      }
  });
}

TEST_CASE("beyond the bound every wrong cell is noticed, and only these") {
  index_t noticed = 0, harmless = 0, trials = 0;
  with_all([&](auto c, int bits) {
    const real s = step_of(c), bound = bound_of(c), q = static_cast<real>(1 << bits);
    const index_t n = 130;
    const Range range = Layout::flat(n).range();
    index_t missed = 0, alarms = 0;
    for (std::uint64_t trial = 0; trial < 200; ++trial)
      for (const real factor : {1.01L, 1.2L, 2.0L, 10.0L, 1e4L})
        for (const index_t outside : {index_t{1}, index_t{2}, n}) {
          Floats x(at(n)), key(at(n));
          for (index_t i = 0; i < n; ++i) {
            x[at(i)] = static_cast<float>(uniform(100 + trial, i) * 5 * q * s);
            const bool out = (i + static_cast<index_t>(trial)) % n < outside;
            const real away = out ? std::copysign(factor * bound, uniform(400 + trial, i))
                                  : 0.99L * bound * uniform(700 + trial, i);
            key[at(i)] = static_cast<float>(static_cast<real>(x[at(i)]) + away);
          }
          std::uint32_t bad = 0;
          const auto section = encode(c, range, x, bad, trial);
          bool right = false, own = false;
          const Floats y = decode(c, range, section, key, right), truth = decode(c, range, section, x, own);
          const bool equal = y == truth;
          ++trials;
          missed += right && !equal;
          alarms += !right && equal;
          (equal ? harmless : noticed) += 1;
          missed += verify(c, range, section, key) != right || !own;
        }
    CHECK(missed == 0);
    CHECK(alarms == 0);
  });
  // The test has something to say.
  CHECK(noticed > trials / 2);
  CHECK(harmless > 0);
}

TEST_CASE("regular patterns of wrong cells are noticed") {
  const Lattice<8> c{.step = 0x1p-6F};
  const float modulus = 4;
  const index_t n = 10000;
  const Range range = Layout::flat(n).range();
  Floats x(at(n));
  for (index_t i = 0; i < n; ++i) x[at(i)] = static_cast<float>(uniform(9, i));
  const auto section = encode(c, range, x);
  const auto notices = [&](auto cells) {
    Floats key = x;
    for (index_t i = 0; i < n; ++i) key[at(i)] += modulus * static_cast<float>(cells(i));
    return !verify(c, range, section, key);
  };
  CHECK(!notices([](index_t) { return 0; }));
  for (const float size : {1.0F, -1.0F, 2.0F, 64.0F, 4096.0F, 0x1p20F}) {
    CAPTURE(size);
    CHECK(notices([&](index_t) { return size; }));
    CHECK(notices([&](index_t i) { return i % 2 == 0 ? size : -size; }));
    // Sums over pairs, lanes and blocks that cancel.
    CHECK(notices([&](index_t i) { return i == 5 ? size : i == 6 ? -size : 0; }));
    CHECK(notices([&](index_t i) { return i == 5 ? size : i == 69 ? -size : 0; }));
    CHECK(notices([&](index_t i) { return i == 5 || i == 70 ? size : i == 6 || i == 69 ? -size : 0; }));
    CHECK(notices([&](index_t i) { return i == 5 || i == 7 ? size : i == 6 ? -2 * size : 0; }));
    for (const index_t one : {index_t{0}, index_t{63}, index_t{4095}, index_t{4096}, n - 1})
      CHECK(notices([&](index_t i) { return i == one ? size : 0; }));
  }
}

TEST_CASE("the largest distance itself is safe in Moniqua, and its formula is the page's") {
  const auto check = [](auto c, int bits) {
    const real q = static_cast<real>(1 << bits);
    const real d = c.unbiased ? 1 / q : 1 / (2 * q);
    const real theta = static_cast<real>(c.bound), b = 2 * theta / (1 - 2 * d);
    const index_t n = 5000;
    const Range range = Layout::flat(n).range();
    Floats x(at(n)), key(at(n));
    for (index_t i = 0; i < n; ++i) {
      x[at(i)] = static_cast<float>(std::floor(uniform(20, i) * 0x1p12L)) * 0x1p-8F;
      // Numbers with exact sums, so that the distance is theta.
      key[at(i)] = x[at(i)] + (i % 2 == 0 ? c.bound : -c.bound);
    }
    const auto section = encode(c, range, x);
    bool right = false;
    const Floats y = decode(c, range, section, key, right);
    CHECK(right);
    const std::byte* wire = section.data() + 16;
    index_t wrong = 0;
    real largest = 0;
    for (index_t i = 0; i < n; ++i) {
      const real own = static_cast<real>(key[at(i)]), got = static_cast<real>(y[at(i)]);
      largest = std::max(largest, std::abs(got - static_cast<real>(x[at(i)])));
      // y = (q_j B - x_i) mod B + x_i, mod centred.
      const real sent = static_cast<real>(code_on_wire(wire, bits, i)) / q;
      const real page = std::remainder(sent * b - own, b) + own;
      // Where the residue is at the rim the page's own B may round to the other side.
      if (std::abs(std::remainder(sent * b - own, b)) < b / 2 * 0.999L)
        wrong += !(std::abs(page - got) < 1e-4L);
    }
    CHECK(wrong == 0);
    CHECK(largest <= b * d * 1.00001L);
    CHECK(largest > b * d / 2);
  };
  check(Moniqua<1>{.bound = 0.75F}, 1);
  check(Moniqua<2>{.bound = 0.75F}, 2);
  check(Moniqua<4>{.bound = 0.75F}, 4);
  check(Moniqua<7>{.bound = 0.75F}, 7);
  check(Moniqua<8>{.bound = 2.0F}, 8);
  check(Moniqua<2, Stochastic>{.bound = 0.75F}, 2);
  check(Moniqua<6, Stochastic>{.bound = 0.75F}, 6);
}

TEST_CASE("Stochastic is unbiased, Nearest is not") {
  const index_t n = 200, draws = 4096;
  const Range range = Layout::flat(n).range();
  const auto mean_error = [&](auto c, bool whole) {
    const real s = step_of(c);
    Floats x(at(n));
    for (index_t i = 0; i < n; ++i)
      x[at(i)] = whole ? static_cast<float>(i - 100) * static_cast<float>(s)
                       : static_cast<float>((0.3L + static_cast<real>(i - 100)) * s);
    std::vector<real> sum(at(n), 0);
    real largest = 0;
    for (index_t k = 0; k < draws; ++k) {
      std::uint32_t bad = 0;
      bool right = false;
      const Floats y = decode(c, range, encode(c, range, x, bad, static_cast<std::uint64_t>(k)), x, right);
      REQUIRE(right);
      for (index_t i = 0; i < n; ++i) {
        const real e = (static_cast<real>(y[at(i)]) - static_cast<real>(x[at(i)])) / s;
        sum[at(i)] += e;
        largest = std::max(largest, std::abs(e));
      }
    }
    CHECK(largest < 1);
    real worst = 0;
    for (const real value : sum) worst = std::max(worst, std::abs(value / draws));
    return static_cast<double>(worst);
  };
  // The deviation of one draw is sqrt(0.21), that of the mean 0.0072.
  CHECK(mean_error(Lattice<4, Stochastic>{.step = 0.25F}, false) < 0.036);
  CHECK(mean_error(Moniqua<3, Stochastic>{.bound = 1.7F}, false) < 0.036);
  CHECK(mean_error(Lattice<4, Stochastic>{.step = 0.25F}, true) == 0);
  CHECK(mean_error(Lattice<4>{.step = 0.25F}, false) > 0.29);
}

TEST_CASE("mixing with decoded values on both sides keeps the mean") {
  // Numbers with exact sums: whatever the codes cost, what one gains the other loses.
  const auto check = [](auto c) {
    const index_t n = 5000;
    const Range range = Layout::flat(n).range();
    Floats x(at(n)), y(at(n));
    for (index_t i = 0; i < n; ++i) {
      x[at(i)] = static_cast<float>(std::floor(uniform(30, i) * 0x1p10L)) * 0x1p-10F;
      y[at(i)] = x[at(i)] + static_cast<float>(std::floor(uniform(31, i) * 0x1p8L)) * 0x1p-10F;
    }
    Floats mean(at(n));
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = x[i] + y[i];
    real before = 0, after = 0;
    for (std::size_t i = 0; i < mean.size(); ++i) before += std::abs(static_cast<real>(x[i] - y[i]));
    const auto from_x = encode(c, range, x), from_y = encode(c, range, y);
    REQUIRE(verify(c, range, from_x, y));
    REQUIRE(verify(c, range, from_y, x));
    const auto mixed = [&](const Floats& own, const auto& mine, const auto& theirs) {
      Floats result = own, self(at(n));
      CHECK(c.decode(executor::host{}, range, mine.data(), Fetch{own.data()}, Store{self.data()}));
      // In place: the keys are what is overwritten.
      struct Mix {
        float* x;
        const float* self;
        void operator()(const Piece&, index_t i, float value) const { x[i] += 0.5F * (value - self[i]); }
      };
      CHECK(c.decode(executor::host{}, range, theirs.data(), Fetch{result.data()},
                     Mix{result.data(), self.data()}));
      return result;
    };
    const Floats new_x = mixed(x, from_x, from_y), new_y = mixed(y, from_y, from_x);
    index_t lost = 0;
    for (std::size_t i = 0; i < mean.size(); ++i) {
      lost += new_x[i] + new_y[i] != mean[i];
      after += std::abs(static_cast<real>(new_x[i] - new_y[i]));
    }
    CHECK(lost == 0);
    CHECK(after < before / 2);
  };
  check(Lattice<4>{.step = 0x1p-4F});
  check(Lattice<8>{.step = 0x1p-8F});
  check(Lattice<8, Stochastic>{.step = 0x1p-8F});
}

TEST_CASE("what is not finite, or has no coordinate") {
  const Lattice<8> c{.step = 0.5F};
  const Range range = layout_of({70, 5000}).range();
  const index_t size = range.end_offset();
  for (const float wild : {nan_, -nan_, infinity, -infinity, biggest, -0x1p41F, 0x1.1p39F})
    for (const index_t i : {index_t{0}, index_t{69}, index_t{128}, index_t{5100}}) {
      CAPTURE(wild);
      Floats x(at(size), 1000.0F);
      x[at(i)] = wild;
      std::uint32_t bad = 0;
      const auto section = encode(c, range, x, bad);
      CHECK(bad == 1);
      // 0 was sent.
      Floats key(at(size), 1000.25F);
      key[at(i)] = 5;
      bool right = false;
      const Floats y = decode(c, range, section, key, right);
      CHECK(right);
      CHECK(y[at(i)] == 0);
      CHECK(y[at(i == 0 ? 1 : 0)] == 1000);
      // And a key of that kind is reported, whatever was sent, and harmless.
      for (const float was : {1000.0F, 0.0F}) {
        Floats sent(at(size), 1000.0F);
        sent[at(i)] = was;
        const auto fine = encode(c, range, sent);
        key = sent;
        CHECK(verify(c, range, fine, key));
        key[at(i)] = wild;
        CHECK(!verify(c, range, fine, key));
        const Floats from = decode(c, range, fine, key, right);
        CHECK(!right);
        CHECK(std::isfinite(from[at(i)]));
      }
    }
  // The largest coordinates, 2^40 steps; where that comes first, the largest floats.
  Floats x{0x1p39F, -0x1p39F};
  const Range two = Layout::flat(2).range();
  CHECK(verify(c, two, encode(c, two, x), x));
  const Lattice<4> coarse{.step = 0x1p60F};
  x = {0x1p63F, -0x1p63F};
  CHECK(verify(coarse, two, encode(coarse, two, x), x));
  bool right = false;
  CHECK(decode(coarse, two, encode(coarse, two, x), x, right) == x);
  for (const float above : {0x1.000002p63F, infinity}) {
    std::uint32_t bad = 0;
    encode(coarse, two, {above, 0}, bad);
    CHECK(bad == 1);
    CHECK(!verify(coarse, two, encode(coarse, two, {0x1p63F, 0}), {above, 0}));
  }
  // Steps of any size.
  for (const float step : {1e-45F, 1e-38F, 0x1p63F}) {
    std::uint32_t bad = 0;
    const Lattice<4> odd{.step = step};
    const auto section = encode(odd, two, {3 * std::min(step, 1.0F), 0x1p63F}, bad);
    CHECK(bad == (step < 1 ? 1U : 0U));
    for (const float value : decode(odd, two, section, {-0x1p63F, 0x1p63F}, right))
      CHECK(std::isfinite(value));
  }
}

TEST_CASE("zeros of both signs are zero") {
  with_all([](auto c, int) {
    const Range range = Layout::flat(2).range();
    const Floats x{0.0F, -0.0F};
    bool right = false;
    for (const Floats& key : {x, Floats{-0.0F, 0.0F}})
      for (const float value : decode(c, range, encode(c, range, x), key, right)) {
        CHECK(value == 0);
        CHECK(!std::signbit(value));
      }
    CHECK(right);
  });
}

TEST_CASE("arbitrary sections decode to finite numbers and are not believed") {
  with_all([](auto c, int) {
    const Range range = layout_of({65, 4097}).range();
    const Floats wild{0.0F, 1.0F, -1e5F, nan_, infinity, -biggest, 0x1p63F, -0x1p63F, 1e-40F};
    index_t unfinite = 0, believed = 0;
    for (std::uint64_t trial = 0; trial < 20; ++trial) {
      Floats key(at(range.end_offset()));
      for (std::size_t i = 0; i < key.size(); ++i)
        key[i] =
            trial % 2 == 0 ? wild[(i + trial) % wild.size()] : static_cast<float>(uniform(50 + trial, 3));
      std::vector<std::byte> section(at(c.wire_bytes(range)));
      for (std::size_t b = 0; b < section.size(); ++b)
        section[b] = static_cast<std::byte>(random_bits(80 + trial, static_cast<index_t>(b)) & 0xFF);
      bool right = true;
      for (const float value : decode(c, range, section, key, right)) unfinite += !std::isfinite(value);
      believed += right || verify(c, range, section, key);
    }
    CHECK(unfinite == 0);
    CHECK(believed == 0);
  });
}

TEST_CASE("a flipped bit is noticed, but in the padding") {
  with_all([](auto c, int bits) {
    const index_t n = 70;
    const Range range = Layout::flat(n).range();
    Floats x(at(n));
    for (index_t i = 0; i < n; ++i) x[at(i)] = static_cast<float>(uniform(60, i) * 10);
    auto section = encode(c, range, x);
    REQUIRE(verify(c, range, section, x));
    index_t wrong = 0, padding = 0;
    for (std::size_t b = 0; b < 8 * section.size(); ++b) {
      section[b / 8] ^= std::byte{1} << (b % 8);
      bool in_codes = b < 64;
      for (index_t i = 0; i < n && !in_codes; ++i) {
        const std::uint32_t now = code_on_wire(section.data() + 8, bits, i);
        section[b / 8] ^= std::byte{1} << (b % 8);
        in_codes = now != code_on_wire(section.data() + 8, bits, i);
        section[b / 8] ^= std::byte{1} << (b % 8);
      }
      wrong += verify(c, range, section, x) == in_codes;
      padding += !in_codes;
      section[b / 8] ^= std::byte{1} << (b % 8);
    }
    CHECK(wrong == 0);
    CHECK(padding == 8 * static_cast<index_t>(section.size()) - 64 - n * bits);
  });
}

TEST_CASE("encoding is a function of the message and, if stochastic, of the draw") {
  const Range range = layout_of({100, 5000}).range();
  Floats x(at(range.end_offset()));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(uniform(70, static_cast<index_t>(i)));
  std::uint32_t bad = 0;
  const Lattice<8, Stochastic> dithered{.step = 0.1F};
  const Lattice<8> nearest{.step = 0.1F};
  CHECK(encode(dithered, range, x, bad, 5) == encode(dithered, range, x, bad, 5));
  CHECK(encode(dithered, range, x, bad, 5) != encode(dithered, range, x, bad, 6));
  CHECK(encode(nearest, range, x, bad, 5) == encode(nearest, range, x, bad, 6));
  // Codes of a part are those of the whole, so that ranges may be cut.
  const auto whole = encode(dithered, range, x, bad, 5);
  const auto part = encode(dithered, Range({{0, 128, 128}}), x, bad, 5);
  CHECK(std::memcmp(part.data() + 8, whole.data() + 24 + 104, 128) == 0);
}

TEST_CASE("functors are told of pieces") {
  struct Scaled {
    const float* from;
    float factor = nan_;
    void enter(const Piece& piece) { factor = piece.segment == 0 ? 1.0F : 2.0F; }
    float operator()(const Piece&, index_t i) const { return factor * from[i]; }
  };
  struct Tagged {
    float* to;
    float tag = nan_;
    void enter(const Piece& piece) { tag = static_cast<float>(piece.offset); }
    void operator()(const Piece&, index_t i, float value) const { to[i] = value + tag; }
  };
  const Lattice<8> c{.step = 0.5F};
  const Range range = layout_of({3, 2}).range();
  const Floats x(at(range.end_offset()), 10.0F);
  std::vector<std::byte> section(at(c.wire_bytes(range)));
  std::uint32_t bad = 0;
  c.encode(executor::host{}, range, Scaled{x.data()}, context(1), section.data(), bad);
  Floats y(x.size());
  CHECK(c.decode(executor::host{}, range, section.data(), Scaled{x.data()}, Tagged{y.data()}));
  CHECK(y[2] == 10);
  CHECK(y[64] == 20 + 64);
}
