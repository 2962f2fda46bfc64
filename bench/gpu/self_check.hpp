// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "low_rank.hpp"
#include "passes.hpp"
#include "terse/executor/host.hpp"

// Times of wrong results mean nothing: before anything is timed, every pass runs once on few elements, and what it
// leaves must be the host's, bit for bit.

namespace terse::bench::gpu {

/// Results by name, as bytes, so that comparing them compares bits.
class Results {
 public:
  template <class T, class Space>
  void operator()(const std::string& name, view<T, Space> part, index_t) {
    using Value = std::remove_const_t<T>;
    std::vector<Value> here(static_cast<std::size_t>(part.size()));
    download(view<const Value, Space>(part), view<Value>(here));
    auto& bytes = parts_.emplace_back(prefix_ + name, std::vector<std::byte>()).second;
    bytes.resize(here.size() * sizeof(Value));
    if (!bytes.empty()) std::memcpy(bytes.data(), here.data(), bytes.size());
  }
  void operator()(const std::string& name, std::uint64_t& value) {
    (*this)(name, view<std::uint64_t>(&value, 1), 0);
  }
  /// Goes before the names that follow.
  void begin(const std::string& subject) { prefix_ = subject + ", "; }

  /// The first that is not the same in both, and where.
  std::string difference(const Results& other) const {
    if (parts_.size() != other.parts_.size()) return "the number of results";
    for (std::size_t k = 0; k < parts_.size(); ++k) {
      const auto& [name, bytes] = parts_[k];
      const auto& theirs = other.parts_[k].second;
      if (bytes.size() != theirs.size()) return name + ": the size";
      for (std::size_t b = 0; b < bytes.size(); ++b)
        if (bytes[b] != theirs[b])
          return name + ", byte " + std::to_string(b) + " of " + std::to_string(bytes.size());
    }
    return {};
  }
  std::size_t size() const { return parts_.size(); }

 private:
  std::string prefix_;
  std::vector<std::pair<std::string, std::vector<std::byte>>> parts_;
};

template <Executor E>
void wait_for(E ex) {
  if constexpr (requires { ex.synchronize(); }) ex.synchronize();
}

/// Two steps of 1-bit Adam, the owner's work and a step of Adam over n elements.
template <Executor E>
void check_steps(E ex, index_t n, Results& results) {
  Rank<E> rank(ex, n);
  const auto note = [&](const char* name, auto& passes) {
    wait_for(ex);
    results.begin(name + (" over " + std::to_string(n)));
    results("packet", passes.packet(), 0);
    passes.walk(results);
    for (auto [what, floats] : {std::pair{"m", &rank.m}, {"v", &rank.v}, {"x", &rank.x}})
      results(what, view<const float, typename E::memory>(floats->all()), 0);
  };
  OneBitPasses<Sign, E> segment(ex, rank);
  OneBitPasses<Blocks, E> blocks(ex, rank);
  for (int step = 0; step < 2; ++step) {
    segment.all();
    note("1-bit Adam", segment);
    blocks.all();
    note("1-bit Adam per block", blocks);
  }
  const BitMask<E> some(rank.layout, 7);
  segment.all(some);
  note("1-bit Adam, masked", segment);
  blocks.all(some);
  note("1-bit Adam per block, masked", blocks);
  OwnerPasses<Sign, E> owner(ex, n / 4, 4);
  owner.serve();
  note("owner", owner);
  OwnerPasses<Blocks, E> block_owner(ex, n / 4, 4);
  block_owner.serve();
  note("owner per block", block_owner);
  for_each(ex, rank.layout.range(), rank.adam());
  note("Adam", owner);
}

/// Two messages and what a reader makes of them, for each compressor with the feedbacks that are timed.
template <Executor E>
void check_compressors(E ex, index_t n, Results& results) {
  const Layout layout = Layout::flat(n);
  Floats<E> samples(layout.size()), x(layout.size());
  for_each(ex, layout.range(), Noise{samples.data(), Draw::shared(1, 0, Purpose::user)});
  const auto check = [&]<class C, class F>(const char* name, C, F) {
    CompressorPasses<C, F, E> passes(ex, layout, samples.data(), x.data());
    for (int step = 0; step < 2; ++step) passes.send();
    passes.accumulate();
    wait_for(ex);
    results.begin(name);
    results("packet", passes.packet(), 0);
    passes.walk(results);
    results("x", view<const float, typename E::memory>(x.all()), 0);
  };
  for_each_compressor([&]<class C>(const char* name, C compressor) {
    check(name, compressor, Unchecked<NoErrorFeedback>{});
    if constexpr (Traits<C>::tracks) check(name, compressor, Residual{});
  });
  for_each_sparse([&](const char* name, auto compressor) { check(name, compressor, Residual{}); });
}

/// A round of LowRank on one matrix.
template <Executor E>
void check_low_rank(E ex, index_t rows, index_t columns, Results& results) {
  LowRankPasses<4, E> passes(ex, rows, columns);
  passes.multiply();
  passes.orthonormalize();
  passes.multiply_transposed();
  passes.take_off();
  wait_for(ex);
  results.begin("LowRank<4> of " + std::to_string(rows) + " x " + std::to_string(columns));
  passes.walk(results);
}

/// Runs everything on E and on the host; what differs, or nothing. `large` is for the shape that sums of long pieces
/// have.
template <Executor E>
std::string difference_from_host(E ex, index_t n, index_t large, std::size_t& compared) {
  Results here, there;
  const auto run = [&](auto where, Results& results) {
    check_steps(where, n, results);
    if (large > 0) check_steps(where, large, results);
    check_compressors(where, n, results);
    check_low_rank(where, 530, 132, results);
    check_low_rank(where, 7, 4100, results);
  };
  run(executor::host{}, here);
  run(ex, there);
  compared = here.size();
  return here.difference(there);
}

}  // namespace terse::bench::gpu
