// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/local/late_mean.hpp"
#include "terse/optimizer/local/local_updates.hpp"

namespace terse {

/// Streaming DiLoCo: DiLoCo fragment by fragment. Fragment p of P is sent after the steps t with t = floor(p H / P)
/// modulo the period H. It is in flight during the next `delay` steps, and is then merged with the local steps since
/// then. See Streaming for the schedule and LateMomentum for the equations.
///
///     StreamingDiLoCo<Adam<>>{.period = 100, .outer = {.local_share = 0.5F}, .schedule = {.count = 4, .delay = 1}}
///     StreamingDiLoCo<Adam<>, Cast<e3m0, MaxAbs, PerBlock<128>>>{.period = 100}        the paper's 4 bits
///
/// With 1 fragment, no delay and local_share = 0 it is DiLoCo, bit for bit. Takes a Compressor, an ErrorFeedback and a
/// Topology that doesn't evaluate late. Ranks always differ. The model is the anchor, which
/// `read_out(ReadOut::look_ahead, view)` writes without communication.
///
/// State: the inner recipe's; anchor and velocity, n floats each; packets of all fragments. Wire: in each period one
/// round of the topology per fragment. At most 1 / P of the model is sent at a time if segments allow it and rounds
/// don't overlap (delay < H / P). Passes in addition to the inner recipe's, over each fragment once in a period: one
/// to send, one over 1 / W, one to step the anchor, one to mix.
///
/// Source: Douillard et al., "Streaming DiLoCo with overlapping communication: towards a distributed free lunch", 2025
/// (arXiv 2501.18512), algorithm 2.
template <class Inner, class... Ps>
using StreamingDiLoCo = detail::LocalUpdatesAround<Inner, LateMomentum, Streaming, Ps...>;

}  // namespace terse
