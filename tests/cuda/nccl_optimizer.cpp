// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "late.hpp"
#include "queued.hpp"
#define TERSE_TEST_DEVICE terse::test::Queued
constexpr bool adds_in_order = true;
#include "cuda/nccl_optimizer.inc"
#include "terse/device/gpu_rank.hpp"
#include "terse/transport/any.hpp"
#include "terse/transport/metered.hpp"
#include "terse/transport/through_host.hpp"

// With the stand-in for CUDA and NCCL: kernels and messages are late, so that a host that doesn't wait for them reads
// what isn't there yet, and a device's memory is closed to the host.
namespace {

constexpr std::chrono::milliseconds short_patience = 2s;

/// A rank's optimizer, and what it says of a step.
struct Tried {
  const Layout layout = few_layers();
  int rank;
  Optimizer<OneBitAdam<>, Nccl, Device> optimizer;
  buffer<float, Device::memory> x = uploaded<Device>(start(layout)), g{layout.size()};

  Tried(Nccl& transport, const Device& device)
      : rank(transport.rank()),
        optimizer{OneBitAdam<>{.preconditioner = early}, transport, layout, {}, device} {}

  void load_gradient(float spoiled = 0) {
    Floats mine = gradient(layout, rank, optimizer.steps() + 1, 1);
    mine[70] += spoiled;
    upload(view<const float>(mine), g.all());
  }
  void step() { optimizer.step(x.all(), g.all()); }
  Floats parameters() const {
    Floats found(at(layout.size()));
    download(view<const float, Device::memory>(x.all()), view<float>(found));
    return found;
  }
};

void sleep_on(cudaStream_t stream) {
  const auto sleep = [](void*) { std::this_thread::sleep_for(2 * short_patience); };
  detail::check_cuda(cudaLaunchHostFunc(stream, sleep, nullptr), "cudaLaunchHostFunc");
}

}  // namespace

TEST_CASE("optimizers have the host's bits, however late kernels and messages are") {
  const Late late(50, 300);
  compare_over_nccl(4);
}

TEST_CASE("a rank with a GPU of its own chooses it by its number on the machine") {
  const Layout layout = few_layers();
  const OneBitAdam<> recipe{.preconditioner = early};
  std::vector<Floats> found(static_cast<std::size_t>(gpus())), expected(found.size());
  const auto train = [&](auto& transport, auto executor, int rank) {
    using E = decltype(executor);
    Optimizer optimizer{recipe, transport, layout, {}, executor};
    buffer<float, typename E::memory> x = uploaded<E>(start(layout)), g(layout.size());
    for (std::uint64_t step = 1; step <= 6; ++step) {
      const Floats mine = gradient(layout, rank, step, 1);
      upload(view<const float>(mine), g.all());
      optimizer.step(x.all(), g.all());
    }
    Floats all(at(layout.size()));
    download(view<const float, typename E::memory>(x.all()), view<float>(all));
    return all;
  };
  on_all_gpus<terse::detail::GpuRankWith<Device>>(
      [&](terse::detail::GpuRankWith<Device>& rank) {
        int current = -1;
        CHECK(cudaGetDevice(&current) == cudaSuccess);
        CHECK(current == rank.rank());
        CHECK(rank.device() == rank.rank());
        CHECK(rank.stream() == rank.transport().stream());
        found[at(rank.rank())] = train(rank.transport(), rank.executor(), rank.rank());
      },
      patience);
  ThreadGroup(gpus()).run([&](Threads& transport) {
    expected[at(transport.rank())] = train(transport, executor::host{}, transport.rank());
  });
  CHECK(found == expected);
  // More ranks than GPUs: NCCL takes one for each, which all ranks are told.
  std::vector<std::string> errors(at(gpus() + 1));
  ThreadGroup(gpus() + 1).run([&](Threads& boot) {
    try {
      const terse::detail::GpuRankWith<Device> rank(boot, short_patience);
    } catch (const usage_error& refused) {
      errors[at(boot.rank())] = refused.what();
    }
  });
  for (const std::string& error : errors)
    CHECK(error.find("ranks 0 and 4 have the same GPU") != std::string::npos);
}

TEST_CASE("by default compressed packets go in one slice where messages are in a stream's order") {
  on_gpus(2, patience, [&](Nccl& transport, const Device& device) {
    const auto bytes = [&](index_t slice_bytes) {
      const Options options{.slice_bytes = slice_bytes};
      return Optimizer{OneBitAdam<>{}, transport, Layout::flat(index_t{5} << 20), options, device}
          .bytes_per_step();
    };
    const StepBytes chosen = bytes(automatic_slices);
    CHECK(chosen == bytes(0));
    CHECK(chosen.compressed < bytes(index_t{16} << 20).compressed);
  });
  ThreadGroup(2).run([&](Threads& transport) {
    const auto bytes = [&](index_t slice_bytes) {
      const Options options{.slice_bytes = slice_bytes};
      return Optimizer{OneBitAdam<>{}, transport, Layout::flat(index_t{5} << 20), options}.bytes_per_step();
    };
    CHECK(bytes(automatic_slices) == bytes(index_t{16} << 20));
  });
}

TEST_CASE("a gradient that isn't finite is known to all, and moves nothing") {
  const Late late(0, 100);
  std::vector<std::string> errors(3);
  on_gpus(3, patience, [&](Nccl& transport, const Device& device) {
    Tried tried(transport, device);
    for (int step = 1; step <= 8; ++step) {
      const Floats before = tried.parameters();
      const bool spoiled = tried.rank == 2 && (step == 2 || step == 6);
      tried.load_gradient(spoiled ? std::numeric_limits<float>::infinity() : 0);
      try {
        tried.step();
        CHECK(tried.parameters() != before);
      } catch (const non_finite_error& failure) {
        errors[at(tried.rank)] += std::to_string(step) + ":" + std::to_string(failure.culprit()) + " ";
        CHECK(tried.parameters() == before);
      }
    }
  });
  for (const std::string& one : errors) CHECK(one == "2:2 6:2 ");
}

// Before and after the freeze. A rank that comes too late has sent nothing; one whose device hangs has enqueued all.
TEST_CASE("whoever waits in a step for a late rank gives up by the deadline, and keeps its parameters") {
  for (const int late_step : {2, 7})
    for (const bool hangs : {false, true}) {
      CAPTURE(late_step);
      CAPTURE(hangs);
      const Late late(0, 0);
      on_gpus(3, short_patience, [&](Nccl& transport, const Device& device) {
        {
          Tried tried(transport, device);
          for (int step = 1; step < late_step; ++step) {
            tried.load_gradient();
            tried.step();
          }
          tried.load_gradient();
          const Floats before = tried.parameters();
          const bool culprit = tried.rank == 1;
          if (culprit && hangs) sleep_on(device.stream);
          if (culprit && !hangs) std::this_thread::sleep_for(2 * short_patience);
          const auto begin = std::chrono::steady_clock::now();
          try {
            tried.step();
            FAIL("the step was taken");
          } catch (const peer_error& failure) {
            const std::string text = failure.what();
            CAPTURE(text);
            CHECK(text.find("gave up waiting for one or more of 3 ranks in phase '") != std::string::npos);
            CHECK(failure.culprit() == -1);
            CHECK(failure.rank() == tried.rank);
          }
          const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
          CHECK(waited > short_patience);
          CHECK(waited < 10 * short_patience);
          // The optimizer throws its error again, and the transport says what became of it.
          CHECK_THROWS_WITH_AS(tried.step(), doctest::Contains("gave up waiting for one or more of 3 ranks"),
                               peer_error);
          CHECK_THROWS_WITH_AS(barrier(tried.optimizer.channel()),
                               doctest::Contains("were aborted: gave up waiting for"), peer_error);
          drain(device.stream);
          CHECK(tried.parameters() == before);
          CHECK(tried.optimizer.steps() == static_cast<std::uint64_t>(late_step - 1));
        }
        drain(device.stream);
      });
    }
}

TEST_CASE("the executor and the transport work on one stream") {
  on_gpus(1, patience, [&](Nccl& transport, const Device&) {
    const detail::OwnStream other;
    CHECK_THROWS_WITH_AS(Tried(transport, Device{other.handle()}),
                         doctest::Contains("on another CUDA stream than the executor"), usage_error);
  });
}

TEST_CASE("behind one type NCCL and messages by way of the host have the host's bits") {
  using Any = AnyTransportOf<memory::device>;
  constexpr int ranks = 3;
  const OneBitAdam<> recipe{.preconditioner = early};
  std::vector<Trace> host(ranks);
  ThreadGroup(ranks, patience).run([&](Threads& transport) {
    host[at(transport.rank())] = trace<executor::host>(recipe, transport, few_layers(), 7, {});
  });
  for (const bool staged : {false, true}) {
    CAPTURE(staged);
    const Late late(50, 300);
    std::vector<Trace> device(ranks);
    ThreadGroup(ranks, patience).run([&](Threads& boot) {
      detail::check_cuda(cudaSetDevice(boot.rank()), "cudaSetDevice");
      const detail::OwnStream stream, other;
      const Device executor{stream.handle()};
      Any transport = staged ? Any(ThroughHost(boot.split(0, boot.rank()), executor))
                             : Any(Metered(Nccl::create(boot, stream.handle(), patience)));
      CHECK((transport.stream() != other.handle()) == !staged);
      CHECK_FALSE(transport.stream() != stream.handle());
      device[at(boot.rank())] = trace(recipe, transport, few_layers(), 7, {}, 1, executor);
    });
    for (int rank = 0; rank < ranks; ++rank) CHECK(device[at(rank)].steps == host[at(rank)].steps);
  }
}

TEST_CASE("nothing is left behind") {
  CHECK(stand_in::communicators == 0);
  CHECK(stand_in::allocations == 0);
  CHECK(stand_in::streams == 0);
}
