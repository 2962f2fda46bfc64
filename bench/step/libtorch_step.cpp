// SPDX-License-Identifier: Apache-2.0
#include "libtorch_step.hpp"

#include <torch/torch.h>

namespace terse::bench {

struct LibtorchStep::Tensors {
  torch::Tensor m, d, g, x, error, powers, shifts;
};

LibtorchStep::LibtorchStep(std::ptrdiff_t n, const float* m, const float* d, const float* g, float* x)
    : tensors_(std::make_unique<Tensors>()) {
  torch::set_num_threads(1);
  const auto wrap = [&](const float* data) { return torch::from_blob(const_cast<float*>(data), {n}); };
  *tensors_ = {wrap(m).clone(),
               wrap(d),
               wrap(g),
               wrap(x),
               torch::zeros({n}),
               torch::tensor({1, 2, 4, 8, 16, 32, 64, 128}, torch::kUInt8),
               torch::arange(8, torch::kUInt8)};
}
LibtorchStep::~LibtorchStep() = default;

bool LibtorchStep::available() const { return true; }

void LibtorchStep::local() {
  const torch::NoGradGuard guard;
  auto& [m, d, g, x, error, powers, shifts] = *tensors_;
  m.mul_(0.9).add_(g, 0.1);
  m.add_(error);
  const auto scale = torch::norm(m) / std::sqrt(static_cast<double>(m.numel()));
  error.set_(m - scale * m.sign().add_(1).to(torch::kBool).to(torch::kFloat).add_(-0.5).mul_(2));
  const auto bits = m.ge(0).to(torch::kUInt8).view({-1, 8});
  const auto packed = bits.mul(powers).sum(1, false, torch::kUInt8);
  const auto unpacked = packed.unsqueeze(1).bitwise_right_shift(shifts).bitwise_and_(1).view({-1});
  m.copy_(unpacked.to(torch::kFloat).add_(-0.5).mul_(2).mul_(scale));
  x.add_(m * d, -1e-3);
}

}  // namespace terse::bench
