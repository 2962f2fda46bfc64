// SPDX-License-Identifier: Apache-2.0
#include "dense_optimizers.hpp"

namespace train {

template std::unique_ptr<AnyOptimizer> make_dense_optimizer(Optimizer, const Options&, OnHost&,
                                                            const terse::Layout&);

}  // namespace train
