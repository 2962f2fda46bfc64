// SPDX-License-Identifier: Apache-2.0
#include "terse/checkpoint/stop_signal.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/transport/thread.hpp"

// Being asked to stop. That one process of several has had the signal is tried by tests/examples/supervise.py, with MPI.

namespace {

using namespace std::chrono_literals;
using terse::checkpoint::StopRequest;
using terse::checkpoint::StopSignals;

constexpr int ranks = 3;
constexpr int most_calls = 100'000;

/// Each rank calls, and `between(rank, call)` runs before; the call that says to stop, by rank.
template <class Between>
std::array<int, ranks> calls_until_stop(std::chrono::milliseconds period, Between between) {
  std::array<int, ranks> stopped{};
  terse::ThreadGroup(ranks, 20s).run([&](terse::Threads& transport) {
    StopRequest stop(transport, period);
    int& calls = stopped[static_cast<std::size_t>(transport.rank())];
    while (calls < most_calls) {
      between(transport.rank(), ++calls);
      if (const int signal = stop.asked()) {
        if (signal != SIGTERM) calls = -signal;
        return;
      }
    }
  });
  return stopped;
}

volatile std::sig_atomic_t own_handler_ran = 0;
extern "C" void own_handler(int) { own_handler_ran = 1; }

TEST_CASE("all ranks stop after the same call, whenever the signal comes") {
  for (const auto period : {0ms, 1ms})
    for (int round = 0; round < 40; ++round) {
      const StopSignals signals;
      const auto draw = [&](int rank, int call) {
        return terse::Draw::local(static_cast<std::uint64_t>(round), rank, static_cast<std::uint64_t>(call),
                                  terse::Purpose::user);
      };
      const int last = 2 + static_cast<int>(draw(0, 0).below(20, 0));
      const auto stopped = calls_until_stop(period, [&](int rank, int call) {
        std::this_thread::sleep_for(std::chrono::microseconds(draw(rank, call).below(200, 0)));
        if (rank == round % ranks && call == last) ::kill(::getpid(), SIGTERM);
      });
      CAPTURE(round);
      CHECK(stopped[0] >= last);
      CHECK(stopped[0] < most_calls);
      CHECK(stopped[1] == stopped[0]);
      CHECK(stopped[2] == stopped[0]);
    }
}

TEST_CASE("ranks ask each other in every call, or at most half as often as before") {
  const StopSignals signals;
  const auto raise_before_4 = [&](int rank, int call) {
    if (rank == 2 && call == 4) ::raise(SIGTERM);
  };
  for (const int calls : calls_until_stop(0ms, raise_before_4)) CHECK(calls == 4);
  const StopSignals again;
  // In calls 1, 3, 7.
  for (const int calls : calls_until_stop(1h, raise_before_4)) CHECK(calls == 7);
}

TEST_CASE("signals are noted while somebody wants them") {
  struct sigaction own {};
  struct sigaction before {};
  own.sa_handler = &own_handler;
  REQUIRE(::sigaction(SIGUSR1, &own, &before) == 0);
  {
    const StopSignals signals;
    CHECK(StopSignals::received() == 0);
    ::raise(SIGUSR1);
    CHECK(StopSignals::received() == SIGUSR1);
    CHECK(own_handler_ran == 0);
    const StopSignals others{SIGUSR2};
    CHECK(StopSignals::received() == 0);
    ::raise(SIGUSR2);
    CHECK(StopSignals::received() == SIGUSR2);
  }
  ::raise(SIGUSR1);
  CHECK(own_handler_ran == 1);
  own_handler_ran = 0;
  CHECK_THROWS_AS((StopSignals{SIGUSR1, SIGKILL}), terse::usage_error);
  ::raise(SIGUSR1);
  CHECK(own_handler_ran == 1);
  ::sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace
