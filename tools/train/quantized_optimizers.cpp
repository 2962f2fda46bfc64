// SPDX-License-Identifier: Apache-2.0
#include "quantized_optimizers.hpp"

#include "terse/compressor/uniform.hpp"
#include "terse/error_feedback/averaged_residual.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/amsgrad.hpp"

namespace train {

template <>
Made make<struct ErrorFeedbackSgd>(const Order<OnHost>& order) {
  return make_error_feedback_sgd(order);
}
template <>
Made make<struct DistErrorFeedbackSgd>(const Order<OnHost>& order) {
  return make_dist_error_feedback_sgd(order);
}
template <>
Made make<struct SignSgd>(const Order<OnHost>& order) {
  return make_sign_sgd(order);
}
template <>
Made make<struct QuantizedSgd>(const Order<OnHost>& order) {
  return make_quantized_sgd(order);
}
template <>
Made make<struct LoCo>(const Order<OnHost>& order) {
  using Int4 = terse::Uniform<4, terse::Nearest, terse::Symmetric, terse::MaxAbs, terse::PerBlock<128>>;
  return made(order, terse::Adam<Int4, terse::AveragedResidual<>>{
                         .learning_rate = order.rate(),
                         .weight_decay = order.weight_decay(),
                         .error_feedback = {.gain = 0.2F, .clear_every = 512}});
}

template <>
Made make<struct CompAms>(const Order<OnHost>& order) {
  return made(order, terse::CompAms<>{.learning_rate = order.rate(), .weight_decay = order.weight_decay()});
}

}  // namespace train
