// SPDX-License-Identifier: Apache-2.0
#pragma once

// Compressors: the sent part of a message, and its number of bits. Formulas, errors and sources: docs/compressors/.
//
//     Dense                                                       fp32 as it is
//     ScaledSign<S, G>, TwoMeanSign<G>, UnitSign                  one bit an element, with one scale, two, or none
//     TwoMagnitudeSign<G>, Ternary<S, G>, UnitTernary             two bits: two magnitudes, or -1, 0 and 1
//     Uniform<Bits>, MinMax<Bits>, Qsgd<Bits>                     evenly spaced levels, 1 to 8 bits
//     Natural<G>, Cast<Format>                                    powers of two; bf16, fp16 and formats of 8 and 4 bits
//     TopK<G>, WarmupTopK<G>, Threshold<G>, RandomK               positions and values: the largest, all above a threshold, random ones
//     Tiles<S, Inner>, Dct<S, Inner>, Chain<First, Then>          a selection per tile, among its cosines, or of a selection
//     Hadamard<C>, MeanOverSenders<C>                             a rotation before C; means over a coordinate's senders, of a sparse C
//     DropQuantizationError<V>                                    a coder of Sparse's values whose error is not fed back
//     LowRank<R>, DionDirection<R>                                two thin factors of a matrix
//     Lattice<Bits>, Moniqua<Bits>                                keyed: decoded by a near copy on the receiver
//     Select<Where<Predicate, C>..., Otherwise<C>>                a compressor for each segment
//     Packed<Quantizer, Granularity>, Sparse<Selection, Values>   any quantizer, or any selection, as a compressor
//
// Granularity G, the unit of a scale or a selection: PerSegment, PerBlock<N> or Whole. The contract is in
// terse/compressor/concept.hpp, and a complete custom compressor in examples/custom_compressor.cpp.

#include "terse/compressor/cast.hpp"                     // IWYU pragma: export
#include "terse/compressor/chain.hpp"                    // IWYU pragma: export
#include "terse/compressor/concept.hpp"                  // IWYU pragma: export
#include "terse/compressor/dense.hpp"                    // IWYU pragma: export
#include "terse/compressor/dion_direction.hpp"           // IWYU pragma: export
#include "terse/compressor/drop_quantization_error.hpp"  // IWYU pragma: export
#include "terse/compressor/hadamard.hpp"                 // IWYU pragma: export
#include "terse/compressor/lattice.hpp"                  // IWYU pragma: export
#include "terse/compressor/low_rank.hpp"                 // IWYU pragma: export
#include "terse/compressor/mean_over_senders.hpp"        // IWYU pragma: export
#include "terse/compressor/min_max.hpp"                  // IWYU pragma: export
#include "terse/compressor/moniqua.hpp"                  // IWYU pragma: export
#include "terse/compressor/natural.hpp"                  // IWYU pragma: export
#include "terse/compressor/packed.hpp"                   // IWYU pragma: export
#include "terse/compressor/qsgd.hpp"                     // IWYU pragma: export
#include "terse/compressor/random_k.hpp"                 // IWYU pragma: export
#include "terse/compressor/select.hpp"                   // IWYU pragma: export
#include "terse/compressor/sign.hpp"                     // IWYU pragma: export
#include "terse/compressor/sparse.hpp"                   // IWYU pragma: export
#include "terse/compressor/ternary.hpp"                  // IWYU pragma: export
#include "terse/compressor/threshold.hpp"                // IWYU pragma: export
#include "terse/compressor/tiled.hpp"                    // IWYU pragma: export
#include "terse/compressor/top_k.hpp"                    // IWYU pragma: export
#include "terse/compressor/two_magnitudes.hpp"           // IWYU pragma: export
#include "terse/compressor/uniform.hpp"                  // IWYU pragma: export
