// SPDX-License-Identifier: Apache-2.0
#include "cuda_place.cuh"
#include "cuda_workshop.hpp"
#include "dense_optimizers.hpp"
#include "quantized_optimizers.hpp"

namespace train {

template <>
Made make<struct Adam>(const Order<OnCuda>& order) {
  return make_adam(order);
}
template <>
Made make<struct MomentumSgd>(const Order<OnCuda>& order) {
  return make_momentum_sgd(order);
}
template <>
Made make<struct ErrorFeedbackSgd>(const Order<OnCuda>& order) {
  return make_error_feedback_sgd(order);
}
template <>
Made make<struct DistErrorFeedbackSgd>(const Order<OnCuda>& order) {
  return make_dist_error_feedback_sgd(order);
}
template <>
Made make<struct SignSgd>(const Order<OnCuda>& order) {
  return make_sign_sgd(order);
}
template <>
Made make<struct QuantizedSgd>(const Order<OnCuda>& order) {
  return make_quantized_sgd(order);
}

std::unique_ptr<Workshop> make_cuda_workshop(terse::AnyTransport transport, void* stream) {
  const terse::executor::cuda executor{static_cast<cudaStream_t>(stream)};
  terse::Metered<terse::AnyTransport> metered(std::move(transport));
  const terse::Traffic& traffic = metered.traffic();
  return std::make_unique<TheWorkshop<OnCuda>>(OnCuda{{{std::move(metered), executor}, executor}}, traffic);
}

}  // namespace train
