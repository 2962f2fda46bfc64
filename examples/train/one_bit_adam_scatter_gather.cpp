// SPDX-License-Identifier: Apache-2.0
#include "one_bit_adam.hpp"
#include "terse/topology/scatter_gather.hpp"

namespace train {

template std::unique_ptr<AnyOptimizer> make_one_bit_adam<terse::ScatterGather>(const Options&, std::uint64_t,
                                                                               OnHost&, const terse::Layout&);

}  // namespace train
