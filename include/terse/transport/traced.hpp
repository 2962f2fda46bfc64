// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/transport/assembly.hpp"
#include "terse/transport/backoff.hpp"
#include "terse/transport/forwarding.hpp"
#include "terse/transport/trace.hpp"

namespace terse {

/// A decorator that records in a Trace for which ranks its rank waits, and for how long. Channels split from it use the same Trace. Waits
/// poll the inner transport, which takes more of a core than the inner transport's own waits. Over a transport whose tickets don't say
/// whose message is missing (NCCL, torch.distributed), waits don't poll, and are for no particular rank. A rank that is waited for may itself wait for
/// another one: in a ring, ranks also wait for the slow rank's successors.
template <Transport Inner>
class Traced : public Forwarding<Traced<Inner>, Inner> {
  using Base = Forwarding<Traced<Inner>, Inner>;
  using Names = std::shared_ptr<const std::vector<int>>;

 public:
  class Ticket {
   public:
    Ticket(TicketOf<Inner> inner, std::shared_ptr<Trace> trace, Names names, const Trace::Event& event)
        : inner_(std::move(inner)), trace_(std::move(trace)), names_(std::move(names)), event_(event) {}
    bool ready() {
      if (!inner_.ready()) return false;
      end(0);
      return true;
    }
    template <class... Deadlines>
    void wait(Deadlines... deadline) {
      if (!trace_) return;
      const double begin = trace_->now();
      // A wait with a deadline of its own asks once: further calls of `ready` could end it by the transport's deadline.
      if constexpr (KnowsAwaited<TicketOf<Inner>>) poll(sizeof...(deadline) == 0 ? begin + 1 : begin);
      // After that the inner transport waits by itself, and finds the culprit if its deadline passes.
      inner_.wait(deadline...);
      end(trace_->now() - begin);
    }

   private:
    void poll(double until) {
      detail::Backoff pause;
      while (!inner_.ready()) {
        if (const int peer = inner_.awaited(); peer >= 0)
          event_.awaited = (*names_)[static_cast<std::size_t>(peer)];
        if (trace_->now() > until) return;
        pause();
      }
    }
    void end(double waited) {
      if (!trace_) return;
      event_.seconds = trace_->now() - event_.begin;
      event_.waited = waited;
      trace_->add(event_);
      trace_.reset();
    }

    TicketOf<Inner> inner_;
    std::shared_ptr<Trace> trace_;
    Names names_;
    Trace::Event event_;
  };

  /// Records the last `events` batches. Throws usage_error if that is 0.
  explicit Traced(Inner inner, std::size_t events = 65536)
      : Base(std::move(inner)), trace_(std::make_shared<Trace>(Base::rank(), Base::size(), events)) {
    std::vector<int> names;
    for (int rank = 0; rank < Base::size(); ++rank) names.push_back(rank);
    names_ = std::make_shared<const std::vector<int>>(std::move(names));
  }

  /// Returns the record, which may be kept after the transport is gone.
  std::shared_ptr<Trace> trace() const { return trace_; }

  template <class Call>
  auto carry(Phase phase, const Load& load, const Call& call) {
    Trace::Event event{phase, Trace::unknown, trace_->steps(), load.bytes_sent, trace_->now(), 0, 0};
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
      event.seconds = event.waited = trace_->now() - event.begin;
      trace_->add(event);
    } else {
      return Ticket(call(), trace_, names_, event);
    }
  }
  /// Wraps a channel of some of the ranks, which exchange their names. Collective, as splitting is.
  template <Transport Other>
  Traced<Other> around(Other other) const {
    Assembly<int, Other> everyone(other);
    const auto names = everyone(other, trace_->rank(), Phase::setup);
    auto shared = std::make_shared<const std::vector<int>>(names.begin(), names.end());
    return Traced<Other>(std::move(other), trace_, std::move(shared));
  }

 private:
  template <Transport>
  friend class Traced;
  Traced(Inner inner, std::shared_ptr<Trace> trace, Names names)
      : Base(std::move(inner)), trace_(std::move(trace)), names_(std::move(names)) {}

  std::shared_ptr<Trace> trace_;
  Names names_;
};

/// Gathers the traces of all ranks. On rank 0 returns them as a file in the Trace Event Format, which Perfetto and Chrome open; on other ranks
/// returns an empty text. Collective, over any channel of all ranks. A barrier sets the ranks' clocks, so that they agree up to the time of a
/// message.
template <Transport T>
std::string gather_trace(T& transport, const Trace& trace) {
  const auto ranks = static_cast<std::size_t>(transport.size());
  Assembly<double, T> clocks(transport);
  barrier(transport, Phase::setup);
  const double now = trace.now();
  const std::string mine = trace.json(clocks(transport, now, Phase::setup).front() - now);
  Assembly<std::uint64_t, T> lengths(transport);
  const std::span<const std::uint64_t> bytes = lengths(transport, mine.size(), Phase::setup);
  constexpr std::size_t block = std::size_t{1} << 20;
  std::vector<std::byte> sent(block), all(ranks * block);
  std::vector<std::string> texts(ranks);
  detail::HostGather by_exchange(transport.size());
  for (std::size_t first = 0; first < *std::max_element(bytes.begin(), bytes.end()); first += block) {
    if (first < mine.size())
      std::memcpy(sent.data(), mine.data() + first, std::min(block, mine.size() - first));
    detail::gather_host_bytes(transport, by_exchange, sent, all, Phase::setup);
    if (transport.rank() != 0) continue;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      if (first < bytes[rank])
        texts[rank].append(reinterpret_cast<const char*>(all.data() + rank * block),
                           std::min<std::size_t>(block, bytes[rank] - first));
  }
  if (transport.rank() != 0) return {};
  std::string file = "{\"traceEvents\":[\n";
  for (std::size_t rank = 0; rank < ranks; ++rank) file += (rank == 0 ? "" : ",\n") + texts[rank];
  return file + "\n]}\n";
}

/// Returns a line for each rank for which others have waited, the longest wait first, on all ranks: "each other rank waited 12.3 s for
/// rank 3, its longest wait in 41 % of the steps". Collective over a channel of all ranks.
template <Transport T>
std::string waited_for(T& transport, const Trace& trace) {
  const std::span<const Trace::Waits> mine = trace.waits();
  std::vector<Trace::Waits> all(mine.size() * static_cast<std::size_t>(transport.size()));
  detail::HostGather by_exchange(transport.size());
  detail::gather_host_bytes(transport, by_exchange, std::as_bytes(mine),
                            std::as_writable_bytes(std::span(all)), Phase::setup);
  return who_was_waited_for(all, transport.size(), trace.steps());
}

}  // namespace terse
