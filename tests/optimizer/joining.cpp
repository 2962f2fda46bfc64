// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../transport/trapped.hpp"
#include "members.hpp"
#include "terse/optimizer/carry_over.hpp"
#include "terse/optimizer/local/noloco.hpp"
#include "terse/optimizer/local/sparse_loco.hpp"
#include "terse/terse.hpp"

// Ranks that join a running group: ThreadGroup::add_rank, Threads::admit and carry_over.

namespace {

using namespace std::chrono_literals;
using terse::peer_error;
using terse::Regrouped;
using terse::ThreadGroup;
using terse::Threads;
using terse::test::Event;
using terse::test::gradient;
using terse::test::layout_of;
using terse::test::state_of;
using terse::test::sum_of;

/// Returns the wider group once some rank waits to join; the ranks ask together, at most 100,000 times.
std::optional<Regrouped<Threads>> wait_and_admit(Threads& ranks) {
  for (int tries = 0; tries < 100000; ++tries) {
    if (auto wider = ranks.admit()) return wider;
    terse::barrier(ranks);
    std::this_thread::sleep_for(100us);
  }
  return {};
}

/// Runs a group of `ranks` ranks, and `guests` further ones that join it.
void run_with(ThreadGroup& group, int guests, const std::function<void(Threads&)>& ranks,
              const std::function<void(Threads&)>& guest) {
  std::vector<std::thread> threads;
  for (int k = 0; k < guests; ++k)
    threads.emplace_back([&] {
      try {
        group.add_rank(guest, 100s);
      } catch (const std::exception& failure) {
        FAIL_CHECK(failure.what());
      }
    });
  try {
    group.run(ranks);
  } catch (const std::exception& failure) {
    FAIL_CHECK(failure.what());
  }
  for (std::thread& one : threads) one.join();
}

TEST_CASE("a thread joins a group, and messages reach it") {
  ThreadGroup group(3, 20s);
  std::atomic<int> done = 0;
  const auto refuses = [](Threads& before, int rank) {
    const std::string told =
        "terse: rank " + std::to_string(rank) + ": this rank has gone on in another group";
    CHECK_THROWS_WITH_AS(terse::barrier(before), doctest::Contains(told.c_str()), terse::usage_error);
    CHECK_THROWS_WITH_AS(before.here(), doctest::Contains(told.c_str()), terse::usage_error);
  };
  const auto together = [&](Threads& four, int first) {
    CHECK(four.size() == 4);
    CHECK(sum_of(four, first) == 0 + 1 + 2 + 10);
    ++done;
  };
  run_with(
      group, 1,
      [&](Threads& transport) {
        const int rank = transport.rank();
        Threads reversed = transport.split(0, -rank);
        auto wider = wait_and_admit(transport);
        REQUIRE(wider);
        CHECK(wider->before == std::vector<int>{0, 1, 2, -1});
        CHECK(wider->transport.rank() == rank);
        CHECK_THROWS_WITH_AS(static_cast<void>(transport.admit()),
                             doctest::Contains("the ranks have gone on in another group"),
                             terse::usage_error);
        refuses(transport, rank);
        refuses(reversed, rank);
        together(wider->transport, rank);
      },
      [&](Threads& transport) {
        CHECK(transport.rank() == 3);
        together(transport, 10);
      });
  CHECK(done == 4);
}

TEST_CASE("all ranks get the answer of the first one that asks") {
  ThreadGroup group(2, 20s);
  Event asked, waits;
  std::atomic<int> none = 0, more = 0;
  std::thread guest([&] {
    CHECK(asked.wait());
    group.add_rank([&](Threads& transport) { more += transport.size(); }, 100s);
  });
  group.run([&](Threads& transport) {
    if (transport.rank() == 0) {
      none += !transport.admit();  // nothing waits yet
      asked.set();
      std::this_thread::sleep_for(200ms);
      auto wider = transport.admit();
      REQUIRE(wider);
      more += wider->transport.size();
      waits.set();
    } else {
      CHECK(waits.wait());  // the guest has been admitted in the second call
      none += !transport.admit();
      auto wider = transport.admit();
      REQUIRE(wider);
      more += wider->transport.size();
    }
  });
  guest.join();
  CHECK(none == 2);
  CHECK(more == 3 * 3);
}

TEST_CASE("ranks that don't wait for each other learn of a rank that has joined in their next call") {
  ThreadGroup group(2, 20s);
  Event moved;
  std::atomic<int> sizes = 0;
  run_with(
      group, 1,
      [&](Threads& transport) {
        std::optional<Regrouped<Threads>> wider;
        if (transport.rank() == 0) {
          for (int tries = 0; tries < 100000 && !wider; ++tries) {
            std::this_thread::sleep_for(100us);
            wider = transport.admit(true);
          }
          moved.set();
        } else {
          CHECK(moved.wait());
          wider = transport.admit(true);  // its first call
        }
        REQUIRE(wider);
        sizes += static_cast<int>(sum_of(wider->transport, 1));
      },
      [&](Threads& transport) { sizes += static_cast<int>(sum_of(transport, 1)); });
  CHECK(sizes == 9);
}

TEST_CASE("a rank that has joined may be lost; the others go on, and its exception is add_rank's") {
  ThreadGroup group(2, 20s);
  std::string text;
  std::thread guest([&] {
    try {
      group.add_rank([](Threads&) { throw std::runtime_error("the guest is broken"); }, 100s);
    } catch (const std::runtime_error& failure) {
      text = failure.what();
    }
  });
  std::atomic<int> left = 0;
  group.run([&](Threads& transport) {
    auto wider = wait_and_admit(transport);
    REQUIRE(wider);
    CHECK_THROWS_WITH_AS(terse::barrier(wider->transport), doctest::Contains("the guest is broken"),
                         peer_error);
    auto [two, numbers] = wider->transport.regroup();
    CHECK(numbers == std::vector<int>{0, 1});
    left += static_cast<int>(sum_of(two, 1));
  });
  guest.join();
  CHECK(left == 4);
  CHECK(text == "the guest is broken");
}

TEST_CASE("a rank that is lost between the others' calls of admit is lost to the wider group") {
  ThreadGroup group(3, 20s);
  std::atomic<int> sum = 0;
  const auto go_on = [&](Threads& wider) {
    CHECK_THROWS_WITH_AS(terse::barrier(wider), doctest::Contains("lost after its call"), peer_error);
    Threads three = wider.regroup().transport;
    CHECK(three.size() == 3);
    sum += static_cast<int>(sum_of(three, 1));
  };
  run_with(
      group, 1,
      [&](Threads& transport) {
        if (transport.rank() == 0) {
          std::optional<Regrouped<Threads>> wider;
          for (int tries = 0; tries < 100000 && !wider; ++tries) {
            std::this_thread::sleep_for(100us);
            wider = transport.admit();
          }
          REQUIRE(wider);
          throw std::runtime_error("lost after its call");
        }
        CHECK_THROWS_AS(terse::barrier(transport), peer_error);
        auto [wider, numbers] = transport.regroup();
        CHECK(numbers == std::vector<int>{0, 1, 2, -1});
        go_on(wider);
      },
      go_on);
  CHECK(sum == 9);
}

TEST_CASE("a thread that no rank admits is told why") {
  ThreadGroup group(2, 20s);
  CHECK_THROWS_WITH_AS(group.add_rank([](Threads&) {}, 50ms),
                       doctest::Contains("no rank of the group has called admit within 50 ms"), peer_error);
  CHECK_THROWS_AS(group.add_rank([](Threads&) {}, 0ms), terse::usage_error);
  Event waits;
  std::string text;
  std::thread guest([&] {
    try {
      waits.set();
      group.add_rank([](Threads&) {}, 100s);
    } catch (const peer_error& failure) {
      text = failure.what();
    }
  });
  CHECK(waits.wait());
  std::this_thread::sleep_for(200ms);
  group.run([](Threads& transport) {
    Threads channel = transport.split(0, transport.rank());
    CHECK_THROWS_WITH_AS(static_cast<void>(channel.admit()),
                         doctest::Contains("a channel that split has made"), terse::usage_error);
  });
  guest.join();
  CHECK(text.find("the group has ended before it has admitted this rank") != std::string::npos);
  CHECK_THROWS_WITH_AS(group.add_rank([](Threads&) {}, 100s), doctest::Contains("the group has ended"),
                       peer_error);
}

/// Sets an event at the end of its thread.
struct AtEnd {
  Event* event = nullptr;
  ~AtEnd() {
    if (event != nullptr) event->set();
  }
};
thread_local AtEnd at_end;

TEST_CASE("no rank is admitted while one has finished its program; after regroup it is") {
  Event ended;
  ThreadGroup group(3, 20s);
  std::atomic<int> sum = 0;
  run_with(
      group, 1,
      [&](Threads& transport) {
        if (transport.rank() == 2) {
          at_end.event = &ended;
          return;
        }
        CHECK(ended.wait());
        const auto begin = std::chrono::steady_clock::now();
        CHECK_THROWS_WITH_AS(for (int tries = 0; tries < 100000 && !transport.admit(); ++tries)
                                 std::this_thread::sleep_for(100us),
                             doctest::Contains("rank 2 has finished its program"), peer_error);
        Threads two = transport.regroup().transport;
        CHECK(std::chrono::steady_clock::now() - begin < 10s);
        auto wider = wait_and_admit(two);
        REQUIRE(wider);
        CHECK(wider->before == std::vector<int>{0, 1, -1});
        sum += static_cast<int>(sum_of(wider->transport, 1));
      },
      [&](Threads& transport) { sum += static_cast<int>(sum_of(transport, 1)); });
  CHECK(sum == 9);
}

TEST_CASE("a rank without which the others have gone on is told so by admit") {
  ThreadGroup group(2, 1s);
  Event gone_on;
  bool told = false;
  group.run([&](Threads& transport) {
    if (transport.rank() == 0) {
      CHECK_THROWS_AS(terse::barrier(transport), peer_error);
      CHECK(transport.regroup().transport.size() == 1);
      gone_on.set();
      return;
    }
    CHECK(gone_on.wait());
    CHECK_THROWS_WITH_AS(static_cast<void>(transport.admit()),
                         doctest::Contains("the other ranks go on without this one"), peer_error);
    told = true;
  });
  CHECK(told);
}

TEST_CASE("a rank that has joined and neither asks nor ends is left at the deadline") {
  ThreadGroup group(2, 1s);
  Event gone_on;
  std::atomic<int> sum = 0;
  run_with(
      group, 1,
      [&](Threads& transport) {
        auto wider = wait_and_admit(transport);
        REQUIRE(wider);
        auto [two, numbers] = wider->transport.regroup();
        CHECK(numbers == std::vector<int>{0, 1});
        sum += static_cast<int>(sum_of(two, 1));
        gone_on.set();
      },
      [&](Threads& transport) {
        CHECK(gone_on.wait());
        CHECK_THROWS_WITH_AS(static_cast<void>(transport.regroup()),
                             doctest::Contains("the other ranks go on without this one"), peer_error);
      });
  CHECK(sum == 4);
}

TEST_CASE("ranks that have joined go on after the group's own programs have ended") {
  for (int tries = 0; tries < 20; ++tries) {
    ThreadGroup group(1, 20s);
    std::atomic<int> sum = 0;
    run_with(
        group, 2,
        [&](Threads& transport) {
          while (transport.size() < 3) {
            auto wider = wait_and_admit(transport);
            REQUIRE(wider);
            transport = std::move(wider->transport);
          }
        },
        [&](Threads& transport) {
          std::optional<Regrouped<Threads>> wider;
          while (transport.size() < 3) {
            wider = wait_and_admit(transport);
            REQUIRE(wider);
            transport = std::move(wider->transport);
          }
          CHECK_THROWS_AS(terse::barrier(transport), peer_error);
          Threads two = transport.regroup().transport;
          sum += static_cast<int>(sum_of(two, 1));
        });
    CHECK(sum == 4);
  }
}

/// Ranks by their numbers after others have joined: models and states right after the carry_over, and models at the end.
struct Joined {
  std::vector<std::map<std::string, std::vector<std::byte>>> states;
  std::vector<std::vector<float>> first, last;
  std::vector<terse::CarriedOver> carried;
};

/// Trains on two ranks for `before` steps, and on four, of which two have joined, until step `last`. `target(rank)` is the
/// minimum of the rank's loss.
template <class Recipe>
Joined train(const Recipe& recipe, std::uint64_t before_steps, std::uint64_t last, float (*target)(int)) {
  const terse::Layout layout = layout_of();
  Joined result;
  result.states.resize(4);
  result.first.resize(4);
  result.last.resize(4);
  result.carried.resize(4);
  std::atomic<int> done = 0;
  const auto finish = [&](terse::Optimizer<Recipe, Threads>& now, std::vector<float>& x,
                          const terse::CarriedOver& carried) {
    const auto me = static_cast<std::size_t>(now.rank());
    result.carried[me] = carried;
    result.states[me] = state_of(now);
    result.first[me] = x;
    CHECK(now.steps() == before_steps);
    std::vector<float> g(x.size());
    while (now.steps() < last) {
      for (std::size_t i = 0; i < x.size(); ++i) g[i] = x[i] - target(now.rank());
      now.step(x, g);
    }
    result.last[me] = x;
    ++done;
  };
  ThreadGroup group(2, 20s);
  Event trained;
  run_with(
      group, 2,
      [&](Threads& transport) {
        std::vector<float> x(static_cast<std::size_t>(layout.size()), 10.0F), g(x.size());
        terse::Optimizer before{recipe, transport, layout};
        while (before.steps() < before_steps) {
          for (std::size_t i = 0; i < x.size(); ++i) g[i] = x[i] - target(transport.rank());
          before.step(x, g);
        }
        std::this_thread::sleep_for(100ms);  // both guests wait
        auto wider = wait_and_admit(transport);
        REQUIRE(wider);
        REQUIRE(wider->transport.size() == 4);
        terse::Optimizer now{before.recipe, wider->transport, layout, before.options()};
        finish(now, x, terse::carry_over(before, now, x));
      },
      [&](Threads& transport) {
        std::vector<float> x(static_cast<std::size_t>(layout.size()), -7.0F);  // is overwritten
        terse::Optimizer now{recipe, transport, layout};
        finish(now, x, terse::carry_over(now, x));
      });
  CHECK(done == 4);
  return result;
}

/// Checks that ranks 2 and 3, which have joined, have rank 0's state and model, but for errors.
void check_copies(const Joined& joined) {
  for (const std::size_t rank : {std::size_t{2}, std::size_t{3}}) {
    CHECK(joined.first[rank] == joined.first[0]);
    REQUIRE(joined.states[rank].size() == joined.states[0].size());
    for (const auto& part : joined.states[0]) {
      const std::string& name = part.first;
      CAPTURE(name);
      if (!name.ends_with("error") && !name.ends_with("error_scales"))
        CHECK(joined.states[rank].at(name) == part.second);
      else
        CHECK(joined.states[rank].at(name) == std::vector<std::byte>(joined.states[rank].at(name).size()));
    }
  }
}

/// Trains with different targets, whose mean over four ranks is 1.5.
template <class Recipe>
void check_joins(const Recipe& recipe, std::uint64_t before, float within, bool equal) {
  const Joined joined = train(recipe, before, 600, [](int rank) { return static_cast<float>(rank); });
  check_copies(joined);
  for (const std::vector<float>& model : joined.last) {
    REQUIRE(model.size() >= static_cast<std::size_t>(terse::test::elements));
    CHECK(model[0] == doctest::Approx(1.5).epsilon(within));
    if (equal) CHECK(model == joined.last[0]);
  }
}
/// Trains with one target: two ranks that join change nothing, to the bit, since means of equal values are exact.
template <class Recipe>
void check_same_path(const Recipe& recipe, std::uint64_t before, std::uint64_t last) {
  const auto one = [](int) { return 1.0F; };
  const Joined joined = train(recipe, before, last, one);
  std::vector<float> alone(static_cast<std::size_t>(layout_of().size()), 10.0F);
  ThreadGroup(2, 20s).run([&](Threads& transport) {
    std::vector<float> x(alone.size(), 10.0F), g(x.size());
    terse::Optimizer undisturbed{recipe, transport, layout_of()};
    while (undisturbed.steps() < last) {
      for (std::size_t i = 0; i < x.size(); ++i) g[i] = x[i] - 1.0F;
      undisturbed.step(x, g);
    }
    if (transport.rank() == 0) alone = x;
  });
  for (const std::vector<float>& model : joined.last) CHECK(model == alone);
}

const terse::MomentumSgd<> inner{.learning_rate = 0.05F, .momentum_correction = {.momentum = 0.5F}};

TEST_CASE("ranks join SGD and Adam as replicas, on the path of those that were there") {
  check_joins(inner, 10, 1e-4F, true);
  check_same_path(inner, 10, 30);
  check_same_path(terse::Adam<>{.learning_rate = 0.1F}, 10, 30);
}
TEST_CASE("ranks join 1-bit Adam in both stages; their errors start at 0") {
  const terse::OneBitAdam<> recipe{.learning_rate = 0.02F, .preconditioner = {.freeze = terse::AtStep{8}}};
  check_joins(recipe, 4, 0.1F, true);
  check_joins(recipe, 20, 0.1F, true);
}
TEST_CASE("ranks join local methods at meetings and between them") {
  const terse::DiLoCo<terse::MomentumSgd<>> recipe{
      .inner = inner, .period = 4, .outer = {.rate = 0.5F, .momentum = 0.5F}};
  check_joins(recipe, 12, 0.1F, true);
  check_joins(recipe, 14, 0.1F, true);
  check_same_path(recipe, 12, 40);
  check_same_path(recipe, 14, 40);
  terse::SparseLoCo<terse::MomentumSgd<>> sparse{
      .inner = {.learning_rate = 0.02F, .momentum_correction = {.momentum = 0}}, .period = 4, .decay = 1};
  sparse.compressor.inner.selection.ratio = 0.25;
  check_joins(sparse, 12, 0.1F, true);
  check_joins(terse::NoLoCo<terse::MomentumSgd<>>{.inner = inner, .period = 4}, 12, 0.3F, false);
}
TEST_CASE("ranks join while means and meetings are in flight") {
  using Sgd = terse::MomentumSgd<>;
  check_same_path(terse::OverlapLocalSgd<Sgd>{.inner = inner, .period = 4}, 13, 40);
  check_same_path(terse::CocodSgd<Sgd>{.inner = inner, .period = 4}, 13, 40);
  check_joins(terse::StreamingDiLoCo<Sgd>{.inner = inner,
                                          .period = 4,
                                          .outer = {.rate = 0.5F, .momentum = 0.5F},
                                          .schedule = {.count = 2, .delay = 2}},
              13, 0.3F, false);
  check_joins(terse::NonBlockingSwarmSgd<Sgd>{.inner = inner, .schedule = {.period = 4}}, 13, 0.5F, false);
}
TEST_CASE("ranks join one after another, and one with other settings ends alone") {
  using Trainer = terse::Optimizer<terse::MomentumSgd<>, Threads>;
  const terse::Layout layout = layout_of();
  ThreadGroup group(2, 20s);
  std::vector<Event> sizes(5);
  std::mutex mutex;
  std::vector<std::vector<float>> models;
  const auto train = [&](Threads& transport, const terse::MomentumSgd<>& recipe, bool joins) {
    std::vector<float> x(static_cast<std::size_t>(layout.size()), 10.0F), g(x.size());
    std::unique_ptr<Trainer> optimizer;
    bool changed = true, lost = false;
    std::uint64_t last = 100000;
    while (true) {
      if (lost) transport = transport.regroup().transport;
      lost = false;
      try {
        if (changed) {
          auto next = std::make_unique<Trainer>(recipe, transport, layout);
          if (optimizer)
            terse::carry_over(*optimizer, *next, x);
          else if (joins)
            terse::carry_over(*next, x);
          optimizer = std::move(next);
          changed = false;
          sizes[static_cast<std::size_t>(transport.size())].set();
        }
        if (optimizer->steps() >= last) break;
        gradient(transport.rank(), x, g);
        optimizer->step(x, g);
        if (transport.size() == 4 && last == 100000) last = optimizer->steps() / 3 * 3 + 30;
        if (optimizer->steps() % 3 == 0)
          if (auto wider = transport.admit()) {
            transport = std::move(wider->transport);
            changed = true;
          }
        std::this_thread::sleep_for(100us);
      } catch (const peer_error&) {
        if (!optimizer && !joins) throw;
        lost = changed = true;
      } catch (const terse::mismatch_error&) {
        if (!optimizer) throw;
        lost = changed = true;
      }
    }
    const std::lock_guard lock(mutex);
    models.push_back(x);
  };
  const auto join = [&](std::size_t present, float rate) {
    CHECK(sizes[present].wait());
    terse::MomentumSgd<> recipe = inner;
    recipe.learning_rate = rate;
    group.add_rank([&](Threads& transport) { train(transport, recipe, true); }, 100s);
  };
  std::vector<std::thread> guests;
  for (const std::size_t present : {std::size_t{2}, std::size_t{3}})
    guests.emplace_back([&, present] {
      CHECK_THROWS_WITH_AS(join(present, 0.5F),
                           doctest::Contains("rank 0 was set up with other hyper-parameters"),
                           terse::mismatch_error);
      join(present, inner.learning_rate);
    });
  group.run([&](Threads& transport) { train(transport, inner, false); });
  for (std::thread& one : guests) one.join();
  REQUIRE(models.size() == 4);
  for (const std::vector<float>& model : models) CHECK(model == models[0]);
}
TEST_CASE("ranks join gossip with the model of a rank that was there") {
  check_joins(terse::DecentLaM<>{.learning_rate = 0.01F}, 10, 0.1F, false);
  check_joins(terse::SwarmSgd<terse::MomentumSgd<>>{.inner = {.learning_rate = 0.01F,
                                                              .momentum_correction = {.momentum = 0}},
                                                    .schedule = {.period = 2}},
              10, 0.3F, false);
}

TEST_CASE(
    "a rank that is lost in any batch of an optimizer's constructor or a carry_over leaves parameters as "
    "they were, and the others try "
    "again") {
  using Faulty = terse::test::Trapped<Threads>;
  using Recipe = terse::DiLoCo<terse::MomentumSgd<>>;
  const Recipe recipe{.inner = inner, .period = 4, .outer = {.rate = 0.5F, .momentum = 0.5F}};
  const terse::Layout layout = layout_of();
  int losses = 0;
  for (long at = 0; at < 100; ++at) {
    CAPTURE(at);
    std::atomic<int> lost = 0, ended = 0;
    std::mutex mutex;
    std::vector<std::vector<float>> models;
    // Rank 0, which is ahead, throws in batch `at` of them.
    const auto carry = [&](Threads& transport, std::vector<float>& x, const auto& attempt) {
      const bool victim = transport.rank() == 0 && transport.size() == 4;
      const std::vector<float> own = x;
      while (true) {
        terse::test::Trap trap;
        Faulty channel(transport.split(0, transport.rank()), trap);
        try {
          if (victim) trap.at = trap.batches + at;
          terse::Optimizer now{recipe, channel, layout};
          attempt(now);
          trap.at = -1;
          std::vector<float> g(x.size());
          while (now.steps() < 20) {
            gradient(transport.rank(), x, g);
            now.step(x, g);
          }
          ++ended;
          const std::lock_guard lock(mutex);
          models.push_back(x);
          return;
        } catch (const peer_error&) {
          if (victim) throw std::runtime_error("lost");
          ++lost;
          CHECK(x == own);
        }
        transport = transport.regroup().transport;
      }
    };
    ThreadGroup group(3, 20s);
    run_with(
        group, 1,
        [&](Threads& transport) {
          std::vector<float> x(static_cast<std::size_t>(layout.size()), 10.0F), g(x.size());
          terse::test::Trap none;
          Faulty three(transport.split(0, transport.rank()), none);
          terse::Optimizer before{recipe, three, layout};
          while (before.steps() < 8) {
            gradient(transport.rank(), x, g);
            before.step(x, g);
          }
          auto wider = wait_and_admit(transport);
          REQUIRE(wider);
          carry(wider->transport, x, [&](auto& now) { terse::carry_over(before, now, x); });
        },
        [&](Threads& transport) {
          std::vector<float> x(static_cast<std::size_t>(layout.size()), -7.0F);
          carry(transport, x, [&](auto& now) { terse::carry_over(now, x); });
        });
    if (lost == 0) break;
    ++losses;
    CHECK(ended == 3);
    for (const std::vector<float>& model : models) CHECK(model == models[0]);
  }
  CHECK(losses > 5);
}

TEST_CASE("carry_over refuses when all ranks join, and a rank whose optimizer differs") {
  const terse::Layout layout = layout_of();
  std::atomic<int> refused = 0;
  ThreadGroup(2, 20s).run([&](Threads& transport) {
    std::vector<float> x(static_cast<std::size_t>(layout.size()), 1.0F);
    terse::Optimizer now{inner, transport, layout};
    CHECK_THROWS_WITH_AS(terse::carry_over(now, x), doctest::Contains("no rank has a state to carry over"),
                         terse::usage_error);
    ++refused;
  });
  CHECK(refused == 2);
}

}  // namespace
