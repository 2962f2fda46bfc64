// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/transport/concept.hpp"

namespace terse {

/// Connection of a rank to the network, equal in both directions. By default without delay.
struct Link {
  std::chrono::nanoseconds latency{0};  ///< of each message that this rank sends
  double bytes_per_second = std::numeric_limits<double>::infinity();  ///< in each direction
};

namespace detail {

/// Upper bound, on this process's steady clock, of times on another process's clock. A message can't be seen before it
/// is sent, so each message bounds the difference of the two clocks; the tightest bound is used. The bound widens with
/// the time since then: two clocks drift by less than 1 part in 1024 (Linux: 500 ppm each). All in nanoseconds.
class RemoteClock {
 public:
  /// Records a message that was sent at `sent` on the other clock and seen at `seen` on this one.
  void hear(std::int64_t sent, std::int64_t seen) {
    behind_ = heard_ ? std::min(behind_ + (seen - last_) / drift + 1, seen - sent) : seen - sent;
    last_ = seen;
    heard_ = true;
  }
  /// Returns the latest time on this clock that `time` on the other one can be. Requires a recorded message.
  std::int64_t here(std::int64_t time) const {
    const std::int64_t shifted = time + behind_;
    return shifted + std::abs(last_ - shifted) / drift;
  }

 private:
  static constexpr std::int64_t drift = 1024;
  std::int64_t behind_ = 0, last_ = 0;
  bool heard_ = false;
};

/// A rank's link, which all of its channels share.
class SharedLink {
 public:
  /// Times of a message, for its receiver, in nanoseconds of the sender's clock.
  struct Stamp {
    std::int64_t process = 0, rank = 0;
    std::int64_t posted = 0;           // when this was written
    std::int64_t first = 0, last = 0;  // when the first and the last byte have passed the sender's link
    std::int64_t bytes = 0;
  };

  SharedLink(const Link& link, int rank, int size)
      : link_(link), rank_(rank), clocks_(static_cast<std::size_t>(size)) {
    if (!(link.latency.count() >= 0)) throw usage_error("a latency can't be negative", rank);
    if (!(link.bytes_per_second >= 1))
      throw usage_error("a link must carry at least 1 byte per second", rank);
  }

  int rank() const { return rank_; }
  static std::int64_t now() {
    using namespace std::chrono;
    return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
  }

  /// Sends a message after the previous ones have left, and returns its stamp.
  Stamp send(index_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::int64_t posted = now(), begin = std::max(posted, out_free_);
    out_free_ = begin + duration(bytes);
    const std::int64_t latency = link_.latency.count();
    return {process(), rank_, posted, begin + latency, out_free_ + latency, bytes};
  }
  /// Returns the time at which all messages so far have left.
  std::int64_t sent() const {
    const std::lock_guard lock(mutex_);
    return out_free_;
  }
  /// Converts the times of `stamp`, seen at `seen`, to this rank's clock.
  void translate(Stamp& stamp, std::int64_t seen) {
    if (stamp.process == process()) return;
    if (stamp.rank < 0 || stamp.rank >= static_cast<int>(clocks_.size()))
      throw wire_error("a message is stamped by rank " + std::to_string(stamp.rank) + ", and there are " +
                           std::to_string(clocks_.size()) + " ranks",
                       rank_);
    const std::lock_guard lock(mutex_);
    RemoteClock& clock = clocks_[static_cast<std::size_t>(stamp.rank)];
    clock.hear(stamp.posted, seen);
    stamp.first = clock.here(stamp.first);
    stamp.last = clock.here(stamp.last);
  }
  /// Receives a message after the previous ones. Returns the arrival time of its last byte.
  std::int64_t receive(const Stamp& stamp) {
    const std::lock_guard lock(mutex_);
    return in_free_ = std::max(stamp.last, std::max(stamp.first, in_free_) + duration(stamp.bytes));
  }

 private:
  /// Returns a token of this process, whose ranks share a clock. Ranks of one machine usually share it, too.
  static std::int64_t process() {
    static const std::int64_t token = [] {
      std::random_device draw;
      return static_cast<std::int64_t>(std::uint64_t{draw()} << 32 | draw());
    }();
    return token;
  }
  std::int64_t duration(std::int64_t bytes) const {
    return static_cast<std::int64_t>(std::ceil(static_cast<double>(bytes) / link_.bytes_per_second * 1e9));
  }

  const Link link_;
  const int rank_;
  mutable std::mutex mutex_;
  std::int64_t out_free_ = 0, in_free_ = 0;
  std::vector<RemoteClock> clocks_;  // by rank
};

}  // namespace detail

/// A decorator that makes an inner transport of host memory as slow as a network: a batch is ready no earlier than its
/// messages would have arrived over the ranks' links. The bytes and the errors are those of the inner transport.
///
///     terse::Delayed<terse::Threads> transport(threads.split(0, threads.rank()),
///                                              {.latency = 1ms, .bytes_per_second = 1e8});
///
/// A message of b bytes takes latency + b / bytes_per_second after it was posted. Each direction of a link carries one
/// message at a time, over all channels of the rank; both directions work at the same time:
///     out, the sender's:   begin = max(posted, end of the last one)    end = begin + b / bytes_per_second
///     in, the receiver's:  arrival = max(end + latency, max(begin + latency, last arrival) + b / bytes_per_second)
///
/// The latency is the sender's. The messages of a batch leave in the order of (peer - rank) mod size, so that an
/// all-to-all has no collisions. A batch is ready when its sends have left and its receives have arrived. Between two
/// links, the network carries all messages at once. There are three inaccuracies; each makes it slower:
///  - incoming messages queue in the order in which `ready` and `wait` find their batches complete, not in that of
///    their arrival. Within a batch the order is right;
///  - ranks of one process read one clock. Between processes the receiver knows the sender's clock only as well as
///    the fastest message so far allows, see detail::RemoteClock; the first message counts from the time it is seen.
///
/// The inner transport's own time is not added: a batch takes the longer of the two times. If the inner transport
/// moves messages only inside calls of this rank and its peers, a batch is found complete only in calls, as without
/// Delayed. Not modelled: headers and congestion of a network, and `split`, whose messages take no time.
///
/// Each batch comes with a second one, 48 bytes to each of its peers on a separate channel, which tells the receivers
/// when its messages have left. A Metered outside of Delayed doesn't see it; one inside does. Construction is
/// collective, since it splits the inner transport. It throws usage_error for a negative latency or less than 1 byte
/// per second. Ranks may have different links. A rank that waits because of the model sleeps.
template <Transport Inner>
class Delayed {
  static_assert(std::is_same_v<typename Inner::memory, terse::memory::host> && !HasLevels<Inner>,
                "terse: Delayed goes around a transport of host memory, and around each of Nodes' two");
  using InnerTicket = decltype(std::declval<Inner&>().exchange({}, {}, Phase::setup));
  using Stamp = detail::SharedLink::Stamp;

  /// State of a batch in flight; recycled, so that steady traffic allocates nothing.
  struct Batch {
    std::vector<Stamp> out, in;
    std::vector<Send> sends;
    std::vector<Receive> receives;
    std::vector<std::size_t> order;
    std::int64_t due = 0;  // time when all sends have left and, if known, all receives have arrived
    int last = -1;         // rank whose message is the last one
    Phase phase = Phase::setup;
    bool used = false;
  };

 public:
  using memory = typename Inner::memory;

  class Ticket {
   public:
    Ticket(Ticket&& other) noexcept
        : inner_(std::move(other.inner_)),
          stamps_(std::move(other.stamps_)),
          link_(other.link_),
          batch_(std::exchange(other.batch_, nullptr)),
          arrived_(other.arrived_) {}
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(inner_, other.inner_);
      std::swap(stamps_, other.stamps_);
      std::swap(link_, other.link_);
      std::swap(batch_, other.batch_);
      std::swap(arrived_, other.arrived_);
      return *this;
    }
    ~Ticket() { finish(); }

    /// Checks whether the batch is done. Never waits. A slow message is no error. Throws as the inner ticket.
    bool ready() {
      if (batch_ == nullptr) return true;
      if (!arrived_) {
        // Each is called, so that each makes progress.
        const bool message = inner_.ready(), stamp = stamps_.ready();
        if (!message || !stamp) return false;
        arrive();
      }
      if (detail::SharedLink::now() < batch_->due) return false;
      finish();
      return true;
    }
    /// Waits for the inner transport up to its deadline, and then as long as the model requires.
    void wait() {
      if (batch_ == nullptr) return;
      if (!arrived_) {
        inner_.wait();
        stamps_.wait();
        arrive();
      }
      sleep_until(batch_->due);
      finish();
    }
    /// Throws peer_error if the batch isn't done after `deadline`: the inner ticket's error, or one that names the sender
    /// of the last message, by its rank in the transport that the link was made for.
    void wait(Deadline deadline) {
      if (batch_ == nullptr) return;
      deadline = detail::time_left(deadline);
      const std::int64_t until = detail::SharedLink::now() + 1'000'000 * deadline.count();
      if (!arrived_) {
        inner_.wait(deadline);
        const std::chrono::nanoseconds left(std::max(std::int64_t{0}, until - detail::SharedLink::now()));
        stamps_.wait(std::chrono::ceil<std::chrono::milliseconds>(left));
        arrive();
      }
      sleep_until(std::min(until, batch_->due));
      const Batch& batch = *batch_;
      finish();
      if (batch.due > until)
        throw peer_error("waited " + std::to_string(deadline.count()) + " ms in phase '" + name(batch.phase) +
                             "' for a message of rank " + std::to_string(batch.last) + " that needs longer",
                         batch.last, link_->rank());
    }

    /// See KnowsAwaited; only for messages that the inner transport has not yet brought.
    int awaited() requires KnowsAwaited<InnerTicket> {
      return batch_ == nullptr || arrived_ ? -1 : inner_.awaited();
    }

   private:
    friend class Delayed;
    Ticket(InnerTicket inner, InnerTicket stamps, detail::SharedLink* link, Batch* batch)
        : inner_(std::move(inner)), stamps_(std::move(stamps)), link_(link), batch_(batch) {}

    /// Computes the arrival time of a complete batch; the batch is done only then.
    void arrive() {
      const std::int64_t seen = detail::SharedLink::now();
      std::vector<Stamp>& in = batch_->in;
      for (Stamp& stamp : in) link_->translate(stamp, seen);
      std::sort(in.begin(), in.end(), [](const Stamp& a, const Stamp& b) { return a.first < b.first; });
      for (const Stamp& stamp : in) {
        const std::int64_t arrival = link_->receive(stamp);
        if (arrival <= batch_->due) continue;
        batch_->due = arrival;
        batch_->last = static_cast<int>(stamp.rank);
      }
      arrived_ = true;
    }
    static void sleep_until(std::int64_t time) {
      std::this_thread::sleep_until(std::chrono::steady_clock::time_point(
          std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::nanoseconds(time))));
    }
    void finish() {
      if (batch_ != nullptr) std::exchange(batch_, nullptr)->used = false;
    }

    InnerTicket inner_, stamps_;
    detail::SharedLink* link_;
    Batch* batch_;
    bool arrived_ = false;
  };

  Delayed(Inner inner, const Link& link)
      : Delayed(std::move(inner), std::shared_ptr<detail::SharedLink>(), link) {}

  int rank() const { return inner_.rank(); }
  int size() const { return inner_.size(); }

  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    Batch& batch = unused_batch();
    InnerTicket inner = inner_.exchange(sends, receives, phase);
    batch.phase = phase;
    batch.last = link_->rank();
    leave(batch, sends);
    batch.in.resize(receives.size());
    batch.receives.clear();
    for (std::size_t k = 0; k < receives.size(); ++k)
      batch.receives.push_back({receives[k].peer, reinterpret_cast<std::byte*>(&batch.in[k]), sizeof(Stamp)});
    InnerTicket stamps = stamps_.exchange(batch.sends, batch.receives, phase);
    batch.used = true;
    return Ticket(std::move(inner), std::move(stamps), link_.get(), &batch);
  }
  /// Waits for messages that the inner transport has enqueued.
  void synchronize() requires requires(Inner& inner) { inner.synchronize(); }
  { inner_.synchronize(); }
  // No all_gather, even if the inner transport has one: gathers go by `exchange` and take their time.

  void here() requires SaysHere<Inner> { inner_.here(); }
  /// Makes a channel. All channels of a rank share its link.
  Delayed split(int color, int key) { return Delayed(inner_.split(color, key), link_, {}); }

 private:
  Delayed(Inner inner, std::shared_ptr<detail::SharedLink> link, const Link& fresh)
      : inner_(std::move(inner)),
        link_(link ? std::move(link)
                   : std::make_shared<detail::SharedLink>(fresh, inner_.rank(), inner_.size())),
        stamps_(inner_.split(0, inner_.rank())) {
    // An exchange needs two batches in flight; more are made on demand.
    for (int k = 0; k < 2; ++k) batches_.push_back(std::make_unique<Batch>());
  }

  /// Sends a batch's messages over the link.
  void leave(Batch& batch, std::span<const Send> sends) {
    const auto distance = [&](std::size_t k) { return (sends[k].peer - rank() + size()) % size(); };
    batch.order.clear();
    for (std::size_t k = 0; k < sends.size(); ++k) batch.order.push_back(k);
    std::sort(batch.order.begin(), batch.order.end(),
              [&](std::size_t a, std::size_t b) { return distance(a) < distance(b); });
    batch.out.resize(sends.size());
    for (const std::size_t k : batch.order) batch.out[k] = link_->send(sends[k].bytes);
    batch.due = sends.empty() ? 0 : link_->sent();
    batch.sends.clear();
    for (std::size_t k = 0; k < sends.size(); ++k)
      batch.sends.push_back(
          {sends[k].peer, reinterpret_cast<const std::byte*>(&batch.out[k]), sizeof(Stamp), 0});
  }

  Batch& unused_batch() {
    for (const std::unique_ptr<Batch>& batch : batches_)
      if (!batch->used) return *batch;
    return *batches_.emplace_back(std::make_unique<Batch>());
  }

  Inner inner_;
  std::shared_ptr<detail::SharedLink> link_;
  Inner stamps_;  // a separate channel
  std::vector<std::unique_ptr<Batch>> batches_;
};

}  // namespace terse
