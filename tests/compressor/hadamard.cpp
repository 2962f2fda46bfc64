// SPDX-License-Identifier: Apache-2.0
#include "terse/compressor/hadamard.hpp"

#include <doctest/doctest.h>

#include <bit>

#include "optimizer/support.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/laws/check.hpp"
#include "terse/laws/device.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/topology/within.hpp"

// Quantizers in Hadamard's basis: the transform, the laws, heavy tails, and whole optimizers.

using namespace terse;
using namespace terse::test;

namespace {

constexpr int order = 32;
template <int Bits, class Rounding = Nearest>
using Int = Uniform<Bits, Rounding, Symmetric, MaxAbs, PerBlock<128>>;

Floats transformed(const Floats& x, float factor) {
  Floats y(x.size());
  const detail::HadamardGroups groups{x.data(), y.data(), static_cast<index_t>(x.size()), factor};
  for (index_t g = 0; g < groups.groups(static_cast<index_t>(x.size())); ++g) groups(g);
  return y;
}

/// Mean of (x - C(x))^2 over that of x^2.
template <class C>
double lost(const Floats& x) {
  Layout layout = Layout::flat(static_cast<index_t>(x.size()));
  const Plan plan(C{}, layout, layout.range(), 1, false);
  Codec<C, Residual, executor::host> codec({}, C{}, Residual{}, plan.whole);
  std::vector<std::byte> packet(at(plan.whole.bytes));
  const laws::detail::FromArena from{x.data()};
  const Draw draw = Draw::shared(1, 1, Purpose::quantization);
  codec.start(1);
  codec.measure(plan.whole, {}, EmptyInbox{}, Message{from, from});
  codec.encode(plan.whole, {}, EmptyInbox{}, Message{from, from}, {1, {draw}, {draw}}, true, packet.data());
  double error = 0, all = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(codec.feedback().load(static_cast<index_t>(i))), 2);
    all += std::pow(static_cast<double>(x[i]), 2);
  }
  return error / all;
}

}  // namespace

TEST_CASE("the transform is Hadamard's matrix, and twice it is the identity, to the bit on powers of two") {
  for (int j = 0; j < order; ++j) {
    for (const float size : {1.0F, -0x1p-60F, 0x1p60F}) {
      Floats x(order);
      x[at(j)] = size;
      const Floats y = transformed(x, 1);
      for (unsigned k = 0; k < order; ++k)
        CHECK(y[k] == (std::popcount(static_cast<unsigned>(j) & k) % 2 == 0 ? size : -size));
      CHECK(transformed(y, 1.0F / order) == x);
      CHECK(transformed(transformed(x, 1.0F / order), 1) == x);
    }
  }
  // Whole numbers, and what no group is filled by.
  Floats x;
  for (index_t i = 0; i < 3 * order + 7; ++i) x.push_back(std::round(100 * noise(1, 0, 0, i)));
  const Floats y = transformed(x, 1.0F / order);
  CHECK(transformed(y, 1) == x);
  CHECK(std::equal(x.end() - 7, x.end(), y.end() - 7));
  CHECK(y[5] != x[5]);
}

TEST_CASE("quantizers in Hadamard's basis keep the laws, and a device has the host's bits") {
  const laws::Report nearest = laws::check<Hadamard<Int<4>>>();
  CHECK_MESSAGE(nearest, nearest.text());
  const laws::Report device = laws::check_device<Hadamard<Int<4, Stochastic>>>();
  CHECK_MESSAGE(device, device.text());
}

TEST_CASE("one large element among small ones costs these less") {
  Floats bell, tails;
  for (index_t i = 0; i < 8192; ++i) {
    float sum = 0;
    for (int k = 0; k < 12; ++k) sum += noise(1, k, 0, i);
    bell.push_back(sum);
    // Every 64th is 20 times the others.
    tails.push_back(i % 64 == 17 ? 20 * sum : sum);
  }
  CHECK(lost<Hadamard<Int<4>>>(bell) == doctest::Approx(lost<Int<4>>(bell)).epsilon(0.2));
  CHECK(lost<Hadamard<Int<4>>>(tails) < 0.6 * lost<Int<4>>(tails));
}

TEST_CASE("what all readers may get stays in the range of elements") {
  using C = Hadamard<Int<4>>;
  const Layout layout = Layout::flat(128);
  const auto section = [&](float scale) {
    std::vector<std::byte> bytes(at(C{}.wire_bytes(layout.range())));
    std::memcpy(bytes.data(), &scale, sizeof scale);
    return bytes;
  };
  const auto fault = [&](float scale) {
    const std::vector<std::byte> bytes = section(scale);
    return C{}.fault(layout.range(), bytes.data(), static_cast<index_t>(bytes.size()));
  };
  CHECK(fault(0x1p58F) == nullptr);
  CHECK(fault(0x1p59F) != nullptr);
  Floats x{0x1p57F, 0x1p59F, 0x1p58F, -0x1.8p58F};
  const detail::Coefficients coefficients{x.data(), 0};
  Floats bad;
  for (index_t i = 0; i < 4; ++i) bad.push_back(coefficients({}, i, true).bad);
  CHECK(bad == Floats{0, 1, 0, 1});
  CHECK(x == Floats{0x1p57F, 0, 0x1p58F, 0});
}

TEST_CASE("optimizers go by it, on one level and two") {
  Layout layout;
  layout.add({"a", {65, 21}}).add({"b", {7}, 1, 0, false}).add({"c", {300}}).add({"d", {31}});
  constexpr int ranks = 4;
  constexpr std::uint64_t steps = 64;
  const auto off = [&](const auto& recipe) {
    std::vector<Floats> last(ranks);
    ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
      Optimizer optimizer{recipe, transport, layout};
      const Floats g = gradient(layout, transport.rank(), 1, 0);
      Floats x(at(layout.size()));
      for (std::uint64_t step = 1; step <= steps; ++step) optimizer.step(x, g);
      last[at(transport.rank())] = x;
    });
    for (const Floats& one : last) CHECK(one == last[0]);
    std::vector<double> mean(at(layout.size()));
    for (int rank = 0; rank < ranks; ++rank) {
      const Floats g = gradient(layout, rank, 1, 0);
      for (std::size_t k = 0; k < g.size(); ++k) mean[k] -= static_cast<double>(g[k]) / ranks;
    }
    double worst = 0;
    for (std::size_t k = 0; k < mean.size(); ++k)
      worst = std::max(worst, std::abs(static_cast<double>(last[0][k]) / steps - mean[k]));
    return worst;
  };
  // What is lost comes back. Gradients are below 1.8.
  CHECK(off(ErrorFeedbackSgd<Hadamard<Int<4>>, ScatterGather>{.learning_rate = 1}) < 2.0 / steps);
  using OnTwoLevels = Hierarchical<Within<Hadamard<Int<8>>>, ScatterGather>;
  CHECK(off(ErrorFeedbackSgd<Hadamard<Int<4>>, OnTwoLevels>{.learning_rate = 1, .topology = {2, {}, {}}}) <
        2.0 / steps);
}
