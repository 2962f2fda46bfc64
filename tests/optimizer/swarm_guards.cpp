// SPDX-License-Identifier: Apache-2.0
#include "guards.inc"
#include "swarm_support.hpp"
#include "terse/optimizer/local/async_swarm_sgd.hpp"

// Guards of SwarmSGD: what is refused, gradients that are not finite, peers that are gone, allocations.

namespace {

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

template <class O>
void take_steps(O& optimizer, Floats& x, int count) {
  for (int k = 0; k < count; ++k) optimizer.step(x, Quadratics::gradient<float>(at(optimizer.rank()), x));
}

}  // namespace

TEST_CASE("schedules that can't work or that differ are refused") {
  const auto construction = [](const auto& zero, const auto& other) {
    return refusal<error>(2, [&](Threads& transport) {
      const Optimizer optimizer{transport.rank() == 1 ? other : zero, transport, odd_sizes()};
    });
  };
  using graph::Spacing;
  const auto both = [&](const Blocking& recipe) { return construction(recipe, recipe); };
  CHECK(both({}).empty());
  CHECK(says(both({.schedule = {.period = 0}}), "period must be at least 1"));
  CHECK(says(both({.inner = {.learning_rate = -1}}), "learning_rate"));
  CHECK(says(construction(Blocking{}, Blocking{.schedule = {.period = 3}}), "hyper-parameters"));
  CHECK(says(construction(Blocking{}, Blocking{.schedule = {.graph = {1}}}), "hyper-parameters"));
  CHECK(says(construction(Blocking{}, Blocking{.schedule = {.seed = 1}}), "hyper-parameters"));
  CHECK(says(construction(Blocking{}, Blocking{.schedule = {.spacing = Spacing::geometric}}),
             "hyper-parameters"));
  CHECK_FALSE(Blocking::recordable());
}

TEST_CASE("rates that differ between partners are noticed when they meet") {
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
  check(Blocking{.schedule = {.period = 3}});
  check(NonBlocking{.schedule = {.period = 3}});
}

TEST_CASE("who throws ends its partners with peer_error, under its own name") {
  const auto check = [](const auto& recipe, int rank_that_stops, bool poisons) {
    std::vector<std::string> ends(3);
    try {
      on_ranks(3, [&](Threads& transport) {
        std::string& end = ends[at(transport.rank())];
        try {
          Optimizer optimizer{recipe, transport, odd_sizes()};
          Floats x = start(optimizer.layout());
          for (int step = 1; step <= 40; ++step) {
            Floats g = Quadratics::gradient<float>(at(transport.rank()), x);
            if (transport.rank() == rank_that_stops && step == 5) {
              if (!poisons) throw std::runtime_error("out of data");
              g[70] = not_a_number;
            }
            optimizer.step(x, g);
          }
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
    CHECK(ends == std::vector<std::string>{"peer 1", poisons ? "rank 1 as 1" : "", "peer 1"});
  };
  for (const bool poisons : {true, false}) {
    check(Blocking{.schedule = {.period = 2}}, 1, poisons);
    check(NonBlocking{.schedule = {.period = 2}}, 1, poisons);
  }
}

TEST_CASE("an optimizer that goes with a meeting under way completes it for its partner") {
  for (const int early : {0, 1}) {
    std::vector<Floats> ends(2), expected(2);
    on_ranks(2, [&](Threads& transport) {
      for (const bool leaves : {true, false}) {
        std::optional<Optimizer<NonBlocking, Threads>> optimizer(
            std::in_place, NonBlocking{.schedule = {.period = 4}}, transport, odd_sizes());
        Floats x = start(odd_sizes());
        take_steps(*optimizer, x, 6);
        if (leaves && transport.rank() == early) {
          optimizer.reset();
        } else {
          Seen seen;
          optimizer->walk(seen);
          x.assign(seen.parts.at("met").begin(), seen.parts.at("met").end());
          CHECK(x != Floats(x.size()));
        }
        (leaves ? ends : expected)[at(transport.rank())] = x;
        barrier(transport);
      }
    });
    CHECK(ends[at(1 - early)] == expected[at(1 - early)]);
  }
}

TEST_CASE("a step that all skip changes nothing, and the schedule goes on where it was") {
  const auto check = [](const auto& recipe) {
    std::vector<Floats> with(3), without(3);
    on_ranks(3, [&](Threads& transport) {
      for (const bool bad : {false, true}) {
        Optimizer optimizer{recipe, transport, odd_sizes(), Options{.on_non_finite = NonFinite::skip}};
        Floats& x = (bad ? with : without)[at(transport.rank())] = start(odd_sizes());
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
    CHECK(with == without);
  };
  check(Blocking{.schedule = {.period = 3, .spacing = graph::Spacing::geometric}});
  check(NonBlocking{.schedule = {.period = 3}});
}

TEST_CASE("what is not finite counts as 0 by policy") {
  const auto run = [](float poison) {
    std::vector<Floats> all(2);
    on_ranks(2, [&](Threads& transport) {
      Optimizer optimizer{NonBlocking{.schedule = {.period = 2}}, transport, odd_sizes(),
                          Options{.on_non_finite = NonFinite::zero}};
      Floats& x = all[at(transport.rank())] = start(odd_sizes());
      for (int step = 1; step <= 7; ++step) {
        Floats g = Quadratics::gradient<float>(at(transport.rank()), x);
        if (transport.rank() == 1 && step == 3) g[70] = poison;
        optimizer.step(x, g);
      }
      Seen seen;
      optimizer.walk(seen);
      CHECK(all_finite(seen, x));
    });
    return all;
  };
  for (const float poison : {not_a_number, unbounded}) CHECK(run(poison) == run(0));
  CHECK(run(1) != run(0));
}

namespace {

/// As check_allocations, with two ranks: both complete the same meetings in the same steps, so that none is under way
/// with one that only counts.
template <class R>
void check_pair(const R& recipe) {
  CAPTURE(type_name<R>());
  on_ranks(2, [&](Threads& transport) {
    Optimizer optimizer{recipe, transport, two_kinds()};
    Floats x = start(two_kinds());
    const Floats g = gradient(two_kinds(), transport.rank(), 1, 1);
    barrier(transport);
    barrier(transport);
    const std::uint64_t before = allocations;
    for (int step = 1; step <= 20; ++step) optimizer.step(x, g);
    const std::uint64_t after = allocations;
    static std::atomic<int> counted{0};
    ++counted;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (counted % 2 != 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    barrier(transport);
    CHECK(after == before);
  });
}

}  // namespace

TEST_CASE("a step allocates nothing") {
  check_allocations(Blocking{.schedule = {.period = 2}}, {});
  check_allocations(AsyncSwarmSgd<MomentumSgd<>>{.period = 2}, {});
  check_pair(NonBlocking{.schedule = {.period = 2}});
  check_pair(LateOnLattice{.schedule = {.period = 2}, .compressor = {0.1F}});
}
