// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/graph/lazy.hpp"
#include "terse/momentum_correction/exact_diffusion.hpp"
#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

namespace detail {

/// A mixing topology on (I + W) / 2; other policies unchanged.
template <class P>
struct OnLazy {
  using type = P;
};
template <class P>
requires(kind_of<P>() == PolicyKind::topology) struct OnLazy<P> {
  using type = typename P::template On<graph::Lazy<typename P::Graph>>;
};
template <class P>
using Lazily = typename OnLazy<P>::type;

}  // namespace detail

/// D2, or exact diffusion: decentralized SGD that converges to the exact optimum even if the data differ between ranks. The
/// graph must be fixed and symmetric. Runs on (I + W) / 2, because with W it diverges if an eigenvalue is -1/3 or less. If the
/// graph allows W itself, write ParameterMixing<ExactDiffusion<GradientDirection>, Mixing<...>>.
///
/// State: correction. Wire: one packet to each neighbour. Source: Tang et al., "D2: decentralized training over
/// decentralized data", ICML 2018; Yuan et al., "Exact diffusion for distributed optimization and learning", IEEE TSP
/// 2019.
template <class... Ps>
using D2 = MixingFrom<TakesMixing, Policies<ExactDiffusion<GradientDirection>, detail::Lazily<Gossip>>,
                      detail::Lazily<Ps>...>;

/// D2 with each rank's momentum instead of its gradient. State: momentum and correction.
template <class... Ps>
using D2DmSgd = MixingFrom<TakesMixing, Policies<ExactDiffusion<MomentumDirection>, detail::Lazily<Gossip>>,
                           detail::Lazily<Ps>...>;

}  // namespace terse
