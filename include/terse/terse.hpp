// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __cplusplus < 202002L
#error "terse is C++20: compile with -std=c++20 or later"
#else
#ifndef __cpp_exceptions
#error "terse reports errors by exceptions and can't do so under -fno-exceptions; compile without"
#endif
#ifndef __cpp_rtti
#error "terse names the types of policies in its errors and can't do so under -fno-rtti; compile without"
#endif

#include <algorithm>  // libstdc++ undefines min and max
#if defined(check) || defined(max) || defined(min) || defined(require) || defined(small) || defined(verify)
#error "check, max, min, require, small or verify is a macro: include terse before it, or #undef it"
#endif

// All headers that require only the standard library. Backends have separate headers: terse/transport/mpi.hpp,
// terse/checkpoint/checkpoint.hpp, terse/interop/libtorch.hpp.

#include "terse/compressor/cast.hpp"                      // IWYU pragma: export
#include "terse/compressor/chain.hpp"                     // IWYU pragma: export
#include "terse/compressor/drop_quantization_error.hpp"   // IWYU pragma: export
#include "terse/compressor/hadamard.hpp"                  // IWYU pragma: export
#include "terse/compressor/lattice.hpp"                   // IWYU pragma: export
#include "terse/compressor/mean_over_senders.hpp"         // IWYU pragma: export
#include "terse/compressor/min_max.hpp"                   // IWYU pragma: export
#include "terse/compressor/natural.hpp"                   // IWYU pragma: export
#include "terse/compressor/qsgd.hpp"                      // IWYU pragma: export
#include "terse/compressor/random_k.hpp"                  // IWYU pragma: export
#include "terse/compressor/sign.hpp"                      // IWYU pragma: export
#include "terse/compressor/ternary.hpp"                   // IWYU pragma: export
#include "terse/compressor/threshold.hpp"                 // IWYU pragma: export
#include "terse/compressor/tiled.hpp"                     // IWYU pragma: export
#include "terse/compressor/top_k.hpp"                     // IWYU pragma: export
#include "terse/compressor/two_magnitudes.hpp"            // IWYU pragma: export
#include "terse/compressor/uniform.hpp"                   // IWYU pragma: export
#include "terse/core/version.hpp"                         // IWYU pragma: export
#include "terse/error_feedback/averaged_residual.hpp"     // IWYU pragma: export
#include "terse/error_feedback/ef21.hpp"                  // IWYU pragma: export
#include "terse/error_feedback/none.hpp"                  // IWYU pragma: export
#include "terse/error_feedback/residual.hpp"              // IWYU pragma: export
#include "terse/error_feedback/stored_residual.hpp"       // IWYU pragma: export
#include "terse/exchange/hierarchical.hpp"                // IWYU pragma: export
#include "terse/exchange/selected_rounds.hpp"             // IWYU pragma: export
#include "terse/executor/host.hpp"                        // IWYU pragma: export
#include "terse/graph/graphs.hpp"                         // IWYU pragma: export
#include "terse/optimizer/adagrad.hpp"                    // IWYU pragma: export
#include "terse/optimizer/adam.hpp"                       // IWYU pragma: export
#include "terse/optimizer/amsgrad.hpp"                    // IWYU pragma: export
#include "terse/optimizer/compressed_gossip.hpp"          // IWYU pragma: export
#include "terse/optimizer/d2.hpp"                         // IWYU pragma: export
#include "terse/optimizer/d_adam.hpp"                     // IWYU pragma: export
#include "terse/optimizer/d_sgd.hpp"                      // IWYU pragma: export
#include "terse/optimizer/decentlam.hpp"                  // IWYU pragma: export
#include "terse/optimizer/deep_gradient_compression.hpp"  // IWYU pragma: export
#include "terse/optimizer/demo.hpp"                       // IWYU pragma: export
#include "terse/optimizer/dion.hpp"                       // IWYU pragma: export
#include "terse/optimizer/dion2.hpp"                      // IWYU pragma: export
#include "terse/optimizer/distributed_lion.hpp"           // IWYU pragma: export
#include "terse/optimizer/dm_sgd.hpp"                     // IWYU pragma: export
#include "terse/optimizer/e_control.hpp"                  // IWYU pragma: export
#include "terse/optimizer/ef21_sgd.hpp"                   // IWYU pragma: export
#include "terse/optimizer/error_feedback_sgd.hpp"         // IWYU pragma: export
#include "terse/optimizer/gradient_tracking.hpp"          // IWYU pragma: export
#include "terse/optimizer/lamb.hpp"                       // IWYU pragma: export
#include "terse/optimizer/lars.hpp"                       // IWYU pragma: export
#include "terse/optimizer/lion.hpp"                       // IWYU pragma: export
#include "terse/optimizer/local/async_swarm_sgd.hpp"      // IWYU pragma: export
#include "terse/optimizer/local/cocktail_sgd.hpp"         // IWYU pragma: export
#include "terse/optimizer/local/distro.hpp"               // IWYU pragma: export
#include "terse/optimizer/local/local_sgd.hpp"            // IWYU pragma: export
#include "terse/optimizer/local/noloco.hpp"               // IWYU pragma: export
#include "terse/optimizer/local/overlap_local_sgd.hpp"    // IWYU pragma: export
#include "terse/optimizer/local/sparse_loco.hpp"          // IWYU pragma: export
#include "terse/optimizer/local/streaming_diloco.hpp"     // IWYU pragma: export
#include "terse/optimizer/local/swarm_sgd.hpp"            // IWYU pragma: export
#include "terse/optimizer/momentum_consensus.hpp"         // IWYU pragma: export
#include "terse/optimizer/momentum_sgd.hpp"               // IWYU pragma: export
#include "terse/optimizer/moniqua_sgd.hpp"                // IWYU pragma: export
#include "terse/optimizer/muon.hpp"                       // IWYU pragma: export
#include "terse/optimizer/nadam.hpp"                      // IWYU pragma: export
#include "terse/optimizer/one_bit_adam.hpp"               // IWYU pragma: export
#include "terse/optimizer/one_bit_lamb.hpp"               // IWYU pragma: export
#include "terse/optimizer/optimizer.hpp"                  // IWYU pragma: export
#include "terse/optimizer/power_sgd.hpp"                  // IWYU pragma: export
#include "terse/optimizer/qg_dm_sgd.hpp"                  // IWYU pragma: export
#include "terse/optimizer/quantized_sgd.hpp"              // IWYU pragma: export
#include "terse/optimizer/rate_schedule.hpp"              // IWYU pragma: export
#include "terse/optimizer/rms_prop.hpp"                   // IWYU pragma: export
#include "terse/optimizer/sharded.hpp"                    // IWYU pragma: export
#include "terse/optimizer/sign_sgd.hpp"                   // IWYU pragma: export
#include "terse/optimizer/staged.hpp"                     // IWYU pragma: export
#include "terse/optimizer/stochastic_gradient_push.hpp"   // IWYU pragma: export
#include "terse/optimizer/zero_one_adam.hpp"              // IWYU pragma: export
#include "terse/pipeline/example_order.hpp"               // IWYU pragma: export
#include "terse/pipeline/grid.hpp"                        // IWYU pragma: export
#include "terse/pipeline/makespan.hpp"                    // IWYU pragma: export
#include "terse/pipeline/pipeline.hpp"                    // IWYU pragma: export
#include "terse/topology/all_gather.hpp"                  // IWYU pragma: export
#include "terse/topology/alone.hpp"                       // IWYU pragma: export
#include "terse/topology/by_size.hpp"                     // IWYU pragma: export
#include "terse/topology/gathered.hpp"                    // IWYU pragma: export
#include "terse/topology/machine_mixing.hpp"              // IWYU pragma: export
#include "terse/topology/median_clip.hpp"                 // IWYU pragma: export
#include "terse/topology/mixing.hpp"                      // IWYU pragma: export
#include "terse/topology/native.hpp"                      // IWYU pragma: export
#include "terse/topology/radial.hpp"                      // IWYU pragma: export
#include "terse/topology/ring.hpp"                        // IWYU pragma: export
#include "terse/topology/scatter_gather.hpp"              // IWYU pragma: export
#include "terse/topology/star.hpp"                        // IWYU pragma: export
#include "terse/topology/within.hpp"                      // IWYU pragma: export
#include "terse/transport/any.hpp"                        // IWYU pragma: export
#include "terse/transport/collectives.hpp"                // IWYU pragma: export
#include "terse/transport/metered.hpp"                    // IWYU pragma: export
#include "terse/transport/nodes.hpp"                      // IWYU pragma: export
#include "terse/transport/threads.hpp"                    // IWYU pragma: export

#endif
