// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <set>

#include "reference/pipeline.hpp"
#include "support.hpp"
#include "terse/compressor/cast.hpp"
#include "terse/compressor/qsgd.hpp"
#include "terse/compressor/random_k.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/transport/delayed.hpp"
#include "terse/transport/metered.hpp"

// What pipelines compute: exact ones the same as one rank, compressed ones the same under every schedule, with the
// errors that theory says, beside an oracle, in as many bytes as the formulas say, without an allocation.

namespace {
std::atomic<std::uint64_t> allocations{0};
}

__attribute__((noinline)) void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(std::size_t size, std::align_val_t boundary) {
  ++allocations;
  const auto unit = static_cast<std::size_t>(boundary);
  if (void* memory = std::aligned_alloc(unit, (size + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }

namespace {

using namespace terse;
using namespace terse::test;

using Fine = Uniform<4, Stochastic, Symmetric, MaxAbs, PerBlock<64>>;
template <int Bits>
using Changes = Uniform<Bits, Nearest, Asymmetric, MaxAbs, PerBlock<64>>;

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

// Models that train.

const std::vector<index_t> widths{5, 12, 9, 64, 7, 10, 8, 6, 3};
constexpr float rate = 0.05F;

/// Batches of an epoch: 33 examples, shuffled. With micro-batches of 4 rows these are fewer micro-batches than stages,
/// a ragged one, and many.
std::vector<Ids> epoch_of(std::uint64_t epoch) {
  const Ids ids = shuffled(33, epoch);
  return {{ids.begin(), ids.begin() + 3}, {ids.begin() + 3, ids.begin() + 13}, {ids.begin() + 13, ids.end()}};
}

struct Course {
  int stages = 4;
  AnySchedule schedule{};
  int window = 2;
  std::uint64_t epochs = 3;
  bool evaluates = false;  ///< after each step, too
};

/// What a training ends with.
struct Trained {
  Floats parameters;           ///< of all stages
  std::vector<double> losses;  ///< by step, which all stages must agree on
  bool operator==(const Trained&) const = default;
};

Trained by_one_rank(std::uint64_t epochs) {
  Layers model = Layers::part(widths, 0, 1);
  Trained trained;
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch)
    for (const Ids& ids : epoch_of(epoch)) {
      model.zero_gradients();
      trained.losses.push_back(one_rank_step(model, ids, 4));
      model.descend(rate);
    }
  trained.parameters = model.parameters;
  return trained;
}

/// `wrap(threads)` makes the transport that the stages use.
template <class P, class Wrap>
Trained by_stages(const P& policy, const Course& course, Wrap wrap) {
  std::vector<Trained> parts(at(course.stages));
  on_stages(course.stages, [&](Threads& threads) {
    auto transport = wrap(threads);
    Layers stage = Layers::part(widths, transport.rank(), course.stages);
    Pipeline pipeline{
        policy, transport, stage, {.micro_batch = 4, .seed = 3, .window = course.window}, course.schedule};
    Trained& mine = parts[at(transport.rank())];
    for (std::uint64_t epoch = 0; epoch < course.epochs; ++epoch)
      for (const Ids& ids : epoch_of(epoch)) {
        stage.zero_gradients();
        mine.losses.push_back(pipeline.train(ids).loss);
        stage.descend(rate);
        if (course.evaluates) pipeline.evaluate(ids);
      }
    mine.parameters = stage.parameters;
  });
  Trained all{{}, parts[0].losses};
  for (const Trained& part : parts) {
    CHECK(part.losses == all.losses);
    all.parameters.insert(all.parameters.end(), part.parameters.begin(), part.parameters.end());
  }
  return all;
}

Threads plain(Threads& threads) { return threads.split(0, threads.rank()); }
Metered<Threads> metered(Threads& threads) { return Metered<Threads>(plain(threads)); }

const std::vector<AnySchedule> schedules{{-1}, {0}, {1}, {2}};
const std::vector<int> windows{1, 2, 8};

}  // namespace

TEST_CASE("exact activations train as one rank does, whatever stages, schedule, window and transport") {
  const Trained one = by_one_rank(3);
  CHECK(one.losses.back() < one.losses[2]);
  for (const int stages : {1, 2, 3, 4, 8})
    for (const AnySchedule& schedule : schedules)
      for (const int window : windows) {
        CAPTURE(stages);
        CAPTURE(schedule.ahead);
        CAPTURE(window);
        const Course course{stages, schedule, window};
        CHECK(by_stages(ExactActivations{}, course, plain) == one);
        if (window == 2) CHECK(by_stages(ExactActivations{}, course, metered) == one);
      }
  const auto delayed = [](Threads& threads) {
    return Delayed<Threads>(plain(threads), {.latency = std::chrono::microseconds(200)});
  };
  for (const AnySchedule& schedule : schedules)
    for (const int window : windows) {
      CAPTURE(schedule.ahead);
      CAPTURE(window);
      CHECK(by_stages(ExactActivations{}, {3, schedule, window}, delayed) == one);
    }
}

TEST_CASE("exact activations train as one rank does, by the library's own schedules") {
  const Trained one = by_one_rank(1);
  const auto check = [&](const auto& schedule) {
    Floats all;
    std::vector<Floats> parts(4);
    on_stages(4, [&](Threads& transport) {
      Layers stage = Layers::part(widths, transport.rank(), 4);
      Pipeline pipeline{ExactActivations{}, transport, stage, {.micro_batch = 4}, schedule};
      for (const Ids& ids : epoch_of(0)) {
        stage.zero_gradients();
        const PipelineResult result = pipeline.train(ids);
        CHECK(result.applied);
        CHECK(result.fresh == static_cast<index_t>(ids.size()));
        stage.descend(rate);
      }
      CHECK(pipeline.steps() == 3);
      parts[at(transport.rank())] = stage.parameters;
    });
    for (const Floats& part : parts) all.insert(all.end(), part.begin(), part.end());
    CHECK(all == one.parameters);
  };
  check(GPipe{});
  check(OneForwardOneBackward{});
}

TEST_CASE("changes that Q represents arrive as they are at every visit") {
  // Integers below 2^7 that drift by integers, through the 8 digits of bf16.
  static_assert(Traits<Cast<bf16>>::contractive);
  const AcSgd<Cast<bf16>, Dense, InMemory<float>> policy{.capacity = 20};
  const Scripted::Script integer = [](int stage, std::uint64_t id, std::uint64_t time, index_t i) {
    const auto stream = static_cast<std::uint64_t>(stage);
    const float start = std::floor(100 * random_value(stream, id, 0, i));
    const float drift = time == 0 ? 0 : std::floor(27 * random_value(stream + 50, id, time, i));
    return std::max(-127.0F, std::min(127.0F, start + drift));
  };
  const std::vector<index_t> elements{65, 3, 128};
  on_stages(4, [&](Threads& transport) {
    const int rank = transport.rank();
    Scripted stage(rank, elements);
    stage.activation = integer;
    Pipeline pipeline{policy, transport, stage, {.micro_batch = 3}};
    for (; stage.time < 12; ++stage.time) {
      const Ids ids = shuffled(20, stage.time);
      pipeline.train(ids);
      if (rank == 0) continue;
      const index_t width = stage.input_elements();
      Floats wanted;
      for (const std::uint64_t id : ids)
        for (index_t i = 0; i < width; ++i) wanted.push_back(integer(rank - 1, id, stage.time, i));
      CHECK(stage.inputs == wanted);
    }
  });
}

TEST_CASE("the first epoch of changes is exact training, the next one is not") {
  const AcSgd<Changes<2>, Dense, InMemory<fp16>, Dense> policy{.capacity = 33};
  CHECK(by_stages(policy, {.epochs = 1}, plain) == by_one_rank(1));
  CHECK(by_stages(policy, {.schedule = {1}, .epochs = 1}, plain) == by_one_rank(1));
  CHECK(by_stages(policy, {.epochs = 2}, plain).parameters != by_one_rank(2).parameters);
}

namespace {

/// Compressed both ways, a policy gives the same bits under all schedules and windows; also beside evaluations.
template <class P>
void check_schedules(const P& policy) {
  CAPTURE(type_name<P>());
  const Trained first = by_stages(policy, {}, plain);
  CHECK(first.parameters != by_one_rank(3).parameters);
  for (const AnySchedule& schedule : schedules)
    for (const int window : windows) {
      CAPTURE(schedule.ahead);
      CAPTURE(window);
      CHECK(by_stages(policy, {4, schedule, window}, plain) == first);
    }
  CHECK(by_stages(policy, {.schedule = {0}, .evaluates = true}, plain) == first);
}

}  // namespace

TEST_CASE("schedules and windows make no difference to compressed training") {
  check_schedules(AcSgd<Changes<2>, Fine>{.capacity = 33});
  check_schedules(AcSgd<Uniform<3>, Qsgd<4>, InMemory<Int8>, Cast<fp16>>{.capacity = 20,
                                                                         .when_full = WhenFull::send_whole});
  check_schedules(AcSgd<TopK<>, UnbiasedRandomK, InMemory<bf16>>{
      .capacity = 33, .forward = {{.ratio = 0.2}}, .backward = {{.ratio = 0.3}}});
  check_schedules(DirectActivations<Changes<4>, Fine>{});
}

// Errors.

namespace {

/// Within a share of the value; doctest's own tolerance does not go below epsilon.
doctest::Approx about(double value, double share) { return doctest::Approx(value).epsilon(share).scale(0); }

double square_of(double value) { return value * value; }

/// What the second of two stages computed with, beside what the first one meant.
struct Errors {
  std::vector<double> whole;   ///< ||a - x|| / ||a|| over all examples, by visit
  std::vector<double> change;  ///< ||a - m|| / ||a|| before it
  std::vector<double> ratio;   ///< the first through the second
  std::vector<double> apart;   ///< the root mean square of a - x, by element
  double worst = 0;            ///< the largest ratio of a row

  /// Once the first visits have been forgotten.
  double late() const {
    double sum = 0;
    for (std::size_t k = 6; k < apart.size(); ++k) sum += square_of(apart[k]);
    return std::sqrt(sum / static_cast<double>(apart.size() - 6));
  }
};

constexpr std::uint64_t followed = 16, moments = 24;
constexpr index_t followed_width = 128;

/// Standard normal, in a table, which is drawn once.
float normal(std::uint64_t time, std::uint64_t id, index_t i) {
  static const Floats table = [] {
    Floats values;
    for (std::uint64_t t = 0; t < moments; ++t)
      for (std::uint64_t k = 0; k < followed; ++k)
        for (index_t e = 0; e < followed_width; ++e) values.push_back(random_normal(1, k, t, e));
    return values;
  }();
  return table[(time * followed + id) * at(followed_width) + at(i)];
}

/// `visits` visits to 16 examples of 128 elements after the first. Copies count as what arrived, unrounded.
template <class P>
Errors follow(const P& policy, std::uint64_t visits, const Scripted::Script& activation) {
  Errors errors;
  on_stages(2, [&](Threads& transport) {
    Scripted stage(transport.rank(), {followed_width});
    stage.activation = activation;
    Pipeline pipeline{policy, transport, stage, {.micro_batch = 8}};
    Ids ids(followed);
    for (std::uint64_t id = 0; id < followed; ++id) ids[id] = id;
    std::vector<double> copies(at(followed_width) * followed);
    for (; stage.time <= visits; ++stage.time) {
      pipeline.train(ids);
      if (transport.rank() == 0) continue;
      double all = 0, apart = 0, moved = 0;
      for (std::uint64_t id = 0; id < followed; ++id) {
        double row_apart = 0, row_moved = 0;
        for (index_t i = 0; i < followed_width; ++i) {
          const double a = static_cast<double>(activation(0, id, stage.time, i));
          const std::size_t k = id * at(followed_width) + at(i);
          const auto x = static_cast<double>(stage.inputs[k]);
          all += square_of(a);
          row_apart += square_of(a - x);
          row_moved += square_of(a - copies[k]);
          copies[k] = x;
        }
        apart += row_apart;
        moved += row_moved;
        if (stage.time > 0 && row_moved > 0)
          errors.worst = std::max(errors.worst, std::sqrt(row_apart / row_moved));
      }
      if (stage.time == 0) continue;
      errors.whole.push_back(std::sqrt(apart / all));
      errors.change.push_back(std::sqrt(moved / all));
      errors.ratio.push_back(std::sqrt(apart / moved));
      errors.apart.push_back(std::sqrt(apart / static_cast<double>(copies.size())));
    }
  });
  return errors;
}

template <int Bits, class Format>
using Remembering = AcSgd<Changes<Bits>, Dense, InMemory<Format>>;

/// Changes once, after the first visit.
float frozen(int, std::uint64_t id, std::uint64_t time, index_t i) {
  return normal(0, id, i) + (time == 0 ? 0.0F : 0.25F * normal(1, id, i));
}

template <int Bits>
void check_frozen(double least, double most) {
  CAPTURE(Bits);
  // The most that is left of a change, by the quantizer's own word.
  const double bound = std::sqrt(1 - Changes<Bits>::Quantizer::delta(64));
  const Errors errors = follow(Remembering<Bits, float>{.capacity = 16}, 8, frozen);
  CHECK(errors.ratio[0] > least);
  CHECK(errors.ratio[0] < most);
  std::size_t visit = 0;
  for (; visit < errors.ratio.size() && errors.change[visit] > 1e-5; ++visit) {
    CAPTURE(visit);
    CHECK(errors.ratio[visit] <= bound);
    CHECK(errors.ratio[visit] < 1.25 * most);
    if (visit > 0) CHECK(errors.change[visit] == about(errors.whole[visit - 1], 1e-6));
  }
  CHECK(visit >= 3);
  CHECK(errors.worst <= bound);
}

/// What R rounds away of the frozen activations, relative to them.
template <class Format>
double rounded_away() {
  double all = 0, apart = 0;
  for (std::uint64_t id = 0; id < followed; ++id)
    for (index_t i = 0; i < followed_width; ++i) {
      const float a = frozen(0, id, 1, i);
      all += square_of(static_cast<double>(a));
      apart += square_of(static_cast<double>(a - widened(narrowed<Format>(a))));
    }
  return std::sqrt(apart / all);
}

template <int Bits, class Format>
void check_floor(double c) {
  CAPTURE(Bits);
  const Errors errors = follow(Remembering<Bits, Format>{.capacity = 16}, 20, frozen);
  for (std::size_t visit = 14; visit < errors.whole.size(); ++visit) {
    CHECK(errors.whole[visit] > 0.9 * c * rounded_away<Format>());
    CHECK(errors.whole[visit] < 1.5 * c * rounded_away<Format>());
  }
}

}  // namespace

TEST_CASE("the error of a frozen activation shrinks at each visit by what the compressor promises") {
  check_frozen<2>(0.40, 0.52);
  check_frozen<3>(0.19, 0.27);
  check_frozen<4>(0.09, 0.14);
}

TEST_CASE("it ends at c times what the memory's format rounds away") {
  check_floor<2, fp16>(0.5);
  check_floor<4, fp16>(0.125);
  check_floor<2, bf16>(0.5);
  check_floor<4, bf16>(0.125);
  CHECK(follow(Remembering<4, float>{.capacity = 16}, 12, frozen).whole.back() == 0);
  // In 8 bits a block's scale is its largest magnitude.
  CHECK(follow(Remembering<4, Int8>{.capacity = 16}, 12, frozen).whole.back() < 0.2 * 3.5 / 127);
}

TEST_CASE("direct quantization stays in error by c ||a||") {
  const Errors errors = follow(DirectActivations<Changes<2>, Dense>{}, 6, frozen);
  for (const double error : errors.whole) CHECK(error == about(0.41, 0.1));
}

TEST_CASE("noise of sigma at each visit costs c sigma sqrt(2 / (1 - c^2))") {
  const auto noise = [](int, std::uint64_t id, std::uint64_t time, index_t i) {
    return normal(0, id, i) + 0.05F * normal(1 + time, id, i);
  };
  const auto check = [&](const auto& policy, double c) {
    CAPTURE(c);
    const Errors errors = follow(policy, 20, noise);
    CHECK(errors.late() == about(0.05 * c * std::sqrt(2 / (1 - c * c)), 0.2));
  };
  check(Remembering<2, float>{.capacity = 16}, 0.41);
  check(Remembering<3, fp16>{.capacity = 16}, 0.20);
  check(Remembering<4, fp16>{.capacity = 16}, 0.10);
}

TEST_CASE("drift of delta a visit costs c delta / (1 - c)") {
  const auto straight = [](int, std::uint64_t id, std::uint64_t time, index_t i) {
    return normal(0, id, i) + 0.05F * static_cast<float>(time) * normal(1, id, i);
  };
  // The same each way, but the steps' directions are random.
  Floats sums;
  for (std::uint64_t time = 0; time <= 20; ++time)
    for (std::uint64_t id = 0; id < followed; ++id)
      for (index_t i = 0; i < followed_width; ++i)
        sums.push_back(time == 0
                           ? normal(0, id, i)
                           : sums[sums.size() - followed * at(followed_width)] + 0.05F * normal(time, id, i));
  const auto random = [&](int, std::uint64_t id, std::uint64_t time, index_t i) {
    return sums[(time * followed + id) * at(followed_width) + at(i)];
  };
  const auto check = [&](const auto& policy, double c) {
    CAPTURE(c);
    // Steps at right angles add up as squares do.
    const Errors errors = follow(policy, 20, random);
    CHECK(errors.late() == about(0.05 * c / std::sqrt(1 - c * c), 0.2));
    // With the largest c that was seen it is a theorem, and steps that go on and on come near it with the usual one.
    const Errors worse = follow(policy, 20, straight);
    const double rate_seen = *std::max_element(worse.ratio.begin(), worse.ratio.end());
    const double most = 0.05 * rate_seen / (1 - rate_seen);
    for (const double error : worse.apart) CHECK(error < 1.05 * most);
    CHECK(worse.late() == about(0.05 * c / (1 - c), 0.2));
  };
  check(Remembering<2, float>{.capacity = 16}, 0.41);
  check(Remembering<3, fp16>{.capacity = 16}, 0.20);
  check(Remembering<4, fp16>{.capacity = 16}, 0.10);
}

// Beside the oracle.

namespace {

using reference::Rounding;
using Mode = reference::Boundary::Mode;

/// A row of a memory as it is read.
template <class Format>
std::vector<double> read_row(std::vector<std::byte> bytes, index_t elements) {
  std::byte* const place = bytes.data();
  typename RowFormat<Format>::Cursor cursor(&place, elements);
  cursor.enter({0, 0, elements});
  std::vector<double> values;
  for (index_t i = 0; i < elements; ++i) {
    if (i % alignment == 0) detail::enter_block(cursor, i);
    values.push_back(static_cast<double>(cursor.load(i)));
  }
  return values;
}

struct Matched {
  std::vector<double> oracle_losses;
  double largest_error = 0;  ///< of parameters
  index_t close_calls = 0;
};

/// Trains a policy with float kernels, and what it should be in double; compares all that there is after each step.
template <class P, class Format = float>
Matched beside_the_oracle(const P& policy, reference::Pipeline::Options options, Format = {}) {
  CAPTURE(type_name<P>());
  const std::vector<index_t> shape{4, 72, 6, 3};
  constexpr int stages = 3;
  constexpr std::uint64_t epochs = 3;
  constexpr float learning_rate = 0.3F;
  const auto batches = [](std::uint64_t epoch) {
    const Ids ids = shuffled(8, epoch + 3);
    return std::array{Ids(ids.begin(), ids.begin() + 5), Ids(ids.begin() + 5, ids.end())};
  };

  struct Step {
    Floats parameters;
    Copies copies;
    double loss;
  };
  std::array<std::vector<Step>, stages> seen;
  on_stages(stages, [&](Threads& transport) {
    Layers stage = Layers::part(shape, transport.rank(), stages);
    Pipeline pipeline{policy, transport, stage, {.micro_batch = 3}, OneForwardOneBackward{}};
    for (std::uint64_t epoch = 0; epoch < epochs; ++epoch)
      for (const Ids& ids : batches(epoch)) {
        stage.zero_gradients();
        const double loss = pipeline.train(ids).loss;
        stage.descend(learning_rate);
        seen[at(transport.rank())].push_back({stage.parameters, copies_of(pipeline), loss});
      }
  });

  options.micro_batch = 3;
  options.learning_rate = static_cast<double>(learning_rate);
  options.boundary.margin = 5e-7;  // several times what the two differ by
  std::vector<reference::LinearStage> parts;
  for (int s = 0; s < stages; ++s) {
    const Floats start = Layers::part(shape, s, stages).parameters;
    const auto inputs = at(shape[at(s)]), outputs = at(shape[at(s) + 1]);
    parts.push_back({inputs,
                     outputs,
                     {start.begin(), start.end() - static_cast<std::ptrdiff_t>(outputs)},
                     {start.end() - static_cast<std::ptrdiff_t>(outputs), start.end()},
                     s + 1 < stages,
                     {},
                     {}});
  }
  reference::Pipeline oracle(parts, options);
  const Layers data = Layers::part(shape, 0, 1);
  Matched matched;
  std::size_t step = 0;
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch)
    for (const Ids& ids : batches(epoch)) {
      std::vector<double> inputs, targets;
      for (const std::uint64_t id : ids) {
        for (index_t i = 0; i < shape.front(); ++i) inputs.push_back(static_cast<double>(data.input(id, i)));
        for (index_t i = 0; i < shape.back(); ++i) targets.push_back(static_cast<double>(data.target(id, i)));
      }
      const double loss = oracle.train(ids, inputs, targets);
      matched.oracle_losses.push_back(loss);
      for (int s = 0; s < stages; ++s) {
        CAPTURE(step);
        CAPTURE(s);
        const Step& mine = seen[at(s)][step];
        CHECK(mine.loss == about(loss, 2e-6));
        const reference::LinearStage& theirs = oracle.stages[at(s)];
        std::vector<double> wanted = theirs.weights;
        wanted.insert(wanted.end(), theirs.biases.begin(), theirs.biases.end());
        REQUIRE(wanted.size() == mine.parameters.size());
        for (std::size_t k = 0; k < wanted.size(); ++k)
          matched.largest_error =
              std::max(matched.largest_error, std::abs(static_cast<double>(mine.parameters[k]) - wanted[k]));
        if (s + 1 == stages) continue;
        const auto& memory = oracle.boundaries[at(s)].memory;
        CHECK(mine.copies.outgoing.size() == memory.size());
        double apart = 0;
        for (const auto& [id, row] : mine.copies.outgoing) {
          const std::vector<double> values = read_row<Format>(row, shape[at(s) + 1]);
          REQUIRE(memory.count(id) == 1);
          for (std::size_t k = 0; k < values.size(); ++k)
            apart = std::max(apart, std::abs(values[k] - memory.at(id)[k]));
        }
        CHECK(apart < 1e-5);
      }
      ++step;
    }
  matched.close_calls = oracle.close_calls();
  CHECK(matched.largest_error < 1e-5);
  return matched;
}

reference::Pipeline::Options oracle_of(Mode mode, Rounding forward = {}, Rounding store = Rounding::fp32(),
                                       Rounding first = {}) {
  reference::Pipeline::Options options;
  options.boundary.mode = mode;
  options.boundary.forward = forward;
  options.boundary.store = store;
  options.boundary.first = first;
  return options;
}

}  // namespace

TEST_CASE("parameters and copies are those of the oracle") {
  const Matched exact = beside_the_oracle(ExactActivations{}, oracle_of(Mode::exact));
  const Matched direct = beside_the_oracle(DirectActivations<Changes<2>, Dense>{},
                                           oracle_of(Mode::direct, Rounding::asymmetric(2, 64)));
  const Matched two = beside_the_oracle(AcSgd<Changes<2>, Dense, InMemory<float>>{.capacity = 8},
                                        oracle_of(Mode::changes, Rounding::asymmetric(2, 64)));
  const Matched four = beside_the_oracle(AcSgd<Changes<4>, Dense, InMemory<float>>{.capacity = 8},
                                         oracle_of(Mode::changes, Rounding::asymmetric(4, 64)));
  const Matched small =
      beside_the_oracle(AcSgd<Changes<2>, Dense, InMemory<Int8>>{.capacity = 8},
                        oracle_of(Mode::changes, Rounding::asymmetric(2, 64), Rounding::int8()), Int8{});
  for (const Matched* matched : {&direct, &two, &four, &small}) {
    // What they end with tells them apart.
    CHECK(matched->oracle_losses.back() != about(exact.oracle_losses.back(), 1e-5));
    // With close calls the two might part, and neither would be wrong.
    CHECK(matched->close_calls == 0);
  }
  // Formats of 16 bits have close calls in every run; here none falls the other way.
  beside_the_oracle(AcSgd<Changes<4>, Dense, InMemory<bf16>, Cast<bf16>>{.capacity = 8},
                    oracle_of(Mode::changes, Rounding::asymmetric(4, 64), Rounding::bf16(), Rounding::bf16()),
                    bf16{});
  beside_the_oracle(
      AcSgd<Changes<2>, Dense, InMemory<fp16>, Changes<8>>{.capacity = 8},
      oracle_of(Mode::changes, Rounding::asymmetric(2, 64), Rounding::fp16(), Rounding::asymmetric(8, 64)),
      fp16{});
}

TEST_CASE("the mean of what arrives of a gradient is the gradient") {
  // 4096 rows with one gradient, in 8 steps of 8 messages of 64 rows: no two have their random numbers in common.
  constexpr index_t width = 64, rows = 512, steps = 8;
  struct Arrived {
    std::vector<double> mean = std::vector<double>(at(width));
    std::set<Floats> messages;
  };
  const auto arrived_of = [&](const auto& policy) {
    Arrived arrived;
    on_stages(2, [&](Threads& transport) {
      Scripted stage(transport.rank(), {width});
      stage.activation = [](int, std::uint64_t, std::uint64_t, index_t) { return 1.0F; };
      stage.gradient = [](int, std::uint64_t, std::uint64_t, index_t i) { return normal(0, 0, i); };
      Pipeline pipeline{policy, transport, stage, {.micro_batch = 64}};
      const Ids ids(rows, no_example);
      for (index_t step = 0; step < steps; ++step) {
        pipeline.train(ids);
        if (transport.rank() == 1) continue;
        const Floats& values = stage.output_gradients;
        for (index_t r = 0; r < rows; ++r)
          for (index_t i = 0; i < width; ++i)
            arrived.mean[at(i)] += static_cast<double>(values[at(r * width + i)]) / (steps * rows);
        for (auto message = values.begin(); message != values.end(); message += 64 * width)
          arrived.messages.emplace(message, message + 64 * width);
      }
    });
    return arrived;
  };
  double largest = 0;
  for (index_t i = 0; i < width; ++i)
    largest = std::max(largest, std::abs(static_cast<double>(normal(0, 0, i))));
  const auto farthest = [&](const Arrived& arrived) {
    double apart = 0;
    for (index_t i = 0; i < width; ++i)
      apart = std::max(apart, std::abs(arrived.mean[at(i)] - static_cast<double>(normal(0, 0, i))));
    return apart;
  };
  // A draw has a standard deviation of half a step at most.
  const double noise = largest / 7 / 2 / 64;
  const Arrived fine = arrived_of(AcSgd<Changes<2>, Fine>{.capacity = 1});
  CHECK(farthest(fine) < 4 * noise);
  CHECK(farthest(fine) > 0.5 * noise);
  CHECK(fine.messages.size() == 64);
  using Biased = Unchecked<Uniform<4, Nearest, Symmetric, MaxAbs, PerBlock<64>>>;
  CHECK(farthest(arrived_of(DirectActivations<Dense, Biased>{})) > 20 * noise);
}

// Bytes.

namespace {

index_t padded(index_t bytes) { return (bytes + 7) / 8 * 8; }

/// Of `rows` rows of `elements` elements as fp32, and in codes of b bits with an fp32 scale for each `block`.
index_t as_floats(index_t rows, index_t elements) { return rows * padded(4 * elements); }
index_t as_codes(index_t rows, index_t elements, index_t bits, index_t block) {
  const index_t codes = bits < 8 ? (elements + 63) / 64 * 8 * bits : padded(elements * bits / 8);
  const index_t scales = block == 0 ? 0 : padded(4 * rows * ((elements + block - 1) / block));
  return scales + rows * codes;
}

/// What stage 0 of two sends forward and stage 1 backward: first visits of 10 rows, then 10 changes with 3 new rows, in
/// micro-batches of 4.
template <class P>
std::array<std::array<index_t, 2>, 2> measured(const P& policy, index_t elements) {
  std::array<std::array<index_t, 2>, 2> bytes;
  on_stages(2, [&](Threads& threads) {
    Metered<Threads> transport = metered(threads);
    Scripted stage(threads.rank(), {elements});
    Pipeline pipeline{policy, transport, stage, {.micro_batch = 4}};
    const bool first = threads.rank() == 0;
    const auto sent = [&] {
      const Traffic& traffic = transport.traffic();
      CHECK(traffic[first ? Phase::backward : Phase::forward].bytes_sent == 0);
      return static_cast<index_t>(traffic[first ? Phase::forward : Phase::backward].bytes_sent);
    };
    Ids ids(10);
    for (std::uint64_t k = 0; k < ids.size(); ++k) ids[k] = k;
    CHECK(pipeline.train(ids).fresh == 10);
    const index_t before = sent();
    ids.insert(ids.end(), {10, 11, 12});
    CHECK(pipeline.train(ids).fresh == (P::remembers ? 3 : 13));
    bytes[at(threads.rank())] = {before, sent() - before};
  });
  return bytes;
}

constexpr index_t header = 32, note = 8, verdict = header + note;

}  // namespace

TEST_CASE("packets have the bytes that the formulas say") {
  // Micro-batches of 4, 4, 2 rows, then 4, 4, 2 + 2 new ones, 1 new one.
  for (const index_t d : {1, 63, 64, 65, 128, 256, 1000}) {
    CAPTURE(d);
    const auto sum = [](std::initializer_list<index_t> packets) {
      index_t bytes = verdict;
      for (const index_t packet : packets) bytes += header + packet + note;
      return bytes;
    };
    const auto gradients = [&](index_t bits, index_t block) {
      const auto packet = [&](index_t rows) { return as_codes(rows, d, bits, block); };
      return std::array{sum({packet(4), packet(4), packet(2)}) - verdict,
                        sum({packet(4), packet(4), packet(4), packet(1)}) - verdict};
    };
    {
      const auto [forward, backward] = measured(AcSgd<Changes<2>, Fine>{.capacity = 13}, d);
      CHECK(forward[0] == sum({as_floats(4, d), as_floats(4, d), as_floats(2, d)}));
      const index_t four = as_codes(4, d, 2, 64);
      CHECK(forward[1] == sum({four, four, as_codes(2, d, 2, 64) + as_floats(2, d), as_floats(1, d)}));
      CHECK(backward == gradients(4, 64));
      // AcSgd's own formula.
      if (d % 64 == 0) CHECK(header + four + note == 40 + 8 * ((4 * d / 64 + 1) / 2) + 4 * d * 2 / 8);
    }
    {
      const auto [forward, backward] = measured(
          AcSgd<Uniform<8>, Uniform<8, Stochastic, Symmetric>, InMemory<float>, Cast<fp16>>{.capacity = 13},
          d);
      const auto first = [&](index_t rows) { return as_codes(rows, d, 16, 0); };
      CHECK(forward[0] == sum({first(4), first(4), first(2)}));
      const index_t four = as_codes(4, d, 8, d);
      CHECK(forward[1] == sum({four, four, as_codes(2, d, 8, d) + first(2), first(1)}));
      CHECK(backward == gradients(8, d));
    }
    {
      const auto [forward, backward] = measured(ExactActivations{}, d);
      const auto rows = [&](index_t count) { return as_floats(count, d); };
      CHECK(forward[0] == sum({rows(4), rows(4), rows(2)}));
      CHECK(forward[1] == sum({rows(4), rows(4), rows(4), rows(1)}));
      CHECK(backward[0] == sum({rows(4), rows(4), rows(2)}) - verdict);
    }
  }
}

TEST_CASE("an evaluation sends rows as they are forward, and the loss back") {
  std::array<std::uint64_t, 3> forward{}, backward{};
  on_stages(3, [&](Threads& threads) {
    Metered<Threads> transport = metered(threads);
    Scripted stage(threads.rank(), {100, 64});
    Pipeline pipeline{AcSgd<Changes<2>, Fine>{.capacity = 13}, transport, stage, {.micro_batch = 4}};
    pipeline.evaluate(Ids{1, 2, 3, 4, 5, 6});
    forward[at(threads.rank())] = transport.traffic()[Phase::forward].bytes_sent;
    backward[at(threads.rank())] = transport.traffic()[Phase::backward].bytes_sent;
  });
  CHECK(forward == std::array<std::uint64_t, 3>{2 * 40 + 6 * 400, 2 * 40 + 6 * 256, 0});
  CHECK(backward == std::array<std::uint64_t, 3>{0, 40, 40});
}

namespace {

/// Steps after the largest ones allocate nothing on any stage: `most` rows, then fewer, then as many again.
template <class P>
void check_allocations(const P& policy, int ahead) {
  CAPTURE(type_name<P>());
  CAPTURE(ahead);
  constexpr int stages = 3;
  static std::atomic<int> counted;
  counted = 0;
  on_stages(stages, [&](Threads& transport) {
    Layers stage = Layers::part(widths, transport.rank(), stages);
    Pipeline pipeline{policy, transport, stage, {.micro_batch = 4}, AnySchedule{ahead}};
    // 36 are as many micro-batches as 33.
    const std::vector<Ids> batches{shuffled(33, 1), shuffled(7, 2), shuffled(36, 3), {1, 2, 3, no_example}};
    // In the first two steps, those of first visits and those of changes.
    for (int k = 0; k < 2; ++k) {
      pipeline.train(batches[0]);
      pipeline.evaluate(batches[0]);
    }
    // The stage's own room for a whole ninth micro-batch.
    const Floats rows(4 * 100);
    const MicroBatch ninth{8, 32, 4, batches[2].data() + 32, 1, true};
    stage.forward(ninth, rows.data());
    stage.backward(ninth, rows.data());
    barrier(transport);
    barrier(transport);
    const std::uint64_t before = allocations;
    for (int round = 0; round < 4; ++round)
      for (const Ids& ids : batches) {
        stage.zero_gradients();
        pipeline.train(ids);
        stage.descend(rate);
        pipeline.evaluate(ids);
        pipeline.forget(std::span(ids).first(2));
      }
    const std::uint64_t after = allocations;
    // Nobody goes on, which may allocate, before everybody has counted.
    ++counted;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (counted < stages && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    CHECK(after == before);
  });
}

}  // namespace

TEST_CASE("a step allocates nothing after the first one of as many micro-batches") {
  for (const int ahead : {-1, 1}) {
    check_allocations(ExactActivations{}, ahead);
    check_allocations(AcSgd<Changes<2>, Fine>{.capacity = 36}, ahead);
    check_allocations(
        AcSgd<TopK<>, UnbiasedRandomK, InMemory<bf16>>{
            .capacity = 36, .forward = {{.ratio = 0.2}}, .backward = {{.ratio = 0.3}}},
        ahead);
  }
}
