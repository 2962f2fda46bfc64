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
    using Context = terse::RoundContext<C, F, T, E>;

   public:
    explicit Round(const Context& context)
        : size_(context.size),
          whole_(context.plan.whole),
          below_(whole_.bytes),
          partial_(whole_.bytes),
          sum_(whole_.bytes),
          inbox_(1) {}

    template <class M>
    void start(Context& context, const M& message) {
      added_ = down_ = false;
      if (context.rank == 0)
        add(context, terse::EmptyInbox{}, message);
      else
        post(context, {}, terse::Receive{context.rank - 1, below_.data(), whole_.bytes},
             terse::Phase::reduce);
    }
    template <class M>
    bool advance(Context& context, const M& message, bool block) {
      const int last = context.size - 1;
      if (context.size == 1) return true;
      if (!terse::settled(*batch_, block)) return false;
      if (!added_) {
        context.accept(below_.data(), whole_, terse::Phase::reduce, 0, context.rank - 1);
        inbox_.clear();
        inbox_.add(context.codec.compressor(), whole_, below_.data(), context.first.shared);
        add(context, inbox_, message);
        return false;
      }
      if (down_) return true;
      context.accept(sum_.data(), whole_, terse::Phase::spread, 0, last);
      return hand_down(context);
    }
    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      inbox_.clear();
      inbox_.add(context.codec.compressor(), whole_, sum_.data(), context.first.shared);
      terse::deliver(context, whole_, inbox_, 1.0F / static_cast<float>(context.size), consumer);
    }
    /// The squared norm of a full-precision mean, for clipping.
    double notes(E executor) { return terse::note_of(executor, sum_.data(), whole_) / (size_ * size_); }
    template <class Visit>
    void walk(Visit&&) {}

   private:
    /// This rank's message on what came from below, and on its way up; the last rank's is the sum.
    template <class In, class M>
    void add(Context& context, In&& below, const M& message) {
      const bool last = context.rank == context.size - 1;
      const terse::Phase phase = last ? terse::Phase::spread : terse::Phase::reduce;
      std::byte* packet = (last ? sum_ : partial_).data();
      const terse::Message plus{terse::PlusArrived<decltype(message.compressed)>{message.compressed},
                                terse::PlusArrived<decltype(message.dense)>{message.dense}};
      context.codec.measure(whole_, context.mask, below, plus);
      context.codec.encode(whole_, context.mask, below, plus, context.first, false, packet);
      context.note(context.codec);
      context.stamp(packet, whole_.bytes, phase, 0);
      added_ = true;
      if (last)
        hand_down(context);
      else
        post(context, terse::Send{context.rank + 1, packet, whole_.bytes, whole_.bytes},
             terse::Receive{context.rank + 1, sum_.data(), whole_.bytes}, phase);
    }
    /// Whether there is nobody to hand the sum down to.
    bool hand_down(Context& context) {
      if (context.rank == 0) return true;
      down_ = true;
      post(context, terse::Send{context.rank - 1, sum_.data(), whole_.bytes, whole_.bytes}, {},
           terse::Phase::spread);
      return false;
    }
    /// One batch of at most one message each way; the lists must outlive it.
    void post(Context& context, std::optional<terse::Send> send, std::optional<terse::Receive> receive,
              terse::Phase phase) {
      send_ = send.value_or(terse::Send{});
      receive_ = receive.value_or(terse::Receive{});
      batch_.emplace(
          context.channel.exchange({&send_, send ? 1U : 0U}, {&receive_, receive ? 1U : 0U}, phase));
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
