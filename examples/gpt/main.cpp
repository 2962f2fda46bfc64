// SPDX-License-Identifier: Apache-2.0

// A small GPT, trained from text by ranks that see different parts of it, with 1-bit Adam. Held-out text tells what it has learned, and
// in the end it writes some.
//
//   gpt_sub_words out/text               # see sub_words.cpp; other text: gpt_sub_words out/text 2048 FOLDER...
//   gpt out/text [STEPS [RANKS]]         # 2000 steps by 4 threads, unless given

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numbers>

#include "model.hpp"
#include "terse/terse.hpp"
#include "text.hpp"

namespace {

constexpr int rows = 8;  // windows of a rank's batch

/// Rises over the first 5 % of the steps, and falls to a tenth by a cosine.
float learning_rate(int step, int steps) {
  const double share = static_cast<double>(step) / steps;
  return static_cast<float>(1e-3 * std::min(share / 0.05, 0.55 + 0.45 * std::cos(std::numbers::pi * share)));
}

void train(const gpt::Text& text, int steps, terse::Threads& transport) {
  const gpt::Shape shape{static_cast<int>(text.words.size())};
  gpt::Model model(shape, 1);  // the same on all ranks
  const terse::index_t size = model.layout().size();
  // A freeze as early as this needs bias correction.
  const terse::OneBitAdam<> recipe{
      .bias_correction = true,
      .preconditioner = {.freeze = terse::AtStep{static_cast<std::uint64_t>(steps * 3 / 20 + 1)}}};
  terse::Optimizer optimizer{recipe, transport, model.layout()};
  const auto held_out = gpt::draw_windows(text.held_out, 16, shape.window(), 1, transport.rank(), 0);

  std::uint64_t bytes = 0;
  for (int step = 1; step <= steps; ++step) {
    model.gradient(gpt::draw_windows(text.training, rows, shape.window(), 1, transport.rank(),
                                     static_cast<std::uint64_t>(step)));
    optimizer.learning_rate(learning_rate(step, steps));
    bytes += optimizer.step({model.parameters(), size}, {model.gradients(), size}).bytes_sent;
    if (step % 100 != 0 && step != steps) continue;
    const double loss = terse::mean(transport, model.loss(held_out));
    if (transport.rank() == 0)
      std::printf("step %d  held-out loss %.3f  %.1f MB sent by a rank\n", step, loss,
                  1e-6 * static_cast<double>(bytes));
  }
  if (transport.rank() != 0) return;
  gpt::Tokens written(held_out.begin(), held_out.begin() + 16);
  model.write(written, 64, 1);
  std::printf("%s\n", gpt::decode(text, written).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw terse::usage_error("usage: gpt FOLDER [STEPS [RANKS]]");
    const int steps = argc > 2 ? std::atoi(argv[2]) : 2000, ranks = argc > 3 ? std::atoi(argv[3]) : 4;
    const gpt::Text text = gpt::read_text(argv[1]);
    terse::ThreadGroup(ranks).run([&](terse::Threads& transport) { train(text, steps, transport); });
    return EXIT_SUCCESS;
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "gpt: %s\n", fault.what());
    return EXIT_FAILURE;
  }
}
