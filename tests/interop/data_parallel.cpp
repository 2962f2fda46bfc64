// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <torch/torch.h>
// LibTorch has a CHECK of its own.
#undef CHECK
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "terse/interop/data_parallel.hpp"
#include "terse/terse.hpp"

// Gradients that leave during LibTorch's backward pass: the bits of steps that wait for its end, when hooks are called, passes that
// are summed, parameters that get nothing, and errors on their way through LibTorch. In C++20, which clang doesn't take Debian's
// LibTorch as.

using namespace terse;
using terse::interop::DataParallel;
using terse::interop::FlatModule;
using terse::interop::GradientHooks;
namespace nn = torch::nn;

namespace {

using Floats = std::vector<float>;
constexpr std::chrono::seconds deadline{20};
constexpr index_t small_slices = 4096;
constexpr int steps = 6;

/// Has a layer that a pass uses twice, one that some passes use, one that none does, one that is frozen, and a buffer.
struct Net : nn::Module {
  explicit Net(int rank) {
    torch::NoGradGuard no_grad;
    double next = rank;  // other parameters on each rank, and no draw from the generator that threads share
    for (torch::Tensor& parameter : parameters()) {
      parameter.copy_(torch::sin(torch::arange(parameter.numel()) * 1.7 + next).reshape(parameter.sizes()) *
                      0.3);
      next += 1;
    }
    fixed->weight.requires_grad_(false);
    fixed->bias.requires_grad_(false);
    shift.fill_(rank + 1);
  }
  torch::Tensor forward(const torch::Tensor& input, bool with_detour) {
    torch::Tensor x = torch::tanh(fixed(input)) + shift.mean();
    x = torch::tanh(first(x));
    x = torch::tanh(twice(torch::tanh(twice(x))));
    if (with_detour) x = x + detour(x);
    return last(x);
  }

  nn::Linear idle = register_module("idle", nn::Linear(3, 2));
  nn::Linear fixed = register_module("fixed", nn::Linear(12, 12));
  nn::Linear first = register_module("first", nn::Linear(12, 40));
  nn::Linear twice = register_module("twice", nn::Linear(40, 40));
  nn::Linear again = register_module("again", twice);
  nn::Linear detour = register_module("detour", nn::Linear(40, 40));
  nn::Linear last = register_module("last", nn::Linear(40, 5));
  // Not contiguous, so that its values don't lie as they are sent.
  torch::Tensor shift = register_buffer("shift", torch::zeros({2, 3}).t());
};

torch::Tensor loss_of(Net& net, int rank, int step, int pass = 0) {
  const torch::Tensor input =
      torch::sin(torch::arange(8 * 12).reshape({8, 12}) * (0.37 + rank) + 1.3 * step + 0.7 * pass);
  return net.forward(input, (rank + step + pass) % 2 == 0).square().mean();
}

Floats copy_of(view<float> values) { return {values.begin(), values.end()}; }

/// One rank's parameters after some steps that are opened by hooks.
template <class R>
Floats overlapped(const R& recipe, Threads& transport, const Options& options, int passes) {
  Net net(transport.rank());
  DataParallel model(net, recipe, transport, options);
  for (int step = 1; step <= steps; ++step) {
    model.begin(passes, 1.0F / static_cast<float>(passes));
    for (int pass = 0; pass < passes; ++pass) {
      CHECK_FALSE(model.optimizer().begun());
      loss_of(net, transport.rank(), step, pass).backward();
    }
    CHECK(model.optimizer().begun());
    model.step();
  }
  return copy_of(model.parameters());
}
/// The same where nothing leaves before the passes are over.
template <class R>
Floats waiting(const R& recipe, Threads& transport, const Options& options, int passes) {
  Net net(0);
  FlatModule flat(net);
  Optimizer optimizer{recipe, transport, flat.layout(), options};
  const view<float> parameters{flat.parameters(), flat.size()}, gradients{flat.gradients(), flat.size()};
  for (int step = 1; step <= steps; ++step) {
    flat.zero_gradients();
    for (int pass = 0; pass < passes; ++pass) loss_of(net, transport.rank(), step, pass).backward();
    optimizer.step(parameters, gradients, 1.0F / static_cast<float>(passes));
  }
  return copy_of(parameters);
}

/// Overlapped steps have the bits of those that wait, on all ranks, from whatever each had at first.
template <class R>
void check_bits(const R& recipe, Options options = {}) {
  options.slice_bytes = small_slices;
  for (const int ranks : {1, 2, 3})
    for (const int passes : {1, 3}) {
      CAPTURE(type_name<R>());
      CAPTURE(ranks);
      CAPTURE(passes);
      std::vector<Floats> some(static_cast<std::size_t>(ranks)), others(some);
      ThreadGroup(ranks, deadline).run([&](Threads& transport) {
        at::set_num_threads(1);
        const auto rank = static_cast<std::size_t>(transport.rank());
        some[rank] = overlapped(recipe, transport, options, passes);
        others[rank] = waiting(recipe, transport, options, passes);
      });
      for (std::size_t rank = 0; rank < some.size(); ++rank) {
        CHECK(some[rank] == others[rank]);
        CHECK(some[rank] == some[0]);
        CHECK(std::isfinite(some[rank][0]));
      }
    }
}

template <class P>
OneBitAdam<Sign, FrozenVariance, P> one_bit() {
  return {.learning_rate = 1e-2F, .preconditioner = {.freeze = AtStep{3}}};
}

/// What `act` throws as an E; empty if it throws none. Another type passes through.
template <class E, class Act>
std::string thrown(Act act) {
  try {
    act();
  } catch (const E& fault) {
    return fault.what();
  }
  return {};
}
bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

void await(const std::atomic<bool>& flag) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  while (!flag) {
    if (std::chrono::steady_clock::now() > until) throw std::runtime_error("the other rank is late");
    std::this_thread::yield();
  }
}

template <class Program>
void alone(Program program) {
  ThreadGroup(1, deadline).run(program);
}

}  // namespace

TEST_CASE(
    "steps whose gradients leave during the backward pass have the bits of those that wait for its end") {
  check_bits(Adam<>{.learning_rate = 1e-2F});
  check_bits(Adam<Ring>{.learning_rate = 1e-2F});
  check_bits(one_bit<ScatterGather>());
  check_bits(one_bit<Ring>());
}

TEST_CASE("so they have where nothing may leave early") {
  check_bits(one_bit<ScatterGather>(), {.clip_norm = 0.05F});
  check_bits(Adam<>{.learning_rate = 1e-2F}, {.on_non_finite = NonFinite::skip});
  check_bits(LocalSgd<Adam<>>{.period = 3});
}

TEST_CASE(
    "messages leave in the last backward pass of a step, and only where a step need not know a norm first") {
  // In which steps rank 0 has sent something before the first layer's gradient is accumulated, and by the end of the passes.
  struct Early {
    std::string during, after;
    bool operator==(const Early&) const = default;
  };
  const auto early = [](const auto& recipe, Options options, bool all_used) {
    options.slice_bytes = small_slices;
    Early found;
    ThreadGroup(2, deadline).run([&](Threads& raw) {
      at::set_num_threads(1);
      Metered<Threads> transport(raw.split(0, raw.rank()));
      Net net(0);
      for (torch::Tensor& parameter : net.idle->parameters()) parameter.requires_grad_(!all_used);
      DataParallel model(net, recipe, transport, options);
      const auto sent = [&] { return transport.traffic()[Phase::reduce].bytes_sent; };
      std::uint64_t seen = 0;
      net.first->weight.register_hook([&](const torch::Tensor& gradient) {
        seen = sent();
        return gradient;
      });
      for (int step = 1; step <= steps; ++step) {
        model.begin(2);
        const std::uint64_t before = sent();
        loss_of(net, 0, 2).backward();
        CHECK(sent() == before);
        loss_of(net, 0, 2).backward();
        if (raw.rank() == 0) {
          found.during += seen > before ? '1' : '0';
          found.after += sent() > before ? '1' : '0';
        }
        model.step();
        CHECK(sent() > before);
      }
    });
    return found;
  };
  CHECK(early(Adam<>{}, {}, true) == Early{"111111", "111111"});
  CHECK(early(Adam<>{}, {.clip_norm = 1}, true) == Early{"111111", "111111"});
  CHECK(early(Adam<>{}, {.on_non_finite = NonFinite::skip}, true) == Early{"000000", "000000"});
  CHECK(early(one_bit<ScatterGather>(), {}, true) == Early{"111111", "111111"});
  CHECK(early(PowerSgd<1>{.learning_rate = 1e-3F}, {}, true) == Early{"000000", "111111"});
  CHECK(early(one_bit<ScatterGather>(), {.clip_norm = 1}, true) == Early{"111000", "111000"});
  // A gradient that never comes holds up what is in its slice and before it.
  CHECK(early(Adam<>{}, {}, false) == Early{"111111", "111111"});
  CHECK(early(one_bit<ScatterGather>(), {}, false) == Early{"111111", "111111"});
}

TEST_CASE("a parameter's accumulator runs once in a backward pass, however often the graph uses it") {
  Net net(0);
  FlatModule flat(net);
  std::vector<std::string> told;
  const auto thread = std::this_thread::get_id();
  GradientHooks hooks(flat, [&](index_t segment) {
    CHECK(std::this_thread::get_id() == thread);
    const Segment& one = flat.layout().segments()[static_cast<std::size_t>(segment)];
    // It has been accumulated.
    CHECK(Floats(flat.gradients() + one.offset, flat.gradients() + one.offset + one.count) !=
          Floats(static_cast<std::size_t>(one.count)));
    told.push_back(one.name);
  });

  loss_of(net, 0, 2).backward();  // outside of a step
  CHECK(told.empty());
  for (int step = 0; step < 2; ++step) {
    told.clear();
    flat.zero_gradients();
    hooks.begin();
    loss_of(net, 0, 2).backward();
    hooks.end();
    CHECK(told.size() == 8);
    CHECK(std::set<std::string>(told.begin(), told.end()) ==
          std::set<std::string>{"first.weight", "first.bias", "twice.weight", "twice.bias", "detour.weight",
                                "detour.bias", "last.weight", "last.bias"});
    CHECK(told.front().substr(0, 5) == "last.");
    CHECK(told.back().substr(0, 6) == "first.");
    CHECK(hooks.unused() == std::vector<std::string>{"idle.weight", "idle.bias"});
  }
  told.clear();
  hooks.begin(2);
  loss_of(net, 0, 2).backward();
  CHECK(told.empty());
  loss_of(net, 0, 1).backward();
  CHECK(told.size() == 6);  // without the detour, which one pass of two has reached
  hooks.end();
  CHECK(hooks.unused() == std::vector<std::string>{"idle.weight", "idle.bias"});
}

TEST_CASE("hooks go with their object, and the module stays") {
  Net net(0);
  FlatModule flat(net);
  int told = 0;
  auto hooks = std::make_unique<GradientHooks>(flat, [&](index_t) { ++told; });
  hooks->begin();
  const torch::Tensor loss = loss_of(net, 0, 2);  // whose graph keeps the accumulators
  hooks.reset();
  loss.backward();
  CHECK(told == 0);
  loss_of(net, 0, 2).backward();
  CHECK(told == 0);
}

TEST_CASE("all ranks start from rank 0's module, with what isn't trained") {
  ThreadGroup(3, deadline).run([](Threads& transport) {
    Net net(transport.rank()), first(0);
    DataParallel model(net, Adam<>{}, transport);
    CHECK(model.flat().layout().segments().size() == 10);  // `twice` once, and nothing of `fixed`
    for (const auto& item : first.named_parameters()) {
      CAPTURE(item.key());
      CHECK(torch::equal(net.named_parameters()[item.key()], item.value()));
    }
    CHECK_FALSE(net.shift.is_contiguous());
    CHECK(torch::equal(net.shift, first.shift));
    CHECK(net.named_buffers()["shift"].is_same(net.shift));
    CHECK_FALSE(net.fixed->weight.requires_grad());
  });
}

TEST_CASE("a module with nothing to train is refused") {
  alone([](Threads& transport) {
    Net net(0);
    for (torch::Tensor& parameter : net.parameters()) parameter.requires_grad_(false);
    CHECK(says(thrown<usage_error>([&] { DataParallel(net, Adam<>{}, transport); }), "nothing to train"));
  });
}

TEST_CASE("calls in another order are refused in words") {
  alone([](Threads& transport) {
    Net net(0);
    DataParallel model(net, Adam<>{}, transport);
    CHECK(says(thrown<usage_error>([&] { model.step(); }), "no begin()"));
    CHECK(says(thrown<usage_error>([&] { model.begin(0); }), "at least one backward pass"));
    // Nothing has left, so a pass that failed before may be begun again.
    model.begin();
    model.begin();
    loss_of(net, 0, 1).backward();
    CHECK(says(thrown<usage_error>([&] { model.begin(); }), "step() hasn't finished it"));
    CHECK(model.step().applied);
    CHECK(model.unused() ==
          std::vector<std::string>{"idle.weight", "idle.bias", "detour.weight", "detour.bias"});
    CHECK(says(thrown<usage_error>([&] { model.step(); }), "no begin()"));
  });
}

TEST_CASE("a backward pass too many comes out of backward with what to do, and nothing is stepped on") {
  alone([](Threads& transport) {
    Net net(0);
    DataParallel model(net, Adam<>{}, transport);
    const Floats before = copy_of(model.parameters());
    model.begin();
    loss_of(net, 0, 2).backward();
    const auto again = thrown<usage_error>([&] { loss_of(net, 0, 2).backward(); });
    CHECK(says(again, "backward pass 2"));
    CHECK(says(again, "give begin() the number"));
    CHECK(thrown<usage_error>([&] { loss_of(net, 0, 2).backward(); }) == again);
    CHECK(thrown<usage_error>([&] { model.step(); }) == again);
    CHECK(thrown<usage_error>([&] { model.step(); }) == again);
    CHECK(copy_of(model.parameters()) == before);
  });
}

TEST_CASE("a gradient that has left the arena is found before zeros are sent in its place") {
  alone([](Threads& transport) {
    Net net(0);
    DataParallel model(net, Adam<>{}, transport);
    model.begin();
    net.last->zero_grad(true);
    const auto what = thrown<usage_error>([&] { loss_of(net, 0, 2).backward(); });
    CHECK(says(what, "'last."));
    CHECK(says(what, "outside of the flat arena"));
    CHECK_FALSE(model.optimizer().begun());
    CHECK(thrown<usage_error>([&] { model.step(); }) == what);
  });
}

TEST_CASE("what a hook throws keeps its type on the way through LibTorch") {
  Net net(0);
  FlatModule flat(net);
  int told = 0;
  GradientHooks hooks(flat, [&](index_t) {
    if (++told == 3) throw wire_error("of another step", 2, 17);
  });
  hooks.begin();
  try {
    loss_of(net, 0, 2).backward();
    FAIL("nothing was thrown");
  } catch (const wire_error& fault) {
    CHECK(fault.rank() == 2);
    CHECK(fault.step() == 17);
  }
  CHECK(told == 3);
  CHECK(says(thrown<wire_error>([&] { hooks.end(); }), "of another step"));
  // It is forgotten with the next step.
  hooks.begin();
  loss_of(net, 0, 2).backward();
  hooks.end();
  CHECK(told == 3 + 8);
}

TEST_CASE("a peer's death comes out of the backward pass, at once") {
  std::atomic<bool> stepped{false}, dead{false}, told{false};
  const auto begin = std::chrono::steady_clock::now();
  const auto run = [&] {
    ThreadGroup(2, deadline).run([&](Threads& transport) {
      at::set_num_threads(1);
      Net net(0);
      DataParallel model(net, Adam<>{}, transport, {.slice_bytes = small_slices});
      model.begin();
      loss_of(net, 0, 2).backward();
      model.step();
      const Floats before = copy_of(model.parameters());
      if (transport.rank() == 1) {
        await(stepped);
        dead = true;
        throw std::runtime_error("out of paper");
      }
      stepped = true;
      await(dead);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      model.begin();
      const auto what = thrown<peer_error>([&] { loss_of(net, 0, 2).backward(); });
      CHECK(says(what, "out of paper"));
      CHECK(thrown<peer_error>([&] { model.step(); }) == what);
      CHECK(copy_of(model.parameters()) == before);
      told = true;
    });
  };
  CHECK(says(thrown<std::runtime_error>(run), "out of paper"));
  CHECK(told);
  CHECK(std::chrono::steady_clock::now() - begin < deadline / 2);
}

TEST_CASE("a module in a holder, as TORCH_MODULE makes them, is flattened as the module itself") {
  nn::Linear layer(3, 2);
  const FlatModule flat(layer);
  REQUIRE(flat.layout().segments().size() == 2);
  CHECK(flat.layout().segments()[0].name == "weight");
  CHECK(layer->weight.data_ptr<float>() == flat.parameters());
}

TEST_CASE("a gradient that is not finite throws from step on all ranks, and training goes on") {
  std::atomic<int> caught{0};
  ThreadGroup(2, deadline).run([&](Threads& transport) {
    at::set_num_threads(1);
    Net net(0);
    DataParallel model(net, Adam<>{}, transport, {.slice_bytes = small_slices});
    for (int step = 1; step <= 3; ++step) {
      const Floats before = copy_of(model.parameters());
      model.begin();
      const bool broken = step == 2 && transport.rank() == 1;
      (loss_of(net, 0, 2) * (broken ? std::numeric_limits<double>::infinity() : 1)).backward();
      if (says(thrown<non_finite_error>([&] { model.step(); }), "rank 1")) ++caught;
      CHECK((copy_of(model.parameters()) == before) == (step == 2));
    }
    CHECK(model.optimizer().steps() == 2);
  });
  CHECK(caught == 2);
}
