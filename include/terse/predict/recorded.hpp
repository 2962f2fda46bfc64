// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <time.h>

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>

#include "terse/predict/round.hpp"
#include "terse/transport/forwarding.hpp"

namespace terse::predict {

/// Returns the processor seconds of the calling thread, without those of other threads on a shared core.
inline double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Traffic of a rank over its transport, and its cost.
struct Recording {
  Round round;  ///< batches of equally many messages and similar size are merged, with their mean bytes
  double processor_seconds = 0;  ///< inside the transport's calls

  void add(const Load& load) {
    const double messages = static_cast<double>(std::max(load.messages_sent, load.messages_received));
    const double sent = static_cast<double>(load.bytes_sent);
    const double moved = static_cast<double>(std::max(load.bytes_sent, load.bytes_received));
    if (messages <= 0) return;
    const auto known = std::find_if(round.begin(), round.end(), [&](const Batch& batch) {
      return std::equal_to{}(batch.messages, messages) && batch.moved <= 2 * moved &&
             moved <= 2 * batch.moved;
    });
    Batch& batch = known != round.end() ? *known : round.emplace_back(Batch{messages, sent, moved, 0});
    const double share = 1 / ++batch.count;
    batch.sent += (sent - batch.sent) * share;
    batch.moved += (moved - batch.moved) * share;
  }
};

namespace detail {

class ProcessorClock {
 public:
  explicit ProcessorClock(Recording& recording) : recording_(recording), begin_(processor_seconds()) {}
  ~ProcessorClock() { recording_.processor_seconds += processor_seconds() - begin_; }
  ProcessorClock(const ProcessorClock&) = delete;
  ProcessorClock& operator=(const ProcessorClock&) = delete;

 private:
  Recording& recording_;
  double begin_;
};

}  // namespace detail

/// A decorator that records each batch of an inner transport and of channels split from it, and the processor time of its
/// calls, in a Recording, which must stay in place. The rest of a step's processor time is that of the local passes.
template <Transport Inner>
class Recorded : public Forwarding<Recorded<Inner>, Inner> {
  using Clock = detail::ProcessorClock;

 public:
  class Ticket {
   public:
    Ticket(TicketOf<Inner> inner, Recording& recording) : inner_(std::move(inner)), recording_(&recording) {}
    bool ready() {
      const Clock clock(*recording_);
      return inner_.ready();
    }
    template <class... Deadline>
    void wait(Deadline... deadline) {
      const Clock clock(*recording_);
      inner_.wait(deadline...);
    }

   private:
    TicketOf<Inner> inner_;
    Recording* recording_;
  };

  Recorded(Inner inner, Recording& recording)
      : Forwarding<Recorded, Inner>(std::move(inner)), recording_(&recording) {}

  template <class Call>
  auto carry(Phase, const Load& load, const Call& call) {
    const Clock clock(*recording_);
    recording_->add(load);
    if constexpr (std::is_void_v<decltype(call())>)
      call();
    else
      return Ticket(call(), *recording_);
  }
  template <Transport Other>
  Recorded<Other> around(Other other) const {
    return Recorded<Other>(std::move(other), *recording_);
  }

 private:
  Recording* recording_;
};

}  // namespace terse::predict
