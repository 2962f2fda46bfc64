// SPDX-License-Identifier: Apache-2.0

// The library's exact topologies keep the laws of topologies, and each law finds what breaks it.

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "terse/compressor/uniform.hpp"
#include "terse/laws/topology.hpp"
#include "terse/topology/all_gather.hpp"
#include "terse/topology/ring.hpp"
#include "terse/topology/star.hpp"

namespace {

using namespace terse;

enum class Fault { mean, agreement, determinism, once, tracking, norm, failure };

/// A mean on its way to where it goes.
template <Fault F, bool Compressed, class Consumer>
struct Spoiled {
  Consumer consumer;
  int rank;
  float by;

  void operator()(const Piece& piece, index_t i, float mean) const {
    if (F == Fault::mean && !Compressed) mean *= 1.01F;
    if (F == Fault::agreement) mean *= 1 + 2e-7F * static_cast<float>(rank);
    if (F == Fault::determinism && Compressed) mean *= 1 + by;
    if (F == Fault::tracking && Compressed) mean = mean * 0.9F - 0.02F;
    consumer(piece, i, mean);
    if (F == Fault::once && i == 100) consumer(piece, i, mean);
  }
};

/// ScatterGather with a fault.
template <Fault Wrong>
struct Broken {
  static constexpr bool exact = true;
  static constexpr bool recompresses = true;

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round : public ScatterGather::Round<C, F, E> {
   public:
    using Whole = ScatterGather::Round<C, F, E>;
    using Whole::Whole;

    double notes(E executor) { return Whole::notes(executor) * (Wrong == Fault::norm ? 1.01 : 1); }

    // A peer's failure shows in either.
    template <class M>
    void start(RoundContext<C, F, E>& context, const M& message) {
      slowly([&] { Whole::start(context, message); });
    }
    template <class M>
    bool advance(RoundContext<C, F, E>& context, const M& message, bool block) {
      return slowly([&] { return Whole::advance(context, message, block); });
    }
    template <class Consumer>
    void consume(RoundContext<C, F, E>& context, const Consumer& consumer) {
      static std::atomic<int> rounds{0};
      const auto by = static_cast<float>(++rounds) * 1e-6F;
      using Compressed = Spoiled<Wrong, true, decltype(consumer.compressed)>;
      using Exact = Spoiled<Wrong, false, decltype(consumer.dense)>;
      Whole::consume(context, Message{Compressed{consumer.compressed, context.rank, by},
                                      Exact{consumer.dense, context.rank, by}});
    }

   private:
    /// Fault::failure keeps a peer's failure to itself for longer than the deadline.
    template <class Call>
    static auto slowly(const Call& call) {
      try {
        return call();
      } catch (const peer_error&) {
        if (Wrong == Fault::failure) std::this_thread::sleep_for(std::chrono::seconds(7));
        throw;
      }
    }
  };
};

template <class P>
void holds(const P& topology = {}) {
  const laws::Report report = laws::check_topology(topology);
  CHECK_MESSAGE(report, report.text());
  CHECK(report.passed.size() == (std::is_same_v<terse::detail::DenseTopologyOf<P>, P> ? 8 : 7));
}

template <Fault F>
void breaks(const char* law, const char* other = nullptr) {
  const laws::Report report = laws::check_topology<Broken<F>>();
  CHECK_MESSAGE(report.broke(law), report.text());
  if (other != nullptr) CHECK_MESSAGE(report.broke(other), report.text());
}

TEST_CASE("topologies keep the laws") {
  holds<ScatterGather>();
  holds<Ring>();
  holds<AllGather>();
  holds<Star>();
  holds(BySize<>{.from = 10});
}

TEST_CASE("laws find what breaks them") {
  breaks<Fault::mean>("mean");
  breaks<Fault::agreement>("agreement");
  breaks<Fault::determinism>("determinism");
  breaks<Fault::once>("once");
  breaks<Fault::tracking>("tracking", "bias");
  breaks<Fault::norm>("norm");
  breaks<Fault::failure>("failure");
}

using EightBits = Uniform<8, Nearest, Symmetric>;

struct Given {
  const float* x;
  float operator()(const Piece&, index_t i) const { return x[i]; }
};
struct Taken {
  float* x;
  void operator()(const Piece&, index_t i, float mean) const { x[i] = mean; }
};

/// What a ring of 8 bits without error feedback makes of x, minus the mean: of a segment of `count` elements, and of one of 1.
template <class Value>
std::vector<double> off_in_a_ring(int ranks, index_t count, Value value) {
  Layout layout;
  layout.add({"many", {count}}).add({"one", {1}});
  std::vector<float> got(static_cast<std::size_t>(layout.size()));
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    Channel channel(transport);
    Exchange<EightBits, Unchecked<NoErrorFeedback>, Ring, executor::host> exchange(
        {}, channel, layout, layout.range(), EightBits{}, Unchecked<NoErrorFeedback>{}, false, Ring{});
    std::vector<float> x(got.size()), mean(got.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = value(transport.rank(), i);
    const Given from{x.data()};
    const Taken into{mean.data()};
    exchange.mix({.step = 1}, {}, Message{from, from}, Message{into, into});
    exchange.settle({.step = 1});
    if (transport.rank() == 0) got = mean;
  });
  std::vector<double> off;
  const Range all = layout.range();
  for (const Piece& piece : all.pieces())
    for (auto i = static_cast<std::size_t>(piece.offset);
         i < static_cast<std::size_t>(piece.offset + piece.count); ++i) {
      double sum = 0;
      for (int rank = 0; rank < ranks; ++rank) sum += static_cast<double>(value(rank, i));
      off.push_back(static_cast<double>(got[i]) - sum / ranks);
    }
  return off;
}

TEST_CASE("rings of 8 bits have no bias, whatever chunks hold") {
  const auto noise = [](int rank, std::size_t i) {
    return static_cast<float>(Draw::local(1, rank, 1, Purpose::user).bits(i) >> 40) * 0x1p-23F - 1;
  };
  for (int ranks = 2; ranks <= 8; ++ranks) {
    CAPTURE(ranks);
    double sum = 0, squares = 0;
    for (const double off : off_in_a_ring(ranks, 20000, noise)) {
      sum += off;
      squares += off * off;
    }
    CHECK(std::abs(sum) < 3 * std::sqrt(squares));
    // All below zero, in a narrow band: half a level for each hop.
    const auto negative = [&](int rank, std::size_t i) { return 0.025F * noise(rank, i) - 1.025F; };
    for (const double off : off_in_a_ring(ranks, 2000, negative))
      CHECK(std::abs(off) < 0.5 / 127 * 1.05 * ranks);
    for (const float same : {-3.0F, 0.0F, 0.7F})
      for (const double off : off_in_a_ring(ranks, 700, [&](int, std::size_t) { return same; }))
        CHECK(std::abs(off) < 1e-6);
  }
}

TEST_CASE("a center that is no rank is refused") {
  ThreadGroup(2, std::chrono::seconds(5)).run([](Threads& transport) {
    const Layout layout = Layout::flat(100);
    using Starred = Exchange<Dense, NoErrorFeedback, Star, executor::host>;
    Channel channel(transport);
    CHECK_THROWS_WITH_AS(
        Starred({}, channel, layout, layout.range(), Dense{}, NoErrorFeedback{}, false, Star{.center = 2}),
        doctest::Contains("it must be one of 0 to 1"), usage_error);
  });
}

}  // namespace
