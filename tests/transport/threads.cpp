// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <fstream>
#include <future>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "terse/terse.hpp"
#include "terse/transport/any.hpp"
#include "terse/transport/delayed.hpp"
#include "terse/transport/rendezvous.hpp"
#include "terse/transport/watchdog.hpp"

// ThreadGroup, Metered and Assembly; then whole optimizers in which a rank fails at any of its calls.

namespace {

using namespace std::chrono_literals;
using terse::index_t;
using terse::Phase;
using terse::Receive;
using terse::Send;
using terse::ThreadGroup;
using terse::Threads;
using Bytes = std::vector<std::byte>;
using Milliseconds = std::chrono::milliseconds;

/// What became of one rank.
struct Outcome {
  enum class Kind { returned, peer, usage, other } kind = Kind::other;
  int culprit = -1;
  std::string text;
  double seconds = 0;
};

/// Ranks that have left; one that is to be late sleeps until the others have given up, on machines of any speed.
class Left {
 public:
  void add() { ++count_; }
  /// Sleeps until `ranks` have left, 10 seconds at most.
  void sleep_until(int ranks) const {
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (count_ < ranks && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  }

 private:
  std::atomic<int> count_ = 0;
};

/// Runs program(transport) or program(transport, left) on every rank and notes how each one left. The group's own
/// exception is dropped.
template <class Program>
std::vector<Outcome> outcomes(int ranks, terse::Deadline deadline, Program program) {
  std::vector<Outcome> list(static_cast<std::size_t>(ranks));
  Left left;
  ThreadGroup group(ranks, deadline);
  const auto begin = std::chrono::steady_clock::now();
  try {
    group.run([&](Threads& transport) {
      Outcome& outcome = list[static_cast<std::size_t>(transport.rank())];
      const auto note = [&](Outcome::Kind kind, const std::string& text, int culprit) {
        outcome = {kind, culprit, text,
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
        left.add();
      };
      try {
        if constexpr (std::invocable<Program&, Threads&, const Left&>)
          program(transport, left);
        else
          program(transport);
        note(Outcome::Kind::returned, "", -1);
      } catch (const terse::peer_error& failure) {
        note(Outcome::Kind::peer, failure.what(), failure.culprit());
        throw;
      } catch (const terse::usage_error& failure) {
        note(Outcome::Kind::usage, failure.what(), -1);
        throw;
      } catch (const std::exception& failure) {
        note(Outcome::Kind::other, failure.what(), -1);
        throw;
      }
    });
  } catch (...) {  // NOLINT: each rank has noted its own
  }
  return list;
}

/// All ranks but `culprit` must have left by a peer_error that names it, in time.
void check_survivors(const std::vector<Outcome>& list, int culprit, double seconds) {
  for (std::size_t rank = 0; rank < list.size(); ++rank) {
    if (static_cast<int>(rank) == culprit) continue;
    CAPTURE(rank);
    CAPTURE(list[rank].text);
    CHECK(list[rank].kind == Outcome::Kind::peer);
    CHECK(list[rank].culprit == culprit);
    CHECK(list[rank].seconds < seconds);
  }
}

void check_all_returned(const std::vector<Outcome>& list) {
  for (const Outcome& outcome : list) {
    CAPTURE(outcome.text);
    CHECK(outcome.kind == Outcome::Kind::returned);
  }
}

/// Enough for a rank that has nothing to wait for, on a machine that is busy with other things.
constexpr Milliseconds patience = 20s;
/// Far below `patience`: who leaves by then did not sit a deadline out.
constexpr double at_once = 5;

/// The bytes of the message that `from` sends to `to` in `round`.
Bytes message(int from, int to, int round, index_t largest = 5000) {
  const terse::Draw draw =
      terse::Draw::local(static_cast<std::uint64_t>(round), from * 64 + to, 0, terse::Purpose::user);
  const std::uint64_t size = draw.below(4, 0) == 0 ? 0 : draw.below(static_cast<std::uint64_t>(largest), 1);
  Bytes bytes;
  for (std::uint64_t b = 0; b < size; ++b) bytes.push_back(static_cast<std::byte>(draw.bits(b + 2)));
  return bytes;
}

/// One batch among all ranks of a transport, with buffers of its own.
struct Everybody {
  std::deque<Bytes> out, in, expected;
  std::vector<Send> sends;
  std::vector<Receive> receives;

  template <class T>
  Everybody(const T& transport, int round) {
    for (int peer = 0; peer < transport.size(); ++peer) {
      if (peer == transport.rank()) continue;
      const Bytes& mine = out.emplace_back(message(transport.rank(), peer, round));
      const Bytes& theirs = expected.emplace_back(message(peer, transport.rank(), round));
      Bytes& place = in.emplace_back(theirs.size(), std::byte{0xEE});
      sends.push_back({peer, mine.data(), static_cast<index_t>(mine.size())});
      receives.push_back({peer, place.data(), static_cast<index_t>(place.size())});
    }
  }
  bool arrived() const { return in == expected; }
};

Send send_of(int peer, const int& value) {
  return {peer, reinterpret_cast<const std::byte*>(&value), sizeof value};
}
Receive receive_of(int peer, int& value) {
  return {peer, reinterpret_cast<std::byte*>(&value), sizeof value};
}

/// Waits until `flag` is set, 10 seconds at most.
bool wait_for(const std::atomic<bool>& flag) {
  const auto until = std::chrono::steady_clock::now() + 10s;
  while (!flag && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  return flag;
}

/// Asks a ticket until it is ready, 10 seconds at most.
template <class Ticket>
bool poll(Ticket& ticket) {
  const auto until = std::chrono::steady_clock::now() + 10s;
  while (std::chrono::steady_clock::now() < until) {
    if (ticket.ready()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

/// Asks all tickets in turn until they are ready, 10 seconds at most.
template <class Tickets>
bool poll_all(Tickets& tickets) {
  const auto until = std::chrono::steady_clock::now() + 10s;
  while (std::chrono::steady_clock::now() < until) {
    std::size_t ready = 0;
    for (auto& ticket : tickets) ready += ticket.ready() ? 1 : 0;
    if (ready == tickets.size()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

}  // namespace

static_assert(terse::Transport<Threads>);
static_assert(terse::Transport<terse::Metered<Threads>>);
static_assert(terse::Ticket<Threads::Ticket>);
static_assert(!std::copyable<Threads>);

TEST_CASE("every message arrives whole, whatever its size and the number of ranks") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    std::atomic<int> right = 0;
    check_all_returned(outcomes(ranks, patience, [&](Threads& transport) {
      for (int round = 0; round < 12; ++round) {
        Everybody batch(transport, round);
        auto ticket = transport.exchange(batch.sends, batch.receives, Phase::reduce);
        ticket.wait();
        ticket.wait();  // a second one has nothing to do
        right += ticket.ready() && batch.arrived() ? 1 : 0;
      }
    }));
    CHECK(right == 12 * ranks);
  }
}

TEST_CASE("each rank sees its own place and the size") {
  std::atomic<int> places = 0;
  check_all_returned(outcomes(5, patience, [&](Threads& transport) {
    if (transport.size() == 5) places += 1 << (4 * transport.rank());
  }));
  CHECK(places == 0x11111);
}

namespace {

/// Ten times two batches in flight over the channels `one` and `two` of each rank, which may be the same.
/// wait(rank, ticket, ticket) settles them. Returns how many batches arrived whole, 20 per rank.
template <class Channels, class Wait>
int two_in_flight(Milliseconds deadline, Channels channels, Wait wait) {
  std::atomic<int> right = 0;
  check_all_returned(outcomes(4, deadline, [&](Threads& transport) {
    Threads other = transport.split(0, transport.rank());
    Threads& beside = channels(transport, other);
    for (int round = 0; round < 20; round += 2) {
      Everybody first(transport, round), second(transport, round + 1);
      auto one = transport.exchange(first.sends, first.receives, Phase::reduce);
      auto two = beside.exchange(second.sends, second.receives, Phase::spread);
      wait(transport.rank(), one, two);
      right += (first.arrived() ? 1 : 0) + (second.arrived() ? 1 : 0);
    }
  }));
  return right;
}

const auto same_channel = [](Threads& transport, Threads&) -> Threads& { return transport; };
const auto other_channel = [](Threads&, Threads& other) -> Threads& { return other; };

}  // namespace

TEST_CASE("two batches in flight arrive in their own places") {
  const auto in_order = [](int, auto& one, auto& two) {
    one.wait();
    two.wait();
  };
  const auto in_reverse = [](int, auto& one, auto& two) {
    two.wait();
    one.wait();
  };
  CHECK(two_in_flight(patience, same_channel, in_order) == 80);
  CHECK(two_in_flight(patience, same_channel, in_reverse) == 80);
  CHECK(two_in_flight(patience, other_channel, in_order) == 80);
  CHECK(two_in_flight(patience, other_channel, in_reverse) == 80);
  // Each rank asks about both in turn.
  CHECK(two_in_flight(patience, same_channel, [](int, auto& one, auto& two) {
          const auto until = std::chrono::steady_clock::now() + 10s;
          bool first = false, second = false;
          while (!(first && second) && std::chrono::steady_clock::now() < until) {
            first = one.ready();
            second = two.ready();
          }
        }) == 80);
}

TEST_CASE("a rank that has taken its message may leave while the sender copies another") {
  // Long enough to be copied while rank 0 takes its message and returns.
  constexpr std::size_t large = std::size_t{1} << 27;
  std::atomic<bool> asked = false;
  const auto list = outcomes(3, patience, [&](Threads& transport) {
    std::byte small{};
    std::vector<std::byte> bytes(transport.rank() == 0 ? 0 : large);
    const auto count = static_cast<terse::index_t>(bytes.size());
    const Send to_0{0, &small, 1}, to_1{1, bytes.data(), count};
    const Receive from_1{1, &small, 1}, from_2{2, bytes.data(), count};
    if (transport.rank() == 0) {
      auto ticket = transport.exchange({}, {&from_1, 1}, Phase::reduce);
      CHECK(wait_for(asked));
      std::this_thread::sleep_for(5ms);
      ticket.wait();
    } else if (transport.rank() == 1) {
      auto one = transport.exchange({&to_0, 1}, {}, Phase::reduce);
      auto two = transport.exchange({}, {&from_2, 1}, Phase::reduce);
      std::this_thread::sleep_for(20ms);  // rank 2 has posted
      asked = true;
      CHECK(poll(one));
      CHECK(poll(two));
    } else {
      transport.exchange({&to_1, 1}, {}, Phase::reduce).wait();
    }
  });
  check_all_returned(list);
}

TEST_CASE("ranks may await two batches of one channel in different orders") {
  CHECK(two_in_flight(500ms, same_channel, [](int rank, auto& one, auto& two) {
          (rank % 2 == 0 ? one : two).wait();
          (rank % 2 == 0 ? two : one).wait();
        }) == 80);
}

TEST_CASE("ranks may await batches of two channels in different orders") {
  CHECK(two_in_flight(500ms, other_channel, [](int rank, auto& one, auto& two) {
          (rank % 2 == 0 ? one : two).wait();
          (rank % 2 == 0 ? two : one).wait();
        }) == 80);
}

TEST_CASE("messages between two ranks keep the order of their batches") {
  std::vector<int> received;
  check_all_returned(outcomes(2, patience, [&](Threads& transport) {
    const std::vector<int> numbers{3, 1, 4, 1, 5, 9, 2, 6};
    std::vector<int> in(numbers.size(), -1);
    std::deque<Send> sends;
    std::deque<Receive> receives;
    std::vector<Threads::Ticket> tickets;
    for (std::size_t k = 0; k < numbers.size(); ++k) {
      if (transport.rank() == 0) {
        sends.push_back(send_of(1, numbers[k]));
        tickets.push_back(transport.exchange({&sends.back(), 1}, {}, Phase::reduce));
      } else {
        receives.push_back(receive_of(0, in[k]));
        tickets.push_back(transport.exchange({}, {&receives.back(), 1}, Phase::reduce));
      }
    }
    while (!tickets.empty()) {
      tickets.back().wait();
      tickets.pop_back();
    }
    if (transport.rank() == 1) received = in;
  }));
  CHECK(received == std::vector<int>{3, 1, 4, 1, 5, 9, 2, 6});
}

TEST_CASE("ready says when a batch has arrived, without waiting") {
  std::atomic<bool> asked = false;
  std::atomic<int> early = -1, value = 0;
  check_all_returned(outcomes(2, patience, [&](Threads& transport) {
    if (transport.rank() == 0) {
      int in = 0;
      const Receive receive = receive_of(1, in);
      auto ticket = transport.exchange({}, {&receive, 1}, Phase::reduce);
      early = ticket.ready() ? 1 : 0;
      asked = true;
      if (poll(ticket)) value = in;
      if (!ticket.ready()) value = -1;
    } else {
      const int out = 42;
      const Send send = send_of(0, out);
      wait_for(asked);
      auto ticket = transport.exchange({&send, 1}, {}, Phase::reduce);
      if (!poll(ticket)) throw std::runtime_error("never taken");
    }
  }));
  CHECK(early == 0);
  CHECK(value == 42);
}

TEST_CASE("a send is done when its bytes have been taken") {
  std::atomic<int> early = -1;
  std::atomic<bool> asked = false;
  check_all_returned(outcomes(2, patience, [&](Threads& transport) {
    int value = 5;
    if (transport.rank() == 0) {
      const Send send = send_of(1, value);
      auto ticket = transport.exchange({&send, 1}, {}, Phase::reduce);
      early = ticket.ready() ? 1 : 0;
      asked = true;
      ticket.wait();
    } else {
      wait_for(asked);
      const Receive receive = receive_of(0, value);
      transport.exchange({}, {&receive, 1}, Phase::reduce).wait();
    }
  }));
  CHECK(early == 0);
}

TEST_CASE("a ticket stays good when it moves") {
  std::atomic<int> right = 0;
  check_all_returned(outcomes(2, patience, [&](Threads& transport) {
    Everybody first(transport, 1), second(transport, 2);
    auto one = transport.exchange(first.sends, first.receives, Phase::reduce);
    auto two = transport.exchange(second.sends, second.receives, Phase::reduce);
    Threads::Ticket moved(std::move(one));
    std::swap(moved, two);
    moved.wait();
    two.wait();
    right += first.arrived() && second.arrived() ? 1 : 0;
  }));
  CHECK(right == 2);
}

TEST_CASE("a ticket may be handed to another thread than has posted it") {
  for (const bool polls : {false, true}) {
    CAPTURE(polls);
    std::atomic<int> right = 0;
    check_all_returned(outcomes(2, 1s, [&](Threads& transport) {
      Everybody batch(transport, 3);
      auto ticket = transport.exchange(batch.sends, batch.receives, Phase::reduce);
      std::async(std::launch::async, [&] { polls ? (void)poll(ticket) : ticket.wait(); }).get();
      right += ticket.ready() && batch.arrived() ? 1 : 0;
    }));
    CHECK(right == 2);
  }
}

TEST_CASE("split makes channels of equal color, ranked by key and then by rank") {
  // Per world rank: rank and size in the channel, and who sits in which place there.
  std::vector<std::vector<int>> seen(7);
  check_all_returned(outcomes(7, patience, [&](Threads& transport) {
    const int world = transport.rank();
    Threads channel = transport.split(world % 2, world == 6 ? -100 : (world < 3 ? 0 : -world));
    terse::Assembly<int, Threads> assembly(channel);
    std::vector<int>& mine = seen[static_cast<std::size_t>(world)];
    mine = {channel.rank(), channel.size()};
    for (const int member : assembly(channel, world, Phase::setup)) mine.push_back(member);
  }));
  // Even ranks 0, 2 (key 0), 4 (-4), 6 (-100); odd ranks 1 (0), 3 (-3), 5 (-5).
  CHECK(seen[0] == std::vector<int>{2, 4, 6, 4, 0, 2});
  CHECK(seen[2] == std::vector<int>{3, 4, 6, 4, 0, 2});
  CHECK(seen[4] == std::vector<int>{1, 4, 6, 4, 0, 2});
  CHECK(seen[6] == std::vector<int>{0, 4, 6, 4, 0, 2});
  CHECK(seen[1] == std::vector<int>{2, 3, 5, 3, 1});
  CHECK(seen[3] == std::vector<int>{1, 3, 5, 3, 1});
  CHECK(seen[5] == std::vector<int>{0, 3, 5, 3, 1});
}

TEST_CASE("channels don't hear each other") {
  std::atomic<int> right = 0;
  check_all_returned(outcomes(4, patience, [&](Threads& transport) {
    Threads all = transport.split(0, transport.rank());
    Threads again = transport.split(0, transport.rank());
    Threads pair = all.split(transport.rank() / 2, transport.rank());
    Threads other = again.split(transport.rank() / 2, transport.rank());
    Everybody a(transport, 1), b(all, 2), c(again, 3), d(pair, 4), e(other, 5);
    // Half of the ranks post in the opposite order.
    const std::vector<std::pair<Threads*, Everybody*>> order{
        {&transport, &a}, {&all, &b}, {&again, &c}, {&pair, &d}, {&other, &e}};
    std::vector<Threads::Ticket> tickets;
    for (std::size_t k = 0; k < order.size(); ++k) {
      const auto& [channel, batch] = order[transport.rank() % 2 == 0 ? k : order.size() - 1 - k];
      tickets.push_back(channel->exchange(batch->sends, batch->receives, Phase::reduce));
    }
    if (!poll_all(tickets)) throw std::runtime_error("never ready");
    for (const Everybody* batch : {&a, &b, &c, &d, &e}) right += batch->arrived() ? 1 : 0;
  }));
  CHECK(right == 20);
}

TEST_CASE("channels stay apart for colors of any size") {
  std::atomic<int> right = 0;
  check_all_returned(outcomes(2, 500ms, [&](Threads& transport) {
    // Channels of two splits, each split anew: four channels, whatever the colors.
    Threads first = transport.split(1000003, transport.rank());
    Threads second = transport.split(0, transport.rank());
    Threads one = first.split(0, transport.rank());
    Threads two = second.split(0, transport.rank());
    Everybody a(one, 1), b(two, 2);
    std::vector<Threads::Ticket> tickets;
    const auto post = [&](Threads& channel, const Everybody& batch) {
      tickets.push_back(channel.exchange(batch.sends, batch.receives, Phase::reduce));
    };
    if (transport.rank() == 0) post(one, a);
    post(two, b);
    if (transport.rank() == 1) post(one, a);
    if (!poll_all(tickets)) throw std::runtime_error("never ready");
    right += a.arrived() && b.arrived() ? 1 : 0;
  }));
  CHECK(right == 2);
}

TEST_CASE("channels that are made at one time by several parts of a group don't meet those that are gone") {
  std::atomic<int> right = 0;
  check_all_returned(outcomes(4, patience, [&](Threads& transport) {
    Threads pair = transport.split(transport.rank() / 2, transport.rank());
    for (int round = 0; round < 100; ++round) {
      Threads one = pair.split(round % 3, pair.rank()), two = one.split(0, one.rank());
      Everybody batch(two, round);
      auto ticket = two.exchange(batch.sends, batch.receives, Phase::reduce);
      ticket.wait();
      right += batch.arrived() ? 1 : 0;
    }
  }));
  CHECK(right == 400);
}

TEST_CASE("an assembly shows everyone's value in rank order, and a barrier holds everyone back") {
  std::atomic<int> arrived = 0, early = 0, wrong = 0;
  check_all_returned(outcomes(4, patience, [&](Threads& transport) {
    terse::Assembly<int, Threads> assembly(transport);
    terse::Assembly<int, Threads> moved(std::move(assembly));
    for (int round = 0; round < 3; ++round) {
      int rank = 0;
      for (const int value : moved(transport, 10 * round + transport.rank(), Phase::agree))
        wrong += value != 10 * round + rank++;
      wrong += rank != 4;
    }
    std::this_thread::sleep_for(Milliseconds(5 * transport.rank()));
    ++arrived;
    terse::barrier(transport);
    early += arrived != 4;
  }));
  CHECK(wrong == 0);
  CHECK(early == 0);
}

TEST_CASE("a message of the wrong length is an error on both sides that names both ranks") {
  const auto list = outcomes(3, patience, [](Threads& transport) {
    Bytes buffer(200);
    const Send send{2, buffer.data(), 100};
    const Receive receive{1, buffer.data(), 96};
    if (transport.rank() == 1) transport.exchange({&send, 1}, {}, Phase::spread).wait();
    if (transport.rank() == 2) transport.exchange({}, {&receive, 1}, Phase::spread).wait();
  });
  CHECK(list[0].kind == Outcome::Kind::returned);
  for (const std::size_t rank : {std::size_t{1}, std::size_t{2}}) {
    CHECK(list[rank].kind == Outcome::Kind::peer);
    CHECK(list[rank].culprit == 1);
    CHECK(list[rank].seconds < at_once);
    CHECK(list[rank].text.find("rank 1 sent 100 bytes in phase 'spread' where rank 2 expects 96") !=
          std::string::npos);
  }
}

TEST_CASE("a message of up to a size may be shorter, and not longer") {
  for (const index_t size : {0, 1, 100}) {
    ThreadGroup(2, patience).run([&](Threads& transport) {
      const Bytes out(static_cast<std::size_t>(size), std::byte{7});
      Bytes in(100, std::byte{0xEE});
      const std::vector<Send> sends{{1 - transport.rank(), out.data(), size, 100}};
      const std::vector<Receive> receives{{1 - transport.rank(), in.data(), 100, true}};
      transport.exchange(sends, receives, Phase::reduce).wait();
      for (std::size_t b = 0; b < in.size(); ++b)
        CHECK(in[b] == (b < out.size() ? std::byte{7} : std::byte{0xEE}));
    });
  }
  CHECK_THROWS_WITH_AS(ThreadGroup(2, patience).run([](Threads& transport) {
    const Bytes out(101);
    Bytes in(100);
    const std::vector<Send> sends{{1 - transport.rank(), out.data(), 101, 101}};
    const std::vector<Receive> receives{{1 - transport.rank(), in.data(), 100, true}};
    transport.exchange(sends, receives, Phase::reduce).wait();
  }),
                       doctest::Contains("sent 101 bytes"), terse::peer_error);
}

TEST_CASE("in a channel, too, an error names the culprit by its rank in the group") {
  enum class Way { throws, leaves, sleeps_before, sleeps_within };
  for (const Way way : {Way::throws, Way::leaves, Way::sleeps_before, Way::sleeps_within}) {
    CAPTURE(static_cast<int>(way));
    const bool late = way == Way::sleeps_before || way == Way::sleeps_within;
    const auto list = outcomes(4, late ? 300ms : patience, [&](Threads& transport, const Left& left) {
      Threads channel = transport.split(0, -transport.rank());
      const bool culprit = transport.rank() == 3;
      if (culprit && way == Way::throws) throw std::logic_error("three");
      if (culprit && way == Way::leaves) return;
      if (culprit && way == Way::sleeps_before) left.sleep_until(3);
      Everybody batch(channel, 1);
      auto ticket = channel.exchange(batch.sends, batch.receives, Phase::reduce);
      if (culprit && way == Way::sleeps_within) left.sleep_until(3);
      ticket.wait();
    });
    check_survivors(list, 3, late ? 1.3 : at_once);
  }
}

TEST_CASE("a rank that throws sends all others home at once, by its name") {
  for (const int ranks : {2, 3, 7})
    for (const int culprit : {0, ranks - 1}) {
      CAPTURE(ranks);
      CAPTURE(culprit);
      const auto list = outcomes(ranks, patience, [&](Threads& transport) {
        Everybody batch(transport, 1);
        transport.exchange(batch.sends, batch.receives, Phase::reduce).wait();
        if (transport.rank() == culprit) throw std::logic_error("out of paper");
        terse::barrier(transport);
      });
      check_survivors(list, culprit, at_once);
      const std::string reason = "rank " + std::to_string(culprit) + " threw: out of paper";
      for (const Outcome& outcome : list)
        if (outcome.kind == Outcome::Kind::peer) CHECK(outcome.text.find(reason) != std::string::npos);
    }
}

TEST_CASE("run throws what the culprit threw") {
  ThreadGroup group(3, patience);
  const auto fail = [&](int culprit, auto exception) {
    group.run([&](Threads& transport) {
      if (transport.rank() == culprit) throw exception;
      terse::barrier(transport);
    });
  };
  CHECK_THROWS_AS(fail(0, std::out_of_range("mine")), const std::out_of_range&);
  CHECK_THROWS_WITH_AS(fail(2, std::domain_error("mine")), "mine", const std::domain_error&);
  CHECK_THROWS_AS(fail(1, 42), int);
  // The group is as good as new.
  std::atomic<int> ranks = 0;
  group.run([&](Threads& transport) {
    terse::barrier(transport);
    ++ranks;
  });
  CHECK(ranks == 3);
}

TEST_CASE("a rank that finishes early sends those home who wait for it") {
  const auto list = outcomes(4, patience, [](Threads& transport) {
    if (transport.rank() == 2) return;
    terse::barrier(transport);
  });
  check_survivors(list, 2, at_once);
  CHECK(list[2].kind == Outcome::Kind::returned);
  CHECK(list[0].text.find("rank 2 has finished its program") != std::string::npos);
  CHECK_THROWS_AS(ThreadGroup(2, patience).run([](Threads& transport) {
    if (transport.rank() == 0) terse::barrier(transport);
  }),
                  const terse::peer_error&);
}

TEST_CASE("a rank that finishes early is noticed by who only receives and who only sends") {
  for (const bool receives : {false, true}) {
    CAPTURE(receives);
    const auto list = outcomes(2, patience, [&](Threads& transport) {
      if (transport.rank() == 1) return;
      int value = 0;
      const Send send = send_of(1, value);
      const Receive receive = receive_of(1, value);
      if (receives)
        transport.exchange({}, {&receive, 1}, Phase::reduce).wait();
      else
        transport.exchange({&send, 1}, {}, Phase::reduce).wait();
    });
    check_survivors(list, 1, at_once);
  }
}

TEST_CASE("a rank that sleeps past the deadline is named by all others") {
  for (const int culprit : {0, 2}) {
    CAPTURE(culprit);
    const auto list = outcomes(4, 300ms, [&](Threads& transport, const Left& left) {
      terse::barrier(transport);
      if (transport.rank() == culprit) left.sleep_until(3);
      terse::barrier(transport);
    });
    check_survivors(list, culprit, 1.3);
    CHECK(list[1].seconds > 0.29);
    CHECK(list[1].text.find("rank " + std::to_string(culprit) +
                            " is late: a wait that needs it has lasted 300 ms") != std::string::npos);
    // And when it wakes up, it learns that the others are gone.
    CHECK(list[static_cast<std::size_t>(culprit)].culprit == culprit);
  }
}

namespace {

/// Sends a number to `peer` and waits for its.
void meet(Threads& transport, int peer) {
  int value = 0, theirs = 0;
  const Send send = send_of(peer, value);
  const Receive receive = receive_of(peer, theirs);
  transport.exchange({&send, 1}, {&receive, 1}, Phase::reduce).wait();
}

}  // namespace

TEST_CASE("of those that wait in a row, the one behind all is named") {
  // 0 waits for 1, 1 for 2, 2 for 3, and 3 sleeps.
  const auto list = outcomes(4, 300ms, [](Threads& transport, const Left& left) {
    int value = 0;
    const int rank = transport.rank();
    terse::barrier(transport);
    // 1 has posted the fewest batches, and 0, which begins first, is the first to lose patience.
    for (int k = 0; k < 2 && rank >= 2; ++k) meet(transport, 5 - rank);
    if (rank == 3)
      left.sleep_until(3);
    else if (rank > 0)
      std::this_thread::sleep_for(50ms);
    const Receive receive = receive_of(rank + 1, value);
    const Send send = send_of(rank - 1, value);
    if (rank < 3) transport.exchange({}, {&receive, 1}, Phase::reduce).wait();
    if (rank > 0) transport.exchange({&send, 1}, {}, Phase::reduce).wait();
  });
  check_survivors(list, 3, 1.3);
}

TEST_CASE("a rank that nobody waits for is not the late one, however little it has posted") {
  // Before 0 waits for 1, which is late, 1 has met somebody twice: 0, or 2. So 2 has posted the fewest batches, or 0.
  for (const int first : {0, 2}) {
    CAPTURE(first);
    const auto list = outcomes(3, 300ms, [&](Threads& transport, const Left& left) {
      const int rank = transport.rank();
      for (int k = 0; k < 2 && (rank == first || rank == 1); ++k) meet(transport, rank == 1 ? first : 1);
      if (rank > 0) left.sleep_until(1);
      if (rank < 2) meet(transport, 1 - rank);
      terse::barrier(transport);
    });
    check_survivors(list, 1, 1.3);
  }
}

namespace {

/// All ranks of `circle`, which wait for each other, are named with what they wait in, and no other; no rank is the culprit.
void check_circle(const std::vector<Outcome>& list, const std::string& circle) {
  for (std::size_t rank = 0; rank < list.size(); ++rank) {
    CAPTURE(rank);
    CAPTURE(list[rank].text);
    CHECK(list[rank].kind == Outcome::Kind::peer);
    CHECK(list[rank].culprit == -1);
    CHECK(list[rank].seconds < 1.3);
    CHECK(list[rank].text.find(circle) != std::string::npos);
    CHECK(list[rank].text.find("late") == std::string::npos);
  }
}
const std::string same_calls =
    "; all ranks make the same calls in the same order (optimizers, steps, checkpoints, means)";

}  // namespace

TEST_CASE("ranks in different calls wait for each other, and are told in which") {
  for (const bool polls : {false, true}) {
    CAPTURE(polls);
    const auto list = outcomes(2, 300ms, [&](Threads& transport) {
      Threads channel = transport.split(0, transport.rank());
      if (transport.rank() == 0) {
        terse::mean(transport, 1.0);
        return;
      }
      Everybody batch(channel, 3);
      auto ticket = channel.exchange(batch.sends, batch.receives, Phase::reduce);
      polls ? (void)poll(ticket) : ticket.wait();
    });
    check_circle(list,
                 "in vain: rank 0 for rank 1 in phase 'setup' of a mean of one number on channel 0, rank 1 "
                 "for rank 0 in phase "
                 "'reduce' on channel 1" +
                     same_calls);
    CHECK(list[0].text.find("gave up in phase 'setup' of a mean of one number: ranks 0 and 1 wait for each "
                            "other, so that rank ") != std::string::npos);
    CHECK(list[1].text.find("gave up in phase 'reduce': ranks 0 and 1 wait") != std::string::npos);
  }
}

namespace {

using Program = void (*)(Threads&);

/// Runs one call on rank 0 and another on the others: each rank is told which call which rank is in, and none is the culprit.
void check_calls(Program first, const std::string& name, Program second, const std::string& other) {
  CAPTURE(name);
  CAPTURE(other);
  std::vector<std::string> said(3);
  CHECK_THROWS_AS(ThreadGroup(3, patience).run([&](Threads& transport) {
    std::string& text = said[static_cast<std::size_t>(transport.rank())];
    try {
      (transport.rank() == 0 ? first : second)(transport);
    } catch (const terse::mismatch_error& failure) {
      text = failure.what();
      throw;
    } catch (const terse::peer_error& failure) {
      text = failure.what();
      CHECK(failure.culprit() >= 0);  // the rank that was first to tell
      throw;
    }
  }),
                  terse::mismatch_error);
  const auto tells = [](const std::string& text, const std::string& who, const std::string& theirs,
                        const std::string& own) {
    return text.find(who + " is in " + theirs + ", and this rank in " + own + " (phase 'setup')") !=
           std::string::npos;
  };
  // A step's number is known of this rank's own.
  const std::string kind = other.substr(0, other.find(" 1"));
  int told = 0;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CAPTURE(said[rank]);
    const bool here =
        rank == 0 ? tells(said[0], "rank 1", kind, name) : tells(said[rank], "rank 0", name, other);
    told += here ? 1 : 0;
    // The others have heard of it.
    CHECK((here || said[rank].find("gave up") != std::string::npos));
    CHECK(said[rank].find(same_calls.substr(2)) != std::string::npos);
  }
  CHECK(told > 0);
}

constexpr Program compares = [](Threads& transport) { terse::equal(transport, std::vector<int>(3)); };
constexpr Program constructs = [](Threads& transport) {
  terse::Optimizer optimizer{terse::Adam<>{}, transport, terse::Layout::flat(64)};
  FAIL("it was made");
};
constexpr Program splits = [](Threads& transport) { transport.split(0, 0); };

}  // namespace

TEST_CASE("calls whose messages have one length don't take each other's") {
  check_calls(compares, "a comparison", constructs, "a split");
  check_calls(splits, "a split", compares, "a comparison");
  check_calls([](Threads& transport) { terse::broadcast(transport, std::uint64_t{7}); },
              "a broadcast of one value", compares, "a comparison");
  check_calls([](Threads& transport) { terse::mean(transport, 1.0); }, "a mean of one number",
              [](Threads& transport) { terse::mean(transport, std::vector<float>(3)); }, "a mean");
  check_calls([](Threads& transport) { terse::all_gather(transport, 1.0); }, "an all_gather of one value",
              [](Threads& transport) {
                terse::Assembly<std::uint64_t, Threads> own(transport);
                own(transport, 5, Phase::setup);
              },
              "an agreement without a name");
  // By way of adapters, too.
  check_calls(
      [](Threads& transport) {
        terse::Metered metered(transport.split(0, transport.rank()));
        terse::equal(metered, std::vector<int>(3));
      },
      "a comparison",
      [](Threads& transport) {
        terse::AnyTransport any(transport.split(0, transport.rank()));
        terse::broadcast(any, std::uint64_t{7});
      },
      "a broadcast of one value");
  check_calls(
      [](Threads& transport) {
        std::vector<float> x(64), g(64);
        terse::Optimizer optimizer{terse::Adam<>{}, transport, terse::Layout::flat(64)};
        terse::equal(optimizer.channel(), x);
      },
      "a comparison",
      [](Threads& transport) {
        std::vector<float> x(64), g(64);
        terse::Optimizer optimizer{terse::Adam<>{}, transport, terse::Layout::flat(64)};
        optimizer.step(x, g);
      },
      "step 1");
}

TEST_CASE("a rank that begins a step is in the same call as one that steps") {
  ThreadGroup(2, patience).run([](Threads& transport) {
    std::vector<float> x(64), g(64, 1);
    terse::Optimizer optimizer{terse::Adam<>{}, transport, terse::Layout::flat(64), {.compare_every = 1}};
    for (int step = 0; step < 3; ++step) {
      if (transport.rank() == step % 2) optimizer.begin(x, g);
      CHECK(optimizer.step(x, g).applied);
    }
  });
}

TEST_CASE("a message of another length is no rank's fault where ranks are in different calls") {
  const auto list = outcomes(2, patience, [](Threads& transport) {
    if (transport.rank() == 0)
      terse::mean(transport, 1.0);
    else
      terse::all_gather(transport, 'x');
  });
  for (const Outcome& one : list) {
    CAPTURE(one.text);
    CHECK(one.kind == Outcome::Kind::peer);
    CHECK(one.culprit == -1);
    CHECK(one.seconds < at_once);
    const bool either =
        one.text.find(
            "rank 1 sent 5 bytes in phase 'setup' of an all_gather of one value where rank 0 expects "
            "12 in phase 'setup' of a mean of one number" +
            same_calls) != std::string::npos ||
        one.text.find(
            "rank 0 sent 12 bytes in phase 'setup' of a mean of one number where rank 1 expects 5 in "
            "phase 'setup' of an all_gather of one value" +
            same_calls) != std::string::npos;
    CHECK(either);
  }
}

TEST_CASE(
    "optimizers that step in another order wait for each other, and those that wait for them aren't named") {
  const auto list = outcomes(4, 300ms, [](Threads& transport) {
    const terse::Layout layout = terse::Layout::flat(64);
    std::vector<float> x(64), g(64, 1.0F);
    terse::Optimizer one{terse::Adam<>{}, transport, layout}, two{terse::Adam<>{}, transport, layout};
    for (auto* optimizer : {&one, &two}) optimizer->step(x, g);
    (transport.rank() == 2 ? two : one).step(x, g);
  });
  // 1 and 3 wait for 2, and are none that it waits for first.
  check_circle(list, "ranks 0 and 2 wait for each other, so that rank ");
  CHECK(list[2].text.find("gave up in phase 'reduce' of step 2: ") != std::string::npos);
  for (const Outcome& outcome : list) {
    const auto begin = outcome.text.find("in vain");
    CHECK(outcome.text.find("rank 1", begin) == std::string::npos);
    CHECK(outcome.text.find("rank 3", begin) == std::string::npos);
    CHECK(outcome.text.find("rank 0 for rank 2 in phase 'reduce' of step 2 on channel ", begin) !=
          std::string::npos);
    CHECK(outcome.text.find(", rank 2 for rank 0 in phase 'reduce' of step 2 on channel ", begin) !=
          std::string::npos);
  }
}

TEST_CASE("a circle of three is named in its order") {
  const auto list = outcomes(3, 300ms, [](Threads& transport) {
    int value = 0;
    const Receive receive = receive_of((transport.rank() + 1) % 3, value);
    transport.exchange({}, {&receive, 1}, Phase::spread).wait();
  });
  check_circle(
      list,
      "rank 0 for rank 1 in phase 'spread' on channel 0, rank 1 for rank 2 in phase 'spread' on channel "
      "0, rank 2 for rank 0 in phase 'spread' on channel 0");
  CHECK(list[0].text.find("ranks 0, 1 and 2 wait for each other") != std::string::npos);
}

TEST_CASE("a rank whose message has come, and that doesn't ask for it, is late") {
  std::atomic<bool> asked = false;
  const auto list = outcomes(2, 600ms, [&](Threads& transport, const Left& left) {
    int value = 0, theirs = 0;
    const Send send = send_of(1 - transport.rank(), value);
    const Receive receive = receive_of(1 - transport.rank(), theirs);
    if (transport.rank() == 1) {
      auto ticket = transport.exchange({}, {&receive, 1}, Phase::reduce);
      CHECK(!ticket.ready());
      asked = true;
      left.sleep_until(1);
      ticket.wait();
      transport.exchange({&send, 1}, {}, Phase::spread).wait();
    } else if (wait_for(asked)) {
      transport.exchange({&send, 1}, {&receive, 1}, Phase::reduce).wait(150ms);
    }
  });
  check_survivors(list, 1, 1.3);
  CHECK(list[0].text.find("rank 1 is late: a wait that needs it has lasted 150 ms") != std::string::npos);
}

TEST_CASE("a message that its sender has abandoned is late, and no wait for it is without end") {
  std::atomic<bool> posted{false};
  const auto list = outcomes(2, 200ms, [&](Threads& transport, const Left& left) {
    int value = 0;
    if (transport.rank() == 1) {
      const Send send = send_of(0, value);
      try {
        auto ticket = transport.exchange({&send, 1}, {}, Phase::reduce);
        throw std::runtime_error("the program's own");
      } catch (const std::runtime_error&) {
      }
      posted = true;
      left.sleep_until(1);
      return;
    }
    const Receive receive = receive_of(1, value);
    if (wait_for(posted)) transport.exchange({}, {&receive, 1}, Phase::reduce).wait();
  });
  check_survivors(list, 1, at_once);
  CHECK(list[0].text.find("rank 1 is late: a wait that needs it has lasted 200 ms") != std::string::npos);
}

TEST_CASE("a rank that has asked, and has said since that it is at work, is waited for") {
  check_all_returned(outcomes(2, 500ms, [](Threads& transport) {
    Threads other = transport.split(0, transport.rank());
    const int peer = 1 - transport.rank();
    int out[2]{}, in[2]{};
    const Send first = send_of(peer, out[0]), second = send_of(peer, out[1]);
    const Receive third = receive_of(peer, in[0]), fourth = receive_of(peer, in[1]);
    if (transport.rank() == 1) {
      auto asked = other.exchange({&first, 1}, {&third, 1}, Phase::reduce);
      CHECK_FALSE(asked.ready());
      for (int k = 0; k < 40; ++k) {
        std::this_thread::sleep_for(20ms);
        transport.here();
      }
      transport.exchange({&second, 1}, {&fourth, 1}, Phase::agree).wait();
      asked.wait();
    } else {
      transport.exchange({&second, 1}, {&fourth, 1}, Phase::agree).wait();
      other.exchange({&first, 1}, {&third, 1}, Phase::reduce).wait();
    }
  }));
}

TEST_CASE("a rank that says that it is at work is waited for, and so are those that wait for it") {
  const auto work = [](auto& transport, int rounds) {
    for (int k = 0; k < rounds; ++k) {
      std::this_thread::sleep_for(20ms);
      transport.here();
    }
  };
  for (const bool polls : {false, true}) {
    CAPTURE(polls);
    // 0 waits for 1, and 1 for 2, which works for twice the deadline and says so through all that goes around it.
    check_all_returned(outcomes(3, 500ms, [&](Threads& transport) {
      terse::AnyTransport any(terse::Metered(terse::Delayed(transport.split(0, transport.rank()), {})));
      int value = 0;
      const Receive receive = receive_of(transport.rank() + 1, value);
      const Send send = send_of(transport.rank() - 1, value);
      if (transport.rank() == 2) work(any, 50);
      if (transport.rank() < 2) {
        auto ticket = transport.exchange({}, {&receive, 1}, Phase::reduce);
        polls ? (void)poll(ticket) : ticket.wait();
      }
      if (transport.rank() > 0) transport.exchange({&send, 1}, {}, Phase::reduce).wait();
    }));
  }
  // Those that have waited for it get the deadline for their own work, whether they receive or send.
  for (const bool sends : {false, true}) {
    CAPTURE(sends);
    check_all_returned(outcomes(3, 600ms, [&](Threads& group) {
      Threads transport = group.split(0, -group.rank());
      int value = 0;
      const int rank = transport.rank();
      if (rank == 2) work(transport, 45);
      for (const int peer : {rank + 1, rank - 1}) {
        if (peer < 0 || peer > 2) continue;
        const Receive receive = receive_of(peer, value);
        const Send send = send_of(peer, value);
        if ((peer > rank) == sends)
          transport.exchange({&send, 1}, {}, Phase::reduce).wait();
        else
          transport.exchange({}, {&receive, 1}, Phase::reduce).wait();
        if (rank == 1 && peer == 2) std::this_thread::sleep_for(400ms);
      }
    }));
  }
  // One that says so no more is late, and one that works does not hide another that is.
  for (const bool alone : {true, false}) {
    CAPTURE(alone);
    const auto list = outcomes(3, 300ms, [&](Threads& transport, const Left& left) {
      if (transport.rank() == 2) work(transport, alone ? 10 : 1);
      if (transport.rank() == 2) left.sleep_until(2);
      if (transport.rank() == 1 && !alone) work(transport, 250);
      terse::barrier(transport);
    });
    check_survivors(list, 2, at_once);
    CHECK(list[0].seconds > (alone ? 0.45 : 0.3));
    // Rank 1 is told at its next sign, and does not work on for those that are gone.
    if (!alone)
      CHECK(list[1].text ==
            "terse: rank 1: gave up at its work: rank 2 is late: a wait that needs it has lasted 300 ms");
  }
}

TEST_CASE("ready gives a peer the deadline from the first question on, whenever the batch was posted") {
  // All compute for longer than the deadline before they ask.
  check_all_returned(outcomes(2, 300ms, [](Threads& transport) {
    Everybody batch(transport, 3);
    auto ticket = transport.exchange(batch.sends, batch.receives, Phase::reduce);
    std::this_thread::sleep_for(350ms);  // longer than the deadline
    if (!poll(ticket)) throw std::runtime_error("never ready");
  }));
  // One computes while the other asks and asks.
  const auto list = outcomes(2, 100ms, [](Threads& transport, const Left& left) {
    Everybody batch(transport, 3);
    if (transport.rank() == 1) left.sleep_until(1);
    auto ticket = transport.exchange(batch.sends, batch.receives, Phase::reduce);
    if (!poll(ticket)) throw std::runtime_error("never ready");
  });
  check_survivors(list, 1, 1.1);
  CHECK(list[0].seconds > 0.1);
}

TEST_CASE("the longest deadlines there are don't end at once") {
  const auto check = [](auto deadline) {
    check_all_returned(outcomes(2, deadline, [&](Threads& transport) {
      if (transport.rank() == 1) std::this_thread::sleep_for(20ms);
      terse::barrier(transport);
      Everybody batch(transport, 3), another(transport, 4);
      if (transport.rank() == 1) std::this_thread::sleep_for(20ms);
      auto ticket = transport.exchange(batch.sends, batch.receives, Phase::reduce);
      if (!poll(ticket)) throw std::runtime_error("never ready");
      if (transport.rank() == 1) std::this_thread::sleep_for(20ms);
      terse::AnyTransport any(terse::Metered(transport.split(0, transport.rank())));
      any.exchange(another.sends, another.receives, Phase::reduce).wait(deadline);
    }));
  };
  check(Milliseconds::max());
  check(std::chrono::seconds::max());
  check(std::chrono::hours::max());
  check(std::chrono::duration<double>(1e300));
}

TEST_CASE("a deadline that no wait could keep is refused with its value") {
  const auto said = [](terse::Deadline deadline) -> std::string {
    try {
      ThreadGroup(2, deadline);
    } catch (const terse::usage_error& fault) {
      return fault.what();
    }
    return "taken";
  };
  CHECK(said(-1s) == "terse: a deadline must be longer than 0 ms, not -1000 ms");
  CHECK(said(0s) == "terse: a deadline must be longer than 0 ms, not 0 ms");
  CHECK(said(-300us) == "terse: a deadline must be longer than 0 ms, not -1 ms");
  CHECK(said(300us) == "taken");
  for (const double none :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()})
    CHECK(said(std::chrono::duration<double>(none)) ==
          "terse: a deadline must be longer than 0 ms, not less than minus a year, or NaN");
  CHECK_THROWS_AS(ThreadGroup(2, std::chrono::seconds::min()), const terse::usage_error&);
  CHECK_THROWS_AS(terse::Watchdog("a test", -1s), const terse::usage_error&);
  CHECK_THROWS_AS(terse::Rendezvous({"no file", "a run", 1, 2}).fetch({}, 0s), const terse::usage_error&);
  CHECK(terse::Deadline(7ms).count() == 7);
  CHECK(terse::Deadline(1ns).count() == 1);
  CHECK(terse::Deadline(std::chrono::seconds::max()).count() == terse::Deadline::longest.count());
}

// Sanitizers need more addresses than the limit below leaves.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TERSE_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define TERSE_SANITIZED
#endif
#endif
#ifndef TERSE_SANITIZED
TEST_CASE("a thread that can't be started is said at once, and ends the others") {
  const pid_t child = fork();
  if (child == 0) {
    // Room for the stacks of two threads.
    constexpr std::size_t stack = std::size_t{1} << 28;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack);
    pthread_setattr_default_np(&attributes);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t most = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + 5 * stack / 2;
    const rlimit limit{most, most};
    setrlimit(RLIMIT_AS, &limit);
    const auto begin = std::chrono::steady_clock::now();
    std::string said, others;
    try {
      ThreadGroup(8, patience).run([&](Threads& transport) {
        try {
          terse::barrier(transport);
        } catch (const terse::peer_error& fault) {
          if (transport.rank() == 0) others = fault.what();
          throw;
        }
      });
    } catch (const terse::error& fault) {
      said = fault.what();
    }
    const auto has = [](const std::string& text, const char* what) {
      return text.find(what) != std::string::npos;
    };
    int status = 0;
    if (std::chrono::steady_clock::now() - begin > 5s) status |= 1;
    if (!has(said, "terse: rank ") || !has(said, "'s thread could not be started: ")) status |= 2;
    if (!has(said, "; 8 ranks require 8 threads")) status |= 4;
    if (!has(others, "gave up in phase 'barrier': rank ") || !has(others, "'s thread could not be"))
      status |= 8;
    try {
      std::vector<std::byte> room;
      room.reserve(2 * stack);
      const terse::Watchdog watchdog("MPI_Init", 20s);
    } catch (const terse::error& fault) {
      if (has(fault.what(), "the thread that bounds the wait in MPI_Init could not be started: "))
        status |= 16;
    } catch (...) {
      status |= 32;
    }
    _exit(status);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 16);
}
#endif

TEST_CASE("a single wait can have a deadline of its own") {
  const auto list = outcomes(2, patience, [](Threads& transport, const Left& left) {
    int value = 0;
    const Receive receive = receive_of(1, value);
    if (transport.rank() == 0) transport.exchange({}, {&receive, 1}, Phase::reduce).wait(50ms);
    if (transport.rank() == 1) left.sleep_until(1);
  });
  check_survivors(list, 1, at_once);
}

TEST_CASE("a ticket that is dropped gives its rank away") {
  const auto list = outcomes(3, patience, [](Threads& transport) {
    Everybody batch(transport, 1);
    if (transport.rank() == 1) {
      auto ticket = transport.exchange(batch.sends, batch.receives, Phase::spread);
      { const Threads::Ticket dropped(std::move(ticket)); }
      terse::barrier(transport);
      return;
    }
    transport.exchange(batch.sends, batch.receives, Phase::spread).wait();
    terse::barrier(transport);
  });
  check_survivors(list, 1, at_once);
  CHECK(list[0].text.find("rank 1 abandoned a batch in phase 'spread'") != std::string::npos);
}

TEST_CASE("a ticket that is dropped while an exception flies leaves the blame to the exception") {
  const auto list = outcomes(2, patience, [](Threads& transport) {
    Everybody batch(transport, 2);
    auto ticket = transport.exchange(batch.sends, batch.receives, Phase::spread);
    if (transport.rank() == 1) throw std::runtime_error("no more ink");
    ticket.wait();
    terse::barrier(transport);
  });
  check_survivors(list, 1, at_once);
  CHECK(list[0].text.find("rank 1 threw: no more ink") != std::string::npos);
}

TEST_CASE("more messages under way than there is room for are a usage error") {
  int posted = 0;
  const auto list = outcomes(2, patience, [&](Threads& transport, const Left& left) {
    if (transport.rank() == 1) {
      left.sleep_until(1);  // and takes nothing before rank 0 has been refused
      return terse::barrier(transport);
    }
    const int value = 1;
    const Send send = send_of(1, value);
    std::vector<Threads::Ticket> tickets;
    for (; posted < 100; ++posted) tickets.push_back(transport.exchange({&send, 1}, {}, Phase::reduce));
  });
  CHECK(posted == 8);
  CHECK(list[0].kind == Outcome::Kind::usage);
  CHECK(list[0].text == "terse: rank 0: more than 8 messages to rank 1 are under way");
  CHECK(list[1].kind == Outcome::Kind::peer);
  CHECK(list[1].culprit == 0);
}

TEST_CASE("a message to nobody is a usage error") {
  for (const int peer : {-1, 0, 2, 100}) {
    CAPTURE(peer);
    const auto list = outcomes(2, patience, [&](Threads& transport) {
      int value = 1;
      const Send send = send_of(peer, value);
      const Receive receive = receive_of(peer, value);
      if (transport.rank() == 0) transport.exchange({&send, 1}, {&receive, 1}, Phase::reduce).wait();
    });
    CHECK(list[0].kind == Outcome::Kind::usage);
  }
}

TEST_CASE("a group needs a rank") {
  CHECK_THROWS_AS(ThreadGroup(0), const terse::usage_error&);
  CHECK_THROWS_AS(ThreadGroup(-3), const terse::usage_error&);
  CHECK(ThreadGroup(3).size() == 3);
}

TEST_CASE("Metered counts bytes and messages by phase, over all channels") {
  std::vector<terse::Traffic> traffic(3);
  check_all_returned(outcomes(3, patience, [&](Threads& inner) {
    terse::Metered<Threads> transport(inner.split(0, inner.rank()));
    auto channel = transport.split(0, -transport.rank());
    auto nested = channel.split(0, 0);
    const int rank = transport.rank(), next = (rank + 1) % 3, last = (rank + 2) % 3;
    Bytes out(1000), in(1000);
    const Send send{next, out.data(), 100 + rank};
    const Receive receive{last, in.data(), 100 + last};
    for (int k = 0; k < 2; ++k) transport.exchange({&send, 1}, {&receive, 1}, Phase::reduce).wait();
    // In the channel the order is turned round: its rank 2 - r is this rank r.
    const Send back{2 - next, out.data(), 10};
    const Receive from{2 - last, in.data(), 10};
    auto ticket = channel.exchange({&back, 1}, {&from, 1}, Phase::spread);
    if (!poll(ticket)) throw std::runtime_error("never ready");
    terse::barrier(nested);
    if (rank == 0) std::this_thread::sleep_for(50ms);
    terse::barrier(transport);
    traffic[static_cast<std::size_t>(rank)] = transport.traffic();
    if (&transport.traffic() != &channel.traffic()) throw std::runtime_error("not shared");
  }));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    const terse::Traffic& mine = traffic[rank];
    CHECK(mine[Phase::reduce].bytes_sent == 2 * (100 + rank));
    CHECK(mine[Phase::reduce].bytes_received == 2 * (100 + (rank + 2) % 3));
    CHECK(mine[Phase::reduce].messages_sent == 2);
    CHECK(mine[Phase::reduce].messages_received == 2);
    CHECK(mine[Phase::spread].bytes_sent == 10);
    CHECK(mine[Phase::spread].bytes_received == 10);
    CHECK(mine[Phase::spread].messages_sent == 1);
    CHECK(mine[Phase::spread].messages_received == 1);
    CHECK(mine[Phase::barrier].bytes_sent == 4);
    CHECK(mine[Phase::barrier].bytes_received == 4);
    CHECK(mine[Phase::barrier].messages_sent == 4);
    CHECK(mine[Phase::barrier].messages_received == 4);
    CHECK(mine[Phase::agree].messages_sent == 0);
    CHECK(mine[Phase::setup].messages_sent == 0);
    CHECK(mine.bytes_sent() == 2 * (100 + rank) + 14);
    CHECK(mine.seconds < 10);
  }
  CHECK(traffic[1].seconds > 0.03);
  CHECK(traffic[2].seconds > 0.03);
}

// ---------------------------------------------------------------------------------- faults in optimizers

namespace {

struct Fault {
  enum class Kind { none, throws, sleeps } kind = Kind::none;
  int at = 0;  ///< which call of `exchange` or `split`, from 0
};

/// What a rank's transport and its channels share.
struct Trail {
  const Left& left;
  Fault fault;
  std::vector<Phase> calls;
};

/// A transport whose call number `fault.at`, counted over all its channels, throws or sleeps.
template <terse::Transport Inner>
class Faulty {
 public:
  using memory = typename Inner::memory;
  using Ticket = typename Inner::Ticket;

  Faulty(Inner inner, std::shared_ptr<Trail> trail) : inner_(std::move(inner)), trail_(std::move(trail)) {}

  int rank() const { return inner_.rank(); }
  int size() const { return inner_.size(); }
  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    strike(phase);
    return inner_.exchange(sends, receives, phase);
  }
  Faulty split(int color, int key) {
    strike(Phase::setup);
    return Faulty(inner_.split(color, key), trail_);
  }

 private:
  void strike(Phase phase) {
    const auto call = static_cast<int>(trail_->calls.size());
    trail_->calls.push_back(phase);
    if (call != trail_->fault.at) return;
    if (trail_->fault.kind == Fault::Kind::throws) throw std::logic_error("struck");
    if (trail_->fault.kind == Fault::Kind::sleeps) trail_->left.sleep_until(2);
  }

  Inner inner_;
  std::shared_ptr<Trail> trail_;
};

/// Construction, a step in full precision, a compressed one and a barrier, on 3 ranks. Returns every call
/// that rank `culprit` made.
template <class Topology>
std::vector<Phase> run_optimizer(int culprit, Fault fault, Milliseconds deadline,
                                 std::vector<Outcome>& list) {
  std::vector<Phase> calls;
  list = outcomes(3, deadline, [&](Threads& inner, const Left& left) {
    const bool mine = inner.rank() == culprit;
    const auto trail = std::make_shared<Trail>(Trail{left, mine ? fault : Fault{}, {}});
    try {
      Faulty<Threads> transport(inner.split(0, inner.rank()), trail);
      terse::Layout layout;
      layout.add({"weight", {300}}).add({"bias", {10}, 1, 0, false});
      terse::OneBitAdam<terse::Sign, terse::FrozenVariance, Topology> recipe;
      recipe.preconditioner.freeze = terse::AtStep{1};
      terse::Options options;
      options.on_non_finite = terse::NonFinite::skip;  // adds the phase 'agree'
      terse::Optimizer optimizer{recipe, transport, layout, options};
      std::vector<float> parameters(static_cast<std::size_t>(layout.size()), 1.0F);
      const std::vector<float> gradients(parameters.size(), 0.5F + static_cast<float>(inner.rank()));
      optimizer.step(parameters, gradients);
      if (optimizer.full_precision()) throw std::logic_error("not frozen");
      optimizer.step(parameters, gradients);
      terse::barrier(transport);
    } catch (...) {
      if (mine) calls = trail->calls;
      throw;
    }
    if (mine) calls = trail->calls;
  });
  return calls;
}

template <class Topology>
std::vector<Phase> calls_without_fault() {
  std::vector<Outcome> list;
  const std::vector<Phase> calls = run_optimizer<Topology>(1, {}, patience, list);
  check_all_returned(list);
  return calls;
}

/// A fault at every call; each kind of call has come at least once.
template <class Topology>
void check_faults(Fault::Kind kind, bool every_rank, Milliseconds deadline, double seconds) {
  const std::vector<Phase> calls = calls_without_fault<Topology>();
  const std::set<Phase> phases(calls.begin(), calls.end());
  CHECK(phases == std::set<Phase>{Phase::setup, Phase::agree, Phase::reduce, Phase::spread, Phase::barrier});
  const auto count = static_cast<int>(calls.size());
  CHECK(count > 10);
  CHECK(calls.back() == Phase::barrier);
  for (int at = 0; at < count; ++at)
    for (int rank = 0; rank < 3; ++rank) {
      if (!every_rank && rank != at % 3) continue;
      CAPTURE(rank);
      CAPTURE(at);
      std::vector<Outcome> list;
      const std::vector<Phase> made = run_optimizer<Topology>(rank, {kind, at}, deadline, list);
      check_survivors(list, rank, seconds);
      CHECK(made.size() > static_cast<std::size_t>(at));
      const Outcome& culprit = list[static_cast<std::size_t>(rank)];
      if (kind == Fault::Kind::throws)
        CHECK(culprit.text == "struck");
      else
        CHECK(culprit.culprit == rank);
    }
}

}  // namespace

TEST_CASE("an optimizer makes the calls that the faults below are counted by") {
  // Of transports, settings and the parameters that the first step starts from.
  const std::vector<Phase> head(7, Phase::setup);
  // A full-precision step and a compressed one.
  const auto twice = [&](const std::vector<Phase>& step) {
    std::vector<Phase> all = head;
    for (const auto& part : {step, step, {Phase::barrier}}) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  CHECK(calls_without_fault<terse::ScatterGather>() == twice({Phase::agree, Phase::reduce, Phase::spread}));
  CHECK(calls_without_fault<terse::Ring>() ==
        twice({Phase::agree, Phase::reduce, Phase::reduce, Phase::spread, Phase::spread}));
}

TEST_CASE("a throw at any call of OneBitAdam over ScatterGather sends the others home by its name") {
  check_faults<terse::ScatterGather>(Fault::Kind::throws, true, patience, at_once);
}

TEST_CASE("a throw at any call of OneBitAdam over Ring sends the others home by its name") {
  check_faults<terse::Ring>(Fault::Kind::throws, true, patience, at_once);
}

TEST_CASE("a sleeper at any call of OneBitAdam over ScatterGather is named within deadline + 1 s") {
  check_faults<terse::ScatterGather>(Fault::Kind::sleeps, false, 300ms, 1.3);
}

TEST_CASE("a sleeper at any call of OneBitAdam over Ring is named within deadline + 1 s") {
  check_faults<terse::Ring>(Fault::Kind::sleeps, false, 300ms, 1.3);
}
