// SPDX-License-Identifier: Apache-2.0

// A custom topology: a relay. Ranks pass every packet to their neighbour, and each rank decodes all packets. AllGather needs one
// phase of W - 1 messages, the relay W - 1 phases of one. Then its laws, and a training over it.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <vector>

#include "terse/laws/topology.hpp"
#include "terse/terse.hpp"

struct Relay {
  static constexpr bool exact = true;          // all ranks get the same mean
  static constexpr bool recompresses = false;  // packets arrive as they were made
  using ForDense = terse::Ring;  // full-precision packets of all ranks would be W / 2 times as many bytes

  template <terse::Compressor C, terse::ErrorFeedback F, terse::Executor E>
  class Round {
    static_assert(!terse::Traits<C>::variable, "Relay passes on packets of one size");
    using Context = terse::RoundContext<C, F, E>;

   public:
    explicit Round(const Context& context) : inbox_(context.size) {
      for (int rank = 0; rank < context.size; ++rank) packets_.emplace_back(context.plan.whole.bytes);
    }
    template <class M>
    void start(Context& context, const M& message) {
      context.stamp(packet(context.rank), context.encode_whole(message, packet(context.rank)),
                    terse::Phase::spread, context.rank);
      hop_ = 0;
      pass_on(context);
    }
    template <class M>
    bool advance(Context& context, const M&, bool block) {
      if (hop_ == context.size - 1) return true;
      if (!terse::settled(*batch_, block)) return false;
      const int from = behind(context, ++hop_);
      context.accept(packet(from), context.plan.whole, terse::Phase::spread, from, from);
      pass_on(context);
      return false;
    }
    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      inbox_.clear();
      for (int rank = 0; rank < context.size; ++rank)
        context.add(inbox_, context.plan.whole, packet(rank), terse::Phase::spread, rank);
      terse::deliver(context, context.plan.whole, inbox_, 1.0F / static_cast<float>(context.size), consumer);
    }
    terse::index_t most_bytes(const Context& context) const {
      return (context.size - 1) * context.plan.whole.bytes;
    }

   private:
    std::byte* packet(int rank) { return packets_[static_cast<std::size_t>(rank)].data(); }
    static int behind(const Context& c, int hops) { return (c.rank - hops + c.size) % c.size; }
    void pass_on(Context& context) {
      if (hop_ == context.size - 1) return;
      const terse::index_t bytes = context.plan.whole.bytes;
      send_ = {(context.rank + 1) % context.size, packet(behind(context, hop_)), bytes};
      receive_ = {behind(context, 1), packet(behind(context, hop_ + 1)), bytes};
      batch_.emplace(context.channel.exchange({&send_, 1}, {&receive_, 1}, terse::Phase::spread));
    }

    std::vector<terse::buffer<std::byte, typename E::memory>> packets_;  // by the rank that made them
    terse::Inbox<C> inbox_;
    terse::Send send_{};
    terse::Receive receive_{};
    std::optional<terse::Channel::Ticket> batch_;
    int hop_ = 0;
  };
};

int main() {
  try {
    const terse::laws::Report report = terse::laws::check_topology<Relay>();
    std::fputs(report.text().c_str(), stdout);

    double farthest = 0;
    terse::ThreadGroup(4).run([&](terse::Threads& transport) {
      const terse::Layout layout = terse::Layout::flat(10'000);
      std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size());
      terse::Optimizer optimizer{terse::ErrorFeedbackSgd<Relay>{.learning_rate = 0.1F}, transport, layout};
      for (int step = 0; step < 300; ++step) {
        for (std::size_t i = 0; i < x.size(); ++i) g[i] = x[i] - static_cast<float>(1 + transport.rank());
        if (step > 150) optimizer.learning_rate(optimizer.learning_rate() * 0.95F);
        optimizer.step(x, g);
      }
      if (transport.rank() != 0) return;
      for (std::size_t i = 0; i < 10'000; ++i)
        farthest = std::max(farthest, std::abs(static_cast<double>(x[i]) - 2.5));
    });
    std::printf("\nErrorFeedbackSgd<Relay>: all parameters within %.4f of the optimum, 2.5\n", farthest);
    return report && farthest < 0.05 ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
  }
  return EXIT_FAILURE;
}
