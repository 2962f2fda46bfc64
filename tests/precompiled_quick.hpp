// SPDX-License-Identifier: Apache-2.0
// The library for tests and programs that compute and are compiled with optimization in a build without: what is in loops
// over elements, then all that is left, for which the optimizer would take most of the time to compile and gain little.
#pragma once

#include <terse/compressor/chain.hpp>
#include <terse/compressor/hadamard.hpp>
#include <terse/compressor/keyed.hpp>
#include <terse/compressor/min_max.hpp>
#include <terse/compressor/natural.hpp>
#include <terse/compressor/qsgd.hpp>
#include <terse/compressor/random_k.hpp>
#include <terse/compressor/sign.hpp>
#include <terse/compressor/ternary.hpp>
#include <terse/compressor/threshold.hpp>
#include <terse/compressor/tiled.hpp>
#include <terse/error_feedback/averaged_residual.hpp>
#include <terse/error_feedback/ef21.hpp>
#include <terse/error_feedback/error_control.hpp>
#include <terse/error_feedback/momentum_residual.hpp>
#include <terse/error_feedback/none.hpp>
#include <terse/error_feedback/remembered.hpp>
#include <terse/exchange/hierarchical_functors.hpp>
#include <terse/executor/factors.hpp>
#include <terse/executor/numerics.hpp>
#include <terse/momentum_correction/balanced_average.hpp>
#include <terse/momentum_correction/combine.hpp>
#include <terse/momentum_correction/compressed_differences.hpp>
#include <terse/momentum_correction/displacement.hpp>
#include <terse/momentum_correction/doubly_averaged.hpp>
#include <terse/momentum_correction/exact_diffusion.hpp>
#include <terse/momentum_correction/factor_masking.hpp>
#include <terse/momentum_correction/local_lion.hpp>
#include <terse/momentum_correction/mixed_gradient.hpp>
#include <terse/momentum_correction/quasi_global.hpp>
#include <terse/momentum_correction/smoothed_gradient.hpp>
#include <terse/momentum_correction/tracking.hpp>
#include <terse/optimizer/averaging_functors.hpp>
#include <terse/optimizer/for_hidden_matrices.hpp>
#include <terse/optimizer/gradient_norm.hpp>
#include <terse/optimizer/mixing_functors.hpp>
#include <terse/preconditioner/elementwise.hpp>
#include <terse/preconditioner/frozen_layer_rates.hpp>
#include <terse/preconditioner/layer_wise.hpp>
#include <terse/preconditioner/newton_schulz.hpp>

#pragma clang optimize off
#include <terse/terse.hpp>

#include "precompiled_instances.hpp"
#pragma clang optimize on
