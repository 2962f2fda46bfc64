// SPDX-License-Identifier: Apache-2.0
#include "terse/transport/traced.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "optimizer/mixing_support.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/transport/any.hpp"
#include "terse/transport/delayed.hpp"
#include "terse/transport/metered.hpp"
#include "terse/transport/nodes.hpp"
#include "terse/transport/through_host.hpp"

// Whom ranks wait for, by lower bounds that always hold: a rank that sleeps is waited for at least as long as it sleeps.

using namespace std::chrono_literals;
using namespace terse;
using namespace terse::test;

namespace {

using Network = Traced<Threads>;
constexpr int ranks = 4, slow = 2, count = 6;
constexpr double slept = 0.03;

/// Takes steps, before each of which the slow rank sleeps.
template <class R>
Floats train(R recipe, Network& network, bool sleeps = true) {
  const Layout layout = Layout::flat(640);
  Optimizer optimizer{recipe, network, layout};
  Floats x(640, 1), gradient(640);
  for (int step = 0; step < count; ++step) {
    for (std::size_t k = 0; k < x.size(); ++k)
      gradient[k] = x[k] - static_cast<float>(k % 7) - static_cast<float>(network.rank());
    if (sleeps && network.rank() == slow) std::this_thread::sleep_for(std::chrono::duration<double>(slept));
    optimizer.step(x, gradient);
    network.trace()->step();
  }
  return x;
}

/// An executor in host memory, for ThroughHost.
struct Copies {
  using memory = terse::memory::host;
  using staging = memory;
  static void bring(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  static void send(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  static void synchronize() {}
};

/// Checks that rank 0 of this transport waits for the last rank, which is late.
template <Transport T>
void knows_who_is_late(T transport) {
  Traced<T> network(std::move(transport));
  const int last = network.size() - 1;
  std::byte place{1};
  if (network.rank() == last) {
    std::this_thread::sleep_for(100ms);
    const Send send{0, &place, 1};
    network.exchange({&send, 1}, {}, Phase::reduce).wait();
  } else if (network.rank() == 0) {
    const Receive receive{last, &place, 1};
    network.exchange({}, {&receive, 1}, Phase::reduce).wait();
    CAPTURE(type_name<T>());
    CHECK(network.trace()->waits()[static_cast<std::size_t>(last)].seconds > 0.05);
  }
  barrier(network);
}

}  // namespace

TEST_CASE("a rank that is slow is waited for by all others, in every step") {
  on_ranks(ranks, [](Threads& transport) {
    Network network(std::move(transport));
    train(Adam<>{}, network);
    const std::span<const Trace::Waits> waits = network.trace()->waits();
    REQUIRE(waits.size() == ranks + 1);
    CHECK(network.trace()->steps() == count);
    if (network.rank() != slow) {
      // The first step's sleep is over before a rank that starts late comes to its wait.
      CHECK(waits[slow].seconds > slept * (count - 2));
      CHECK(waits[slow].steps >= count - 1);
    } else {
      CHECK(waits[slow].seconds == 0);
    }
    const std::string text = waited_for(network, *network.trace());
    CHECK(text.find("each other rank waited 0.") == 0);
    CHECK(text.find(" s for rank 2, its longest wait in ") < text.find('\n'));
  });
}

TEST_CASE("a traced transport changes no bit, and a batch that nobody is late for waits for nobody long") {
  std::vector<Floats> traced(ranks), plain(ranks);
  on_ranks(ranks, [&](Threads& transport) {
    const int rank = transport.rank();
    Network network(std::move(transport));
    traced[at(rank)] = train(OneBitAdam<>{.preconditioner = {.freeze = AtStep{2}}}, network, false);
  });
  on_ranks(ranks, [&](Threads& transport) {
    OneBitAdam<> recipe{.preconditioner = {.freeze = AtStep{2}}};
    const Layout layout = Layout::flat(640);
    Optimizer optimizer{recipe, transport, layout};
    Floats x(640, 1), gradient(640);
    for (int step = 0; step < count; ++step) {
      for (std::size_t k = 0; k < x.size(); ++k)
        gradient[k] = x[k] - static_cast<float>(k % 7) - static_cast<float>(transport.rank());
      optimizer.step(x, gradient);
    }
    plain[at(transport.rank())] = x;
  });
  CHECK(traced == plain);
}

TEST_CASE("ranks of a channel are named as in the whole group") {
  on_ranks(ranks, [](Threads& transport) {
    Network network(std::move(transport));
    // 3 comes first in the channel of 1 and 3.
    Network channel = network.split(network.rank() % 2, -network.rank());
    const double before = network.rank() == 1 ? network.trace()->waits()[3].seconds : 0;
    if (network.rank() == 3) std::this_thread::sleep_for(100ms);
    barrier(channel);
    if (network.rank() == 1) {
      CHECK(network.trace()->waits()[3].seconds > before + 0.05);
      CHECK(network.trace()->events().back().awaited == 3);
      CHECK(network.trace()->events().back().phase == Phase::barrier);
    }
  });
}

TEST_CASE("the gathered trace has the waits of all ranks on one clock") {
  on_ranks(ranks, [](Threads& transport) {
    std::this_thread::sleep_for(100ms * transport.rank());  // so that the traces' clocks differ
    Network network(std::move(transport));
    train(Adam<>{}, network);
    const std::string text = gather_trace(network, *network.trace());
    REQUIRE(text.empty() == (network.rank() != 0));
    if (network.rank() != 0) return;
    const nlohmann::json file = nlohmann::json::parse(text);
    std::array<double, ranks> seconds{}, ends{};
    std::array<int, ranks> open{};
    for (const auto& event : file["traceEvents"]) {
      const auto rank = event["pid"].get<std::size_t>();
      REQUIRE(rank < ranks);
      const std::string kind = event["ph"];
      if (kind == "b") ++open[rank];
      if (kind == "e") --open[rank];
      if (kind != "X" || event["name"] != "reduce of rank 2") continue;
      CHECK(event["args"]["step"].get<int>() < count);
      seconds[rank] += event["dur"].get<double>() / 1e6;
      ends[rank] = std::max(ends[rank], (event["ts"].get<double>() + event["dur"].get<double>()) / 1e6);
    }
    CHECK(open == std::array<int, ranks>{});
    CHECK(seconds[slow] == 0);
    for (const std::size_t rank : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
      CHECK(seconds[rank] > slept * (count - 2));
      // The last message of the slow rank ends their last waits at the same time.
      CHECK(std::abs(ends[rank] - ends[0]) < slept * count);
    }
  });
}

TEST_CASE("old events give way, sums don't") {
  on_ranks(2, [](Threads& transport) {
    CHECK_THROWS_WITH_AS(Trace(transport.rank(), 2, 0), doctest::Contains("at least one event"), usage_error);
    Network network(std::move(transport), 3);
    for (int k = 0; k < 5; ++k) {
      barrier(network);
      network.trace()->step();
    }
    const auto events = network.trace()->events();
    REQUIRE(events.size() == 3);
    CHECK(network.trace()->lost() == 2);
    for (std::size_t k = 0; k < 3; ++k) {
      CHECK(events[k].step == k + 2);
      CHECK(events[k].bytes_sent == 1);
      CHECK(events[k].waited <= events[k].seconds);
    }
  });
}

TEST_CASE("a rank that never comes is found by the inner transport, in time") {
  const auto begin = std::chrono::steady_clock::now();
  std::string text;
  try {
    ThreadGroup(2, 300ms).run([](Threads& transport) {
      Network network(std::move(transport));
      if (network.rank() == 0)
        barrier(network);
      else
        std::this_thread::sleep_for(900ms);
    });
  } catch (const peer_error& failure) {
    text = failure.what();
  }
  CHECK(text.find("rank 1 is late") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - begin < 20s);
}

TEST_CASE("a batch that is done may be waited for, as over the inner transport") {
  on_ranks(2, [](Threads& transport) {
    Network network(std::move(transport));
    std::byte mine{7}, theirs{};
    const Send send{1 - network.rank(), &mine, 1};
    const Receive receive{1 - network.rank(), &theirs, 1};
    auto ticket = network.exchange({&send, 1}, {&receive, 1}, Phase::reduce);
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (!ticket.ready() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    ticket.wait();
    ticket.wait(1s);
    CHECK(theirs == mine);
    CHECK(network.trace()->events().size() == 1);
  });
}

TEST_CASE("a wait may be longer than the group's deadline, as over the inner transport") {
  ThreadGroup(2, 300ms).run([](Threads& transport) {
    Network network(std::move(transport));
    std::byte place{1};
    if (network.rank() == 1) {
      std::this_thread::sleep_for(900ms);
      const Send send{0, &place, 1};
      network.exchange({&send, 1}, {}, Phase::reduce).wait();
      return;
    }
    const Receive receive{1, &place, 1};
    network.exchange({}, {&receive, 1}, Phase::reduce).wait(20s);
    CHECK(network.trace()->waits()[1].seconds > 0.4);
  });
}

TEST_CASE("whom a rank waits for is known over each transport of messages between two ranks") {
  on_ranks(2, [](Threads& transport) {
    const auto all = [&] { return transport.split(0, transport.rank()); };
    const auto alone = [&] { return transport.split(transport.rank(), 0); };
    knows_who_is_late(Metered(all()));
    knows_who_is_late(Delayed(all(), {.latency = 1us}));
    knows_who_is_late(AnyTransport(Metered(all())));
    knows_who_is_late(ThroughHost(all(), Copies{}));
    knows_who_is_late(Nodes(all(), alone()));
    knows_who_is_late(Nodes(alone(), all()));
  });
}
