// SPDX-License-Identifier: Apache-2.0

// The library's exact topologies keep the laws of topologies, and each law finds what breaks it.

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

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
    if (F == Fault::tracking && Compressed) mean *= 0.9F;
    consumer(piece, i, mean);
    if (F == Fault::once && i == 100) consumer(piece, i, mean);
  }
};

/// ScatterGather with a fault.
template <Fault Wrong>
struct Broken {
  static constexpr bool exact = true;
  static constexpr bool recompresses = true;

  template <Compressor C, ErrorFeedback F, Transport T, Executor E>
  class Round : public ScatterGather::Round<C, F, T, E> {
   public:
    using Whole = ScatterGather::Round<C, F, T, E>;
    using Whole::Whole;

    double notes(E executor) { return Whole::notes(executor) * (Wrong == Fault::norm ? 1.01 : 1); }

    template <class M>
    bool advance(RoundContext<C, F, T, E>& context, const M& message, bool block) {
      // Tells nobody for longer than the deadline.
      if constexpr (Wrong == Fault::failure) {
        try {
          return Whole::advance(context, message, block);
        } catch (const peer_error&) {
          std::this_thread::sleep_for(std::chrono::seconds(7));
          throw;
        }
      }
      return Whole::advance(context, message, block);
    }
    template <class Consumer>
    void consume(RoundContext<C, F, T, E>& context, const Consumer& consumer) {
      static std::atomic<int> rounds{0};
      const auto by = static_cast<float>(++rounds) * 1e-6F;
      using Compressed = Spoiled<Wrong, true, decltype(consumer.compressed)>;
      using Exact = Spoiled<Wrong, false, decltype(consumer.dense)>;
      Whole::consume(context, Message{Compressed{consumer.compressed, context.rank, by},
                                      Exact{consumer.dense, context.rank, by}});
    }
  };
};

template <class P>
void holds(const P& topology = {}) {
  const laws::Report report = laws::check_topology(topology);
  CHECK_MESSAGE(report, report.text());
  CHECK(report.passed.size() == (std::is_same_v<DenseTopologyOf<P>, P> ? 7 : 6));
}

template <Fault F>
void breaks(const char* law) {
  const laws::Report report = laws::check_topology<Broken<F>>();
  CHECK_MESSAGE(report.broke(law), report.text());
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
  breaks<Fault::tracking>("tracking");
  breaks<Fault::norm>("norm");
  breaks<Fault::failure>("failure");
}

TEST_CASE("a center that is no rank is refused") {
  ThreadGroup(2, std::chrono::seconds(5)).run([](Threads& transport) {
    const Layout layout = Layout::flat(100);
    using Starred = Exchange<Dense, None, Star, Threads, executor::host>;
    CHECK_THROWS_WITH_AS(
        Starred({}, transport, layout, layout.range(), Dense{}, None{}, false, Star{.center = 2}),
        doctest::Contains("it must be one of 0 to 1"), usage_error);
  });
}

}  // namespace
