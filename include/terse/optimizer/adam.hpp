// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/averaged.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

namespace recipes {

/// The hyper-parameters and policies of Adam.
template <class C, class F, class T>
struct AdamOf {
  float learning_rate = 1e-3F;     ///< step size; may change between steps
  float beta1 = 0.9F;              ///< decay rate of the momentum; in [0, 1)
  float beta2 = 0.999F;            ///< decay rate of the variance; in [0, 1)
  float epsilon = 1e-8F;           ///< added to the denominator, outside the root
  float weight_decay = 0;          ///< coefficient, decoupled from the gradient
  bool bias_correction = true;     ///< true for Adam's bias correction
  std::uint64_t warmup_steps = 0;  ///< number of first steps in full precision
  C compressor{};                  ///< compressor of the messages
  F error_feedback{};              ///< handling of the compression error
  T topology{};                    ///< communication pattern between ranks

  auto composition() const {
    return averaging_of(*this, ExponentialAverage{beta1, bias_correction},
                        AdamVariance{beta2, epsilon, bias_correction});
  }
};

}  // namespace recipes

/// Adam on the mean gradient g, with decoupled weight decay (AdamW):
///
///     m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
///     x = x - learning_rate (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay x)
///
/// Cost: one pass over n to send, one over n / W on a chunk's owner, one over n to update. Sends 2 (W - 1) / W * 4 n bytes
/// and 32 per message. State: 2 n floats. With a compressor g is the mean of the compressed gradients: see AveragingOf.
/// Source: Kingma and Ba, ICLR 2015; Loshchilov and Hutter, ICLR 2019.
template <class... Ps>
using Adam = Sorted<recipes::AdamOf, TakesMeans, Policies<>, Ps...>;

/// Another name of Adam, whose weight decay is already decoupled. Source: Loshchilov and Hutter, "Decoupled weight decay
/// regularization", ICLR 2019, algorithm 2.
template <class... Ps>
using AdamW = Adam<Ps...>;

}  // namespace terse
