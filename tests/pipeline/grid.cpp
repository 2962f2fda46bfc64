// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/optimizer/quantized_sgd.hpp"
#include "terse/pipeline/example_order.hpp"
#include "terse/pipeline/grid.hpp"
#include "terse/pipeline/pipeline.hpp"
#include "terse/topology/scatter_gather.hpp"
#include "terse/transport/metered.hpp"
#include "terse/transport/thread.hpp"

// Pipelines beside data parallelism: who is where, what all ranks agree on, and training on a grid; and the order of
// examples.

using namespace terse;

namespace {

using Floats = std::vector<float>;
using Ids = std::vector<std::uint64_t>;

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

/// program(world), once for each rank.
void on_ranks(int ranks, const std::function<void(Threads&)>& program) {
  ThreadGroup(ranks, std::chrono::seconds(20)).run(program);
}

/// Uniform in [-1, 1), a function of its arguments alone.
float noise(std::uint64_t seed, std::uint64_t which, index_t i) {
  return static_cast<float>(Draw::shared(seed, which, Purpose::user).bits(static_cast<std::uint64_t>(i)) >>
                            40) *
             0x1p-23F -
         1;
}

constexpr index_t width = 24;
constexpr int depth = 4;
/// Examples from here on have an input that is not finite.
constexpr std::uint64_t poisoned = 1000;

/// Layers [first, last) of y = tanh(W x), `depth` of them; the loss is |y - target|^2 / 2. Layer by layer the arithmetic
/// is the same, wherever the network is cut.
class Part {
 public:
  Part(int stage, int stages) : first_(depth * stage / stages), last_(depth * (stage + 1) / stages) {
    for (int layer = first_; layer < last_; ++layer)
      layout_.add({"layer" + std::to_string(layer), {width, width}});
    parameters.resize(at(layout_.size()));
    gradients.resize(parameters.size());
    for (int layer = first_; layer < last_; ++layer)
      for (index_t i = 0; i < width * width; ++i)
        weights(layer)[i] = 0.3F * noise(1, static_cast<std::uint64_t>(layer), i);
  }

  Floats parameters, gradients;
  const Layout& layout() const { return layout_; }
  Floats layer(int number) const {
    const float* const from = parameters.data() + offset(number);
    return {from, from + width * width};
  }
  bool has(int number) const { return number >= first_ && number < last_; }
  double square() const {
    return std::inner_product(
        gradients.begin(), gradients.end(), gradients.begin(), 0.0, std::plus<>(),
        [](float a, float b) { return static_cast<double>(a) * static_cast<double>(b); });
  }

  index_t input_elements() const { return first_ == 0 ? 0 : width; }
  index_t output_elements() const { return last_ == depth ? 0 : width; }

  const float* forward(const MicroBatch& batch, const float* input) {
    // values[k]: the input of layer first + k, and at the end the output.
    if (kept_.size() <= at(batch.index)) kept_.resize(at(batch.index) + 1);
    std::vector<Floats>& values = kept_[at(batch.index)];
    values.assign(at(last_ - first_) + 1, Floats(at(batch.rows * width)));
    for (index_t i = 0; i < batch.rows * width; ++i)
      values[0][at(i)] = input != nullptr ? input[i] : input_of(batch.ids[i / width], i % width);
    for (int layer = first_; layer < last_; ++layer) {
      const Floats& x = values[at(layer - first_)];
      Floats& y = values[at(layer - first_) + 1];
      for (index_t r = 0; r < batch.rows; ++r)
        for (index_t o = 0; o < width; ++o) {
          float sum = 0;
          for (index_t i = 0; i < width; ++i) sum += weights(layer)[o * width + i] * x[at(r * width + i)];
          y[at(r * width + o)] = std::tanh(sum);
        }
    }
    loss_ = 0;
    for (index_t i = 0; i < batch.rows * width; ++i) {
      const auto apart = static_cast<double>(difference(batch, values.back(), i));
      loss_ += 0.5 * apart * apart * batch.weight / static_cast<double>(batch.rows);
    }
    return last_ == depth ? nullptr : values.back().data();
  }
  const float* backward(const MicroBatch& batch, const float* output_gradient) {
    const std::vector<Floats>& values = kept_[at(batch.index)];
    Floats dy(at(batch.rows * width));
    for (index_t i = 0; i < batch.rows * width; ++i)
      dy[at(i)] = output_gradient != nullptr
                      ? output_gradient[i]
                      : difference(batch, values.back(), i) *
                            static_cast<float>(batch.weight / static_cast<double>(batch.rows));
    for (int layer = last_ - 1; layer >= first_; --layer) {
      const Floats& x = values[at(layer - first_)];
      const Floats& y = values[at(layer - first_) + 1];
      input_gradient_.assign(dy.size(), 0);
      for (index_t r = 0; r < batch.rows; ++r)
        for (index_t o = 0; o < width; ++o) {
          const float slope = dy[at(r * width + o)] * (1 - y[at(r * width + o)] * y[at(r * width + o)]);
          for (index_t i = 0; i < width; ++i) {
            gradients[at(offset(layer) + o * width + i)] += slope * x[at(r * width + i)];
            input_gradient_[at(r * width + i)] += slope * weights(layer)[o * width + i];
          }
        }
      dy = input_gradient_;
    }
    return first_ == 0 ? nullptr : input_gradient_.data();
  }
  double loss(const MicroBatch&) const { return loss_; }

 private:
  static float input_of(std::uint64_t id, index_t i) {
    return id < poisoned ? noise(2, id, i) : std::numeric_limits<float>::quiet_NaN();
  }
  static float difference(const MicroBatch& batch, const Floats& output, index_t i) {
    return output[at(i)] - 0.5F * noise(3, batch.ids[i / width], i % width);
  }
  index_t offset(int layer) const { return layout_.segments()[at(layer - first_)].offset; }
  float* weights(int layer) { return parameters.data() + offset(layer); }

  int first_, last_;
  Layout layout_;
  std::vector<std::vector<Floats>> kept_;
  Floats input_gradient_;
  double loss_ = 0;
};

using FourBits = AcSgd<Uniform<4, Nearest, Asymmetric, MaxAbs, PerSegment>,
                       Uniform<8, Stochastic, Symmetric, MaxAbs, PerSegment>>;

/// Parameters by replica and layer, and the last step's loss by replica and stage.
struct Outcome {
  std::vector<std::vector<Floats>> layers;
  std::vector<std::vector<double>> losses;
  double first_epoch = 0, last_epoch = 0;  ///< sums of replica 0's losses
};

/// Trains for 8 epochs of 19 examples: batches of 5, in micro-batches of 2, and a ragged one.
template <class Policy, class Recipe>
Outcome train(int stages, int replicas, const Policy& policy, const Recipe& recipe, float clip_norm) {
  constexpr index_t examples = 19;
  constexpr std::uint64_t epochs = 8;
  Outcome outcome;
  outcome.layers.assign(at(replicas), std::vector<Floats>(depth));
  outcome.losses.assign(at(replicas), std::vector<double>(at(stages)));
  on_ranks(stages * replicas, [&](Threads& world) {
    Grid grid(world, {.stages = stages});
    Part part(grid.stage(), stages);
    Pipeline pipeline{policy, grid.pipe(), part, {.micro_batch = 2, .seed = grid.seed(1)}};
    Optimizer optimizer{recipe, grid.data(), part.layout(), {.seed = 2}};
    double loss = 0, sum = 0;
    for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
      const ExampleOrder order(examples, 3, epoch, grid.replica(), replicas);
      for (index_t k = 0; k < order.batches(5); ++k) {
        std::fill(part.gradients.begin(), part.gradients.end(), 0.0F);
        const PipelineResult result = pipeline.train(order.batch(k, 5));
        loss = result.loss;
        sum += loss;
        if (grid.agree(result))
          optimizer.step(part.parameters, part.gradients, grid.clip_scale(part.square(), clip_norm));
      }
      if (grid.rank() == 0 && epoch == 0) outcome.first_epoch = sum;
      if (grid.rank() == 0) outcome.last_epoch = sum;
      sum = 0;
    }
    for (int layer = 0; layer < depth; ++layer)
      if (part.has(layer)) outcome.layers[at(grid.replica())][at(layer)] = part.layer(layer);
    outcome.losses[at(grid.replica())][at(grid.stage())] = loss;
  });
  return outcome;
}

constexpr float no_clipping = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("ranks stand stage by stage, and both channels hold who they should") {
  struct Shape {
    int stages, replicas;
  };
  for (const Shape& shape : {Shape{2, 2}, Shape{4, 2}, Shape{1, 3}, Shape{3, 1}, Shape{2, 3}, Shape{1, 1}}) {
    const int stages = shape.stages, replicas = shape.replicas;
    CAPTURE(stages);
    CAPTURE(replicas);
    const int all = stages * replicas;
    std::vector<std::vector<int>> pipes(at(all)), datas(at(all));
    std::vector<std::vector<int>> places(at(all));
    on_ranks(all, [&](Threads& world) {
      Grid grid(world, {.stages = stages});
      const std::size_t me = at(world.rank());
      places[me] = {grid.rank(),
                    grid.size(),
                    grid.stage(),
                    grid.stages(),
                    grid.replica(),
                    grid.replicas(),
                    grid.pipe().rank(),
                    grid.pipe().size(),
                    grid.data().rank(),
                    grid.data().size(),
                    grid.rank_of(grid.stage(), grid.replica())};
      Assembly<int, Threads> along(grid.pipe()), across(grid.data());
      for (const int peer : along(grid.pipe(), world.rank(), Phase::setup)) pipes[me].push_back(peer);
      for (const int peer : across(grid.data(), world.rank(), Phase::setup)) datas[me].push_back(peer);
    });
    for (int stage = 0; stage < stages; ++stage)
      for (int replica = 0; replica < replicas; ++replica) {
        const int rank = stage * replicas + replica;
        CHECK(places[at(rank)] == std::vector<int>{rank, all, stage, stages, replica, replicas, stage, stages,
                                                   replica, replicas, rank});
        std::vector<int> pipe, data;
        for (int s = 0; s < stages; ++s) pipe.push_back(s * replicas + replica);
        for (int r = 0; r < replicas; ++r) data.push_back(stage * replicas + r);
        CHECK(pipes[at(rank)] == pipe);
        CHECK(datas[at(rank)] == data);
      }
  }
}

TEST_CASE("a grid that can't be is refused on all ranks alike") {
  const auto refused = [](int ranks, int stages) {
    std::vector<int> usage(at(ranks));
    std::string sentence;
    on_ranks(ranks, [&](Threads& world) {
      try {
        Grid grid(world, {.stages = stages});
      } catch (const usage_error& fault) {
        usage[at(world.rank())] = fault.rank() == world.rank() ? 1 : 0;
        if (world.rank() == 0) sentence = fault.what();
      }
    });
    CHECK(usage == std::vector<int>(at(ranks), 1));
    return sentence;
  };
  CHECK(refused(6, 4) == "terse: rank 0: a grid of 4 stages needs a multiple of as many ranks, not 6");
  refused(4, 0);
  refused(4, -2);
  refused(4, 8);

  std::vector<int> mismatches(4);
  on_ranks(4, [&](Threads& world) {
    try {
      Grid grid(world, {.stages = world.rank() == 2 ? 4 : 2});
    } catch (const mismatch_error&) {
      mismatches[at(world.rank())] = 1;
    }
  });
  CHECK(mismatches == std::vector<int>{1, 1, 1, 1});
}

TEST_CASE("all agree only where every rank does, for 12 bytes to each peer") {
  constexpr int ranks = 6;
  for (int naysayer = -1; naysayer < ranks; ++naysayer) {
    std::vector<int> heard(ranks, -1), of_results(ranks, -1);
    std::vector<std::uint64_t> bytes(ranks);
    on_ranks(ranks, [&](Threads& threads) {
      Metered<Threads> world(threads.split(0, threads.rank()));
      Grid grid(world, {.stages = 2});
      const std::size_t me = at(world.rank());
      heard[me] = grid.agree(world.rank() != naysayer) ? 1 : 0;
      bytes[me] = world.traffic()[Phase::agree].bytes_sent;
      const PipelineResult result{.loss = 0, .applied = world.rank() != naysayer};
      of_results[me] = grid.agree(result) ? 1 : 0;
    });
    CHECK(heard == std::vector<int>(ranks, naysayer < 0 ? 1 : 0));
    CHECK(of_results == heard);
    CHECK(bytes == std::vector<std::uint64_t>(ranks, 12 * (ranks - 1)));
  }
}

TEST_CASE("one factor for all stages brings their common norm to clip_norm") {
  for (const int stages : {1, 2, 3, 6}) {
    CAPTURE(stages);
    const int ranks = 6, replicas = ranks / stages;
    const auto square_of = [](int rank) { return 0.1 + rank * rank; };
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += square_of(rank);
    const double norm = std::sqrt(sum / replicas);
    std::vector<float> small(6), large(6), none(6);
    on_ranks(ranks, [&](Threads& world) {
      Grid grid(world, {.stages = stages});
      const std::size_t me = at(world.rank());
      small[me] = grid.clip_scale(square_of(world.rank()), 0.5F);
      large[me] = grid.clip_scale(square_of(world.rank()), static_cast<float>(1.001 * norm));
      none[me] = grid.clip_scale(square_of(world.rank()), no_clipping);
    });
    CHECK(small == std::vector<float>(6, static_cast<float>(0.5 / norm)));
    CHECK(large == std::vector<float>(6, 1.0F));
    CHECK(none == std::vector<float>(6, 1.0F));
  }

  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<int> refused(4), culprits(4, -1);
  on_ranks(4, [&](Threads& world) {
    Grid grid(world, {.stages = 2});
    for (const float norm : {0.0F, -1.0F, nan}) try {
        grid.clip_scale(1, norm);
      } catch (const usage_error&) {
        ++refused[at(world.rank())];
      }
    try {
      grid.clip_scale(world.rank() >= 2 ? std::numeric_limits<double>::infinity() : 1, 1);
    } catch (const non_finite_error& fault) {
      culprits[at(world.rank())] = fault.culprit();
    }
  });
  CHECK(refused == std::vector<int>(4, 3));
  CHECK(culprits == std::vector<int>(4, 2));
}

TEST_CASE("two stages and two replicas train as one stage and two replicas do, to the bit") {
  const Adam<> adam{.learning_rate = 0.01F};
  const Outcome whole = train(1, 2, ExactActivations{}, adam, no_clipping);
  for (const int stages : {2, 4}) {
    const Outcome cut = train(stages, 2, ExactActivations{}, adam, no_clipping);
    CHECK(cut.layers == whole.layers);
    for (int replica = 0; replica < 2; ++replica)
      for (const double loss : cut.losses[at(replica)]) CHECK(loss == whole.losses[at(replica)][0]);
  }
  CHECK(whole.layers[0] == whole.layers[1]);
  CHECK(whole.losses[0] != whole.losses[1]);
  CHECK(whole.last_epoch < 0.8 * whole.first_epoch);
}

TEST_CASE("clipping by the norm of all stages is that of the whole model") {
  // Far below the gradients' norm, so that every step is clipped; Adam would hide a common factor, and this does not.
  const QuantizedSgd<Dense> sgd{.learning_rate = 0.1F};
  const Outcome whole = train(1, 2, ExactActivations{}, sgd, 0.05F);
  const Outcome cut = train(4, 2, ExactActivations{}, sgd, 0.05F);
  const Outcome unclipped = train(1, 2, ExactActivations{}, sgd, no_clipping);
  double apart = 0, effect = 0;
  for (int layer = 0; layer < depth; ++layer)
    for (index_t i = 0; i < width * width; ++i) {
      const auto value = [&](const Outcome& outcome) {
        return static_cast<double>(outcome.layers[0][at(layer)][at(i)]);
      };
      apart = std::max(apart, std::abs(value(cut) - value(whole)));
      effect = std::max(effect, std::abs(value(unclipped) - value(whole)));
    }
  CHECK(apart < 1e-6);
  CHECK(effect > 1e-2);
  CHECK(cut.layers[0] == cut.layers[1]);
}

TEST_CASE("compressed along the pipe and between replicas, replicas stay equal") {
  const FourBits policy{.capacity = 10};
  const auto check = [&](const std::string& name, const auto& recipe) {
    CAPTURE(name);
    const Outcome outcome = train(2, 2, policy, recipe, 5);
    CHECK(outcome.layers[0] == outcome.layers[1]);
    CHECK(outcome.losses[0][0] == outcome.losses[0][1]);
    CHECK(outcome.last_epoch < 0.6 * outcome.first_epoch);
    const Outcome exact = train(2, 2, ExactActivations{}, recipe, 5);
    CHECK(outcome.layers != exact.layers);
  };
  check("1-bit Adam", OneBitAdam<>{.learning_rate = 1e-3F, .preconditioner = {.freeze = AtStep{8}}});
  check("quantized SGD", QuantizedSgd<Qsgd<8>>{.learning_rate = 0.05F});
  check("exact Adam", Adam<>{.learning_rate = 0.01F});
}

TEST_CASE("replicas round by other random bits, and stages of one pipe agree on theirs") {
  const auto gradients = [](bool mixed) {
    std::vector<Floats> first_stage(2);
    on_ranks(4, [&](Threads& world) {
      Grid grid(world, {.stages = 2});
      Part part(grid.stage(), 2);
      // All ranks of a pipe must give the same seed, or this throws.
      Pipeline pipeline{
          FourBits{.capacity = 8}, grid.pipe(), part, {.micro_batch = 4, .seed = mixed ? grid.seed(1) : 1}};
      pipeline.train(Ids{1, 2, 3, 4});
      if (grid.stage() == 0) first_stage[at(grid.replica())] = part.gradients;
    });
    return first_stage;
  };
  const std::vector<Floats> alike = gradients(false), apart = gradients(true);
  CHECK(alike[0] == alike[1]);
  CHECK(apart[0] != apart[1]);
}

TEST_CASE("a replica with something that is not finite holds all back") {
  constexpr std::uint64_t fine = 5;
  const auto ids_of = [](int replica, bool bad) {
    const auto own = static_cast<std::uint64_t>(10 * replica);
    return Ids{own + 1, bad && replica == 1 ? poisoned + 1 : own + 2, own + 3};
  };
  SUBCASE("skipping: nobody steps, and all go on") {
    std::vector<Floats> before(4), after(4), later(4);
    std::vector<int> own(4, -1), agreed(4, -1);
    on_ranks(4, [&](Threads& world) {
      Grid grid(world, {.stages = 2});
      Part part(grid.stage(), 2);
      Pipeline pipeline{
          ExactActivations{}, grid.pipe(), part, {.micro_batch = 2, .on_non_finite = NonFinite::skip}};
      Optimizer optimizer{Adam<>{.learning_rate = 0.01F}, grid.data(), part.layout()};
      const std::size_t me = at(world.rank());
      const auto step = [&](bool bad) {
        std::fill(part.gradients.begin(), part.gradients.end(), 0.0F);
        const PipelineResult result = pipeline.train(ids_of(grid.replica(), bad));
        own[me] = result.applied ? 1 : 0;
        agreed[me] = grid.agree(result) ? 1 : 0;
        if (agreed[me] == 1) optimizer.step(part.parameters, part.gradients);
      };
      for (std::uint64_t k = 0; k < fine; ++k) step(false);
      before[me] = part.parameters;
      step(true);
      after[me] = part.parameters;
      const int once = own[me], all = agreed[me];
      step(false);
      later[me] = part.parameters;
      own[me] = once;
      agreed[me] = all;
    });
    CHECK(own == std::vector<int>{1, 0, 1, 0});
    CHECK(agreed == std::vector<int>{0, 0, 0, 0});
    CHECK(after == before);
    for (std::size_t rank = 0; rank < 4; ++rank) CHECK(later[rank] != before[rank]);
    CHECK(later[0] == later[1]);
    CHECK(later[2] == later[3]);
  }
  SUBCASE("throwing: its ranks throw, and the others learn of it") {
    std::vector<int> non_finite(4), bereft(4), stepped(4);
    const auto begin = std::chrono::steady_clock::now();
    CHECK_THROWS_AS(on_ranks(4,
                             [&](Threads& world) {
                               Grid grid(world, {.stages = 2});
                               Part part(grid.stage(), 2);
                               Pipeline pipeline{ExactActivations{}, grid.pipe(), part, {.micro_batch = 2}};
                               const std::size_t me = at(world.rank());
                               try {
                                 barrier(world);
                                 const PipelineResult result = pipeline.train(ids_of(grid.replica(), true));
                                 grid.agree(result);
                                 stepped[me] = 1;
                               } catch (const non_finite_error& fault) {
                                 non_finite[me] = fault.culprit() == 0 ? 1 : 0;
                                 // Who throws while others still wait ends their waits in other words.
                                 barrier(grid.pipe());
                                 throw;
                               } catch (const peer_error&) {
                                 bereft[me] = 1;
                                 throw;
                               }
                             }),
                    non_finite_error);
    CHECK(non_finite == std::vector<int>{0, 1, 0, 1});
    CHECK(bereft == std::vector<int>{1, 0, 1, 0});
    CHECK(stepped == std::vector<int>(4));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  }
}

TEST_CASE("examples stay with their replica, in another order each epoch") {
  for (const index_t count : {1, 2, 7, 64, 101})
    for (const int replicas : {1, 2, 3, 5}) {
      CAPTURE(count);
      CAPTURE(replicas);
      std::set<std::uint64_t> everything;
      index_t total = 0, largest = 0, smallest = count;
      for (int replica = 0; replica < replicas; ++replica) {
        const ExampleOrder first(count, 9, 0, replica, replicas);
        const std::set<std::uint64_t> mine(first.order().begin(), first.order().end());
        CHECK(static_cast<index_t>(mine.size()) == first.size());
        everything.insert(mine.begin(), mine.end());
        total += first.size();
        largest = std::max(largest, first.size());
        smallest = std::min(smallest, first.size());
        for (const std::uint64_t epoch : {std::uint64_t{1}, std::uint64_t{2}, (std::uint64_t{1} << 40) - 1}) {
          const ExampleOrder other(count, 9, epoch, replica, replicas);
          CHECK(std::set<std::uint64_t>(other.order().begin(), other.order().end()) == mine);
          if (first.size() > 10) CHECK(!std::equal(mine.begin(), mine.end(), other.order().begin()));
          if (first.size() > 10)
            CHECK(!std::equal(first.order().begin(), first.order().end(), other.order().begin()));
        }
        const ExampleOrder again(count, 9, 0, replica, replicas), seeded(count, 10, 0, replica, replicas);
        CHECK(std::equal(first.order().begin(), first.order().end(), again.order().begin(),
                         again.order().end()));
        if (first.size() > 10)
          CHECK(!std::equal(first.order().begin(), first.order().end(), seeded.order().begin()));
      }
      CHECK(total == count);
      CHECK(static_cast<index_t>(everything.size()) == count);
      CHECK(*everything.rbegin() == static_cast<std::uint64_t>(count - 1));
      CHECK(largest - smallest <= 1);
    }
}

TEST_CASE("shuffles put every example at every place equally often") {
  constexpr index_t count = 5;
  constexpr int epochs = 20'000;
  std::vector<int> seen(count * count);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const ExampleOrder order(count, 4, static_cast<std::uint64_t>(epoch));
    for (index_t place = 0; place < count; ++place)
      ++seen[at(place * count) + static_cast<std::size_t>(order.order()[at(place)])];
  }
  // 4000 +- 57: five deviations.
  for (const int times : seen) CHECK(std::abs(times - epochs / count) < 5 * 57);
}

TEST_CASE("all replicas have the same number of batches, none of them empty") {
  for (const index_t count : {6, 7, 8, 9, 64, 65, 66, 67, 101})
    for (const int replicas : {1, 2, 3, 6})
      for (const index_t size : {1, 2, 3, 5, 8, 200}) {
        CAPTURE(count);
        CAPTURE(replicas);
        CAPTURE(size);
        std::set<index_t> numbers;
        for (int replica = 0; replica < replicas; ++replica) {
          const ExampleOrder order(count, 1, 2, replica, replicas);
          numbers.insert(order.batches(size));
          Ids joined;
          for (index_t k = 0; k < order.batches(size); ++k) {
            const auto batch = order.batch(k, size);
            const auto rows = static_cast<index_t>(batch.size());
            if (k + 1 < order.batches(size))
              CHECK(rows == size);
            else
              CHECK((rows >= 1 && rows <= size + (order.size() > count / replicas ? 1 : 0)));
            joined.insert(joined.end(), batch.begin(), batch.end());
          }
          CHECK(std::equal(joined.begin(), joined.end(), order.order().begin(), order.order().end()));
        }
        CHECK(numbers.size() == 1);
      }
  const ExampleOrder order(7, 1, 2, 1, 2);
  CHECK(order.batches(std::numeric_limits<index_t>::max()) == 1);
  CHECK_THROWS_AS(order.batch(2, 2), usage_error);
  CHECK_THROWS_AS(order.batch(-1, 2), usage_error);
  CHECK_THROWS_AS(order.batches(0), usage_error);
  CHECK_THROWS_AS(order.batch(0, -1), usage_error);
  CHECK_THROWS_AS(ExampleOrder(-1, 1, 0), usage_error);
  CHECK_THROWS_AS(ExampleOrder(7, 1, 0, 2, 2), usage_error);
  CHECK_THROWS_AS(ExampleOrder(7, 1, 0, -1, 2), usage_error);
  CHECK_THROWS_AS(ExampleOrder(7, 1, std::uint64_t{1} << 40), usage_error);
  CHECK_THROWS_AS(ExampleOrder(2, 1, 0, 0, 3).batches(1), usage_error);
  CHECK(ExampleOrder(2, 1, 0, 2, 3).size() == 0);
}
