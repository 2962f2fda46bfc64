// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "laws/support.hpp"
#include "terse/bench/samples.hpp"
#include "terse/codec.hpp"
#include "terse/compressor/chain.hpp"
#include "terse/compressor/random_k.hpp"
#include "terse/compressor/threshold.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/error_feedback/ef21.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/plan.hpp"

// Every selection of the library through every law.

namespace {

using namespace terse;  // NOLINT: a test of the library's names

TEST_CASE("the largest") {
  holds(TopK<>{.selection = {.ratio = 0.1}});
  holds(TopK<Whole>{.selection = {.ratio = 0.05}});
  holds(WarmupTopK<>{.selection = {.ratio = 0.02, .warmup_steps = 100}});
}

TEST_CASE("those above a threshold") {
  holds(Threshold<>{.selection = {.threshold = 0.5F, .most_ratio = 1}});
  holds(Threshold<Whole>{.selection = {.threshold = 0.01F, .most_ratio = 0.1}});
}

TEST_CASE("random ones") {
  holds(RandomK{.selection = {.ratio = 0.1}});
  holds(UnbiasedRandomK{.selection = {.ratio = 0.1}});
}

TEST_CASE("chains") {
  using Coder = Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<128>>;
  const laws::Options few{.draws = 500};
  holds(Chain<Dense, Strata<false>, Largest>{.selection = {{.ratio = 0.3}, {.ratio = 0.3}}}, few);
  holds(Chain<Coder, Strata<false>, Largest>{.selection = {{.ratio = 0.3}, {.ratio = 0.3}}}, few);
  holds(Chain<Uniform<4>, Largest, AboveThreshold>{
      .selection = {{.ratio = 0.3}, {.threshold = 0.1F, .most_ratio = 1}}});
  // Each selection draws for itself: else some elements would never be picked.
  holds(Chain<Dense, Strata<false>, Strata<false>>{.selection = {{.ratio = 0.5}, {.ratio = 0.5}}}, few);
}

TERSE_NUMERICS_BEGIN

struct Descent {
  float* x;
  std::uint32_t* calls;
  TERSE_HD void operator()(const Piece& piece, index_t i, bool keep, float sum) const {
    x[i] -= keep_if(keep, sum) * static_cast<float>(piece.segment + 1);
    ++calls[i];
  }
};
/// Says of all segments but the second that it leaves alone what has not come.
struct RestingDescent : Descent {
  bool resting = false;
  TERSE_HD void enter(const Piece& piece) { resting = piece.segment != 1; }
  TERSE_HD bool rests() const { return resting; }
};

TERSE_NUMERICS_END

/// A verb over packets of several ranks does the same, to the bit, with a functor that rests, whom it calls for what has
/// come alone.
template <class C>
void visits_what_came(const C& compressor) {
  Layout layout;
  layout.add({"a", {13, 50}}).add({"b", {333}}).add({"c", {1}}).add({"d", {70, 70}});
  const Plan plan(compressor, layout, layout.range(), 1, false);
  const Range& range = plan.whole.compressed;
  const auto n = static_cast<std::size_t>(layout.size());
  Codec<C, Unchecked<NoErrorFeedback>, executor::host> codec({}, compressor, {}, plan.whole);
  codec.start(1);
  std::vector<std::uint64_t> words(n / 64 + 1);
  for (std::size_t w = 0; w < words.size(); ++w)
    words[w] = w % 3 == 0 ? ~std::uint64_t{0} : 0x9E3779B97F4A7C15U * (w + 1);
  for (const int ranks : {1, 2, 5}) {
    std::vector<buffer<std::byte>> packets;
    Inbox<C> inbox(ranks);
    for (int k = 0; k < ranks; ++k) {
      const float* samples = bench::normal_samples(static_cast<index_t>(n) + bench::spare) + 64 * k;
      const EncodeContext context{1, Draw::local(1, k, 1, Purpose::quantization),
                                  Draw::shared(1, 1, Purpose::selection)};
      const Message message{bench::Samples{samples}, bench::Samples{samples}};
      packets.emplace_back(plan.whole.bytes);
      codec.measure(plan.whole, {}, EmptyInbox{}, message);
      codec.encode(plan.whole, {}, EmptyInbox{}, message, context, true, packets.back().data());
      inbox.add(codec.compressor(), plan.whole, packets.back().data(), context.shared, 1.0F / 3);
    }
    for (const HostMask mask : {HostMask{}, HostMask{words.data()}}) {
      std::vector<float> all(n, 1), some(n, 1);
      std::vector<std::uint32_t> calls(n), fewer(n);
      for_each(executor::host{}, range, mask, inbox.compressed(), Descent{all.data(), calls.data()});
      for_each(executor::host{}, range, mask, inbox.compressed(),
               RestingDescent{{some.data(), fewer.data()}});
      CHECK(all == some);
      std::uint32_t left_out = 0;
      for (const Piece& piece : range.pieces())
        for (index_t i = piece.offset; i < piece.offset + piece.count; ++i) {
          const auto at = static_cast<std::size_t>(i);
          REQUIRE(calls[at] == 1);
          REQUIRE(fewer[at] <= 1);
          left_out += 1 - fewer[at];
          if (piece.segment == 1) REQUIRE(fewer[at] == 1);
        }
      CHECK(left_out > (ranks == 1 ? n / 2 : 0));
    }
  }
}

// What a feedback adds to a mean of 0 has to arrive.
using CopiesView = decltype(std::declval<Ef21::State<executor::host>&>().view());
static_assert(terse::detail::Rests<detail::Deliver<RestingDescent, detail::AsItIs>>);
static_assert(!terse::detail::Rests<detail::Deliver<RestingDescent, CopiesView>>);

TEST_CASE("what rests is called for what has come, and all is as if it were called for every element") {
  visits_what_came(TopK<>{.selection = {.ratio = 0.05}});
  visits_what_came(TopK<Whole>{.selection = {.ratio = 0.02}});
  visits_what_came(RandomK{.selection = {.ratio = 0.03}});
  visits_what_came(Threshold<>{.selection = {.threshold = 1.5F, .most_ratio = 1}});
  visits_what_came(TopK<>{.selection = {.ratio = 0.001}});
}

/// What is wrong with `wire`, read by what is written in docs/wire-format.md; "" if nothing is, and then into `read`.
std::string spelled_out(const std::vector<std::byte>& wire, index_t n, index_t k,
                        std::vector<std::uint32_t>& read) {
  const auto bit = [&](index_t at) {
    return std::to_integer<unsigned>(wire[static_cast<std::size_t>(at / 8)]) >> at % 8 & 1;
  };
  index_t bits = 1;
  while (index_t{1} << bits < n) ++bits;
  const index_t all = 8 * static_cast<index_t>(wire.size());
  REQUIRE(all == std::min((bits * k + 63) / 64 * 64, (n + 63) / 64 * 64));
  read.clear();
  if ((n + 63) / 64 * 64 <= bits * k) {
    for (index_t i = 0; i < all; ++i) {
      if (bit(i) == 0) continue;
      if (i >= n) return "a position beyond the end";
      read.push_back(static_cast<std::uint32_t>(i));
    }
    return read.size() == static_cast<std::size_t>(k) ? "" : "a bitmap of another number of positions";
  }
  index_t before = -1;
  for (index_t e = 0; e < k; ++e) {
    index_t position = 0;
    for (index_t b = 0; b < bits; ++b) position |= static_cast<index_t>(bit(bits * e + b)) << b;
    if (position <= before) return "positions that do not ascend";
    if (position >= n) return "a position beyond the end";
    read.push_back(static_cast<std::uint32_t>(before = position));
  }
  for (index_t at = bits * k; at < all; ++at)
    if (bit(at) != 0) return "bits after its last position";
  return "";
}

TEST_CASE("positions take the bits that their unit needs, and what no sender writes is refused") {
  std::mt19937_64 random(5);
  std::map<std::string, int> seen;
  for (const index_t n : {1, 2, 3, 63, 64, 65, 100, 1000, 4095, 4096, 4097, 100000, 1 << 30})
    for (index_t k = 0; k <= std::min<index_t>(n, 700); k += k < 40 ? 1 : 37) {
      CAPTURE(n);
      CAPTURE(k);
      std::set<std::uint32_t> some;
      while (some.size() < static_cast<std::size_t>(k))
        some.insert(static_cast<std::uint32_t>(random() % static_cast<std::uint64_t>(n)));
      const std::vector<std::uint32_t> positions(some.begin(), some.end());
      std::vector<std::byte> wire(static_cast<std::size_t>(Positions::bytes(n, k)), std::byte{0xFF});
      Positions::write(executor::host{}, view<const std::uint32_t>(positions), n, wire.data());
      std::vector<std::uint32_t> read;
      REQUIRE(spelled_out(wire, n, k, read) == "");
      REQUIRE(read == positions);
      for (int trial = 0; trial < 20; ++trial) {
        const char* const fault = Positions::fault(wire.data(), n, k);
        REQUIRE(std::string(fault == nullptr ? "" : fault) == spelled_out(wire, n, k, read));
        ++seen[fault == nullptr ? "" : fault];
        if (fault == nullptr) {
          Positions::Reader reader(Largest{}, wire.data(), n, k, 0, Draw::shared(1, 1, Purpose::selection));
          for (std::size_t e = 0; e < read.size(); ++e) {
            if (e > 0) reader.next();
            REQUIRE(reader.position() == read[e]);
          }
        }
        if (!wire.empty())
          wire[wire.size() - 1 - random() % wire.size() / (trial % 2 == 0 ? 1 : 2)] ^= std::byte{1}
                                                                                       << random() % 8;
      }
    }
  CHECK(seen.size() == 5);
}

TEST_CASE("nothing at all") { holds<Dense>(); }

}  // namespace
