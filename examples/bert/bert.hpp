// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "sizes.hpp"

// BERT in LibTorch, cut into stages. Like interop/libtorch_stage.hpp this keeps to C++17.

namespace bert {

namespace nn = torch::nn;
using torch::Tensor;

/// The layers [first, last) of a model; the part with the first has the embeddings, that with the last the classifier.
struct Part {
  std::int64_t first = 0, last = 6;
};

/// One of `stages` parts. Embeddings and classifier take less time than a layer, so that of 4 parts the ends have one layer
/// each and the others two.
inline Part part_of(int stage, int stages, const Sizes& sizes = {}) {
  if (sizes.layers < stages)
    throw std::invalid_argument("a model of " + std::to_string(sizes.layers) + " layers can't be cut into " +
                                std::to_string(stages) + " stages");
  const auto cut = [&](int s) {
    return static_cast<std::int64_t>(
        std::floor(static_cast<double>(sizes.layers * s) / stages + (s * 2 > stages ? 0.5 : 0)));
  };
  return {cut(stage), cut(stage + 1)};
}

/// One layer: self-attention over the tokens that are no padding, then two dense layers, each with its residual.
class LayerImpl : public nn::Module {
 public:
  explicit LayerImpl(const Sizes& sizes) : heads_(sizes.heads) {
    const auto normalized = nn::LayerNormOptions({sizes.width}).eps(sizes.epsilon);
    const auto group = [](nn::Module& in, const char* name) {
      return in.register_module(name, std::make_shared<nn::Module>());
    };
    // Named as in the files that other libraries write.
    const auto attention = group(*this, "attention"), self = group(*attention, "self"),
               attended = group(*attention, "output"), inner = group(*this, "intermediate"),
               output = group(*this, "output");
    query_ = self->register_module("query", nn::Linear(sizes.width, sizes.width));
    key_ = self->register_module("key", nn::Linear(sizes.width, sizes.width));
    value_ = self->register_module("value", nn::Linear(sizes.width, sizes.width));
    attended_ = attended->register_module("dense", nn::Linear(sizes.width, sizes.width));
    attended_norm_ = attended->register_module("LayerNorm", nn::LayerNorm(normalized));
    inner_ = inner->register_module("dense", nn::Linear(sizes.width, sizes.inner));
    output_ = output->register_module("dense", nn::Linear(sizes.inner, sizes.width));
    output_norm_ = output->register_module("LayerNorm", nn::LayerNorm(normalized));
  }
  /// x is rows x tokens x width; `shut` is rows x 1 x 1 x tokens, 0 or, at padding, a number that no weight outlives.
  Tensor forward(const Tensor& x, const Tensor& shut) {
    const std::int64_t rows = x.size(0), tokens = x.size(1), width = x.size(2);
    const auto by_head = [&](const Tensor& y) {
      return y.view({rows, tokens, heads_, width / heads_}).transpose(1, 2);
    };
    const double scale = 1 / std::sqrt(static_cast<double>(width / heads_));
    const Tensor weights =
        (by_head(query_(x)).matmul(by_head(key_(x)).transpose(-1, -2)) * scale + shut).softmax(-1);
    const Tensor seen = weights.matmul(by_head(value_(x))).transpose(1, 2).reshape({rows, tokens, width});
    const Tensor h = attended_norm_(x + attended_(seen));
    return output_norm_(h + output_(torch::gelu(inner_(h))));
  }

 private:
  std::int64_t heads_;
  nn::Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, attended_{nullptr}, inner_{nullptr},
      output_{nullptr};
  nn::LayerNorm attended_norm_{nullptr}, output_norm_{nullptr};
};
TORCH_MODULE(Layer);

/// A part of BERT with a classifier of `classes` classes over the mean of a text's tokens. The table of word pieces is
/// frozen: its gradient is dense, so that a step over it takes longer than the rest of the stage.
class BertImpl : public nn::Module {
 public:
  BertImpl(const Part& part, std::int64_t classes, const Sizes& sizes = {}) : sizes_(sizes), part_(part) {
    if (part.first == 0) {
      const auto embeddings = register_module("embeddings", std::make_shared<nn::Module>());
      words_ = embeddings->register_module("word_embeddings", nn::Embedding(sizes.vocabulary, sizes.width));
      words_->weight.requires_grad_(false);
      positions_ =
          embeddings->register_module("position_embeddings", nn::Embedding(sizes.positions, sizes.width));
      types_ = embeddings->register_module("token_type_embeddings", nn::Embedding(sizes.types, sizes.width));
      norm_ = embeddings->register_module(
          "LayerNorm", nn::LayerNorm(nn::LayerNormOptions({sizes.width}).eps(sizes.epsilon)));
    }
    const auto encoder = register_module("encoder", std::make_shared<nn::Module>());
    const auto layers = encoder->register_module("layer", std::make_shared<nn::Module>());
    for (std::int64_t l = part.first; l < part.last; ++l)
      layers_.push_back(layers->register_module(std::to_string(l), Layer(sizes)));
    if (part.last == sizes.layers)
      classifier_ = register_module("classifier", nn::Linear(sizes.width, classes));
  }

  /// The activations of the part before, and the batch's rows of word pieces, which the first part reads alone.
  Tensor forward(const Tensor& x, const Tensor& pieces) {
    const Tensor there = pieces.ne(0);
    const Tensor shut = there.logical_not().view({pieces.size(0), 1, 1, -1}).to(torch::kFloat32) * -1e9;
    Tensor h = x;
    if (!words_.is_empty()) {
      const Tensor places = torch::arange(pieces.size(1), torch::kInt64);
      h = norm_(words_(pieces.to(torch::kInt64)) + positions_(places) + types_(torch::zeros_like(places)));
    }
    for (Layer& layer : layers_) h = layer(h, shut);
    if (classifier_.is_empty()) return h;
    return classifier_(mean(h, there));
  }

  /// The mean over a text's tokens.
  static Tensor mean(const Tensor& h, const Tensor& there) {
    const Tensor weights = there.to(torch::kFloat32).unsqueeze(-1);
    return (h * weights).sum(1) / weights.sum(1);
  }

  /// Elements of an activation between two parts: tokens x width.
  std::vector<std::int64_t> shape(std::int64_t tokens) const { return {tokens, sizes_.width}; }
  bool begins() const { return part_.first == 0; }
  bool ends() const { return part_.last == sizes_.layers; }

  /// Fills the parameters: `floats(name, shape)` returns the elements of one. A classifier for which it returns nullptr
  /// begins with small values by `generator`.
  template <class Floats>
  void load(const Floats& floats, at::Generator generator) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : named_parameters()) {
      const std::string& name = parameter.key();
      Tensor& to = parameter.value();
      const float* const from = floats(name, to.sizes().vec());
      if (from != nullptr)
        to.copy_(torch::from_blob(const_cast<float*>(from), to.sizes()));
      else if (to.dim() == 1)
        to.zero_();
      else
        to.normal_(0, 0.02, generator);
    }
  }

 private:
  Sizes sizes_;
  Part part_;
  nn::Embedding words_{nullptr}, positions_{nullptr}, types_{nullptr};
  nn::LayerNorm norm_{nullptr};
  std::vector<Layer> layers_;
  nn::Linear classifier_{nullptr};
};
TORCH_MODULE(Bert);

}  // namespace bert
