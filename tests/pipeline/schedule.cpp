// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <deque>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/layout.hpp"
#include "terse/core/type_name.hpp"
#include "terse/pipeline/makespan.hpp"
#include "terse/pipeline/schedule.hpp"

// Schedules of a pipeline: order of passes, micro-batches in flight, makespans, and windows of messages that they need
// to finish.

namespace {

using terse::Action;
using terse::ForwardOnly;
using terse::GPipe;
using terse::index_t;
using terse::OneForwardOneBackward;

std::size_t at(index_t index) { return static_cast<std::size_t>(index); }

/// Visit(schedule) for each schedule, with `ahead` up to `most_ahead`.
template <class Visit>
void each_schedule(int most_ahead, Visit visit) {
  visit(GPipe{});
  visit(ForwardOnly{});
  for (int ahead = 0; ahead <= most_ahead; ++ahead) visit(OneForwardOneBackward{ahead});
}

template <class Schedule>
std::string name_of(const Schedule& schedule) {
  std::string name = terse::type_name<Schedule>();
  schedule.settings([&](const char* setting, double value) {
    name += std::string(" ") + setting + "=" + std::to_string(static_cast<int>(value));
  });
  return name;
}

template <class Schedule>
std::vector<Action> actions_of(const Schedule& schedule, int stage, int stages, index_t micro_batches) {
  std::vector<Action> actions;
  for (index_t k = 0; k < schedule.actions(micro_batches); ++k)
    actions.push_back(schedule.at(k, stage, stages, micro_batches));
  return actions;
}

/// As "F0 F1 B0 B1".
template <class Schedule>
std::string order_of(const Schedule& schedule, int stage, int stages, index_t micro_batches) {
  std::string order;
  for (const auto& [forward, j] : actions_of(schedule, stage, stages, micro_batches))
    order += (order.empty() ? "" : " ") + std::string(forward ? "F" : "B") + std::to_string(j);
  return order;
}

/// Places of the passes of one kind among the actions, by micro-batch; -1 for a pass that is not there. Counts in
/// `astray` what is not a micro-batch of the step, or comes twice, or not in ascending order.
std::vector<index_t> places_of(const std::vector<Action>& actions, bool forward, index_t micro_batches,
                               int& astray) {
  std::vector<index_t> places(at(micro_batches), -1);
  index_t wanted = 0;
  for (std::size_t k = 0; k < actions.size(); ++k) {
    const auto& [is_forward, j] = actions[k];
    if (is_forward != forward) continue;
    if (j != wanted++) ++astray;
    if (j >= 0 && j < micro_batches) places[at(j)] = static_cast<index_t>(k);
  }
  return places;
}

/// Most forward passes without their backward passes, after any action.
index_t peak_of(const std::vector<Action>& actions) {
  index_t now = 0, peak = 0;
  for (const Action& action : actions) peak = std::max(peak, now += action.forward ? 1 : -1);
  return peak;
}

/// Seconds, as integers: then makespans compare exactly.
struct Times {
  index_t forward, backward, forward_message, backward_message;
};

/// The step's time, by an event simulation. Links are full-duplex: a stage sends one message at a time and receives one
/// at a time, whatever their directions, each in its order of readiness. A message leaves whether or not its receiver's link
/// is free, and waits in between. Receives are always posted. -1 if the stages stick.
template <class Schedule>
index_t simulated_makespan(const Schedule& schedule, int stages, index_t micro_batches, const Times& times) {
  struct Stage {
    index_t next = 0;                               // action
    index_t busy_until = -1;                        // -1: not in a pass
    index_t sending_until = -1;                     // -1: link out is free
    std::deque<std::pair<index_t, bool>> arriving;  // when, and is it a forward one?
    std::deque<bool> ready;                         // messages to send: is it a forward one?
    std::array<index_t, 2> received{};              // backward, forward
  };
  std::vector<Stage> pipeline(at(stages));
  const index_t actions = schedule.actions(micro_batches);
  const auto neighbour = [](int s, bool forward) { return forward ? s + 1 : s - 1; };
  index_t now = 0;
  for (;;) {
    bool moved = false;
    for (int s = 0; s < stages; ++s) {
      Stage& stage = pipeline[at(s)];
      if (stage.busy_until == now) {
        const bool forward = schedule.at(stage.next, s, stages, micro_batches).forward;
        const int to = neighbour(s, forward);
        if (to >= 0 && to < stages) stage.ready.push_back(forward);
        stage.busy_until = -1;
        ++stage.next;
        moved = true;
      }
      if (stage.sending_until == now) {
        stage.sending_until = -1;
        moved = true;
      }
      while (!stage.arriving.empty() && stage.arriving.front().first == now) {
        ++stage.received[stage.arriving.front().second];
        stage.arriving.pop_front();
        moved = true;
      }
    }
    for (int s = 0; s < stages; ++s) {
      Stage& stage = pipeline[at(s)];
      if (stage.busy_until < 0 && stage.next < actions) {
        const auto [forward, j] = schedule.at(stage.next, s, stages, micro_batches);
        const bool needs_none = s == (forward ? 0 : stages - 1);
        if (needs_none || stage.received[forward] > j) {
          stage.busy_until = now + (forward ? times.forward : times.backward);
          moved = true;
        }
      }
      if (stage.sending_until < 0 && !stage.ready.empty()) {
        const bool forward = stage.ready.front();
        stage.ready.pop_front();
        Stage& peer = pipeline[at(neighbour(s, forward))];
        const index_t takes = forward ? times.forward_message : times.backward_message;
        const index_t free = peer.arriving.empty() ? now : std::max(now, peer.arriving.back().first);
        peer.arriving.emplace_back(free + takes, forward);
        stage.sending_until = now + takes;
        moved = true;
      }
    }
    if (moved) continue;
    index_t soonest = -1;
    for (const Stage& stage : pipeline)
      for (const index_t until : {stage.busy_until, stage.sending_until,
                                  stage.arriving.empty() ? index_t{-1} : stage.arriving.front().first})
        if (until >= 0 && (soonest < 0 || until < soonest)) soonest = until;
    if (soonest < 0) break;
    now = soonest;
  }
  for (const Stage& stage : pipeline)
    if (stage.next < actions) return -1;
  return now;
}

enum class Receives { ahead, when_wanted };

/// Whether the stages finish a step with K = `window` messages of each direction on their way. Receives are posted
/// `ahead`: the first K at the start, and j + K once j has been consumed; or only `when_wanted`, by a stage that has
/// nothing else to do. No send completes before its receive is posted, and send j waits for send j - K to complete.
/// Stages only wait for counts that never fall, so that the order in which they are served makes no difference.
template <class Schedule>
bool finishes(const Schedule& schedule, int stages, index_t micro_batches, index_t window,
              Receives receives = Receives::ahead) {
  struct Lane {
    index_t sent = 0, posted = 0;
    index_t completed() const { return std::min(sent, posted); }
  };
  struct Stage {
    index_t next = 0;
    bool computed = false;    // and waits to send
    std::array<Lane, 2> out;  // backward, forward
  };
  std::vector<Stage> pipeline(at(stages));
  const index_t actions = schedule.actions(micro_batches);
  const index_t early = receives == Receives::ahead ? window : 0;
  for (Stage& stage : pipeline)
    for (Lane& lane : stage.out) lane.posted = early;
  bool moved = true;
  const auto post = [&](Lane& lane, index_t count) {
    if (lane.posted >= count) return;
    lane.posted = count;
    moved = true;  // even if the stage itself gets no further
  };
  const auto advance = [&](int s) {
    Stage& stage = pipeline[at(s)];
    const auto [forward, j] = schedule.at(stage.next, s, stages, micro_batches);
    if (!stage.computed) {
      const int from = forward ? s - 1 : s + 1;
      if (from >= 0 && from < stages) {
        Lane& in = pipeline[at(from)].out[forward];
        post(in, j + 1);
        if (in.completed() <= j) return false;
        post(in, j + 1 + early);
      }
      stage.computed = true;
    }
    const int to = forward ? s + 1 : s - 1;
    if (to >= 0 && to < stages) {
      Lane& out = stage.out[forward];
      if (out.completed() <= j - window) return false;
      out.sent = j + 1;
    }
    stage.computed = false;
    ++stage.next;
    return moved = true;
  };
  while (moved) {
    moved = false;
    for (int s = 0; s < stages; ++s)
      while (pipeline[at(s)].next < actions && advance(s)) continue;
  }
  return std::all_of(pipeline.begin(), pipeline.end(),
                     [&](const Stage& stage) { return stage.next == actions; });
}

/// GPipe's time, in the units of `times`. S >= 2, since a single stage sends nothing.
index_t gpipe_makespan(int stages, index_t micro_batches, const Times& times) {
  const auto& [tf, tb, cf, cb] = times;
  return stages * (tf + tb) + (stages - 1) * (cf + cb) +
         (micro_batches - 1) * (std::max(tf, cf) + std::max(tb, cb));
}

}  // namespace

TEST_CASE("orders, written out") {
  CHECK(order_of(GPipe{}, 0, 2, 3) == "F0 F1 F2 B0 B1 B2");
  CHECK(order_of(GPipe{}, 1, 2, 3) == "F0 F1 F2 B0 B1 B2");
  CHECK(order_of(ForwardOnly{}, 1, 2, 3) == "F0 F1 F2");
  const OneForwardOneBackward plain{0}, ahead{1};
  CHECK(order_of(plain, 0, 3, 5) == "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4");
  CHECK(order_of(plain, 1, 3, 5) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4");
  CHECK(order_of(plain, 2, 3, 5) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4");
  CHECK(order_of(ahead, 0, 3, 6) == "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5");
  CHECK(order_of(ahead, 1, 3, 6) == "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5");
  CHECK(order_of(ahead, 2, 3, 6) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5");
  CHECK(order_of(ahead, 0, 4, 2) == "F0 F1 B0 B1");  // fewer micro-batches than stages
  static_assert(OneForwardOneBackward{0}.at(2, 2, 4, 5) == Action{false, 0});
  static_assert(GPipe::at(3, 0, 2, 3) == Action{false, 0} && ForwardOnly::at(2, 0, 2, 3) == Action{true, 2});
}

TEST_CASE("every pass is there once, passes of a kind ascend, and a backward pass follows its forward pass") {
  each_schedule(3, [](const auto& schedule) {
    CAPTURE(name_of(schedule));
    constexpr bool backward = !std::is_same_v<std::decay_t<decltype(schedule)>, ForwardOnly>;
    for (int stages = 1; stages <= 8; ++stages)
      for (int stage = 0; stage < stages; ++stage)
        for (index_t micro_batches = 0; micro_batches <= 32; ++micro_batches) {
          CAPTURE(stages);
          CAPTURE(stage);
          CAPTURE(micro_batches);
          const std::vector<Action> actions = actions_of(schedule, stage, stages, micro_batches);
          int astray = 0, missing = 0, too_early = 0;
          const std::vector<index_t> forwards = places_of(actions, true, micro_batches, astray);
          const std::vector<index_t> backwards = places_of(actions, false, micro_batches, astray);
          for (index_t j = 0; j < micro_batches; ++j) {
            missing += forwards[at(j)] < 0 || (backwards[at(j)] < 0) == backward;
            too_early += backward && backwards[at(j)] < forwards[at(j)];
          }
          CHECK(index_t(actions.size()) == (backward ? 2 : 1) * micro_batches);
          CHECK(astray == 0);
          CHECK(missing == 0);
          CHECK(too_early == 0);
        }
  });
}

TEST_CASE("as many micro-batches are in flight as the schedule says, and so many slots in a ring suffice") {
  const auto verify = [](const auto& schedule, auto formula) {
    CAPTURE(name_of(schedule));
    for (int stages = 1; stages <= 8; ++stages)
      for (int stage = 0; stage < stages; ++stage)
        for (index_t micro_batches = 0; micro_batches <= 32; ++micro_batches) {
          CAPTURE(stages);
          CAPTURE(stage);
          CAPTURE(micro_batches);
          const std::vector<Action> actions = actions_of(schedule, stage, stages, micro_batches);
          const index_t slots = schedule.in_flight(stage, stages, micro_batches);
          CHECK(slots == formula(stage, stages, micro_batches));
          CHECK(slots == peak_of(actions));
          int astray = 0, overwritten = 0;
          const std::vector<index_t> forwards = places_of(actions, true, micro_batches, astray);
          const std::vector<index_t> backwards = places_of(actions, false, micro_batches, astray);
          for (index_t j = slots; j < micro_batches; ++j)
            overwritten += forwards[at(j)] < backwards[at(j - slots)];
          CHECK(overwritten == 0);
        }
  };
  verify(GPipe{}, [](int, int, index_t micro_batches) { return micro_batches; });
  for (int ahead = 0; ahead <= 3; ++ahead)
    verify(OneForwardOneBackward{ahead}, [&](int stage, int stages, index_t micro_batches) {
      const int behind = stages - 1 - stage;
      return std::min<index_t>(micro_batches, 1 + (1 + ahead) * behind);
    });
  // A forward pass alone has done with its input when it ends.
  for (index_t micro_batches = 0; micro_batches <= 32; ++micro_batches)
    CHECK(ForwardOnly::in_flight(1, 3, micro_batches) == (micro_batches > 0 ? 1 : 0));
}

TEST_CASE("neighbouring stages differ by lead() in flight, and no more") {
  each_schedule(3, [](const auto& schedule) {
    CAPTURE(name_of(schedule));
    index_t most = 0, least = 0;
    for (int stages = 2; stages <= 8; ++stages)
      for (int stage = 0; stage + 1 < stages; ++stage)
        for (index_t micro_batches = 0; micro_batches <= 32; ++micro_batches) {
          const index_t lead = schedule.in_flight(stage, stages, micro_batches) -
                               schedule.in_flight(stage + 1, stages, micro_batches);
          most = std::max(most, lead);
          least = std::min(least, lead);
        }
    CHECK(most == schedule.lead());
    CHECK(least == 0);
  });
}

TEST_CASE("GPipe takes its closed form's time") {
  for (const Times& times :
       {Times{1, 2, 0, 0}, Times{2, 4, 1, 1}, Times{1, 2, 1, 2}, Times{2, 4, 3, 3}, Times{1, 2, 5, 5},
        Times{10, 20, 3, 40}, Times{10, 20, 40, 3}, Times{7, 3, 5, 4}})
    for (int stages = 2; stages <= 8; ++stages)
      for (const index_t micro_batches : {1, 2, 3, 5, 8, 17, 32}) {
        CAPTURE(times.forward);
        CAPTURE(times.forward_message);
        CAPTURE(times.backward_message);
        CAPTURE(stages);
        CAPTURE(micro_batches);
        CHECK(simulated_makespan(GPipe{}, stages, micro_batches, times) ==
              gpipe_makespan(stages, micro_batches, times));
        const Times half{times.forward, 0, times.forward_message, 0};
        CHECK(simulated_makespan(ForwardOnly{}, stages, micro_batches, times) ==
              gpipe_makespan(stages, micro_batches, half));
      }
  CHECK(simulated_makespan(GPipe{}, 1, 5, {1, 2, 9, 9}) == 15);  // a single stage sends nothing
}

TEST_CASE("without communication one forward, one backward takes (M + S - 1) (tf + tb)") {
  for (int ahead = 0; ahead <= 3; ++ahead)
    for (const Times& times : {Times{1, 2, 0, 0}, Times{1, 1, 0, 0}, Times{5, 3, 0, 0}})
      for (int stages = 1; stages <= 8; ++stages)
        for (const index_t micro_batches : {1, 2, 3, 5, 8, 17, 32}) {
          CAPTURE(ahead);
          CAPTURE(stages);
          CAPTURE(micro_batches);
          CHECK(simulated_makespan(OneForwardOneBackward{ahead}, stages, micro_batches, times) ==
                (micro_batches + stages - 1) * (times.forward + times.backward));
        }
}

TEST_CASE("one micro-batch ahead hides messages that take no longer than a pass") {
  for (const index_t message : {1, 3, 5, 8, 10})
    for (const Times& times :
         {Times{10, 20, message, message}, Times{10, 10, message, message}, Times{20, 10, message, message}})
      for (int stages = 2; stages <= 8; ++stages)
        for (const index_t micro_batches : {1, 2, 3, 5, 8, 17, 32}) {
          CAPTURE(message);
          CAPTURE(times.forward);
          CAPTURE(times.backward);
          CAPTURE(stages);
          CAPTURE(micro_batches);
          const index_t shortest = gpipe_makespan(stages, micro_batches, times);
          CHECK(simulated_makespan(OneForwardOneBackward{}, stages, micro_batches, times) == shortest);
          // Plain 1F1B shows a round trip.
          if (micro_batches > stages)
            CHECK(simulated_makespan(OneForwardOneBackward{0}, stages, micro_batches, times) > shortest);
        }
}

TEST_CASE("a window of K messages each way finishes iff neighbours differ by at most 4 K in flight") {
  each_schedule(12, [](const auto& schedule) {
    CAPTURE(name_of(schedule));
    for (index_t window = 1; window <= 3; ++window)
      for (int stages = 1; stages <= 6; ++stages)
        for (index_t micro_batches = 0; micro_batches <= 39; ++micro_batches) {
          CAPTURE(window);
          CAPTURE(stages);
          CAPTURE(micro_batches);
          // The last stage keeps one in flight, the others no more than there are.
          const index_t lead = stages > 1 ? std::min(schedule.lead(), micro_batches - 1) : 0;
          CHECK(finishes(schedule, stages, micro_batches, window) == (lead <= 4 * window));
        }
  });
  CHECK(finishes(OneForwardOneBackward{4}, 2, 5, 1));
  CHECK_FALSE(finishes(OneForwardOneBackward{4}, 2, 6, 1));
}

TEST_CASE("receives that are posted only when wanted halve that bound") {
  each_schedule(6, [](const auto& schedule) {
    CAPTURE(name_of(schedule));
    for (index_t window = 1; window <= 3; ++window)
      for (int stages = 1; stages <= 6; ++stages)
        for (index_t micro_batches = 0; micro_batches <= 20; ++micro_batches) {
          CAPTURE(window);
          CAPTURE(stages);
          CAPTURE(micro_batches);
          const index_t lead = stages > 1 ? std::min(schedule.lead(), micro_batches - 1) : 0;
          CHECK(finishes(schedule, stages, micro_batches, window, Receives::when_wanted) ==
                (lead <= 2 * window));
        }
  });
  CHECK(finishes(OneForwardOneBackward{2}, 2, 4, 1));
  CHECK_FALSE(finishes(OneForwardOneBackward{2}, 2, 4, 1, Receives::when_wanted));
}

TEST_CASE("settings and their limits") {
  GPipe{}.check();
  ForwardOnly{}.check();
  for (const int ahead : {0, 1, 31}) CHECK_NOTHROW(OneForwardOneBackward{ahead}.check());
  for (const int ahead : {-1, 32}) {
    const std::string message =
        "OneForwardOneBackward's ahead must be in [0, 31], not " + std::to_string(ahead);
    CHECK_THROWS_WITH_AS(OneForwardOneBackward{ahead}.check(), doctest::Contains(message.c_str()),
                         terse::usage_error);
  }
  CHECK(OneForwardOneBackward{}.ahead == 1);
  CHECK(name_of(OneForwardOneBackward{3}).ends_with(" ahead=3"));
}

TEST_CASE("makespan is what a simulation by events takes") {
  int cases = 0;
  each_schedule(3, [&](const auto& schedule) {
    CAPTURE(name_of(schedule));
    for (const Times& times :
         {Times{1, 2, 0, 0}, Times{2, 4, 3, 3}, Times{1, 2, 5, 5}, Times{10, 20, 3, 41}, Times{11, 20, 40, 3},
          Times{7, 3, 5, 4}, Times{10, 20, 17, 33}, Times{10, 20, 120, 120}})
      for (int stages = 1; stages <= 6; ++stages)
        for (const index_t micro_batches : {1, 2, 5, 8, 17}) {
          CAPTURE(times.forward_message);
          CAPTURE(times.backward_message);
          CAPTURE(stages);
          CAPTURE(micro_batches);
          std::vector<terse::StageTimes> alike;
          for (int s = 0; s < stages; ++s)
            alike.push_back({double(times.forward), double(times.backward),
                             double(s + 1 < stages ? times.forward_message : 0),
                             double(s > 0 ? times.backward_message : 0)});
          const double found = terse::makespan(schedule, alike, micro_batches);
          // Of what could happen at once comes first what has fewer passes behind it: each takes a unit more.
          constexpr index_t unit = 1 << 16;
          const Times fine{times.forward * unit + 1, times.backward * unit + 1, times.forward_message * unit,
                           times.backward_message * unit};
          CHECK(found == double(simulated_makespan(schedule, stages, micro_batches, fine) / unit));
          ++cases;
        }
  });
  CHECK(cases == 6 * 8 * 6 * 5);
}

TEST_CASE("makespan of stages that differ: the slowest pass holds up the others, and latency adds up") {
  const std::vector<terse::StageTimes> stages{{1, 2, 1, 0}, {5, 3, 2, 1}, {2, 8, 0, 1}};
  CHECK(terse::makespan(GPipe{}, stages, 1) == 8 + 13 + 5);
  CHECK(terse::makespan(GPipe{}, stages, 4) == 8 + 13 + 5 + 3 * (5 + 8));
  CHECK(terse::makespan(GPipe{}, stages, 4, 0.5) == 8 + 13 + 5 + 3 * (5 + 8) + 4 * 0.5);
  CHECK(terse::makespan(ForwardOnly{}, stages, 4) == 8 + 3 + 3 * 5);
  CHECK(terse::makespan(GPipe{}, stages, 0) == 0);
}

TEST_CASE("makespan of micro-batches that differ: a long message holds up those after it") {
  const auto times = [](int stage, terse::index_t micro_batch) {
    const bool first = micro_batch == 0;
    return stage == 0 ? terse::StageTimes{1, 2, first ? 10.0 : 1.0, 0}
                      : terse::StageTimes{1, 2, 0, first ? 1.0 : 7.0};
  };
  // Activations are there at 11 and 12, gradients leave at 15 and 17, and are there at 16 and 24.
  CHECK(terse::makespan(GPipe{}, 2, 2, times) == 26);
  const auto negative = [](int, terse::index_t micro_batch) {
    return terse::StageTimes{1, 1, static_cast<double>(-micro_batch), 0};
  };
  CHECK_THROWS_AS(terse::makespan(GPipe{}, 2, 2, negative), terse::usage_error);
}

namespace {

/// The first stage waits for a gradient before it goes on, and the second one for all activations.
struct Stuck : GPipe {
  static constexpr Action at(index_t k, int stage, int, index_t) {
    return stage == 0 ? Action{k % 2 == 0, k / 2} : GPipe::at(k, stage, 2, 2);
  }
};

}  // namespace

TEST_CASE("makespan of a public contest's baselines is near what others measured: docs/scale.md") {
  // Eight stages, 25 MB/s and 50 ms: tokens and bytes of a message, micro-batches, seconds without links, measured.
  struct Baseline {
    double tokens, bytes;
    index_t micro_batches;
    double without_links, measured;
    std::array<double, 4>
        predicted;  // on top of the messages with ahead 0 and 1, on the link with ahead 0 and 1
  };
  for (const Baseline& one : {Baseline{8192, 2048, 64, 0.539, 100.475, {100.23, 94.60, 101.43, 101.00}},
                              Baseline{16384, 322, 32, 0.655, 19.889, {19.82, 16.74, 20.42, 19.94}}}) {
    const double pair = one.without_links / static_cast<double>(one.micro_batches + 7);
    for (const std::size_t k : {0U, 1U, 2U, 3U}) {
      const double on_link = k < 2 ? 0 : 0.050, message = one.tokens * one.bytes / 25e6 + on_link;
      const std::vector<terse::StageTimes> stages(8, {pair / 3, 2 * pair / 3, message, message});
      const OneForwardOneBackward schedule{.ahead = static_cast<int>(k % 2)};
      const double found = terse::makespan(schedule, stages, one.micro_batches, 0.050 - on_link);
      CHECK(std::abs(found - one.predicted[k]) < 0.005);
    }
    CHECK(one.predicted[0] > 0.99 * one.measured);
    CHECK(one.predicted[0] < one.measured);
    CHECK(one.predicted[2] > one.measured);
    CHECK(one.predicted[2] < 1.03 * one.measured);
  }
}

TEST_CASE("makespan of passes that take no time is that of passes that take hardly any") {
  for (const int ahead : {0, 1, 3})
    for (const double latency : {0.0, 0.05}) {
      const auto found = [&](double pass) {
        const std::vector<terse::StageTimes> stages(8, {pass, 2 * pass, 0.75, 0.75});
        return terse::makespan(OneForwardOneBackward{ahead}, stages, 32, latency);
      };
      CAPTURE(ahead);
      CAPTURE(latency);
      CHECK(std::abs(found(0) - found(1e-9)) < 1e-6);
      CHECK(found(0) < found(0.01));
    }
}

TEST_CASE("makespan of what can't be is an error") {
  const std::vector<terse::StageTimes> two(2);
  const auto refused = [](auto call, const std::string& words) {
    std::string text = "nothing";
    try {
      call();
    } catch (const terse::usage_error& fault) {
      text = fault.what();
    }
    CAPTURE(text);
    CHECK(text.find(words) != std::string::npos);
  };
  refused([&] { terse::makespan(Stuck{}, two, 2); }, "stages wait for each other forever");
  refused([&] { terse::makespan(OneForwardOneBackward{-3}, two, 8); }, "ahead must be in [0, 31], not -3");
  refused([&] { terse::makespan(GPipe{}, two, -1); }, "a step can't have -1 micro-batches");
  refused(
      [&] {
        terse::makespan(GPipe{}, std::vector<terse::StageTimes>{{1, -1}}, 1);
      },
      "a backward pass can't take -1");
  refused(
      [&] {
        terse::makespan(GPipe{}, std::vector<terse::StageTimes>{{std::nan(""), 1}}, 1);
      },
      "a forward pass can't take nan");
  refused([&] { terse::makespan(GPipe{}, two, 1, HUGE_VAL); }, "a message's latency can't take inf");
}

namespace {

/// GPipe, with something wrong at one action.
struct Bent : GPipe {
  index_t where = -1;
  Action what{};
  index_t room = 100, extra = 0;

  index_t actions(index_t micro_batches) const { return 2 * micro_batches + extra; }
  index_t in_flight(int, int, index_t) const { return room; }
  Action at(index_t k, int stage, int stages, index_t micro_batches) const {
    return k == where ? what : GPipe::at(k, stage, stages, micro_batches);
  }
};

}  // namespace

TEST_CASE("a schedule that breaks its word is found") {
  each_schedule(3, [](const auto& schedule) {
    for (int stages = 1; stages <= 5; ++stages)
      for (int stage = 0; stage < stages; ++stage)
        for (const index_t micro_batches : {0, 1, 2, 5, 17})
          CHECK_NOTHROW(terse::check_order(schedule, stage, stages, micro_batches));
  });
  const auto text_of = [](const Bent& schedule) {
    try {
      terse::check_order(schedule, 1, 3, 4);
    } catch (const terse::usage_error& fault) {
      return std::string(fault.what());
    }
    return std::string("nothing");
  };
  const std::string where = ", on stage 1 of 3 with 4 micro-batches";
  CHECK(text_of({}) == "nothing");
  CHECK(text_of({{}, 1, {true, 2}}) ==
        "terse: this schedule takes the forward pass of micro-batch 2 where 1 is next" + where);
  CHECK(text_of({{}, 6, {false, 3}}) ==
        "terse: this schedule takes the backward pass of micro-batch 3 where 2 is next" + where);
  CHECK(text_of({{}, 7, {true, 4}}) ==
        "terse: this schedule takes the forward pass of micro-batch 4 where 4 is next" + where);
  CHECK(text_of({{}, 0, {false, 0}}) ==
        "terse: this schedule takes the backward pass of micro-batch 0 before its forward pass" + where);
  CHECK(text_of({{}, -1, {}, 3}) ==
        "terse: this schedule has 4 micro-batches in flight, but in_flight() returns 3" + where);
  CHECK(text_of({{}, -1, {}, 4, 1}) ==
        "terse: this schedule has 9 actions, neither a forward pass of each micro-batch nor a backward one, "
        "too" +
            where);
}
