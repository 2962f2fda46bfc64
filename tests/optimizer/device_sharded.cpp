// SPDX-License-Identifier: Apache-2.0
#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include "optimizer/device_support.hpp"

// Sharded on the emulated device: the host's bits, and the host's errors.

namespace {

Layout matrices() {
  Layout layout;
  for (int k = 0; k < 4; ++k) {
    Segment matrix{"matrix " + std::to_string(k), {12 + k, 20 - k}};
    matrix.hidden = k != 2;
    layout.add(matrix).add({"bias " + std::to_string(k), {30}, 1, 0, false});
  }
  return layout;
}

}  // namespace

TEST_CASE("sharded Adam, exact and compressed, in one slice and in several") {
  const Adam<> adam{.learning_rate = 0.01F, .weight_decay = 0.1F};
  for (const index_t slice : {index_t{0}, index_t{8192}}) {
    Options options;
    options.slice_bytes = slice;
    for (const int ranks : {1, 3}) {
      compare(Sharded<Adam<>>{adam}, some_layers(), ranks, 4, options);
      compare(Sharded<Adam<>, Uniform<8>, GatherBy<Cast<bf16>>>{adam}, some_layers(), ranks, 4, options);
    }
  }
  compare(Sharded<Adam<>>{adam}, some_layers(), 2, 4, {.clip_norm = 1});
}

TEST_CASE("owners of whole matrices") {
  compare(Sharded<Muon<>>{{.learning_rate = 0.01F}}, matrices(), 3, 3);
}

TEST_CASE("a gradient that is not finite changes nothing, on no rank") {
  ThroughTheHost{}(3, [](auto& transport, const Device& executor) {
    const Layout layout = some_layers();
    Optimizer optimizer{Sharded<Adam<>>{}, transport, layout, {}, executor};
    auto x = uploaded<Device>(start(layout));
    const auto step = [&](bool bad) {
      Floats g = gradient(layout, transport.rank(), 1, 1);
      if (bad && transport.rank() == 1) g[5] = std::numeric_limits<float>::quiet_NaN();
      const auto there = uploaded<Device>(g);
      optimizer.step(x.all(), there.all());
    };
    const auto seen = [&] {
      Parts parts;
      Look look{parts};
      look("parameters", x.all(), 0);
      optimizer.walk(look);
      return parts;
    };
    step(false);
    const Parts before = seen();
    CHECK_THROWS_AS(step(true), non_finite_error);
    CHECK(seen() == before);
    step(false);
    CHECK(seen() != before);
  });
}
