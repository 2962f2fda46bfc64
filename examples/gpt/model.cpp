// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <dlfcn.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "block.hpp"
#include "terse/interop/libtorch.hpp"

// The only unit of the program that knows LibTorch, and C++17.

namespace gpt {
namespace {

namespace nn = torch::nn;

struct Transformer : nn::Module {
  explicit Transformer(const Shape& shape) {
    words = register_module("words", nn::Embedding(shape.words, shape.width));
    places = register_module("places", nn::Embedding(shape.length, shape.width));
    for (int k = 0; k < shape.blocks; ++k)
      blocks.push_back(
          register_module("block" + std::to_string(k), Block(shape.width, shape.heads, shape.length)));
    last = register_module("last", nn::LayerNorm(nn::LayerNormOptions({shape.width})));
  }

  /// The same for equal seeds: LibTorch's own initialization draws from a generator that all threads share.
  void initialize(std::uint64_t seed) {
    const torch::NoGradGuard no_grad;
    torch::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    // What each block adds to x has the variance of one such sum in all.
    const double added = 0.02 / std::sqrt(2 * static_cast<double>(blocks.size()));
    for (auto& item : named_parameters()) {
      const bool adds =
          item.key().find("attended") != std::string::npos || item.key().find("narrow") != std::string::npos;
      if (item.value().dim() > 1)
        item.value().normal_(0, adds ? added : 0.02, generator);
      else if (item.key().find("bias") != std::string::npos)
        item.value().zero_();
    }
  }

  /// Of each token of the vocabulary to come next.
  torch::Tensor scores(const torch::Tensor& tokens) {
    const std::int64_t length = tokens.size(1);
    torch::Tensor x = words(tokens) + places->weight.narrow(0, 0, length);
    for (Block& block : blocks) x = block(x);
    return nn::functional::linear(last(x), words->weight);
  }

  nn::Embedding words{nullptr}, places{nullptr};
  std::vector<Block> blocks;
  nn::LayerNorm last{nullptr};
};

/// LibTorch's own call doesn't reach OpenBLAS, whose results depend on its threads in the last bits.
void compute_in_this_thread() {
  torch::set_num_threads(1);
  if (void* set = dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) reinterpret_cast<void (*)(int)>(set)(1);
}

}  // namespace

struct Model::Parts {
  Parts(const Shape& shape_, std::uint64_t seed)
      : shape(shape_), network(shape), flat(start(network, seed)) {}

  static terse::interop::FlatModule start(Transformer& network, std::uint64_t seed) {
    network.initialize(seed);
    return terse::interop::FlatModule(network);
  }

  torch::Tensor loss(const Tokens& windows) {
    const std::int64_t rows = static_cast<std::int64_t>(windows.size()) / shape.window();
    // LibTorch has no read-only tensors; these are only read.
    const torch::Tensor tokens =
        torch::from_blob(const_cast<std::int64_t*>(windows.data()), {rows, shape.window()}, torch::kInt64);
    const torch::Tensor scores = network.scores(tokens.narrow(1, 0, shape.length));
    return nn::functional::cross_entropy(scores.flatten(0, 1), tokens.narrow(1, 1, shape.length).flatten());
  }

  Shape shape;
  Transformer network;
  terse::interop::FlatModule flat;
};

Model::Model(const Shape& shape, std::uint64_t seed) {
  compute_in_this_thread();
  parts_ = std::make_unique<Parts>(shape, seed);
}
Model::~Model() = default;

const terse::Layout& Model::layout() const { return parts_->flat.layout(); }
float* Model::parameters() { return parts_->flat.parameters(); }
const float* Model::gradients() const { return parts_->flat.gradients(); }

double Model::gradient(const Tokens& windows) {
  parts_->flat.zero_gradients();
  const torch::Tensor loss = parts_->loss(windows);
  loss.backward();
  parts_->flat.check_gradients();
  return loss.item<double>();
}

double Model::loss(const Tokens& windows) {
  const torch::NoGradGuard no_grad;
  return parts_->loss(windows).item<double>();
}

void Model::write(Tokens& text, int count, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  torch::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (int k = 0; k < count; ++k) {
    const auto length = std::min<std::int64_t>(parts_->shape.length, static_cast<std::int64_t>(text.size()));
    const torch::Tensor tokens = torch::from_blob(&*(text.end() - length), {1, length}, torch::kInt64);
    const torch::Tensor odds = parts_->network.scores(tokens)[0][length - 1].softmax(0);
    text.push_back(odds.multinomial(1, false, generator).item<std::int64_t>());
  }
}

}  // namespace gpt
