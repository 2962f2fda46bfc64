// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/top_k.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/error_feedback/ef21.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/momentum_correction/compressed_differences.hpp"
#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

// Decentralized SGD with compressed packets. A sender uses the decoded value of its own packet, like its receivers. So mixing
// keeps the mean of the ranks for any compressor, provided that W is doubly stochastic. Only DCD moves by packets alone, so that
// their errors enter its mean.

/// CHOCO-SGD: public copies h_i of all parameters, which are updated by compressed differences,
///
///     z_i = x_i - learning_rate d_i        h_i = h_i + C(z_i - h_i)
///     x_i = z_i + consensus_rate sum_j W_ij (h_j - h_i)
///
/// Mixing uses the new copies, so with consensus_rate 1 and no compression it is adapt-then-combine. consensus_rate must be
/// tuned; strong compression requires a small one. Memory: h_i, the sum over neighbours, and the message, n floats each for any
/// number of neighbours. For this the graph must be fixed. Source: Koloskova, Stich and Jaggi, ICML 2019, algorithm 2, in the
/// memory-efficient form of Koloskova et al., ICLR 2020.
template <class... Ps>
using ChocoSgd = MixingFrom<
    TakesDirection,
    Policies<AdaptThenCombine<detail::PickPolicy<PolicyKind::local_direction, GradientDirection, Ps...>>,
             TopK<>, Ef21>,
    Ps...>;

/// DeepSqueeze: compressed parameters with error feedback,
///
///     v_i = x_i - learning_rate d_i + e_i        e_i = v_i - C(v_i)
///     x_i = x_i - learning_rate d_i + consensus_rate sum_j W_ij (C(v_j) - C(v_i))
///
/// State: the error. Source: Tang et al., "DeepSqueeze: decentralization meets error-compensated compression", 2019,
/// algorithm 1.
template <class... Ps>
using DeepSqueeze = MixingFrom<
    TakesDirection,
    Policies<AdaptThenCombine<detail::PickPolicy<PolicyKind::local_direction, GradientDirection, Ps...>>,
             TopK<>, Residual>,
    Ps...>;

/// DCD-PSGD: see DifferenceDescent. C must be unbiased and precise (8 bits, for example), since there is no error
/// feedback and no consensus rate. Source: Tang et al., "Communication compression for decentralized training",
/// NeurIPS 2018, algorithm 1.
template <class... Ps>
using DcdSgd =
    MixingFrom<TakesMixing, Policies<DifferenceDescent, Uniform<8, Stochastic, Symmetric>, NoErrorFeedback>,
               Ps...>;

/// BEER: see CompressedTracker. Converges to the exact optimum. Wire: two packets in one message. Source: Zhao et al.,
/// "BEER: fast O(1/T) rate for decentralized nonconvex optimization with communication compression", NeurIPS 2022,
/// algorithm 1.
template <class... Ps>
using Beer = MixingFrom<TakesMixing, Policies<CompressedTracker, TopK<>, Ef21>, Ps...>;

}  // namespace terse
