// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include "model.hpp"

// Alone in this unit, and C++17, since LibTorch takes long to compile and Debian's is no C++20.

namespace {

class Perceptron : public Model {
 public:
  Perceptron(int hidden, int batch, int rank) {
    torch::set_num_threads(1);
    torch::manual_seed(0);
    const std::vector<int> widths = {784, hidden, hidden, hidden, 10};
    for (std::size_t k = 0; k + 1 < widths.size(); ++k) {
      if (k > 0) layers_->push_back(torch::nn::ReLU());
      layers_->push_back(torch::nn::Linear(widths[k], widths[k + 1]));
    }
    for (const torch::Tensor& parameter : layers_->parameters())
      initial_.push_back(parameter.detach().clone());
    torch::manual_seed(rank);
    images_ = torch::rand({batch, 784});
    labels_ = torch::randint(10, {batch});
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
  void take(const float* images, const std::int64_t* labels) override {
    images_.copy_(torch::from_blob(const_cast<float*>(images), images_.sizes()));
    labels_.copy_(torch::from_blob(const_cast<std::int64_t*>(labels), labels_.sizes(), torch::kInt64));
  }
  double gradient(const float* x, float* g, const Offsets& offsets,
                  const std::function<void(std::int64_t)>& ready) override {
    ready_ = ready;
    if (x != x_ || g != g_) adopt(x, g, offsets);
    for (torch::Tensor& gradient : gradients_) gradient.zero_();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(layers_->forward(images_), labels_);
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

  torch::nn::Sequential layers_;
  torch::Tensor images_, labels_;
  std::vector<torch::Tensor> initial_, gradients_;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  std::function<void(std::int64_t)> ready_;
  const float* x_ = nullptr;
  float* g_ = nullptr;
};

}  // namespace

const bool real_model = true;
std::unique_ptr<Model> make_model(int hidden, int batch, int rank) {
  return std::make_unique<Perceptron>(hidden, batch, rank);
}
