// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <list>
#include <optional>

#include "support.hpp"
#include "terse/device.hpp"
#include "terse/device/emulated.hpp"
#include "terse/transport/through_host.hpp"

// Packets that are damaged on their way, and replicas that have drifted.

using namespace terse;
using namespace terse::test;

namespace {

/// What becomes of a payload of `bytes` bytes.
struct Damage {
  const char* name;
  void (*act)(std::byte* payload, index_t bytes);
};
void put_word(std::byte* payload, index_t at, std::uint32_t word) { std::memcpy(payload + at, &word, 4); }
void fill_words(std::byte* payload, index_t bytes, std::uint32_t word) {
  for (index_t at = 0; at + 4 <= bytes; at += 4) put_word(payload, at, word);
}
void flip(std::byte* payload, index_t at, int bit) { payload[at] ^= std::byte{1} << bit; }

constexpr std::uint32_t not_a_number = 0x7FC00000, unbounded = 0x7F800000, largest = 0x7F7FFFFF;
const Damage damages[] = {
    {"the lowest bit of the first float", [](std::byte* p, index_t) { flip(p, 0, 0); }},
    {"the highest bit of an exponent", [](std::byte* p, index_t) { flip(p, 3, 6); }},
    {"a bit in the middle", [](std::byte* p, index_t n) { flip(p, n / 2, 3); }},
    {"a bit at the end", [](std::byte* p, index_t n) { flip(p, n - 8, 5); }},
    {"a NaN in front", [](std::byte* p, index_t) { put_word(p, 0, not_a_number); }},
    {"a NaN at the end", [](std::byte* p, index_t n) { put_word(p, n - 8, not_a_number); }},
    {"an infinity in the middle", [](std::byte* p, index_t n) { put_word(p, n / 8 * 4, unbounded); }},
    {"2^64 in front", [](std::byte* p, index_t) { put_word(p, 0, 0x5F800000); }},
    {"almost 2^63 in front", [](std::byte* p, index_t) { put_word(p, 0, 0x5EFFFFFF); }},
    {"NaNs everywhere", [](std::byte* p, index_t n) { fill_words(p, n, not_a_number); }},
    {"the largest floats everywhere", [](std::byte* p, index_t n) { fill_words(p, n, largest); }},
    {"almost 2^63 everywhere", [](std::byte* p, index_t n) { fill_words(p, n, 0x5EFFFFFF); }},
    {"all bits", [](std::byte* p, index_t n) { std::memset(p, 0xFF, static_cast<std::size_t>(n)); }},
    {"a page of zeros", [](std::byte* p, index_t n) { std::memset(p, 0, static_cast<std::size_t>(n)); }},
};

/// What happens to the next packet that a rank sends in a phase, if anything.
struct Mishap {
  const Damage* damage = nullptr;
  Phase phase = Phase::reduce;
  int spared = 0;  // batches of the phase that go by before
  bool done = false;
  std::list<std::vector<std::byte>> packets;  // as they were sent
  std::list<std::vector<Send>> lists;
};

/// Damages copies, so that the sender's own part of a round is as it was.
class Damaging : public Forwarding<Damaging, Threads> {
 public:
  Damaging(Threads inner, Mishap& mishap) : Forwarding(std::move(inner)), mishap_(&mishap) {}
  [[nodiscard]] auto exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    constexpr index_t header = sizeof(PacketHeader);
    if (mishap_->damage == nullptr || phase != mishap_->phase || sends.empty() ||
        sends.front().bytes <= header + 8 || mishap_->spared-- > 0)
      return inner().exchange(sends, receives, phase);
    std::vector<Send>& list = mishap_->lists.emplace_back(sends.begin(), sends.end());
    Send& send = list.front();
    std::vector<std::byte>& packet = mishap_->packets.emplace_back(send.data, send.data + send.bytes);
    std::exchange(mishap_->damage, nullptr)->act(packet.data() + header, send.bytes - header);
    mishap_->done = std::memcmp(packet.data(), send.data, packet.size()) != 0;
    send.data = packet.data();
    return inner().exchange(list, receives, phase);
  }
  Damaging around(Threads other) const { return {std::move(other), *mishap_}; }

 private:
  Mishap* mishap_;
};

/// Whether all that an optimizer shows is finite, wherever it lies.
struct Finite {
  bool all = true;

  template <class V, class Space>
  void operator()(const std::string&, view<V, Space> part, index_t) {
    std::vector<V> here(at(part.size()));
    download(view<const V, Space>(part), view<V>(here));
    all = all && std::all_of(here.begin(), here.end(),
                             [](V value) { return std::isfinite(static_cast<double>(value)); });
  }
  void operator()(const std::string&, std::uint64_t&) {}
};
bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr int ranks = 4;
struct Outcome {
  bool damaged = false;  // a packet was sent, and was not as before
  std::vector<std::string> wire_errors = std::vector<std::string>(ranks);
  std::vector<char> finite = std::vector<char>(ranks);
  std::vector<char> moved = std::vector<char>(ranks);  // in a step that threw wire_error

  /// The first rank that has thrown wire_error, else rank 0.
  std::size_t reporter() const {
    const auto first =
        std::find_if(wire_errors.begin(), wire_errors.end(), [](const auto& one) { return !one.empty(); });
    return first == wire_errors.end() ? 0 : at(first - wire_errors.begin());
  }
};

template <Executor E>
auto on_executor(Damaging transport) {
  if constexpr (GridExecutor<E>)
    return ThroughHost<Damaging, E>(std::move(transport), E{});
  else
    return transport;
}

/// Nine steps, of which rank 1 sends a damaged packet in step `when`, after `spared` batches of the phase.
template <Executor E = executor::host, class R>
Outcome run_damaged(const R& recipe, const Damage& damage, Phase phase, std::uint64_t when,
                    const Options& options, int spared = 0) {
  using Space = typename E::memory;
  Layout layout;
  layout.add({"w", {20, 15}}).add({"b", {70}, 1, 1, false});
  Outcome outcome;
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& raw) {
    const std::size_t rank = at(raw.rank());
    Mishap mishap;
    auto transport = on_executor<E>(Damaging(raw.split(0, raw.rank()), mishap));
    Optimizer optimizer{recipe, transport, layout, options, E{}};
    Floats x = start(layout), before;
    buffer<float, Space> parameters(layout.size()), gradients(layout.size());
    upload(view<const float>(x), parameters.all());
    const auto look = [&] {
      Finite finite;
      optimizer.walk(finite);
      finite("parameters", parameters.all(), 0);
      outcome.finite[rank] = finite.all ? 1 : 0;
      if (rank == 1) outcome.damaged = mishap.done;
    };
    try {
      for (std::uint64_t step = 1; step <= 9; ++step) {
        if (step == when && rank == 1) mishap.damage = &damage, mishap.phase = phase, mishap.spared = spared;
        before = x;
        upload(view<const float>(gradient(layout, raw.rank(), step, 1)), gradients.all());
        optimizer.step(parameters.all(), gradients.all());
        download(view<const float, Space>(parameters.all()), view<float>(x));
      }
    } catch (const error& failure) {
      download(view<const float, Space>(parameters.all()), view<float>(x));
      look();
      // Not thrown on, lest peers that have heard all they need fail on the way.
      if (dynamic_cast<const wire_error*>(&failure) == nullptr) return;
      outcome.wire_errors[rank] = failure.what();
      outcome.moved[rank] = x == before ? 0 : 1;
      return;
    }
    look();
  });
  return outcome;
}

/// All damages of a packet of this phase.
template <class R>
void check_damages(const R& recipe, Phase phase, std::uint64_t when) {
  CAPTURE(type_name<R>());
  CAPTURE(std::string(name(phase)));
  for (const Damage& damage : damages) {
    CAPTURE(std::string(damage.name));
    const Outcome plain = run_damaged(recipe, damage, phase, when, {});
    for (const char finite : plain.finite) CHECK(finite == 1);
    const Outcome checked = run_damaged(recipe, damage, phase, when, {.check_payload = true});
    for (const char finite : checked.finite) CHECK(finite == 1);
    if (!checked.damaged) continue;
    const std::size_t rank = checked.reporter();
    const std::string& text = checked.wire_errors[rank];
    CAPTURE(text);
    CHECK(says(text, "step " + std::to_string(when) + ": the packet from rank 1 (phase '"));
    CHECK(says(text, "chunk "));
    CHECK(says(text, "its payload or its flags don't match its checksum"));
    CHECK(checked.moved[rank] == 0);
  }
}
template <class R>
void check_both_phases(const R& recipe, std::uint64_t when) {
  check_damages(recipe, Phase::reduce, when);
  check_damages(recipe, Phase::spread, when);
}

}  // namespace

TEST_CASE(
    "damage in a payload is found with check_payload, and leaves nothing that is not finite without it") {
  SUBCASE("full precision") {
    check_both_phases(Adam<>{}, 2);
    check_both_phases(Adam<Ring>{}, 2);
    check_damages(Adam<Star>{}, Phase::reduce, 2);
    check_both_phases(Adam<Hierarchical<ScatterGather, ScatterGather>>{.topology = {.ranks_per_node = 2}}, 2);
  }
  SUBCASE("one bit") {
    const auto recipe = [](auto topology) {
      return OneBitAdam<Sign, FrozenVariance, decltype(topology)>{.preconditioner = {.freeze = AtStep{3}}};
    };
    check_both_phases(recipe(ScatterGather{}), 7);
    check_both_phases(recipe(Ring{}), 7);
    check_damages(recipe(AllGather{}), Phase::spread, 7);
  }
  SUBCASE("others") {
    check_both_phases(ErrorFeedbackSgd<TopK<>, HeavyBall>{.compressor = {.selection = {.ratio = 0.1}}}, 5);
    check_damages(QuantizedSgd<>{}, Phase::spread, 5);
    check_damages(Ef21Sgd<LocalMomentumBefore>{.compressor = {.selection = {.ratio = 0.1}}}, Phase::spread,
                  5);
    check_both_phases(PowerSgd<>{}, 5);
    // The last 8 bytes are the weight.
    static constexpr double examples = 3;
    check_damages(ErrorFeedbackSgd<Sign, HeavyBall, Gathered<Radial<>>>{.topology = {.weight = &examples}},
                  Phase::spread, 5);
  }
  SUBCASE("models that are mixed") {
    check_damages(DSgd<MachineMixing<graph::Ring>>{.topology = {.ranks_per_machine = 2}}, Phase::spread, 5);
    check_damages(DmSgd<Mixing<graph::Ring>>{}, Phase::spread, 5);
    check_damages(ChocoSgd<Mixing<graph::Ring>>{}, Phase::spread, 5);
  }
}

TEST_CASE("damage that shows in a value names rank, peer and phase") {
  const Damage& nan = damages[4];
  const Outcome reduce = run_damaged(Adam<>{}, nan, Phase::reduce, 2, {});
  CHECK(says(
      reduce.wire_errors[2],
      "rank 2, step 2: the packet from rank 1 (phase 'reduce') was damaged on its way: it has values that "
      "are not finite"));
  // Found before anything is spread.
  CHECK(reduce.moved == std::vector<char>(ranks, 0));
  const Outcome spread = run_damaged(Adam<>{}, nan, Phase::spread, 2, {});
  CHECK(says(spread.wire_errors[2], "rank 2, step 2: the packet from rank 1 (phase 'spread') was damaged"));
}

TEST_CASE("damage names who brought the packet, and whose it was where that is known") {
  const Damage &bit = damages[2], &nan = damages[4];
  const Damage header{"the step", [](std::byte* p, index_t) { flip(p, -24, 0); }};
  // In the second hop rank 1 hands on what rank 0 has summed up, to rank 2, which hands it on to rank 3.
  const std::string of_2 = "terse: rank 2, step 2: ", of_3 = "terse: rank 3, step 2: ";
  const auto over_ring = [](const Damage& damage, bool check_payload) {
    return run_damaged(Adam<Ring>{}, damage, Phase::spread, 2, {.check_payload = check_payload}, 1)
        .wire_errors[2];
  };
  CHECK(over_ring(bit, true) ==
        of_2 +
            "the packet from rank 0 (phase 'spread', chunk 1), received from rank 1, was damaged on its "
            "way: its payload or its flags don't match its checksum");
  CHECK(over_ring(header, false) ==
        of_2 + "the packet from rank 0, received from rank 1, has step 3, expected 2");
  // What is read after it has been handed on is found by whoever is through first.
  const auto found_by_either = [&](const Outcome& outcome, const auto& sentence) {
    const std::string& text = outcome.wire_errors[outcome.reporter()];
    CAPTURE(text);
    CHECK((text == of_2 + sentence("1") || text == of_3 + sentence("2")));
  };
  const auto values = [](const std::string& rank) {
    return "a packet that rank " + rank +
           " has forwarded (phase 'spread') was damaged on its way: it has values that are not finite, which "
           "terse never sends";
  };
  const auto step = [](const std::string& rank) {
    return "the packet from rank 0, received from rank " + rank + ", has step 3, expected 2";
  };
  using Device = executor::emulated;
  found_by_either(run_damaged(Adam<Ring>{}, nan, Phase::spread, 2, {}, 1), values);
  found_by_either(run_damaged<Device>(Adam<Ring>{}, nan, Phase::spread, 2, {}, 1), values);
  found_by_either(run_damaged<Device>(Adam<Ring>{}, header, Phase::spread, 2, {}, 1), step);
  // Between nodes, where a channel's rank 0 is the world's rank 1.
  const Hierarchical<ScatterGather, ScatterGather> nodes{.ranks_per_node = 2};
  for (const std::string& error :
       {run_damaged(PowerSgd<2, Hierarchical<ScatterGather, ScatterGather>>{.topology = nodes}, header,
                    Phase::spread, 2, {})
            .wire_errors[3],
        run_damaged(Adam<Hierarchical<ScatterGather, ScatterGather>>{.topology = nodes}, header,
                    Phase::reduce, 2, {}, 1)
            .wire_errors[3]}) {
    CAPTURE(error);
    CHECK(says(error, "rank 3, step 2: the packet from rank 1 has step 3, expected 2"));
  }
}

TEST_CASE("on a device damage does no more harm, and is named as on the host") {
  using Device = executor::emulated;
  const OneBitAdam<Sign, FrozenVariance, Ring> signs{.preconditioner = {.freeze = AtStep{3}}};
  for (const Phase phase : {Phase::reduce, Phase::spread})
    for (const std::size_t k : std::initializer_list<std::size_t>{4, 10}) {
      const Damage& damage = damages[k];
      CAPTURE(std::string(damage.name));
      CAPTURE(std::string(name(phase)));
      const auto check = [&](const Outcome& host, const Outcome& device) {
        for (const char finite : device.finite) CHECK(finite == 1);
        // Others hear that it was refused, or, in a ring, read it, too: it has been passed on. Who is through first ends the rest.
        const auto said = [](const std::string& error) {
          std::string text = error.substr(error.find(',') + 1);
          const std::string brought = ", received from rank ";
          if (const auto place = text.find(brought); place != std::string::npos)
            text.erase(place, brought.size() + std::strlen("2,"));
          return text;
        };
        const std::string& expected = host.wire_errors[host.reporter()];
        CAPTURE(expected);
        CHECK(std::any_of(
            device.wire_errors.begin(), device.wire_errors.end(),
            [&](const std::string& error) { return !error.empty() && said(error) == said(expected); }));
      };
      check(run_damaged(Adam<>{}, damage, phase, 2, {}), run_damaged<Device>(Adam<>{}, damage, phase, 2, {}));
      check(run_damaged(signs, damage, phase, 7, {}), run_damaged<Device>(signs, damage, phase, 7, {}));
      if (phase == Phase::spread)
        check(run_damaged(DSgd<>{}, damage, phase, 2, {}),
              run_damaged<Device>(DSgd<>{}, damage, phase, 2, {}));
    }
  CHECK_THROWS_WITH_AS(ThreadGroup(1).run([&](Threads& transport) {
    ThroughHost<Threads, Device> staged(transport.split(0, 0), Device{});
    Optimizer optimizer{Adam<>{}, staged, Layout::flat(64), {.check_payload = true}, Device{}};
  }),
                       doctest::Contains("check_payload is for packets in the host's memory"), usage_error);
}

namespace {

/// What rank 1 sends, and the one bit of it that changes on its way.
struct Wire {
  std::size_t message = 0;       // counted from the first of the run
  index_t bit = -1;              // of it; none where negative
  std::vector<index_t> bytes{};  // of each message so far
  std::list<std::vector<std::byte>> copies{};
  std::list<std::vector<Send>> lists{};
};
class Flipping : public Forwarding<Flipping, Threads> {
 public:
  Flipping(Threads inner, Wire* wire) : Forwarding(std::move(inner)), wire_(wire) {}
  [[nodiscard]] auto exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    if (wire_ == nullptr) return inner().exchange(sends, receives, phase);
    std::vector<Send>& list = wire_->lists.emplace_back(sends.begin(), sends.end());
    for (Send& send : list) {
      if (wire_->bytes.size() == wire_->message && wire_->bit >= 0) {
        std::vector<std::byte>& copy = wire_->copies.emplace_back(send.data, send.data + send.bytes);
        flip(copy.data(), wire_->bit / 8, static_cast<int>(wire_->bit % 8));
        send.data = copy.data();
      }
      wire_->bytes.push_back(send.bytes);
    }
    return inner().exchange(list, receives, phase);
  }
  Flipping around(Threads other) const { return {std::move(other), wire_}; }

 private:
  Wire* wire_;
};

/// What three ranks have done, step by step, and what ended them.
struct Told {
  struct Step {
    std::string outcome;
    Floats parameters;
    bool operator==(const Step&) const = default;
  };
  std::vector<std::vector<Step>> steps = std::vector<std::vector<Step>>(3);
  std::vector<std::string> wire = std::vector<std::string>(3);  // a wire_error
  std::vector<int> waited = std::vector<int>(3, -1);            // a peer_error's culprit
  std::vector<char> whole = std::vector<char>(3, 1);            // no parameter has moved in what was thrown
};
/// Three steps, in the second of which rank 2's gradient is not finite if `bad`.
template <class R>
Told tell(const R& recipe, const Options& options, bool bad, Wire& wire) {
  Layout layout;
  layout.add({"w", {70}}).add({"b", {9}, 1, 1, false});
  Told told;
  try {
    ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& raw) {
      const int rank = raw.rank();
      Floats x = start(layout), before = x;
      try {
        Flipping transport(raw.split(0, rank), rank == 1 ? &wire : nullptr);
        Optimizer optimizer{recipe, transport, layout, options};
        for (std::uint64_t step = 1; step <= 3; ++step) {
          Floats g = gradient(layout, rank, step, 1);
          if (bad && step == 2 && rank == 2) g[70] = std::numeric_limits<float>::quiet_NaN();
          before = x;
          std::string outcome;
          try {
            outcome = optimizer.step(x, g).applied ? "applied" : "skipped";
          } catch (const non_finite_error& failure) {
            outcome = "thrown because of rank " + std::to_string(failure.culprit());
          }
          told.steps[at(rank)].push_back({outcome, x});
        }
      } catch (const wire_error& failure) {
        told.wire[at(rank)] = failure.what();
        told.whole[at(rank)] = x == before ? 1 : 0;
        throw;
      } catch (const peer_error& failure) {
        told.waited[at(rank)] = failure.culprit();
        told.whole[at(rank)] = x == before ? 1 : 0;
        throw;
      }
    });
  } catch (const error&) {  // each rank's own is told
  }
  return told;
}

/// All bits of the messages of a step by which ranks agree, and every 61st of others.
template <class R>
void check_flips(const R& recipe, const Options& options, bool bad) {
  CAPTURE(type_name<R>());
  Wire honest;
  const Told right = tell(recipe, options, bad, honest);
  for (const auto& steps : right.steps) REQUIRE(steps.size() == 3);
  for (std::size_t message = 0; message < honest.bytes.size(); ++message) {
    const index_t bits = 8 * honest.bytes[message], every = bits <= 64 ? 1 : 61;
    for (index_t bit = static_cast<index_t>(message) * 7 % every; bit < bits; bit += every) {
      CAPTURE(message);
      CAPTURE(bit);
      Wire wire{message, bit};
      const Told told = tell(recipe, options, bad, wire);
      int found = 0;
      for (std::size_t rank = 0; rank < 3; ++rank) {
        CAPTURE(rank);
        CAPTURE(told.wire[rank]);
        // Right to the bit as far as it goes.
        const auto& steps = told.steps[rank];
        const bool as_far = std::equal(steps.begin(), steps.end(), right.steps[rank].begin());
        const bool ended = !told.wire[rank].empty() || told.waited[rank] >= 0;
        const bool complete = ended || steps.size() == 3;
        const bool blames_right =
            told.wire[rank].empty() || (rank != 1 && says(told.wire[rank], "from rank 1"));
        // Who waited in vain did so for one that has thrown.
        const int waited = told.waited[rank];
        const bool waits_right = waited < 0 || !told.wire[at(waited)].empty() || told.waited[at(waited)] >= 0;
        found += told.wire[rank].empty() ? 0 : 1;
        CHECK(as_far);
        CHECK(complete);
        CHECK(blames_right);
        CHECK(waits_right);
        CHECK(told.whole[rank] == 1);
      }
      CHECK(found == 1);
    }
  }
}

}  // namespace

TEST_CASE("any bit of any message that changes is found by who gets it, and no step is wrong") {
  const auto recipe = [](auto topology) {
    return OneBitAdam<Sign, FrozenVariance, decltype(topology)>{.preconditioner = {.freeze = AtStep{1}}};
  };
  const Options clip{.clip_norm = 0.5F, .check_payload = true};
  SUBCASE("clip_norm") { check_flips(recipe(ScatterGather{}), clip, false); }
  SUBCASE("clip_norm, skip, over a ring") {
    Options skip = clip;
    skip.on_non_finite = NonFinite::skip;
    check_flips(recipe(Ring{}), skip, true);
  }
  SUBCASE("throw_, of messages that leave before the gradient is known") {
    static_assert(detail::is_blind<AwcDSgd<>>());
    check_flips(AwcDSgd<>{}, {.check_payload = true}, true);
  }
}

TEST_CASE("any bit that changes while nodes meet is a damage to all, and no other fault") {
  const auto meet = [](Wire& wire) {
    std::vector<std::string> told(4);
    try {
      ThreadGroup(4, std::chrono::seconds(20)).run([&](Threads& raw) {
        const int node = raw.rank() / 2, local = raw.rank() % 2;
        Wire* const mine = raw.rank() == 1 ? &wire : nullptr;
        Flipping inside(raw.split(node, local), mine), across(raw.split(local, node), mine);
        try {
          Nodes nodes(std::move(inside), std::move(across));
        } catch (const error& failure) {
          told[at(raw.rank())] = failure.what();
          throw;
        }
      });
    } catch (const error&) {  // each rank's own is told
    }
    return told;
  };
  Wire honest;
  CHECK(meet(honest) == std::vector<std::string>(4));
  for (std::size_t message = 0; message < honest.bytes.size(); ++message)
    for (index_t bit = static_cast<index_t>(message); bit < 8 * honest.bytes[message]; bit += 101) {
      CAPTURE(message);
      CAPTURE(bit);
      Wire wire{message, bit};
      // Of the last message some hear later, when they wait for who has thrown.
      int said = 0, other = 0;
      for (const std::string& text : meet(wire)) {
        said += says(text, "damaged on its way") ? 1 : 0;
        other += text.empty() || says(text, "damaged on its way") ? 0 : 1;
      }
      CHECK(said > 0);
      CHECK(other == 0);
    }
}

TEST_CASE("a checksum changes with each bit of a packet") {
  std::vector<std::byte> packet(32 + 1000);
  for (std::size_t i = 0; i < packet.size(); ++i) packet[i] = static_cast<std::byte>(i * 7);
  const auto check = [&](std::uint16_t flags) {
    return detail::check_with_payload(0x0123456789ABCDEF, packet.data(), packet.size(), flags);
  };
  const std::uint64_t whole = check(0);
  CHECK((whole >> 32) == 0x01234567U);
  CHECK(check(1) != whole);
  int same = 0;
  for (std::size_t bit = 8 * 32; bit < 8 * packet.size(); ++bit) {
    flip(packet.data(), static_cast<index_t>(bit / 8), static_cast<int>(bit % 8));
    same += check(0) == whole ? 1 : 0;
    flip(packet.data(), static_cast<index_t>(bit / 8), static_cast<int>(bit % 8));
  }
  CHECK(same == 0);
}

TEST_CASE("check_payload adds no byte and changes no bit of a run") {
  const Layout layout = Layout::flat(1000);
  const OneBitAdam<> recipe{.preconditioner = {.freeze = AtStep{3}}};
  const History plain = run(recipe, layout, 3, 6, 1, {}, Unchanged{});
  const History checked =
      run(recipe, layout, 3, 6, 1, {.check_payload = true, .compare_every = 1}, Unchanged{});
  for (std::size_t step = 0; step < plain.size(); ++step)
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CHECK(plain[step][rank].parameters == checked[step][rank].parameters);
      CHECK(plain[step][rank].reduced == checked[step][rank].reduced);
      CHECK(plain[step][rank].spread == checked[step][rank].spread);
    }
}

namespace {

/// What ranks say, the same on all, after `harm(optimizer, parameters)` on one of them behind step 5.
template <class R, class Harm>
std::string drift(const R& recipe, int culprit, const Options& options, const Harm& harm) {
  Layout layout;
  layout.add({"w", {300}}).add({"b", {70}, 1, 1, false});
  std::vector<std::string> texts(3);  // two and one more, so that most are right
  std::atomic<int> caught{0};
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout, options};
    Floats x = start(layout);
    try {
      for (std::uint64_t step = 1; step <= 12; ++step) {
        optimizer.step(x, gradient(layout, transport.rank(), step, 1));
        if (step == 5 && transport.rank() == culprit) harm(optimizer, x);
      }
    } catch (const mismatch_error& failure) {
      texts[at(transport.rank())] = std::string(failure.what()).substr(std::strlen("terse: rank 0, "));
      ++caught;
    }
  });
  CHECK((caught == 0 || caught == 3));
  CHECK(texts[1] == texts[0]);
  CHECK(texts[2] == texts[0]);
  return texts[0];
}
struct LowestBit {
  std::size_t index;
  template <class O>
  void operator()(O&, Floats& x) const {
    x[index] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x[index]) ^ 1U);
  }
};
struct ABitOf {
  const char* name;
  template <class O>
  void operator()(O& optimizer, Floats&) const {
    optimizer.walk([&](const std::string& part, auto&& what, auto&&...) {
      if constexpr (requires { what[0]; })
        if (part == name)
          what[7] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(what[7])) ^ 0x1000U);
    });
  }
};

}  // namespace

TEST_CASE("compare_every names a rank that has drifted by one bit, where, and since when") {
  const Options options{.compare_every = 3};
  for (const int culprit : {0, 1, 2}) {
    CAPTURE(culprit);
    const std::string other = culprit == 0 ? "1" : "0";
    const std::string told = "step 6: rank " + std::to_string(culprit) + " has drifted: its ";
    const std::string since = ", and were equal after step 3";
    CHECK(says(drift(Adam<>{}, culprit, options, LowestBit{330}),
               told + "parameters differ from rank " + other + "'s in 'b'" + since));
    CHECK(says(drift(Adam<>{.learning_rate = 0}, culprit, options, ABitOf{"momentum"}),
               told + "momentum differ from rank " + other + "'s in 'w'" + since));
  }
  CHECK(drift(Adam<>{}, 1, {}, LowestBit{330}).empty());
}

TEST_CASE("compare_every is refused where ranks always differ") {
  std::string text;
  try {
    ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
      Optimizer optimizer{DmSgd<>{}, transport, Layout::flat(64), {.compare_every = 1}};
    });
  } catch (const usage_error& failure) {
    text = failure.what();
  }
  CHECK(says(text, "they differ by design"));
}

TEST_CASE("compare_every finds nothing where ranks differ by design") {
  const Options always{.compare_every = 1};
  const auto nothing = [](auto&, Floats&) {};
  CHECK(drift(SignSgd<>{}, 0, always, nothing).empty());
  CHECK(drift(Ef21Sgd<LocalMomentumBefore>{.compressor = {.selection = {.ratio = 0.1}}}, 0, always, nothing)
            .empty());
  CHECK(drift(LocalSgd<MomentumSgd<>>{.period = 4}, 0, always, nothing).empty());
  CHECK(
      drift(ZeroOneAdam<>{.variance_freeze_step = 4, .local_interval_steps = 2}, 0, always, nothing).empty());
}
