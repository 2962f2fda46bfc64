// SPDX-License-Identifier: Apache-2.0
#include "job.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "part.hpp"
#include "task.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/momentum_sgd.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/optimizer/quantized_sgd.hpp"
#include "terse/pipeline/example_order.hpp"
#include "terse/pipeline/grid.hpp"
#include "terse/pipeline/makespan.hpp"
#include "terse/pipeline/pipeline.hpp"
#include "terse/transport/delayed.hpp"
#include "terse/transport/metered.hpp"

namespace end_to_end {
namespace {

using Network = terse::Metered<terse::Delayed<terse::AnyTransport>>;
using terse::Phase;

constexpr std::int64_t batch = micro_batch * micro_batches;
constexpr std::int64_t held_out = 1024;
constexpr float clip_norm = 1;

/// 4 bits of each change forward, 8 bits of each gradient back.
using FourAndEight = terse::AcSgd<
    terse::Uniform<4, terse::Nearest, terse::Asymmetric, terse::MaxAbs, terse::PerBlock<width>>,
    terse::Uniform<8, terse::Stochastic, terse::Symmetric, terse::MaxAbs, terse::PerBlock<width>>>;

/// One rank with one method: pipeline and optimizer, over a grid on a network of its own.
template <class Policy, class Recipe>
class Rank {
 public:
  Rank(const Options& options, const Task& task, terse::AnyTransport& world, const terse::Link& link,
       const Policy& policy, const Recipe& recipe)
      : network_(terse::Delayed(world.split(0, world.rank()), link)),
        grid_(network_, {.stages = stages}),
        part_(grid_.stage(), grid_.stage() + 1 == stages, task, options.seed),
        pipeline_(policy, grid_.pipe(), part_,
                  {.micro_batch = micro_batch, .seed = grid_.seed(options.seed)}),
        optimizer_(recipe, grid_.data(),
                   part_.layout(),  // A short run freezes before all units have had gradients.
                   {.seed = options.seed, .most_masked = 1}) {}

  /// Returns the replica's loss.
  double step(std::span<const std::uint64_t> ids) {
    part_.zero_gradients();
    const terse::PipelineResult result = pipeline_.train(ids);
    if (grid_.agree(result))
      optimizer_.step(part_.parameters(), part_.gradients(), grid_.clip_scale(part_.square(), clip_norm));
    return result.loss;
  }

  terse::Grid<Network>& grid() { return grid_; }
  Part& part() { return part_; }
  double evaluate(std::span<const std::uint64_t> ids) { return pipeline_.evaluate(ids); }
  /// Sent so far: forward, backward, between replicas.
  std::array<double, 3> sent() const {
    const terse::Traffic& traffic = network_.traffic();
    return {static_cast<double>(traffic[Phase::forward].bytes_sent),
            static_cast<double>(traffic[Phase::backward].bytes_sent),
            static_cast<double>(traffic[Phase::reduce].bytes_sent + traffic[Phase::spread].bytes_sent)};
  }

 private:
  Network network_;
  terse::Grid<Network> grid_;
  Part part_;
  terse::Pipeline<Policy, Network, Part> pipeline_;
  terse::Optimizer<Recipe, Network> optimizer_;
};

/// The largest of all ranks' values, place by place.
template <std::size_t N>
std::array<double, N> largest(terse::AnyTransport& world, const std::array<double, N>& mine) {
  terse::Assembly<std::array<double, N>, terse::AnyTransport> everyone(world);
  std::array<double, N> most{};
  for (const std::array<double, N>& theirs : everyone(world, mine, Phase::setup))
    for (std::size_t k = 0; k < N; ++k) most[k] = std::max(most[k], theirs[k]);
  return most;
}
double mean(terse::AnyTransport& world, double mine) {
  terse::Assembly<double, terse::AnyTransport> everyone(world);
  double sum = 0;
  for (const double theirs : everyone(world, mine, Phase::setup)) sum += theirs;
  return sum / world.size();
}

/// Replicas of a stage must hold the same parameters, to the bit.
template <class R>
void check_replicas(R& rank) {
  std::uint64_t hash = 0;
  for (const float x : rank.part().parameters())
    hash = terse::mix_hash(hash, std::bit_cast<std::uint32_t>(x));
  terse::Assembly<std::uint64_t, Network> everyone(rank.grid().data());
  for (const std::uint64_t theirs : everyone(rank.grid().data(), hash, Phase::setup))
    if (theirs != hash) throw std::runtime_error("the replicas hold different parameters");
}

/// All methods of one rank.
class Job {
 public:
  Job(const Options& options, terse::AnyTransport& world)
      : options_(options),
        world_(world),
        replicas_(world.size() / stages),
        task_(options.examples + held_out, options.seed) {}

  template <class Policy, class Recipe>
  Figures train(const char* along, const char* between, const Policy& policy, const Recipe& recipe) {
    Figures figures{.along = along, .between = between};
    // As fast as this machine is: what is learned and sent depends on no time.
    Rank<Policy, Recipe> rank(options_, task_, world_, {}, policy, recipe);
    const std::array<double, 3> before = rank.sent();
    std::array<double, 3> last{};
    double loss = 0;
    const std::int64_t steps = steps_of_epoch();
    for (std::int64_t epoch = 0; epoch < options_.epochs; ++epoch) {
      const terse::ExampleOrder order = order_of(rank, epoch);
      last = rank.sent();
      loss = 0;
      for (std::int64_t k = 0; k < steps; ++k) loss += rank.step(order.batch(k, batch));
    }
    const std::array<double, 3> after = rank.sent();
    check_replicas(rank);
    const auto count = static_cast<double>(steps);
    figures.loss = mean(world_, loss / count);
    std::vector<std::uint64_t> others;
    for (std::int64_t id = 0; id < held_out; ++id)
      others.push_back(static_cast<std::uint64_t>(options_.examples + id));
    figures.held_out = rank.evaluate(others);
    const auto sent = largest<4>(
        world_, {(after[0] - last[0]) / count, (after[1] - last[1]) / count, (after[2] - last[2]) / count,
                 after[0] + after[1] + after[2] - before[0] - before[1] - before[2]});
    figures.forward = sent[0];
    figures.backward = sent[1];
    figures.replicas = sent[2];
    figures.whole_run = sent[3];
    figures.modelled = modelled(figures);
    return figures;
  }

  /// Adds what a step takes over links of the rate asked for, after `warm_up` steps on the same examples, in which copies
  /// are made and variances learned: the fastest of some, since other programs can only make them slower.
  template <class Policy, class Recipe>
  void measure(Figures& figures, const Policy& policy, const Recipe& recipe, int warm_up) {
    if (options_.timed_steps == 0) return;
    const terse::Link link{std::chrono::nanoseconds(0), bytes_per_second()};
    Rank<Policy, Recipe> rank(options_, task_, world_, link, policy, recipe);
    rank.part().forward_time = std::chrono::duration<double>(forward_seconds());
    rank.part().backward_time = std::chrono::duration<double>(2 * forward_seconds());
    const terse::ExampleOrder order = order_of(rank, 0);
    for (int k = 0; k < warm_up; ++k) rank.step(order.batch(0, batch));
    for (std::int64_t k = 0; k < options_.timed_steps; ++k) {
      terse::barrier(world_);
      const auto begin = std::chrono::steady_clock::now();
      rank.step(order.batch(0, batch));
      const double mine = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      const double seconds = largest<1>(world_, {mine})[0];
      figures.measured = k == 0 ? seconds : std::min(figures.measured, seconds);
    }
  }

  std::int64_t steps_of_epoch() const { return options_.examples / replicas_ / batch; }

 private:
  double bytes_per_second() const { return options_.rate * 1e6 / 8; }
  double forward_seconds() const { return options_.pass / 1e3; }
  template <class R>
  terse::ExampleOrder order_of(R& rank, std::int64_t epoch) const {
    return {options_.examples, options_.seed, static_cast<std::uint64_t>(epoch), rank.grid().replica(),
            replicas_};
  }

  /// The pipeline's step, and behind it the average between replicas. What a rank agrees on with all others, 16 bytes to
  /// each, is left out.
  double modelled(const Figures& figures) const {
    const double of_a_byte = 1 / bytes_per_second(), of_a_message = of_a_byte / micro_batches;
    std::array<terse::StageTimes, stages> times;
    times.fill({forward_seconds(), 2 * forward_seconds(), figures.forward * of_a_message,
                figures.backward * of_a_message});
    return terse::makespan(terse::GPipe{}, times, micro_batches) + figures.replicas * of_a_byte;
  }

  const Options& options_;
  terse::AnyTransport& world_;
  int replicas_;
  Task task_;
};

}  // namespace

std::vector<Figures> run_rank(const Options& options, terse::AnyTransport& world) {
  // Whole batches alone, so that all steps send alike.
  const std::int64_t of_a_step = world.size() / stages * batch;
  if (options.examples % of_a_step != 0)
    throw input_error("--examples: '" + std::to_string(options.examples) + "' is not a multiple of " +
                      std::to_string(of_a_step) + ", a batch of " + std::to_string(batch) +
                      " for each replica");
  Job job(options, world);
  const terse::ExactActivations exact;
  const FourAndEight changes{.capacity = options.examples};
  const terse::Adam<> adam{.learning_rate = 2e-3F};
  const terse::MomentumSgd<> sgd{.learning_rate = 0.05F};
  const terse::QuantizedSgd<terse::Qsgd<8>> quantized{.learning_rate = 0.05F};
  // A third of the epochs for the variance.
  const auto steps = static_cast<std::uint64_t>(job.steps_of_epoch() * options.epochs);
  terse::OneBitAdam<> one_bit{
      .learning_rate = 3e-4F,
      .preconditioner = {.freeze = terse::AtStep{std::max<std::uint64_t>(1, steps / 3)}}};

  std::vector<Figures> all;
  all.push_back(job.train("exact", "Adam", exact, adam));
  job.measure(all.back(), exact, adam, 0);
  all.push_back(job.train("exact", "SGD", exact, sgd));
  all.push_back(job.train("4/8 bits", "Adam", changes, adam));
  all.back().exact_loss = all[0].loss;
  job.measure(all.back(), changes, adam, 1);
  all.push_back(job.train("4/8 bits", "SGD, 8 bits", changes, quantized));
  job.measure(all.back(), changes, quantized, 1);
  all.back().exact_loss = all[1].loss;
  all.back().must_meet_bar = true;
  all.push_back(job.train("4/8 bits", "1-bit Adam", changes, one_bit));
  // What is sent depends on the freeze alone.
  one_bit.preconditioner.freeze = terse::AtStep{1};
  job.measure(all.back(), changes, one_bit, 1);
  return all;
}

}  // namespace end_to_end
