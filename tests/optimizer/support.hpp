// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "terse/terse.hpp"

// What the optimizer tests share: layouts, gradients, and a way to look into an optimizer.

namespace terse::test {

using Floats = std::vector<float>;

inline std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

/// Uniform in [-1, 1), a function of its arguments alone.
inline float noise(std::uint64_t seed, int rank, std::uint64_t step, index_t i) {
  return static_cast<float>(
             Draw::local(seed, rank, step, Purpose::user).bits(static_cast<std::uint64_t>(i)) >> 40) *
             0x1p-23F -
         1.0F;
}

/// This rank's gradient: a common part, an own part, noise; every 17th element is silent until step
/// `loud_from`.
inline Floats gradient(const Layout& layout, int rank, std::uint64_t step, std::uint64_t loud_from) {
  Floats g(at(layout.size()));
  for (const Segment& segment : layout.segments())
    for (index_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      if (i % 17 == 3 && step < loud_from) continue;
      g[at(i)] = noise(1, 0, 0, i) + 0.5F * noise(2, rank, 0, i) + 0.3F * noise(3, rank, step, i);
    }
  return g;
}

inline Floats start(const Layout& layout) {
  Floats x(at(layout.size()));
  for (const Segment& segment : layout.segments())
    for (index_t i = segment.offset; i < segment.offset + segment.count; ++i) x[at(i)] = noise(4, 0, 0, i);
  return x;
}

/// Everything an optimizer's walk shows, scalars as one element.
struct Seen {
  std::map<std::string, std::vector<double>> parts;
  std::map<std::string, index_t> offsets;

  template <class T>
  void operator()(const std::string& name, view<T> part, index_t offset) {
    parts[name].assign(part.begin(), part.end());
    offsets[name] = offset;
  }
  void operator()(const std::string& name, std::uint64_t& value) {
    parts[name] = {static_cast<double>(value)};
  }
};

/// What one rank shows after one step.
struct Snapshot {
  Floats parameters;
  Seen state;
  std::uint64_t reduced = 0, spread = 0;  ///< bytes sent in the step, by phase
};
/// [step - 1][rank]
using History = std::vector<std::vector<Snapshot>>;

/// Lets a freeze mask whatever has been silent until then.
inline Options masks_any(Options options = {}) {
  options.most_masked = 1;
  return options;
}

/// Runs `steps` steps of a recipe on every rank; `change(recipe, step)` may set the learning rate.
template <class R, class Change>
History run(const R& recipe, const Layout& layout, int ranks, std::uint64_t steps, std::uint64_t loud_from,
            const Options& options, Change change) {
  History history(steps, std::vector<Snapshot>(at(ranks)));
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& raw) {
    Metered<Threads> transport(raw.split(0, raw.rank()));
    Optimizer optimizer{recipe, transport, layout, masks_any(options)};
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      change(optimizer.recipe, step);
      const std::uint64_t reduced = transport.traffic()[Phase::reduce].bytes_sent;
      const std::uint64_t spread = transport.traffic()[Phase::spread].bytes_sent;
      optimizer.step(x, gradient(layout, transport.rank(), step, loud_from));
      Snapshot& snapshot = history[step - 1][at(transport.rank())];
      optimizer.walk(snapshot.state);
      snapshot.parameters = x;
      snapshot.reduced = transport.traffic()[Phase::reduce].bytes_sent - reduced;
      snapshot.spread = transport.traffic()[Phase::spread].bytes_sent - spread;
    }
  });
  return history;
}

struct Unchanged {
  template <class R>
  void operator()(R&, std::uint64_t) const {}
};

/// Nothing is done to an optimizer before its first step.
struct NoPreparation {
  template <class O>
  void operator()(O&) const {}
};

/// Steps that were compared with an oracle, and steps that could have been.
struct Tally {
  std::uint64_t compared = 0, possible = 0;
};

/// A part of the state over the whole arena, 0 where the rank holds none of it.
inline std::vector<double> spread_out(const Layout& layout, const Seen& state, const std::string& name) {
  std::vector<double> whole(at(layout.size()));
  const std::vector<double>& part = state.parts.at(name);
  const auto offset = state.offsets.at(name);
  std::copy(part.begin(), part.end(), whole.begin() + offset);
  return whole;
}

/// What rank `rank` of `ranks` sends in a compressed step over topology P by docs/wire-format.md: to be compared
/// with a snapshot. `section(range)` is the size of the compressor's section.
struct Sent {
  std::uint64_t reduced = 0, spread = 0;
  bool operator==(const Sent&) const = default;
};
constexpr std::uint64_t to_eight(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }
/// Of the positions of k picks of n values: ceil(log2(n)) bits each, or one bit for each value where that is shorter.
constexpr std::uint64_t position_bytes(std::uint64_t n, std::uint64_t k) {
  std::uint64_t bits = 1;
  while (std::uint64_t{1} << bits < n) ++bits;
  return std::min((bits * k + 63) / 64, (n + 63) / 64) * 8;
}
template <class P, class Section>
Sent formula(const Layout& layout, int ranks, int rank, Section section) {
  const Range compressed = layout.filter(layout.range(), true), dense = layout.filter(layout.range(), false);
  const auto packet = [&](const Range& some, const Range& plain) {
    std::uint64_t bytes = 32 + section(some);
    for (const Piece& piece : plain.pieces()) bytes += to_eight(4 * static_cast<std::uint64_t>(piece.count));
    return bytes;
  };
  const auto peers = static_cast<std::uint64_t>(ranks - 1);
  if (std::is_same_v<P, AllGather>) return {0, peers * packet(compressed, dense)};
  const std::vector<Range> cuts = compressed.cut(ranks), plain = dense.cut(ranks);
  const auto all_but = [&](int kept) {
    std::uint64_t bytes = 0;
    for (int c = 0; c < ranks; ++c)
      if (c != kept) bytes += packet(cuts[at(c)], plain[at(c)]);
    return bytes;
  };
  // Ring: r passes on every chunk but the one it finishes, r + 1, and of the sums every one but the last to come.
  if (std::is_same_v<P, Ring>) return {all_but((rank + 1) % ranks), all_but((rank + 2) % ranks)};
  return {all_but(rank), peers * packet(cuts[at(rank)], plain[at(rank)])};
}
inline Sent sent_in(const Snapshot& snapshot) { return {snapshot.reduced, snapshot.spread}; }

/// Calls f(i) for the real elements of the segments that are wanted.
template <class Wanted, class F>
void each(const Layout& layout, Wanted wanted, F f) {
  for (const Segment& segment : layout.segments())
    if (wanted(segment))
      for (index_t i = segment.offset; i < segment.offset + segment.count; ++i) f(at(i));
}

/// Root mean square over the segments that are wanted.
template <class A, class Wanted>
double rms(const Layout& layout, const A& a, Wanted wanted) {
  double square = 0, count = 0;
  each(layout, wanted,
       [&](std::size_t i) { square += static_cast<double>(a[i]) * static_cast<double>(a[i]), ++count; });
  return std::sqrt(square / std::max(count, 1.0));
}

/// Largest |a - b| / max(|b|, typical) over the segments that are wanted.
template <class A, class B, class Wanted>
double relative_error(const Layout& layout, const A& a, const B& b, Wanted wanted, double typical) {
  double worst = 0;
  each(layout, wanted, [&](std::size_t i) {
    const double scale = std::max(std::abs(static_cast<double>(b[i])), typical);
    const double distance = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    // NaN must not pass: it fails every comparison, and no later element takes its place.
    if (!std::isnan(worst) && !(distance <= worst * scale)) worst = scale > 0 ? distance / scale : distance;
  });
  return worst;
}
template <class A, class B, class Wanted>
double relative_error(const Layout& layout, const A& a, const B& b, Wanted wanted) {
  return relative_error(layout, a, b, wanted, rms(layout, b, wanted));
}

}  // namespace terse::test
