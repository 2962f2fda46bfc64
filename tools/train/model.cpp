// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <dlfcn.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "terse/interop/libtorch.hpp"
#ifdef TRAIN_HAVE_CUDA
#include "terse/interop/libtorch_cuda.hpp"
#endif

// The only unit of the program that knows LibTorch. It keeps to C++17, as headers of older LibTorchs do.

namespace train {
namespace {

constexpr std::int64_t side = 28;
constexpr std::int64_t pixels = side * side;
constexpr std::int64_t classes = 10;
constexpr std::int64_t at_once = 250;  // pictures in one pass of an evaluation; more would leave the caches

class Network : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(const torch::Tensor& images) = 0;
};

class Mlp final : public Network {
 public:
  Mlp() {
    first_ = register_module("first", torch::nn::Linear(pixels, 256));
    second_ = register_module("second", torch::nn::Linear(256, 128));
    last_ = register_module("last", torch::nn::Linear(128, classes));
  }
  torch::Tensor forward(const torch::Tensor& images) override {
    return last_(torch::relu(second_(torch::relu(first_(images)))));
  }

 private:
  torch::nn::Linear first_{nullptr}, second_{nullptr}, last_{nullptr};
};

// Strides instead of pooling: LibTorch's pooling on the CPU costs more than the convolutions around it.
class Cnn final : public Network {
 public:
  Cnn() {
    first_ = register_module("first", convolution(1, 16, 5));
    second_ = register_module("second", convolution(16, 32, 3));
    third_ = register_module("third", torch::nn::Linear(32 * 7 * 7, 64));
    last_ = register_module("last", torch::nn::Linear(64, classes));
  }
  torch::Tensor forward(const torch::Tensor& images) override {
    const torch::Tensor coarse = torch::relu(first_(images.view({-1, 1, side, side})));
    const torch::Tensor coarser = torch::relu(second_(coarse));
    return last_(torch::relu(third_(coarser.flatten(1))));
  }

 private:
  static torch::nn::Conv2d convolution(std::int64_t from, std::int64_t to, std::int64_t width) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, width).padding(width / 2).stride(2));
  }
  torch::nn::Conv2d first_{nullptr}, second_{nullptr};
  torch::nn::Linear third_{nullptr}, last_{nullptr};
};

std::unique_ptr<Network> make_network(const std::string& kind) {
  if (kind == "mlp") return std::make_unique<Mlp>();
  if (kind == "cnn") return std::make_unique<Cnn>();
  throw std::invalid_argument("there is no model '" + kind + "'; there are mlp and cnn");
}

// LibTorch's own initialization draws from a generator of the whole process, which ranks in threads share in
// no fixed order. This one draws alike from a generator of its own.
void initialize(Network& network, std::uint64_t seed) {
  torch::NoGradGuard no_grad;
  torch::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const auto& layer : network.named_children()) {
    const auto parameters = layer.value()->named_parameters();
    const torch::Tensor& weight = parameters["weight"];
    const double inputs = static_cast<double>(weight.numel() / weight.size(0));
    const double bound = 1 / std::sqrt(inputs);
    for (const auto& parameter : parameters) parameter.value().uniform_(-bound, bound, generator);
  }
}

// LibTorch has no read-only tensors; these are only read.
torch::Tensor pictures_at(const float* images, std::int64_t count) {
  return torch::from_blob(const_cast<float*>(images), {count, pixels}, torch::kFloat32);
}
torch::Tensor labels_at(const std::int64_t* labels, std::int64_t count) {
  return torch::from_blob(const_cast<std::int64_t*>(labels), {count}, torch::kInt64);
}

// The thread's GPU: LibTorch takes its current one where a device has no number.
torch::Device place_of(Device device) { return device == Device::cuda ? torch::kCUDA : torch::kCPU; }

template <class Function>
Function* find_symbol(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

struct Model::Parts {
  Parts(const std::string& kind, std::uint64_t seed, Device device)
      : network(make_network(kind)), flat(prepare(*network, seed, device)) {}

  // Drawn on the CPU, so that all devices begin alike.
  static terse::interop::FlatModule prepare(Network& network, std::uint64_t seed, Device device) {
    initialize(network, seed);
    if (device != Device::cpu) network.to(place_of(device));
    return terse::interop::FlatModule(network);
  }

  // Nothing is copied on the CPU.
  torch::Tensor here(const torch::Tensor& tensor) const { return tensor.to(flat.device()); }
  torch::Tensor all_parameters() {
    return torch::from_blob(flat.parameters(), {flat.size()},
                            torch::TensorOptions().dtype(torch::kFloat32).device(flat.device()));
  }

  std::unique_ptr<Network> network;
  terse::interop::FlatModule flat;
};

Model::Model(const std::string& kind, std::uint64_t seed, Device device)
    : parts_(std::make_unique<Parts>(kind, seed, device)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

const terse::Layout& Model::layout() const { return parts_->flat.layout(); }
float* Model::parameters() { return parts_->flat.parameters(); }
float* Model::gradients() { return parts_->flat.gradients(); }
void Model::zero_gradients() { parts_->flat.zero_gradients(); }

void Model::read_parameters(float* to) {
  torch::NoGradGuard no_grad;
  torch::from_blob(to, {parts_->flat.size()}, torch::kFloat32).copy_(parts_->all_parameters());
}
void Model::write_parameters(const float* from) {
  torch::NoGradGuard no_grad;
  parts_->all_parameters().copy_(
      torch::from_blob(const_cast<float*>(from), {parts_->flat.size()}, torch::kFloat32));
}

double Model::train_batch(const float* images, const std::int64_t* labels, std::int64_t batch,
                          double weight) {
  parts_->flat.zero_gradients();
  const torch::Tensor scores = parts_->network->forward(parts_->here(pictures_at(images, batch)));
  const torch::Tensor loss =
      torch::nn::functional::cross_entropy(scores, parts_->here(labels_at(labels, batch)));
  loss.backward(torch::full_like(loss, weight));
  parts_->flat.check_gradients();
  return loss.item<double>();
}

Evaluation Model::evaluate(const float* images, const std::int64_t* labels, std::int64_t count) {
  torch::NoGradGuard no_grad;
  Evaluation sum;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t some = std::min(at_once, count - done);
    const torch::Tensor truth = parts_->here(labels_at(labels + done, some));
    const torch::Tensor scores =
        parts_->network->forward(parts_->here(pictures_at(images + done * pixels, some)));
    sum.loss +=
        torch::nn::functional::cross_entropy(scores, truth).item<double>() * static_cast<double>(some);
    sum.accuracy += static_cast<double>(scores.argmax(1).eq(truth).sum().item<std::int64_t>());
    done += some;
  }
  if (count > 0) {
    sum.loss /= static_cast<double>(count);
    sum.accuracy /= static_cast<double>(count);
  }
  return sum;
}

void Model::pin_threads() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Throws if the pool has begun to work; then some other part of the program has made the choice.
    try {
      at::set_num_interop_threads(1);
    } catch (const c10::Error&) {
    }
    // OpenBLAS is found by name, as it is but one of the libraries that may stand behind libblas.
    if (auto* set = find_symbol<void(int)>("openblas_set_num_threads")) set(1);
  });
  at::set_num_threads(1);
}

std::string Model::blas() {
  if (at::hasMKL()) return "MKL";
  auto* describe = find_symbol<char*()>("openblas_get_config");
  return describe ? describe() : "";
}

#ifdef TRAIN_HAVE_CUDA

std::string Model::why_not(Device device) {
  if (device == Device::cpu) return "";
  try {
    c10::cuda::device_count_ensure_non_zero();
  } catch (const c10::Error& fault) {
    const std::string words = fault.what_without_backtrace();
    return "LibTorch finds no GPU: " + words.substr(0, words.find('\n'));
  }
  return at::globalContext().hasCUDA() ? "" : "libtorch_cuda isn't loaded";
}

void Model::use_gpu(int index) {
  const auto gpu = static_cast<c10::DeviceIndex>(index % c10::cuda::device_count());
  c10::cuda::set_device(gpu);
  // Of the default stream there is but one, in whose order ranks that are threads would wait for each other.
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool(false, gpu));
  // Sums in an order of their own each time would give another run the same seed in vain.
  at::globalContext().setDeterministicCuDNN(true);
}

void* Model::stream() const {
  return parts_->flat.device().is_cpu() ? nullptr : terse::interop::current_stream(parts_->flat);
}

#else

std::string Model::why_not(Device device) {
  return device == Device::cpu ? ""
                               : "this program was built without CUDA: there was no " TRAIN_WITHOUT
                                 "; see docs/libtorch.md";
}
void Model::use_gpu(int) {}
void* Model::stream() const { return nullptr; }

#endif

}  // namespace train
