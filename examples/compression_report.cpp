// SPDX-License-Identifier: Apache-2.0

// compression_report [FILE [STEPS [DATA]]]: four ranks train a perceptron on Fashion-MNIST, with healthy and with sick compression.
// Prints what rank 0's CompressionReport says of the first layer's weights; docs/compression-report.md explains it. FILE gets the
// lines of all segments and steps, as JSON.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "experiments/model.hpp"
#include "terse/error_feedback/observed.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/terse.hpp"

namespace {

using experiments::Model;
using terse::CompressionReport;

constexpr int ranks = 4, images = 32;

struct Task {
  experiments::Dataset data;
  std::ofstream file;
  std::uint64_t steps = 480;
};

/// A cell of a table.
std::string cell(const char* format, double value) {
  std::string text(16, '\0');
  if (std::isnan(value)) return " - |";
  text.resize(static_cast<std::size_t>(std::snprintf(text.data(), text.size(), format, value)));
  return " " + text + " |";
}

/// Trains with `recipe`, whose error feedback is an Observed one; after a quarter of the steps, at `later` times the rate.
template <class Recipe>
void observe(const char* title, Task& task, const Recipe& recipe, float later = 1) {
  const std::uint64_t shown_every = task.steps / 8;
  std::printf(
      "%s\n\n| step | loss | message | error | error / message | error / value | cosine | update |\n"
      "|---:|---:|---:|---:|---:|---:|---:|---:|\n",
      title);
  terse::ThreadGroup(ranks).run([&](terse::Threads& transport) {
    const terse::Layout layout = Model::layout();
    CompressionReport report(layout);
    Recipe mine = recipe;
    mine.error_feedback.report = &report;
    terse::Optimizer optimizer{mine, transport, layout, {.seed = 1}};
    Model model;
    std::vector<float> x = Model::start(1), gradient(x.size());
    experiments::Batch batch(images);
    double loss = 0;  // mean since the last row
    for (std::uint64_t step = 1; step <= task.steps; ++step) {
      const terse::Draw draw = terse::Draw::local(1, transport.rank(), step, terse::Purpose::user);
      for (std::size_t k = 0; k < batch.size(); ++k)
        batch[k] = static_cast<std::int64_t>(draw.below(static_cast<std::uint64_t>(task.data.count), k));
      loss += model.gradient(x, task.data, batch, gradient) / static_cast<double>(shown_every);
      if (step == task.steps / 4 + 1) optimizer.learning_rate(later * optimizer.learning_rate());
      optimizer.step(x, gradient);
      const std::vector<CompressionReport::Line> lines = report.read(x);
      if (transport.rank() != 0) continue;
      task.file << CompressionReport::json(lines, step, 0);
      if (step % shown_every != 0) continue;
      const CompressionReport::Line& first = lines.front();
      std::printf("| %d |%s\n", static_cast<int>(step),
                  (cell("%.3f", loss) + cell("%.3g", first.message) + cell("%.3g", first.error) +
                   cell("%.2f", first.error / first.message) + cell("%.3f", first.error / first.value) +
                   cell("%.2f", first.cosine) + cell("%.2g", first.update))
                      .c_str());
      loss = 0;
    }
  });
  std::printf("\n");
}

void observe_all(Task& task) {
  using namespace terse;  // NOLINT: an example of the library's names
  using Signs = ScaledSign<MeanAbs>;
  using TopKSgd = ErrorFeedbackSgd<TopK<>, AllGather, Observed<Residual>>;
  const OneBitAdam<Observed<Residual>> one_bit{.learning_rate = 1e-3F,
                                               .preconditioner = {.freeze = AtStep{task.steps / 8}}};
  observe("1-bit Adam", task, one_bit);
  observe("1-bit Adam, later at ten times the rate", task, one_bit, 10);
  observe("signs with error feedback", task,
          ErrorFeedbackSgd<Signs, Observed<Residual>>{.learning_rate = 0.3F});
  observe("signs without error feedback", task,
          ErrorFeedbackSgd<Signs, Observed<Unchecked<NoErrorFeedback>>>{.learning_rate = 0.3F});
  observe("the largest 1 %", task,
          TopKSgd{.learning_rate = 0.3F, .compressor = {.selection = {.ratio = 0.01F}}});
  observe("the largest 0.01 %", task,
          TopKSgd{.learning_rate = 0.3F, .compressor = {.selection = {.ratio = 0.0001F}}});
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Task task;
    if (argc > 1) task.file.open(argv[1]);
    if (argc > 2) task.steps = std::strtoull(argv[2], nullptr, 10);
    if (task.steps < 8 || (argc > 1 && !task.file) || argc > 4) {
      std::fputs("usage: compression_report [FILE [STEPS, at least 8 [DATA]]]\n", stderr);
      return EXIT_FAILURE;
    }
    task.data = train::load_images_labels(argc > 3 ? argv[3] : train::default_data_directory, true);
    observe_all(task);
    return EXIT_SUCCESS;
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "compression_report: %s\n", fault.what());
    return EXIT_FAILURE;
  }
}
