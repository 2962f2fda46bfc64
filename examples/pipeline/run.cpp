// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "../../tools/train/model.hpp"
#include "../../tools/train/progress.hpp"
#include "any_pipeline.hpp"
#include "beforehand.hpp"
#include "models.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/pipeline/example_order.hpp"
#include "terse/pipeline/grid.hpp"
#include "terse/pipeline/makespan.hpp"
#include "terse/transport/delayed.hpp"

namespace pipeline {
namespace {

using terse::AnyTransport;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Makes a channel that is as slow as `link` says. Collective.
AnyTransport make_link(const SlowLink& link, AnyTransport& transport) {
  AnyTransport channel = transport.split(0, transport.rank());
  if (!link.any() || link.real) return channel;
  terse::Link slow;
  slow.latency = std::chrono::nanoseconds(static_cast<std::int64_t>(1e6 * link.delay_ms));
  if (link.megabits > 0) slow.bytes_per_second = 1e6 / 8 * link.megabits;
  return AnyTransport(terse::Delayed<AnyTransport>(std::move(channel), slow));
}

Settings settings_of(const Job& job, std::uint64_t seed, std::int64_t micro_batch, std::int64_t examples) {
  const Options& options = job.options;
  Settings settings;
  settings.options.micro_batch = micro_batch;
  settings.options.positions = positions(job.data);
  settings.options.seed = seed;
  settings.options.window = options.window;
  settings.schedule = options.schedule;
  settings.capacity = examples;
  settings.mapped = options.mapped;
  return settings;
}

/// One stage of one run.
class StageRun {
 public:
  StageRun(const Job& job, const SlowLink& link, const Coding& coding, std::uint64_t seed,
           const Beforehand& beforehand, AnyTransport& world, terse::Grid<AnyTransport>& grid)
      : job_(job),
        options_(job.options),
        link_(link),
        world_(world),
        examples_(options_.examples > 0 ? std::min(options_.examples, job.data.tuning.count)
                                        : job.data.tuning.count),
        replica_(grid.replica()),
        batch_(options_.batch / options_.replicas),
        model_({options_.task, grid.stage(), options_.stages, seed, options_.recompute, job.data.pretrained}),
        side_(grid.pipe().split(0, grid.stage())),
        wire_(make_link(link, grid.pipe())),
        replicas_wire_(grid.data().split(0, replica_)),
        pipeline_(make_pipeline(
            coding,
            settings_of(job, options_.replicas > 1 ? grid.seed(seed) : seed, options_.micro_batch, examples_),
            wire_, model_)),
        evaluation_(make_pipeline(Coding{}, settings_of(job, seed, rows_together, 0), side_, model_)),
        everyone_(world),
        numbers_(side_) {
    run_.coding = coding;
    run_.seed = seed;
    run_.megabits = link.megabits;
    model_.take(beforehand.layout, beforehand.parameters.data());
    all_steps_ = order(1).batches(batch_) * options_.epochs;
    const auto rate = static_cast<float>(options_.learning_rate);
    if (options_.averaging == Averaging::one_bit) {
      const double first = one_bit_after * static_cast<double>(all_steps_);
      const terse::AtStep freeze{static_cast<std::uint64_t>(std::max(1.0, std::round(first)))};
      // A freeze after tens of steps needs bias correction.
      make_optimizer(terse::OneBitAdam<>{
          .learning_rate = rate, .bias_correction = true, .preconditioner = {.freeze = freeze}});
    } else {
      make_optimizer(terse::Adam<>{.learning_rate = rate});
    }
  }

  Run operator()() {
    train::Progress progress(world_.rank() == 0 && !options_.quiet, title(), 0, all_steps_, options_.epochs,
                             "examples");
    for (int epoch = 1; epoch <= options_.epochs; ++epoch) {
      train_epoch(epoch, progress);
      // Activations of first visits travel whole: what comes behind is what lasts.
      if (epoch == 1 && options_.epochs > 1) first_ = so_far();
      evaluate();
      collect_epoch();
    }
    progress.finish();
    collect_run();
    return std::move(run_);
  }

 private:
  static constexpr std::int64_t rows_together = 50;  // in evaluations
  static constexpr double one_bit_after = 0.15;      // of the steps, as in the paper

  /// Since the beginning of the run; change and error of the last epoch alone.
  struct Counts {
    terse::PipelineStatistics spent;
    std::uint64_t forward_bytes = 0, backward_bytes = 0;
    double seconds = 0, training_seconds = 0, steps = 0, micro_batches = 0;
  };
  struct Sent {
    std::uint64_t forward_bytes, backward_bytes, replica_bytes;
    double loss, change, error;
  };

  template <class Recipe>
  void make_optimizer(Recipe recipe) {
    auto optimizer = std::make_shared<terse::Optimizer<Recipe, Wire>>(
        recipe, replicas_wire_, model_.layout(), terse::Options{.seed = run_.seed, .most_masked = 1});
    step_ = [this, optimizer](float rate) {
      const terse::index_t size = model_.layout().size();
      optimizer->learning_rate(rate);
      optimizer->step({model_.parameters(), size}, {model_.gradients(), size});
    };
  }
  terse::ExampleOrder order(int epoch) const {
    return {examples_, run_.seed, static_cast<std::uint64_t>(epoch), replica_, options_.replicas};
  }

  std::string title() const {
    const std::string coding = name(run_.coding);
    return options_.seeds.size() > 1 ? fmt::format("{}, seed {}", coding, run_.seed) : coding;
  }

  void train_epoch(int epoch, train::Progress& progress) {
    const terse::ExampleOrder order = this->order(epoch);
    const Clock::time_point begin = Clock::now();
    Epoch now;
    for (terse::index_t k = 0; k < order.batches(batch_); ++k) {
      const std::span<const std::uint64_t> ids = order.batch(k, batch_);
      const auto rows = static_cast<std::int64_t>(ids.size());
      model_.set_batch(job_.data.tuning, ids.data(), rows);
      model_.zero_gradients();
      const Clock::time_point before = Clock::now();
      const double loss = pipeline_->train(ids, lengths_of(job_.data.tuning, ids.data(), ids.size())).loss;
      training_seconds_ += seconds_since(before);
      step_(rate());
      now.loss += loss * static_cast<double>(rows) / static_cast<double>(examples_);
      micro_batches_ += static_cast<double>((rows + options_.micro_batch - 1) / options_.micro_batch);
      seen_ += rows;
      progress.update(++steps_, loss, seen_);
    }
    now.seconds = seconds_since(begin);
    seconds_ += now.seconds;
    run_.epochs.push_back(now);

    terse::PipelineStatistics all = pipeline_->statistics();
    all.forward_seconds += spent_.forward_seconds;
    all.backward_seconds += spent_.backward_seconds;
    all.coding_seconds += spent_.coding_seconds;
    all.waiting_seconds += spent_.waiting_seconds;
    spent_ = all;
    pipeline_->reset_statistics();
  }

  /// Of the step to come.
  float rate() const {
    const double rises = options_.warm_up * static_cast<double>(all_steps_);
    const double share = rises > 0 ? std::min(1.0, static_cast<double>(steps_ + 1) / rises) : 1;
    return static_cast<float>(options_.learning_rate * share);
  }

  void evaluate() {
    const Examples& test = job_.data.test;
    // Of a large test the last epoch alone takes all.
    const std::int64_t count =
        options_.task == Task::glosses && static_cast<int>(run_.epochs.size()) < options_.epochs
            ? std::min<std::int64_t>(test.count, 1000)
            : test.count;
    std::vector<std::uint64_t> ids;
    Epoch& now = run_.epochs.back();
    Score score;
    constexpr std::int64_t at_once = 10 * rows_together;
    for (std::int64_t first = 0; first < count; first += at_once) {
      const std::int64_t rows = std::min(at_once, count - first);
      ids.resize(static_cast<std::size_t>(rows));
      for (std::int64_t r = 0; r < rows; ++r)
        ids[static_cast<std::size_t>(r)] = static_cast<std::uint64_t>(first + r);
      model_.set_batch(test, ids.data(), rows);
      now.test_loss += evaluation_->evaluate(ids, lengths_of(test, ids.data(), ids.size())) *
                       static_cast<double>(rows) / static_cast<double>(count);
      const Score part = model_.score();
      score.right += part.right;
      score.asked += part.asked;
    }
    // The last stage has them.
    now.accuracy =
        everyone(score.asked > 0 ? static_cast<double>(score.right) / static_cast<double>(score.asked) : 0.0)
            .back();
  }

  Counts so_far() const {
    const terse::Traffic& traffic = wire_.traffic();
    return {spent_,
            traffic[terse::Phase::forward].bytes_sent,
            traffic[terse::Phase::backward].bytes_sent,
            seconds_,
            training_seconds_,
            static_cast<double>(steps_),
            micro_batches_};
  }

  void collect_epoch() {
    Epoch& now = run_.epochs.back();
    const terse::Traffic& traffic = wire_.traffic();
    const double own = now.loss;
    now.loss = 0;
    int rank = 0;
    for (const Sent& one :
         everyone_(world_,
                   {traffic[terse::Phase::forward].bytes_sent, traffic[terse::Phase::backward].bytes_sent,
                    replicas_wire_.traffic().bytes_sent(), own, spent_.change, spent_.error},
                   terse::Phase::setup)) {
      now.forward_bytes += one.forward_bytes;
      now.backward_bytes += one.backward_bytes;
      now.replica_bytes += one.replica_bytes;
      now.change.push_back(one.change);
      now.error.push_back(one.error);
      // Replicas of the first stage come first. Each knows the loss of its own examples.
      if (rank < options_.replicas) now.loss += one.loss;
      run_.same_loss = run_.same_loss && (rank % options_.replicas != replica_ || one.loss == own);
      ++rank;
    }
  }

  void collect_run() {
    const Counts all = so_far();
    const double passes = all.micro_batches - first_.micro_batches;
    const auto each = [&](double terse::PipelineStatistics::*part) {
      return (all.spent.*part - first_.spent.*part) / passes;
    };
    using Spent = terse::PipelineStatistics;
    StageNumbers mine;
    mine.change = all.spent.change;
    mine.error = all.spent.error;
    mine.remembers = all.spent.sampled > 0;
    mine.forward_seconds = all.spent.forward_seconds;
    mine.backward_seconds = all.spent.backward_seconds;
    mine.coding_seconds = all.spent.coding_seconds;
    mine.waiting_seconds = all.spent.waiting_seconds;
    mine.total_seconds = all.seconds;
    mine.beside_training =
        ((all.seconds - all.training_seconds) - (first_.seconds - first_.training_seconds)) /
        (all.steps - first_.steps);
    mine.forward_pass = each(&Spent::forward_seconds) + each(&Spent::coding_seconds) / 2;
    mine.backward_pass = each(&Spent::backward_seconds) + each(&Spent::coding_seconds) / 2;
    mine.forward_message = static_cast<double>(all.forward_bytes - first_.forward_bytes) / passes;
    mine.backward_message = static_cast<double>(all.backward_bytes - first_.backward_bytes) / passes;
    const auto numbers = numbers_(side_, mine, terse::Phase::setup);
    run_.stages.assign(numbers.begin(), numbers.end());
    run_.micro_batches = passes / (all.steps - first_.steps);
    run_.step_seconds = (all.seconds - first_.seconds) / (all.steps - first_.steps);

    std::vector<terse::StageTimes> times;
    double beside = 0;
    const double seconds_per_byte = link_.megabits > 0 ? 8e-6 / link_.megabits : 0;
    for (const StageNumbers& one : run_.stages) {
      beside = std::max(beside, one.beside_training);
      times.push_back({one.forward_pass, one.backward_pass, one.forward_message * seconds_per_byte,
                       one.backward_message * seconds_per_byte});
    }
    run_.predicted_seconds = beside + predicted(times);
  }

  /// The mean over the steps of the last epoch. Messages are as long as their examples.
  double predicted(const std::vector<terse::StageTimes>& times) const {
    const Examples& examples = job_.data.tuning;
    const terse::ExampleOrder order = this->order(options_.epochs);
    const auto each = static_cast<std::size_t>(options_.micro_batch);
    std::vector<std::vector<double>> steps;  // positions of each micro-batch
    double positions = 0, micro_batches = 0;
    for (terse::index_t k = 0; k < order.batches(batch_); ++k) {
      const std::span<const std::uint64_t> ids = order.batch(k, batch_);
      const auto lengths = lengths_of(examples, ids.data(), ids.size());
      std::vector<double>& step = steps.emplace_back((ids.size() + each - 1) / each);
      for (std::size_t r = 0; r < ids.size(); ++r)
        step[r / each] += lengths.empty() ? 1 : static_cast<double>(lengths[r]);
      positions += std::accumulate(step.begin(), step.end(), 0.0);
      micro_batches += static_cast<double>(step.size());
    }
    double seconds = 0;
    for (const std::vector<double>& step : steps)
      seconds += terse::makespan(
          options_.schedule, options_.stages, static_cast<terse::index_t>(step.size()),
          [&](int stage, terse::index_t micro_batch) {
            terse::StageTimes one = times[static_cast<std::size_t>(stage)];
            const double share = step[static_cast<std::size_t>(micro_batch)] * micro_batches / positions;
            one.sends_forward *= share;
            one.sends_backward *= share;
            return one;
          },
          link_.delay_ms / 1e3);
    return seconds / static_cast<double>(steps.size());
  }

  std::vector<double> everyone(double mine) {
    terse::Assembly<double, Wire> assembly(side_);
    const auto all = assembly(side_, mine, terse::Phase::setup);
    return {all.begin(), all.end()};
  }

  const Job& job_;
  const Options& options_;
  const SlowLink link_;
  AnyTransport& world_;
  std::int64_t examples_;
  int replica_;
  std::int64_t batch_;  // of a replica
  Model model_;
  Wire side_;  // as fast as it is, for what is no training
  Wire wire_, replicas_wire_;
  std::unique_ptr<AnyPipeline> pipeline_, evaluation_;
  std::function<void(float rate)> step_;
  terse::Assembly<Sent, AnyTransport> everyone_;
  terse::Assembly<StageNumbers, Wire> numbers_;

  Run run_;
  terse::PipelineStatistics spent_;
  Counts first_;
  double seconds_ = 0, training_seconds_ = 0, micro_batches_ = 0;
  std::int64_t steps_ = 0, all_steps_ = 0, seen_ = 0;
};

}  // namespace

std::vector<Run> run_stage(const Job& job, AnyTransport& transport) {
  train::Model::pin_threads();
  terse::Grid<AnyTransport> grid(transport, {.stages = job.options.stages});
  SlowLink link = job.options.link;
  // Replicas measure on their own, and their links are to be equal.
  if (link.forward_passes > 0)
    link.megabits = terse::mean(transport, measure_link(job, link.forward_passes, grid.pipe()));
  std::vector<Run> runs;
  for (const std::uint64_t seed : job.options.seeds) {
    const Beforehand beforehand = train_beforehand(job, seed, transport);
    for (const Coding& coding : job.options.codings)
      runs.push_back(StageRun(job, link, coding, seed, beforehand, transport, grid)());
  }
  if (transport.rank() > 0) runs.clear();
  return runs;
}

}  // namespace pipeline
