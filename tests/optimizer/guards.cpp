// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

#include "support.hpp"

// Non-finite gradients, clipping, ranks that were set up differently, and allocations.

using namespace terse;
using namespace terse::test;

namespace {
std::atomic<std::uint64_t> allocations{0};
}

__attribute__((noinline)) void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(std::size_t size, std::align_val_t boundary) {
  ++allocations;
  const auto unit = static_cast<std::size_t>(boundary);
  if (void* memory = std::aligned_alloc(unit, (size + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float unbounded = std::numeric_limits<float>::infinity();

Layout two_kinds() {
  Layout layout;
  layout.add({"w", {300}}).add({"b", {70}, 1, 1, false});
  return layout;
}

template <class Topo>
OneBitAdam<Sign, FrozenVariance, Topo> one_bit() {
  return {.learning_rate = 1e-2F, .preconditioner = {.freeze = AtStep{5}}};
}

bool all_finite(const Seen& seen, const Floats& x) {
  for (const auto& [name, part] : seen.parts)
    for (const double value : part)
      if (!std::isfinite(value)) return false;
  for (const float value : x)
    if (!std::isfinite(value)) return false;
  return true;
}

/// Steps 1 ... 12; rank 1 has something that is not finite at `index` in step `when`. Returns what rank 0
/// ends with.
template <class R>
Snapshot poisoned_run(const R& recipe, NonFinite policy, std::uint64_t when, std::size_t index, float poison,
                      int& not_applied) {
  const Layout layout = two_kinds();
  std::vector<Snapshot> last(3);
  std::atomic<int> skipped{0};
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout, Options{.on_non_finite = policy}};
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= 12; ++step) {
      Floats g = gradient(layout, transport.rank(), step, 1);
      if (step == when && transport.rank() == 1) g[index] = poison;
      if (!optimizer.step(x, g).applied) ++skipped;
    }
    Snapshot& mine = last[at(transport.rank())];
    optimizer.walk(mine.state);
    mine.parameters = x;
  });
  not_applied = skipped;
  for (const Snapshot& one : last) {
    CHECK(all_finite(one.state, one.parameters));
    CHECK(one.parameters == last[0].parameters);
  }
  return last[0];
}

template <class R>
void check_policies(const R& recipe) {
  CAPTURE(type_name<R>());
  for (const std::uint64_t when : std::initializer_list<std::uint64_t>{3, 9})
    for (const std::size_t index : std::initializer_list<std::size_t>{7, 330})
      for (const float poison : {not_a_number, unbounded, -unbounded, 1e30F}) {
        CAPTURE(when);
        CAPTURE(index);
        CAPTURE(poison);
        int skipped = 0;
        poisoned_run(recipe, NonFinite::zero, when, index, poison, skipped);
        CHECK(skipped == 0);
        poisoned_run(recipe, NonFinite::skip, when, index, poison, skipped);
        CHECK(skipped == 3);
      }
}

/// Every rank throws in the same step, names the culprit, and has moved nothing.
template <class R>
void check_throw(const R& recipe) {
  CAPTURE(type_name<R>());
  const Layout layout = two_kinds();
  for (const std::uint64_t when : std::initializer_list<std::uint64_t>{3, 9}) {
    CAPTURE(when);
    std::atomic<int> caught{0};
    ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
      Optimizer optimizer{recipe, transport, layout};
      Floats x = start(layout);
      for (std::uint64_t step = 1; step <= when; ++step) {
        Floats g = gradient(layout, transport.rank(), step, 1);
        if (step == when && transport.rank() == 1) g[7] = not_a_number;
        const Floats before = x;
        try {
          optimizer.step(x, g);
        } catch (const non_finite_error& failure) {
          if (failure.culprit() == 1 && failure.step() == static_cast<std::int64_t>(when) && x == before &&
              optimizer.steps() == when - 1)
            ++caught;
        }
      }
      // The group works on.
      optimizer.step(x, gradient(layout, transport.rank(), when, 1));
      Seen seen;
      optimizer.walk(seen);
      if (all_finite(seen, x)) ++caught;
    });
    CHECK(caught == 6);
  }
}

template <class R>
void check_allocations(const R& recipe, const Options& options) {
  CAPTURE(type_name<R>());
  const Layout layout = two_kinds();
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout, options};
    Floats x = start(layout);
    const Floats g = gradient(layout, transport.rank(), 1, 1);
    barrier(transport);
    barrier(transport);
    const std::uint64_t before = allocations;
    for (int step = 1; step <= 20; ++step) optimizer.step(x, g);
    const std::uint64_t after = allocations;
    // Nobody goes on to a barrier, which allocates, before everybody has counted.
    static std::atomic<int> counted{0};
    ++counted;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (counted % 3 != 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    barrier(transport);
    CHECK(after == before);
  });
}

template <class R>
std::string mismatch(const R& zero, const R& other, const Layout& layout0, const Layout& layout1,
                     const Options& options0, const Options& options1) {
  std::string what;
  try {
    ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
      const bool odd = transport.rank() == 2;
      Optimizer optimizer{odd ? other : zero, transport, odd ? layout1 : layout0, odd ? options1 : options0};
    });
  } catch (const mismatch_error& failure) {
    what = failure.what();
  }
  return what;
}

}  // namespace

TEST_CASE("non-finite gradients are skipped or zeroed by all ranks alike, and never stay") {
  check_policies(Adam{});
  check_policies(MomentumSgd{});
  check_policies(one_bit<ScatterGather>());
  check_policies(one_bit<Ring>());
  check_policies(one_bit<AllGather>());
  check_policies(OneBitAdam<ScaledSign<MeanAbs, PerBlock<64>>>{.preconditioner = {.freeze = AtStep{5}}});
}

TEST_CASE("non-finite gradients throw on every rank in the same step and move nothing") {
  check_throw(Adam{});
  check_throw(one_bit<ScatterGather>());
  check_throw(one_bit<Ring>());
  check_throw(one_bit<AllGather>());
}

TEST_CASE("a skipped step leaves everything as it was") {
  const Layout layout = two_kinds();
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{one_bit<ScatterGather>(), transport, layout,
                        Options{.on_non_finite = NonFinite::skip}};
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= 8; ++step)
      optimizer.step(x, gradient(layout, transport.rank(), step, 1));
    Seen before, after;
    optimizer.walk(before);
    const Floats kept = x;
    Floats g = gradient(layout, transport.rank(), 9, 1);
    if (transport.rank() == 0) g[0] = unbounded;
    CHECK_FALSE(optimizer.step(x, g).applied);
    optimizer.walk(after);
    CHECK(x == kept);
    CHECK(before.parts == after.parts);
  });
}

TEST_CASE("a step allocates nothing, at any stage, for any recipe") {
  const Options plain;
  const Options guarded{.on_non_finite = NonFinite::skip, .clip_norm = 1};
  for (const Options& options : {plain, guarded}) {
    check_allocations(Adam{}, options);
    check_allocations(MomentumSgd{}, options);
    check_allocations(one_bit<ScatterGather>(), options);
    check_allocations(one_bit<Ring>(), options);
    check_allocations(one_bit<AllGather>(), options);
    check_allocations(
        OneBitAdam<ScaledSign<MeanAbs, PerBlock<64>>>{.preconditioner = {.freeze = VarianceRatio{0.5F, 3}}},
        options);
  }
}

TEST_CASE("ranks that were set up differently are told what differs and who") {
  const Layout layout = two_kinds();
  Layout longer = two_kinds();
  longer.add({"more", {1}});
  const Options plain, seeded{.seed = 7}, clipped{.clip_norm = 1};
  const Adam adam, faster{.learning_rate = 0.5F};
  CHECK(mismatch(adam, adam, layout, layout, plain, plain).empty());
  CHECK(mismatch(adam, adam, layout, longer, plain, plain).find("layout") != std::string::npos);
  CHECK(mismatch(adam, faster, layout, layout, plain, plain).find("hyper-parameters") != std::string::npos);
  CHECK(mismatch(adam, adam, layout, layout, plain, seeded).find("seed") != std::string::npos);
  CHECK(mismatch(adam, adam, layout, layout, plain, clipped).find("options") != std::string::npos);
}

TEST_CASE("a rank that changes its learning rate alone is refused") {
  const Layout layout = two_kinds();
  CHECK_THROWS_AS(ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{Adam{}, transport, layout};
    Floats x = start(layout);
    if (transport.rank() == 1) optimizer.recipe.learning_rate = 0.5F;
    optimizer.step(x, gradient(layout, transport.rank(), 1, 1));
  }),
                  wire_error);
}

TEST_CASE("values that can't work are refused with a sentence") {
  const Layout layout = two_kinds();
  const auto refuses = [&](auto recipe, const Options& options = {}) {
    try {
      ThreadGroup(1).run([&](Threads& transport) {
        Optimizer optimizer{recipe, transport, layout, options};
      });
    } catch (const usage_error&) {
      return true;
    }
    return false;
  };
  CHECK_FALSE(refuses(Adam{}));
  CHECK(refuses(Adam{.learning_rate = -1}));
  CHECK(refuses(Adam{.learning_rate = not_a_number}));
  CHECK(refuses(Adam{.beta1 = 1}));
  CHECK(refuses(MomentumSgd{.momentum = 1}));
  CHECK(refuses(OneBitAdam<>{.preconditioner = {.freeze = AtStep{0}}}));
  CHECK(refuses(OneBitAdam<>{.preconditioner = {.freeze = VarianceRatio{2}}}));
  CHECK(refuses(OneBitAdam<>{.preconditioner = {.update_clip = 0}}));
  CHECK(refuses(Adam{}, Options{.clip_norm = 0}));
  ThreadGroup(1).run([&](Threads& transport) {
    Optimizer optimizer{Adam{}, transport, layout};
    Floats x(at(layout.size())), shorter(at(layout.size()) - 1);
    CHECK_THROWS_AS(optimizer.step(x, shorter), usage_error);
    CHECK_THROWS_AS(optimizer.step(shorter, x), usage_error);
  });
}
