// SPDX-License-Identifier: Apache-2.0

// The library's exact topologies keep the laws of topologies, and each law finds what breaks it.

#include <doctest/doctest.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

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
    /// Fault::failure keeps a peer's failure to itself for longer than the deadline, in full-precision rounds.
    template <class Call>
    static auto slowly(const Call& call) {
      try {
        return call();
      } catch (const peer_error&) {
        if (Wrong == Fault::failure && C::lossless) std::this_thread::sleep_for(std::chrono::seconds(7));
        throw;
      }
    }
  };
};

enum class Slip { none, accept_up, accept_down, phase_up, phase_down, walk, settings };

/// A custom Star, by public names only: rank 0 takes the mean, compresses it again and sends it to all. `S` is left out or wrong.
template <Slip S>
struct Center {
  static constexpr bool exact = true;
  static constexpr bool recompresses = true;

  int unused = 0;
  template <class Visit>
  void settings(Visit&& visit) const {
    if (S != Slip::settings) visit("unused", static_cast<double>(unused));
  }

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round {
    using Context = RoundContext<C, F, E>;
    using Bytes = buffer<std::byte, typename E::memory>;

   public:
    explicit Round(const Context& context)
        : whole_(context.plan.whole),
          rank_(context.rank),
          names_(context.names),
          second_(context, whole_),
          inbox_(context.size),
          mean_(whole_.bytes) {
      for (int rank = 0; rank < context.size; ++rank) packets_.emplace_back(whole_.bytes);
      for (int peer = 1; peer < context.size && rank_ == 0; ++peer) {
        to_center_.push_back({peer, packets_[static_cast<std::size_t>(peer)].data(), whole_.bytes});
        down_.push_back({peer, mean_.data(), whole_.bytes});
      }
      if (rank_ == 0) return;
      up_.push_back({0, packets_[static_cast<std::size_t>(rank_)].data(), whole_.bytes});
      from_center_.push_back({0, mean_.data(), whole_.bytes});
    }
    template <class M>
    void start(Context& context, const M& message) {
      std::byte* const packet = packets_[static_cast<std::size_t>(rank_)].data();
      context.stamp(packet, context.encode_whole(message, packet), Phase::reduce, 0);
      spreading_ = false;
      batch_.emplace(context.channel.exchange(up_, to_center_, Phase::reduce));
    }
    template <class M>
    bool advance(Context& context, const M&, bool block) {
      if (!settled(*batch_, block)) return false;
      if (spreading_) {
        if (rank_ != 0 && S != Slip::accept_down) context.accept(mean_.data(), whole_, Phase::spread, 0, 0);
        return true;
      }
      if (rank_ == 0) serve(context);
      spreading_ = true;
      batch_.emplace(context.channel.exchange(down_, from_center_, Phase::spread));
      return false;
    }
    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      inbox_.clear();
      context.add(inbox_, whole_, mean_.data(), S == Slip::phase_down ? Phase::reduce : Phase::spread, 0);
      deliver(context, whole_, inbox_, 1, consumer);
    }
    index_t most_bytes(const Context&) const {
      return whole_.bytes * static_cast<index_t>(up_.size() + down_.size());
    }
    double notes(E executor) { return note_of(executor, mean_.data(), whole_, names_(0), -1, names_(rank_)); }
    template <class Visit>
    void walk(Visit&& visit) {
      if (S != Slip::walk && rank_ == 0) second_.walk(visit);
    }

   private:
    void serve(Context& context) {
      second_.start(context);
      inbox_.clear();
      for (int peer = 0; peer < context.size; ++peer) {
        const std::byte* packet = packets_[static_cast<std::size_t>(peer)].data();
        if (peer != 0 && S != Slip::accept_up) context.accept(packet, whole_, Phase::reduce, 0, peer);
        context.add(inbox_, whole_, packet, S == Slip::phase_up ? Phase::spread : Phase::reduce, peer);
      }
      const MeanOf mean{1.0F / static_cast<float>(context.size)};
      const index_t bytes = second_.encode(context, whole_, inbox_, Message{mean, mean}, mean_.data());
      context.stamp(mean_.data(), bytes, Phase::spread, 0);
    }

    Portion whole_;
    int rank_;
    typename Context::RankNames names_;
    SecondStage<C, F, E> second_;
    Inbox<C> inbox_;
    Bytes mean_;
    std::vector<Bytes> packets_;  // by the rank that made them
    std::vector<Send> up_, down_;
    std::vector<Receive> to_center_, from_center_;
    std::optional<Channel::Ticket> batch_;
    bool spreading_ = false;
  };
};

template <class P>
void holds(const P& topology = {}) {
  const laws::Report report = laws::check_topology(topology);
  CHECK_MESSAGE(report, report.text());
  CHECK(report.passed.size() == (std::is_same_v<terse::detail::DenseTopologyOf<P>, P> ? 13 : 12));
}

/// What is broken shows among few ranks, too.
constexpr int few[] = {1, 2, 3};

template <Fault F>
void breaks(const char* law, const char* other = nullptr) {
  const laws::Report report = laws::check_topology<Broken<F>>({}, {}, few);
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

/// The law is broken, no other one is except `also`, and the report has these words.
template <Slip S>
void slips(const char* law, const char* words, const char* also = "") {
  const laws::Report report = laws::check_topology<Center<S>>({}, {}, few);
  INFO(report.text());
  CHECK(report.broke(law));
  for (const laws::Failure& failure : report.failures) {
    CHECK((failure.law == law || failure.law == also));
    if (failure.law == law) CHECK(failure.what.find(words) != std::string::npos);
  }
}

TEST_CASE("laws find a part that a topology leaves out, and name it") {
  holds<Center<Slip::none>>();
  slips<Slip::accept_up>("accept",
                         "the message of rank 1 to rank 0 in phase 'reduce', with a damaged header, is taken "
                         "without an error: `context.accept` checks every packet",
                         "not finite");
  slips<Slip::accept_down>(
      "accept", "the message of rank 0 to rank 1 in phase 'spread', with a damaged header", "not finite");
  slips<Slip::phase_up>(
      "phase",
      "the message of rank 1 to rank 0 in phase 'reduce', with a NaN in its last values, ends "
      "in the receiver's error");
  slips<Slip::phase_down>("phase",
                          "the message of rank 0 to rank 1 in phase 'spread', with a NaN in its last values, "
                          "is taken without an error: `context.add` takes the phase");
  slips<Slip::walk>("checkpoint", "differs after a checkpoint of round 3: `walk(visit)` of the Round");
  slips<Slip::settings>("settings", "it has hyper-parameters");
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
