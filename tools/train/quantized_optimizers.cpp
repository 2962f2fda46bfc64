// SPDX-License-Identifier: Apache-2.0
#include "quantized_optimizers.hpp"

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

}  // namespace train
