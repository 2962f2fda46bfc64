// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "terse/bench/registry.hpp"
#include "terse/bench/samples.hpp"
#include "terse/bench/yardstick.hpp"
#include "terse/codec.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/executor/host.hpp"
#include "terse/executor/sparse.hpp"

// Benchmarks of a compressor, which may be a custom one, on one core:
//
//     #include <terse/bench/compressor.hpp>
//
//     TERSE_BENCHMARK_COMPRESSOR(MyCompressor<4, Nearest>);
//     BENCHMARK_MAIN();
//
// For n = 4 Ki, 256 Ki, 4 Mi and 64 Mi floats it registers (choose by --benchmark_filter='/4194304$')
//
//     <compressor>/encode/n            a message into a packet, without error feedback
//     <compressor>/encode_residual/n   a message into a packet with Residual, for compressors that track
//     <compressor>/pack/n              the second pass of encode_residual, for compressors that measure first
//     <compressor>/accumulate/n        x -= a * decoded packet
//
// with the counters
//
//     yardsticks    best time relative to x[i] *= a over as many floats
//     bits          of the packet for each element, without its header
//     error         ||x - C(x)|| / ||x|| on standard normal x (`encode` only)
//     error_heavy   the same error on Student's t with 2 degrees of freedom
//
// Requires Google Benchmark.

namespace terse::bench {

TERSE_NUMERICS_BEGIN

namespace detail {

struct Decode {
  float* x;
  TERSE_HD void operator()(const Piece&, index_t i, bool, float sum) const { x[i] = sum; }
};

}  // namespace detail

TERSE_NUMERICS_END

/// One rank's passes over n floats.
template <Compressor C, ErrorFeedback F>
class Passes {
  using Host = executor::host;

 public:
  Passes(const C& compressor, const F& feedback, index_t n)
      : n_(n),
        layout_(Layout::flat(n)),
        plan_(compressor, layout_, layout_.range(), 1, false),
        codec_(Host{}, compressor, feedback, plan_.whole),
        packet_(plan_.whole.bytes) {
    codec_.start(1);
    if constexpr (!F::corrects) {
      error_heavy_ = error_on(heavy_samples(n + spare));
      error_ = error_on(normal_samples(n + spare));
    } else {
      samples_ = normal_samples(n + spare);
      send();
    }
  }

  void measure() { codec_.measure(plan_.whole, {}, EmptyInbox{}, message()); }
  void encode() {
    bytes_ = codec_.encode(plan_.whole, {}, EmptyInbox{}, message(), context(step_), true, packet_.data());
    ++step_;
  }
  void send() {
    measure();
    encode();
  }
  void accumulate() { receive(Descend{playground(n_), 1e-3F}); }

  /// Returns the bits per element of the last packet, without its header.
  double bits() const {
    constexpr auto header = static_cast<index_t>(sizeof(PacketHeader));
    return 8 * static_cast<double>(bytes_ - header) / static_cast<double>(n_);
  }
  /// Returns ||x - C(x)|| / ||x|| without error feedback.
  double error() const { return error_; }
  double error_heavy() const { return error_heavy_; }

 private:
  static EncodeContext context(std::uint64_t step) {
    return {step, Draw::local(1, 0, step, Purpose::quantization), Draw::shared(1, step, Purpose::selection)};
  }
  const float* next() const { return at_step(samples_, step_); }
  auto message() const { return Message{Samples{next()}, Samples{next()}}; }

  double error_on(const float* samples) {
    samples_ = samples;
    const float* x = next();
    send();
    receive(detail::Decode{playground(n_)});
    return relative_error(x, playground(n_), n_);
  }
  template <class Consumer>
  void receive(Consumer consumer) {
    Inbox<C> inbox(1);
    inbox.add(codec_.compressor(), plan_.whole, packet_.data(), context(step_ - 1).shared);
    for_each(Host{}, plan_.whole.compressed, NoMask{}, codec_.arrived(plan_.whole.compressed, inbox),
             consumer);
  }

  index_t n_;
  Layout layout_;
  Plan plan_;
  Codec<C, F, Host> codec_;
  buffer<std::byte> packet_;
  const float* samples_ = nullptr;
  std::uint64_t step_ = 1;
  index_t bytes_ = 0;
  double error_ = 0, error_heavy_ = 0;
};

/// Adds benchmarks of encoding n elements without error feedback, and of accumulating a packet.
template <Compressor C>
void add_encode(const std::string& name, const C& compressor, index_t n) {
  using Rank = Passes<C, Unchecked<NoErrorFeedback>>;
  const auto rank = [=] { return reused<Rank>(name, n, compressor, Unchecked<NoErrorFeedback>{}, n); };
  add(name, "encode", n, [=](benchmark::State& state) {
    const auto here = rank();
    measure(state, n, [&] { here->send(); });
    state.counters["bits"] = here->bits();
    state.counters["error"] = here->error();
    state.counters["error_heavy"] = here->error_heavy();
  });
  add(name, "accumulate", n, [=](benchmark::State& state) {
    const auto here = rank();
    measure(state, n, [&] { here->accumulate(); });
  });
}

/// Adds a benchmark of encoding n elements with Residual.
template <Compressor C>
void add_encode_residual(const std::string& name, const C& compressor, index_t n) {
  using Rank = Passes<C, Residual>;
  const auto rank = [=] { return reused<Rank>(name, n, compressor, Residual{}, n); };
  add(name, "encode_residual", n, [=](benchmark::State& state) {
    const auto here = rank();
    measure(state, n, [&] { here->send(); });
    state.counters["bits"] = here->bits();
  });
  if constexpr (C::measured)
    add(name, "pack", n, [=](benchmark::State& state) {
      const auto here = rank();
      measure(
          state, n, [&] { here->encode(); }, [&] { here->measure(); });
    });
}

/// Registers a compressor's benchmarks; the macros call it before `main`.
template <Compressor C>
bool add_compressor(const std::string& name, const C& compressor) {
  static_assert(check_compressor<C>());
  static_assert(!C::lossless, "terse: a lossless compressor has nothing to measure");
  static_assert(!Traits<C>::keyed,
                "terse: a keyed compressor (Lattice) decodes against the reader's own vector");
  static_assert(
      requires { typename C::Incoming; },
      "terse: benchmarks are for compressors that turn one message into one section; one with a round of its "
      "own "
      "(LowRank) needs its own");
  for (const index_t n : sizes) {
    add_encode(name, compressor, n);
    if constexpr (Traits<C>::tracks) add_encode_residual(name, compressor, n);
  }
  return true;
}

}  // namespace terse::bench

#define TERSE_BENCHMARK_JOIN_(a, b) a##b
#define TERSE_BENCHMARK_JOIN(a, b) TERSE_BENCHMARK_JOIN_(a, b)

/// Registers the benchmarks of a compressor (an expression, with its settings) under a name:
///
///     TERSE_BENCHMARK_COMPRESSOR_NAMED("TopK, 1 in 1000", TopK<>{.selection = {.ratio = 0.001}});
#define TERSE_BENCHMARK_COMPRESSOR_NAMED(name, ...)                                     \
  [[maybe_unused]] static const bool TERSE_BENCHMARK_JOIN(terse_benchmark_, __LINE__) = \
      ::terse::bench::add_compressor(name, __VA_ARGS__)

/// Registers the benchmarks of a compressor, given by its type, under the type's name as written here.
#define TERSE_BENCHMARK_COMPRESSOR(...) TERSE_BENCHMARK_COMPRESSOR_NAMED(#__VA_ARGS__, __VA_ARGS__{})
