// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <queue>
#include <utility>
#include <vector>

// Rounds of messages through a switch, message by message. It knows nothing of the formulas that it is held against.

namespace simulation {

/// Each rank has a port that moves one message at a time in each direction. A message leaves when those posted before it have
/// left, arrives `latency` after it began to leave, and is taken when those that arrived before it are taken; queues have no end.
struct Port {
  double latency = 0;      ///< s
  double per_message = 0;  ///< s that a message keeps a port busy besides its bytes
  double bandwidth = 1;    ///< bytes/s
};

struct Message {
  int to = 0;
  double bytes = 0;
};

/// Who sends what when: a rank posts a phase's messages, in their order, once all it sends and receives in the phase before is done.
struct Schedule {
  std::vector<std::vector<std::vector<Message>>> sends;  // [rank][phase]
  std::vector<const Port*> ports;                        // [phase]

  Schedule(int ranks, std::vector<const Port*> ports_of_phases)
      : sends(static_cast<std::size_t>(ranks)), ports(std::move(ports_of_phases)) {
    for (auto& phases : sends) phases.resize(ports.size());
  }
  int ranks() const { return static_cast<int>(sends.size()); }
  void add(int rank, std::size_t phase, Message message) {
    sends[static_cast<std::size_t>(rank)][phase].push_back(message);
  }
};

struct Result {
  double seconds = 0;
  double queue = 0;  ///< the most bytes that have waited at a port
};

inline Result run(const Schedule& schedule) {
  struct Rank {
    std::size_t phase = 0;
    double out_free = 0, in_free = 0;
    std::vector<std::size_t> missing;  // [phase]
  };
  struct Arrival {
    double first, last;  // when the first and the last byte are at the receiver's port
    int to;
    std::size_t phase;
    double bytes;
    std::size_t number;  // ties go in the order of posts
    bool operator>(const Arrival& other) const {
      return first != other.first ? first > other.first : number > other.number;
    }
  };
  const std::size_t phases = schedule.ports.size();
  std::vector<Rank> ranks(schedule.sends.size());
  for (Rank& rank : ranks) rank.missing.resize(phases);
  for (const auto& sends : schedule.sends)
    for (std::size_t phase = 0; phase < phases; ++phase)
      for (const Message& message : sends[phase])
        ++ranks[static_cast<std::size_t>(message.to)].missing[phase];

  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals;
  std::size_t number = 0;
  const auto busy = [&](std::size_t phase, double bytes) {
    return schedule.ports[phase]->per_message + bytes / schedule.ports[phase]->bandwidth;
  };
  const auto post = [&](std::size_t r, double now) {
    Rank& rank = ranks[r];
    for (const Message& message : schedule.sends[r][rank.phase]) {
      const double begin = std::max(now, rank.out_free), latency = schedule.ports[rank.phase]->latency;
      rank.out_free = begin + busy(rank.phase, message.bytes);
      arrivals.push(
          {begin + latency, rank.out_free + latency, message.to, rank.phase, message.bytes, number++});
    }
  };
  Result result;
  // Posts the phases that this rank can begin.
  const auto go_on = [&](std::size_t r, double now) {
    Rank& rank = ranks[r];
    while (rank.phase < phases && rank.missing[rank.phase] == 0) {
      now = std::max(now, rank.out_free);
      result.seconds = std::max(result.seconds, now);
      if (++rank.phase < phases) post(r, now);
    }
  };
  for (std::size_t r = 0; r < ranks.size(); ++r) post(r, 0);
  for (std::size_t r = 0; r < ranks.size(); ++r) go_on(r, 0);
  while (!arrivals.empty()) {
    const Arrival arrival = arrivals.top();
    arrivals.pop();
    Rank& rank = ranks[static_cast<std::size_t>(arrival.to)];
    result.queue =
        std::max(result.queue, (rank.in_free - arrival.first) * schedule.ports[arrival.phase]->bandwidth);
    rank.in_free =
        std::max(arrival.last, std::max(arrival.first, rank.in_free) + busy(arrival.phase, arrival.bytes));
    --rank.missing[arrival.phase];
    go_on(static_cast<std::size_t>(arrival.to), rank.in_free);
  }
  return result;
}

/// To all others, in whose order?
enum class Order {
  by_rank,   ///< everybody to rank 0 first
  by_shift,  ///< rank r to r + 1 first
};

/// Messages of `bytes` from each of `count` ranks, `first`, `first + step`, ..., to all others of them.
inline void all_to_all(Schedule& schedule, std::size_t phase, double bytes, Order order, int first, int step,
                       int count) {
  for (int k = 0; k < count; ++k)
    for (int other = 0; other < count; ++other) {
      const int to = order == Order::by_rank ? other : (k + 1 + other) % count;
      if (to != k) schedule.add(first + k * step, phase, {first + to * step, bytes});
    }
}

}  // namespace simulation
