// SPDX-License-Identifier: Apache-2.0

// A transport of one's own: a decorator that makes a rank late, by chance and by a little, before each batch of messages. Its
// laws, and a training whose bits don't depend on who was late.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "terse/laws/transport.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/forwarding.hpp"
#include "terse/transport/thread.hpp"

template <terse::Transport Inner>
class Jittery : public terse::Forwarding<Jittery<Inner>, Inner> {
 public:
  Jittery(Inner inner, std::chrono::microseconds most, std::uint64_t seed)
      : terse::Forwarding<Jittery, Inner>(std::move(inner)),
        most_(most),
        draw_(terse::Draw::local(seed, this->rank(), 0, terse::Purpose::user)) {}

  /// All that moves bytes or waits comes through here.
  template <class Call>
  auto carry(terse::Phase, const terse::Load&, const Call& call) {
    const std::uint64_t sixteen_bits = draw_.bits(count_++) >> 48;
    std::this_thread::sleep_for(most_ * sixteen_bits / 0x10000);
    return call();
  }
  /// So that channels which are split off are late, too.
  template <terse::Transport Other>
  Jittery<Other> around(Other other) const {
    return {std::move(other), most_, draw_.bits(count_)};
  }

 private:
  std::chrono::microseconds most_;
  terse::Draw draw_;
  std::uint64_t count_ = 0;
};

namespace {

using namespace std::chrono_literals;

/// Rank 0's parameters after 30 steps.
std::vector<float> train(std::chrono::microseconds most, std::uint64_t seed) {
  std::vector<float> result;
  terse::ThreadGroup(4).run([&](terse::Threads& threads) {
    Jittery<terse::Threads> transport(threads.split(0, threads.rank()), most, seed);
    const terse::Layout layout = terse::Layout::flat(1000);
    std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size());
    terse::Optimizer optimizer{
        terse::OneBitAdam<terse::Ring>{.preconditioner = {.freeze = terse::AtStep{10}}}, transport, layout};
    for (int step = 1; step <= 30; ++step) {
      for (std::size_t i = 0; i < x.size(); ++i)
        g[i] = x[i] - static_cast<float>(i % 7 + static_cast<std::size_t>(transport.rank()));
      optimizer.step(x, g);
    }
    if (transport.rank() == 0) result = x;
  });
  return result;
}

}  // namespace

int main() {
  try {
    bool lawful = true;
    terse::ThreadGroup(3).run([&](terse::Threads& threads) {
      Jittery<terse::Threads> transport(threads.split(0, threads.rank()), 200us, 1);
      const terse::laws::Report report = terse::laws::check_transport(transport);
      if (transport.rank() != 0) return;
      std::fputs(report.text().c_str(), stdout);
      lawful = bool(report);
    });
    const std::vector<float> expected = train(0us, 1);
    const bool alike = train(300us, 1) == expected && train(300us, 2) == expected;
    std::printf("\n30 steps in time and late, twice: %s\n", alike ? "the same bits" : "other bits");
    return lawful && alike ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
  }
  return EXIT_FAILURE;
}
