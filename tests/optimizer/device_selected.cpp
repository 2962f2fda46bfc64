// SPDX-License-Identifier: Apache-2.0
#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include "device_support.hpp"
#include "terse/exchange/selected_rounds.hpp"
#include "terse/optimizer/power_sgd.hpp"

// Select on a device: the host's bits, and errors that a device finds in one branch.

namespace {

using Branches = Select<SmallerThan<66>, Where<Named<"c">, TopK<>, Residual>, Where<IsMatrix, LowRank<2>>>;

template <class C, class T>
OneBitAdam<C, T> one_bit() {
  return {.learning_rate = 1e-2F, .preconditioner = {.freeze = AtStep{4}}};
}

}  // namespace

TEST_CASE("branches have the host's bits") {
  compare(one_bit<Branches, ScatterGather>(), some_layers(), 3, 9);
  compare(one_bit<Select<Where<Named<"a">, ScaledSign<RootMeanSquare, PerBlock<128>>, Bf16Residual>,
                         Otherwise<TopK<>>>,
                  Ring>(),
          some_layers(), 2, 9);
}

TEST_CASE("a gradient that isn't finite in one branch moves nothing in the others") {
  const Layout layout = some_layers();
  std::vector<std::string> errors(3);
  ThreadGroup(3, std::chrono::seconds(60)).run([&](Threads& transport) {
    const int rank = transport.rank();
    ThroughHost<Threads, Device> staged(transport.split(0, rank), Device{});
    Optimizer optimizer{one_bit<Branches, ScatterGather>(), staged, layout, {}, Device{}};
    auto x = uploaded<Device>(start(layout));
    for (std::uint64_t step = 1; step <= 9; ++step) {
      Floats g = gradient(layout, rank, step, 1);
      // The branches' first elements, and a dense one's.
      for (std::size_t k = 0; k < 3; ++k)
        if (rank == 2 && step == 5 + k)
          g[at(layout.segments()[k].offset)] = std::numeric_limits<float>::quiet_NaN();
      const auto given = uploaded<Device>(g);
      Floats before(at(layout.size())), after(before.size());
      download(view<const float, Device::memory>(x.all()), view<float>(before));
      try {
        optimizer.step(x.all(), given.all());
      } catch (const non_finite_error& failure) {
        errors[at(rank)] += std::to_string(step) + ":" + std::to_string(failure.culprit()) + " ";
        download(view<const float, Device::memory>(x.all()), view<float>(after));
        CHECK(after == before);
      }
    }
  });
  for (const std::string& one : errors) CHECK(one == "5:2 6:2 7:2 ");
}
