// SPDX-License-Identifier: Apache-2.0

// One row of the race: trains the GPT of examples/gpt by threads with one of the trainer's methods, and prints a line of JSON at every
// evaluation: the step, the mean training loss of the steps since the line before, the held-out loss, the bytes that rank 0 has sent,
// and the processor seconds of all ranks in steps. With --save a run that was stopped resumes, and prints the earlier lines again.
// Curves come from threads, since links change no bits of them.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <numbers>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "../../tools/train/any_optimizer.hpp"
#include "../../tools/train/input_error.hpp"
#include "../gpt/model.hpp"
#include "../gpt/text.hpp"
#include "terse/checkpoint/folder.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/thread.hpp"

namespace {

constexpr int windows_held_out = 256;

struct Race {
  std::string method, text, save;
  std::uint64_t steps = 2000, every = 100;
  double rate = 1e-3, last_rate = 0.1;
  int rows = 8;
  gpt::Shape shape;
  train::Options options;  // of the method; its rates are `rate`

  std::uint64_t share(double of) const {
    return static_cast<std::uint64_t>(std::llround(of * static_cast<double>(steps)));
  }
  /// Rises in a straight line, then falls by half a cosine to `last_rate` of its height, or stays.
  float rate_at(std::uint64_t step) const {
    const auto rise = static_cast<double>(share(options.learning_rate_warmup)),
               now = static_cast<double>(step);
    double height = 1;
    if (now < rise) {
      height = (now + 1) / rise;
    } else if (options.rate_schedule == train::RateSchedule::cosine) {
      const double cosine = std::cos(std::numbers::pi * (now - rise) / (static_cast<double>(steps) - rise));
      height = last_rate + (1 - last_rate) * (1 + cosine) / 2;
    }
    return static_cast<float>(rate * height);
  }
  train::Stages stages() const {
    return {.freeze = std::max<std::uint64_t>(1, share(options.warmup_fraction)),
            .local_interval = std::max<std::uint64_t>(1, share(options.local_interval))};
  }
};

/// JSON has no NaN.
std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.6g}", value) : "null"; }

/// One rank.
class Runner {
 public:
  Runner(const Race& race, const gpt::Text& text, terse::Threads& transport)
      : race_(race),
        text_(text),
        rank_(transport.rank()),
        side_(transport.split(0, rank_)),
        model_(race.shape, race.options.seed),
        place_{terse::Metered(terse::AnyTransport(transport.split(0, rank_))), {}},
        method_(train::method(race.method)),
        stages_(race.stages()),
        order_{method_, race.options, stages_, model_.layout(), place_},
        optimizer_(method_.made.on_host(order_)),
        held_out_(gpt::draw_windows(text.held_out, windows_held_out / transport.size(), race.shape.window(),
                                    0, rank_, 0)) {}

  void run() {
    std::optional<terse::checkpoint::Folder<terse::Threads>> folder;
    if (!race_.save.empty()) folder.emplace(race_.save, side_);
    std::uint64_t step = 0;
    if (folder)
      if (const auto loaded = folder->load([&](const terse::checkpoint::Manifest& manifest) {
            optimizer_->load(manifest, model_.parameters());
            resume(manifest.contents("lines"));
          }))
        step = loaded->manifest.step();
    while (step < race_.steps) {
      train(step++);
      if (step % race_.every != 0 && step != race_.steps) continue;
      evaluate(step);
      if (folder && step != race_.steps)
        folder->save(step, [&](terse::checkpoint::Draft& draft) {
          optimizer_->save(draft.file(terse::checkpoint::rank_file(rank_, side_.size())),
                           model_.parameters());
          if (rank_ == 0) draft.write("lines", fmt::format("{} {}\n{}", bytes_, seconds_, lines_));
        });
    }
  }

 private:
  void train(std::uint64_t step) {
    const std::clock_t begin = started();
    const float rate = race_.rate_at(step);
    optimizer_->begin(model_.parameters(), rate);
    loss_ += model_.gradient(gpt::draw_windows(text_.training, race_.rows, race_.shape.window(),
                                               race_.options.seed, rank_, step + 1));
    const std::uint64_t before = place_.transport.traffic().bytes_sent();
    const terse::StepResult result = optimizer_->step(model_.parameters(), model_.gradients(), rate);
    bytes_ += place_.transport.traffic().bytes_sent() - before;
    if (rank_ == 0)
      for (const terse::MaskedSegment& segment : result.masked.segments)
        fmt::print(stderr, "step {} masks {} elements of {} in {}\n", step + 1, segment.masked,
                   segment.elements, segment.name);
    ++steps_;
    terse::barrier(side_);
    seconds_ += static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  }
  /// The clock counts all threads, which have to begin together.
  std::clock_t started() {
    terse::barrier(side_);
    return std::clock();
  }

  /// At the mean of the ranks' parameters, which are equal but for methods with steps of each rank's own.
  void evaluate(std::uint64_t step) {
    const terse::view<float> parameters(model_.parameters(), model_.layout().size());
    const std::vector<float> own(parameters.begin(), parameters.end());
    terse::mean(side_, parameters);
    const double held_out = terse::mean(side_, model_.loss(held_out_));
    std::copy(own.begin(), own.end(), parameters.begin());
    const double trained = terse::mean(side_, loss_ / static_cast<double>(steps_));
    loss_ = 0;
    steps_ = 0;
    if (rank_ == 0)
      print(fmt::format(
          R"({{"step": {}, "done": {:.4g}, "train": {}, "held_out": {}, "bytes": {}, "seconds": {:.1f}}})"
          "\n",
          step, static_cast<double>(step) / static_cast<double>(race_.steps), number(trained),
          number(held_out), bytes_, seconds_));
  }
  void print(const std::string& lines) {
    lines_ += lines;
    std::fputs(lines.c_str(), stdout);
    std::fflush(stdout);
  }
  void resume(const std::string& saved) {
    if (rank_ != 0) return;
    std::istringstream in(saved);
    in >> bytes_ >> seconds_;
    print(saved.substr(saved.find('\n') + 1));
  }

  const Race& race_;
  const gpt::Text& text_;
  const int rank_;
  terse::Threads side_;
  gpt::Model model_;
  train::OnHost place_;
  const train::Method& method_;
  const train::Stages stages_;
  const train::Order<train::OnHost> order_;
  const train::Made optimizer_;
  const gpt::Tokens held_out_;
  std::string lines_;
  std::uint64_t steps_ = 0, bytes_ = 0;
  double loss_ = 0, seconds_ = 0;
};

std::optional<int> parse(Race& race, int argc, char** argv) {
  CLI::App app{"Trains a small GPT by threads; prints lines of JSON."};
  train::Options& options = race.options;
  options.rate_schedule = train::RateSchedule::cosine;
  std::string schedule = "cosine", granularity = "segment", bias_correction = "none";
  app.add_option("--text", race.text, "folder that gpt_sub_words has written")->required();
  app.add_option("--method", race.method, "of the trainer, such as one-bit-adam")->required();
  app.add_option("--save", race.save, "folder of checkpoints");
  app.add_option("--steps", race.steps)->check(CLI::PositiveNumber);
  app.add_option("--every", race.every, "steps between evaluations")->check(CLI::PositiveNumber);
  app.add_option("--ranks", options.ranks);
  app.add_option("--rows", race.rows, "windows of a rank's batch")->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "of the parameters and the batches");
  app.add_option("--learning-rate", race.rate, "the highest");
  app.add_option("--last-rate", race.last_rate, "share of it at the end of a cosine");
  app.add_option("--schedule", schedule)->check(CLI::IsMember({"cosine", "constant"}));
  app.add_option("--rate-warmup", options.learning_rate_warmup, "share of the steps in which the rate rises");
  app.add_option("--warm-up", options.warmup_fraction, "share of the steps before the variance is frozen");
  app.add_option("--bias-correction", bias_correction,
                 "of 1-bit Adam's and 1-bit LAMB's averages until the freeze")
      ->check(CLI::IsMember({"none", "first-stage"}));
  app.add_option("--update-clip", options.update_clip);
  app.add_option("--granularity", granularity, "of 1-bit Adam's scales")
      ->check(CLI::IsMember({"segment", "block", "whole"}));
  app.add_option("--weight-decay", options.weight_decay);
  app.add_option("--period", options.period, "steps between averages of parameters");
  app.add_option("--outer-rate", options.outer_learning_rate);
  app.add_option("--outer-momentum", options.outer_momentum);
  app.add_option("--ratio", options.ratio, "share of the elements that travel");
  app.add_option("--width", race.shape.width);
  app.add_option("--blocks", race.shape.blocks);
  app.add_option("--heads", race.shape.heads);
  app.add_option("--length", race.shape.length, "tokens that a prediction may look back at");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& fault) {
    return app.exit(fault);
  }
  options.learning_rate = options.lamb_learning_rate = options.sgd_learning_rate = race.rate;
  if (schedule == "constant") options.rate_schedule = train::RateSchedule::constant;
  if (granularity == "block") options.granularity = train::Granularity::block;
  if (granularity == "whole") options.granularity = train::Granularity::whole;
  if (bias_correction == "first-stage") options.bias_correction = train::BiasCorrection::first_stage;
  if (train::find_method(race.method) == nullptr)
    throw train::input_error("--method: there is no " + race.method);
  return std::nullopt;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Race race;
    if (const std::optional<int> status = parse(race, argc, argv)) return *status;
    const gpt::Text text = gpt::read_text(race.text);
    race.shape.words = static_cast<int>(text.words.size());
    terse::ThreadGroup(race.options.ranks).run([&](terse::Threads& transport) {
      Runner(race, text, transport).run();
    });
    return EXIT_SUCCESS;
  } catch (const std::exception& fault) {
    fmt::print(stderr, "race: {}\n", fault.what());
    return EXIT_FAILURE;
  }
}
