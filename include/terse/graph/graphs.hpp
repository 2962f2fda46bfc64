// SPDX-License-Identifier: Apache-2.0
#pragma once

// All of terse/graph: concepts, patterns, weights, named graphs, spectra.
#include "terse/graph/adjacency.hpp"
#include "terse/graph/concept.hpp"
#include "terse/graph/connectivity.hpp"
#include "terse/graph/directed_list.hpp"
#include "terse/graph/erdos_renyi.hpp"
#include "terse/graph/heavy_ball.hpp"
#include "terse/graph/lazy.hpp"
#include "terse/graph/matrix.hpp"
#include "terse/graph/named.hpp"
#include "terse/graph/pairs.hpp"
#include "terse/graph/patterns.hpp"
#include "terse/graph/push_sum.hpp"
#include "terse/graph/random_edge.hpp"
#include "terse/graph/random_matching.hpp"
#include "terse/graph/settings.hpp"
#include "terse/graph/spaced.hpp"
#include "terse/graph/spectrum.hpp"
#include "terse/graph/stochastic.hpp"
#include "terse/graph/verify.hpp"
#include "terse/graph/weights.hpp"
