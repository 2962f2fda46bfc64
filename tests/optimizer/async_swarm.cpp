// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <optional>

#include "reference/swarm.hpp"
#include "swarm_support.hpp"
#include "terse/optimizer/local/async_swarm_sgd.hpp"
#include "terse/transport/forwarding.hpp"

// Mailboxes between threads, and SwarmSGD without a schedule. To be run under a thread sanitizer, too.

using namespace terse;
using namespace terse::test;
using graph::Spacing;
using std::chrono::milliseconds;

namespace {

using Bytes = std::vector<std::byte>;
using Async = AsyncSwarmSgd<MomentumSgd<>>;
using AsyncOnLattice = AsyncSwarmSgd<MomentumSgd<>, Lattice<8>>;

template <class Error, class Program>
std::string refusal(int ranks, Program program) {
  try {
    on_ranks(ranks, program);
  } catch (const Error& failure) {
    return failure.what();
  }
  return {};
}
bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// Number k of a rank's packets, all bytes of it.
std::byte nth(int rank, std::uint64_t k) {
  return static_cast<std::byte>(k * 31 + static_cast<std::uint64_t>(rank));
}

/// A mailbox in which the last float of what others have published is not finite, and a transport that makes it.
struct DamagedMailbox {
  terse::detail::ThreadMailbox inner;
  void publish(std::span<const std::byte> packet) { inner.publish(packet); }
  std::uint64_t fetch(int peer, std::span<std::byte> place) {
    const std::uint64_t version = inner.fetch(peer, place);
    const float damage = std::numeric_limits<float>::infinity();
    if (version > 0) std::memcpy(place.last(sizeof damage).data(), &damage, sizeof damage);
    return version;
  }
};
template <Transport Inner>
struct WithDamagedMailbox : Forwarding<WithDamagedMailbox<Inner>, Inner> {
  using Forwarding<WithDamagedMailbox<Inner>, Inner>::Forwarding;
  template <class Call>
  auto carry(Phase, const Load&, const Call& call) {
    return call();
  }
  template <Transport T>
  WithDamagedMailbox<T> around(T other) const {
    return WithDamagedMailbox<T>(std::move(other));
  }
  DamagedMailbox mailbox(index_t bytes) { return {this->inner().mailbox(bytes)}; }
};

}  // namespace

static_assert(Mailbox<terse::detail::ThreadMailbox> && HasMailbox<Threads> && HasMailbox<Metered<Threads>>);

TEST_CASE("a packet is fetched whole, while its rank publishes others") {
  // Long enough to be met half-written.
  constexpr std::size_t bytes = 2'000'001;
  constexpr std::uint64_t publications = 30;
  for (const int ranks : {1, 2, 4}) {
    std::atomic<std::uint64_t> torn{0}, fetched{0}, different{0};
    on_ranks(ranks, [&](Threads& transport) {
      const int rank = transport.rank();
      terse::detail::ThreadMailbox mailbox = transport.mailbox(bytes);
      Bytes mine(bytes), place(bytes);
      std::vector<std::uint64_t> last(at(ranks));
      for (std::uint64_t k = 1; k <= publications; ++k) {
        std::memset(mine.data(), static_cast<int>(nth(rank, k)), bytes);
        mailbox.publish(mine);
        for (int peer = 0; peer < ranks; ++peer) {
          const std::uint64_t version = mailbox.fetch(peer, place);
          if (version == 0) continue;
          ++fetched;
          // All bytes are their neighbours.
          if (place[0] != nth(peer, version) || std::memcmp(&place[0], &place[1], bytes - 1) != 0) ++torn;
          if (version < last[at(peer)] || (peer == rank && version != k)) ++torn;
          if (peer != rank && version != last[at(peer)]) ++different;
          last[at(peer)] = version;
        }
      }
    });
    CHECK(torn == 0);
    CHECK(fetched >= publications * static_cast<std::uint64_t>(ranks));
    if (ranks > 1) CHECK(different > 0);
  }
}

TEST_CASE("a mailbox is empty at first, and keeps what ranks that have finished have published") {
  std::atomic<bool> finished{false};
  on_ranks(2, [&](Threads& transport) {
    terse::detail::ThreadMailbox mailbox = transport.mailbox(3);
    Bytes place(3, std::byte{9});
    if (transport.rank() == 0) {
      CHECK(mailbox.fetch(1, place) == 0);
      CHECK(place == Bytes(3, std::byte{9}));
      barrier(transport);
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!finished && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(20));
      CHECK(mailbox.fetch(1, place) == 2);
      CHECK(place == Bytes(3, std::byte{5}));
    } else {
      barrier(transport);
      mailbox.publish(Bytes(3, std::byte{4}));
      mailbox.publish(Bytes(3, std::byte{5}));
      finished = true;
    }
  });
}

TEST_CASE("mailboxes of channels are apart, have sizes of their own, and move") {
  on_ranks(3, [&](Threads& transport) {
    Threads pair = transport.split(transport.rank() == 1 ? 1 : 0, -transport.rank());
    terse::detail::ThreadMailbox none = transport.mailbox(0), one = pair.mailbox(4), other = pair.mailbox(2);
    none.publish({});
    const Bytes mine(4, nth(transport.rank(), 1));
    terse::detail::ThreadMailbox moved(std::move(one));
    moved.publish(mine);
    barrier(transport);
    Bytes place(4);
    CHECK(none.fetch(1, {}) == 1);
    CHECK(moved.fetch(0, place) == 1);
    CHECK(place == Bytes(4, nth(transport.rank() == 1 ? 1 : 2, 1)));
    Bytes two(2);
    CHECK(other.fetch(0, two) == 0);
  });
}

TEST_CASE("wrong sizes and ranks are refused, and a rank that has thrown ends the others") {
  CHECK(
      says(refusal<usage_error>(2, [](Threads& transport) { (void)transport.mailbox(4 + transport.rank()); }),
           "packets of one size"));
  CHECK(says(refusal<usage_error>(1, [](Threads& transport) { (void)transport.mailbox(-1); }),
             "packets of one size"));
  on_ranks(1, [](Threads& transport) {
    terse::detail::ThreadMailbox mailbox = transport.mailbox(4);
    Bytes small(3), right(4);
    CHECK_THROWS_AS(mailbox.publish(small), usage_error);
    CHECK_THROWS_AS(mailbox.fetch(0, small), usage_error);
    CHECK_THROWS_AS(mailbox.fetch(1, right), usage_error);
    CHECK_THROWS_AS(mailbox.fetch(-1, right), usage_error);
  });
  std::vector<int> culprits(3, -1);
  const auto program = [&](Threads& transport) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    const Bytes mine(4);
    try {
      terse::detail::ThreadMailbox mailbox = transport.mailbox(4);
      Bytes place(4);
      while (transport.rank() == 1 && std::chrono::steady_clock::now() < until)
        // The others must be at their mailboxes by then.
        if (mailbox.fetch(0, place) > 0 && mailbox.fetch(2, place) > 0)
          throw std::runtime_error("out of data");
      while (std::chrono::steady_clock::now() < until) mailbox.publish(mine);
    } catch (const peer_error& failure) {
      culprits[at(transport.rank())] = failure.culprit();
      throw;
    }
  };
  CHECK(says(refusal<std::runtime_error>(3, program), "out of data"));
  CHECK(culprits == std::vector<int>{1, -1, 1});
}

TEST_CASE("partners are equally likely, after as many steps as were asked for") {
  constexpr std::uint64_t steps = 24000;
  for (const Spacing spacing : {Spacing::fixed, Spacing::geometric}) {
    const Async recipe{.period = 3, .spacing = spacing};
    std::vector<int> counts(5), gaps(2);
    std::uint64_t last = 0;
    for (std::uint64_t step = 1; step <= steps; ++step) {
      const int peer = recipe.partner(1, 2, 5, step);
      if (peer < 0) continue;
      ++counts[at(peer)];
      ++gaps[step - last == 3 ? 0 : 1];
      last = step;
      CHECK(recipe.partner(1, 0, 1, step) == -1);
    }
    CHECK(counts[2] == 0);
    for (const int rank : {0, 1, 3, 4}) CHECK(counts[at(rank)] == doctest::Approx(2000).epsilon(0.08));
    // (2/3)^2 / 3 of the geometric gaps.
    if (spacing == Spacing::fixed)
      CHECK(gaps == std::vector<int>{8000, 0});
    else
      CHECK(gaps[0] == doctest::Approx(8000 * 4.0 / 27).epsilon(0.1));
  }
  int same = 0;
  for (std::uint64_t step = 1; step <= 300; ++step)
    same += Async{.period = 1}.partner(0, 0, 9, step) == Async{.period = 1}.partner(0, 1, 9, step) ? 1 : 0;
  CHECK(same < 100);
}

namespace {

/// Rank r makes speeds[r] steps when it is its turn; the others wait for that here, not in their optimizers.
template <class R>
void compare(const R& recipe, const std::vector<int>& speeds) {
  const auto ranks = static_cast<int>(speeds.size());
  CAPTURE(ranks);
  constexpr int turns = 12;
  std::vector<std::vector<Floats>> ours(at(ranks));
  std::vector<std::uint64_t> received(at(ranks));
  const auto gamma = [](std::uint64_t step) {
    return 0.03F * (1 + 0.5F * std::sin(static_cast<float>(step)));
  };
  on_ranks(ranks, [&](Threads& raw) {
    Metered<Threads> transport(raw.split(0, raw.rank()));
    Optimizer optimizer{recipe, transport, odd_sizes(), {.seed = 3}};
    const std::size_t rank = at(raw.rank());
    Floats x = start(odd_sizes());
    for (int turn = 0; turn < turns; ++turn)
      for (int acting = 0; acting < ranks; ++acting) {
        if (raw.rank() == acting)
          for (int k = 0; k < speeds[rank]; ++k) {
            optimizer.learning_rate(gamma(optimizer.steps() + 1));
            optimizer.step(x, Quadratics::gradient<float>(rank, x));
            ours[rank].push_back(x);
          }
        barrier(raw);
      }
    received[rank] = transport.traffic()[Phase::spread].bytes_received;
    CHECK(transport.traffic()[Phase::spread].bytes_sent == 0);
  });
  reference::AsyncSwarm<reference::MomentumSgd<>> oracle(
      odd_sizes(), at(ranks), {.momentum = static_cast<double>(0.9F)}, start(odd_sizes()));
  std::vector<std::uint64_t> made(at(ranks)), meetings(at(ranks));
  const Layout layout = odd_sizes();
  std::uint64_t packet = 32;
  for (const Segment& segment : layout.segments())
    packet += to_eight(4 * static_cast<std::uint64_t>(segment.count));
  for (int turn = 0; turn < turns; ++turn)
    for (int acting = 0; acting < ranks; ++acting)
      for (int k = 0; k < speeds[at(acting)]; ++k) {
        const std::size_t rank = at(acting);
        const std::uint64_t step = ++made[rank];
        const int partner = recipe.partner(3, acting, ranks, step);
        // In the first turn some have not begun, and are passed over.
        if (partner >= 0 && (partner < acting || turn > 0)) ++meetings[rank];
        oracle.step(rank, static_cast<double>(gamma(step)), Quadratics::gradient<double>, partner);
        const reference::Arenas x = oracle.x();
        REQUIRE(relative_error(odd_sizes(), ours[rank][step - 1], x[rank], any_one, 1) < 1e-5);
      }
  for (std::size_t rank = 0; rank < at(ranks); ++rank) {
    CHECK(received[rank] == meetings[rank] * packet);
    CHECK((meetings[rank] > 2) == (ranks > 1));
  }
}

}  // namespace

TEST_CASE("a rank takes the mean with what the other has published last, whoever is faster") {
  compare(Async{.period = 2}, {1});
  compare(Async{.period = 2}, {1, 1});
  compare(Async{.period = 2}, {1, 2, 3});
  compare(Async{.period = 1}, {2, 1, 1, 3});
  compare(Async{.period = 3, .spacing = Spacing::geometric}, {1, 3, 2, 1, 1, 2, 3});
}

TEST_CASE("through a lattice what was published is read within half a step, within its bound") {
  constexpr float lattice_step = 0.001F;  // reaches 0.1275
  for (const float apart : {0.1F, 0.13F}) {
    std::int64_t noticed = 0;
    on_ranks(2, [&](Threads& raw) {
      Metered<Threads> transport(raw.split(0, raw.rank()));
      AsyncOnLattice recipe{.period = 1, .compressor = {lattice_step}};
      recipe.inner.learning_rate = 0;
      Optimizer optimizer{recipe, transport, partly_compressed()};
      Floats x = start(odd_sizes());
      const Floats first = x, none(x.size());
      // The last element, so that all else has been read by then.
      const std::size_t last = at(odd_sizes().segments().back().offset + 999);
      if (raw.rank() == 0) {
        x[last] += apart;
        x[at(odd_sizes().segments()[1].offset)] += 1;  // as it is
        optimizer.step(x, none);
      }
      barrier(raw);
      if (raw.rank() == 0) return;
      try {
        optimizer.step(x, none);
        each(odd_sizes(), any_one, [&](std::size_t k) {
          const bool is_last = k == last, is_plain = k == at(odd_sizes().segments()[1].offset);
          const double expected = static_cast<double>(first[k]) + (is_last ? 0.05 : is_plain ? 0.5 : 0);
          CHECK(std::abs(static_cast<double>(x[k]) - expected) <
                (is_plain ? 0 : 0.25 * static_cast<double>(lattice_step)) + 2e-7);
        });
        CHECK(x[129] != first[129]);
      } catch (const wire_error& failure) {
        noticed = failure.step();
        CHECK(says(failure.what(), "rank 0 has published can't be decoded with this rank's own parameters"));
        CHECK(x == first);
      }
    });
    CHECK(noticed == (apart > 0.12F ? 1 : 0));
  }
}

TEST_CASE("a packet that was damaged in its mailbox changes no parameter") {
  std::string noticed;
  on_ranks(2, [&](Threads& raw) {
    WithDamagedMailbox<Threads> transport(raw.split(0, raw.rank()));
    Async recipe{.period = 1};
    recipe.inner.learning_rate = 0;
    Optimizer optimizer{recipe, transport, odd_sizes()};
    Floats x = start(odd_sizes());
    const Floats first = x, none(x.size());
    if (raw.rank() == 0) {
      x[0] += 1;
      optimizer.step(x, none);
    }
    barrier(raw);
    if (raw.rank() == 0) return;
    try {
      optimizer.step(x, none);
    } catch (const wire_error& failure) {
      noticed = failure.what();
      CHECK(x == first);
    }
  });
  CHECK(says(noticed, "rank 0 (as published)"));
  CHECK(says(noticed, "not finite"));
}

TEST_CASE("ranks of different speeds converge together, and none waits for another") {
  constexpr int ranks = 4, steps = 240;
  const Layout layout = odd_sizes();
  std::vector<Floats> ends(ranks);
  std::vector<double> shares(ranks), widest(ranks);
  on_ranks(ranks, [&](Threads& raw) {
    Metered<Threads> transport(raw.split(0, raw.rank()));
    const std::size_t rank = at(raw.rank());
    Optimizer optimizer{Async{.inner = plain(), .period = 2}, transport, layout};
    Floats x = start(layout);
    barrier(raw);
    const double before = transport.traffic().seconds;
    const auto begin = std::chrono::steady_clock::now();
    // The others are three times as fast, and make three times the steps.
    const int mine = raw.rank() == 0 ? steps / 3 : steps;
    for (int step = 1; step <= mine; ++step) {
      std::this_thread::sleep_for(std::chrono::microseconds(raw.rank() == 0 ? 3000 : 1000));
      optimizer.learning_rate(0.1F * (1 - static_cast<float>(step - 1) / static_cast<float>(mine)));
      optimizer.step(x, Quadratics::gradient<float>(rank, x));
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    shares[rank] = (transport.traffic().seconds - before) / seconds;
    ends[rank] = x;
  });
  double square = 0, wide = 0, far = 0, count = 0;
  each(layout, any_one, [&](std::size_t k) {
    double curvature = 0, pull = 0, mean = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const double a = static_cast<double>(Quadratics::all().curvature[rank][k]);
      curvature += a;
      pull += a * static_cast<double>(Quadratics::all().centre[rank][k]);
      mean += static_cast<double>(ends[rank][k]) / ranks;
    }
    if (k >= at(layout.segments()[5].offset) && k < at(layout.segments()[5].offset + 3)) return;  // frozen
    for (std::size_t rank = 0; rank < ranks; ++rank)
      wide += std::pow(static_cast<double>(ends[rank][k]) - mean, 2) / ranks;
    square += std::pow(mean - pull / curvature, 2);
    far += std::pow(static_cast<double>(start(layout)[k]) - pull / curvature, 2);
    ++count;
  });
  MESSAGE("from the minimum: " << std::sqrt(square / count) << " of " << std::sqrt(far / count) << ", spread "
                               << std::sqrt(wide / count) << ", longest share of waiting "
                               << *std::max_element(shares.begin(), shares.end()));
  // Where the mean is depends on how fast each was; a spread of the size of `far` is what ranks alone would have.
  CHECK(square < 0.25 * far);
  CHECK(wide < 0.1 * far);
  for (const double share : shares) CHECK(share < 0.1);
}

TEST_CASE("what would need all ranks in each step is refused") {
  const auto first_step = [](const auto& recipe, const Options& options) {
    return refusal<usage_error>(2, [&](Threads& raw) {
      Metered<Threads> transport(raw.split(0, raw.rank()));
      Optimizer optimizer{recipe, transport, odd_sizes(), options};
      Floats x = start(odd_sizes());
      optimizer.step(x, Floats(x.size()));
    });
  };
  CHECK(says(first_step(Async{}, {.on_non_finite = NonFinite::skip}), "never does"));
  // Each clips its own.
  CHECK(first_step(Async{}, {.clip_norm = 1}).empty());
  CHECK(says(first_step(Async{.period = 0}, {}), "period must be at least 1"));
  CHECK(says(first_step(AsyncOnLattice{.compressor = {.step = 0}}, {}), "step must be positive"));
}

TEST_CASE("what is not finite is found by its rank, and never published") {
  for (const bool parameters : {false, true}) {
    std::vector<std::string> ends(3);
    const auto program = [&](Threads& raw) {
      try {
        Metered<Threads> transport(raw.split(0, raw.rank()));
        Optimizer optimizer{Async{.period = 1}, transport, odd_sizes()};
        Floats x = start(odd_sizes());
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        for (int step = 1; std::chrono::steady_clock::now() < until; ++step) {
          Floats g = Quadratics::gradient<float>(at(raw.rank()), x);
          if (raw.rank() == 1 && step == 4)
            (parameters ? x : g)[70] = std::numeric_limits<float>::quiet_NaN();
          optimizer.step(x, g);
          for (const float one : x) REQUIRE((std::isfinite(one) || raw.rank() == 1));
        }
      } catch (const non_finite_error& failure) {
        ends[at(raw.rank())] = "rank " + std::to_string(failure.culprit()) + " as " +
                               std::to_string(failure.rank()) + " in " + std::to_string(failure.step());
        throw;
      } catch (const peer_error& failure) {
        ends[at(raw.rank())] = "peer " + std::to_string(failure.culprit());
        throw;
      }
    };
    CHECK_FALSE(refusal<non_finite_error>(3, program).empty());
    CHECK(ends == std::vector<std::string>{"peer 1", "rank 1 as 1 in 4", "peer 1"});
  }
}
