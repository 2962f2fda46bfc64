// SPDX-License-Identifier: Apache-2.0

// The library's transports between threads keep the laws of transports, and each law finds what breaks it. tests/transport
// tries them over MPI.

#include <doctest/doctest.h>

#include <atomic>

#include "archetype_transport.hpp"
#include "terse/laws/transport.hpp"
#include "terse/transport/any.hpp"
#include "terse/transport/delayed.hpp"
#include "terse/transport/metered.hpp"
#include "terse/transport/nodes.hpp"
#include "terse/transport/thread.hpp"
#include "terse/transport/traced.hpp"

namespace {

using namespace terse;
using laws::Report;

constexpr laws::TransportOptions with_deadline{.patience = std::chrono::seconds(2),
                                               .deadline = std::chrono::milliseconds(200)};

void holds(const std::vector<Report>& reports) {
  for (const Report& report : reports) {
    CHECK_MESSAGE(report, report.text());
    CHECK(report.passed.size() + report.not_applicable.size() == 9);
    CHECK(report.passed.size() >= 8);
  }
}

enum class Fault { none, ranks, bytes, beyond, empty, up_to, order, ready, split, barrier, deadline, early };

/// The archetype with a fault.
template <Fault F>
class Broken {
 public:
  using memory = memory::host;

  class Ticket {
   public:
    Ticket(archetype::Transport::Ticket inner, std::vector<Receive> receives)
        : inner_(std::move(inner)), receives_(std::move(receives)) {}
    bool ready() { return F != Fault::ready && inner_.ready(); }
    void wait() {
      inner_.wait();
      spoil();
    }
    void wait(std::chrono::milliseconds deadline) {
      if constexpr (F == Fault::early) deadline /= 2;
      try {
        inner_.wait(deadline);
      } catch (const peer_error&) {
        if constexpr (F == Fault::deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
        throw;
      }
      spoil();
    }

   private:
    void spoil() {
      for (const Receive& receive : receives_) {
        if (F == Fault::bytes && receive.bytes > 4000) receive.data[4000] ^= std::byte{1};
        if (F == Fault::beyond && receive.bytes == 64) receive.data[64] = std::byte{0};
        if (F == Fault::up_to && receive.up_to) receive.data[receive.bytes - 1] = std::byte{0};
      }
    }
    archetype::Transport::Ticket inner_;
    std::vector<Receive> receives_;
  };

  explicit Broken(archetype::Transport inner) : inner_(std::move(inner)) {}
  int rank() const { return F == Fault::ranks && inner_.rank() == 2 ? 1 : inner_.rank(); }
  int size() const { return inner_.size(); }
  Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    if (F == Fault::empty && sends.empty()) throw usage_error("a batch has messages");
    std::vector<Send> kept(sends.begin(), sends.end());
    // Every other batch of this size says what the one before it has said.
    if (F == Fault::order && !kept.empty() && kept[0].bytes == 2000) {
      if (++batches_ % 2 == 0) kept[0].data = before_;
      before_ = kept[0].data;
    }
    if constexpr (F == Fault::barrier)
      if (phase == Phase::barrier) return {inner_.exchange({}, {}, phase), {}};
    return {inner_.exchange(kept, receives, phase), {receives.begin(), receives.end()}};
  }
  Broken split(int color, int key) {
    if constexpr (F == Fault::split) return Broken(inner_.split(color, -key));
    return Broken(inner_.split(color, key));
  }

 private:
  archetype::Transport inner_;
  const std::byte* before_ = nullptr;
  int batches_ = 0;
};

template <Fault F>
std::vector<Report> reports_of(int ranks) {
  std::vector<Report> reports(static_cast<std::size_t>(ranks));
  archetype::run(
      ranks,
      [&](archetype::Transport& inner) {
        const auto rank = static_cast<std::size_t>(inner.rank());
        Broken<F> transport(std::move(inner));
        reports[rank] = laws::check_transport(transport, with_deadline);
      },
      std::chrono::seconds(2));
  return reports;
}

template <Fault F>
void breaks(const char* law) {
  bool broke = false;
  std::string text;
  for (const Report& report : reports_of<F>(3)) {
    broke = broke || report.broke(law);
    text += report.text();
  }
  CHECK_MESSAGE(broke, text);
}

}  // namespace

TEST_CASE("transports between threads keep the laws") {
  for (const int ranks : {1, 2, 3, 4}) {
    std::vector<Report> plain(static_cast<std::size_t>(ranks)), metered = plain, delayed = plain, any = plain,
                                                                traced = plain, node = plain, nodes = plain,
                                                                own = plain;
    ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      Metered counted(transport.split(0, transport.rank()));
      metered[rank] = laws::check_transport(counted);
      Delayed slow(transport.split(0, transport.rank()), {.latency = std::chrono::microseconds(50)});
      delayed[rank] = laws::check_transport(slow);
      AnyTransport anyone(Metered(transport.split(0, transport.rank())));
      any[rank] = laws::check_transport(anyone);
      Traced seen(transport.split(0, transport.rank()));
      traced[rank] = laws::check_transport(seen);
      // Of one node or of nodes of one rank, where each rank has a way to each other.
      const auto alone = [&] { return transport.split(transport.rank(), 0); };
      Metered one_node(Nodes(transport.split(0, transport.rank()), alone()));
      node[rank] = laws::check_transport(one_node);
      AnyTransport by_one(Nodes(alone(), transport.split(0, transport.rank())));
      nodes[rank] = laws::check_transport(by_one);
      plain[rank] = laws::check_transport(transport);
    });
    holds(plain);
    for (const auto& reports : {metered, delayed, any, traced, node, nodes}) holds(reports);
    archetype::run(ranks, [&](archetype::Transport& transport) {
      own[static_cast<std::size_t>(transport.rank())] = laws::check_transport(transport, with_deadline);
    });
    holds(own);
  }
}

TEST_CASE("a peer that stays away ends a wait between threads") {
  std::vector<Report> reports(2);
  CHECK_THROWS_AS(ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    reports[static_cast<std::size_t>(transport.rank())] = laws::check_transport(transport, with_deadline);
    barrier(transport);
  }),
                  peer_error);
  holds(reports);
}

TEST_CASE("laws find what breaks them") {
  holds(reports_of<Fault::none>(3));
  breaks<Fault::ranks>("ranks");
  breaks<Fault::bytes>("bytes");
  breaks<Fault::beyond>("bytes");
  breaks<Fault::empty>("empty");
  breaks<Fault::up_to>("up to");
  breaks<Fault::order>("order");
  breaks<Fault::ready>("tickets");
  breaks<Fault::split>("split");
  breaks<Fault::barrier>("barrier");
  breaks<Fault::deadline>("deadline");
  breaks<Fault::early>("deadline");
}
