// SPDX-License-Identifier: Apache-2.0
// This program is its own tool of NVTX, which NVTX finds by the symbol InitializeInjectionNvtx2_fnptr.
#define NVTX_STATIC_INJECTION_IMPL
#include <cstdint>
extern "C" int (*InitializeInjectionNvtx2_fnptr)(const void* (*table_of)(std::uint32_t));
#include "terse/transport/nvtx.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/metered.hpp"
#include "terse/transport/thread.hpp"

using namespace terse;

namespace {

/// All events that the tool has seen, in order.
struct Seen {
  std::mutex mutex;
  std::vector<std::string> pushed, started;
  std::vector<std::uint64_t> payloads;  // of `started`
  std::vector<nvtxRangeId_t> ended;
  std::vector<std::string> domains;
  int pops = 0, pops_too_many = 0;
};
Seen& seen() {
  static Seen all;
  return all;
}
thread_local int depth = 0;

nvtxDomainHandle_t NVTX_API create(const char* name) {
  const std::lock_guard lock(seen().mutex);
  seen().domains.push_back(name);
  return reinterpret_cast<nvtxDomainHandle_t>(&seen());
}
int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) {
  const std::lock_guard lock(seen().mutex);
  seen().pushed.push_back(event->message.ascii);
  return depth++;
}
int NVTX_API pop(nvtxDomainHandle_t) {
  const std::lock_guard lock(seen().mutex);
  ++seen().pops;
  if (depth <= 0) ++seen().pops_too_many;
  return --depth;
}
nvtxRangeId_t NVTX_API start(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) {
  const std::lock_guard lock(seen().mutex);
  seen().started.push_back(event->message.ascii);
  seen().payloads.push_back(event->payload.ullValue);
  return seen().started.size() - 1;
}
void NVTX_API end(nvtxDomainHandle_t, nvtxRangeId_t id) {
  const std::lock_guard lock(seen().mutex);
  seen().ended.push_back(id);
}

int NVTX_API attach(NvtxGetExportTableFunc_t table_of) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0)
    return 0;
  const auto set = [&](int id, auto* function) {
    *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
  };
  set(NVTX_CBID_CORE2_DomainCreateA, &create);
  set(NVTX_CBID_CORE2_DomainRangePushEx, &push);
  set(NVTX_CBID_CORE2_DomainRangePop, &pop);
  set(NVTX_CBID_CORE2_DomainRangeStartEx, &start);
  set(NVTX_CBID_CORE2_DomainRangeEnd, &end);
  return 1;
}

/// Forgets the events, and checks that all ranges of the last case were ended once.
struct Case {
  Case() {
    seen().pushed.clear(), seen().started.clear(), seen().payloads.clear(), seen().ended.clear();
    seen().pops = 0;
  }
  ~Case() {
    CHECK(static_cast<std::size_t>(seen().pops) == seen().pushed.size());
    CHECK(seen().pops_too_many == 0);
    CHECK(std::set(seen().ended.begin(), seen().ended.end()).size() == seen().started.size());
    CHECK(seen().ended.size() == seen().started.size());
    CHECK(!seen().started.empty());
    CHECK(seen().domains == std::vector<std::string>{"terse"});
  }
};
auto count(const std::vector<std::string>& names, const std::string& name) {
  return std::count(names.begin(), names.end(), name);
}

/// A transport with a collective of its own.
struct Collective : Forwarding<Collective, Metered<Threads>> {
  using Forwarding::Forwarding;
  void all_gather(std::span<const std::byte>, std::span<std::byte>, Phase) {}
  Collective split(int color, int key) { return Collective(inner_.split(color, key)); }
};

}  // namespace

int (*InitializeInjectionNvtx2_fnptr)(const void* (*table_of)(std::uint32_t)) = &attach;

TEST_CASE(
    "each batch of a step has a range with its phase, its step and its bytes, and steps keep their bits") {
  const Case closed;
  constexpr int ranks = 3, steps = 4;
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& threads) {
    NvtxRanges<Threads> network(threads.split(0, threads.rank()));
    const Layout layout = Layout::flat(640);
    Optimizer plain{Adam<>{}, threads, layout};
    Optimizer shown{Adam<>{}, network, layout};
    std::vector<float> x(640, 1), y = x, g(640, 0.1F);
    for (int step = 0; step < steps; ++step) {
      plain.step(x, g);
      shown.step(y, g);
      REQUIRE(x == y);
    }
    CHECK(depth == 0);
  });
  std::map<std::string, std::uint64_t> bytes;
  for (std::size_t k = 0; k < seen().started.size(); ++k) bytes[seen().started[k]] += seen().payloads[k];
  for (int step = 1; step <= steps; ++step)
    for (const std::string phase : {"reduce", "spread"}) {
      const std::string name = phase + ", step " + std::to_string(step);
      CAPTURE(name);
      CHECK(count(seen().started, name) == ranks);
      CHECK(count(seen().pushed, name) == ranks);
      CHECK(count(seen().pushed, "wait: " + name) == ranks);
      CHECK(bytes[name] > 640 * sizeof(float) * (ranks - 1));
    }
  CHECK(count(seen().started, "reduce, step 5") == 0);
}

TEST_CASE("ranges end when batches do, after errors, in channels and in collectives") {
  const Case closed;
  std::atomic<bool> failed = false;
  ThreadGroup(2, std::chrono::milliseconds(500)).run([&](Threads& threads) {
    NvtxRanges<Collective> network{Collective(Metered<Threads>(threads.split(0, threads.rank())))};
    auto channel = network.split(0, network.rank());
    std::byte mine{}, all[2];
    channel.all_gather({&mine, 1}, all, Phase::agree);
    const Send to{1 - channel.rank(), &mine, 1, 1};
    const Receive from{1 - channel.rank(), all, 1, false};
    auto polled = channel.exchange({&to, 1}, {&from, 1}, Phase::backward);
    while (!polled.ready()) std::this_thread::yield();  // throws at the deadline
    barrier(threads);
    {
      const std::lock_guard lock(seen().mutex);
      CHECK(count(seen().started, "backward") == 2);
      CHECK(seen().ended.size() == 2);
    }
    barrier(threads);
    if (channel.rank() == 0) {
      const Receive never{1, all, 1, false};
      auto late = channel.exchange({}, {&never, 1}, Phase::spread);
      CHECK_THROWS_AS(late.wait(), peer_error);
      failed = true;
    }
    // A rank that ends would end the wait before it begins.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!failed && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    CHECK(depth == 0);
  });
  CHECK(count(seen().pushed, "agree") == 2);
  CHECK(count(seen().started, "spread") == 1);
  CHECK(count(seen().pushed, "wait: spread") == 1);
}

TEST_CASE("the range of an abandoned batch ends") {
  const Case closed;
  std::atomic<bool> there = false;
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& threads) {
    NvtxRanges<Threads> network(threads.split(0, threads.rank()));
    std::byte never{};
    const Receive receive{1, &never, 1, false};
    there = there || network.rank() == 1;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!there && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (network.rank() == 0) (void)network.exchange({}, {&receive, 1}, Phase::forward);
  });
  CHECK(count(seen().started, "forward") == 1);
}
