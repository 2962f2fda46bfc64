// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "late.hpp"
#include "queued.hpp"
#define TERSE_TEST_DEVICE terse::test::Queued
#include "optimizer/device_mixing.hpp"
// After Device, which it names.
#include "cuda/nccl_support.hpp"
#include "terse/device/gpu_rank.hpp"

// Communication that overlaps with the program's own kernels, with the stand-in for CUDA and NCCL and on the emulated device: a
// slice is packed and sent before later gradients are there, and never before its own are; the bits are those of steps that wait.
namespace {

constexpr float not_there = std::numeric_limits<float>::quiet_NaN();
constexpr Options sliced{.slice_bytes = 2048};

/// Counts the kernels and copies that have been enqueued and those that have run, on one rank.
struct Counted : Device {
  struct Counts {
    std::atomic<int> enqueued = 0, run = 0;
  };
  Counts* counts = nullptr;

  explicit Counted(cudaStream_t stream_, Counts* counts_ = nullptr) : Device{stream_}, counts(counts_) {}
  template <class Kernel>
  void launch(const Kernel& kernel, index_t blocks) const {
    Device::launch(kernel, blocks);
    if (counts == nullptr) return;
    ++counts->enqueued;
    const auto count = [](void* run) { ++*static_cast<std::atomic<int>*>(run); };
    detail::check_cuda(cudaLaunchHostFunc(stream, count, &counts->run), "cudaLaunchHostFunc");
  }
};

/// Runs `work` in the order of a stream, with device memory open to it.
void enqueue(cudaStream_t stream, std::function<void()> work) {
  const auto run = [](void* data) {
    const std::unique_ptr<std::function<void()>> own(static_cast<std::function<void()>*>(data));
    const memory::emulated::Open open;
    (*own)();
  };
  auto* const kept = new std::function<void()>(std::move(work));
  detail::check_cuda(cudaLaunchHostFunc(stream, run, kept), "cudaLaunchHostFunc");
}

/// A program on a stream of its own, whose gradients come late, the last segment's first.
struct Program {
  const Layout layout = few_layers();
  const detail::OwnStream compute;
  buffer<float, Device::memory> x, g{layout.size()};
  Floats seen;  // the parameters, as the next kernel of the program finds them

  Program() {
    const auto initial = std::make_shared<const Floats>(start(layout));
    x = buffer<float, Device::memory>(layout.size());
    enqueue(compute.handle(), [initial, to = x.data()] {
      std::this_thread::sleep_for(3ms);
      std::copy(initial->begin(), initial->end(), to);
    });
  }
  void spoil() {
    enqueue(compute.handle(), [to = g.data(), size = layout.size()] { std::fill_n(to, size, not_there); });
  }
  /// Enqueues one segment's gradient, which comes after `before()`.
  void make(index_t segment, std::shared_ptr<const Floats> gradient, std::function<void()> before) {
    const Segment& one = layout.segments()[at(segment)];
    enqueue(compute.handle(), [=, to = g.data(), first = one.offset, count = one.count] {
      before();
      std::copy_n(gradient->begin() + first, count, to + first);
    });
  }
  void look() {
    seen.assign(at(layout.size()), not_there);
    enqueue(compute.handle(), [this, from = x.data()] { std::copy_n(from, seen.size(), seen.begin()); });
  }
};

/// Waits for `done()` and returns true, or false after five seconds.
template <class Done>
bool waited_for(const Done& done) {
  for (const auto until = std::chrono::steady_clock::now() + 5s; !done(); std::this_thread::yield())
    if (std::chrono::steady_clock::now() > until) return false;
  return true;
}

enum class Way {
  in_step,          // nothing is opened
  slices_first,     // each gradient waits until the slices before it have come and gone
  gradients_first,  // no slice begins before the last gradient is there
};

/// Trains by the steps of an overlapped optimizer. Returns how many slices were enqueued while gradients were to come.
template <class R>
int train(const R& recipe, GpuRank& rank, const Options& options, Way way, int steps,
          std::vector<Floats>& found) {
  Counted::Counts counts;
  Program program;
  const executor::overlapped<Counted> overlapped(Counted(rank.stream(), &counts), program.compute.handle());
  Optimizer optimizer{recipe, rank.transport(), program.layout, options, overlapped};
  const auto last = static_cast<index_t>(program.layout.segments().size()) - 1;
  std::atomic<int> in_vain = 0, gradients = 0;
  int overlaps = 0;
  for (int step = 1; step <= steps; ++step) {
    const auto gradient = std::make_shared<const Floats>(
        terse::test::gradient(program.layout, rank.rank(), static_cast<std::uint64_t>(step), 1));
    program.spoil();
    if (way != Way::in_step) optimizer.begin(program.x.all(), program.g.all());
    gradients = 0;
    if (way == Way::gradients_first)
      enqueue(rank.stream(), [&] { in_vain += !waited_for([&] { return gradients > last; }); });
    int awaited = 0;
    for (index_t segment = last; segment >= 0; --segment) {
      program.make(segment, gradient, [&, awaited] {
        std::this_thread::sleep_for(1ms);
        in_vain += !waited_for([&] { return counts.run >= awaited; });
        ++gradients;
      });
      if (way == Way::in_step) continue;
      const int before = counts.enqueued;
      optimizer.ready(segment);
      if (counts.enqueued == before) continue;
      if (way == Way::slices_first) awaited = counts.enqueued;
      if (segment > 0) ++overlaps;
    }
    optimizer.step(program.x.all(), program.g.all());
    program.look();
    detail::check_cuda(cudaStreamSynchronize(program.compute.handle()), "cudaStreamSynchronize");
    found.push_back(program.seen);
    if (in_vain > 0) break;
  }
  CHECK(in_vain == 0);
  return overlaps;
}

/// The parameters after each step on the host, in the same slices.
template <class R>
std::vector<Floats> on_host(const R& recipe, Threads& transport, const Options& options, int steps) {
  const Layout layout = few_layers();
  Optimizer optimizer{recipe, transport, layout, options};
  Floats x = start(layout);
  std::vector<Floats> found;
  for (int step = 1; step <= steps; ++step) {
    optimizer.step(x, gradient(layout, transport.rank(), static_cast<std::uint64_t>(step), 1));
    found.push_back(x);
  }
  return found;
}

/// Holds overlapped steps against the host's. Returns what a rank's `train` does.
template <class R>
int compare_overlapped(const R& recipe, int ranks, const Options& options, Way way, int steps = 6) {
  CAPTURE(type_name<R>());
  std::vector<std::vector<Floats>> found(at(ranks)), expected(at(ranks));
  std::atomic<int> overlaps = 0;
  ThreadGroup(ranks, patience).run([&](Threads& boot) {
    GpuRank rank(boot, patience);
    overlaps += train(recipe, rank, options, way, steps, found[at(rank.rank())]);
  });
  ThreadGroup(ranks, patience).run([&](Threads& transport) {
    expected[at(transport.rank())] = on_host(recipe, transport, options, steps);
  });
  CHECK(found == expected);
  return overlaps / ranks;
}

constexpr FrozenVariance early{.freeze = AtStep{3}};

}  // namespace

TEST_CASE("slices are sent while later gradients are still to come, with the bits of steps that wait") {
  const Late late(20, 200);
  for (const Way way : {Way::slices_first, Way::gradients_first}) {
    CHECK(compare_overlapped(Adam<>{}, 3, sliced, way) >= 6 * 2);
    CHECK(compare_overlapped(OneBitAdam<>{.preconditioner = early}, 3, sliced, way) >= 6 * 2);
    CHECK(compare_overlapped(ErrorFeedbackSgd<TopK<>, HeavyBall, ScatterGather>{}, 2, sliced, way) >= 6 * 2);
  }
}

TEST_CASE("steps that nothing opens, and those that need no message, wait for gradients and are waited for") {
  const Late late(50, 200);
  CHECK(compare_overlapped(OneBitAdam<>{.preconditioner = early}, 2, {}, Way::in_step) == 0);
  CHECK(compare_overlapped(LocalSgd<Adam<>>{.period = 3}, 2, {}, Way::in_step) == 0);
  CHECK(compare_overlapped(Adam<>{}, 2, {.clip_norm = 0.5F}, Way::in_step) == 0);
}

TEST_CASE("with overlap the default slices are a host's") {
  ThreadGroup(1).run([&](Threads& boot) {
    terse::detail::GpuRankWith<Device> rank(boot, patience);
    const detail::OwnStream compute;
    const auto slices = [&](auto executor) {
      return Optimizer{Adam<>{}, rank.transport(), few_layers(), {}, executor}.options().slice_bytes;
    };
    CHECK(slices(rank.overlapped(compute.handle())) == index_t{16} << 20);
    CHECK(slices(rank.executor()) == automatic_slices);
  });
}

// The emulated device does everything at once, so that calls show the order.
TEST_CASE("the program's work is waited for before any pass of a call, and waits after the last one") {
  using Emulated = executor::emulated;
  struct Watched : Emulated {
    std::vector<index_t>*followed, *led;
    Watched(std::vector<index_t>* followed_, std::vector<index_t>* led_) : followed(followed_), led(led_) {}
    void follow() const { followed->push_back(launches()); }
    void lead() const { led->push_back(launches()); }
  };
  const OneBitAdam<> recipe{.preconditioner = early};
  std::vector<Floats> found(2), expected(2);
  ThreadGroup(2, patience).run([&](Threads& transport) {
    const Layout layout = few_layers();
    std::vector<index_t> followed, led;
    ThroughHost<Threads, Emulated> staged(transport.split(0, transport.rank()), Emulated{});
    Optimizer optimizer{recipe, staged, layout, sliced, Watched(&followed, &led)};
    auto x = uploaded<Emulated>(start(layout));
    buffer<float, Emulated::memory> g(layout.size());
    for (std::uint64_t step = 1; step <= 5; ++step) {
      const Floats mine = gradient(layout, transport.rank(), step, 1);
      upload(view<const float>(Floats(at(layout.size()), not_there)), g.all());
      followed.clear();
      led.clear();
      index_t before = Emulated::launches(), early_passes = 0;
      const auto check_followed = [&] { CHECK((!followed.empty() && followed.back() == before)); };
      optimizer.begin(x.all(), g.all());
      check_followed();
      for (auto segment = static_cast<index_t>(layout.segments().size()) - 1; segment >= 0; --segment) {
        const Segment& one = layout.segments()[at(segment)];
        upload(view<const float>(mine).part(one.offset, one.count), g.all().part(one.offset, one.count));
        before = Emulated::launches();
        optimizer.ready(segment);
        check_followed();
        if (segment > 0) early_passes += Emulated::launches() - before;
      }
      CHECK(early_passes > 0);
      before = Emulated::launches();
      CHECK(led.empty());
      optimizer.step(x.all(), g.all());
      check_followed();
      CHECK(led == std::vector<index_t>{Emulated::launches()});
    }
    found[at(transport.rank())].resize(at(layout.size()));
    download(view<const float, Emulated::memory>(x.all()), view<float>(found[at(transport.rank())]));
  });
  ThreadGroup(2, patience).run([&](Threads& transport) {
    expected[at(transport.rank())] = on_host(recipe, transport, sliced, 5).back();
  });
  CHECK(found == expected);
}

TEST_CASE("nothing is left behind") {
  CHECK(stand_in::communicators == 0);
  CHECK(stand_in::allocations == 0);
  CHECK(stand_in::streams == 0);
  CHECK(stand_in::events == 0);
}
