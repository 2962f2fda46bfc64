// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <latch>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pipeline/trial.hpp"
#include "terse/terse.hpp"
#include "terse/transport/delayed.hpp"
#include "transport/trapped.hpp"

// Four stages over threads: a stage that throws, dies, stalls or leaves at any of its passes; neighbours and packets that
// don't belong together; values that are not finite; and slow stages, which are no fault.

namespace {

using namespace std::chrono_literals;
using namespace trial;
using terse::Delayed;
using terse::GPipe;
using terse::OneForwardOneBackward;
using terse::PacketHeader;
using terse::Pipeline;
using terse::PipelineOptions;
using terse::Receive;
using terse::Send;
using terse::ThreadGroup;
using terse::Threads;

constexpr int stages = 4;
/// Passes of a stage in a step.
constexpr int passes = 2 * micro_batches;
/// Enough for a stage that has nothing to wait for, on a machine that is busy with other things.
constexpr Milliseconds patience = 20s;
/// Far below `patience`: who leaves by then did not sit a deadline out.
constexpr double at_once = 5;
/// Where a stage stalls. Others' passes take no time.
constexpr Milliseconds deadline = 500ms;
constexpr double in_time = 1.5;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }
bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

/// Calls work(0), ..., work(count - 1), several at once, since most of them wait.
template <class F>
void side_by_side(int count, F work) {
  std::atomic<int> next = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int k = next++; k < count; k = next++) work(k);
    });
}

/// A stage that stalls does so until all others have given up, 5 seconds at most.
class Patience {
 public:
  void give_up() { ++gone_; }
  void outlast() const {
    const Clock::time_point until = Clock::now() + 5s;
    while (gone_ < stages - 1 && Clock::now() < until) std::this_thread::sleep_for(1ms);
  }

 private:
  std::atomic<int> gone_ = 0;
};

/// train() as above; what has happened goes on to the group.
template <class P>
void play(
    P& pipeline, Toy& toy, int steps, Seat& seat,
    const std::function<Ids(int)>& ids = [](int step) { return batch(step); }, Patience* all = nullptr) {
  train(pipeline, toy, steps, seat, ids);
  if (all != nullptr) all->give_up();
  // The group is lost, but not the pipeline's own state. Whoever finds a fault first would wait for the others.
  if (seat.outcome.kind == Kind::peer) {
    pipeline.forget();
    seat.mended = !pipeline.torn();
    seat.after = outcome_of([&] { pipeline.train(ids(seat.step)); });
  }
  if (seat.outcome.kind != Kind::returned) std::rethrow_exception(seat.outcome.thrown);
}

/// A start that nobody makes before all are there, whichever way they come.
class Start {
 public:
  explicit Start(std::latch& all) : all_(&all) {}
  ~Start() {
    if (all_ != nullptr) all_->count_down();
  }
  Start(const Start&) = delete;
  Start& operator=(const Start&) = delete;
  void await() { std::exchange(all_, nullptr)->arrive_and_wait(); }

 private:
  std::latch* all_;
};

/// Two steps on four stages. prepare(rank, toy, patience) may arm a stage.
template <class Plan, class Prepare>
Seats drill(const Plan& plan, Milliseconds patience_of_group, Prepare prepare, int steps = 2) {
  Seats seats(stages);
  std::latch ready(stages);
  Patience all;
  ThreadGroup group(stages, patience_of_group);
  (void)outcome_of([&] {
    group.run([&](Threads& transport) {
      const int rank = transport.rank();
      Start start(ready);
      Toy toy(rank, stages, elements);
      prepare(rank, toy, all);
      Pipeline pipeline{compressed(), transport, toy, {.micro_batch = rows_at_once, .seed = 3}, plan};
      start.await();
      play(pipeline, toy, steps, seats[at(rank)], batch, &all);
    });
  });
  return seats;
}

/// What happens without faults.
template <class Plan>
const Seats& honest() {
  static const Seats seats = drill(
      Plan{}, patience, [](int, Toy&, Patience&) {}, 3);
  return seats;
}

/// All stages but `culprit` have left by a peer_error that names it and says `cause`, at most `within` seconds after
/// `begin`; their pipelines are torn, say so, and can be emptied.
void check_survivors(const Seats& seats, int culprit, const std::string& cause, Clock::time_point begin,
                     double within) {
  for (int rank = 0; rank < stages; ++rank) {
    if (rank == culprit) continue;
    const Seat& seat = seats[at(rank)];
    CAPTURE(rank);
    CAPTURE(seat.outcome.text);
    CHECK(seat.outcome.kind == Kind::peer);
    CHECK(seat.outcome.culprit == culprit);
    CHECK(contains(seat.outcome.text, "rank " + std::to_string(culprit) + " " + cause));
    CHECK(seconds(seat.outcome.when - begin) < within);
    CHECK(seat.torn);
    CHECK(seat.again.kind == Kind::usage);
    CHECK(contains(seat.again.text, "load a checkpoint, or call forget()"));
    CHECK(seat.mended);
    CHECK(seat.after.kind == Kind::peer);
    CHECK(seat.after.culprit == culprit);
    CHECK(seconds(seat.after.when - begin) < within);
  }
}

/// On every stage, the culprit's included, each copy is of before or of after a message, and a sender's are no further
/// behind than its receiver's.
template <class Plan>
void check_copies(const Seats& seats) {
  const Seats& right = honest<Plan>();
  for (int rank = 0; rank + 1 < stages; ++rank) {
    CAPTURE(rank);
    const Moved sent = moved_of(seats[at(rank)], right[at(rank)], "outgoing");
    const Moved received = moved_of(seats[at(rank + 1)], right[at(rank + 1)], "incoming");
    CHECK(sent.most >= received.least);
  }
}

enum class Fault { throws, dies, stalls };

/// A fault before each pass in [first, end) of each stage.
template <class Plan>
void check_faults(Fault fault, int first, int end) {
  (void)honest<Plan>();
  const int each = end - first, count = stages * each;
  std::vector<Seats> all(at(count));
  std::vector<Clock::time_point> struck(at(count), Clock::time_point::max());
  side_by_side(count, [&](int k) {
    const int culprit = k / each, pass = first + k % each;
    all[at(k)] = drill(Plan{}, fault == Fault::stalls ? deadline : patience,
                       [&](int rank, Toy& toy, Patience& others) {
                         if (rank != culprit) return;
                         toy.strike = [&struck, &others, fault, pass, k](int now) {
                           if (now != pass) return;
                           struck[at(k)] = Clock::now();
                           if (fault == Fault::throws) throw std::runtime_error("out of memory");
                           if (fault == Fault::dies) throw 42;  // which is no std::exception
                           others.outlast();
                         };
                       });
  });
  for (int k = 0; k < count; ++k) {
    const int culprit = k / each, pass = first + k % each;
    CAPTURE(culprit);
    CAPTURE(pass);
    const Seats& seats = all[at(k)];
    const Seat& own = seats[at(culprit)];
    REQUIRE(struck[at(k)] != Clock::time_point::max());
    CHECK(own.step == pass / passes);
    CHECK(own.torn);
    CHECK(own.again.kind == Kind::usage);
    check_copies<Plan>(seats);
    if (fault == Fault::stalls) {
      check_survivors(seats, culprit, "is late: a wait that needs it has lasted 500 ms", struck[at(k)],
                      in_time);
      CHECK(own.outcome.kind == Kind::peer);
      CHECK(own.outcome.culprit == culprit);
      continue;
    }
    check_survivors(seats, culprit,
                    fault == Fault::throws ? "threw: out of memory" : "threw: unknown exception",
                    struck[at(k)], at_once);
    CHECK(own.outcome.kind == (fault == Fault::throws ? Kind::other : Kind::foreign));
    // The passes before it have moved its copies, and a forward pass the incoming ones.
    int forwards = 0;
    for (int action = 0; action < pass % passes; ++action)
      forwards += Plan{}.at(action, culprit, stages, micro_batches).forward ? 1 : 0;
    const bool forward = Plan{}.at(pass % passes, culprit, stages, micro_batches).forward;
    const auto check_moved = [&](const char* side, int messages) {
      const Moved found = moved_of(own, honest<Plan>()[at(culprit)], side);
      CHECK(found.least <= own.step * micro_batches + messages);
      CHECK(found.most >= own.step * micro_batches + messages);
    };
    if (culprit > 0) check_moved("incoming", forwards + (forward ? 1 : 0));
    if (culprit + 1 < stages) check_moved("outgoing", forwards);
  }
}

}  // namespace

TEST_CASE(
    "without faults all stages return, schedules have the same bits, and each message moves the copies") {
  for (const Seats* seats : {&honest<GPipe>(), &honest<OneForwardOneBackward>()})
    for (int rank = 0; rank < stages; ++rank) {
      const Seat& seat = (*seats)[at(rank)];
      CAPTURE(rank);
      CAPTURE(seat.outcome.text);
      REQUIRE(seat.outcome.kind == Kind::returned);
      CHECK(seat.losses == honest<GPipe>()[0].losses);
      CHECK(seat.hash == honest<GPipe>()[at(rank)].hash);
      CHECK(seat.copies == honest<GPipe>()[at(rank)].copies);
      for (const auto& [side, rows] : seat.copies[2]) {
        const Moved whole = moved(rows, seat.copies[1].at(side), rows, batch(1));
        CHECK(whole.least == micro_batches);
        const Moved none = moved(seat.copies[1].at(side), seat.copies[1].at(side), rows, batch(1));
        CHECK(none.most == 0);
      }
    }
}

TEST_CASE("a throw before any pass sends the others home at once by its name and words: GPipe") {
  check_faults<GPipe>(Fault::throws, 0, 2 * passes);
}

TEST_CASE("a throw before any pass sends the others home at once by its name and words: 1F1B") {
  check_faults<OneForwardOneBackward>(Fault::throws, 0, 2 * passes);
}

TEST_CASE("so does a stage that dies of what is no std::exception") {
  check_faults<GPipe>(Fault::dies, passes, 2 * passes);
  check_faults<OneForwardOneBackward>(Fault::dies, passes, 2 * passes);
}

TEST_CASE("a stall before any pass is blamed on its stage within deadline + 1 s: GPipe") {
  check_faults<GPipe>(Fault::stalls, passes, 2 * passes);
}

TEST_CASE("a stall before any pass is blamed on its stage within deadline + 1 s: 1F1B") {
  check_faults<OneForwardOneBackward>(Fault::stalls, passes, 2 * passes);
}

TEST_CASE("a stage that stalls, throws or leaves between two steps is named") {
  enum class Way { stalls, throws, leaves };
  for (int k = 0; k < 3 * stages; ++k) {
    const Way way = static_cast<Way>(k / stages);
    const int culprit = k % stages;
    CAPTURE(k);
    Seats seats(stages);
    Clock::time_point struck;
    std::latch ready(stages);
    Patience all;
    (void)outcome_of([&] {
      ThreadGroup(stages, way == Way::stalls ? deadline : patience).run([&](Threads& transport) {
        const int rank = transport.rank();
        Start start(ready);
        Toy toy(rank, stages, elements);
        Pipeline pipeline{compressed(), transport, toy, {.micro_batch = rows_at_once, .seed = 3}, GPipe{}};
        pipeline.train(batch(0));
        toy.descend();
        start.await();
        if (rank == culprit) {
          struck = Clock::now();
          if (way == Way::throws) throw std::runtime_error("no more data");
          if (way == Way::leaves) return;
          all.outlast();
        }
        play(
            pipeline, toy, 1, seats[at(rank)], [](int) { return batch(1); }, &all);
      });
    });
    const char* const causes[] = {"is late: a wait that needs it has lasted 500 ms", "threw: no more data",
                                  "has finished its program, but others still wait for it"};
    check_survivors(seats, culprit, causes[static_cast<int>(way)], struck,
                    way == Way::stalls ? in_time : at_once);
  }
}

TEST_CASE(
    "a throw in loss or in an evaluation tears the pipeline as well, and leaves the copies as they are") {
  struct Thrower : Toy {
    using Toy::Toy;
    double loss(const MicroBatch& rows) const {
      if (rows.index == 3 && !rows.training) throw std::runtime_error("no target");
      return Toy::loss(rows);
    }
  };
  Seats seats(stages);
  Clock::time_point begin;
  std::vector<Copies> before(stages), after(stages);
  (void)outcome_of([&] {
    ThreadGroup(stages, patience).run([&](Threads& transport) {
      const int rank = transport.rank();
      Thrower toy(rank, stages, elements);
      Pipeline pipeline{compressed(), transport, toy, {.micro_batch = rows_at_once}, GPipe{}};
      pipeline.train(batch(0));
      Seat& seat = seats[at(rank)];
      before[at(rank)] = copies_of(pipeline);
      if (rank == 0) begin = Clock::now();
      seat.outcome = outcome_of([&] { pipeline.evaluate(batch(1)); });
      after[at(rank)] = copies_of(pipeline);
      seat.torn = pipeline.torn();
      seat.again = outcome_of([&] { pipeline.train(batch(1)); });
      if (seat.outcome.kind == Kind::peer) {
        pipeline.forget();
        seat.mended = !pipeline.torn();
        seat.after = outcome_of([&] { pipeline.evaluate(batch(1)); });
      }
      std::rethrow_exception(seat.outcome.thrown);
    });
  });
  CHECK(seats[3].outcome.text == "no target");
  CHECK(before == after);
  check_survivors(seats, 3, "threw: no target", begin, at_once);
}

TEST_CASE("after an error of messages each later step of a pipeline throws, wherever it came from") {
  bool through = false;
  long k = 0;
  for (; k < 200 && !through; ++k) {
    CAPTURE(k);
    bool threw = true;
    (void)outcome_of([&] {
      ThreadGroup(2, patience).run([&](Threads& threads) {
        const int rank = threads.rank();
        terse::test::Trap trap{rank == 1 ? k : -1};
        terse::test::Trapped<Threads> transport(threads.split(0, rank), trap);
        Toy toy(rank, 2, elements);
        Pipeline pipeline{compressed(), transport, toy, {.micro_batch = rows_at_once, .seed = 3}, GPipe{}};
        for (int step = 0; step < 2; ++step)
          if (outcome_of([&] { pipeline.train(batch(step)); }).kind != Kind::returned) {
            CHECK(outcome_of([&] { pipeline.train(batch(step)); }).kind != Kind::returned);
            CHECK(outcome_of([&] { pipeline.evaluate(batch(step)); }).kind != Kind::returned);
            throw std::runtime_error("done");
          }
        threw = false;
      });
    });
    through = !threw;
  }
  CHECK(through);
  CHECK(k > 6);
}

TEST_CASE("forget mends a pipeline whose transport lives") {
  // One stage has no neighbours who would have to give up.
  std::uint64_t mended = 0, fresh = 0;
  for (const bool fails : {true, false})
    ThreadGroup(1, patience).run([&](Threads& transport) {
      Toy toy(0, 1, elements);
      Pipeline pipeline{compressed(), transport, toy, {.micro_batch = rows_at_once}, GPipe{}};
      if (fails) {
        toy.strike = [](int pass) {
          if (pass == 3) throw std::runtime_error("out of memory");
        };
        CHECK_THROWS_WITH_AS(pipeline.train(batch(0)), "out of memory", const std::runtime_error&);
        CHECK(pipeline.torn());
        CHECK_THROWS_AS(pipeline.train(batch(0)), const terse::usage_error&);
        CHECK_THROWS_AS(pipeline.evaluate(batch(0)), const terse::usage_error&);
        pipeline.forget();
        CHECK_FALSE(pipeline.torn());
        CHECK(pipeline.examples().size() == 0);
        toy.gradients.assign(toy.gradients.size(), 0);
      }
      for (int step = 0; step < 2; ++step) {
        CHECK(pipeline.train(batch(step)).fresh == (step == 0 ? batch_rows : 0));
        toy.descend();
      }
      CHECK(pipeline.steps() == 2);
      (fails ? mended : fresh) = toy.hash();
    });
  CHECK(mended == fresh);
}

// -------------------------------------------------------------------------------------- stages that don't fit

namespace {

/// Constructs a pipeline on each of four ranks, by `odd` on rank 2 and by `rest` on the others, and returns how that ended.
/// Nobody leaves before all are through.
template <class Rest, class Odd>
std::vector<Outcome> constructed(Rest rest, Odd odd) {
  std::vector<Outcome> outcomes(stages);
  std::latch through(stages);
  ThreadGroup(stages, patience).run([&](Threads& transport) {
    Toy toy(transport.rank(), stages, elements);
    outcomes[at(transport.rank())] = outcome_of([&] {
      if (transport.rank() == 2)
        odd(transport, toy);
      else
        rest(transport, toy);
    });
    through.arrive_and_wait();
  });
  return outcomes;
}

const PipelineOptions usual{.micro_batch = rows_at_once, .seed = 3};

}  // namespace

TEST_CASE("a stage that is set up differently is found by all at construction, by field and rank") {
  const auto check = [](const std::string& field, auto rest, auto odd) {
    CAPTURE(field);
    const std::vector<Outcome> outcomes = constructed(rest, odd);
    for (int rank = 0; rank < stages; ++rank) {
      CAPTURE(rank);
      CHECK(outcomes[at(rank)].kind == Kind::mismatch);
      CHECK(outcomes[at(rank)].text == "terse: rank " + std::to_string(rank) + ": rank " +
                                           (rank == 2 ? "0" : "2") + " was set up with another " + field);
    }
  };
  // One that is shown, with both values; all ranks but 2 have the first.
  const auto check_setting = [&](const std::string& name, const std::string& usual_value,
                                 const std::string& other_value, auto rest, auto odd) {
    CAPTURE(name);
    const std::vector<Outcome> outcomes = constructed(rest, odd);
    for (int rank = 0; rank < stages; ++rank) {
      CAPTURE(rank);
      CHECK(outcomes[at(rank)].kind == Kind::mismatch);
      CHECK(outcomes[at(rank)].text == "terse: rank " + std::to_string(rank) + ": rank " +
                                           (rank == 2 ? "0" : "2") + " was set up with another setting: " +
                                           name + " is " + (rank == 2 ? usual_value : other_value) +
                                           " there and " + (rank == 2 ? other_value : usual_value) + " here");
    }
  };
  const auto make = [](const auto& policy, const PipelineOptions& options, const auto& plan) {
    return [=](Threads& transport, Toy& toy) { Pipeline pipeline{policy, transport, toy, options, plan}; };
  };
  const auto rest = make(compressed(), usual, OneForwardOneBackward{});

  check("policy", rest, make(terse::DirectActivations<Changes, Gradients>{}, usual, OneForwardOneBackward{}));
  check("policy", rest,
        make(terse::AcSgd<Changes, Gradients, terse::InMemory<float>>{.capacity = 20}, usual,
             OneForwardOneBackward{}));
  Compressed policy = compressed();
  policy.capacity = 21;
  check_setting("capacity", std::to_string(compressed().capacity), "21", rest,
                make(policy, usual, OneForwardOneBackward{}));
  policy = compressed();
  policy.audit = false;
  check_setting("audit", "1", "0", rest, make(policy, usual, OneForwardOneBackward{}));
  check("schedule", rest, make(compressed(), usual, GPipe{}));
  check_setting("ahead", "1", "2", rest, make(compressed(), usual, OneForwardOneBackward{.ahead = 2}));
  const auto other = [&](const char* field, auto change) {
    PipelineOptions options = usual;
    change(options);
    check(field, rest, make(compressed(), options, OneForwardOneBackward{}));
  };
  other("seed", [](PipelineOptions& options) { options.seed = 4; });
  const auto other_number = [&](const char* name, double usual_value, double other_value, auto change) {
    PipelineOptions options = usual;
    change(options);
    check_setting(name, std::to_string(int(usual_value)), std::to_string(int(other_value)), rest,
                  make(compressed(), options, OneForwardOneBackward{}));
  };
  other_number("micro_batch", double(usual.micro_batch), 3,
               [](PipelineOptions& options) { options.micro_batch = 3; });
  other_number("on_non_finite", double(usual.on_non_finite), double(terse::NonFinite::zero),
               [](PipelineOptions& options) { options.on_non_finite = terse::NonFinite::zero; });
  other_number("window", usual.window, 3, [](PipelineOptions& options) { options.window = 3; });
  other_number("evaluation_micro_batch", 0, 5,
               [](PipelineOptions& options) { options.evaluation_micro_batch = 5; });
  other_number("positions", 1, 2, [](PipelineOptions& options) { options.positions = 2; });
}

TEST_CASE("boundaries that don't fit are found by all at construction, with both numbers") {
  struct Shaped : Toy {
    index_t input, output;
    Shaped(index_t in, index_t out) : Toy(0, 1, elements), input(in), output(out) {}
    index_t input_elements() const { return input; }
    index_t output_elements() const { return output; }
  };
  struct Case {
    std::vector<index_t> input, output;
    std::string text;
    index_t positions = 1;
  };
  for (const Case& one : {
           Case{{0, 64, 63, 64},
                {64, 64, 64, 0},
                "stage 1 gives 64 elements an example, and stage 2 takes 63"},
           Case{{0, 64, 64, 64},
                {64, 64, 128, 0},
                "stage 2 gives 128 elements an example, and stage 3 takes 64"},
           Case{{0, 64, 0, 64}, {64, 0, 64, 0}, "stage 1 gives 0 elements an example, and stage 2 takes 0"},
           Case{{0, 64, -5, 64},
                {64, -5, 64, 0},
                "stage 1 gives -5 elements an example, and stage 2 takes -5"},
           Case{{64, 64, 64, 64}, {64, 64, 64, 64}, "must be 0, not 64 and 64"},
           Case{{0, 64, 64, 64}, {64, 64, 64, 1}, "must be 0, not 0 and 1"},
           Case{{0, 60, 64, 60},
                {60, 64, 60, 0},
                "stage 1 gives 64 elements an example, which are no multiple of the 5 positions in "
                "PipelineOptions",
                5},
       }) {
    std::vector<Outcome> outcomes(stages);
    std::latch through(stages);
    ThreadGroup(stages, patience).run([&](Threads& transport) {
      const std::size_t rank = at(transport.rank());
      Shaped toy(one.input[rank], one.output[rank]);
      PipelineOptions options = usual;
      options.positions = one.positions;
      outcomes[rank] = outcome_of([&] { Pipeline pipeline{compressed(), transport, toy, options, GPipe{}}; });
      through.arrive_and_wait();
    });
    for (const Outcome& outcome : outcomes) {
      CAPTURE(outcome.text);
      CHECK(outcome.kind == Kind::mismatch);
      CHECK(contains(outcome.text, one.text));
    }
  }
}

TEST_CASE("options that can't work are refused before any message") {
  const auto refused = [](const auto& policy, const PipelineOptions& options, const auto& plan) {
    std::string text;
    ThreadGroup(1, patience).run([&](Threads& transport) {
      Toy toy(0, 1, elements);
      const Outcome outcome = outcome_of([&] { Pipeline pipeline{policy, transport, toy, options, plan}; });
      CHECK(outcome.kind == Kind::usage);
      text = outcome.text;
    });
    return text;
  };
  CHECK(contains(refused(compressed(), {}, GPipe{}), "micro_batch is the number of examples"));
  CHECK(contains(refused(compressed(), {.micro_batch = -1}, GPipe{}), "not -1"));
  CHECK(contains(refused(compressed(), {.micro_batch = 1, .window = 0}, GPipe{}),
                 "window must be in [1, 8], not 0"));
  CHECK(contains(refused(compressed(), {.micro_batch = 1, .window = 9}, GPipe{}),
                 "window must be in [1, 8], not 9"));
  CHECK(contains(
      refused(compressed(), {.micro_batch = 1, .evaluation_micro_batch = -2}, GPipe{}),
      "evaluation_micro_batch is the number of examples at once in evaluate, or 0 for micro_batch, not -2"));
  CHECK(contains(refused(compressed(), {.micro_batch = 1, .positions = 0}, GPipe{}),
                 "positions is the number of positions of an example, and must be positive, not 0"));
  CHECK(contains(refused(compressed(), {.micro_batch = 1, .window = 1}, OneForwardOneBackward{.ahead = 4}),
                 "would wait for each other forever"));
  CHECK(contains(refused(compressed(), usual, OneForwardOneBackward{.ahead = -1}),
                 "ahead must be in [0, 31], not -1"));
  CHECK(contains(refused(Compressed{}, usual, GPipe{}), "AcSgd's capacity"));
}

TEST_CASE(
    "a batch that can't be is refused by all stages alike, before any message, and nothing has changed") {
  const Ids twice{100, 101, 102, 103, 104, 104, 105};
  const Ids too_many = [] {
    Ids ids = batch(0);
    for (std::uint64_t id = 0; id < 12; ++id) ids.push_back(200 + id);
    return ids;
  }();
  std::vector<std::vector<Outcome>> outcomes(stages);
  std::vector<std::uint64_t> hashes(stages);
  std::vector<Copies> copies(stages);
  ThreadGroup(stages, patience).run([&](Threads& transport) {
    const int rank = transport.rank();
    Toy toy(rank, stages, elements);
    Pipeline pipeline{compressed(), transport, toy, {.micro_batch = rows_at_once, .seed = 3}, GPipe{}};
    for (int step = 0; step < 3; ++step) {
      for (const Ids& ids : {Ids{}, twice, too_many}) {
        const index_t kept = pipeline.examples().size();
        outcomes[at(rank)].push_back(outcome_of([&] { pipeline.train(ids); }));
        CHECK_FALSE(pipeline.torn());
        CHECK(pipeline.examples().size() == kept);
        CHECK(pipeline.steps() == static_cast<std::uint64_t>(step));
      }
      outcomes[at(rank)].push_back(outcome_of([&] { pipeline.evaluate({}); }));
      for (const std::vector<index_t>& lengths : {std::vector<index_t>{1, 1, -1}, {1, 2, 1}, {1, 1}})
        outcomes[at(rank)].push_back(outcome_of([&] { pipeline.train(Ids{300, 301, 302}, lengths); }));
      pipeline.train(batch(step));
      toy.descend();
    }
    hashes[at(rank)] = toy.hash();
    copies[at(rank)] = copies_of(pipeline);
  });
  const std::vector<std::string> texts{
      "a batch needs an example at least",
      "example 104 occurs twice in micro-batch 2: there would be two changes of one copy",
      "the memory of examples is full: it has a capacity of 20, and example 211 is one more. Raise capacity",
      "a batch needs an example at least",
      "row 2 has a length of -1, and PipelineOptions::positions is 1",
      "row 1 has a length of 2, and PipelineOptions::positions is 1",
      "a batch of 3 examples is given 2 lengths"};
  for (int rank = 0; rank < stages; ++rank) {
    CAPTURE(rank);
    for (std::size_t k = 0; k < outcomes[at(rank)].size(); ++k) {
      const Outcome& outcome = outcomes[at(rank)][k];
      CAPTURE(outcome.text);
      CHECK(outcome.kind == Kind::usage);
      CHECK(contains(outcome.text, "terse: rank " + std::to_string(rank) + ", step " +
                                       std::to_string(k / 7 + 1) + ": " + texts[k % 7]));
    }
    CHECK(hashes[at(rank)] == honest<GPipe>()[at(rank)].hash);
    CHECK(copies[at(rank)] == honest<GPipe>()[at(rank)].copies.back());
  }
}

TEST_CASE(
    "examples may come again in another micro-batch of a step, and those without an id as often as they "
    "like") {
  constexpr std::uint64_t none = terse::no_example;
  const Ids ids{1, 2, 2, 1, none, none, none, 1};
  ThreadGroup(stages, patience).run([&](Threads& transport) {
    Toy toy(transport.rank(), stages, elements);
    Pipeline pipeline{compressed(), transport, toy, usual, OneForwardOneBackward{}};
    for (int step = 0; step < 3; ++step) {
      CHECK(pipeline.train(ids).fresh == (step == 0 ? 5 : 3));
      toy.descend();
    }
    CHECK(pipeline.examples().size() == 2);
    pipeline.audit();
  });
}

TEST_CASE(
    "a stage that is given other examples is found at its first packet, which names micro-batch and "
    "neighbour") {
  struct Case {
    const char* name;
    Ids ids;          // of stage 2 in its second step
    int micro_batch;  // where they differ
  };
  const Ids right = batch(1);
  std::vector<Case> cases{
      {"another id", right, 0}, {"another order", right, 0}, {"another order of micro-batches", right, 0},
      {"fewer", right, 0},      {"more", right, 0},          {"a later id", right, 3},
      {"no id", right, 4}};
  cases[0].ids[0] = 100 + (right[0] - 99) % 9;
  std::swap(cases[0].ids[0], cases[0].ids[8]);
  std::swap(cases[1].ids[0], cases[1].ids[1]);
  std::swap(cases[2].ids[0], cases[2].ids[2]);
  std::swap(cases[2].ids[1], cases[2].ids[3]);
  cases[3].ids.pop_back();
  cases[4].ids.push_back(150);
  cases[5].ids[6] = 150;
  cases[6].ids[8] = terse::no_example;
  for (const Case& one : cases) {
    CAPTURE(one.name);
    REQUIRE(one.ids != right);
    Seats seats(stages);
    const Clock::time_point begin = Clock::now();
    (void)outcome_of([&] {
      ThreadGroup(stages, patience).run([&](Threads& transport) {
        const int rank = transport.rank();
        Toy toy(rank, stages, elements);
        Pipeline pipeline{compressed(), transport, toy, {.micro_batch = rows_at_once, .seed = 3}, GPipe{}};
        play(pipeline, toy, 2, seats[at(rank)],
             [&](int step) { return rank == 2 && step == 1 ? one.ids : batch(step); });
      });
    });
    const Seat& finder = seats[2];
    CAPTURE(finder.outcome.text);
    CHECK(finder.outcome.kind == Kind::wire);
    CHECK(
        contains(finder.outcome.text,
                 "terse: rank 2, step 2: stage 1 and this stage work on different examples in micro-batch " +
                     std::to_string(one.micro_batch) + ": other ids"));
    CHECK(finder.torn);
    CHECK(finder.again.kind == Kind::usage);
    check_survivors(seats, 2,
                    "threw: terse: rank 2, step 2: stage 1 and this stage work on different examples", begin,
                    at_once);
  }
}

TEST_CASE("so is a stage that is given another length") {
  std::vector<Outcome> outcomes(stages);
  (void)outcome_of([&] {
    ThreadGroup(stages, patience).run([&](Threads& transport) {
      const int rank = transport.rank();
      Toy toy(rank, stages, elements);
      Pipeline pipeline{compressed(), transport, toy, {.micro_batch = 2, .positions = elements}, GPipe{}};
      const index_t last = rank == 2 ? 2 : 3;
      outcomes[at(rank)] = outcome_of([&] {
        pipeline.train(Ids{1, 2, 3}, std::vector<index_t>{5, 6, last});
      });
    });
  });
  CAPTURE(outcomes[2].text);
  CHECK(outcomes[2].kind == Kind::wire);
  CHECK(contains(outcomes[2].text, "different examples in micro-batch 1: other ids or lengths"));
}

TEST_CASE("a stage that takes a step more or less than the others is told so") {
  enum class Way { evaluates, forgets };
  for (const Way way : {Way::evaluates, Way::forgets}) {
    std::vector<Outcome> outcomes(stages);
    std::latch ready(stages);
    (void)outcome_of([&] {
      ThreadGroup(stages, patience).run([&](Threads& transport) {
        const int rank = transport.rank();
        Start start(ready);
        Toy toy(rank, stages, elements);
        Pipeline pipeline{compressed(), transport, toy, usual, GPipe{}};
        pipeline.train(batch(0));
        start.await();
        if (rank == 1 && way == Way::forgets) pipeline.forget(Ids{100});
        outcomes[at(rank)] = outcome_of([&] {
          if (rank == 1 && way == Way::evaluates)
            pipeline.evaluate(batch(1));
          else
            pipeline.train(batch(1));
        });
        if (outcomes[at(rank)].thrown) std::rethrow_exception(outcomes[at(rank)].thrown);
      });
    });
    CAPTURE(outcomes[1].text);
    CHECK(outcomes[1].kind == Kind::wire);
    CHECK(contains(outcomes[1].text, way == Way::evaluates
                                         ? "stage 0 is in step 2, and this stage in step 1: all stages make "
                                           "the same calls of train and evaluate"
                                         : "or one that only one of them has seen before"));
    for (const int rank : {0, 2, 3}) {
      CHECK(outcomes[at(rank)].kind == Kind::peer);
      CHECK(outcomes[at(rank)].culprit == 1);
    }
  }
}

// ------------------------------------------------------------------------------------------- packets that lie

namespace {

/// What a rank has sent in a phase, packet by packet.
using Sent = std::map<Phase, std::vector<Bytes>>;
/// Changes packet `number` of a phase, counted from the first step on; `honest` is what a run without lies has sent.
struct Lie {
  Phase phase = Phase::forward;
  int number = 0;
  std::function<void(Bytes& packet, const Sent& honest)> twist;
};
struct Mouth {
  std::vector<Lie> lies;
  const Sent* honest = nullptr;
  Sent sent;
  std::deque<Bytes> forged;  // what is under way
  std::deque<Send> sends;
};

/// A transport that sends other bytes than it is given, see Mouth.
template <terse::Transport Inner>
class Liar {
 public:
  using memory = typename Inner::memory;
  using Ticket = typename Inner::Ticket;

  Liar(Inner inner, std::shared_ptr<Mouth> mouth) : inner_(std::move(inner)), mouth_(std::move(mouth)) {}

  int rank() const { return inner_.rank(); }
  int size() const { return inner_.size(); }
  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    if (sends.size() != 1 || (phase != Phase::forward && phase != Phase::backward))
      return inner_.exchange(sends, receives, phase);
    std::vector<Bytes>& sent = mouth_->sent[phase];
    sent.emplace_back(sends[0].data, sends[0].data + sends[0].bytes);
    for (const Lie& lie : mouth_->lies) {
      if (lie.phase != phase || lie.number + 1 != static_cast<int>(sent.size())) continue;
      Bytes& packet = mouth_->forged.emplace_back(sent.back());
      lie.twist(packet, *mouth_->honest);
      const Send send{sends[0].peer, packet.data(), static_cast<index_t>(packet.size()), sends[0].room};
      return inner_.exchange({&mouth_->sends.emplace_back(send), 1}, receives, phase);
    }
    return inner_.exchange(sends, receives, phase);
  }
  Liar split(int color, int key) { return Liar(inner_.split(color, key), mouth_); }

 private:
  Inner inner_;
  std::shared_ptr<Mouth> mouth_;
};

/// Packets of a step: the verdict goes behind the activations.
constexpr int forward_packets = micro_batches + 1, backward_packets = micro_batches;

struct Lied {
  Seats seats{stages};
  std::vector<Sent> sent{stages};
  std::vector<Outcome> audits{stages};  // after the steps
  Clock::time_point begin;
};
/// Steps over a transport on which `liar` lies; then, where nobody has found that out, an audit.
Lied lied(int liar, const std::vector<Lie>& lies, const std::vector<Sent>& honest, int steps = 2) {
  Lied result;
  std::latch ready(stages);
  result.begin = Clock::now();
  (void)outcome_of([&] {
    ThreadGroup(stages, patience).run([&](Threads& threads) {
      const int rank = threads.rank();
      Start start(ready);
      const auto mouth = std::make_shared<Mouth>();
      if (rank == liar) {
        mouth->lies = lies;
        mouth->honest = &honest[at(rank)];
      }
      Liar<Threads> transport(threads.split(0, rank), mouth);
      Toy toy(rank, stages, elements);
      Pipeline pipeline{compressed(), transport, toy, {.micro_batch = rows_at_once, .seed = 3}, GPipe{}};
      start.await();
      play(pipeline, toy, steps, result.seats[at(rank)]);
      result.audits[at(rank)] = outcome_of([&] { pipeline.audit(); });
      terse::barrier(threads);
      result.sent[at(rank)] = mouth->sent;
    });
  });
  return result;
}
const std::vector<Sent>& honest_packets() {
  static const std::vector<Sent> sent = lied(-1, {}, {}).sent;
  return sent;
}

/// Adds to a field of the header.
template <class Field>
auto shift(Field PacketHeader::*field, int by) {
  return [=](Bytes& packet, const Sent&) {
    PacketHeader header;
    std::memcpy(&header, packet.data(), sizeof header);
    header.*field = static_cast<Field>(header.*field + static_cast<Field>(by));
    std::memcpy(packet.data(), &header, sizeof header);
  };
}
auto put_float(std::size_t place, float value) {
  return [=](Bytes& packet, const Sent&) { std::memcpy(packet.data() + place, &value, sizeof value); };
}
/// Becomes the packet that is `by` further on in the run.
auto other_packet(Phase phase, int number) {
  return [=](Bytes& packet, const Sent& sent) { packet = sent.at(phase)[at(number)]; };
}

}  // namespace

TEST_CASE("a packet that does not belong here is refused by who gets it, and the others hear why") {
  // In the second step stage 1 lies to stage 2 about its third activation, or stage 2 to stage 1 about its gradient.
  constexpr int forward = forward_packets + 2, backward = backward_packets + 2;
  constexpr auto nan = std::numeric_limits<float>::quiet_NaN();
  const auto cut = [](Bytes& packet, const Sent& sent) {
    packet.resize(packet.size() - 16);
    shift(&PacketHeader::length, -16)(packet, sent);
  };
  const auto flip_note = [](Bytes& packet, const Sent&) { packet[packet.size() - 8] ^= std::byte{1}; };
  const std::string different = "and this stage work on different examples in micro-batch 2: other ids";
  struct Case {
    const char* name;
    std::vector<Lie> lies;
    std::string text;  // behind "stage 1 " or "the packet from rank 1 "
  };
  const std::vector<Case> cases{
      {"magic", {{Phase::forward, forward, shift(&PacketHeader::magic, 1)}}, "has magic"},
      {"version",
       {{Phase::forward, forward, shift(&PacketHeader::version, 1)}},
       "has wire version 4, expected 3"},
      {"step",
       {{Phase::forward, forward, shift(&PacketHeader::step, 1)}},
       "is in step 3, and this stage in step 2"},
      {"length", {{Phase::forward, forward, shift(&PacketHeader::length, 8)}}, "has length"},
      {"check", {{Phase::forward, forward, shift(&PacketHeader::check, 1)}}, different},
      {"cut", {{Phase::forward, forward, cut}}, "has length"},
      {"old",
       {{Phase::forward, forward, other_packet(Phase::forward, 2)}},
       "is in step 1, and this stage in step 2"},
      {"again", {{Phase::forward, forward, other_packet(Phase::forward, forward - 1)}}, different},
      {"swapped",
       {{Phase::forward, forward, other_packet(Phase::forward, forward + 1)},
        {Phase::forward, forward + 1, other_packet(Phase::forward, forward)}},
       different},
      {"NaN", {{Phase::forward, forward, put_float(32, nan)}}, "has a scale that no finite message has"},
      {"absurd", {{Phase::forward, forward, put_float(36, 1e30F)}}, "has a scale that no finite message has"},
      {"proof", {{Phase::forward, forward, flip_note}}, "'s copy of example"},
      {"verdict",
       {{Phase::forward, forward_packets + micro_batches, shift(&PacketHeader::check, 1)}},
       "'s packet is not the one that ends this step"},
      {"back, step",
       {{Phase::backward, backward, shift(&PacketHeader::step, -1)}},
       "is in step 1, and this stage in step 2"},
      {"back, check", {{Phase::backward, backward, shift(&PacketHeader::check, 1)}}, different},
      {"back, cut", {{Phase::backward, backward, cut}}, "has length"},
      {"back, swapped",
       {{Phase::backward, backward, other_packet(Phase::backward, backward + 1)},
        {Phase::backward, backward + 1, other_packet(Phase::backward, backward)}},
       different},
      {"back, NaN",
       {{Phase::backward, backward, put_float(32, nan)}},
       "has a scale that no finite message has"},
  };
  (void)honest_packets();
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const bool back = one.lies[0].phase == Phase::backward,
               verdict = one.lies[0].number == 2 * forward_packets - 1;
    const int liar = back ? 2 : 1, finder = back ? 1 : 2;
    const Lied result = lied(liar, one.lies, honest_packets());
    const Outcome& found = result.seats[at(finder)].outcome;
    CAPTURE(found.text);
    CHECK(found.kind == Kind::wire);
    const std::string head = "terse: rank " + std::to_string(finder) + ", step 2: ";
    const std::string number = std::to_string(liar);
    const bool named = contains(found.text, head + "stage " + number + " " + one.text) ||
                       contains(found.text, head + "stage " + number + one.text) ||
                       contains(found.text, head + "the packet from rank " + number + " " + one.text);
    CHECK(named);
    CHECK(result.seats[at(finder)].torn);
    if (verdict) {
      // Others may be through with the step, and the next thing they do together fails.
      for (const int rank : {0, 1, 3}) {
        const Outcome& step = result.seats[at(rank)].outcome;
        const Outcome& last = step.kind == Kind::returned ? result.audits[at(rank)] : step;
        CHECK(last.kind == Kind::peer);
        CHECK(last.culprit == finder);
        CHECK(contains(last.text, found.text));
      }
      CHECK(result.seats[3].outcome.kind == Kind::peer);
      continue;
    }
    check_survivors(result.seats, finder, "threw: " + found.text, result.begin, at_once);
    check_copies<GPipe>(result.seats);
  }
}

TEST_CASE("damage that no header shows is found by a proof or an audit, by example or boundary") {
  const auto flip = [](std::size_t place) {
    return [=](Bytes& packet, const Sent&) { packet[place] ^= std::byte{0x40}; };
  };
  // The first packet of a step: an element of the first one, which is a float; a code of the second one.
  for (int step = 0; step < 2; ++step) {
    CAPTURE(step);
    const Lie lie{Phase::forward, step * forward_packets, flip(step == 0 ? 32 + 6 : 32 + 8 + 5)};
    const Lied found = lied(1, {lie}, honest_packets(), step + 1);
    for (int rank = 0; rank < stages; ++rank) {
      CAPTURE(rank);
      CAPTURE(found.audits[at(rank)].text);
      CHECK(found.seats[at(rank)].outcome.kind == Kind::returned);
      CHECK(found.audits[at(rank)].kind == Kind::mismatch);
      CHECK(contains(found.audits[at(rank)].text,
                     "stages 1 and 2 keep different copies of the examples between them: load a checkpoint, "
                     "or forget()"));
    }
    // Who goes on without one: each message proves a row.
    const Lied later = lied(1, {lie}, honest_packets(), 30);
    const Seat& finder = later.seats[2];
    CAPTURE(finder.outcome.text);
    CHECK(finder.outcome.kind == Kind::wire);
    CHECK(finder.step > step);
    const std::uint64_t damaged = batch(step)[0];
    CHECK(contains(finder.outcome.text, "stage 1's copy of example " + std::to_string(damaged) +
                                            " differs from this stage's: load a checkpoint, or forget()"));
    check_survivors(later.seats, 2, "threw: " + finder.outcome.text, later.begin, at_once);
  }
  // A packet that ends early, behind which the receiver reads what was there before.
  const auto cut = [](Bytes& packet, const Sent&) { packet.resize(44); };
  const Lied result = lied(1, {{Phase::forward, forward_packets + 2, cut}}, honest_packets());
  CAPTURE(result.seats[2].outcome.text);
  CHECK(result.seats[2].outcome.kind == Kind::wire);
  CHECK(contains(result.seats[2].outcome.text, "stage 1's copy of example"));
  check_survivors(result.seats, 2, "threw: " + result.seats[2].outcome.text, result.begin, at_once);
}

TEST_CASE("a row that comes with a value that is not finite is refused") {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), 1e30F}) {
    // The first step sends rows whole.
    const Lied result = lied(1, {{Phase::forward, 2, put_float(32 + 8, value)}}, honest_packets());
    const Outcome& found = result.seats[2].outcome;
    CAPTURE(found.text);
    CHECK(found.kind == Kind::wire);
    CHECK(contains(found.text,
                   "rank 2, step 1: the packet from rank 1 (phase 'forward') was damaged on its way"));
    check_survivors(result.seats, 2, "threw: " + found.text, result.begin, at_once);
  }
}

TEST_CASE("a packet that is longer than any may be is refused by the transport") {
  const Lied result = lied(
      1, {{Phase::forward, 3, [](Bytes& packet, const Sent&) { packet.resize(100000); }}}, honest_packets());
  for (int rank = 0; rank < stages; ++rank) {
    CAPTURE(result.seats[at(rank)].outcome.text);
    CHECK(result.seats[at(rank)].outcome.kind == Kind::peer);
    CHECK(result.seats[at(rank)].outcome.culprit == 1);
    CHECK(contains(result.seats[at(rank)].outcome.text,
                   "rank 1 sent 100000 bytes in phase 'forward' of Pipeline::train where rank 2"));
  }
}

// ------------------------------------------------------------------------------------------ what is not finite

namespace {

struct Marked {
  std::vector<Outcome> outcomes{stages};
  std::vector<std::optional<terse::PipelineResult>> results{stages};
  std::vector<Copies> copies{stages};
  std::array<bool, stages> torn{};
  bool goes_on = true;
};
/// A value in what `culprit` returns from `pass` of its second step; then a third step and an audit.
template <class Plan>
Marked marked(int culprit, int pass, float value, terse::NonFinite policy) {
  Marked result;
  std::atomic<int> fine = 0;
  ThreadGroup(stages, patience).run([&](Threads& transport) {
    const int rank = transport.rank();
    Toy toy(rank, stages, elements);
    if (rank == culprit)
      toy.strike = [&](int now) {
        if (now == passes + pass) toy.spoil = value;
      };
    Pipeline pipeline{
        compressed(), transport, toy, {.micro_batch = rows_at_once, .on_non_finite = policy}, Plan{}};
    pipeline.train(batch(0));
    toy.descend();
    result.outcomes[at(rank)] = outcome_of([&] { result.results[at(rank)] = pipeline.train(batch(1)); });
    result.copies[at(rank)] = copies_of(pipeline);
    result.torn[at(rank)] = pipeline.torn();
    toy.gradients.assign(toy.gradients.size(), 0);
    const terse::PipelineResult next = pipeline.train(batch(2));
    pipeline.audit();
    fine += next.applied && std::isfinite(next.loss) && pipeline.steps() == 3 ? 1 : 0;
  });
  result.goes_on = fine == stages;
  return result;
}

bool finite(const Copies& copies) {
  for (const auto& [side, rows] : copies)
    for (const auto& [id, row] : rows)
      for (std::size_t b = 0; b < row.size(); b += sizeof(terse::fp16)) {
        terse::fp16 value;
        std::memcpy(&value, row.data() + b, sizeof value);
        if (!std::isfinite(terse::widened(value))) return false;
      }
  return true;
}

template <class Plan>
void check_marked(float value, terse::NonFinite policy) {
  for (int culprit = 0; culprit < stages; ++culprit)
    for (int pass = 0; pass < passes; ++pass) {
      // The last stage sends no activation, and the first one no gradient.
      const bool forward = Plan{}.at(pass, culprit, stages, micro_batches).forward;
      if (culprit == (forward ? stages - 1 : 0)) continue;
      CAPTURE(culprit);
      CAPTURE(pass);
      const Marked result = marked<Plan>(culprit, pass, value, policy);
      for (int rank = 0; rank < stages; ++rank) {
        CAPTURE(rank);
        const Outcome& outcome = result.outcomes[at(rank)];
        CAPTURE(outcome.text);
        CHECK_FALSE(result.torn[at(rank)]);
        CHECK(finite(result.copies[at(rank)]));
        if (policy == terse::NonFinite::throw_) {
          CHECK(outcome.kind == Kind::non_finite);
          CHECK(outcome.culprit == culprit);
          CHECK(contains(outcome.text, "terse: rank " + std::to_string(rank) +
                                           ", step 2: an activation, gradient or loss of stage " +
                                           std::to_string(culprit) + " is not finite"));
        } else {
          REQUIRE(result.results[at(rank)].has_value());
          CHECK(result.results[at(rank)]->applied == (policy == terse::NonFinite::zero));
        }
      }
      CHECK(result.goes_on);
    }
}

}  // namespace

TEST_CASE("a value that is not finite, from whatever pass, is told to all stages by its stage's name") {
  check_marked<GPipe>(std::numeric_limits<float>::quiet_NaN(), terse::NonFinite::throw_);
  check_marked<OneForwardOneBackward>(std::numeric_limits<float>::quiet_NaN(), terse::NonFinite::throw_);
}

TEST_CASE("so are infinities and what has no square, and all stages decide alike") {
  check_marked<GPipe>(-std::numeric_limits<float>::infinity(), terse::NonFinite::skip);
  check_marked<OneForwardOneBackward>(1e30F, terse::NonFinite::zero);
}

TEST_CASE("the first stage is named where two have values that are not finite") {
  for (const int other : {1, 2}) {
    std::vector<Outcome> outcomes(stages);
    ThreadGroup(stages, patience).run([&](Threads& transport) {
      Toy toy(transport.rank(), stages, elements);
      if (transport.rank() == other || transport.rank() == 3)
        toy.strike = [&](int pass) {
          if (pass == (transport.rank() == 3 ? micro_batches : 2))
            toy.spoil = std::numeric_limits<float>::infinity();
        };
      Pipeline pipeline{compressed(), transport, toy, usual, GPipe{}};
      outcomes[at(transport.rank())] = outcome_of([&] { pipeline.train(batch(0)); });
    });
    for (const Outcome& outcome : outcomes) CHECK(outcome.culprit == other);
  }
}

TEST_CASE("an evaluation says so, too: an error where the policy throws, else no number") {
  for (const terse::NonFinite policy : {terse::NonFinite::throw_, terse::NonFinite::skip}) {
    std::vector<Outcome> outcomes(stages);
    std::vector<double> losses(stages);
    ThreadGroup(stages, patience).run([&](Threads& transport) {
      const int rank = transport.rank();
      Toy toy(rank, stages, elements);
      if (rank == 1)
        toy.strike = [&](int pass) {
          if (pass == 3) toy.spoil = std::numeric_limits<float>::quiet_NaN();
        };
      Pipeline pipeline{
          compressed(), transport, toy, {.micro_batch = rows_at_once, .on_non_finite = policy}, GPipe{}};
      outcomes[at(rank)] = outcome_of([&] { losses[at(rank)] = pipeline.evaluate(batch(0)); });
      CHECK_FALSE(pipeline.torn());
      CHECK(std::isfinite(pipeline.evaluate(batch(0))));
    });
    for (int rank = 0; rank < stages; ++rank) {
      CHECK(outcomes[at(rank)].kind ==
            (policy == terse::NonFinite::throw_ ? Kind::non_finite : Kind::returned));
      if (policy == terse::NonFinite::skip) CHECK(std::isnan(losses[at(rank)]));
    }
  }
}

// ---------------------------------------------------------------------------------------------- what is slow

namespace {

/// Twelve micro-batches of passes of 30 ms: an end waits 180 ms for a message at most, a step takes 900 ms, and some
/// receives are posted 540 ms before their messages come.
template <class Plan, class Wrap>
void check_slow(int window, Wrap wrap) {
  const Outcome outcome = outcome_of([&] {
    ThreadGroup(stages, 450ms).run([&](Threads& threads) {
      auto transport = wrap(threads);
      Toy toy(transport.rank(), stages, elements);
      toy.strike = [](int) { std::this_thread::sleep_for(30ms); };
      Pipeline pipeline{compressed(), transport, toy, {.micro_batch = 1, .window = window}, Plan{}};
      const Ids ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
      const Clock::time_point begin = Clock::now();
      for (int step = 0; step < 2; ++step) {
        pipeline.train(ids);
        toy.descend();
      }
      CHECK(seconds(Clock::now() - begin) > 2 * 0.72);
      pipeline.audit();
    });
  });
  CAPTURE(outcome.text);
  CHECK(outcome.kind == Kind::returned);
}

}  // namespace

TEST_CASE("a step may last longer than the deadline, which counts from when a message is waited for") {
  const auto plain = [](Threads& threads) { return threads.split(0, threads.rank()); };
  const auto delayed = [](Threads& threads) {
    return Delayed<Threads>(threads.split(0, threads.rank()), {.latency = 5ms, .bytes_per_second = 1e6});
  };
  side_by_side(8, [&](int k) {
    const int window = k % 2 == 0 ? 2 : 8;
    if (k / 2 == 0) check_slow<GPipe>(window, plain);
    if (k / 2 == 1) check_slow<OneForwardOneBackward>(window, plain);
    if (k / 2 == 2) check_slow<GPipe>(window, delayed);
    if (k / 2 == 3) check_slow<OneForwardOneBackward>(window, delayed);
  });
}

TEST_CASE("over a delayed transport a stall is blamed on its stage, too") {
  for (int culprit = 0; culprit < stages; ++culprit) {
    std::vector<Outcome> outcomes(stages);
    Clock::time_point struck;
    Patience all;
    (void)outcome_of([&] {
      ThreadGroup(stages, deadline).run([&](Threads& threads) {
        const int rank = threads.rank();
        Delayed<Threads> transport(threads.split(0, rank), {.latency = 1ms});
        Toy toy(rank, stages, elements);
        if (rank == culprit)
          toy.strike = [&](int pass) {
            if (pass != passes + 3) return;
            struck = Clock::now();
            all.outlast();
          };
        Pipeline pipeline{compressed(), transport, toy, usual, GPipe{}};
        outcomes[at(rank)] = outcome_of([&] {
          for (int step = 0; step < 2; ++step) pipeline.train(batch(step));
        });
        all.give_up();
        CHECK(pipeline.torn());
        if (outcomes[at(rank)].thrown) std::rethrow_exception(outcomes[at(rank)].thrown);
      });
    });
    for (const Outcome& outcome : outcomes) {
      CAPTURE(outcome.text);
      CHECK(outcome.kind == Kind::peer);
      CHECK(outcome.culprit == culprit);
    }
    for (int rank = 0; rank < stages; ++rank)
      if (rank != culprit) CHECK(seconds(outcomes[at(rank)].when - struck) < in_time);
  }
}
