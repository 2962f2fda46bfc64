// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "membership_support.hpp"
#include "terse/optimizer/local/noloco.hpp"
#include "terse/optimizer/local/sparse_loco.hpp"
#include "terse/terse.hpp"

// Ranks that go on without one that is lost: Threads::regroup and carry_over.

namespace {

using namespace std::chrono_literals;
using terse::peer_error;
using terse::ThreadGroup;
using terse::Threads;
using terse::test::check_goes_on;
using terse::test::Event;
using terse::test::gradient;
using terse::test::inner;
using terse::test::layout_of;
using terse::test::state_of;
using terse::test::sum_of;

template <class H>
H number(float value) {
  if constexpr (std::is_same_v<H, float>)
    return value;
  else
    return terse::narrowed<H>(value);
}

TEST_CASE("the other ranks go on without one that throws, and the group doesn't throw its exception") {
  std::vector<std::vector<int>> before(4);
  std::vector<double> sums(4);
  ThreadGroup(4, 20s).run([&](Threads& transport) {
    const int rank = transport.rank();
    if (rank == 2) throw std::runtime_error("rank 2 is broken");
    std::string text;
    try {
      terse::barrier(transport);
    } catch (const peer_error& lost) {
      CHECK(lost.culprit() == 2);
      text = lost.what();
    }
    CHECK(text.find("rank 2 is broken") != std::string::npos);
    auto [ranks, numbers] = transport.regroup();
    CHECK(ranks.size() == 3);
    CHECK(numbers[static_cast<std::size_t>(ranks.rank())] == rank);
    before[static_cast<std::size_t>(rank)] = numbers;
    sums[static_cast<std::size_t>(rank)] = sum_of(ranks, rank + 1);
  });
  for (const int rank : {0, 1, 3}) {
    CHECK(before[static_cast<std::size_t>(rank)] == std::vector<int>{0, 1, 3});
    CHECK(sums[static_cast<std::size_t>(rank)] == 1 + 2 + 4);
  }
}

TEST_CASE("two losses, one after the other, and an end by an exception of those who went on") {
  std::atomic<int> last = 0;
  Event others;
  std::string text;
  try {
    ThreadGroup(5, 20s).run([&](Threads& transport) {
      const int rank = transport.rank();
      if (rank == 0) throw std::runtime_error("the first loss");
      CHECK_THROWS_AS(terse::barrier(transport), peer_error);
      Threads four = transport.regroup().transport;
      if (rank == 3) throw std::runtime_error("the second loss");
      CHECK_THROWS_AS(terse::barrier(four), peer_error);
      auto [three, numbers] = four.regroup();
      CHECK(numbers == std::vector<int>{0, 1, 3});  // of the four
      CHECK(sum_of(three, rank) == 1 + 2 + 4);
      if (++last == 3) others.set();
      if (rank == 4) {
        CHECK(others.wait());
        throw std::runtime_error("the end");
      }
      CHECK_THROWS_AS(terse::barrier(three), peer_error);
    });
  } catch (const std::exception& failure) {
    text = failure.what();
  }
  CHECK(last == 3);
  CHECK(text == "the end");
}

TEST_CASE("a rank that is late is left at once, and learns that the others have gone on") {
  Event gone_on;
  std::atomic<int> told = 0;
  std::atomic<int> soon = 0;
  ThreadGroup(3, 60s).run([&](Threads& transport) {
    if (transport.rank() == 1) {
      CHECK(gone_on.wait());
      CHECK_THROWS_AS(terse::barrier(transport), peer_error);
      try {
        static_cast<void>(transport.regroup());
      } catch (const peer_error& refusal) {
        told +=
            std::string(refusal.what()).find("the other ranks go on without this one") != std::string::npos;
      }
      return;
    }
    int value = 0;
    const terse::Receive late{1, reinterpret_cast<std::byte*>(&value), sizeof value, false};
    CHECK_THROWS_AS(transport.exchange({}, {&late, 1}, terse::Phase::reduce).wait(200ms), peer_error);
    const auto begin = std::chrono::steady_clock::now();
    Threads ranks = transport.regroup().transport;
    soon += std::chrono::steady_clock::now() - begin < 20s;
    CHECK(sum_of(ranks, 1) == 2);
    gone_on.set();
  });
  CHECK(told == 1);
  CHECK(soon == 2);
}

TEST_CASE("ranks that don't ask within the deadline are left, too") {
  Event gone_on;
  std::atomic<int> left = 0;
  ThreadGroup(4, 1s).run([&](Threads& transport) {
    const int rank = transport.rank();
    if (rank == 3) throw std::runtime_error("lost");
    if (rank == 2) {  // works on, and never learns of the loss
      CHECK(gone_on.wait());
      CHECK_THROWS_AS(transport.here(), peer_error);
      CHECK_THROWS_AS(static_cast<void>(transport.regroup()), peer_error);
      return;
    }
    CHECK_THROWS_AS(terse::barrier(transport), peer_error);
    auto [ranks, numbers] = transport.regroup();
    CHECK(numbers == std::vector<int>{0, 1});
    left += static_cast<int>(sum_of(ranks, 1));
    gone_on.set();
  });
  CHECK(left == 4);
}

TEST_CASE("ranks that disagree lose none, and regroup says so instead of letting them disagree again") {
  std::atomic<int> told = 0;
  ThreadGroup(2, 20s).run([&](Threads& transport) {
    const int me = transport.rank();
    const terse::detail::Call call(me == 0 ? terse::detail::Verb::save : terse::detail::Verb::mean);
    std::array<std::byte, 8> mine{}, theirs{};
    const terse::index_t bytes = me == 0 ? 4 : 8;
    const terse::Send send{1 - me, mine.data(), bytes, 0};
    const terse::Receive receive{1 - me, theirs.data(), bytes, false};
    CHECK_THROWS_AS(transport.exchange({&send, 1}, {&receive, 1}, terse::Phase::setup).wait(), peer_error);
    const auto begin = std::chrono::steady_clock::now();
    try {
      static_cast<void>(transport.regroup());
    } catch (const terse::usage_error& refusal) {
      CHECK(std::chrono::steady_clock::now() - begin < 10s);  // not at the deadline
      told +=
          std::string(refusal.what()).find("no rank is lost: all have called regroup") != std::string::npos;
    }
  });
  CHECK(told == 2);
}

TEST_CASE("one rank may be all that is left, and calls at the wrong time are refused") {
  Event passed, refused[2];
  ThreadGroup(2, 1s).run([&](Threads& transport) {
    // One after the other, and both together.
    if (transport.rank() == 1) CHECK(refused[0].wait());
    CHECK_THROWS_WITH_AS(static_cast<void>(transport.regroup()), doctest::Contains("no rank is lost"),
                         terse::usage_error);
    refused[transport.rank()].set();
    CHECK(refused[1].wait());
    CHECK_THROWS_WITH_AS(static_cast<void>(transport.regroup()), doctest::Contains("no rank is lost"),
                         terse::usage_error);
    Threads channel = transport.split(0, transport.rank());
    CHECK_THROWS_WITH_AS(static_cast<void>(channel.regroup()),
                         doctest::Contains("a channel that split has made"), terse::usage_error);
    terse::barrier(transport);
    if (transport.rank() == 1) {
      CHECK(passed.wait());
      throw std::runtime_error("lost");
    }
    passed.set();
    CHECK_THROWS_AS(terse::barrier(transport), peer_error);
    auto [alone, numbers] = transport.regroup();
    CHECK(alone.size() == 1);
    CHECK(numbers == std::vector<int>{0});
    terse::barrier(alone);
    CHECK_THROWS_WITH_AS(static_cast<void>(transport.regroup()),
                         doctest::Contains("this rank has gone on in another group"), terse::usage_error);
  });
}

TEST_CASE("all ranks throw the mismatch of their settings or of their first parameters, whoever is first") {
  const terse::Layout layout = layout_of();
  for (int tries = 0; tries < 50; ++tries) {
    CAPTURE(tries);
    std::atomic<int> told = 0;
    CHECK_THROWS_AS(ThreadGroup(4, 20s).run([&](Threads& transport) {
      const bool other = transport.rank() == tries % 4, settings = tries % 2 == 0;
      try {
        terse::DiLoCo<terse::MomentumSgd<>> recipe{.inner = inner, .period = settings && other ? 31U : 30U};
        terse::Optimizer optimizer{recipe, transport, layout};
        std::vector<float> x(static_cast<std::size_t>(layout.size()), other ? 2.0F : 1.0F), g(x.size());
        optimizer.step(x, g);
      } catch (const terse::mismatch_error&) {
        ++told;
        throw;
      }
    }),
                    terse::mismatch_error);
    CHECK(told == 4);
  }
}

TEST_CASE("regroup waits for the end of a rank that others know to be wrong before it is") {
  for (const bool throws : {true, false}) {
    CAPTURE(throws);
    std::atomic<int> sum = 0;
    ThreadGroup(3, 2s).run([&](Threads& transport) {
      if (transport.rank() == 1) {
        std::this_thread::sleep_for(100ms);
        if (throws) throw std::runtime_error("wrong settings");
        return;
      }
      Threads two = transport.regroup().transport;
      sum += static_cast<int>(sum_of(two, 1));
    });
    CHECK(sum == 4);
  }
}

TEST_CASE("ranks that ask before the loss is known wait for the others from the loss on") {
  std::atomic<int> sum = 0;
  ThreadGroup(3, 1s).run([&](Threads& transport) {
    const int rank = transport.rank();
    if (rank == 2) std::this_thread::sleep_for(800ms);
    if (rank == 2) throw std::runtime_error("lost");
    if (rank == 1) CHECK_THROWS_AS(terse::barrier(transport), peer_error);
    if (rank == 1) std::this_thread::sleep_for(500ms);
    Threads two = transport.regroup().transport;
    sum += static_cast<int>(sum_of(two, 1));
  });
  CHECK(sum == 4);
}

TEST_CASE("SGD and Adam go on from equal replicas, wherever a rank was lost") {
  check_goes_on(inner, 1e-4F, true);
  check_goes_on(terse::Adam<>{.learning_rate = 0.1F}, 1e-3F, true);
}
TEST_CASE("1-bit Adam goes on; errors of other owners start at 0") {
  check_goes_on(terse::OneBitAdam<>{.learning_rate = 0.05F, .preconditioner = {.freeze = terse::AtStep{8}}},
                0.15F, true);
}
TEST_CASE("methods of two stages go on when a rank is lost in the step that ends the first one") {
  check_goes_on(terse::OneBitAdam<>{.learning_rate = 0.05F, .preconditioner = {.freeze = terse::AtStep{13}}},
                0.15F, true);
  check_goes_on(terse::OneBitLamb<>{.learning_rate = 0.02F, .preconditioner = {.freeze = terse::AtStep{13}}},
                0.3F, true);
  check_goes_on(terse::ErrorFeedbackSgd<>{.learning_rate = 0.05F, .warmup_steps = 13}, 0.15F, true);
  // The norm of each step of the first stage counts six steps later.
  check_goes_on(terse::OneBitAdam<>{.learning_rate = 0.05F,
                                    .preconditioner = {.freeze = terse::VarianceRatio{.threshold = 0.7F,
                                                                                      .horizon = 6}}},
                0.15F, true);
}
TEST_CASE("Local SGD, DiLoCo, SparseLoCo and NoLoCo go on between meetings and in them") {
  check_goes_on(terse::LocalSgd<terse::MomentumSgd<>>{.inner = inner, .period = 4}, 0.1F, true);
  check_goes_on(
      terse::DiLoCo<terse::MomentumSgd<>>{
          .inner = inner, .period = 4, .outer = {.rate = 0.5F, .momentum = 0.5F}},
      0.1F, true);
  terse::SparseLoCo<terse::MomentumSgd<>> sparse{
      .inner = {.learning_rate = 0.02F, .momentum_correction = {.momentum = 0}}, .period = 4, .decay = 1};
  sparse.compressor.inner.selection.ratio = 0.25;
  check_goes_on(sparse, 0.1F, true);
  check_goes_on(terse::NoLoCo<terse::MomentumSgd<>>{.inner = inner, .period = 4}, 0.3F, false);
}
TEST_CASE("gossip and pairs go on over graphs and pairs of the ranks that are left") {
  check_goes_on(terse::DSgd<terse::Gossip>{.learning_rate = 0.02F}, 0.1F, false);
  check_goes_on(terse::DmSgd<>{.learning_rate = 0.01F}, 0.1F, false);
  check_goes_on(terse::DecentLaM<>{.learning_rate = 0.01F}, 0.1F, false);
  check_goes_on(terse::SwarmSgd<terse::MomentumSgd<>>{.inner = {.learning_rate = 0.01F,
                                                                .momentum_correction = {.momentum = 0}},
                                                      .schedule = {.period = 2}},
                0.3F, false);
}

/// Loses rank 3 of four, which have taken 5, 6, 7 and 8 steps without a wait for each other. Calls go_on(before, now, ranks, x) on the others,
/// and returns how many have done so.
template <class Recipe, class GoOn>
int after_a_loss(const Recipe& recipe, GoOn go_on) {
  const terse::Layout layout = layout_of();
  std::atomic<int> done = 0, arrived = 0;
  Event passed;
  ThreadGroup(4, 20s).run([&](Threads& transport) {
    const int me = transport.rank();
    std::vector<float> x(static_cast<std::size_t>(layout.size()), 10.0F), g(x.size());
    terse::Optimizer before{recipe, transport, layout};
    for (int step = 0; step < 5 + me; ++step) {
      gradient(me, x, g);
      before.step(x, g);
    }
    if (me == 3) {
      CHECK(passed.wait());
      throw std::runtime_error("lost");
    }
    if (++arrived == 3) passed.set();
    CHECK_THROWS_AS(terse::barrier(transport), peer_error);
    auto [ranks, numbers] = transport.regroup();
    terse::Optimizer now{before.recipe, ranks, layout, before.options()};
    go_on(before, now, ranks, x);
    ++done;
  });
  return done;
}

TEST_CASE(
    "ranks between two meetings go on from the count of the one that is ahead, each with its own model") {
  const terse::LocalSgd<terse::MomentumSgd<>> recipe{.inner = inner, .period = 50};
  CHECK(after_a_loss(recipe, [](auto& before, auto& now, Threads& ranks, std::vector<float>& x) {
          const std::vector<float> own = x;
          const terse::CarriedOver carried = terse::carry_over(before, now, x);
          CHECK(carried.ahead == 2);
          CHECK_FALSE(carried.sent);
          CHECK(now.steps() == 7);
          CHECK(x == own);
          std::vector<float> g(x.size());
          // The next meeting is in step 50 of all.
          while (now.steps() < 50) {
            gradient(ranks.rank(), x, g);
            CHECK((now.step(x, g).bytes_sent > 0) == (now.steps() == 50));
          }
          CHECK(terse::all_gather(ranks, x[0]) == std::vector<float>(3, x[0]));
        }) == 3);
}

TEST_CASE("ranks behind keep the stage of an inner recipe that runs alone") {
  const terse::LocalSgd<terse::OneBitAdam<>> recipe{
      .inner = {.learning_rate = 0.1F, .preconditioner = {.freeze = terse::AtStep{6}}}, .period = 50};
  CHECK(after_a_loss(recipe, [](auto& before, auto& now, Threads& ranks, std::vector<float>& x) {
          terse::carry_over(before, now, x);
          CHECK(now.steps() == 7);
          auto own = state_of(before), state = state_of(now);
          CHECK(state.at("inner_compresses")[0] == static_cast<std::byte>(ranks.rank() == 0 ? 0 : 1));
          for (const char* part : {"inner_compresses", "inner_mask", "inner_variance", "inner_momentum"})
            CHECK_MESSAGE(state.at(part) == own.at(part), part);
          std::vector<float> g(x.size());
          while (now.steps() < 50) {
            gradient(ranks.rank(), x, g);
            now.step(x, g);
          }
          CHECK(terse::all_gather(ranks, x[0]) == std::vector<float>(3, x[0]));
          CHECK(x[0] == doctest::Approx(1).epsilon(0.5));
        }) == 3);
}

TEST_CASE("asynchronous ranks go on with counts of their own") {
  const terse::AsyncSwarmSgd<terse::MomentumSgd<>> recipe{.inner = inner, .period = 2};
  CHECK(after_a_loss(recipe, [](auto& before, auto& now, Threads& ranks, std::vector<float>& x) {
          terse::carry_over(before, now, x);
          CHECK(now.steps() == static_cast<std::uint64_t>(5 + ranks.rank()));
          std::vector<float> g(x.size());
          for (int round = 0; round < 290; ++round) {
            gradient(ranks.rank(), x, g);
            now.step(x, g);
            terse::barrier(ranks);  // or one rank could be done before the others begin
          }
          CHECK(now.steps() == static_cast<std::uint64_t>(295 + ranks.rank()));
          terse::mean(ranks, x);
          CHECK(x[0] == doctest::Approx(1).epsilon(0.5));
        }) == 3);
}

TEST_CASE("a rank that has taken no step gets the model of the one that is ahead") {
  const auto check = [](auto numbers) {
    using N = decltype(numbers);
    using H = typename N::parameter;
    const terse::SwarmSgd<terse::MomentumSgd<>> recipe{.inner = inner, .schedule = {.period = 50}};
    const terse::Layout layout = layout_of();
    std::atomic<int> done = 0, arrived = 0;
    Event passed;
    ThreadGroup(3, 20s).run([&](Threads& transport) {
      const int me = transport.rank();
      std::vector<H> x(static_cast<std::size_t>(layout.size()), number<H>(10)), g(x.size(), number<H>(1)),
          zero(x.size(), number<H>(0));
      terse::Optimizer before{recipe, transport, layout, {}, terse::executor::host{}, N{}};
      for (int step = 0; me != 0 && step < 3; ++step) before.step(x, g);
      if (me == 2) {
        CHECK(passed.wait());
        throw std::runtime_error("lost");
      }
      if (++arrived == 2) passed.set();  // also rank 0 has made its optimizer
      CHECK_THROWS_AS(terse::barrier(transport), peer_error);
      Threads ranks = transport.regroup().transport;
      terse::Optimizer now{recipe, ranks, layout, {}, terse::executor::host{}, N{}};
      const std::vector<H> own = x;
      CHECK(terse::carry_over(before, now, x).ahead == 1);
      CHECK(now.steps() == 3);
      CHECK((x == own) == (me == 1));
      now.step(x, zero);  // of the momentum alone
      CHECK(terse::widened(x[0]) > 9.0F);
      const auto all = terse::all_gather(ranks, terse::widened(x[0]));
      REQUIRE(all.size() == 2);
      CHECK(all[0] == all[1]);
      ++done;
    });
    CHECK(done == 2);
  };
  check(terse::Numbers<float>{});
  check(terse::Numbers<terse::bf16>{});
}

TEST_CASE("masters of a 16-bit model are carried over") {
  const terse::MomentumSgd<> sgd{.learning_rate = 1, .momentum_correction = {.momentum = 0}};
  const terse::Layout layout = layout_of();
  std::atomic<int> done = 0, arrived = 0;
  Event passed;
  ThreadGroup(3, 20s).run([&](Threads& transport) {
    std::vector<terse::bf16> x(static_cast<std::size_t>(layout.size()), number<terse::bf16>(1)),
        g(x.size(), number<terse::bf16>(0x1p-12F));
    terse::Optimizer before{
        sgd, transport, layout, {}, terse::executor::host{}, terse::Numbers<terse::bf16>{}};
    for (int step = 0; step < 7; ++step) before.step(x, g);  // less than half of a bf16's last bit
    CHECK(terse::widened(x[0]) == 1);
    if (transport.rank() == 1) {
      CHECK(passed.wait());
      throw std::runtime_error("lost");
    }
    if (++arrived == 2) passed.set();
    CHECK_THROWS_AS(before.step(x, g), peer_error);
    Threads ranks = transport.regroup().transport;
    terse::Optimizer now{sgd, ranks, layout, {}, terse::executor::host{}, terse::Numbers<terse::bf16>{}};
    terse::carry_over(before, now, x);
    for (int step = 0; step < 7; ++step) now.step(x, g);
    CHECK(terse::widened(x[0]) == 1 - 0x1p-8F);  // the nearest to 1 - 14 / 4096
    ++done;
  });
  CHECK(done == 2);
}

TEST_CASE("carry_over refuses an optimizer that has taken steps, and changes nothing") {
  const terse::Layout layout = layout_of();
  std::atomic<int> refused = 0;
  ThreadGroup(2, 20s).run([&](Threads& transport) {
    std::vector<float> x(static_cast<std::size_t>(layout.size()), 1.0F), g(x.size(), 0.5F);
    terse::Optimizer before{inner, transport, layout};
    terse::Optimizer now{inner, transport, layout};
    now.step(x, g);
    const auto state = state_of(now);
    CHECK_THROWS_WITH_AS(terse::carry_over(before, now, x), doctest::Contains("has taken 1 steps"),
                         terse::usage_error);
    std::vector<float> shorter(x.size() - 1);
    terse::Optimizer fresh{inner, transport, layout};
    CHECK_THROWS_WITH_AS(terse::carry_over(before, fresh, shorter), doctest::Contains("the layout"),
                         terse::usage_error);
    terse::Layout small;
    small.add({.name = "one", .shape = {7}});
    terse::Optimizer other{inner, transport, small};
    std::vector<float> y(static_cast<std::size_t>(small.size()));
    CHECK_THROWS_WITH_AS(terse::carry_over(now, other, y),
                         doctest::Contains("the optimizer before has a layout of other tensors"),
                         terse::usage_error);
    terse::Layout one;
    one.add({.name = "all", .shape = {terse::test::elements}});
    terse::Optimizer whole{inner, transport, one};
    CHECK_THROWS_WITH_AS(terse::carry_over(before, whole, x),
                         doctest::Contains("the optimizer before has a layout of other tensors"),
                         terse::usage_error);
    CHECK(state_of(now) == state);
    ++refused;
  });
  CHECK(refused == 2);
}

}  // namespace
