// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <torch/torch.h>
// LibTorch has a CHECK of its own.
#undef CHECK
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "late.hpp"
#include "terse/device/gpu_rank.hpp"
#include "terse/interop/data_parallel.hpp"
#include "terse/interop/gpu_optimizer.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/one_bit_adam.hpp"

// DataParallel over NCCL, with the stand-in for CUDA and NCCL: the optimizer is compiled elsewhere, in torch_overlap_device.cpp, as
// it is by nvcc. The module lies on the CPU, whose memory the stand-in takes for a device's; in the place of LibTorch's current
// stream each rank has one of its own.

using namespace terse;
using terse::interop::DataParallel;
using terse::interop::GpuOptimizer;
namespace nn = torch::nn;

namespace terse::test {
struct Queued;
}

namespace {
thread_local cudaStream_t current = nullptr;
std::atomic<int> asked = 0;
}  // namespace

template <class R>
struct terse::interop::detail::StepsOf<R, Nccl> {
  using type = GpuOptimizer<R, Nccl, test::Queued>;
  static type make(const R& recipe, Nccl& transport, const FlatModule& flat, const Options& options) {
    return type(recipe, transport, flat.layout(), options, [] { return ++asked, current; });
  }
};

namespace {

using Floats = std::vector<float>;
constexpr std::chrono::seconds patience{30};
constexpr int steps = 6, ranks = 3;
constexpr Options sliced{.slice_bytes = 4096};

struct Net : nn::Module {
  explicit Net(int rank) {
    torch::NoGradGuard no_grad;
    double next = rank;  // other parameters on each rank
    for (torch::Tensor& parameter : parameters()) {
      parameter.copy_(torch::sin(torch::arange(parameter.numel()) * 1.7 + next).reshape(parameter.sizes()) *
                      0.3);
      next += 1;
    }
    fixed->weight.requires_grad_(false);
    shift.fill_(rank + 1);
  }
  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor x = torch::tanh(first(torch::tanh(fixed(input)) + shift.mean()));
    return last(torch::tanh(middle(x)));
  }

  nn::Linear fixed = register_module("fixed", nn::Linear(12, 12));
  nn::Linear first = register_module("first", nn::Linear(12, 40));
  nn::Linear middle = register_module("middle", nn::Linear(40, 40));
  nn::Linear idle = register_module("idle", nn::Linear(3, 2));
  nn::Linear last = register_module("last", nn::Linear(40, 5));
  // Not contiguous, so that its values don't lie as they are sent.
  torch::Tensor shift = register_buffer("shift", torch::zeros({2, 3}).t());
};

/// Returns the parameters after some steps, in each of two passes.
template <class R, Transport T>
Floats train(const R& recipe, T& transport) {
  Net net(transport.rank());
  DataParallel model(net, recipe, transport, sliced);
  CHECK(net.shift.eq(1).all().template item<bool>());
  for (int step = 1; step <= steps; ++step) {
    model.optimizer().learning_rate(1e-2F / static_cast<float>(step));
    model.begin(2, 0.5F);
    for (int pass = 0; pass < 2; ++pass) {
      CHECK_FALSE(model.optimizer().begun());
      const torch::Tensor input = torch::sin(
          torch::arange(8 * 12).reshape({8, 12}) * (0.37 + transport.rank()) + 1.3 * step + 0.7 * pass);
      net.forward(input).square().mean().backward();
    }
    CHECK(model.optimizer().begun());
    const StepResult result = model.step();
    CHECK(result.bytes_sent > 0);
    CHECK(model.unused() == std::vector<std::string>{"idle.weight", "idle.bias"});
  }
  CHECK(model.optimizer().steps() == steps);
  CHECK(model.optimizer().learning_rate() == 1e-2F / steps);
  CHECK(model.optimizer().recipe.learning_rate == model.optimizer().learning_rate());
  return {model.flat().parameters(), model.flat().parameters() + model.flat().size()};
}

template <class R>
void check_bits(const R& recipe) {
  std::vector<Floats> found(ranks), expected(ranks);
  asked = 0;
  ThreadGroup(ranks, patience).run([&](Threads& boot) {
    at::set_num_threads(1);
    GpuRank rank(boot, patience);
    const terse::detail::OwnStream compute;
    current = compute.handle();
    found[static_cast<std::size_t>(boot.rank())] = train(recipe, rank.transport());
  });
  ThreadGroup(ranks, patience).run([&](Threads& transport) {
    at::set_num_threads(1);
    expected[static_cast<std::size_t>(transport.rank())] = train(recipe, transport);
  });
  // By begin, by ready for the seven parameters that a pass reaches, and twice by step.
  CHECK(asked >= ranks * steps * 10);
  CHECK(std::isfinite(found[0][0]));
  CHECK(found == expected);
  CHECK(found[0] == found[1]);
}

}  // namespace

TEST_CASE(
    "over NCCL a module has the bits of one on the host, and gradients leave during the backward pass") {
  const Late late(20, 200);
  check_bits(Adam<>{});
  check_bits(OneBitAdam<>{.preconditioner = {.freeze = AtStep{3}}});
}

TEST_CASE("errors come out of the backward pass, and again out of the step") {
  constexpr std::chrono::seconds short_patience{2};
  ThreadGroup(2, patience).run([&](Threads& boot) {
    at::set_num_threads(1);
    GpuRank rank(boot, short_patience);
    const terse::detail::OwnStream compute;
    current = compute.handle();
    Net net(0);
    DataParallel model(net, Adam<>{}, rank.transport(), sliced);
    model.begin();
    if (rank.rank() == 1) return;  // stops before its first gradient
    const torch::Tensor loss = net.forward(torch::ones({8, 12})).square().mean();
    CHECK_THROWS_AS(loss.backward(), peer_error);
    CHECK_THROWS_AS(model.step(), peer_error);
  });
}

TEST_CASE("nothing is left behind") {
  CHECK(stand_in::communicators == 0);
  CHECK(stand_in::allocations == 0);
  CHECK(stand_in::streams == 0);
  CHECK(stand_in::events == 0);
}
