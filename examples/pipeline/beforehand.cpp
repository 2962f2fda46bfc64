// SPDX-License-Identifier: Apache-2.0
#include "beforehand.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <span>

#include "../../tools/train/output.hpp"
#include "../../tools/train/progress.hpp"
#include "any_pipeline.hpp"
#include "models.hpp"
#include "terse/checkpoint/checkpoint.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/pipeline/example_order.hpp"

namespace pipeline {
namespace {

using terse::AnyTransport;

/// Everything on one stage.
struct Whole {
  Whole(const Job& job, std::uint64_t seed, std::int64_t micro_batch, AnyTransport& alone)
      : model({job.options.task, 0, 1, seed, job.options.recompute, job.data.pretrained}),
        wire(alone.split(0, 0)) {
    Settings settings;
    settings.options.micro_batch = micro_batch;
    settings.options.positions = positions(job.data);
    settings.options.seed = seed;
    pipeline = make_pipeline(Coding{}, settings, wire, model);
  }
  double train(const Examples& examples, std::span<const std::uint64_t> ids) {
    model.set_batch(examples, ids.data(), static_cast<std::int64_t>(ids.size()));
    model.zero_gradients();
    return pipeline->train(ids, lengths_of(examples, ids.data(), ids.size())).loss;
  }

  Model model;
  Wire wire;
  std::unique_ptr<AnyPipeline> pipeline;
};

void train_whole(const Job& job, std::uint64_t seed, Whole& whole, AnyTransport& alone) {
  const Options& options = job.options;
  const auto [batch, learning_rate] = before(options.task);
  const terse::index_t size = whole.model.layout().size();
  terse::Optimizer optimizer{terse::Adam<>{.learning_rate = static_cast<float>(learning_rate)}, alone,
                             whole.model.layout()};
  std::filesystem::path file;
  if (!options.cache.empty()) {
    file = std::filesystem::path(options.cache) /
           fmt::format("{}-seed-{}-epochs-{}.safetensors", name(options.task), seed, options.epochs_before);
    if (std::filesystem::exists(file)) {
      terse::checkpoint::load(file, optimizer, terse::view<float>(whole.model.parameters(), size));
      return;
    }
    train::check_output("--cache", file.string());
  }
  const std::int64_t steps = (job.data.before.count + batch - 1) / batch;
  train::Progress progress(!options.quiet, "before", 0, steps * options.epochs_before, options.epochs_before,
                           "examples");
  std::int64_t done = 0;
  for (int epoch = 1; epoch <= options.epochs_before; ++epoch) {
    const terse::ExampleOrder order(job.data.before.count, seed, static_cast<std::uint64_t>(epoch));
    for (terse::index_t k = 0; k < order.batches(batch); ++k) {
      const double loss = whole.train(job.data.before, order.batch(k, batch));
      optimizer.step({whole.model.parameters(), size}, {whole.model.gradients(), size});
      ++done;
      progress.update(done, loss, done * batch);
    }
  }
  progress.finish();
  if (!file.empty())
    terse::checkpoint::save(file, optimizer, terse::view<const float>(whole.model.parameters(), size));
}

/// Stage 0's values become everybody's.
void broadcast(std::vector<float>& values, AnyTransport& transport) {
  auto* const data = reinterpret_cast<std::byte*>(values.data());
  const auto bytes = static_cast<terse::index_t>(sizeof(float) * values.size());
  std::vector<terse::Send> sends;
  std::vector<terse::Receive> receives;
  if (transport.rank() > 0) receives.push_back({0, data, bytes});
  for (int peer = 1; transport.rank() == 0 && peer < transport.size(); ++peer)
    sends.push_back({peer, data, bytes});
  transport.exchange(sends, receives, terse::Phase::setup).wait();
}

}  // namespace

Beforehand train_beforehand(const Job& job, std::uint64_t seed, AnyTransport& transport) {
  AnyTransport alone = transport.split(transport.rank(), 0);
  Whole whole(job, seed, before(job.options.task).batch, alone);
  // Untrained parameters are the same on all stages: on slow links a large model's would take minutes.
  const bool trains = job.options.epochs_before > 0;
  if (trains && transport.rank() == 0) train_whole(job, seed, whole, alone);
  const float* const mine = whole.model.parameters();
  Beforehand found{whole.model.layout(), {mine, mine + whole.model.layout().size()}};
  if (trains) broadcast(found.parameters, transport);
  return found;
}

double measure_link(const Job& job, double forward_passes, AnyTransport& transport) {
  const Options& options = job.options;
  AnyTransport alone = transport.split(transport.rank(), 0);
  const Model mine({options.task, transport.rank(), options.stages, 0, false, job.data.pretrained});
  Whole whole(job, 0, options.micro_batch, alone);
  const terse::ExampleOrder order(job.data.tuning.count, 0, 0);
  constexpr int warm = 3, measured = 10;
  for (int step = 0; step < warm + measured; ++step) {
    if (step == warm) whole.pipeline->reset_statistics();
    whole.train(
        job.data.tuning,
        order.order().first(static_cast<std::size_t>(std::min(options.batch, job.data.tuning.count))));
  }
  const auto passes = static_cast<double>((options.batch + options.micro_batch - 1) / options.micro_batch);
  struct Own {
    double output_elements, forward_seconds;
  };
  terse::Assembly<Own, AnyTransport> assembly(transport);
  // What crosses a boundary, and what a stage's pass takes, on average.
  double elements = 0, seconds = 0;
  for (const Own& one :
       assembly(transport,
                {static_cast<double>(mine.output_elements()),
                 whole.pipeline->statistics().forward_seconds / (measured * passes * options.stages)},
                terse::Phase::setup)) {
    elements += one.output_elements / std::max(1, options.stages - 1);
    seconds += one.forward_seconds / options.stages;
  }
  // Padding doesn't travel.
  const Examples& tuning = job.data.tuning;
  double share = 1;
  if (!tuning.lengths.empty())
    share = std::accumulate(tuning.lengths.begin(), tuning.lengths.end(), 0.0) /
            static_cast<double>(tuning.count * tuning.input_width);
  return 32 * share * elements * static_cast<double>(options.micro_batch) / (forward_passes * seconds) / 1e6;
}

}  // namespace pipeline
