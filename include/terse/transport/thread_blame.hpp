// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "terse/transport/thread_shared.hpp"

namespace terse::detail {

/// Diagnosis of a batch that waits past its deadline, from the waits of all ranks. Reads the shared state, and requires
/// its lock.
class ThreadBlame {
  using Batch = ThreadShared::Batch;
  using Clock = ThreadShared::Clock;

 public:
  ThreadBlame(const ThreadShared& shared, const Batch& batch, std::chrono::milliseconds deadline)
      : shared_(shared), batch_(batch), deadline_(deadline), now_(Clock::now()) {
    for_each_peer(batch, [&](int member) { add(member); });
    for (std::size_t k = 0; k < held_.size(); ++k)
      for (const Batch* one : shared_.under_way[at(held_[k])])
        if (keeps_waiting(*one)) for_each_peer(*one, [&](int member) { add(member); });
    std::erase_if(held_, [&](int member) { return wait_of(member) != nullptr; });
  }

  /// Returns the later end of the wait if all ranks that it needs and that don't wait themselves have reported that they
  /// are busy; otherwise a time in the past.
  Clock::time_point patience() const {
    if (first_peer(batch_) < 0)
      return now_ + std::chrono::milliseconds(1);  // another thread of this rank is copying
    auto least = held_.empty() ? Clock::time_point() : Clock::time_point::max();
    for (const int member : held_) least = std::min(least, shared_.here[at(member)] + deadline_);
    return least;
  }
  /// Returns the rank that has posted the fewest batches among those that this wait needs and that wait for no rank. -1 means
  /// that all of them wait, and therefore for each other. Ranks that have reported that they are busy are no culprits.
  int culprit() const {
    int late = -1;
    for (const int member : held_)
      if (shared_.here[at(member)] + deadline_ <= now_ &&
          (late < 0 || shared_.progress[at(member)] < shared_.progress[at(late)]))
        late = member;
    return late;
  }
  bool over() const { return patience() <= now_; }
  /// Returns the reason, once the wait is over.
  std::string reason() const {
    const std::string time = std::to_string(deadline_.count()) + " ms";
    if (const int late = culprit(); late >= 0)
      return "rank " + std::to_string(late) + " is late: a wait that needs it has lasted " + time;
    const std::vector<const Batch*> circle = find_circle();
    std::string who, where;
    for (std::size_t k = 0; k < circle.size(); ++k) {
      const Batch& one = *circle[k];
      const std::string rank = std::to_string(member(one));
      who += (k == 0 ? "" : k + 1 < circle.size() ? ", " : " and ") + rank;
      where += (k == 0 ? "rank " : ", rank ") + rank + " for rank " + std::to_string(first_peer(one)) +
               " in " + place_of(one.phase, one.wanted_in) + " on channel " + std::to_string(one.channel->id);
    }
    return "ranks " + who + " wait for each other, so that rank " + std::to_string(member(batch_)) +
           " has waited " + time + " in vain: " + where + "; " + same_calls;
  }

 private:
  static std::size_t at(int member) { return static_cast<std::size_t>(member); }
  static int member(const Batch& batch) { return batch.channel->members[at(batch.rank)]; }
  void add(int member) {
    if (member != ThreadBlame::member(batch_) && std::find(held_.begin(), held_.end(), member) == held_.end())
      held_.push_back(member);
  }
  /// Calls visit(world rank) for each message that the peer has not posted, or not taken.
  template <class Visit>
  static void for_each_peer(const Batch& batch, Visit visit) {
    ThreadShared::Channel& channel = *batch.channel;
    for (std::size_t k = 0; k < batch.receives.size(); ++k)
      if (const std::uint64_t number = batch.receive_numbers[k];
          number != Batch::done && missing(channel.lane(batch.receives[k].peer, batch.rank), number))
        visit(channel.members[at(batch.receives[k].peer)]);
    for (std::size_t k = 0; k < batch.sends.size(); ++k)
      if (const std::uint64_t number = batch.send_numbers[k];
          number != Batch::done &&
          channel.lane(batch.rank, batch.sends[k].peer)[number].state != ThreadShared::Post::State::taken)
        visit(channel.members[at(batch.sends[k].peer)]);
  }
  /// Checks whether a message is missing: not posted yet, or abandoned by its sender.
  static bool missing(ThreadShared::Lane& lane, std::uint64_t number) {
    return lane.posted <= number || lane[number].state == ThreadShared::Post::State::free;
  }
  static int first_peer(const Batch& batch) {
    int first = -1;
    for_each_peer(batch, [&](int member) { first = first < 0 ? member : std::min(first, member); });
    return first;
  }
  /// Checks whether a batch's rank waits for it now. A rank that only polls does not wait if its last poll is long ago or
  /// it has reported since then that it is busy.
  bool keeps_waiting(const Batch& batch) const {
    if (!batch.wanted || first_peer(batch) < 0) return false;
    return batch.waited ||
           (now_ - batch.asked_at <= shared_.deadline && shared_.here[at(member(batch))] < batch.asked_at);
  }
  /// Returns a batch that a rank waits for, or nullptr.
  const Batch* wait_of(int member) const {
    for (const Batch* one : shared_.under_way[at(member)])
      if (keeps_waiting(*one)) return one;
    return nullptr;
  }
  /// Follows waits from rank to rank until a rank repeats, which must happen since all wait, and returns that
  /// circle.
  std::vector<const Batch*> find_circle() const {
    std::vector<const Batch*> passed{&batch_};
    for (;;) {
      const int next = first_peer(*passed.back());
      const auto again =
          std::find_if(passed.begin(), passed.end(), [&](const Batch* one) { return member(*one) == next; });
      if (again != passed.end()) {
        const auto lowest = std::min_element(
            again, passed.end(), [](const Batch* a, const Batch* b) { return member(*a) < member(*b); });
        std::rotate(again, lowest, passed.end());
        return {again, passed.end()};
      }
      passed.push_back(wait_of(next));
    }
  }

  const ThreadShared& shared_;
  const Batch& batch_;
  std::chrono::milliseconds deadline_;
  Clock::time_point now_;
  std::vector<int> held_;  // world ranks that this wait needs and that wait for no rank
};

}  // namespace terse::detail
