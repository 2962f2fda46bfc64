// SPDX-License-Identifier: Apache-2.0
#include "quantized_optimizers.hpp"

namespace train {

template std::unique_ptr<AnyOptimizer> make_quantized_optimizer(Optimizer, const Options&, OnThreads&,
                                                                const terse::Layout&);
#ifdef TERSE_HAVE_MPI
template std::unique_ptr<AnyOptimizer> make_quantized_optimizer(Optimizer, const Options&, OnMpi&,
                                                                const terse::Layout&);
#endif

}  // namespace train
