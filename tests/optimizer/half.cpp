// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <vector>

#include <unistd.h>

#include "optimizer/support.hpp"
#include "terse/checkpoint/checkpoint.hpp"
#include "terse/core/half.hpp"

// 16-bit parameters and gradients over fp32 masters.

namespace {

using namespace terse;
using namespace terse::test;

/// The nearest of the format's numbers by a search through all of them, in double.
template <class H>
std::vector<std::pair<double, std::uint16_t>> all_of() {
  std::vector<std::pair<double, std::uint16_t>> all;
  for (std::uint32_t bits = 0; bits < 0x8000; ++bits) {
    const std::uint32_t exponent = bits >> H::mantissa_bits, mantissa = bits & ((1U << H::mantissa_bits) - 1);
    if (exponent == (1U << H::exponent_bits) - 1) break;
    const double value = exponent == 0 ? std::ldexp(mantissa, 1 - H::bias - H::mantissa_bits)
                                       : std::ldexp(mantissa + (1U << H::mantissa_bits),
                                                    static_cast<int>(exponent) - H::bias - H::mantissa_bits);
    all.emplace_back(value, static_cast<std::uint16_t>(bits));
  }
  return all;
}

template <class H>
void check_format() {
  const auto all = all_of<H>();
  CHECK(all.back().first == static_cast<double>(H::largest));
  index_t wrong = 0;
  const auto expect = [&](double x, std::uint16_t bits) {
    const auto narrow = static_cast<float>(x);
    if (static_cast<double>(narrow) != x) return;  // not a float
    wrong += narrowed<H>(narrow).bits != bits;
    wrong += narrowed<H>(-narrow).bits != (bits | 0x8000);
  };
  for (std::size_t k = 0; k < all.size(); ++k) {
    wrong += static_cast<double>(widened(H{all[k].second})) != all[k].first;
    wrong +=
        static_cast<double>(widened(H{static_cast<std::uint16_t>(all[k].second | 0x8000)})) != -all[k].first;
    expect(all[k].first, all[k].second);
    if (k + 1 == all.size()) break;
    // Halfway goes to the even neighbour, and a little to either side to the nearest.
    const double middle = (all[k].first + all[k + 1].first) / 2,
                 little = (all[k + 1].first - all[k].first) / 256;
    expect(middle, k % 2 == 0 ? all[k].second : all[k + 1].second);
    expect(middle - little, all[k].second);
    expect(middle + little, all[k + 1].second);
  }
  CHECK(wrong == 0);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  CHECK(std::isnan(widened(narrowed<H>(std::numeric_limits<float>::quiet_NaN()))));
  CHECK(widened(narrowed<H>(infinity)) == infinity);
  CHECK(widened(narrowed<H>(-infinity)) == -infinity);
  CHECK(widened(narrowed<H>(std::numeric_limits<float>::max())) == infinity);
  CHECK(std::signbit(widened(narrowed<H>(-0.0F))));
}

template <class H>
std::vector<H> narrow(const Floats& values) {
  std::vector<H> result;
  for (const float value : values) result.push_back(narrowed<H>(value));
  return result;
}
template <class H>
Floats widen(const std::vector<H>& values) {
  Floats result;
  for (const H value : values) result.push_back(widened(value));
  return result;
}

Layout layers() {
  Layout layout;
  layout.add({"a", {65, 63}});
  layout.add({"b", {7}, 0.5F, 0, false});
  layout.add({"c", {4097}});
  return layout;
}

/// A model in 16 bits must move exactly as one in fp32 that starts from the same values and is given the same
/// gradients, seen through rounding.
template <class H, class R>
void check_masters(const R& recipe) {
  const Layout layout = layers();
  ThreadGroup(2, std::chrono::seconds(30)).run([&](Threads& transport) {
    Optimizer narrow_one{recipe, transport, layout, {}, executor::host{}, Numbers<H>{}};
    Optimizer mixed{recipe, transport, layout, {}, executor::host{}, Numbers<float, H>{}};
    Optimizer wide{recipe, transport, layout};
    std::vector<H> x = narrow<H>(start(layout));
    Floats y = widen(x), z = y;
    for (std::uint64_t step = 1; step <= 8; ++step) {
      const std::vector<H> g = narrow<H>(gradient(layout, transport.rank(), step, 1));
      const float scale = step % 2 == 0 ? 0.25F : 1.0F;
      narrow_one.step(x, g, scale);
      mixed.step(y, g, scale);
      wide.step(z, widen(g), scale);
      REQUIRE(y == z);
      for (const Segment& segment : layout.segments())
        for (index_t i = segment.offset; i < segment.offset + segment.count; ++i)
          REQUIRE(x[at(i)] == narrowed<H>(z[at(i)]));
    }
  });
}

}  // namespace

TEST_CASE("bf16 and fp16 are rounded to nearest, ties to even") {
  check_format<bf16>();
  check_format<fp16>();
}

TEST_CASE("16-bit parameters follow fp32 masters") {
  check_masters<bf16>(Adam<>{.weight_decay = 0.01F});
  check_masters<fp16>(OneBitAdam<>{.preconditioner = {.freeze = AtStep{3}}});
  check_masters<bf16>(ErrorFeedbackSgd<ScaledSign<MeanAbs>, LocalMomentumBefore>{.warmup_steps = 2});
}

TEST_CASE("a step too small for 16 bits is not lost") {
  const Layout layout = Layout::flat(64);
  ThreadGroup(1).run([&](Threads& transport) {
    Optimizer optimizer{MomentumSgd<>{.learning_rate = 1, .momentum_correction = {.momentum = 0}},
                        transport,
                        layout,
                        {},
                        executor::host{},
                        Numbers<bf16>{}};
    std::vector<bf16> x(64, narrowed<bf16>(1)), g(64, narrowed<bf16>(0x1p-12F));
    for (int step = 0; step < 64; ++step) optimizer.step(x, g);
    CHECK(widened(x[0]) == 1 - 0x1p-6F);  // bf16 alone would have stayed at 1
  });
}

TEST_CASE("an overflow of 16-bit gradients is noticed") {
  const Layout layout = Layout::flat(64);
  ThreadGroup(1).run([&](Threads& transport) {
    Optimizer optimizer{Adam<>{}, transport, layout, {}, executor::host{}, Numbers<fp16>{}};
    std::vector<fp16> x(64), g(64, narrowed<fp16>(1e6F));
    CHECK_THROWS_AS(optimizer.step(x, g, 0x1p-10F), non_finite_error);
  });
}

TEST_CASE("a checkpoint keeps masters and 16-bit parameters") {
  const Layout layout = layers();
  const auto file = std::filesystem::temp_directory_path() / ("terse_half_" + std::to_string(::getpid()));
  ThreadGroup(1).run([&](Threads& transport) {
    const auto make = [&] {
      return std::make_unique<Optimizer<Adam<>, Threads, executor::host, Numbers<bf16>>>(Adam<>{}, transport,
                                                                                         layout);
    };
    auto first = make();
    std::vector<bf16> x = narrow<bf16>(start(layout)), y(x.size());
    for (std::uint64_t step = 1; step <= 3; ++step)
      first->step(x, narrow<bf16>(gradient(layout, 0, step, 1)));
    checkpoint::save(file, *first, x);
    auto second = make();
    checkpoint::load(file, *second, y);
    for (std::uint64_t step = 4; step <= 6; ++step) {
      const std::vector<bf16> g = narrow<bf16>(gradient(layout, 0, step, 1));
      first->step(x, g);
      second->step(y, g);
    }
    CHECK(checkpoint::parameters_hash(layout, view<const bf16>(x)) ==
          checkpoint::parameters_hash(layout, view<const bf16>(y)));
    Optimizer wide{Adam<>{}, transport, layout};
    Floats z(at(layout.size()));
    CHECK_THROWS_AS(checkpoint::load(file, wide, z), checkpoint_error);
  });
  std::filesystem::remove(file);
}
