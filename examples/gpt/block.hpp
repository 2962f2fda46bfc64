// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>

// C++17, since Debian's LibTorch is no C++20.

namespace gpt {

/// A transformer's block, normalized before each half: x + attention(x), of tokens to themselves and those before them, then
/// x + narrow(gelu(wide(x))). x is {rows, tokens, width}, with at most `length` tokens.
struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t width, std::int64_t heads_, std::int64_t length) : heads(heads_) {
    namespace nn = torch::nn;
    before_attention = register_module("before_attention", nn::LayerNorm(nn::LayerNormOptions({width})));
    queries_keys_values = register_module("queries_keys_values", nn::Linear(width, 3 * width));
    attended = register_module("attended", nn::Linear(width, width));
    before_wide = register_module("before_wide", nn::LayerNorm(nn::LayerNormOptions({width})));
    wide = register_module("wide", nn::Linear(width, 4 * width));
    narrow = register_module("narrow", nn::Linear(4 * width, width));
    // Large negative numbers, where a token would see later ones.
    future = register_buffer("future", torch::full({length, length}, -1e9F).triu(1));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const std::int64_t rows = x.size(0), length = x.size(1), width = x.size(2), each = width / heads;
    const torch::Tensor all = queries_keys_values(before_attention(x))
                                  .view({rows, length, 3, heads, each})
                                  .permute({2, 0, 3, 1, 4});
    const double scale = 1 / std::sqrt(static_cast<double>(each));
    const torch::Tensor later = future.narrow(0, 0, length).narrow(1, 0, length);
    const torch::Tensor weights = (all[0].matmul(all[1].transpose(-1, -2)) * scale + later).softmax(-1);
    const torch::Tensor h =
        x + attended(weights.matmul(all[2]).transpose(1, 2).reshape({rows, length, width}));
    return h + narrow(torch::gelu(wide(before_wide(h))));
  }

  std::int64_t heads;
  torch::nn::LayerNorm before_attention{nullptr}, before_wide{nullptr};
  torch::nn::Linear queries_keys_values{nullptr}, attended{nullptr}, wide{nullptr}, narrow{nullptr};
  torch::Tensor future;
};
TORCH_MODULE(Block);

}  // namespace gpt
