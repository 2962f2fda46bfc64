// SPDX-License-Identifier: Apache-2.0
#include "guards.inc"
#include "local_support.hpp"
#include "terse/compressor/qsgd.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/local/cocktail_sgd.hpp"
#include "terse/optimizer/local/noloco.hpp"
#include "terse/optimizer/quantized_sgd.hpp"

// Guards of local methods: what is refused, gradients that are not finite, peers that are late or gone, allocations.

namespace {

using Slow = SlowMo<Adam<>>;
using Local = LocalSgd<MomentumSgd<>>;
using Overlap = OverlapLocalSgd<MomentumSgd<>>;
using Streamed = StreamingDiLoCo<MomentumSgd<>>;
using Cocktail = CocktailSgd<MomentumSgd<>>;

template <class Error, class Program>
std::string refusal(int ranks, Program program) {
  try {
    on_ranks(ranks, program);
  } catch (const Error& failure) {
    return failure.what();
  }
  return {};
}
bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

template <class R>
std::string construction(const R& recipe) {
  return refusal<usage_error>(1, [&](Threads& transport) {
    const Optimizer optimizer{recipe, transport, odd_sizes()};
  });
}

template <class O>
void take_steps(O& optimizer, Floats& x, int count) {
  for (int k = 0; k < count; ++k) optimizer.step(x, Quadratics::gradient<float>(at(optimizer.rank()), x));
}

}  // namespace

TEST_CASE("periods, momenta and pull-backs that can't work are refused, those of the inner recipe too") {
  CHECK(construction(Slow{}).empty());
  CHECK(construction(Overlap{}).empty());
  CHECK(says(construction(Slow{.period = 0}), "period must be at least 1"));
  CHECK(says(construction(Overlap{.period = 0}), "period must be at least 1"));
  CHECK(says(construction(Slow{.outer = {.rate = -1}}), "the outer rate"));
  CHECK(says(construction(Slow{.outer = {.momentum = 1}}), "the outer momentum"));
  CHECK(says(construction(Overlap{.merge = {.pullback = 1.01F}}), "pullback must be in [0, 1]"));
  CHECK(says(construction(Overlap{.merge = {.pullback = not_a_number}}), "pullback must be in [0, 1]"));
  CHECK(says(construction(Overlap{.merge = {.anchor_momentum = 1}}), "anchor_momentum"));
  CHECK(construction(Streamed{}).empty());
  CHECK(says(construction(Streamed{.outer = {.rate = -1}}), "the outer rate"));
  CHECK(says(construction(Streamed{.outer = {.local_share = 1.01F}}), "local_share must be in [0, 1]"));
  CHECK(
      says(construction(Streamed{.outer = {.local_share = not_a_number}}), "local_share must be in [0, 1]"));
  CHECK(says(construction(Streamed{.schedule = {.count = 0}}), "at least 1 fragment"));
  CHECK(says(construction(Streamed{.schedule = {.delay = 9}}), "must be at most the period"));
  CHECK(says(construction(Streamed{.inner_buffers = InnerBuffers::reset}), "inner_buffers must be keep"));
  CHECK(construction(Cocktail{}).empty());
  CHECK(says(construction(Cocktail{.schedule = {.count = 1, .delay = 2}}), "must be at most the period"));
  CHECK(says(construction(Cocktail{.compressor = {.selection = {.first = {.ratio = 2}}}}), "ratio must be"));
  CHECK(says(construction(Slow{.inner = {.beta1 = 2}}), "beta1"));
  CHECK(says(construction(Overlap{.inner = {.learning_rate = -1}}), "learning_rate"));
  CHECK_THROWS_WITH_AS((SlowMo<DmSgd<>, Inside::together>{.average_gradients_until = 3}.check()),
                       doctest::Contains("only inner recipes that run alone can average gradients first"),
                       usage_error);
}

TEST_CASE("inner recipes that are alone draw random numbers of their rank's own") {
  using Random = QuantizedSgd<Qsgd<2>, NoMomentum, Alone>;
  std::vector<Floats> ends(3);
  on_ranks(3, [&](Threads& transport) {
    Optimizer optimizer{LocalSgd<Random>{.inner = {.learning_rate = 1}}, transport, odd_sizes()};
    Floats& x = ends[at(transport.rank())] = start(odd_sizes());
    optimizer.step(x, gradient(odd_sizes(), 0, 1, 1));  // the same on all ranks
  });
  CHECK(ends[0] != ends[1]);
  CHECK(ends[1] != ends[2]);
}

TEST_CASE("steps differ in more than numbers and may not be recorded") {
  CHECK_FALSE(Slow::recordable());
  CHECK_FALSE(terse::detail::Composed<Overlap>::recordable());
  CHECK_FALSE(Streamed::recordable());
}

TEST_CASE("ranks that are set up with other periods are told so") {
  const auto differ = [](const auto& zero, const auto& other) {
    return refusal<mismatch_error>(2, [&](Threads& transport) {
      const Optimizer optimizer{transport.rank() == 1 ? other : zero, transport, odd_sizes()};
    });
  };
  CHECK(says(differ(Slow{.period = 3}, Slow{.period = 4}), "hyper-parameters"));
  CHECK(says(differ(Slow{}, Slow{.inner = {.beta1 = 0.5F}}), "hyper-parameters"));
  CHECK(says(differ(Slow{}, Slow{.outer = {.momentum = 0.1F}}), "hyper-parameters"));
  CHECK(says(differ(Slow{}, Slow{.inner_buffers = InnerBuffers::reset}), "hyper-parameters"));
  CHECK(says(differ(Overlap{}, Overlap{.merge = {.pullback = 0.5F}}), "hyper-parameters"));
  CHECK(says(differ(Streamed{}, Streamed{.schedule = {.count = 3}}), "hyper-parameters"));
  CHECK(says(differ(Streamed{}, Streamed{.schedule = {.delay = 2}}), "hyper-parameters"));
  CHECK(says(differ(Streamed{}, Streamed{.outer = {.local_share = 0}}), "hyper-parameters"));
}

TEST_CASE("recipes go around recipes that go around recipes, and the rate is the innermost one's") {
  on_ranks(3, [&](Threads& transport) {
    // Within its rank the inner local method has nobody to average with.
    Optimizer once{DiLoCo<Adam<>>{.period = 3}, transport, odd_sizes()};
    Optimizer twice{DiLoCo<LocalSgd<Adam<>>>{.inner = {.period = 2}, .period = 3}, transport, odd_sizes()};
    Floats x = start(once.layout()), y = x;
    for (int step = 1; step <= 7; ++step) {
      const float rate = 0.01F / static_cast<float>(step);
      once.learning_rate(rate);
      twice.learning_rate(rate);
      CHECK(twice.recipe.inner.inner.learning_rate == rate);
      CHECK(std::as_const(twice).learning_rate() == rate);
      take_steps(once, x, 1);
      take_steps(twice, y, 1);
      CHECK(x == y);
    }
    CHECK(x != start(once.layout()));
  });
}

TEST_CASE("rates that differ between ranks are noticed when they meet") {
  const auto check = [](const auto& recipe) {
    std::atomic<int> refused{0};
    on_ranks(2, [&](Threads& transport) {
      Optimizer optimizer{recipe, transport, odd_sizes()};
      if (transport.rank() == 1) optimizer.recipe.inner.learning_rate *= 2;
      Floats x = start(optimizer.layout());
      take_steps(optimizer, x, 2);
      try {
        take_steps(optimizer, x, 4);
      } catch (const wire_error& failure) {
        if (says(failure.what(), "belongs to another exchange")) ++refused;
      }
      // Nobody leaves before the other has seen it.
      barrier(transport);
    });
    CHECK(refused == 2);
  };
  check(Slow{.period = 3});
  check(Overlap{.period = 3});
  check(Streamed{.period = 3, .schedule = {.count = 1}});
}

TEST_CASE("settings that need room hold from construction on; the period may change") {
  on_ranks(3, [&](Threads& transport) {
    Optimizer optimizer{Local{.period = 4}, transport, odd_sizes()},
        steady{Local{.period = 4}, transport, odd_sizes()};
    Floats x = start(optimizer.layout()), y = x;
    optimizer.recipe.average_gradients_until = 2;
    optimizer.recipe.inner_buffers = InnerBuffers::average;
    take_steps(optimizer, x, 6);
    take_steps(steady, y, 6);
    CHECK(x == y);
    optimizer.recipe.period = 1;
    for (int k = 0; k < 3; ++k) {
      take_steps(optimizer, x, 1);
      Assembly<float, Threads> everyone(transport);
      for (const float other : everyone(transport, x[70], Phase::agree)) CHECK(other == x[70]);
    }
  });
}

namespace {

/// What each rank ends with, and after how long: `program(transport, name)`, run by three ranks.
struct Ends {
  std::vector<std::string> all = std::vector<std::string>(3);
  std::chrono::steady_clock::duration took{};
};
template <class Program>
Ends ends_of(std::chrono::milliseconds deadline, Program program) {
  Ends ends;
  const auto begin = std::chrono::steady_clock::now();
  try {
    ThreadGroup(3, deadline).run([&](Threads& transport) {
      std::string& end = ends.all[at(transport.rank())];
      try {
        program(transport);
        end = "done";
      } catch (const non_finite_error& failure) {
        end = "rank " + std::to_string(failure.culprit()) + " as " + std::to_string(failure.rank());
        throw;
      } catch (const peer_error& failure) {
        end = "peer " + std::to_string(failure.culprit());
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  ends.took = std::chrono::steady_clock::now() - begin;
  return ends;
}

template <class R>
void check_peers(const R& recipe, std::uint64_t bad_step) {
  CAPTURE(type_name<R>());
  CAPTURE(bad_step);
  using std::chrono::milliseconds;
  const auto run = [&](Threads& transport, int count, auto act) {
    Optimizer optimizer{recipe, transport, odd_sizes()};
    Floats x = start(optimizer.layout());
    for (int step = 1; step <= count; ++step) {
      Floats g = Quadratics::gradient<float>(at(transport.rank()), x);
      if (transport.rank() == 1 && step == static_cast<int>(bad_step)) act(g);
      optimizer.step(x, g);
    }
  };
  const std::vector<std::string> mourned{"peer 1", "", "peer 1"};
  const auto but_for = [&](std::vector<std::string> ends) {
    ends[1].clear();
    return ends;
  };
  // Rank 1's gradient is not finite: it says so of itself, in its own name, and the others miss it.
  const Ends poisoned = ends_of(std::chrono::seconds(20), [&](Threads& transport) {
    run(transport, 20, [](Floats& g) { g[70] = not_a_number; });
  });
  CHECK(poisoned.all[1] == "rank 1 as 1");
  CHECK(but_for(poisoned.all) == mourned);
  CHECK(poisoned.took < std::chrono::seconds(5));
  // It throws something of its own.
  const Ends thrown = ends_of(std::chrono::seconds(20), [&](Threads& transport) {
    run(transport, 20, [](Floats&) { throw std::runtime_error("out of data"); });
  });
  CHECK(but_for(thrown.all) == mourned);
  CHECK(thrown.took < std::chrono::seconds(5));
  // It comes too late.
  const Ends late = ends_of(milliseconds(200), [&](Threads& transport) {
    run(transport, 20, [](Floats&) { std::this_thread::sleep_for(milliseconds(1200)); });
  });
  CHECK(but_for(late.all) == mourned);
  CHECK(late.all[1] == "peer 1");
  CHECK(late.took < std::chrono::seconds(5));
  // It stops before its peers do.
  const Ends left = ends_of(std::chrono::seconds(20), [&](Threads& transport) {
    run(transport, transport.rank() == 1 ? static_cast<int>(bad_step) : 20, [](Floats&) {});
  });
  CHECK(left.all == std::vector<std::string>{"peer 1", "done", "peer 1"});
  CHECK(left.took < std::chrono::seconds(5));
}

}  // namespace

TEST_CASE("a peer that throws, is late or leaves ends the others with peer_error, and nobody hangs") {
  check_peers(Slow{.period = 4}, 3);
  check_peers(Slow{.period = 4}, 4);
  check_peers(Overlap{.period = 4}, 3);
  check_peers(Overlap{.period = 4}, 6);
  // Fragments are sent in steps 2, 4 and 6, and come in in steps 5, 7 and 9.
  const Streamed delayed{.period = 4, .schedule = {.count = 12, .delay = 3}};
  check_peers(delayed, 5);
  check_peers(delayed, 7);
  check_peers(Cocktail{}, 3);
}

TEST_CASE("an optimizer that goes with a round under way completes it for the others") {
  const auto check = [](const auto& recipe, const char* part) {
    for (const int early : {0, 1, 2}) {
      std::vector<Floats> ends(3), expected(3);
      const auto program = [&](Threads& transport, bool leaves, Floats& end) {
        std::optional<Optimizer<std::remove_cvref_t<decltype(recipe)>, Threads>> optimizer(
            std::in_place, recipe, transport, odd_sizes());
        Floats x = start(odd_sizes());
        take_steps(*optimizer, x, 4);
        // The others take up this round's mean only in walk or in step 8, which needs nobody's next message.
        if (leaves) {
          optimizer.reset();
        } else {
          take_steps(*optimizer, x, 3);
          Seen seen;
          optimizer->walk(seen);
          x.assign(seen.parts.at(part).begin(), seen.parts.at(part).end());
        }
        end = x;
        barrier(transport);
      };
      on_ranks(3, [&](Threads& transport) {
        program(transport, transport.rank() == early, ends[at(transport.rank())]);
        program(transport, false, expected[at(transport.rank())]);
      });
      for (int rank = 0; rank < 3; ++rank)
        if (rank != early) CHECK(ends[at(rank)] == expected[at(rank)]);
    }
  };
  check(Overlap{.period = 4}, "mean");
  check(Streamed{.period = 4, .schedule = {.count = 1, .delay = 4}}, "anchor");
}

TEST_CASE("rounds under way at the end of a program, on all ranks, are no error") {
  const auto check = [](const auto& recipe) {
    for (const int count : {4, 5, 8})
      CHECK(refusal<std::exception>(3, [&](Threads& transport) {
              Optimizer optimizer{recipe, transport, odd_sizes()};
              Floats x = start(odd_sizes());
              take_steps(optimizer, x, count);
            }).empty());
  };
  check(Overlap{.period = 4});
  check(Streamed{.period = 4, .schedule = {.count = 12, .delay = 3}});
  check(Cocktail{.period = 4, .schedule = {.count = 12, .delay = 3}});
}

TEST_CASE("what is not finite counts as 0 by policy, in steps alone and where gradients are averaged") {
  const auto run = [](const auto& recipe, std::uint64_t when, float poison) {
    std::vector<Floats> all(3);
    on_ranks(3, [&](Threads& transport) {
      Optimizer optimizer{recipe, transport, odd_sizes(), Options{.on_non_finite = NonFinite::zero}};
      Floats& x = all[at(transport.rank())] = start(odd_sizes());
      for (std::uint64_t step = 1; step <= 7; ++step) {
        Floats g = Quadratics::gradient<float>(at(transport.rank()), x);
        if (transport.rank() == 1 && step == when) g[70] = poison;
        optimizer.step(x, g);
      }
      Seen seen;
      optimizer.walk(seen);
      CHECK(all_finite(seen, x));
    });
    return all;
  };
  const auto check = [&](const auto& recipe) {
    for (const std::uint64_t when : std::initializer_list<std::uint64_t>{2, 4})
      for (const float poison : {not_a_number, unbounded, -1e30F}) {
        CHECK(run(recipe, when, poison) == run(recipe, when, 0));
        CHECK(run(recipe, when, poison) != run(recipe, when, 1));
      }
  };
  check(Slow{.period = 3, .average_gradients_until = 3});
  check(Overlap{.period = 3});
  check(Streamed{.period = 3, .schedule = {.count = 2, .delay = 1}});
}

TEST_CASE("a step that all skip changes nothing, and the period goes on where it was") {
  const auto check = [](const auto& recipe) {
    std::vector<Floats> with(3), without(3);
    on_ranks(3, [&](Threads& transport) {
      for (const bool bad : {false, true}) {
        Optimizer optimizer{recipe, transport, odd_sizes(), Options{.on_non_finite = NonFinite::skip}};
        Floats& x = (bad ? with : without)[at(transport.rank())];
        x = start(odd_sizes());
        for (int step = 1; step <= 9; ++step) {
          const Floats g = Quadratics::gradient<float>(at(transport.rank()), x);
          if (bad && step % 2 == 0) {
            Floats wrong = g;
            if (transport.rank() == 2) wrong[70] = unbounded;
            CHECK_FALSE(optimizer.step(x, wrong).applied);
          }
          optimizer.step(x, g);
        }
      }
    });
    // Adam's bias correction counts steps that were applied.
    CHECK(with == without);
  };
  check(Slow{.period = 3});
  check(Overlap{.period = 3});
  check(Streamed{.period = 3, .schedule = {.count = 12, .delay = 2}});
}

TEST_CASE("a step allocates nothing") {
  for (const Options& options : {Options{}, Options{.on_non_finite = NonFinite::skip, .clip_norm = 1}}) {
    check_allocations(Local{.period = 1}, options);
    check_allocations(Local{.period = 3, .average_gradients_until = 4, .inner_buffers = InnerBuffers::reset},
                      options);
    check_allocations(Slow{.period = 3, .inner_buffers = InnerBuffers::average}, options);
    check_allocations(Overlap{.period = 3}, options);
    check_allocations(NoLoCo<MomentumSgd<>>{.period = 3}, options);
    check_allocations(DiLoCo<MomentumSgd<>, Gossip>{.period = 3}, options);
    check_allocations(Streamed{.period = 3, .schedule = {.count = 12, .delay = 2}}, options);
    check_allocations(Cocktail{.schedule = {.count = 2, .delay = 1}}, options);
  }
}
