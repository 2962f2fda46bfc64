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

std::unique_ptr<Workshop> make_cuda_workshop(DeviceTransport transport, const terse::Traffic& traffic,
                                             void* stream) {
  const terse::executor::cuda executor{static_cast<cudaStream_t>(stream)};
  return std::make_unique<TheWorkshop<OnCuda>>(OnCuda{{std::move(transport), executor}}, traffic);
}

std::unique_ptr<Workshop> make_cuda_workshop(terse::AnyTransport transport, void* stream) {
  const terse::executor::cuda executor{static_cast<cudaStream_t>(stream)};
  // Below the copies to and from the GPU, so that seconds of communication are those of the messages alone.
  terse::Metered<terse::AnyTransport> metered(std::move(transport));
  const terse::Traffic& traffic = metered.traffic();
  return make_cuda_workshop(DeviceTransport(terse::ThroughHost(std::move(metered), executor)), traffic,
                            stream);
}

}  // namespace train
