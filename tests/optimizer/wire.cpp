// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "support.hpp"

// Bytes on the wire, counted, against the documented formulas.

using namespace terse;
using namespace terse::test;

namespace {

/// Bytes sent by each rank in the given step, by phase.
template <class R>
std::vector<Traffic> traffic_of_step(const R& recipe, const Layout& layout, int ranks, std::uint64_t step,
                                     const Options& options = {}) {
  std::vector<Traffic> result(at(ranks));
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& raw) {
    Metered<Threads> transport(raw.split(0, raw.rank()));
    Optimizer optimizer{recipe, transport, layout, options};
    Floats x = start(layout);
    const Floats g = gradient(layout, raw.rank(), 1, 1);
    Traffic before;
    for (std::uint64_t s = 1; s <= step; ++s) {
      before = transport.traffic();
      optimizer.step(x, g);
    }
    Traffic& mine = result[at(raw.rank())] = transport.traffic();
    for (std::size_t phase = 0; phase < mine.by_phase.size(); ++phase) {
      mine.by_phase[phase].bytes_sent -= before.by_phase[phase].bytes_sent;
      mine.by_phase[phase].bytes_received -= before.by_phase[phase].bytes_received;
      mine.by_phase[phase].messages_sent -= before.by_phase[phase].messages_sent;
      mine.by_phase[phase].messages_received -= before.by_phase[phase].messages_received;
    }
  });
  return result;
}

constexpr std::uint64_t padded(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

/// docs/wire-format.md in code: header, scales, a word of bits per 64 elements of each piece, dense pieces.
std::uint64_t packet_bytes(const Range& compressed, const Range& dense, std::uint64_t block, bool whole) {
  std::uint64_t units = 0, bits = 0, plain = 0;
  for (const Piece& piece : compressed.pieces()) {
    const auto count = static_cast<std::uint64_t>(piece.count);
    units += block == 0 ? 1 : (count + block - 1) / block;
    bits += (count + 63) / 64 * 8;
  }
  if (whole) units = compressed.pieces().empty() ? 0 : 1;
  for (const Piece& piece : dense.pieces()) plain += padded(4 * static_cast<std::uint64_t>(piece.count));
  return 32 + padded(4 * units) + bits + plain;
}

/// Notes to whom each batch of a round to all others goes first.
class Noted : public Forwarding<Noted, Threads> {
 public:
  Noted(Threads inner, std::vector<int>& first) : Forwarding(std::move(inner)), first_(&first) {}
  [[nodiscard]] auto exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    if ((phase == Phase::reduce || phase == Phase::spread) && sends.size() + 1 == at(size()))
      first_->push_back(sends.front().peer);
    return inner().exchange(sends, receives, phase);
  }
  Noted around(Threads other) const { return {std::move(other), *first_}; }

 private:
  std::vector<int>* first_;
};

/// The peers that each rank's batches to all others begin with.
template <class R>
std::vector<std::vector<int>> first_peers(const R& recipe, int ranks) {
  std::vector<std::vector<int>> first(at(ranks));
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& raw) {
    Noted transport(raw.split(0, raw.rank()), first[at(raw.rank())]);
    const Layout layout = Layout::flat(1024);
    Optimizer optimizer{recipe, transport, layout};
    Floats x = start(layout);
    optimizer.step(x, gradient(layout, raw.rank(), 1, 1));
  });
  return first;
}

/// The model of the trainer: 784-256-128-10.
Layout perceptron() {
  Layout layout;
  layout.add({"hidden1.weight", {256, 784}}).add({"hidden1.bias", {256}});
  layout.add({"hidden2.weight", {128, 256}}).add({"hidden2.bias", {128}});
  layout.add({"output.weight", {10, 128}}).add({"output.bias", {10}});
  return layout;
}

template <class C, class Topo>
OneBitAdam<C, FrozenVariance, Topo> frozen_at_once() {
  return {.preconditioner = {.freeze = AtStep{1}}};
}

struct Formula {
  std::uint64_t reduce = 0, spread = 0;
};

/// What rank r sends in a compressed step.
template <class Topo>
Formula sent_by(int r, const Layout& layout, int ranks, std::uint64_t block, bool whole) {
  const Range all = layout.filter(layout.range(), true), excluded = layout.filter(layout.range(), false);
  const auto peers = static_cast<std::uint64_t>(ranks - 1);
  if constexpr (std::is_same_v<Topo, AllGather>) {
    return {0, peers * packet_bytes(all, excluded, block, whole)};
  } else {
    const auto cuts = all.cut(ranks), dense_cuts = excluded.cut(ranks);
    const auto chunk = [&](int c) { return packet_bytes(cuts[at(c)], dense_cuts[at(c)], block, whole); };
    std::uint64_t total = 0;
    for (int c = 0; c < ranks; ++c) total += chunk(c);
    // Ring: r passes on every chunk but the one it finishes, r + 1, and of the sums every one but the last to come.
    if constexpr (std::is_same_v<Topo, Ring>)
      return {total - chunk((r + 1) % ranks), total - chunk((r + 2) % ranks)};
    else
      return {total - chunk(r), peers * chunk(r)};
  }
}

template <class C, class Topo>
void check_formula(const Layout& layout, std::uint64_t block, bool whole) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    const auto traffic = traffic_of_step(frozen_at_once<C, Topo>(), layout, ranks, 2);
    const auto peers = static_cast<std::uint64_t>(ranks - 1);
    const std::uint64_t reduced = std::is_same_v<Topo, AllGather> ? 0 : peers;
    for (int r = 0; r < ranks; ++r) {
      CAPTURE(r);
      const Formula formula = sent_by<Topo>(r, layout, ranks, block, whole);
      const Traffic::Count& reduce = traffic[at(r)][Phase::reduce];
      const Traffic::Count& spread = traffic[at(r)][Phase::spread];
      CHECK(traffic[at(r)][Phase::agree].bytes_sent == 0);
      CHECK(reduce.messages_sent == reduced);
      CHECK(reduce.messages_received == reduced);
      CHECK(spread.messages_sent == peers);
      CHECK(spread.messages_received == peers);
      CHECK(reduce.bytes_sent == formula.reduce);
      CHECK(spread.bytes_sent == formula.spread);
    }
  }
}

}  // namespace

TEST_CASE("a compressed step sends what the formula says, to the byte") {
  Layout layout = perceptron();
  layout.add({"excluded", {77}, 1, 1, false}).add({"empty", {0}}).add({"one", {1}});
  check_formula<Sign, ScatterGather>(layout, 0, false);
  check_formula<Sign, Ring>(layout, 0, false);
  check_formula<Sign, AllGather>(layout, 0, false);
  check_formula<ScaledSign<MeanAbs, PerBlock<4096>>, ScatterGather>(layout, 4096, false);
  check_formula<ScaledSign<MeanAbs, PerBlock<4096>>, Ring>(layout, 4096, false);
  check_formula<ScaledSign<RootMeanSquare, Whole>, ScatterGather>(layout, 0, true);
}

TEST_CASE("a compressed step sends at most 1.03 of n / 8 bytes both ways, 31 times less than dense") {
  // The fewest elements of which that is true. Compressed steps by the formula, which the case above has checked.
  const Layout layout = Layout::flat(200'000);
  for (const int ranks : {2, 3, 4, 7, 8}) {
    CAPTURE(ranks);
    const double ideal = 2.0 * (ranks - 1) / ranks * 200'000 / 8;
    const auto dense = traffic_of_step(Adam<>{}, layout, ranks, 1);
    for (int r = 0; r < ranks; ++r)
      for (const std::uint64_t block : {0U, 4096U}) {
        CAPTURE(r);
        CAPTURE(block);
        const auto check = [&](const Formula& formula) {
          const std::uint64_t sent = formula.reduce + formula.spread;
          CHECK(static_cast<double>(sent) <= 1.03 * ideal);
          CHECK(31 * sent <= dense[at(r)].bytes_sent());
        };
        check(sent_by<ScatterGather>(r, layout, ranks, block, false));
        check(sent_by<Ring>(r, layout, ranks, block, false));
      }
  }
}

TEST_CASE("clipping costs 8 bytes: in each packet of a dense step, to each peer before a compressed one") {
  const Layout layout = perceptron();
  const Options clip{.clip_norm = 1};
  const auto recipe = frozen_at_once<Sign, ScatterGather>();
  for (const std::uint64_t step : std::initializer_list<std::uint64_t>{1, 2}) {
    const auto with = traffic_of_step(recipe, layout, 3, step, clip),
               without = traffic_of_step(recipe, layout, 3, step);
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK(with[r][Phase::agree].bytes_sent == (step == 1 ? 0 : 16));
      CHECK(with[r][Phase::reduce].bytes_sent == without[r][Phase::reduce].bytes_sent + (step == 1 ? 16 : 0));
      CHECK(with[r][Phase::spread].bytes_sent == without[r][Phase::spread].bytes_sent + (step == 1 ? 16 : 0));
    }
  }
}

TEST_CASE("batches to all others begin with the successor, so that no rank is everybody's first") {
  const auto check = [](const std::vector<std::vector<int>>& first, std::size_t batches) {
    const int ranks = static_cast<int>(first.size());
    for (int rank = 0; rank < ranks; ++rank)
      CHECK(first[at(rank)] == std::vector<int>(batches, (rank + 1) % ranks));
  };
  for (const int ranks : {3, 4}) {
    check(first_peers(ErrorFeedbackSgd<ScatterGather>{}, ranks), 2);
    check(first_peers(ErrorFeedbackSgd<AllGather>{}, ranks), 1);
  }
}
