// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the tests of optimizers on TERSE_TEST_DEVICE share, an executor of the grid kind.

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "optimizer/support.hpp"
#include "terse/checkpoint/checkpoint.hpp"
#include "terse/device.hpp"
#include "terse/transport/through_host.hpp"

namespace {

using namespace terse;
using namespace terse::test;
using Device = TERSE_TEST_DEVICE;

/// Floats of any kind and size, as bytes, so that == compares bits.
using Parts = std::map<std::string, std::vector<std::byte>>;

struct Look {
  Parts& parts;

  template <class T, class Space>
  void operator()(const std::string& name, view<T, Space> part, index_t offset) {
    std::vector<T> here(at(part.size()));
    download(view<const T, Space>(part), view<T>(here));
    const auto bytes = std::as_bytes(std::span(here));
    parts[name + "@" + std::to_string(offset)].assign(bytes.begin(), bytes.end());
  }
  void operator()(const std::string& name, std::uint64_t& value) {
    (*this)(name, view<std::uint64_t>(&value, 1), 0);
  }
};

struct Trace {
  std::vector<Parts> steps;
  std::uint64_t bytes = 0;
  std::string hash;
  bool operator==(const Trace&) const = default;
};

template <Executor E>
buffer<float, typename E::memory> uploaded(const Floats& values) {
  buffer<float, typename E::memory> copy(static_cast<index_t>(values.size()));
  upload(view<const float>(values), copy.all());
  return copy;
}

/// Runs a recipe over this rank's transport and notes what it leaves, every `every` steps.
template <Executor E, class R, Transport T>
Trace trace(const R& recipe, T& raw, const Layout& layout, std::uint64_t steps, const Options& options,
            std::uint64_t every = 1, const E& executor = {}) {
  Trace trace;
  Metered<T> transport(raw.split(0, raw.rank()));
  Optimizer optimizer{recipe, transport, layout, masks_any(options), executor};
  auto x = uploaded<E>(start(layout));
  for (std::uint64_t step = 1; step <= steps; ++step) {
    const auto g = uploaded<E>(gradient(layout, transport.rank(), step, 4));
    if (step == steps / 2) optimizer.learning_rate(optimizer.learning_rate() * 0.5F);
    optimizer.step(x.all(), g.all(), step % 3 == 0 ? 0.5F : 1.0F);
    if (step % every != 0) continue;
    Look look{trace.steps.emplace_back()};
    look("parameters", x.all(), 0);
    optimizer.walk(look);
  }
  trace.bytes = transport.traffic()[Phase::reduce].bytes_sent +
                transport.traffic()[Phase::spread].bytes_sent + transport.traffic()[Phase::agree].bytes_sent;
  trace.hash = checkpoint::parameters_hash(layout, view<const float, typename E::memory>(x.all()));
  return trace;
}

/// body(transport, executor) on `ranks` threads, whose messages pass through the host.
struct ThroughTheHost {
  template <class Body>
  void operator()(int ranks, Body body) const {
    ThreadGroup(ranks, std::chrono::seconds(60)).run([&](Threads& transport) {
      ThroughHost<Threads, Device> staged(transport.split(0, transport.rank()), Device{});
      body(staged, Device{});
    });
  }
};

/// On the host and on the device: `On` runs ranks there.
template <class On = ThroughTheHost, class R>
void compare(const R& recipe, const Layout& layout, int ranks, std::uint64_t steps,
             const Options& options = {}, std::uint64_t every = 1) {
  CAPTURE(ranks);
  std::vector<Trace> host(at(ranks)), device(at(ranks));
  ThreadGroup(ranks, std::chrono::seconds(60)).run([&](Threads& transport) {
    host[at(transport.rank())] = trace<executor::host>(recipe, transport, layout, steps, options, every);
  });
  On{}(ranks, [&](auto& transport, const Device& executor) {
    device[at(transport.rank())] = trace<Device>(recipe, transport, layout, steps, options, every, executor);
  });
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    const Trace &one = host[at(rank)], &other = device[at(rank)];
    REQUIRE(one.steps.size() == steps / every);
    for (std::size_t k = 0; k < one.steps.size(); ++k) {
      CAPTURE(k);
      for (const auto& part : one.steps[k]) {
        const std::string& name = part.first;
        CAPTURE(name);
        REQUIRE(other.steps[k].contains(name));
        REQUIRE(other.steps[k].at(name) == part.second);
      }
      CHECK(one.steps[k].size() == other.steps[k].size());
    }
    CHECK(one.bytes == other.bytes);
    CHECK(one.hash == other.hash);
  }
}

/// Matrices and vectors, compressed and not, around block and word edges.
inline Layout some_layers() {
  Layout layout;
  layout.add({"a", {65, 63}});
  layout.add({"b", {7}, 0.5F, 0, false});
  layout.add({"c", {4097}});
  layout.add({"d", {64}});
  layout.add({"e", {130}, 1, 1, false});
  return layout;
}

}  // namespace
