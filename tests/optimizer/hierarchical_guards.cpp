// SPDX-License-Identifier: Apache-2.0
#include <mutex>

#include "guards.inc"
#include "terse/exchange/hierarchical.hpp"
#include "terse/optimizer/deep_gradient_compression.hpp"
#include "terse/topology/native.hpp"
#include "terse/transport/any.hpp"
#include "terse/transport/nodes.hpp"

// Hierarchies: non-finite gradients, ranks that stop or differ, and allocations.

namespace {

using Rings = Hierarchical<Ring, Ring>;

template <class Topo>
OneBitAdam<Sign, FrozenVariance, Topo> one_bit() {
  return {.learning_rate = 1e-2F, .preconditioner = {.freeze = AtStep{5}}, .topology = {2}};
}

}  // namespace

TEST_CASE("non-finite gradients are known to all ranks of all nodes, by the culprit's rank in the world") {
  check_policies(Adam<Hierarchical<>>{.topology = {2}}, 4);
  check_policies(one_bit<Hierarchical<>>(), 4);
  check_throw(Adam<Rings>{.topology = {2}}, 4);
  check_throw(one_bit<Hierarchical<>>(), 4);
  check_throw(one_bit<Rings>(), 4);
  check_throw(one_bit<Hierarchical<ScatterGather, AllGather>>(), 6);
}

TEST_CASE("a step allocates nothing") {
  check_allocations(Adam<Rings>{.topology = {2}}, {.clip_norm = 1}, 4);
  check_allocations(one_bit<Hierarchical<>>(), {}, 4);
  check_allocations(DeepGradientCompression<Hierarchical<>>{.topology = {2}}, {}, 4);
  check_allocations(ErrorFeedbackSgd<Uniform<4>, Hierarchical<Within<Uniform<8>>>>{.topology = {2}}, {}, 4);
}

TEST_CASE("over two transports, and around a transport of any type, a step allocates nothing") {
  const Layout layout = two_kinds();
  ThreadGroup(4, std::chrono::seconds(20)).run([&](Threads& transport) {
    const int rank = transport.rank();
    Nodes two(transport.split(rank / 2, rank), transport.split(rank % 2, rank));
    Metered<AnyTransport> metered(AnyTransport(std::move(two)));
    Optimizer optimizer{one_bit<Rings>(), metered, layout};
    Floats x = start(layout);
    const Floats g = gradient(layout, rank, 1, 1);
    // The first step compares parameters, and Nodes takes its memory for that.
    optimizer.step(x, g);
    barrier(transport);
    barrier(transport);
    const std::uint64_t before = allocations;
    for (int step = 2; step <= 20; ++step) optimizer.step(x, g);
    const std::uint64_t after = allocations;
    static std::atomic<int> counted{0};
    ++counted;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (counted < 4 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    barrier(transport);
    CHECK(after == before);
  });
}

TEST_CASE("a rank that throws or stays away ends the others by the deadline, on its node and beyond") {
  const Layout layout = two_kinds();
  constexpr auto deadline = std::chrono::milliseconds(700);
  for (const bool throws : {true, false})
    for (const std::uint64_t when : std::initializer_list<std::uint64_t>{3, 9}) {
      CAPTURE(throws);
      CAPTURE(when);
      std::atomic<int> ended{0};
      const auto begin = std::chrono::steady_clock::now();
      std::mutex mutex;
      std::chrono::steady_clock::time_point away = begin;
      try {
        ThreadGroup(4, deadline).run([&](Threads& transport) {
          Optimizer optimizer{one_bit<Hierarchical<>>(), transport, layout};
          Floats x = start(layout);
          for (std::uint64_t step = 1; step <= 12; ++step) {
            const Floats g = gradient(layout, transport.rank(), step, 1);
            if (step == when && transport.rank() == 2) {
              {
                const std::lock_guard lock(mutex);
                away = std::chrono::steady_clock::now();
              }
              if (throws) throw usage_error("out of data", 2);
              std::this_thread::sleep_for(2 * deadline);
              return;
            }
            const Floats before = x;
            try {
              optimizer.step(x, g);
            } catch (const peer_error& failure) {
              CHECK(failure.culprit() == 2);
              CHECK(x == before);
              const std::lock_guard lock(mutex);
              if (std::chrono::steady_clock::now() - away < deadline + std::chrono::seconds(1)) ++ended;
              throw;
            }
          }
        });
      } catch (const error&) {
      }
      CHECK(ended == 3);
    }
}

TEST_CASE("ranks whose hyper-parameters differ are told so, nodes of another size before the first step") {
  const Layout layout = two_kinds();
  std::string what;
  const auto run = [&](const auto& program) {
    what.clear();
    try {
      ThreadGroup(4, std::chrono::seconds(5)).run(program);
    } catch (const error& failure) {
      what = failure.what();
    }
    return what;
  };
  CHECK(run([&](Threads& transport) {
          auto recipe = one_bit<Hierarchical<>>();
          if (transport.rank() == 3) recipe.topology.ranks_per_node = 1;
          Optimizer optimizer{recipe, transport, layout};
        }).find("ranks_per_node") != std::string::npos);
  for (const std::uint64_t when : std::initializer_list<std::uint64_t>{3, 9})
    CHECK(run([&](Threads& transport) {
            Optimizer optimizer{one_bit<Rings>(), transport, layout};
            Floats x = start(layout);
            for (std::uint64_t step = 1; step <= when; ++step) {
              if (step == when && transport.rank() == 1) optimizer.recipe.learning_rate = 0.5F;
              optimizer.step(x, gradient(layout, transport.rank(), step, 1));
            }
          }).find("hyper-parameters") != std::string::npos);
}

TEST_CASE("a refused packet from another node is named by its sender's rank in the world") {
  const Layout layout = two_kinds();
  std::mutex mutex;
  int named = 0;
  try {
    ThreadGroup(6, std::chrono::seconds(5)).run([&](Threads& transport) {
      const int rank = transport.rank();
      Optimizer optimizer{one_bit<Rings>(), transport, layout};
      Floats x = start(layout);
      optimizer.step(x, gradient(layout, rank, 1, 1));
      // A whole node, so that it shows between nodes first.
      if (rank / 2 == 1) optimizer.recipe.learning_rate = 0.5F;
      try {
        optimizer.step(x, gradient(layout, rank, 2, 1));
      } catch (const wire_error& failure) {
        const std::string sender = "the packet from rank " + std::to_string((rank + 4) % 6);
        const std::lock_guard lock(mutex);
        CHECK_MESSAGE(std::string(failure.what()).find(sender) != std::string::npos, failure.what());
        ++named;
        throw;
      }
    });
  } catch (const error&) {
  }
  CHECK(named > 0);
}

TEST_CASE("a transport behind one type that has no collectives of its own says so, and nothing moves") {
  const Layout layout = two_kinds();
  std::atomic<int> refused{0};
  ThreadGroup(2, std::chrono::seconds(5)).run([&](Threads& transport) {
    AnyTransport any(transport.split(0, transport.rank()));
    Optimizer optimizer{Adam<Native>{}, any, layout};
    Floats x = start(layout);
    try {
      optimizer.step(x, gradient(layout, transport.rank(), 1, 1));
    } catch (const usage_error& failure) {
      refused += std::string(failure.what()).find("no collectives of its own") != std::string::npos;
    }
    CHECK(x == start(layout));
    barrier(transport);
  });
  CHECK(refused == 2);
}

namespace {

/// The error of this rank's optimizer.
template <class Act>
std::string error_of(const Act& act) {
  try {
    act();
  } catch (const error& failure) {
    return failure.what();
  }
  return "";
}

}  // namespace

TEST_CASE("errors of construction say where ranks differ, and what to do") {
  ThreadGroup(2, std::chrono::seconds(20)).run([](Threads& transport) {
    const bool other = transport.rank() == 1;
    const auto texts = [&](const Layout& layout, const Options& options = {}) {
      return error_of([&] { Optimizer<MomentumSgd<>, Threads>{{}, transport, layout, options}; });
    };
    const auto says = [](const std::string& text, const char* words) {
      CHECK_MESSAGE(text.find(words) != std::string::npos, text);
    };
    Layout shapes, more;
    shapes.add({"body", {4, 4}}).add({"head", {other ? 3 : 2, 4}});
    says(texts(shapes), other ? "another layout, from segment 1 on: here it is 'head' {3, 4}"
                              : "'head' {2, 4}, learning_rate_scale 1");
    more.add({"body", {4, 4}});
    if (other) more.add({"head", {2}});
    says(texts(more), other ? "from segment 1 on: here it is 'head' {2}" : "more segments than the 1 here");
    says(texts(Layout::flat(8), {.clip_norm = other ? 1.0F : 2.0F}),
         "another value of an option (on_non_finite, clip_norm, slice_bytes, check_payload, compare_every, "
         "most_masked)");
    says(error_of([&] {
           Optimizer<MomentumSgd<Hierarchical<>>, Threads>{{}, transport, Layout::flat(8)};
         }),
         "ranks_per_node is 0, but this transport has no nodes");
  });
}

TEST_CASE("padding is nobody's") {
  Layout layout;
  layout.add({"body", {70}}).add({"head", {5, 5}, 1, 1, false});
  const auto padded = [](std::size_t i) { return (i >= 70 && i < 128) || i >= 153; };
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    Floats x(at(layout.size()), 1), g(x.size(), 1), y(x.size(), 1), h(x.size(), 1);
    for (std::size_t i = 0; i < x.size(); ++i)
      if (padded(i)) x[i] = 7, g[i] = not_a_number;
    Optimizer one{MomentumSgd<Uniform<8>>{}, transport, layout, {.clip_norm = 1}};
    Optimizer other{MomentumSgd<Uniform<8>>{}, transport, layout, {.clip_norm = 1}};
    one.step(x, g);
    other.step(y, h);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < x.size(); ++i) wrong += x[i] != (padded(i) ? 7 : y[i]) ? 1 : 0;
    CHECK(wrong == 0);
    CHECK(y[0] != 1);
  });
}

TEST_CASE("errors of a step's arguments name the argument") {
  ThreadGroup(1).run([](Threads& transport) {
    Optimizer optimizer{MomentumSgd<>{}, transport, Layout::flat(100)};
    Floats x(128), g(128);
    CHECK_THROWS_WITH_AS(optimizer.step(x, x), doctest::Contains("parameters and gradients overlap"),
                         usage_error);
    for (const float scale : {not_a_number, std::numeric_limits<float>::infinity()})
      CHECK_THROWS_WITH_AS(optimizer.step(x, g, scale), doctest::Contains("gradient_scale is"), usage_error);
    CHECK_THROWS_WITH_AS(optimizer.rescale("head", 1, 1), doctest::Contains("there are 'parameters'"),
                         usage_error);
    CHECK_NOTHROW(optimizer.step(x, g));
  });
}
