// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>

#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include "device_lamb.inc"
#include "device_local.inc"
#include "optimizer/wide.hpp"
#include "terse/compressor/cast.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/optimizer/lars.hpp"
#include "terse/optimizer/local/cocktail_sgd.hpp"
#include "terse/optimizer/local/distro.hpp"
#include "terse/optimizer/local/noloco.hpp"
#include "terse/optimizer/local/sparse_loco.hpp"
#include "terse/optimizer/muon.hpp"

// What a device's own test leaves out, since nvcc would take minutes for it: everything else that runs there. And
// saving and resuming, on both.

// Which recipes sweep four elements at a time.
static_assert(descends_wide<Lamb<>>() && descends_wide<Lars<>>() && descends_wide<OneBitLamb<>>() &&
              descends_wide<Muon<>>());
static_assert(meets_wide<LocalSgd<Adam<>>>() && meets_wide<SlowMo<Adam<>>>() && meets_wide<Bmuf<Adam<>>>() &&
              meets_wide<DiLoCo<Adam<>>>() && meets_wide<StreamingDiLoCo<Adam<>>>() &&
              meets_wide<OverlapLocalSgd<Adam<>>>() && meets_wide<CocodSgd<Adam<>>>() &&
              meets_wide<CocktailSgd<Adam<>>>() && meets_wide<SparseLoCo<Adam<>>>() &&
              meets_wide<NoLoCo<Adam<>>>() && meets_wide<DiLoCo<Adam<>, Gossip>>() && meets_wide<DisTrO<>>());
static_assert(takes_wide<detail::StepTogether<float, true>> &&
              takes_wide<detail::StepTogether<float, false>> && takes_wide<detail::StepAlone<float>> &&
              takes_wide<detail::Meet<float>> && says_wide<detail::MeanMomentum>);

TEST_CASE("SlowMo that resets Adam, and DiLoCo around momentum and Adam") {
  for (const int ranks : {1, 3}) {
    compare_local(SlowMo<Adam<>>{.period = 2, .inner_buffers = InnerBuffers::reset}, ranks);
    compare_local(DiLoCo<MomentumSgd<>>{.period = 3}, ranks);
    compare_local(DiLoCo<Adam<>>{.period = 2, .inner_buffers = InnerBuffers::average}, ranks);
  }
}

TEST_CASE("averaged gradients first, and a bound on their norms") {
  compare_local(LocalSgd<MomentumSgd<>>{.period = 2, .average_gradients_until = 2}, 2, true,
                {.clip_norm = 0.5F});
}

TEST_CASE("compressed moves") {
  for (const int ranks : {1, 3})
    compare_local(DiLoCo<MomentumSgd<>, Uniform<8>, Residual>{.period = 2}, ranks);
}

TEST_CASE("CoCoD-SGD") {
  for (const bool looks : {true, false}) compare_local(CocodSgd<MomentumSgd<>>{.period = 3}, 2, looks);
}

TEST_CASE("CocktailSGD, on parts of the model that are compressed and others") {
  CocktailSgd<MomentumSgd<>, TopK<>> recipe{.period = 2, .schedule = {.count = 2, .delay = 1}};
  recipe.compressor.selection.ratio = 0.1;
  compare_local(recipe, 3);
}

TEST_CASE("DisTrO, on parts of the model that are compressed and others") {
  for (const int ranks : {1, 3})
    for (const bool looks : {true, false}) compare_local(DisTrO<>{.weight_decay = 0.1F}, ranks, looks);
}

TEST_CASE("compressed fragments of Streaming DiLoCo, of 4 bits") {
  const StreamingDiLoCo<MomentumSgd<>, Cast<e3m0, MaxAbs>> recipe{.period = 4,
                                                                  .schedule = {.count = 3, .delay = 2}};
  for (const int ranks : {1, 2})
    for (const bool looks : {true, false}) compare_local(recipe, ranks, looks);
}

TEST_CASE("SparseLoCo, NoLoCo and DiLoCo over a graph") {
  for (const int ranks : {1, 3}) {
    compare_local(SparseLoCo<MomentumSgd<>>{.period = 2}, ranks);
    compare_local(NoLoCo<MomentumSgd<>>{.period = 2}, ranks);
    compare_local(DiLoCo<MomentumSgd<>, Gossip>{.period = 2}, ranks);
  }
}

TEST_CASE("SlowMo around push-sum") {
  compare_local(SlowMo<StochasticGradientPush<>, Inside::together>{.period = 3}, 3);
}

namespace {

/// Drops the mean of step 8, which is due in step 16, after step 14.
template <class R>
void compare_dropped(const R& recipe) {
  CAPTURE(type_name<R>());
  both(3, [&]<Executor E>(auto& raw) {
    const Layout layout = few_layers();
    Trace trace;
    Metered transport(raw.split(0, raw.rank()));
    Optimizer before{recipe, transport, layout, {}, E{}}, now{recipe, transport, layout, {}, E{}};
    auto x = uploaded<E>(start(layout));
    const auto go_to = [&](auto& optimizer, std::uint64_t last) {
      while (optimizer.steps() < last) {
        optimizer.step(x.all(),
                       uploaded<E>(gradient(layout, transport.rank(), optimizer.steps() + 1, 4)).all());
        // So that the mean has arrived before it is dropped: no rank then abandons messages.
        barrier(raw);
      }
      Look look{trace.steps.emplace_back()};
      look("parameters", x.all(), 0);
    };
    go_to(before, 14);
    carry_over(before, now, x.all());
    now.walk(Look{trace.steps.back()});
    go_to(now, 24);
    now.walk(Look{trace.steps.back()});
    return trace;
  });
}

}  // namespace

TEST_CASE("late means that are dropped") {
  compare_dropped(OverlapLocalSgd<MomentumSgd<>>{.period = 8});
  compare_dropped(CocodSgd<MomentumSgd<>>{.period = 8});
  CocktailSgd<MomentumSgd<>, TopK<>> cocktail{.period = 8, .schedule = {.count = 1, .delay = 8}};
  cocktail.compressor.selection.ratio = 0.1;
  compare_dropped(cocktail);
}

TEST_CASE("a gradient that isn't finite is found by its own rank, under its own name") {
  std::vector<std::string> ends(2);
  const Layout layout = few_layers();
  const auto program = [&](const auto& recipe, Threads& transport) {
    const int rank = transport.rank();
    Metered staged(ThroughHost<Threads, Device>(transport.split(0, rank), Device{}));
    Optimizer optimizer{recipe, staged, layout, {}, Device{}};
    auto x = uploaded<Device>(start(layout));
    Floats g = gradient(layout, rank, 1, 1);
    if (rank == 1) g[3] = std::numeric_limits<float>::quiet_NaN();
    try {
      optimizer.step(x.all(), uploaded<Device>(g).all());
      ends[at(rank)] += "fine ";
    } catch (const non_finite_error& failure) {
      ends[at(rank)] +=
          "rank " + std::to_string(failure.culprit()) + " as " + std::to_string(failure.rank()) + " ";
      Floats after(at(layout.size()));
      download(view<const float, Device::memory>(x.all()), view<float>(after));
      CHECK(after == start(layout));
    }
  };
  ThreadGroup(2, std::chrono::seconds(60)).run([&](Threads& transport) {
    program(SlowMo<Adam<>>{.period = 4}, transport);
    program(OverlapLocalSgd<MomentumSgd<>>{.period = 4}, transport);
  });
  CHECK(ends == std::vector<std::string>{"fine fine ", "rank 1 as 1 rank 1 as 1 "});
}

TEST_CASE("16-bit parameters over fp32 masters, which are what ranks average") {
  both(2, []<Executor E>(auto& transport) {
    const Layout layout = few_layers();
    Trace trace;
    Optimizer optimizer{SlowMo<Adam<>>{.period = 2}, transport, layout, {}, E{}, Numbers<bf16>{}};
    const auto narrow = [&](const Floats& values) {
      std::vector<bf16> small;
      for (const float value : values) small.push_back(narrowed<bf16>(value));
      buffer<bf16, typename E::memory> there(layout.size());
      upload(view<const bf16>(small), there.all());
      return there;
    };
    auto x = narrow(start(layout));
    for (std::uint64_t step = 1; step <= 5; ++step) {
      const auto g = narrow(gradient(layout, transport.rank(), step, 1));
      optimizer.step(x.all(), g.all(), 0.5F);
      Look look{trace.steps.emplace_back()};
      look("parameters", x.all(), 0);
      optimizer.walk(look);
      CHECK(trace.steps.back().contains("masters@0"));
    }
    return trace;
  });
}

namespace {

/// Step `saved` is saved; `last` steps without a break, with one, and with one on the other executor end alike.
template <class R>
void check_resume(const R& recipe, std::uint64_t saved, std::uint64_t last) {
  CAPTURE(type_name<R>());
  CAPTURE(saved);
  const auto folder =
      std::filesystem::temp_directory_path() / ("terse_device_local_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const Layout layout = few_layers();
  enum What { unbroken, saves, loads };
  std::vector<Parts> ends[4];
  const auto run = [&]<Executor E>(int slot, What what) {
    ends[slot].resize(3);
    const auto program = [&](auto& raw) {
      // Counts nothing here; one type of optimizer less to compile.
      Metered transport(raw.split(0, raw.rank()));
      const int rank = transport.rank();
      Optimizer optimizer{recipe, transport, layout, {}, E{}};
      auto x = uploaded<E>(start(layout));
      const auto train = [&](std::uint64_t end) {
        for (std::uint64_t step = optimizer.steps() + 1; step <= end; ++step) {
          optimizer.learning_rate(1e-2F * static_cast<float>(step));
          optimizer.step(x.all(), uploaded<E>(gradient(layout, rank, step, 1)).all());
        }
      };
      const auto file = folder / std::to_string(rank);
      if (what == saves) {
        train(saved);
        checkpoint::save(file, optimizer, x.all());
      } else if (what == loads) {
        // Nothing of its own may stay, nor a round that it has under way.
        train(5);
        checkpoint::load(file, optimizer, x.all());
        CHECK(optimizer.steps() == saved);
      }
      train(last);
      Look look{ends[slot][at(rank)]};
      look("parameters", x.all(), 0);
      optimizer.walk(look);
    };
    ThreadGroup(3, std::chrono::seconds(60)).run([&](Threads& transport) {
      if constexpr (std::is_same_v<E, executor::host>) {
        program(transport);
      } else {
        ThroughHost<Threads, E> staged(transport.split(0, transport.rank()), E{});
        program(staged);
      }
    });
  };
  run.template operator()<executor::host>(0, unbroken);
  run.template operator()<Device>(1, saves);
  run.template operator()<executor::host>(2, loads);
  run.template operator()<Device>(3, loads);
  std::filesystem::remove_all(folder);
  CHECK(ends[1] == ends[0]);
  CHECK(ends[2] == ends[0]);
  CHECK(ends[3] == ends[0]);
}

}  // namespace

TEST_CASE(
    "a run goes on from a file as if nothing had happened, within a period and with a round under way") {
  for (const std::uint64_t saved : std::initializer_list<std::uint64_t>{3, 4, 6}) {
    check_resume(SlowMo<Adam<>>{.period = 4, .average_gradients_until = 1}, saved, 10);
    check_resume(OverlapLocalSgd<MomentumSgd<>>{.period = 4}, saved, 13);
    // Fragments leave in steps 1, 2, 4, 5 and 6 and come in 3 steps later.
    check_resume(NoLoCo<MomentumSgd<>>{.period = 4}, saved, 10);
    check_resume(
        StreamingDiLoCo<MomentumSgd<>, Cast<e3m0, MaxAbs>>{.period = 4, .schedule = {.count = 3, .delay = 3}},
        saved, 13);
  }
}
