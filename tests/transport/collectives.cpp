// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "terse/device/emulated.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/metered.hpp"
#include "terse/transport/threads.hpp"
#include "terse/transport/through_host.hpp"

namespace {

using namespace std::chrono_literals;
using terse::index_t;
using terse::Metered;
using terse::Phase;
using terse::ThreadGroup;
using terse::Threads;

/// Element i of rank r; no two ranks have the same.
float value(int rank, index_t i) {
  return 0.1F * static_cast<float>(rank + 1) + static_cast<float>(i % 1013);
}
std::vector<float> values(int rank, index_t count) {
  std::vector<float> all;
  for (index_t i = 0; i < count; ++i) all.push_back(value(rank, i));
  return all;
}

/// program(transport) on `ranks` threads, whose checks take turns: doctest counts from one thread at a time.
std::mutex turn;
template <class Program>
void on_ranks(int ranks, Program program) {
  ThreadGroup(ranks, 20s).run([&](Threads& threads) {
    Metered<Threads> transport(threads.split(0, threads.rank()));
    program(transport);
  });
}
template <class Check>
void in_turn(Check check) {
  const std::lock_guard lock(turn);
  check();
}

constexpr int worlds[] = {1, 2, 3, 4, 7};
// Fewer than ranks, one message's worth and one more, and shares that don't come out even.
constexpr index_t sizes[] = {0, 1, 5, 1024, 1025, 10'007};

}  // namespace

TEST_CASE("broadcast gives all ranks the root's values") {
  for (const int world : worlds)
    for (const index_t size : sizes)
      for (const int root : {0, world - 1})
        on_ranks(world, [&](auto& transport) {
          std::vector<float> mine = values(transport.rank(), size);
          terse::broadcast(transport, mine, root);
          const auto sent = transport.traffic()[Phase::setup].bytes_sent;
          in_turn([&] {
            CAPTURE(world);
            CAPTURE(size);
            CAPTURE(root);
            CHECK(mine == values(root, size));
            // The root sends the whole twice at most, whatever the number of ranks; the others once.
            const auto bytes = static_cast<std::uint64_t>(4 * size);
            if (size > 1024)
              CHECK(sent <
                    (transport.rank() == root ? 2 : 1) * bytes + 8 * static_cast<std::uint64_t>(world));
          });
        });
}

TEST_CASE("broadcast of views, of other types and of single values") {
  on_ranks(3, [](auto& transport) {
    const int rank = transport.rank();
    struct Pair {
      int a;
      double b;
    };
    std::vector<Pair> pairs(700, Pair{rank, rank + 0.5});
    terse::broadcast(transport, std::span(pairs).subspan(10, 680), 1);
    const Pair one = terse::broadcast(transport, Pair{rank, 2.0 * rank}, 2);
    const std::uint64_t seed = terse::broadcast(transport, std::uint64_t{100} + static_cast<unsigned>(rank));
    in_turn([&] {
      CHECK(pairs[9].a == rank);
      CHECK(pairs[10].a == 1);
      CHECK(pairs[689].b == 1.5);
      CHECK(pairs[690].a == rank);
      CHECK(one.a == 2);
      CHECK(one.b == 4);
      CHECK(seed == 100);
    });
  });
}

TEST_CASE("mean is that of doubles, the same on all ranks") {
  for (const int world : worlds)
    for (const index_t size : sizes)
      on_ranks(world, [&](auto& transport) {
        std::vector<float> mine = values(transport.rank(), size);
        terse::mean(transport, mine);
        const auto sent = transport.traffic()[Phase::setup].bytes_sent;
        int wrong = 0;
        for (index_t i = 0; i < size; ++i) {
          double sum = 0;
          for (int rank = 0; rank < world; ++rank) sum += static_cast<double>(value(rank, i));
          wrong += mine[static_cast<std::size_t>(i)] != static_cast<float>(sum / world);
        }
        in_turn([&] {
          CAPTURE(world);
          CAPTURE(size);
          CHECK(wrong == 0);
          // 2 (W - 1) / W of the values, an element more for shares that are not even, and the number of elements.
          CHECK(sent <= static_cast<std::uint64_t>((world - 1) * (2 * (4 * size / world + 4) + 8)));
        });
      });
}

TEST_CASE("mean of doubles, and of one number; what is not finite stays so") {
  on_ranks(4, [](auto& transport) {
    const int rank = transport.rank();
    std::vector<double> mine{1.0 + rank, rank == 2 ? std::nan("") : 1, rank == 1 ? HUGE_VAL : 1};
    terse::mean(transport, mine);
    const double number = terse::mean(transport, 0.25 * rank);
    in_turn([&] {
      CHECK(mine[0] == 2.5);
      CHECK(std::isnan(mine[1]));
      CHECK(std::isinf(mine[2]));
      CHECK(number == 0.375);
    });
  });
}

TEST_CASE("all_gather puts values in the order of ranks") {
  for (const int world : worlds)
    on_ranks(world, [&](auto& transport) {
      const int rank = transport.rank();
      const std::vector<std::int64_t> mine{rank, -rank, 7};
      std::vector<std::int64_t> all(3 * static_cast<std::size_t>(world));
      terse::all_gather(transport, mine, all);
      const std::vector<double> ones = terse::all_gather(transport, 1.5 * rank);
      const auto pairs =
          terse::all_gather(transport, std::array<int, 2>{rank, 7});  // a value with its own elements
      in_turn([&] {
        CAPTURE(world);
        REQUIRE(ones.size() == static_cast<std::size_t>(world));
        for (std::size_t r = 0; r < ones.size(); ++r) {
          CHECK(all[3 * r] == static_cast<std::int64_t>(r));
          CHECK(all[3 * r + 1] == -static_cast<std::int64_t>(r));
          CHECK(all[3 * r + 2] == 7);
          CHECK(ones[r] == 1.5 * static_cast<double>(r));
          CHECK(pairs[r] == std::array<int, 2>{static_cast<int>(r), 7});
        }
      });
    });
}

TEST_CASE("equal compares bits, and all ranks say the same") {
  for (const int world : worlds)
    for (const int odd : {-1, 0, world - 1})
      for (const std::size_t place : {std::size_t{0}, std::size_t{4}, std::size_t{1000}})
        on_ranks(world, [&](auto& transport) {
          std::vector<float> mine(1001, std::numeric_limits<float>::quiet_NaN());
          mine[place] = 0;
          if (transport.rank() == odd) mine[place] = -0.0F;
          const bool same = terse::equal(transport, mine);
          in_turn([&] {
            CAPTURE(world);
            CAPTURE(odd);
            CAPTURE(place);
            CHECK(same == (odd < 0 || world == 1));
          });
        });
}

TEST_CASE("other numbers of elements, ranks that are not there, too little room") {
  on_ranks(3, [](auto& transport) {
    const int rank = transport.rank();
    std::vector<float> mine(rank == 1 ? 9 : 10, 1.0F);
    const auto text_of = [&](auto call) {
      try {
        call();
      } catch (const terse::mismatch_error& fault) {
        return "mismatch: " + std::string(fault.what());
      } catch (const terse::usage_error& fault) {
        return "usage: " + std::string(fault.what());
      }
      return std::string("nothing");
    };
    const std::string us = "terse: rank " + std::to_string(rank) + ": ";
    const std::string sizes_differ =
        "mismatch: " + us + "rank 0 gives 10 elements to a collective, and rank 1 9";
    const std::string broadcast = text_of([&] { terse::broadcast(transport, mine); });
    const std::string mean = text_of([&] { terse::mean(transport, mine); });
    const std::string gather = text_of([&] { terse::all_gather(transport, mine, mine); });
    mine.resize(4);
    const std::string room = text_of([&] { terse::all_gather(transport, mine, mine); });
    const std::string root = text_of([&] { terse::broadcast(transport, mine, 3); });
    const std::string other = text_of([&] { (void)terse::broadcast(transport, 1.0, -1); });
    in_turn([&] {
      CHECK(broadcast == sizes_differ);
      CHECK(mean == sizes_differ);
      CHECK(gather == sizes_differ);
      CHECK(room == "usage: " + us + "all_gather of 4 elements from 3 ranks needs room for 12, not 4");
      CHECK(root == "usage: " + us + "there is no rank 3 to send from: ranks are 0 to 2");
      CHECK(other == "usage: " + us + "there is no rank -1 to send from: ranks are 0 to 2");
      for (const float x : mine) CHECK(x == 1);
    });
  });
}

TEST_CASE("a rank that doesn't come is named within the deadline") {
  const auto begin = std::chrono::steady_clock::now();
  int named = 0;
  try {
    ThreadGroup(3, 200ms).run([&](Threads& threads) {
      if (threads.rank() == 2) {
        std::this_thread::sleep_for(600ms);
        return;
      }
      std::vector<float> mine(5000);
      terse::broadcast(threads, mine);
    });
  } catch (const terse::peer_error& fault) {
    named = fault.culprit();
  }
  CHECK(named == 2);
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
}

TEST_CASE("broadcast and equal in the memory of a device") {
  using Device = terse::executor::emulated;
  using Memory = Device::memory;
  for (const index_t size : {index_t{5}, index_t{1'200'000}})
    ThreadGroup(3, 20s).run([&](Threads& threads) {
      terse::ThroughHost<Threads, Device> transport(threads.split(0, threads.rank()), Device{});
      const std::vector<float> mine = values(threads.rank(), size);
      terse::buffer<float, Memory> there(size);
      terse::upload(terse::view<const float>(mine), there.all());
      const bool before = terse::equal(transport, there.all());
      terse::broadcast(transport, there.all(), 2);
      const bool after = terse::equal(transport, there.all());
      std::vector<float> back(mine.size());
      terse::download(terse::view<const float, Memory>(there.all()), terse::view<float>(back));
      in_turn([&] {
        CHECK_FALSE(before);
        CHECK(after);
        CHECK(back == values(2, size));
      });
    });
}

TEST_CASE("messages that lie side by side in a device's memory, and one to several peers, are copied once") {
  using Device = terse::executor::emulated;
  using Memory = Device::memory;
  constexpr int ranks = 4;
  // Bytes between messages; whether all that a rank sends is the same.
  for (const index_t gap : {0, 8})
    for (const bool same : {false, true})
      ThreadGroup(ranks, 20s).run([&](Threads& threads) {
        terse::ThroughHost<Threads, Device> transport(threads.split(0, threads.rank()), Device{});
        const int rank = threads.rank();
        const auto length = [&](int from, int to) { return same ? 24 : 8 * (1 + from + to); };
        const auto byte = [&](int from, int to) { return std::byte(same ? from : 16 * from + to); };
        terse::buffer<std::byte, Memory> memory(1000);
        std::vector<std::byte> before(1000, std::byte{0xEE}), wanted;
        std::vector<terse::Send> sends;
        std::vector<terse::Receive> receives;
        index_t place = 8;
        for (int k = 1; k < ranks; ++k) {
          const int peer = (rank + k) % ranks;
          const index_t bytes = length(rank, peer);
          std::fill_n(before.begin() + place, bytes, byte(rank, peer));
          sends.push_back({peer, memory.data() + place, bytes, bytes});
          if (!same) place += bytes + gap;
        }
        place = 500;
        wanted = before;
        for (int k = 1; k < ranks; ++k) {
          const int peer = (rank + k) % ranks;
          const index_t bytes = length(peer, rank);
          std::fill_n(wanted.begin() + place, bytes, byte(peer, rank));
          receives.push_back({peer, memory.data() + place, bytes, false});
          place += bytes + gap;
        }
        terse::upload(terse::view<const std::byte>(before), memory.all());
        const index_t launches = Device::launches();
        transport.exchange(sends, receives, Phase::reduce).wait();
        const index_t copies = Device::launches() - launches;
        std::vector<std::byte> found(1000);
        terse::download(terse::view<const std::byte, Memory>(memory.all()), terse::view<std::byte>(found));
        in_turn([&] {
          CHECK(found == wanted);
          CHECK(copies == (same || gap == 0 ? 1 : ranks - 1) + (gap == 0 ? 1 : ranks - 1));
        });
      });
}
