// SPDX-License-Identifier: Apache-2.0
#include "models.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../bert/bert.hpp"
#include "../bert/glosses.hpp"
#include "../gpt/block.hpp"
#include "terse/core/draw.hpp"
#include "terse/interop/libtorch_stage.hpp"
#include "text.hpp"

// The only unit of the program that knows LibTorch, with tools/train/model.cpp. It keeps to C++17, as headers of older
// LibTorchs do.

namespace pipeline {
namespace {

namespace nn = torch::nn;

constexpr int layers = 4;  // that a cut may stand behind
constexpr std::int64_t widths[layers + 1] = {784, 256, 128, 128, 10};
constexpr std::int64_t width = 64;
constexpr std::int64_t heads = 4;

/// The layers [first, last) of a model.
struct Part {
  int first = 0, last = 0;
  bool begins() const { return first == 0; }
  bool ends() const { return last == layers; }
};

// A generator for each layer: what a layer begins with depends neither on the cuts nor on LibTorch's own generator,
// which threads share.
class Beginning {
 public:
  Beginning(std::uint64_t seed, int layer)
      : generator_(at::make_generator<at::CPUGeneratorImpl>(
            terse::Draw::shared(seed, static_cast<std::uint64_t>(layer), terse::Purpose::initialization)
                .bits(0))) {}
  void uniform(nn::Linear& linear) {
    const double bound = 1 / std::sqrt(static_cast<double>(linear->options.in_features()));
    for (torch::Tensor& parameter : linear->parameters()) parameter.uniform_(-bound, bound, generator_);
  }
  void normal(torch::Tensor& tensor, double deviation) { tensor.normal_(0, deviation, generator_); }

 private:
  torch::NoGradGuard no_grad_;
  at::Generator generator_;
};

class Network : public nn::Module {
 public:
  virtual torch::Tensor forward(const torch::Tensor& input) = 0;
};

class Classifier final : public Network {
 public:
  Classifier(const Part& part, std::uint64_t seed) : part_(part) {
    for (int layer = part.first; layer < part.last; ++layer) {
      linears_.push_back(
          register_module("layer" + std::to_string(layer), nn::Linear(widths[layer], widths[layer + 1])));
      Beginning(seed, layer).uniform(linears_.back());
    }
  }
  torch::Tensor forward(const torch::Tensor& input) override {
    torch::Tensor h = input;
    for (std::size_t l = 0; l < linears_.size(); ++l) {
      h = linears_[l](h);
      if (!part_.ends() || l + 1 < linears_.size()) h = torch::relu(h);
    }
    return h;
  }

 private:
  Part part_;
  std::vector<nn::Linear> linears_;
};

class Transformer final : public Network {
 public:
  Transformer(const Part& part, std::uint64_t seed) {
    if (part.begins()) {
      Beginning beginning(seed, layers);
      words_ = register_module("words", nn::Embedding(symbols, width));
      places_ = register_parameter("places", torch::empty({characters, width}));
      beginning.normal(words_->weight, 1);
      beginning.normal(places_, 0.02);
    }
    for (int layer = part.first; layer < part.last; ++layer)
      blocks_.push_back(register_module("block" + std::to_string(layer), begun(Beginning(seed, layer))));
    if (part.ends()) {
      before_head_ = register_module("before_head", nn::LayerNorm(nn::LayerNormOptions({width})));
      head_ = register_module("head", nn::Linear(width, symbols));
      Beginning(seed, layers + 1).uniform(head_);
    }
  }
  torch::Tensor forward(const torch::Tensor& input) override {
    torch::Tensor h = words_.is_empty() ? input : words_(input.to(torch::kInt64)) + places_;
    for (gpt::Block& block : blocks_) h = block(h);
    return head_.is_empty() ? h : head_(before_head_(h));
  }

 private:
  nn::Embedding words_{nullptr};
  torch::Tensor places_;
  static gpt::Block begun(Beginning beginning) {
    gpt::Block block(width, heads, characters);
    for (nn::Linear* linear : {&block->queries_keys_values, &block->attended, &block->wide, &block->narrow})
      beginning.uniform(*linear);
    return block;
  }

  std::vector<gpt::Block> blocks_;
  nn::LayerNorm before_head_{nullptr};
  nn::Linear head_{nullptr};
};

void check_stage(const ModelOptions& options) {
  if (options.stages != 1 && options.stages != 2 && options.stages != 4)
    throw std::invalid_argument("a model is cut into 1, 2 or 4 stages, not " +
                                std::to_string(options.stages));
  if (options.stage < 0 || options.stage >= options.stages)
    throw std::invalid_argument("there is no stage " + std::to_string(options.stage) + " of " +
                                std::to_string(options.stages));
}

Part part_of(const ModelOptions& options) {
  const int each = layers / options.stages;
  return {options.stage * each, (options.stage + 1) * each};
}

std::shared_ptr<Network> network_of(Task task, const Part& part, std::uint64_t seed) {
  if (task == Task::text) return std::make_shared<Transformer>(part, seed);
  return std::make_shared<Classifier>(part, seed);
}

terse::interop::TorchStageShapes shapes_of(Task task, const Part& part) {
  terse::interop::TorchStageShapes shapes;
  const auto behind = [task](int layer) {
    return task == Task::text ? std::vector<std::int64_t>{characters, width}
                              : std::vector<std::int64_t>{widths[layer]};
  };
  if (!part.begins()) shapes.input = behind(part.first);
  if (!part.ends()) shapes.output = behind(part.last);
  return shapes;
}

// One answer a row: a picture's, or a character's.
torch::Tensor answers(const torch::Tensor& scores) { return scores.reshape({-1, scores.size(-1)}); }

terse::interop::TorchStage::Loss loss_of(bool ends) {
  if (!ends) return nullptr;
  return [](const torch::Tensor& scores, const torch::Tensor& targets) {
    return nn::functional::cross_entropy(answers(scores), targets.reshape({-1}));
  };
}

terse::interop::TorchStageOptions stage_options(const ModelOptions& options) {
  terse::interop::TorchStageOptions made;
  made.recompute = options.recompute;
  made.random = false;
  made.mark = [](terse::Segment& segment) {
    if (segment.name.rfind("classifier", 0) == 0) segment.learning_rate_scale = 10;
  };
  return made;
}

terse::interop::TorchStage make_stage(const ModelOptions& options) {
  check_stage(options);
  if (options.task == Task::glosses) {
    const bert::Sizes& sizes = options.pretrained.sizes;
    bert::Bert model(bert::part_of(options.stage, options.stages, sizes), bert::Glosses::classes, sizes);
    model->load(options.pretrained.floats, at::make_generator<at::CPUGeneratorImpl>(options.seed));
    terse::interop::TorchStageShapes shapes;
    if (!model->begins()) shapes.input = model->shape(bert::Glosses::tokens);
    if (!model->ends()) shapes.output = model->shape(bert::Glosses::tokens);
    return terse::interop::TorchStage(model, std::move(shapes), loss_of(model->ends()),
                                      stage_options(options));
  }
  const Part part = part_of(options);
  return terse::interop::TorchStage(network_of(options.task, part, options.seed),
                                    shapes_of(options.task, part), loss_of(part.ends()),
                                    stage_options(options));
}

}  // namespace

struct Model::Parts {
  explicit Parts(const ModelOptions& options)
      : stage(make_stage(options)), masks(options.task == Task::glosses) {}

  terse::interop::TorchStage stage;
  bool masks;  // whether each stage reads the batch's inputs
  std::vector<float> inputs;
  std::vector<std::int64_t> targets;
};

Model::Model(const ModelOptions& options) : parts_(std::make_unique<Parts>(options)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

terse::index_t Model::input_elements() const { return parts_->stage.input_elements(); }
terse::index_t Model::output_elements() const { return parts_->stage.output_elements(); }

const float* Model::forward(const terse::MicroBatch& micro_batch, const float* input) {
  return parts_->stage.forward(micro_batch, input);
}

const float* Model::backward(const terse::MicroBatch& micro_batch, const float* output_gradient) {
  return parts_->stage.backward(micro_batch, output_gradient);
}
double Model::loss(const terse::MicroBatch& micro_batch) const { return parts_->stage.loss(micro_batch); }

const terse::Layout& Model::layout() const { return parts_->stage.layout(); }
float* Model::parameters() { return parts_->stage.parameters(); }
float* Model::gradients() { return parts_->stage.gradients(); }
void Model::zero_gradients() { parts_->stage.zero_gradients(); }
double Model::square() const { return parts_->stage.square(); }

void Model::take(const terse::Layout& layout, const float* parameters) {
  for (const terse::Segment& mine : this->layout().segments()) {
    const auto& all = layout.segments();
    const auto found = std::find_if(all.begin(), all.end(), [&](const terse::Segment& segment) {
      return segment.name == mine.name && segment.shape == mine.shape;
    });
    if (found == all.end())
      throw std::invalid_argument("the parameter '" + mine.name + "' isn't in the arena to take it from");
    std::copy_n(parameters + found->offset, found->count, this->parameters() + mine.offset);
  }
}

void Model::set_batch(const Examples& examples, const std::uint64_t* ids, std::int64_t rows) {
  for (std::int64_t r = 0; r < rows; ++r)
    if (ids[r] >= static_cast<std::uint64_t>(examples.count))
      throw std::out_of_range("there is no example " + std::to_string(ids[r]) + " of " +
                              std::to_string(examples.count));
  const auto gather = [&](const auto& from, auto& to, std::int64_t each) {
    to.resize(static_cast<std::size_t>(rows * each));
    for (std::int64_t r = 0; r < rows; ++r)
      std::copy_n(from.data() + static_cast<std::int64_t>(ids[r]) * each, each, to.data() + r * each);
  };
  torch::Tensor inputs, targets;
  if (parts_->stage.first() || parts_->masks) {
    gather(examples.inputs, parts_->inputs, examples.input_width);
    inputs = torch::from_blob(parts_->inputs.data(), {rows, examples.input_width}, torch::kFloat32);
  }
  if (parts_->stage.last()) {
    gather(examples.targets, parts_->targets, examples.target_width);
    targets = torch::from_blob(parts_->targets.data(), {rows, examples.target_width}, torch::kInt64);
  }
  parts_->stage.batch(inputs, targets);
}

Score Model::score() const {
  const torch::Tensor scores = parts_->stage.scores();
  if (!scores.defined()) return {};
  const auto asked = static_cast<std::int64_t>(parts_->targets.size());
  const torch::Tensor truth = torch::from_blob(parts_->targets.data(), {asked}, torch::kInt64);
  return {answers(scores).argmax(1).eq(truth).sum().item<std::int64_t>(), asked};
}

}  // namespace pipeline
