// SPDX-License-Identifier: Apache-2.0
#include "cuda_place.cuh"
#include "cuda_workshop.hpp"
#include "dense_optimizers.hpp"
#include "quantized_optimizers.hpp"

namespace train {

template std::unique_ptr<AnyOptimizer> make_dense_optimizer(Optimizer, const Options&, OnCuda&,
                                                            const terse::Layout&);
template std::unique_ptr<AnyOptimizer> make_quantized_optimizer(Optimizer, const Options&, OnCuda&,
                                                                const terse::Layout&);

std::unique_ptr<Workshop> make_cuda_workshop(terse::AnyTransport transport, void* stream) {
  const terse::executor::cuda executor{static_cast<cudaStream_t>(stream)};
  terse::Metered<terse::AnyTransport> metered(std::move(transport));
  const terse::Traffic& traffic = metered.traffic();
  return std::make_unique<TheWorkshop<OnCuda>>(OnCuda{{std::move(metered), executor}, executor}, traffic);
}

}  // namespace train
