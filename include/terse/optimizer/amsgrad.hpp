// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/sign.hpp"
#include "terse/momentum_correction/averaged.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

namespace recipes {

/// Amsgrad or CompAms; `Corrects` is the default of bias_correction.
template <bool Corrects>
struct AmsgradWith {
  template <class C, class F, class T>
  struct Of {
    float learning_rate = 1e-3F;      ///< step size; may change between steps
    float beta1 = 0.9F;               ///< decay rate of the momentum; in [0, 1)
    float beta2 = 0.999F;             ///< decay rate of the variance; in [0, 1)
    float epsilon = 1e-8F;            ///< added to the denominator, outside the root
    float weight_decay = 0;           ///< coefficient, decoupled from the gradient
    bool bias_correction = Corrects;  ///< true for Adam's bias correction
    std::uint64_t warmup_steps = 0;   ///< number of first steps in full precision
    C compressor{};                   ///< compressor of the messages
    F error_feedback{};               ///< handling of the compression error
    T topology{};                     ///< communication pattern between ranks

    auto composition() const {
      return averaging_of(*this, ExponentialAverage{beta1, bias_correction},
                          AmsgradVariance{beta2, epsilon, bias_correction});
    }
  };
};

}  // namespace recipes

/// AMSGrad: Adam over the largest variance so far, with decoupled weight decay. g is the mean gradient:
///
///     m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2          w = max(w, v)
///     x = x - learning_rate (m / (1 - beta1^t) / (sqrt(w / (1 - beta2^t)) + epsilon) + weight_decay x)
///
/// This is PyTorch's AdamW with amsgrad. The paper has no bias correction:
///
///     Amsgrad<>{.bias_correction = false}
///
/// State: 3 n floats. Wire: as Adam. Source: Reddi, Kale and Kumar, "On the convergence of Adam and beyond", ICLR 2018,
/// algorithm 2; torch.optim.AdamW.
template <class... Ps>
using Amsgrad = Sorted<recipes::AmsgradWith<true>::template Of, TakesMeans, Policies<>, Ps...>;

/// CompAMS: AMSGrad on the mean of compressed gradients, with error feedback and, as in its paper, without bias correction.
/// Source: Li, Karimi and Li, "On distributed adaptive optimization with gradient compression", ICLR 2022, algorithm 2.
template <class... Ps>
using CompAms = Sorted<recipes::AmsgradWith<false>::template Of, TakesMeans,
                       Policies<ScaledSign<MeanAbs>, Residual, AllGather>, Ps...>;

}  // namespace terse
