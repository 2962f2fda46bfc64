// SPDX-License-Identifier: Apache-2.0
#include "quantized_optimizers.hpp"

namespace train {

template std::unique_ptr<AnyOptimizer> make_quantized_optimizer(Optimizer, const Options&, OnHost&,
                                                                const terse::Layout&);

}  // namespace train
