// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "../../examples/gpt/block.hpp"
#include "model.hpp"

// Alone in this unit, and C++17, since LibTorch takes long to compile and Debian's is no C++20.

namespace {

namespace nn = torch::nn;

constexpr std::int64_t pixels = 784, classes = 10, symbols = 96, characters = 64, heads = 4;

nn::Sequential perceptron(int hidden) {
  const std::vector<std::int64_t> widths = {pixels, hidden, hidden, hidden, classes};
  nn::Sequential layers;
  for (std::size_t k = 0; k + 1 < widths.size(); ++k) {
    if (k > 0) layers->push_back(nn::ReLU());
    layers->push_back(nn::Linear(widths[k], widths[k + 1]));
  }
  return layers;
}

// Modules are made in the order in which ddp.py makes them, and so draw the same numbers.
struct EmbeddingsImpl : nn::Module {
  explicit EmbeddingsImpl(std::int64_t width) {
    words = register_module("words", nn::Embedding(symbols, width));
    places = register_parameter("places", 0.02 * torch::randn({characters, width}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return words(x.to(torch::kInt64)) + places; }

  nn::Embedding words{nullptr};
  torch::Tensor places;
};
TORCH_MODULE(Embeddings);

nn::Sequential transformer(int width) {
  nn::Sequential layers;
  layers->push_back(Embeddings(width));
  for (int block = 0; block < 4; ++block) layers->push_back(gpt::Block(width, heads, characters));
  layers->push_back(nn::LayerNorm(nn::LayerNormOptions({width})));
  layers->push_back(nn::Linear(width, symbols));
  return layers;
}

class Network : public Model {
 public:
  Network(nn::Sequential layers, torch::Tensor inputs, torch::Tensor targets)
      : layers_(std::move(layers)), inputs_(std::move(inputs)), targets_(std::move(targets)) {
    for (const torch::Tensor& parameter : layers_->parameters())
      initial_.push_back(parameter.detach().clone());
  }
  std::vector<std::vector<std::int64_t>> shapes() const override {
    std::vector<std::vector<std::int64_t>> shapes;
    for (const torch::Tensor& parameter : layers_->parameters()) shapes.push_back(parameter.sizes().vec());
    return shapes;
  }
  void begin(float* x, const Offsets& offsets) override {
    for (std::size_t k = 0; k < initial_.size(); ++k)
      torch::from_blob(x + offsets[k], initial_[k].sizes()).copy_(initial_[k]);
  }
  void take(const float* inputs, const std::int64_t* targets) override {
    inputs_.copy_(torch::from_blob(const_cast<float*>(inputs), inputs_.sizes()));
    targets_.copy_(torch::from_blob(const_cast<std::int64_t*>(targets), targets_.sizes(), torch::kInt64));
  }
  std::int64_t inputs() const override { return inputs_[0].numel(); }
  std::int64_t targets() const override { return targets_[0].numel(); }
  double gradient(const float* x, float* g, const Offsets& offsets,
                  const std::function<void(std::int64_t)>& ready) override {
    ready_ = ready;
    if (x != x_ || g != g_) adopt(x, g, offsets);
    for (torch::Tensor& gradient : gradients_) gradient.zero_();
    // Of each character, where an example has many.
    const torch::Tensor found = layers_->forward(inputs_);
    const torch::Tensor loss = nn::functional::cross_entropy(found.flatten(0, -2), targets_.flatten());
    loss.backward();
    return loss.item<double>();
  }

 private:
  struct Hook : torch::autograd::FunctionPostHook {
    Hook(const std::function<void(std::int64_t)>& ready_, std::int64_t k_) : ready(ready_), k(k_) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) override {
      ready(k);
      return outputs;
    }
    const std::function<void(std::int64_t)>& ready;
    std::int64_t k;
  };

  // Parameters and gradients are views of the arenas from here on.
  void adopt(const float* x, float* g, const Offsets& offsets) {
    gradients_.clear();
    accumulators_.clear();
    std::size_t k = 0;
    for (torch::Tensor& parameter : layers_->parameters()) {
      parameter.set_data(torch::from_blob(const_cast<float*>(x) + offsets[k], parameter.sizes()));
      gradients_.push_back(torch::from_blob(g + offsets[k++], parameter.sizes()));
      parameter.mutable_grad() = gradients_.back();
      accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameter));
      accumulators_.back()->add_post_hook(std::make_unique<Hook>(ready_, static_cast<std::int64_t>(k) - 1));
    }
    x_ = x;
    g_ = g;
  }

  nn::Sequential layers_;
  torch::Tensor inputs_, targets_;
  std::vector<torch::Tensor> initial_, gradients_;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  std::function<void(std::int64_t)> ready_;
  const float* x_ = nullptr;
  float* g_ = nullptr;
};

}  // namespace

const bool real_model = true;
std::unique_ptr<Model> make_model(const std::string& name, int batch, int rank) {
  torch::set_num_threads(1);
  torch::manual_seed(0);
  const std::string kind = name.substr(0, name.find('/'));
  const int width = kind == name ? 0 : std::atoi(name.c_str() + kind.size() + 1);
  if ((kind != "perceptron" && kind != "transformer") || width < 1 ||
      (kind == "transformer" && width % heads != 0))
    throw std::invalid_argument("'" + name +
                                "' is no model; perceptron/512 and transformer/128 are, whose width is a "
                                "multiple of 4");
  nn::Sequential layers = kind == "perceptron" ? perceptron(width) : transformer(width);
  torch::manual_seed(rank);
  if (kind == "perceptron")
    return std::make_unique<Network>(layers, torch::rand({batch, pixels}), torch::randint(classes, {batch}));
  return std::make_unique<Network>(layers, torch::randint(symbols, {batch, characters}).to(torch::kFloat),
                                   torch::randint(symbols, {batch, characters}));
}
