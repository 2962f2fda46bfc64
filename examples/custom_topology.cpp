// SPDX-License-Identifier: Apache-2.0

// A topology of one's own: ranks in a line. Partial sums go up, compressed anew by each rank, and the last rank's packet comes
// down again, unchanged. Then its laws, and a training over it.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "terse/laws/topology.hpp"
#include "terse/terse.hpp"

struct Line {
  static constexpr bool exact = true;                    // all ranks get the same mean
  static constexpr bool recompresses = true;             // on the way to it
  static constexpr bool compresses_partial_sums = true;  // of some ranks' messages
  static constexpr bool evaluates_late = true;           // a rank's message, when the sum below it has come

  template <terse::Compressor C, terse::ErrorFeedback F, terse::Transport T, terse::Executor E>
  class Round {
    static_assert(!terse::Traits<C>::variable, "Line passes on packets of one size");
    using Home = terse::Station<C, F, T, E>;

   public:
    explicit Round(const Home& home)
        : size_(home.size),
          whole_(home.plan.whole),
          below_(whole_.bytes),
          partial_(whole_.bytes),
          sum_(whole_.bytes),
          inbox_(1) {}

    template <class M>
    void start(Home& home, const M& message) {
      added_ = down_ = false;
      if (home.rank == 0)
        add(home, terse::EmptyInbox{}, message);
      else
        post(home, {}, terse::Receive{home.rank - 1, below_.data(), whole_.bytes}, terse::Phase::reduce);
    }
    template <class M>
    bool advance(Home& home, const M& message, bool block) {
      const int last = home.size - 1;
      if (home.size == 1) return true;
      if (!terse::settled(*batch_, block)) return false;
      if (!added_) {
        home.accept(below_.data(), whole_, terse::Phase::reduce, 0, home.rank - 1);
        inbox_.clear();
        inbox_.add(home.codec.compressor(), whole_, below_.data(), home.first.shared);
        add(home, inbox_, message);
        return false;
      }
      if (down_) return true;
      home.accept(sum_.data(), whole_, terse::Phase::spread, 0, last);
      return hand_down(home);
    }
    template <class Consumer>
    void consume(Home& home, const Consumer& consumer) {
      inbox_.clear();
      inbox_.add(home.codec.compressor(), whole_, sum_.data(), home.first.shared);
      terse::deliver(home, whole_, inbox_, 1.0F / static_cast<float>(home.size), consumer);
    }
    /// The squared norm of a full-precision mean, for clipping.
    double notes(E executor) { return terse::note_of(executor, sum_.data(), whole_) / (size_ * size_); }
    template <class Visit>
    void walk(Visit&&) {}

   private:
    /// This rank's message on what came from below, and on its way up; the last rank's is the sum.
    template <class In, class M>
    void add(Home& home, In&& below, const M& message) {
      const bool last = home.rank == home.size - 1;
      const terse::Phase phase = last ? terse::Phase::spread : terse::Phase::reduce;
      std::byte* packet = (last ? sum_ : partial_).data();
      const terse::Message plus{terse::PlusArrived<decltype(message.compressed)>{message.compressed},
                                terse::PlusArrived<decltype(message.dense)>{message.dense}};
      home.codec.measure(whole_, home.mask, below, plus);
      home.codec.encode(whole_, home.mask, below, plus, home.first, false, packet);
      home.note(home.codec);
      home.stamp(packet, whole_.bytes, phase, 0);
      added_ = true;
      if (last)
        hand_down(home);
      else
        post(home, terse::Send{home.rank + 1, packet, whole_.bytes, whole_.bytes},
             terse::Receive{home.rank + 1, sum_.data(), whole_.bytes}, phase);
    }
    /// Whether there is nobody to hand the sum down to.
    bool hand_down(Home& home) {
      if (home.rank == 0) return true;
      down_ = true;
      post(home, terse::Send{home.rank - 1, sum_.data(), whole_.bytes, whole_.bytes}, {},
           terse::Phase::spread);
      return false;
    }
    /// One batch of at most one message each way; the lists must outlive it.
    void post(Home& home, std::optional<terse::Send> send, std::optional<terse::Receive> receive,
              terse::Phase phase) {
      send_ = send.value_or(terse::Send{});
      receive_ = receive.value_or(terse::Receive{});
      batch_.emplace(home.channel.exchange({&send_, send ? 1U : 0U}, {&receive_, receive ? 1U : 0U}, phase));
    }

    using Bytes = terse::buffer<std::byte, typename E::memory>;
    double size_;
    terse::Portion whole_;
    Bytes below_, partial_, sum_;
    terse::Inbox<C> inbox_;
    terse::Send send_;
    terse::Receive receive_;
    std::optional<decltype(std::declval<T&>().exchange({}, {}, terse::Phase::reduce))> batch_;
    bool added_ = false, down_ = false;
  };
};

int main() {
  try {
    const terse::laws::Report report = terse::laws::check_topology<Line>();
    std::fputs(report.text().c_str(), stdout);

    double farthest = 0;
    terse::ThreadGroup(4).run([&](terse::Threads& transport) {
      const terse::Layout layout = terse::Layout::flat(10'000);
      std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size());
      terse::Optimizer optimizer{terse::ErrorFeedbackSgd<Line>{.learning_rate = 0.1F}, transport, layout};
      for (int step = 0; step < 300; ++step) {
        for (std::size_t i = 0; i < x.size(); ++i) g[i] = x[i] - static_cast<float>(1 + transport.rank());
        if (step > 150) optimizer.learning_rate(optimizer.learning_rate() * 0.95F);
        optimizer.step(x, g);
      }
      if (transport.rank() != 0) return;
      for (std::size_t i = 0; i < 10'000; ++i)
        farthest = std::max(farthest, std::abs(static_cast<double>(x[i]) - 2.5));
    });
    std::printf("\nErrorFeedbackSgd<Line>: all parameters within %.4f of the optimum, 2.5\n", farthest);
    return report && farthest < 0.05 ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
  }
  return EXIT_FAILURE;
}
