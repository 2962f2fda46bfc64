// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstring>
#include <thread>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "guards.inc"
#include "terse/transport/any.hpp"
#include "transport/trapped.hpp"

// Non-finite gradients, clipping, ranks that were set up differently, and allocations.

namespace {

template <class Topo>
OneBitAdam<Sign, FrozenVariance, Topo> one_bit() {
  return {.learning_rate = 1e-2F, .preconditioner = {.freeze = AtStep{5}}};
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

/// Whether `act` throws what a transport throws.
template <class Act>
bool breaks(const Act& act) {
  try {
    act();
  } catch (const peer_error&) {
    return true;
  }
  return false;
}

/// Takes five steps on two ranks, where rank 1's transport throws at each of its batches in turn. All later calls throw, too.
template <class R>
void check_later_calls(const R& recipe, bool opens) {
  CAPTURE(type_name<R>());
  CAPTURE(opens);
  const Layout layout = two_kinds();
  bool through = false;
  long k = 0;
  for (; k < 200 && !through; ++k) {
    CAPTURE(k);
    try {
      ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& threads) {
        Trap trap{threads.rank() == 1 ? k : -1};
        AnyTransport transport(Trapped<Threads>(threads.split(0, threads.rank()), trap));
        Optimizer optimizer{recipe, transport, layout, Options{.slice_bytes = 512}};
        Floats x = start(layout);
        const Floats g = gradient(layout, transport.rank(), 1, 1);
        const auto all = [&] {
          if constexpr (requires { optimizer.begin(x); }) {
            if (opens) optimizer.begin(x);
          } else if (opens) {
            optimizer.begin(x, g);
            for (index_t segment = 1; segment >= 0; --segment) optimizer.ready(segment);
          }
          optimizer.step(x, g);
        };
        for (int step = 0; step < 5; ++step) {
          if (!breaks(all)) continue;
          CHECK(breaks([&] { optimizer.step(x, g); }));
          CHECK(breaks([&] { optimizer.begin(x, g); }));
          CHECK(breaks([&] { optimizer.ready(0); }));
          CHECK(breaks([&] { optimizer.progress(); }));
          if constexpr (requires { optimizer.begin(x); }) CHECK(breaks([&] { optimizer.begin(x); }));
          throw peer_error("done", 1, transport.rank());
        }
      });
      through = true;
    } catch (const peer_error&) {
    }
  }
  CHECK(through);
  CHECK(k > 6);  // batches of a construction and five steps
}

}  // namespace

TEST_CASE("after an error of messages each later call of an optimizer throws, wherever it came from") {
  check_later_calls(Adam<>{}, false);
  for (const bool opens : {false, true}) {
    check_later_calls(one_bit<Ring>(), opens);
    check_later_calls(one_bit<AllGather>(), opens);
    check_later_calls(PowerSgd<2>{}, opens);
    check_later_calls(DmSgd<Mixing<graph::Ring>>{}, opens);
  }
  check_later_calls(ZeroOneAdam<>{}, false);
  check_later_calls(LocalSgd<Adam<>>{.period = 2}, false);
  check_later_calls(OverlapLocalSgd<MomentumSgd<>>{.period = 2}, false);
  check_later_calls(SwarmSgd<MomentumSgd<>>{.schedule = {.period = 1}}, false);
}

#ifdef __SSE__
TEST_CASE("a processor that flushes subnormal numbers is told from others, and from what it must be") {
  const auto construct = [](int first_that_flushes) {
    std::string what;
    try {
      ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
        const unsigned before = _mm_getcsr();
        if (transport.rank() >= first_that_flushes) _mm_setcsr(before | 0x8040);
        try {
          Optimizer optimizer{Adam<>{}, transport, Layout::flat(64)};
        } catch (...) {
          _mm_setcsr(before);
          throw;
        }
        _mm_setcsr(before);
      });
    } catch (const mismatch_error& failure) {
      what = std::string("mismatch: ") + failure.what();
    } catch (const usage_error& failure) {
      what = std::string("usage: ") + failure.what();
    }
    CAPTURE(what);
    CHECK((what.find("flushes subnormal numbers") != std::string::npos) == (first_that_flushes < 3));
    CHECK(what.find("divides") == std::string::npos);
    return what;
  };
  CHECK(construct(3).empty());
  CHECK(construct(2).starts_with("mismatch: "));
  CHECK(construct(2).find("another numerics. The arithmetic of rank 2 flushes") != std::string::npos);
  CHECK(construct(0).starts_with("usage: "));
}

TEST_CASE("a processor that is set otherwise after construction is found by the next step, opened or not") {
  const auto stepped = [](unsigned bits, bool opens) {
    std::string what;
    try {
      ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
        const Layout layout = two_kinds();
        Optimizer optimizer{Adam<>{}, transport, layout};
        Floats x = start(layout);
        const Floats g = gradient(layout, transport.rank(), 1, 1);
        optimizer.step(x, g);
        if (opens) optimizer.begin(x, g);
        if (transport.rank() == 1) _mm_setcsr(_mm_getcsr() | bits);
        if (opens) optimizer.ready(1);
        optimizer.step(x, g);
      });
    } catch (const usage_error& failure) {
      what = failure.what();
    }
    return what;
  };
  for (const bool opens : {false, true}) {
    CHECK(stepped(0, opens).empty());
    // Flush to zero, denormals are zero, and the three ways to round.
    for (const unsigned bits : {0x8000U, 0x40U, 0x2000U, 0x4000U, 0x6000U}) {
      CAPTURE(bits);
      CHECK(stepped(bits, opens).find("rank 1, step 2: this thread's processor flushes") !=
            std::string::npos);
    }
  }
}
#endif

TEST_CASE("non-finite gradients are skipped or zeroed by all ranks alike, and never stay") {
  check_policies(Adam<>{});
  check_policies(MomentumSgd<>{});
  check_policies(one_bit<ScatterGather>());
  check_policies(one_bit<Ring>());
  check_policies(one_bit<AllGather>());
  check_policies(OneBitAdam<ScaledSign<MeanAbs, PerBlock<64>>>{.preconditioner = {.freeze = AtStep{5}}});
}

TEST_CASE("non-finite gradients throw on every rank in the same step and move nothing") {
  check_throw(Adam<>{});
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
    check_allocations(Adam<>{}, options);
    check_allocations(MomentumSgd<>{}, options);
    Layout hidden = two_kinds();
    hidden.add({.name = "long", .shape = {10, 30}, .hidden = true})
        .add({.name = "m", .shape = {12, 10}, .hidden = true});
    check_allocations(Muon<>{}, options, 3, NoPreparation{}, hidden);
    check_allocations(Dion2<>{}, options, 3, NoPreparation{}, hidden);
    check_allocations(one_bit<ScatterGather>(), options);
    check_allocations(one_bit<Ring>(), options);
    check_allocations(one_bit<AllGather>(), options);
    check_allocations(
        OneBitAdam<ScaledSign<MeanAbs, PerBlock<64>>>{.preconditioner = {.freeze = VarianceRatio{0.5F, 3}}},
        options);
  }
}

namespace {

/// What non_finite_error says on each of three ranks; "" where none is thrown in ten steps. `spoil(rank, step, x, g)` comes before
/// each of them.
template <class N = Numbers<>, class R, class Spoil>
std::vector<std::string> said(const R& recipe, const Spoil& spoil, const Options& options = {}) {
  using P = typename N::parameter;
  const Layout layout = two_kinds();
  std::vector<std::string> all(3);
  try {
    ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
      Optimizer optimizer{recipe, transport, layout, options, executor::host{}, N{}};
      std::vector<P> x;
      for (const float value : start(layout)) x.push_back(narrowed<P>(value));
      try {
        for (std::uint64_t step = 1; step <= 10; ++step) {
          std::vector<P> g;
          for (const float value : gradient(layout, transport.rank(), step, 1))
            g.push_back(narrowed<P>(value));
          spoil(transport.rank(), step, x, g);
          optimizer.step(view<P>(x), view<const P>(g));
        }
      } catch (const non_finite_error& failure) {
        all[at(transport.rank())] = failure.what();
      }
    });
  } catch (const peer_error&) {
    // Where not all of them throw.
  }
  return all;
}
void check_said(const std::vector<std::string>& all, const std::vector<int>& ranks,
                const std::string& sentence) {
  for (const int rank : ranks) {
    CAPTURE(all[at(rank)]);
    CHECK(all[at(rank)].find(": " + sentence) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("an error of a value that is not finite says of which rank it is, what it is, and where") {
  const std::vector<int> everyone{0, 1, 2};
  const auto spoils = [](std::size_t place, float value) {
    return [=](int rank, std::uint64_t step, auto&, auto& g) {
      if (rank == 1 && step == 7) g[place] = value;
    };
  };
  const std::string nan = "the gradient of rank 1 is not finite: element 7 of segment 'b' is nan";
  // In full precision, in compressed steps, and where ranks agree on norms before; element 320 of the arena is 0 of 'b'.
  check_said(said(Adam<>{}, spoils(327, not_a_number)), everyone, nan);
  check_said(said(one_bit<Ring>(), spoils(327, not_a_number)), everyone, nan);
  check_said(said(one_bit<Ring>(), spoils(327, not_a_number), {.clip_norm = 1}), everyone, nan);
  check_said(said(one_bit<Ring>(), spoils(299, 1e30F)), everyone,
             "the gradient of rank 1 is not finite: element 299 of segment 'w' is 1e+30, whose product");
  // Where a rank finds it by itself, it alone knows what it is.
  check_said(said(LocalSgd<Adam<>>{.period = 2}, spoils(327, not_a_number)), {1}, nan);
  check_said(said(Adam<Alone>{}, spoils(327, not_a_number)), {1}, nan);

  const auto spoiled = [](int rank, std::uint64_t step, auto& x, auto&) {
    if (rank == 1 && step == 7) x[3] = not_a_number;
  };
  const auto mixed = said(DmSgd<Mixing<graph::Complete>>{}, spoiled);
  check_said(mixed, {1}, "the parameters of rank 1 are not finite: element 3 of segment 'w' is nan");
  check_said(mixed, {0, 2},
             "a message or a sum of rank 1 is not finite (NaN, infinity, or too large for squares or its "
             "compressor): look at the gradient and the parameters of that rank");
  // The group's own error is that of the rank that knows.
  std::string thrown;
  std::atomic<int> here{0};
  try {
    ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
      Optimizer optimizer{DmSgd<Mixing<graph::Complete>>{}, transport, two_kinds()};
      Floats x = start(optimizer.layout());
      if (transport.rank() == 2) x[3] = not_a_number;
      try {
        optimizer.step(x, gradient(optimizer.layout(), transport.rank(), 1, 1));
      } catch (const non_finite_error&) {
        // None leaves before all of them throw, and rank 0 is the first.
        ++here;
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (here < 3 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(50 * transport.rank()));
        throw;
      }
    });
  } catch (const non_finite_error& failure) {
    thrown = failure.what();
  }
  CHECK(thrown.find("the parameters of rank 2 are not finite: element 3 of segment 'w'") !=
        std::string::npos);

  // Steps on a lattice of 1e-6 bring parameters of 1e7 beyond 2^40 of them, and those are finite.
  const auto far = [](int rank, std::uint64_t, auto& x, auto&) {
    if (rank == 1) x[3] = 1e7F;
  };
  check_said(said(MoniquaSgd<Lattice<8>>{.compressor = {.step = 1e-6F}}, far), {1},
             "a message or a sum of rank 1 is not finite (NaN, infinity, or too large for squares or its "
             "compressor), "
             "though its gradient and parameters are.");
}

TEST_CASE("parameters that are not finite are found, before the first step and after any") {
  const auto at_start = [](int, std::uint64_t step, auto& x, auto&) {
    if (step == 1) x[330] = not_a_number;
  };
  const std::string before = " are not finite before the first step: element 10 of segment 'b' is nan";
  const auto check = [&](const auto& recipe) {
    const auto all = said(recipe, at_start);
    for (int rank = 0; rank < 3; ++rank)
      check_said(all, {rank}, "the parameters of rank " + std::to_string(rank) + before);
  };
  check(Adam<>{.weight_decay = 0.1F});
  check(one_bit<Ring>());
  check(LocalSgd<Adam<>>{.period = 2});

  // A rate that makes them infinite, and 16-bit parameters that leave their range, while the masters don't.
  const auto nothing = [](int, std::uint64_t, auto&, auto&) {};
  const auto fast = said(Adam<>{.learning_rate = 1e38F}, nothing);
  const auto wide = said<Numbers<fp16>>(MomentumSgd<>{.learning_rate = 4e4F}, nothing);
  for (int rank = 0; rank < 3; ++rank)
    for (const auto& all : {fast, wide})
      check_said(all, {rank},
                 "the parameters of rank " + std::to_string(rank) + " are not finite after this step: ");
  CHECK(fast[0].find("inf") != std::string::npos);
  CHECK(wide[0].find("inf") != std::string::npos);
}

TEST_CASE(
    "a look at a sixteenth of the parameters finds one that is not finite within 16 steps, wherever it is") {
  Layout layout;
  layout.add({"empty", {0}}).add({"w", {1000, 399}}).add({"b", {5}}).add({"v", {70000}});
  Floats x(at(layout.size()), 1);
  for (const index_t place : {index_t{0}, index_t{398999}, index_t{399040 + 4}, layout.size() - 64 + 47}) {
    CAPTURE(place);
    for (int ahead = 0; ahead < 20; ahead += 7) {
      detail::FiniteWatch watch;
      for (int k = 0; k < ahead; ++k) watch.look(layout, view<const float>(x), 0, 1);
      x[at(place)] = unbounded;
      int looks = 0;
      for (bool found = false; !found && looks < 100; ++looks) {
        try {
          watch.look(layout, view<const float>(x), 0, 1);
        } catch (const non_finite_error&) {
          found = true;
        }
      }
      CHECK(looks <= 16);
      x[at(place)] = 1;
    }
  }
}

TEST_CASE("a layout without elements is refused, and tensors that compression makes larger are warned of") {
  const auto made = [](const Layout& layout, auto recipe, auto warn, int ranks = 2) {
    static std::string said;
    said.clear();
    try {
      ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
        Options options;
        if (warn)
          options.warn = [](const std::string& sentence) { said += sentence; };
        else
          options.warn = nullptr;
        Optimizer optimizer{recipe, transport, layout, options};
      });
    } catch (const usage_error& failure) {
      said = failure.what();
    }
    return said;
  };
  Layout empty, tiny, large;
  CHECK(made(empty, one_bit<Ring>(), true).find("the layout has no segment") != std::string::npos);
  empty.add({"a", {0, 3}}).add({"b", {0}});
  CHECK(made(empty, one_bit<Ring>(), true).find("no segment of the layout has an element") !=
        std::string::npos);
  // A scale and a word of signs take 16 bytes, as three floats do with their padding.
  tiny.add({"a", {3}}).add({"b", {1}}).add({"c", {2}}).add({"d", {2}}).add({"e", {1}});
  CHECK(made(tiny, one_bit<Ring>(), true) ==
        "a compressed packet of this optimizer has up to 96 bytes, one in full precision 80: its segments "
        "are too small "
        "for this compressor. Leave small ones out (Segment::compress = false), or use an exact method");
  CHECK(made(tiny, one_bit<Ring>(), false).empty());
  CHECK(made(tiny, Adam<>{}, true).empty());
  // Packets that are smaller, of steps that send more: a pick of each tensor from each rank to each other.
  Layout many;
  for (int k = 0; k < 40; ++k) many.add({"t" + std::to_string(k), {3}});
  CHECK(made(many, Ef21Sgd<TopK<>>{}, true, 4) ==
        "a rank sends up to 2016 bytes for a compressed step of this optimizer, and about 1152 for one in "
        "full precision over Ring. Compare recipes (docs/advice.md), leave small segments out "
        "(Segment::compress = false), or use an exact method");
  CHECK(made(many, Adam<>{}, true, 4).empty());
  large.add({"a", {5}});
  CHECK(made(large, one_bit<Ring>(), true).empty());
}

TEST_CASE("ranks that were set up differently are told what differs and who") {
  const Layout layout = two_kinds();
  Layout longer = two_kinds();
  longer.add({"more", {1}});
  const Options plain, seeded{.seed = 7}, clipped{.clip_norm = 1};
  const Adam<> adam, faster{.learning_rate = 0.5F};
  CHECK(mismatch(adam, adam, layout, layout, plain, plain).empty());
  CHECK(mismatch(adam, adam, layout, longer, plain, plain).find("layout") != std::string::npos);
  CHECK(mismatch(adam, faster, layout, layout, plain, plain)
            .find("other hyper-parameters: learning_rate is ") != std::string::npos);
  CHECK(mismatch(adam, faster, layout, layout, plain, plain).find("0.5") != std::string::npos);
  CHECK(mismatch(adam, adam, layout, layout, plain, seeded).find("seed") != std::string::npos);
  CHECK(mismatch(adam, adam, layout, layout, plain, clipped).find("another value of an option") !=
        std::string::npos);
}

TEST_CASE("ranks that start from other parameters are told who and where, and nothing moves") {
  const Layout layout = two_kinds();
  const Segment& last = layout.segments().back();
  std::vector<std::string> errors(3);
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{Adam<>{}, transport, layout};
    Floats x = start(layout);
    const float right = x[at(last.offset)];
    if (transport.rank() == 1) x[at(last.offset)] = std::nextafter(right, 9.0F);
    const Floats before = x;
    const Floats g = gradient(layout, transport.rank(), 1, 1);
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        optimizer.step(x, g);
      } catch (const mismatch_error& fault) {
        errors[at(transport.rank())] = fault.what();
      }
      CHECK(x == before);
      CHECK(optimizer.steps() == 0);
    }
    terse::broadcast(transport, x);
    CHECK(x[at(last.offset)] == right);
    CHECK(optimizer.step(x, g).applied);
    // From then on parameters are the optimizer's affair.
    if (transport.rank() == 1) x[at(last.offset)] = 7;
    CHECK(optimizer.step(x, g).applied);
  });
  for (int rank = 0; rank < 3; ++rank)
    CHECK(errors[at(rank)] ==
          "terse: rank " + std::to_string(rank) +
              ", step 1: rank 1 starts from other parameters than rank 0, in '" + last.name +
              "': call terse::broadcast(transport, parameters) on all ranks before the first step, or load a "
              "checkpoint");
}

TEST_CASE("padding may differ, and so may models that are mixed") {
  const Layout layout = two_kinds();
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    Floats x = start(layout);
    const Segment& first = layout.segments().front();
    const index_t padding = first.offset + first.count;
    REQUIRE(padding % 64 != 0);
    x[at(padding)] = static_cast<float>(transport.rank());
    const Floats g = gradient(layout, transport.rank(), 1, 1);
    Optimizer averaging{Adam<>{}, transport, layout};
    CHECK(averaging.step(x, g).applied);
    x[at(first.offset)] = static_cast<float>(transport.rank());
    Optimizer mixing{DecentLaM<>{}, transport, layout};
    CHECK(mixing.step(x, g).applied);
  });
}

TEST_CASE("a rank that changes its learning rate alone is refused") {
  const Layout layout = two_kinds();
  CHECK_THROWS_AS(ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{Adam<>{}, transport, layout};
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
  CHECK_FALSE(refuses(Adam<>{}));
  CHECK(refuses(Adam<>{.learning_rate = -1}));
  CHECK(refuses(Adam<>{.learning_rate = not_a_number}));
  CHECK(refuses(Adam<>{.beta1 = 1}));
  CHECK(refuses(MomentumSgd<>{.momentum_correction = {.momentum = 1}}));
  CHECK(refuses(OneBitAdam<>{.preconditioner = {.freeze = AtStep{0}}}));
  CHECK(refuses(OneBitAdam<>{.preconditioner = {.freeze = VarianceRatio{2}}}));
  CHECK(refuses(OneBitAdam<>{.preconditioner = {.update_clip = 0}}));
  CHECK(refuses(OneBitAdam<>{.preconditioner = {.freeze = VarianceRatio{.horizon = ~std::uint64_t{0}}}}));
  CHECK(refuses(OneBitAdam<>{.error_feedback = {.follows_rate = true}}));
  CHECK(refuses(Adam<>{.epsilon = 0}));
  CHECK(refuses(Adam<>{}, Options{.clip_norm = 0}));
  ThreadGroup(1).run([&](Threads& transport) {
    Optimizer optimizer{Adam<>{}, transport, layout};
    Floats x(at(layout.size())), shorter(at(layout.size()) - 1);
    CHECK_THROWS_AS(optimizer.step(x, shorter), usage_error);
    CHECK_THROWS_AS(optimizer.step(shorter, x), usage_error);
  });
}

TEST_CASE("the rule for the freeze may change where there is room for it") {
  const Layout layout = two_kinds();
  const auto second_step = [&](OneBitAdam<> recipe, FrozenVariance then) {
    std::string said;
    ThreadGroup(1).run([&](Threads& transport) {
      Optimizer optimizer{recipe, transport, layout};
      Floats x = start(layout);
      optimizer.step(x, gradient(layout, 0, 1, 1));
      optimizer.recipe.preconditioner = then;
      try {
        optimizer.step(x, gradient(layout, 0, 2, 1));
      } catch (const usage_error& failure) {
        said = failure.what();
      }
    });
    return said;
  };
  const FrozenVariance ratio{.freeze = VarianceRatio{.horizon = 20}},
      longer{.freeze = VarianceRatio{.horizon = 100}}, at_step{.freeze = AtStep{50}};
  CHECK(second_step({.preconditioner = ratio}, longer).find("horizon") != std::string::npos);
  CHECK(second_step({.preconditioner = at_step}, ratio).find("horizon") != std::string::npos);
  CHECK(second_step({.preconditioner = ratio}, at_step).empty());
}

TEST_CASE("over any transport a step allocates nothing, and has the same bits") {
  const Layout layout = two_kinds();
  const auto train = [&](auto& transport) {
    Optimizer optimizer{one_bit<Ring>(), transport, layout};
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= 6; ++step)
      optimizer.step(x, gradient(layout, transport.rank(), step, 1));
    return x;
  };
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& threads) {
    AnyTransport any(threads.split(0, threads.rank()));
    const Floats plain = train(threads), same = train(any);
    CHECK(std::memcmp(plain.data(), same.data(), sizeof(float) * plain.size()) == 0);

    Optimizer optimizer{one_bit<Ring>(), any, layout};
    Floats x = start(layout);
    const Floats g = gradient(layout, any.rank(), 1, 1);
    barrier(any);
    barrier(any);
    const std::uint64_t before = allocations;
    for (int step = 1; step <= 20; ++step) optimizer.step(x, g);
    const std::uint64_t after = allocations;
    static std::atomic<int> counted{0};
    ++counted;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (counted % 3 != 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    barrier(any);
    CHECK(after == before);
  });
}

TEST_CASE("the mean of models that differ is the same on all ranks") {
  const Layout layout = two_kinds();
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{DSgd<>{.learning_rate = 0.1F}, transport, layout};
    Floats x = start(layout), mean(x.size());
    for (std::uint64_t step = 1; step <= 3; ++step)
      optimizer.step(x, gradient(layout, transport.rank(), step, 1));
    optimizer.mean_parameters(x, mean);
    Floats all(3 * x.size());
    all_gather(transport, x, all);
    bool differ = false;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double sum = static_cast<double>(all[i]) + static_cast<double>(all[x.size() + i]) +
                         static_cast<double>(all[2 * x.size() + i]);
      CHECK(mean[i] == static_cast<float>(sum / 3));
      differ = differ || all[i] != all[x.size() + i];
    }
    CHECK(differ);
    Floats small(3);
    CHECK_THROWS_AS(optimizer.mean_parameters(small, mean), usage_error);
  });
}

TEST_CASE("a local direction shows a gradient that is not finite, and keeps nothing of it") {
  const Layout layout = Layout::flat(100);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), 1e25F, -std::numeric_limits<float>::infinity()}) {
    CAPTURE(bad);
    ThreadGroup(2, std::chrono::seconds(5)).run([&](Threads& transport) {
      Optimizer optimizer{DAdam<>{}, transport, layout};
      Floats x(at(layout.size()), 1.0F), g(x.size(), 0.5F);
      optimizer.step(x, g);
      g[3] = bad;
      CHECK_THROWS_AS(optimizer.step(x, g), non_finite_error);
      optimizer.walk([&](const auto&, auto&& part, auto...) {
        if constexpr (requires { part.size(); })
          for (const auto value : part) CHECK(std::isfinite(static_cast<double>(value)));
      });
    });
  }
}

TEST_CASE("buffers of an inner recipe are averaged whatever else one rank alone keeps") {
  const Layout layout = Layout::flat(128);
  using Inner = Averaging<HeavyBall, Sign, Star>;
  ThreadGroup(3, std::chrono::seconds(10)).run([&](Threads& transport) {
    const SlowMo<Inner, Inside::together> recipe{.period = 2, .inner_buffers = InnerBuffers::average};
    Optimizer optimizer{recipe, transport, layout};
    Floats x(at(layout.size()), 1.0F), g(x.size());
    for (std::uint64_t step = 1; step <= 4; ++step) {
      g = gradient(layout, transport.rank(), step, 1);
      CHECK(optimizer.step(x, g).applied);
    }
    CHECK(equal(transport, x));
  });
}

TEST_CASE("a frozen variance outlives a reset of the inner recipe's buffers") {
  const Layout layout = Layout::flat(128);
  ThreadGroup(2, std::chrono::seconds(10)).run([&](Threads& transport) {
    const SlowMo<OneBitAdam<>, Inside::together> recipe{.inner = {.preconditioner = {.freeze = AtStep{3}}},
                                                        .period = 2,
                                                        .inner_buffers = InnerBuffers::reset};
    Optimizer optimizer{recipe, transport, layout};
    Floats x(at(layout.size()), 1.0F), before;
    for (std::uint64_t step = 1; step <= 9; ++step) {
      before = x;
      optimizer.step(x, gradient(layout, transport.rank(), step, 1));
    }
    CHECK(x != before);
  });
}
