// SPDX-License-Identifier: Apache-2.0
#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include <filesystem>

#include "device_support.hpp"
#include "guards.inc"

// Groups of segments with hyper-parameters of their own: each as an optimizer of its own, on host and device, alike on all
// ranks.

namespace {

constexpr int all = -1;
constexpr std::array<int, 3> ids{0, 1, 3};
constexpr std::uint64_t freeze_step = 5, steps = 10;
constexpr FrozenVariance freeze{.freeze = AtStep{freeze_step}};

/// Segments of three groups, in no order; or those of one group alone, which is 0 then.
Layout layers(int only = all) {
  Layout layout;
  for (Segment segment : std::initializer_list<Segment>{
           {.name = "a", .shape = {33, 9}},
           {.name = "b", .shape = {70}, .compress = false, .group = 1},
           {.name = "c", .shape = {65, 20}, .learning_rate_scale = 0.5F, .group = 1},
           {.name = "d", .shape = {130}, .weight_decay = 0.25F, .group = 3},
           {.name = "e", .shape = {77}, .compress = false},
           {.name = "f", .shape = {24, 9}, .weight_decay = 2, .group = 3},
           {.name = "g", .shape = {5, 30}, .compress = false, .group = 3},
           {.name = "h", .shape = {9, 16}, .group = 1}}) {
    if (only != all && segment.group != only) continue;
    if (only != all) segment.group = 0;
    layout.add(std::move(segment));
  }
  return layout;
}
/// The same segments, all of one group.
Layout layers_of(int group) {
  const Layout several = layers();
  Layout layout;
  for (Segment segment : several.segments()) {
    segment.group = group;
    layout.add(std::move(segment));
  }
  return layout;
}

/// Functions of a segment's name, wherever it lies.
Floats start_of(const Layout& layout) {
  Floats x(at(layout.size()));
  for (const Segment& segment : layout.segments())
    for (index_t k = 0; k < segment.count; ++k)
      x[at(segment.offset + k)] = noise(static_cast<std::uint64_t>(segment.name[0]), 0, 0, k);
  return x;
}
Floats gradient_of(const Layout& layout, int rank, std::uint64_t step) {
  Floats g(at(layout.size()));
  for (const Segment& segment : layout.segments()) {
    const std::uint64_t seed = 1000 + static_cast<std::uint64_t>(segment.name[0]);
    for (index_t k = 0; k < segment.count; ++k)
      // Some are silent until after the freeze.
      if (k % 17 != 3 || step > freeze_step + 1)
        g[at(segment.offset + k)] =
            noise(seed, 0, 0, k) + 0.5F * noise(seed, rank + 1, 0, k) + 0.3F * noise(seed, rank + 1, step, k);
  }
  return g;
}

/// What a group has in a step, of policies in policies, too.
template <class R>
void tune(R& recipe, int group, std::uint64_t step) {
  const auto g = static_cast<float>(group);
  if constexpr (requires { recipe.learning_rate; }) {
    recipe.learning_rate = (0.01F + 0.004F * g) / (1 + 0.1F * static_cast<float>(step));
    recipe.weight_decay = 0.05F * g;
  }
  if constexpr (requires { recipe.beta1; })
    recipe.beta1 = (step < 4 ? 0.9F : step < 8 ? 0.8F : 0.7F) - 0.1F * g;
  if constexpr (requires { recipe.beta2; }) recipe.beta2 = 0.99F - 0.02F * g;
  if constexpr (requires { recipe.epsilon; }) recipe.epsilon = 1e-6F + 1e-2F * g;
  if constexpr (requires { recipe.max_coefficient; }) recipe.max_coefficient = 2 + g;
  if constexpr (requires { recipe.coefficient_beta; }) recipe.coefficient_beta = 0.9F - 0.2F * g;
  if constexpr (requires { recipe.factor_threshold; }) recipe.factor_threshold = 0.1F + 0.1F * g;
  if constexpr (requires { recipe.trust; }) recipe.trust = 0.01F + 0.01F * g;
  if constexpr (requires { recipe.momentum; }) recipe.momentum = 0.9F - 0.1F * g;
  if constexpr (requires { recipe.nesterov; }) recipe.nesterov = group == 1;
  if constexpr (requires { recipe.update_clip; }) recipe.update_clip = 1 + g;
  if constexpr (requires { recipe.momentum_correction; }) tune(recipe.momentum_correction, group, step);
  if constexpr (requires { recipe.preconditioner; }) tune(recipe.preconditioner, group, step);
  if constexpr (requires { recipe.inner; }) tune(recipe.inner, group, step);
  if constexpr (requires { recipe.first; }) {
    tune(recipe.first, group, step);
    tune(recipe.second, group, step);
    recipe.second.learning_rate *= 0.5F;
  }
}
struct TuneGroups {
  template <class O>
  void operator()(O& optimizer, std::uint64_t step) const {
    for (const int id : optimizer.layout().groups()) tune(optimizer.group(id), id, step);
  }
};
/// All that there is.
struct TuneAs {
  int id;
  template <class O>
  void operator()(O& optimizer, std::uint64_t step) const {
    tune(optimizer.recipe, id, step);
  }
};
/// Of a layout of one group.
struct TuneGroup {
  int id;
  template <class O>
  void operator()(O& optimizer, std::uint64_t step) const {
    tune(optimizer.group(id), id, step);
  }
};

/// history[step - 1][rank]; some steps are opened before their gradient is there.
template <class R, class Change>
History run(const R& recipe, const Layout& layout, int ranks, const Change& change,
            const Options& options = {}) {
  History history(steps, std::vector<Snapshot>(at(ranks)));
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout, masks_any(options)};
    Floats x = start_of(layout);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      change(optimizer, step);
      const Floats g = gradient_of(layout, transport.rank(), step);
      if (step % 3 == 0) {
        optimizer.begin(x, g);
        for (auto s = static_cast<index_t>(layout.segments().size()) - 1; s >= 0; --s) optimizer.ready(s);
      }
      optimizer.step(x, g);
      Snapshot& snapshot = history[step - 1][at(transport.rank())];
      optimizer.walk(snapshot.state);
      snapshot.parameters = x;
    }
  });
  return history;
}

/// 1 where a segment has other bits in another arena.
template <class A>
std::size_t differs(const A& one, const Segment& here, const A& other, const Segment& there) {
  return !std::equal(one.begin() + here.offset, one.begin() + here.offset + here.count,
                     other.begin() + there.offset)
             ? 1U
             : 0U;
}

/// Bit for bit what an optimizer of each group by itself does, parameters and the policies' buffers.
template <class R>
void as_alone(const R& recipe, int ranks) {
  CAPTURE(type_name<R>());
  const Layout together = layers();
  const History ours = run(recipe, together, ranks, TuneGroups{});
  for (const int id : ids) {
    CAPTURE(id);
    const Layout apart = layers(id);
    const History theirs = run(recipe, apart, ranks, TuneAs{id});
    std::size_t other_bits = 0, compared = 0, moved = 0;
    for (const Segment& there : apart.segments()) {
      const auto here = std::find_if(together.segments().begin(), together.segments().end(),
                                     [&](const Segment& segment) { return segment.name == there.name; });
      for (std::size_t k = 0; k < ours.size(); ++k)
        for (std::size_t rank = 0; rank < at(ranks); ++rank) {
          const Snapshot &one = ours[k][rank], &other = theirs[k][rank];
          other_bits += differs(one.parameters, *here, other.parameters, there);
          // Those that reach over the arena.
          for (const auto& [name, part] : one.state.parts)
            if (part.size() == one.parameters.size()) {
              other_bits += differs(part, *here, spread_out(apart, other.state, name), there);
              ++compared;
            }
        }
      moved += differs(ours.back()[0].parameters, *here, start_of(together), *here);
    }
    CHECK(other_bits == 0);
    CHECK(compared > 0);
    CHECK(moved == apart.segments().size());
  }
  // And the hyper-parameters matter.
  const History alike = run(recipe, together, ranks, TuneAs{0});
  CHECK(alike.back()[0].parameters != ours.back()[0].parameters);
}

/// Bit for bit what the recipe does with these hyper-parameters, where all segments are of one group.
template <class R>
void as_recipe(const R& recipe, int ranks, const Options& options = {}) {
  CAPTURE(type_name<R>());
  const History ours = run(recipe, layers_of(1), ranks, TuneGroup{1}, options);
  const History theirs = run(recipe, layers_of(0), ranks, TuneAs{1}, options);
  const History others = run(recipe, layers_of(0), ranks, TuneAs{0}, options);
  for (std::size_t k = 0; k < ours.size(); ++k)
    for (std::size_t rank = 0; rank < at(ranks); ++rank) {
      REQUIRE(ours[k][rank].parameters == theirs[k][rank].parameters);
      REQUIRE(ours[k][rank].state.parts == theirs[k][rank].state.parts);
    }
  CHECK(ours.back()[0].parameters != others.back()[0].parameters);
}

using Layered = Staged<Averaging<ExponentialAverage, LayerWise<AdamVariance>>,
                       Averaging<LocalAverage, FrozenLayerRates<>, Sign, AllGather>>;

}  // namespace

TEST_CASE("over exact means each group is as an optimizer of its own") {
  as_alone(Adam<>{}, 3);
  as_alone(MomentumSgd<>{}, 3);
  as_alone(Lion<>{}, 2);
  as_alone(Nadam<>{}, 2);
  as_alone(Lamb<>{}, 3);
  as_alone(Lars<>{}, 2);
}

TEST_CASE("of compressed messages that aren't cut into chunks, too") {
  as_alone(OneBitAdam<AllGather>{.preconditioner = freeze}, 3);
  as_alone(OneBitAdam<>{.preconditioner = freeze}, 1);
  as_alone(Averaging<LocalMomentumBefore, Sign, AllGather>{.warmup_steps = 3}, 3);
  as_alone(Averaging<FactorMasking, TopK<>, AllGather>{.compressor = {.selection = {.ratio = 0.1}}}, 3);
  as_alone(Adam<Sign, AllGather>{}, 2);
  as_alone(Layered{.when = {freeze_step}}, 3);
}

TEST_CASE("a group that has all segments is as the recipe") {
  as_recipe(Adam<>{}, 3, {.clip_norm = 3});
  as_recipe(OneBitAdam<>{.preconditioner = freeze}, 4, {.clip_norm = 3});
  as_recipe(OneBitLamb<>{.preconditioner = freeze}, 3);
  as_recipe(OneBitLamb<Ring>{.preconditioner = freeze}, 2);
  as_recipe(Ef21Sgd<ScaledSign<MeanAbs>, HeavyBall>{}, 3);
  as_recipe(PowerSgd<>{}, 2);
}

TEST_CASE("local updates have the groups of their inner recipe") {
  as_alone(LocalSgd<Adam<>>{.period = 3}, 3);
  as_alone(DiLoCo<MomentumSgd<>>{.period = 4}, 2);
  as_alone(DiLoCo<LocalSgd<Lamb<>>>{.inner = {.period = 2}, .period = 4}, 2);
  as_alone(CocodSgd<Adam<>>{.period = 2}, 2);
}

TEST_CASE("groups that nobody changes are no groups") {
  const auto alike = [](const auto& recipe) {
    const auto nothing = [](auto&, std::uint64_t) {};
    const History ours = run(recipe, layers(), 3, nothing), theirs = run(recipe, layers_of(0), 3, nothing);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CHECK(ours.back()[rank].parameters == theirs.back()[rank].parameters);
      CHECK(ours.back()[rank].state.parts == theirs.back()[rank].state.parts);
    }
  };
  alike(OneBitLamb<>{.preconditioner = freeze});
  alike(QuantizedSgd<>{});
}

TEST_CASE("one bound on the norm holds for all groups: Adam by its formula") {
  constexpr float clip_norm = 3;
  constexpr int ranks = 3;
  const Layout layout = layers();
  const History ours = run(Adam<>{}, layout, ranks, TuneGroups{}, {.clip_norm = clip_norm});
  const Floats begin = start_of(layout);
  std::vector<double> x(begin.begin(), begin.end()), m(x.size()), v(x.size()), g(x.size());
  double worst = 0;
  bool clipped = false;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    std::fill(g.begin(), g.end(), 0.0);
    for (int rank = 0; rank < ranks; ++rank) {
      const Floats one = gradient_of(layout, rank, step);
      for (std::size_t i = 0; i < g.size(); ++i) g[i] += static_cast<double>(one[i]) / ranks;
    }
    double square = 0;
    for (const double value : g) square += value * value;
    const double factor = std::min(1.0, static_cast<double>(clip_norm) / std::sqrt(square));
    clipped = clipped || factor < 1;
    for (const Segment& segment : layout.segments()) {
      Adam<> own{};
      tune(own, segment.group, step);
      const auto b1 = static_cast<double>(own.beta1), b2 = static_cast<double>(own.beta2);
      const auto t = static_cast<double>(step);
      for (std::size_t i = at(segment.offset); i < at(segment.offset + segment.count); ++i) {
        const double mean = factor * g[i];
        m[i] = b1 * m[i] + (1 - b1) * mean;
        v[i] = b2 * v[i] + (1 - b2) * mean * mean;
        const double u = m[i] / (1 - std::pow(b1, t)) /
                         (std::sqrt(v[i] / (1 - std::pow(b2, t))) + static_cast<double>(own.epsilon));
        x[i] -=
            static_cast<double>(own.learning_rate) * static_cast<double>(segment.learning_rate_scale) *
            (u + static_cast<double>(own.weight_decay) * static_cast<double>(segment.weight_decay) * x[i]);
        worst = std::max(worst, std::abs(x[i] - static_cast<double>(ours[step - 1][0].parameters[i])));
      }
    }
  }
  CHECK(clipped);
  CHECK(worst < 1e-5);
}

TEST_CASE("a device has the host's bits of groups") {
  const Layout layout = layers();
  const auto trace_of = [&](const auto& recipe, auto& transport, auto executor) {
    using E = decltype(executor);
    Optimizer optimizer{recipe, transport, layout, masks_any(), executor};
    auto x = uploaded<E>(start_of(layout));
    std::vector<Parts> seen;
    for (std::uint64_t step = 1; step <= 8; ++step) {
      TuneGroups{}(optimizer, step);
      optimizer.step(x.all(), uploaded<E>(gradient_of(layout, transport.rank(), step)).all());
      Look look{seen.emplace_back()};
      look("parameters", x.all(), 0);
      optimizer.walk(look);
    }
    return seen;
  };
  const auto equal_bits = [&](const auto& recipe) {
    CAPTURE(type_name<decltype(recipe)>());
    std::vector<std::vector<Parts>> host(2), device(2);
    ThreadGroup(2, std::chrono::seconds(60)).run([&](Threads& transport) {
      const auto rank = at(transport.rank());
      host[rank] = trace_of(recipe, transport, executor::host{});
      ThroughHost<Threads, Device> staged(transport.split(0, transport.rank()), Device{});
      device[rank] = trace_of(recipe, staged, Device{});
    });
    for (std::size_t rank = 0; rank < 2; ++rank) CHECK(host[rank] == device[rank]);
  };
  equal_bits(OneBitAdam<>{.preconditioner = freeze});
  equal_bits(OneBitLamb<AllGather>{.preconditioner = freeze});
  equal_bits(Averaging<FactorMasking, TopK<>, AllGather>{.compressor = {.selection = {.ratio = 0.1}}});
}

TEST_CASE("a recorded step is replayed with other hyper-parameters, of one group and of several") {
  ThreadGroup(1).run([&](Threads& transport) {
    ThroughHost<Threads, Device> staged(transport.split(0, 0), Device{});
    for (const Layout& layout : {layers(), layers_of(0)}) {
      const OneBitLamb<> recipe{.preconditioner = freeze};
      Optimizer optimizer{recipe, staged, layout, masks_any(), Device{}},
          replayed{recipe, staged, layout, masks_any(), Device{}};
      auto x = uploaded<Device>(start_of(layout)), y = uploaded<Device>(start_of(layout));
      buffer<float, Device::memory> g(layout.size());
      std::optional<Device::Recording> record;
      bool full_precision = false;
      for (std::uint64_t step = 1; step <= steps; ++step) {
        CAPTURE(step);
        TuneGroups{}(optimizer, step);
        TuneGroups{}(replayed, step);
        upload(view<const float>(gradient_of(layout, 0, step)), g.all());
        optimizer.step(x.all(), g.all());
        if (!record || full_precision != replayed.full_precision()) {
          Device::Recording::begin();
          replayed.record(y.all(), g.all());
          record.emplace(Device::Recording::end());
          full_precision = replayed.full_precision();
        }
        replayed.replay([&] { record->replay(); });
        Parts one, other;
        Look look{one}, look_there{other};
        look("parameters", x.all(), 0);
        look_there("parameters", y.all(), 0);
        optimizer.walk(look);
        replayed.walk(look_there);
        REQUIRE(one == other);
      }
    }
  });
}

TEST_CASE("values that can't work, and groups that are not there, are named") {
  ThreadGroup(1).run([&](Threads& transport) {
    const Layout layout = layers();
    Floats x = start_of(layout);
    const Floats g = gradient_of(layout, 0, 1), before = x;
    Optimizer optimizer{OneBitAdam<>{.preconditioner = freeze}, transport, layout};
    const auto refuses = [&](auto& of, const char* sentence) {
      CHECK_THROWS_WITH_AS(of.step(x, g), doctest::Contains(sentence), usage_error);
      CHECK(x == before);
    };
    CHECK(&optimizer.group(0) == &optimizer.recipe);
    CHECK(optimizer.group(3).beta1 == optimizer.recipe.beta1);
    CHECK_THROWS_WITH_AS(optimizer.group(2),
                         doctest::Contains("no segment is of group 2; the layout has groups 0, 1, 3"),
                         usage_error);
    CHECK_THROWS_AS(optimizer.group(-1), usage_error);
    CHECK_THROWS_AS(optimizer.group(4), usage_error);

    optimizer.group(3).beta1 = 1;
    refuses(optimizer, "terse: group 3: beta1 must be in [0, 1)");
    optimizer.group(3).beta1 = 0.5F;
    optimizer.group(1).preconditioner.freeze = AtStep{freeze_step + 1};
    refuses(optimizer, "group 1 has freeze_step 6, and group 0 freeze_step 5: settings of whole steps");
    optimizer.group(1).preconditioner.freeze = VarianceRatio{};
    refuses(optimizer, "group 1 has freeze_threshold 0.959999979, and group 0 freeze_step 5: ");
    optimizer.group(1).preconditioner.freeze = AtStep{freeze_step};
    CHECK_NOTHROW(optimizer.step(x, g));
    x = before;

    Optimizer sparse{Adam<TopK<>>{}, transport, layout};
    sparse.group(3).compressor.selection.ratio *= 2;
    refuses(sparse, "group 3 has ");
    sparse.group(3) = sparse.recipe;
    sparse.group(1).warmup_steps = 4;
    refuses(sparse, "group 1 has warmup_steps 4, and group 0 warmup_steps 0: ");

    Optimizer followed{ErrorFeedbackSgd<>{.error_feedback = {.follows_rate = true}}, transport, layout};
    followed.group(1).learning_rate *= 2;
    refuses(followed, "group 1 has learning_rate 0.2");
    followed.recipe.learning_rate *= 2;
    refuses(followed, "group 3 has learning_rate 0.1");
    followed.group(3).learning_rate *= 2;
    CHECK_NOTHROW(followed.step(x, g));
    x = before;

    Optimizer local{LocalSgd<Adam<>>{}, transport, layout};
    local.group(1).period = 3;
    refuses(local, "group 1 has period 3, and group 0 period 8: ");
    refuses(local, "; set them in optimizer.recipe and in each optimizer.group(id)");
    Optimizer outer{SlowMo<MomentumSgd<>>{}, transport, layout};
    outer.group(3).inner.learning_rate *= 2;
    refuses(outer, "group 3 has learning_rate 0.2");
  });
}

TEST_CASE("recipes without groups say so, and have group 0") {
  ThreadGroup(1).run([&](Threads& transport) {
    const auto refused = [&](const auto& recipe) {
      CAPTURE(type_name<decltype(recipe)>());
      CHECK_THROWS_WITH_AS((Optimizer{recipe, transport, layers()}),
                           doctest::Contains("the layout has segments of group 1, and this recipe"),
                           usage_error);
      CHECK_THROWS_WITH_AS(
          (Optimizer{recipe, transport, layers()}),
          doctest::Contains("and local methods around these (LocalSgd, DiLoCo, OverlapLocalSgd ...); take "
                            "`.group` out of the layout, or another recipe"),
          usage_error);
      Optimizer optimizer{recipe, transport, layers_of(0)};
      CHECK(&optimizer.group(0) == &optimizer.recipe);
      CHECK_THROWS_AS(optimizer.group(1), usage_error);
    };
    refused(DSgd<>{});
    refused(ZeroOneAdam<>{});
    refused(SwarmSgd<Adam<>>{});
  });
}

TEST_CASE("ranks whose groups differ refuse each other") {
  std::atomic<int> fine{0};
  const auto apart = [&] {
    ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
      const Layout layout = layers();
      Optimizer optimizer{Adam<>{}, transport, layout};
      Floats x = start_of(layout);
      for (std::uint64_t step = 1; step <= 3; ++step) {
        if (step == 3 && transport.rank() == 2) optimizer.group(3).epsilon *= 2;
        optimizer.step(x, gradient_of(layout, transport.rank(), step));
        ++fine;
      }
    });
  };
  CHECK_THROWS_WITH_AS(
      apart(), doctest::Contains("hyper-parameters (learning rate, betas, ..., of any group)"), wire_error);
  CHECK(fine == 6);

  // Groups are part of the layout.
  const auto elsewhere = [] {
    ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
      Layout layout;
      layout.add({.name = "a", .shape = {10}})
          .add({.name = "b", .shape = {10}, .group = 4 + transport.rank()});
      Optimizer optimizer{Adam<>{}, transport, layout};
    });
  };
  CHECK_THROWS_WITH_AS(elsewhere(), doctest::Contains("from segment 1 on: here it is 'b' {10}"),
                       mismatch_error);
  CHECK_THROWS_WITH_AS(elsewhere(), doctest::Contains(", group "), mismatch_error);
}

TEST_CASE("a run with groups goes on from a checkpoint, whose groups are the layout's") {
  const auto folder =
      std::filesystem::temp_directory_path() /
      ("terse-groups-" + std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()));
  std::filesystem::create_directories(folder);
  ThreadGroup(2, std::chrono::seconds(60)).run([&](Threads& transport) {
    const Layout layout = layers();
    const auto file = folder / (std::to_string(transport.rank()) + ".safetensors");
    const auto go = [&](auto& optimizer, Floats& x, std::uint64_t until) {
      while (optimizer.steps() < until) {
        const std::uint64_t step = optimizer.steps() + 1;
        TuneGroups{}(optimizer, step);
        optimizer.step(x, gradient_of(layout, transport.rank(), step));
      }
    };
    const OneBitLamb<> recipe{.preconditioner = freeze};
    for (const std::uint64_t saved : {freeze_step - 2, freeze_step + 2}) {
      Optimizer through{recipe, transport, layout, masks_any()},
          resumed{recipe, transport, layout, masks_any()};
      Floats x = start_of(layout), y(x.size(), 3.0F);
      go(through, x, saved);
      checkpoint::save(file, through, x);
      go(through, x, steps);
      checkpoint::load(file, resumed, y);
      go(resumed, y, steps);
      CHECK(checkpoint::parameters_hash(layout, x) == checkpoint::parameters_hash(layout, y));
      Optimizer other{recipe, transport, layers_of(0), masks_any()};
      CHECK_THROWS_WITH_AS(checkpoint::load(file, other, y), doctest::Contains("another layout"),
                           checkpoint_error);
    }
  });
  std::filesystem::remove_all(folder);
}

TEST_CASE("steps of groups allocate nothing") {
  const auto change = [](auto& optimizer) { optimizer.group(1).beta1 = 0.5F; };
  check_allocations(Adam<>{}, {}, 3, change, layers());
  check_allocations(OneBitAdam<>{.preconditioner = freeze}, {}, 3, change, layers());
}
