// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <torch/torch.h>
// LibTorch has a CHECK of its own.
#undef CHECK
#include <doctest/doctest.h>

#include <algorithm>
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

#if __has_include(<nlohmann/json.hpp>) && __has_include(<xxhash.h>)
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "terse/interop/checkpoint.hpp"
#define TERSE_TEST_CHECKPOINTS
#endif

// Gradients that leave during LibTorch's backward pass: the bits of steps that wait for its end, when hooks are called, passes that
// are summed, parameters that get nothing, gradients that the program changes, and errors on their way through LibTorch; and what
// a module must not become after it is flat, nor be before. In C++20, which clang doesn't take Debian's
// LibTorch as.

using namespace terse;
using terse::interop::DataParallel;
using terse::interop::FlatModule;
using terse::interop::GradientHooks;
using terse::interop::Leave;
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
/// The same where nothing leaves before the passes are over, and `change` may change the gradients.
template <class R, class Change = void (*)(Net&)>
Floats waiting(
    const R& recipe, Threads& transport, const Options& options, int passes, Change change = [](Net&) {}) {
  Net net(0);
  FlatModule flat(net);
  Optimizer optimizer{recipe, transport, flat.layout(), options};
  const view<float> parameters{flat.parameters(), flat.size()}, gradients{flat.gradients(), flat.size()};
  for (int step = 1; step <= steps; ++step) {
    flat.zero_gradients();
    for (int pass = 0; pass < passes; ++pass) loss_of(net, transport.rank(), step, pass).backward();
    change(net);
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
    CHECK(says(thrown<usage_error>([&] { model.step(); }), "without begin()"));
    CHECK(says(thrown<usage_error>([&] { model.begin(0); }), "at least one backward pass"));
    // Nothing has left, so a pass that failed before may be begun again.
    model.begin();
    model.begin();
    loss_of(net, 0, 1).backward();
    CHECK(says(thrown<usage_error>([&] { model.begin(); }), "step() hasn't finished it"));
    CHECK(model.step().applied);
    CHECK(model.unused() ==
          std::vector<std::string>{"idle.weight", "idle.bias", "detour.weight", "detour.bias"});
    CHECK(says(thrown<usage_error>([&] { model.step(); }), "without begin()"));
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

namespace {

/// Ways in which programs change gradients after the backward pass; the last two reach what no version counter counts.
void clip(Net& net) { nn::utils::clip_grad_norm_(net.parameters(), 1e-9); }
void unscale(Net& net) {
  for (torch::Tensor& parameter : net.parameters())
    if (parameter.grad().defined()) parameter.mutable_grad().mul_(0.5);
}
void prune(Net& net) { net.twice->weight.grad().data_ptr<float>()[1234] = 0; }
void disturb_unused(Net& net) { net.idle->bias.mutable_grad().add_(1e-3); }

/// A change of a step's gradients is refused, whatever would have left; and acts in a step that keeps them.
template <class R>
void check_changes(const R& recipe, Options options = {}) {
  options.slice_bytes = small_slices;
  for (const auto change : {clip, unscale, prune, disturb_unused})
    for (const int passes : {1, 2}) {
      CAPTURE(type_name<R>());
      CAPTURE(passes);
      alone([&](Threads& transport) {
        Net net(0);
        DataParallel model(net, recipe, transport, options);
        const Floats before = copy_of(model.parameters());
        model.begin(passes);
        for (int pass = 0; pass < passes; ++pass) loss_of(net, 0, 1, pass).backward();
        change(net);
        const auto what = thrown<usage_error>([&] { model.step(); });
        CHECK(says(what, change == clip || change == unscale ? "'first.weight' was changed"
                         : change == prune                   ? "'twice.weight' was changed"
                                                             : "'idle.bias' is not zero"));
        CHECK(says(what, "Options::clip_norm"));
        CHECK(says(what, "Leave::in_step"));
        CHECK(thrown<usage_error>([&] { model.step(); }) == what);
        CHECK(copy_of(model.parameters()) == before);
      });
      ThreadGroup(2, deadline).run([&](Threads& transport) {
        at::set_num_threads(1);
        Net net(transport.rank());
        DataParallel model(net, recipe, transport, options);
        for (int step = 1; step <= steps; ++step) {
          model.begin(passes, 1.0F / static_cast<float>(passes), Leave::in_step);
          for (int pass = 0; pass < passes; ++pass) loss_of(net, transport.rank(), step, pass).backward();
          CHECK_FALSE(model.optimizer().begun());
          change(net);
          model.step();
        }
        CHECK(copy_of(model.parameters()) == waiting(recipe, transport, options, passes, change));
      });
    }
}

/// A module of named tensors.
struct Tensors : nn::Module {
  torch::Tensor& add(const std::string& name, const torch::Tensor& values, bool trained = true) {
    return register_parameter(name, values, trained);
  }
  void add_buffer(const std::string& name, const torch::Tensor& values) { register_buffer(name, values); }
};

}  // namespace

TEST_CASE("a gradient that the program has changed is refused, or counts where the step began so") {
  check_changes(Adam<>{.learning_rate = 1e-2F});
  check_changes(Adam<>{.learning_rate = 1e-2F}, {.clip_norm = 1});
  check_changes(Adam<>{.learning_rate = 1e-2F}, {.on_non_finite = NonFinite::skip});
  // A module of the net is never used.
  check_changes(one_bit<Ring>(), {.most_masked = 1});
  check_changes(one_bit<ScatterGather>(), {.clip_norm = 0.05F, .most_masked = 1});
  check_changes(LocalSgd<Adam<>>{.period = 3});
}

TEST_CASE("what changes nothing, or comes before the last backward pass, is no change of a gradient") {
  alone([](Threads& transport) {
    Net net(0);
    DataParallel model(net, Adam<>{}, transport);
    model.begin(2);
    loss_of(net, 0, 1, 0).backward();
    net.first->weight.mutable_grad().mul_(2);
    loss_of(net, 0, 1, 1).backward();
    nn::utils::clip_grad_norm_(net.parameters(), 1e9);
    CHECK(model.step().applied);
    // The program's own affair between two steps.
    loss_of(net, 0, 1).backward();
    unscale(net);
    model.begin();
    loss_of(net, 0, 1).backward();
    CHECK(model.step().applied);
  });
}

TEST_CASE("a backward pass before begin, and none after it, is refused: its gradients would be lost") {
  alone([](Threads& transport) {
    Net net(0);
    DataParallel model(net, Adam<>{}, transport);
    loss_of(net, 0, 1).backward();
    model.begin();
    CHECK(says(thrown<usage_error>([&] { model.step(); }), "call begin() before backward()"));
    // A rank without a batch takes part with zeros.
    model.begin();
    CHECK(model.step().applied);
  });
}

TEST_CASE("one rank's change of a gradient is that rank's error, and ends the others in time") {
  std::atomic<int> told{0};
  const auto run = [&] {
    ThreadGroup(2, deadline).run([&](Threads& transport) {
      at::set_num_threads(1);
      Net net(0);
      DataParallel model(net, Adam<>{}, transport, {.slice_bytes = small_slices});
      try {
        model.begin();
        loss_of(net, 0, 2).backward();
        if (transport.rank() == 1) clip(net);
        model.step();
      } catch (const usage_error&) {
        told += transport.rank() == 1 ? 1 : 100;
        throw;
      } catch (const peer_error&) {
        told += transport.rank() == 0 ? 10 : 100;
        throw;
      }
    });
  };
  CHECK(says(thrown<usage_error>(run), "was changed after its last backward pass"));
  CHECK(told == 11);
}

TEST_CASE("hooks refuse gradients that were changed, and say nothing of those of a step that keeps them") {
  Net net(0);
  FlatModule flat(net);
  int told = 0;
  GradientHooks hooks(flat, [&](index_t) { ++told; });
  hooks.begin();
  loss_of(net, 0, 2).backward();
  clip(net);
  CHECK(says(thrown<usage_error>([&] { hooks.end(); }), "'first.weight' was changed"));
  CHECK(told == 8);
  flat.zero_gradients();
  hooks.begin(1, Leave::in_step);
  loss_of(net, 0, 2).backward();
  clip(net);
  hooks.end();
  CHECK(told == 8);
  CHECK(hooks.unused() == std::vector<std::string>{"idle.weight", "idle.bias"});
}

TEST_CASE("what is trained is settled when the module becomes flat") {
  alone([](Threads& transport) {
    Net net(0);
    {
      DataParallel model(net, Adam<>{.weight_decay = 0.1F}, transport);
      const auto step = [&] {
        model.begin();
        loss_of(net, 0, 2).backward();
        model.step();
      };
      step();
      // Frozen and thawed between steps, as one of two adversaries is.
      net.first->weight.requires_grad_(false);
      net.first->weight.requires_grad_(true);
      step();
      const Floats before = copy_of(model.parameters());
      const auto refused = [&](const char* name, const char* why) {
        for (const auto& what : {thrown<usage_error>(step), thrown<usage_error>([&] { model.step(); }),
                                 thrown<usage_error>([&] { model.flat().check_gradients(); })}) {
          CHECK((says(what, name) || says(what, "without begin()")));
          CHECK((says(what, why) || says(what, "without begin()")));
        }
        CHECK_FALSE(model.optimizer().begun());
        CHECK(copy_of(model.parameters()) == before);
      };
      net.first->weight.requires_grad_(false);
      refused("'first.weight'", "was frozen after the module became flat");
      CHECK(says(thrown<usage_error>([&] { GradientHooks(model.flat(), [](index_t) {}); }),
                 "was frozen after"));
      net.first->weight.requires_grad_(true);
      net.fixed->bias.requires_grad_(true);
      refused("'fixed.bias'", "no step would train it");
      net.fixed->bias.requires_grad_(false);
      net.register_module("later", nn::Linear(3, 2));
      refused("'later.weight'", "no step would train it");
    }
    // As the sentence says.
    net.first->weight.requires_grad_(false);
    const torch::Tensor frozen = net.first->weight.clone();
    DataParallel model(net, Adam<>{.weight_decay = 0.1F}, transport);
    CHECK(model.flat().layout().segments().size() == 11);
    model.begin();
    loss_of(net, 0, 2).backward();
    model.step();
    CHECK(torch::equal(net.first->weight, frozen));
  });
}

TEST_CASE("a parameter that is frozen or thawed between begin and step is found by step") {
  for (const bool thawed : {false, true})
    alone([&](Threads& transport) {
      Net net(0);
      DataParallel model(net, Adam<>{}, transport);
      model.begin();
      loss_of(net, 0, 2).backward();
      (thawed ? net.fixed : net.last)->bias.requires_grad_(thawed);
      CHECK(says(thrown<usage_error>([&] { model.step(); }), thawed ? "'fixed.bias'" : "'last.bias'"));
    });
}

TEST_CASE("tensors that share memory without being one are refused, by both names") {
  const auto values = [] { return torch::ones({4, 6}); };
  const auto refusal = [](Tensors& module) {
    std::vector<const void*> places;
    for (const torch::Tensor& parameter : module.parameters()) places.push_back(parameter.data_ptr());
    const auto what = thrown<usage_error>([&] { FlatModule flat(module); });
    for (std::size_t p = 0; p < places.size(); ++p) {
      CHECK(module.parameters()[p].data_ptr() == places[p]);
      CHECK_FALSE(module.parameters()[p].grad().defined());
    }
    return what;
  };
  for (const bool trained : {true, false}) {
    Tensors same, part, buffer;
    same.add("one", values());
    same.add("other", values(), trained).set_data(same.named_parameters()["one"].data());
    CHECK(says(refusal(same), "'one' shares memory with 'other'"));

    const torch::Tensor fused = torch::ones({10, 6});
    part.add("other", fused.narrow(0, 0, 4), trained);
    part.add("one", fused.narrow(0, 3, 4));
    CHECK(says(refusal(part),
               trained ? "'other' shares memory with 'one'" : "'one' shares memory with 'other'"));

    buffer.add("frozen", values(), false);
    const torch::Tensor weight = buffer.add("one", values());
    buffer.add_buffer("transposed", weight.detach().t());
    CHECK(says(refusal(buffer), "'one' shares memory with 'transposed'"));
  }
  // Next to each other in one buffer, which nothing else reads.
  Tensors next;
  auto fused = std::make_unique<torch::Tensor>(torch::ones({8, 6}));
  next.add("one", values()).set_data(fused->narrow(0, 0, 4).data());
  next.add("other", values()).set_data(fused->narrow(0, 4, 4).data());
  next.add_buffer("empty", torch::empty({0}));
  CHECK(says(refusal(next), "'one' is a view of a larger buffer"));
  fused.reset();
  CHECK(thrown<usage_error>([&] { FlatModule flat(next); }).empty());
  // What is tied as the sentence says stays tied.
  Tensors tied;
  const torch::Tensor weight = tied.add("one", values());
  tied.add("other", weight);
  tied.add_buffer("view", weight);
  FlatModule flat(tied);
  CHECK(flat.layout().segments().size() == 1);
  CHECK(tied.named_parameters()["other"].data_ptr<float>() == flat.parameters());
  CHECK(tied.named_buffers()["view"].data_ptr<float>() == flat.parameters());
  // And what was flat may become so again.
  CHECK(thrown<usage_error>([&] { FlatModule again(tied); }).empty());
}

TEST_CASE("what can't lie in an arena is refused by name, and stays where it is") {
  const auto refused = [](torch::Tensor weight, const char* why) {
    nn::Module module;
    module.register_parameter("weight", weight);
    const torch::Tensor before = module.parameters()[0];
    CHECK(says(thrown<usage_error>([&] { FlatModule flat(module); }), "'weight'"));
    CHECK(says(thrown<usage_error>([&] { FlatModule flat(module); }), why));
    CHECK(module.parameters()[0].unsafeGetTensorImpl() == before.unsafeGetTensorImpl());
    CHECK_FALSE(module.parameters()[0].grad().defined());
  };
  refused(torch::ones({3, 2}, torch::kDouble), "holds Double, but this FlatModule takes Float only");
  refused(torch::ones({3, 2}, torch::kBFloat16), "holds BFloat16, but this FlatModule takes Float only");
  refused(torch::ones({3, 2}).t(), "is not contiguous");
  refused(torch::ones({3, 2}, torch::kMeta), "lies on meta");
  nn::Module module;
  module.register_parameter("weight", torch::ones({3, 2}));
  CHECK(says(thrown<usage_error>([&] { interop::FlatModuleOf<c10::BFloat16> flat(module); }),
             "holds Float, but this FlatModule takes BFloat16 only"));
}

TEST_CASE("a module in bfloat16 has arenas of that, and masters in fp32 behind them") {
  nn::Module module;
  torch::Tensor weight = module.register_parameter("weight", torch::full({4, 8}, 0.5, torch::kBFloat16));
  interop::FlatModuleOf<c10::BFloat16> flat(module);
  CHECK(weight.data_ptr() == static_cast<void*>(flat.parameters()));
  ThreadGroup(1).run([&](Threads& transport) {
    Optimizer optimizer{Adam<>{.learning_rate = 1e-4F}, transport, flat.layout(), {}, {}, Numbers<bf16>{}};
    for (int step = 0; step < 100; ++step) {
      flat.zero_gradients();
      weight.sum().backward();
      flat.check_gradients();
      optimizer.step({reinterpret_cast<bf16*>(flat.parameters()), flat.size()},
                     {reinterpret_cast<const bf16*>(flat.gradients()), flat.size()});
    }
  });
  // 100 steps of 1e-4, each less than half of what 8 bits of 0.5 tell apart.
  CHECK(weight.min().item<float>() == doctest::Approx(0.49).epsilon(0.005));
  CHECK(weight.max().item<float>() == weight.min().item<float>());
}

TEST_CASE("the mean of local models is evaluated in the module, and each rank's own comes back") {
  ThreadGroup(2, deadline).run([](Threads& transport) {
    at::set_num_threads(1);
    Net net(0);
    DataParallel model(net, LocalSgd<Adam<>>{.inner = {.learning_rate = 1e-2F}, .period = 4}, transport);
    for (int step = 1; step <= 3; ++step) {
      model.begin();
      loss_of(net, transport.rank(), step).backward();
      model.step();
    }
    const Floats own = copy_of(model.parameters());
    const torch::Tensor bias = net.first->bias.detach().clone();
    torch::Tensor mean = bias.clone();
    terse::mean(transport, view<float>(mean.data_ptr<float>(), mean.numel()));
    CHECK_FALSE(torch::equal(bias, mean));

    Floats other(own.size());
    model.optimizer().mean_parameters(model.parameters(), other);
    std::swap_ranges(other.begin(), other.end(), model.parameters().begin());
    CHECK(torch::equal(net.first->bias, mean));
    model.flat().check_gradients();
    std::swap_ranges(other.begin(), other.end(), model.parameters().begin());
    CHECK(torch::equal(net.first->bias, bias));
    CHECK(copy_of(model.parameters()) == own);
  });
}

TEST_CASE("ranks without a batch take part, and the others' scale makes the mean over those that have one") {
  ThreadGroup(2, deadline).run([](Threads& transport) {
    at::set_num_threads(1);
    Net net(0), lonely(0);
    DataParallel model(net, MomentumSgd<>{.learning_rate = 0.5F}, transport);
    Threads own = transport.split(transport.rank(), 0);
    DataParallel reference(lonely, MomentumSgd<>{.learning_rate = 0.5F}, own);
    for (int step = 1; step <= steps; ++step) {
      model.begin(1, 2);
      if (transport.rank() == 0) loss_of(net, 0, step).backward();
      model.step();
      CHECK((model.unused().size() == 10) == (transport.rank() == 1));
      reference.begin();
      loss_of(lonely, 0, step).backward();
      reference.step();
    }
    CHECK(copy_of(model.parameters()) == copy_of(reference.parameters()));
  });
}

#ifdef TERSE_TEST_CHECKPOINTS
namespace {

/// Has running statistics, which are each rank's own.
struct Normalized : nn::Module {
  Normalized() {
    torch::NoGradGuard no_grad;
    first->weight.fill_(0.1);
    first->bias.zero_();
  }
  torch::Tensor loss(int rank, std::uint64_t step) {
    const torch::Tensor input =
        torch::sin(torch::arange(8 * 12).reshape({8, 12}) * (0.37 + rank) + 1.3 * static_cast<double>(step));
    return first(norm(input)).square().mean();
  }
  std::vector<torch::Tensor> statistics() {
    return {norm->running_mean.clone(), norm->running_var.clone(), norm->num_batches_tracked.clone()};
  }

  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(12));
  nn::Linear first = register_module("first", nn::Linear(12, 5));
};

bool equal_all(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(),
      [](const torch::Tensor& one, const torch::Tensor& other) { return torch::equal(one, other); });
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const checkpoint_error& refused) {
    return refused.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a checkpoint of a model has its buffers, each rank's own") {
  const std::filesystem::path place =
      std::filesystem::temp_directory_path() / ("terse-buffers-" + std::to_string(getpid()));
  std::filesystem::create_directory(place);
  ThreadGroup(2, deadline).run([&](Threads& transport) {
    at::set_num_threads(1);
    const auto train = [&](Normalized& net, auto& model, std::uint64_t last) {
      while (model.optimizer().steps() < last) {
        model.begin();
        net.loss(transport.rank(), model.optimizer().steps() + 1).backward();
        model.step();
      }
    };
    Normalized whole, half, rest;
    DataParallel uninterrupted(whole, MomentumSgd<>{}, transport), first(half, MomentumSgd<>{}, transport);
    DataParallel second(rest, MomentumSgd<>{}, transport);
    train(whole, uninterrupted, 6);
    checkpoint::Folder folder(place / "run", transport);
    CHECK_FALSE(interop::load(folder, first));
    train(half, first, 3);
    interop::save(folder, first, {{"note", "half"}});
    const auto loaded = interop::load(folder, second);
    REQUIRE(loaded);
    CHECK(loaded->manifest.contents("note") == "half");
    CHECK(second.optimizer().steps() == 3);
    CHECK(equal_all(rest.statistics(), half.statistics()));
    train(rest, second, 6);
    CHECK(copy_of(second.parameters()) == copy_of(uninterrupted.parameters()));
    CHECK(equal_all(rest.statistics(), whole.statistics()));
    std::vector<torch::Tensor> other = whole.statistics();
    terse::mean(transport, view<float>(other[0].data_ptr<float>(), other[0].numel()));
    CHECK_FALSE(torch::equal(other[0], whole.statistics()[0]));

    checkpoint::Folder without(place / "without", transport);
    without.save(first.optimizer(), first.parameters());
    const auto before = rest.statistics();
    CHECK(refusal([&] { interop::load(without, second); }).find("was saved without the module's buffers") !=
          std::string::npos);
    // One that was trained on others is refused before anything is loaded.
    half.norm->register_buffer("more", torch::zeros({2}));
    interop::save(without, first);
    CHECK(refusal([&] { interop::load(without, second); }).find("has 4 buffers, and the module 3") !=
          std::string::npos);
    CHECK(second.optimizer().steps() == 6);
    CHECK(equal_all(rest.statistics(), before));
  });
  std::filesystem::remove_all(place);
}
#endif
