// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "terse/core/hash.hpp"
#include "terse/core/view.hpp"
#include "terse/predict/recorded.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/call.hpp"

namespace terse::predict {

namespace detail {

/// Timer of batches of equal messages to and from several ranks, on all ranks at the same time.
template <Transport T>
class Probe {
 public:
  Probe(T& transport, index_t most_bytes)
      : transport_(transport), slowest_(transport), out_(most_bytes), in_(most_bytes) {}

  /// Returns the seconds of a batch, the median of `rounds` on the slowest rank. A rank sends `bytes` bytes to each
  /// of the next `peers` ranks, beginning `shift` ranks away, and receives as many from the `peers` ranks before it.
  double operator()(int shift, int peers, index_t bytes, int rounds) {
    sends_.clear();
    receives_.clear();
    const int size = transport_.size(), rank = transport_.rank();
    for (int k = 0; k < peers; ++k) {
      const index_t place = k * bytes;
      sends_.push_back({(rank + shift + k) % size, out_.data() + place, bytes, bytes});
      receives_.push_back({(rank + 2 * size - shift - k) % size, in_.data() + place, bytes, false});
    }
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) {
      agreed(0);  // all ranks begin
      const auto begin = std::chrono::steady_clock::now();
      transport_.exchange(sends_, receives_, Phase::setup).wait();
      times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
    return agreed(times[static_cast<std::size_t>(rounds / 2)]);
  }

 private:
  double agreed(double mine) {
    const std::span<const double> all = slowest_(transport_, mine, Phase::setup);
    return *std::max_element(all.begin(), all.end());
  }

  T& transport_;
  Assembly<double, T> slowest_;
  buffer<std::byte> out_, in_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

}  // namespace detail

/// Limits of the measurements of a network.
struct Trial {
  int rounds = 5;                          ///< rounds of large messages; 20 times as many of small ones
  double seconds = 0.25;                   ///< messages grow until they take this long
  index_t most_bytes = index_t{64} << 20;  ///< or until a rank sends this many at the same time
};

/// Measures the network between the ranks of a transport of host memory, while all of them send. Collective; all ranks get
/// equal results. A single rank has no network: its latency is 0 and its bandwidths are infinite.
///
/// Latency is measured by messages of 8 bytes to one other rank, as the mean over 4 distances. Bandwidth is measured
/// twice: by messages to the successor, which grow from 64 KiB until they take `seconds` or are `most_bytes`; and by up
/// to as many bytes divided among all other ranks. The result is the median round, on the slowest rank.
template <Transport T>
Network measure_network(T& transport, const Trial& trial = {}) {
  const int others = transport.size() - 1;
  if (others == 0) return {};
  const terse::detail::Call call(terse::detail::Verb::measure);
  detail::Probe probe(transport, trial.most_bytes);
  Network network;
  const int distances = std::min(others, 4);
  for (int k = 0; k < distances; ++k)
    network.latency += probe(1 + k * others / distances, 1, 8, 20 * trial.rounds) / distances;
  if (others > 1)
    network.per_message =
        std::max(0.0, probe(1, others, 8, 20 * trial.rounds) - network.latency) / (others - 1);
  const index_t first = std::min(index_t{64} << 10, trial.most_bytes);
  index_t bytes = first;
  // The best of three is used, so that a short disturbance doesn't end the growth.
  const auto best = [&](index_t size) {
    return std::min({probe(1, 1, size, 1), probe(1, 1, size, 1), probe(1, 1, size, 1)});
  };
  while (best(bytes) < trial.seconds && bytes <= trial.most_bytes / 2) bytes *= 2;
  // A message that takes no time in addition to its latency counts as one of the clock's smallest unit.
  const auto bandwidth = [&](double took, double sent) {
    return sent / std::max(took - network.latency, 1e-9);
  };
  network.bandwidth = bandwidth(probe(1, 1, bytes, trial.rounds), static_cast<double>(bytes));
  network.pairs_bandwidth = network.bandwidth;
  if (others == 1) return network;
  // Batches to all others grow until they take longer than their bytes need.
  const auto all_pairs = [&](index_t size) {
    return probe(1, others, std::max<index_t>(size / others, 1), trial.rounds) -
           (others - 1) * network.per_message;
  };
  const auto alone = [&](index_t size) {
    return network.latency + static_cast<double>(size) / network.bandwidth;
  };
  index_t passes = 0;
  for (index_t size = first; size < bytes && all_pairs(size) < 1.15 * alone(size); size *= 2) passes = size;
  const double slow = all_pairs(bytes) - alone(passes);
  network.pairs_bandwidth =
      std::min(network.bandwidth, static_cast<double>(bytes - passes) / std::max(slow, 1e-9));
  network.queue = static_cast<double>(passes);
  return network;
}

/// Time and traffic of a method's average step on this rank.
struct Rehearsal {
  double local = 0;         ///< seconds of processor time outside the transport
  Round round;              ///< its batches; counts are fractions if not all steps send
  bool compressed = false;  ///< true if a compressed step was among them
};

/// Measures steps of an optimizer over `Recorded`. The first `before` steps don't count (first stages, pages touched for the
/// first time). Of `rounds` rounds of `steps` steps, the one with the least processor time counts. For methods that don't
/// send in every step, `steps` is their period. Collective. The gradient is noise that differs between ranks and steps.
///
///     predict::Recording recording;
///     predict::Recorded over(transport.split(0, transport.rank()), recording);
///     Optimizer optimizer{recipe, over, layout};
///     const predict::Rehearsal rehearsal = predict::rehearse(optimizer, recording);
template <class Optimizer>
Rehearsal rehearse(Optimizer& optimizer, Recording& recording, int before = 2, int steps = 1,
                   int rounds = 3) {
  const index_t n = optimizer.layout().size();
  buffer<float> x(n), noise(n + 1024);
  for (index_t i = 0; i < noise.size(); ++i) {
    const std::uint64_t bits =
        mix_hash(static_cast<std::uint64_t>(optimizer.rank()), static_cast<std::uint64_t>(i));
    // The sum of four uniform numbers is nearly normal.
    double sum = 0;
    for (int part = 0; part < 4; ++part) sum += static_cast<double>(bits >> (16 * part) & 0xFFFF);
    noise[i] = static_cast<float>((sum / 65536 - 2) * 1e-2);
  }
  int step = 0;
  bool compressed = false;
  const auto take = [&](int count) {
    for (int k = 0; k < count; ++k, ++step)
      compressed =
          optimizer.step(x, view<const float>(noise.data() + step % 16 * 64, n)).compressed || compressed;
  };
  take(before);
  compressed = false;
  Rehearsal best;
  for (int round = 0; round < rounds; ++round) {
    recording = {};
    const double begin = processor_seconds();
    take(steps);
    const double local = (processor_seconds() - begin - recording.processor_seconds) / steps;
    if (round > 0 && local >= best.local) continue;
    best = {local, repeated(recording.round, 1.0 / steps), compressed};
  }
  return best;
}

}  // namespace terse::predict
