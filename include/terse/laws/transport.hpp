// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/type_name.hpp"
#include "terse/laws/report.hpp"
#include "terse/transport/assembly.hpp"

// Checks the contract of a transport of host memory.
//
//     #include <terse/laws/transport.hpp>
//
//     const terse::laws::Report report = terse::laws::check_transport(transport);        on all its ranks
//     if (!report) std::puts(report.text().c_str());

namespace terse::laws {

/// Options of a transport check.
struct TransportOptions {
  std::uint64_t seed = 1;                                         ///< seed of the bytes that are sent
  index_t large = index_t{1} << 19;                               ///< bytes of the largest message
  std::chrono::milliseconds patience = std::chrono::seconds(10);  ///< longest wait for a batch
  /// Deadline in the last law, in which a peer stays away, so that afterwards the transport is unusable; 0 if not
  /// checked. It is for transports that throw peer_error, such as threads, but not for MPI.
  std::chrono::milliseconds deadline{0};
};

namespace detail {

/// A message from rank `from` to rank `to` in a batch, and room for it between bytes that must not be written.
class Parcel {
 public:
  static constexpr std::byte untouched{0xA5};
  static constexpr index_t margin = 16;

  Parcel(std::uint64_t seed, int from, int to, std::uint64_t batch, index_t bytes, index_t room)
      : sent_(static_cast<std::size_t>(bytes)),
        place_(static_cast<std::size_t>(room + 2 * margin), untouched) {
    std::uint64_t state = mix_hash(mix_hash(seed, batch),
                                   static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint64_t>(to));
    for (std::byte& byte : sent_) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      byte = static_cast<std::byte>(state >> 56);
    }
  }
  const std::byte* data() const { return sent_.data(); }
  index_t bytes() const { return static_cast<index_t>(sent_.size()); }
  std::byte* place() { return place_.data() + margin; }
  index_t room() const { return static_cast<index_t>(place_.size()) - 2 * margin; }
  /// Describes a fault in the received bytes; "" if there is none.
  std::string fault() const {
    for (std::size_t k = 0; k < place_.size(); ++k) {
      const std::size_t at = k - static_cast<std::size_t>(margin);
      const bool inside = k >= static_cast<std::size_t>(margin) && at < sent_.size();
      if (place_[k] != (inside ? sent_[at] : untouched))
        return inside
                   ? "byte " + std::to_string(at) + " of " + std::to_string(sent_.size()) + " is not as sent"
                   : "a byte outside the message has been written";
    }
    return "";
  }

 private:
  std::vector<std::byte> sent_, place_;
};

/// Messages in one batch between all pairs of ranks for which `goes` returns true.
class PostBag {
 public:
  template <class T, class Goes>
  PostBag(const T& transport, std::uint64_t seed, std::uint64_t batch, index_t bytes, index_t spare,
          Goes goes) {
    const int rank = transport.rank(), size = transport.size();
    outgoing_.reserve(static_cast<std::size_t>(size));
    incoming_.reserve(static_cast<std::size_t>(size));
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      if (goes(rank, peer)) {
        const Parcel& parcel = outgoing_.emplace_back(seed, rank, peer, batch, bytes, 0);
        sends_.push_back({peer, parcel.data(), bytes, bytes + spare});
      }
      if (goes(peer, rank)) {
        Parcel& parcel = incoming_.emplace_back(seed, peer, rank, batch, bytes, bytes + spare);
        receives_.push_back({peer, parcel.place(), parcel.room(), spare > 0});
      }
    }
  }
  template <class T>
  auto start(T& transport) {
    return transport.exchange(sends_, receives_, Phase::reduce);
  }
  std::string fault() const {
    for (std::size_t k = 0; k < incoming_.size(); ++k)
      if (std::string what = incoming_[k].fault(); !what.empty())
        return "from rank " + std::to_string(receives_[k].peer) + ": " + what;
    return "";
  }

 private:
  std::vector<Parcel> outgoing_, incoming_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

struct Everybody {
  bool operator()(int, int) const { return true; }
};
struct ToTheNext {
  int size;
  bool operator()(int from, int to) const { return (from + 1) % size == to; }
};

/// The laws, on one rank; all ranks check them together, and each reports its own observations.
template <class T>
class TransportTrial {
 public:
  TransportTrial(T& transport, const TransportOptions& options) : transport_(transport), options_(options) {}

  std::string ranks() {
    if (transport_.size() < 1 || transport_.rank() < 0 || transport_.rank() >= transport_.size())
      return "rank " + std::to_string(transport_.rank()) + " of " + std::to_string(transport_.size());
    Assembly<int, T> everybody(transport_);
    const auto seen = everybody(transport_, transport_.rank(), Phase::setup);
    for (int rank = 0; rank < transport_.size(); ++rank)
      if (seen[static_cast<std::size_t>(rank)] != rank)
        return "rank " + std::to_string(seen[static_cast<std::size_t>(rank)]) + " is where rank " +
               std::to_string(rank) + " should be";
    return "";
  }
  std::string bytes() {
    for (const index_t bytes : {index_t{1}, index_t{7}, index_t{64}, index_t{4097}, options_.large})
      if (std::string what = deliver(transport_, bytes, 0, Everybody{}); !what.empty()) return what;
    return deliver(transport_, 33, 0, ToTheNext{transport_.size()});
  }
  std::string empty() {
    transport_.exchange({}, {}, Phase::reduce).wait();
    return deliver(transport_, 0, 0, Everybody{});
  }
  std::string up_to() {
    if (std::string what = deliver(transport_, 100, 1000, Everybody{}); !what.empty()) return what;
    return deliver(transport_, 0, 10, Everybody{});
  }
  /// Checks several batches in flight, of different sizes, waited for in order and in reverse order.
  std::string order() {
    constexpr std::size_t batches = 8;
    for (const bool backwards : {false, true}) {
      std::vector<PostBag> bags;
      std::vector<decltype(bags.front().start(transport_))> tickets;
      bags.reserve(batches);
      for (std::size_t b = 0; b < batches; ++b) {
        bags.emplace_back(transport_, options_.seed, ++batch_, static_cast<index_t>(b % 2 == 0 ? 40 : 2000),
                          0, Everybody{});
        tickets.push_back(bags.back().start(transport_));
      }
      for (std::size_t b = 0; b < batches; ++b) tickets[backwards ? batches - 1 - b : b].wait();
      for (std::size_t b = 0; b < batches; ++b)
        if (const std::string what = bags[b].fault(); !what.empty())
          return "batch " + std::to_string(b + 1) + " of " + std::to_string(batches) + " under way " + what;
    }
    return "";
  }
  /// Checks that batches complete without wait(), and that tickets can be moved.
  std::string tickets() {
    PostBag first(transport_, options_.seed, ++batch_, 500, 0, Everybody{});
    PostBag second(transport_, options_.seed, ++batch_, 500, 0, Everybody{});
    auto ticket = first.start(transport_);
    auto moved = std::move(ticket);
    const auto end = std::chrono::steady_clock::now() + options_.patience;
    bool ready = false;
    while (!ready && std::chrono::steady_clock::now() < end) {
      ready = moved.ready();
      if (!ready) std::this_thread::yield();
    }
    if (!ready) return "ready() has not become true";
    moved.wait();
    moved = second.start(transport_);
    moved.wait(options_.patience);
    if (!moved.ready()) return "ready() is false after wait()";
    const std::string what = first.fault();
    return what.empty() ? second.fault() : what;
  }
  /// Splits by even and odd, in reverse order, and uses all channels at once.
  std::string split() {
    const int rank = transport_.rank(), size = transport_.size(), color = rank % 2;
    T half = transport_.split(color, -rank);
    const int members = (size + 1 - color) / 2, wanted = members - 1 - rank / 2;
    std::string what;
    if (half.size() != members || half.rank() != wanted)
      what = "split into " + std::to_string(members) + " ranks, in which this is rank " +
             std::to_string(wanted) + ", gives rank " + std::to_string(half.rank()) + " of " +
             std::to_string(half.size());
    T twin = transport_.split(0, rank);
    PostBag below(half, options_.seed + 1, ++batch_, 300, 0, Everybody{});
    PostBag beside(twin, options_.seed + 2, batch_, 300, 0, Everybody{});
    PostBag above(transport_, options_.seed, batch_, 300, 0, Everybody{});
    // The order differs between ranks.
    auto third = rank % 2 == 0 ? above.start(transport_) : beside.start(twin);
    auto first = below.start(half);
    auto second = rank % 2 == 0 ? beside.start(twin) : above.start(transport_);
    second.wait();
    first.wait();
    third.wait();
    for (const PostBag* bag : {&below, &beside, &above})
      if (const std::string fault = bag->fault(); what.empty() && !fault.empty())
        what = "channels used at the same time " + fault;
    return what;
  }
  /// Checks that no rank leaves the second barrier before rank 0, which is late, has entered it.
  std::string barriers() {
    constexpr auto late = std::chrono::milliseconds(100);
    const auto begin = std::chrono::steady_clock::now();
    barrier(transport_);
    if (transport_.rank() == 0) std::this_thread::sleep_for(late);
    barrier(transport_);
    return std::chrono::steady_clock::now() - begin >= late ? "" : "it left before rank 0 came";
  }
  /// Checks the deadline: all ranks except rank 0 stay away, and rank 0 waits for rank 1.
  std::string deadline() {
    constexpr auto grace = std::chrono::seconds(1);
    if (transport_.rank() != 0) {
      std::this_thread::sleep_for(options_.deadline + 2 * grace);
      return "";
    }
    std::byte place{};
    const std::vector<Receive> receives{{1, &place, 1, false}};
    const auto begin = std::chrono::steady_clock::now();
    auto ticket = transport_.exchange({}, receives, Phase::reduce);
    try {
      ticket.wait(options_.deadline);
      return "a wait for a message that was not sent returns";
    } catch (const peer_error&) {
    }
    const auto took = std::chrono::steady_clock::now() - begin;
    if (took > options_.deadline + grace) return "a wait ended more than a second after its deadline";
    return took >= options_.deadline ? "" : "a wait gave up before its deadline";
  }

 private:
  template <class Goes>
  std::string deliver(T& transport, index_t bytes, index_t spare, Goes goes) {
    PostBag bag(transport, options_.seed, ++batch_, bytes, spare, goes);
    bag.start(transport).wait();
    return bag.fault();
  }

  T& transport_;
  TransportOptions options_;
  std::uint64_t batch_ = 0;
};

}  // namespace detail

/// Checks the laws of transports on all ranks of a transport with messages in host memory. Collective; each rank reports
/// its own observations:
///
///     ranks        are 0 to size - 1, each once
///     bytes        messages of 1 byte to `large` are received as sent, and nothing outside them is written
///     empty        batches without messages and messages without bytes work
///     up to        a message may be shorter than its room, whose rest is unchanged
///     order        eight batches in flight each receive their own messages, in any order of waits
///     tickets      ready() becomes true without wait(), which then returns at once; tickets may be moved
///     split        ranks are ordered by key; messages of different channels don't mix
///     barrier      no rank leaves before all have entered
///     deadline     if TransportOptions sets one: a wait for an absent peer throws peer_error within a second of it
///
/// The first failure ends the check on its rank: ranks with different observations could not continue together.
template <class T>
Report check_transport(T& transport, const TransportOptions& options = {}) {
  static_assert(terse::check_transport<T>());
  static_assert(std::is_same_v<typename T::memory, memory::host>,
                "terse: these laws look into messages on the host; put ThroughHost around a transport to see "
                "device memory travel");
  Report report{.compressor = type_name<T>(), .passed = {}, .not_applicable = {}, .failures = {}};
  detail::TransportTrial<T> trial(transport, options);
  bool usable = true;
  const auto judge = [&](const char* law, bool applies, auto violation) {
    if (!applies || !usable) {
      report.not_applicable.emplace_back(law);
      return;
    }
    std::string what;
    try {
      what = (trial.*violation)();
    } catch (const std::exception& failure) {
      what = failure.what();
    }
    usable = what.empty();
    if (usable)
      report.passed.emplace_back(law);
    else
      report.failures.push_back({law, "rank " + std::to_string(transport.rank()) + ": " + what});
  };
  using Trial = detail::TransportTrial<T>;
  judge("ranks", true, &Trial::ranks);
  judge("bytes", true, &Trial::bytes);
  judge("empty", true, &Trial::empty);
  judge("up to", true, &Trial::up_to);
  judge("order", true, &Trial::order);
  judge("tickets", true, &Trial::tickets);
  judge("split", true, &Trial::split);
  judge("barrier", true, &Trial::barriers);
  judge("deadline", options.deadline.count() > 0 && transport.size() > 1, &Trial::deadline);
  return report;
}

}  // namespace terse::laws
