// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <cmath>

#include "baseline.hpp"

namespace terse::bench {
namespace {

/// One bit an element on one thread, by the operations that DeepSpeed's 1-bit Adam calls.
class LibtorchOneBit final : public Baseline {
 public:
  explicit LibtorchOneBit(std::ptrdiff_t n) : error_(torch::zeros({n})) { torch::set_num_threads(1); }

  void encode(const float* message) override {
    const torch::NoGradGuard guard;
    const auto y = torch::from_blob(const_cast<float*>(message), error_.sizes()) + error_;
    scale_ = torch::norm(y) / std::sqrt(static_cast<double>(y.numel()));
    error_.set_(y - scale_ * y.sign().add_(1).to(torch::kBool).to(torch::kFloat).add_(-0.5).mul_(2));
    const auto powers = torch::tensor({1, 2, 4, 8, 16, 32, 64, 128}, torch::kUInt8);
    bits_ = y.ge(0).to(torch::kUInt8).view({-1, 8}).mul(powers).sum(1, false, torch::kUInt8);
  }
  void accumulate(float* x, float rate) override {
    const torch::NoGradGuard guard;
    const auto shifts = torch::arange(8, torch::kUInt8);
    const auto unpacked = bits_.unsqueeze(1).bitwise_right_shift(shifts).bitwise_and_(1).view({-1});
    const auto decoded = unpacked.to(torch::kFloat).add_(-0.5).mul_(2).mul_(scale_);
    torch::from_blob(x, error_.sizes()).add_(decoded, -rate);
  }
  std::ptrdiff_t bytes() const override { return bits_.numel() + 4; }

 private:
  torch::Tensor error_, scale_, bits_;
};

}  // namespace

BaselineMaker libtorch_one_bit() {
  return [](std::ptrdiff_t n) -> std::unique_ptr<Baseline> { return std::make_unique<LibtorchOneBit>(n); };
}

}  // namespace terse::bench
