// SPDX-License-Identifier: Apache-2.0
#include "dense_optimizers.hpp"

namespace train {

template std::unique_ptr<AnyOptimizer> make_dense_optimizer(Optimizer, const Options&, OnThreads&,
                                                            const terse::Layout&);
#ifdef TERSE_HAVE_MPI
template std::unique_ptr<AnyOptimizer> make_dense_optimizer(Optimizer, const Options&, OnMpi&,
                                                            const terse::Layout&);
#endif

}  // namespace train
