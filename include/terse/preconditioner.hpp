// SPDX-License-Identifier: Apache-2.0
#pragma once

// Preconditioners: the rules that turn a direction into a step. Formulas: docs/algorithms/averaging.md.
//
//     NoPreconditioner, SignStep                      the direction, or its signs
//     AdamVariance, AmsgradVariance, AdagradSum       divided by the root of a variance
//     LayerWise<P>, LarsRates                         scaled by a norm of each layer: LAMB, LARS
//     NewtonSchulz, PolarExpress, OrthogonalRows<N>   the nearest orthogonal matrix: Muon, Dion2
//     ForHiddenMatrices<P, Q>                         P for hidden matrices, Q for all other segments
//     FrozenVariance, FrozenLayerRates<P>             for a second stage, whose variance is fixed: 1-bit Adam, 1-bit LAMB
//
// laws/rule.hpp checks their promises. AtStep and VarianceRatio end a first stage. terse/preconditioner/concept.hpp
// has the contract, and examples/custom_preconditioner.cpp a complete custom one.

#include "terse/optimizer/for_hidden_matrices.hpp"      // IWYU pragma: export
#include "terse/preconditioner/concept.hpp"             // IWYU pragma: export
#include "terse/preconditioner/elementwise.hpp"         // IWYU pragma: export
#include "terse/preconditioner/freeze.hpp"              // IWYU pragma: export
#include "terse/preconditioner/frozen_layer_rates.hpp"  // IWYU pragma: export
#include "terse/preconditioner/frozen_variance.hpp"     // IWYU pragma: export
#include "terse/preconditioner/layer_wise.hpp"          // IWYU pragma: export
#include "terse/preconditioner/newton_schulz.hpp"       // IWYU pragma: export
#include "terse/preconditioner/orthogonal_rows.hpp"     // IWYU pragma: export
