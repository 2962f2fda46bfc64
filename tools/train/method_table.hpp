// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "method.hpp"

// The one table of methods, for one unit of each program. A new method is a row here and, in the unit of its family, a
// specialization of `make` for the tag that its row names, which makes its recipe of an Order (any_optimizer.hpp). The row
// says which options it uses: others are refused, and those are what checkpoints are bound to. Help, errors, reports and
// tools/compare follow; a test tries each option of each row.

namespace train {

/// How the method with this tag is made; in the unit of its family.
template <class Tag, class P>
std::unique_ptr<AnyOptimizer> make(const Order<P>&);

template <class Tag>
constexpr Makers on_host() {
  return {&make<Tag, OnHost>};
}
template <class Tag>
constexpr Makers anywhere() {
#ifdef TRAIN_HAVE_CUDA
  return {&make<Tag, OnHost>, true, &make<Tag, OnCuda>};
#else
  return {&make<Tag, OnHost>, true};
#endif
}

// clang-format off
constexpr Method table[] = {
    {.name = "adam", .family = Family::averaging, .rate = Rate::adam,
     .help = "dense; the reference of one-bit-adam, zero-one-adam and what goes by signs alone",
     .made = anywhere<struct Adam>()},
    {.name = "one-bit-adam", .family = Family::averaging, .rate = Rate::adam,
     .help = "signs of Adam's momentum, error feedback; --topology, --layers",
     .uses = {{"warmup-fraction"}, {"topology"}, {"scale"}, {"granularity"}, {"layers"}, {"update-clip"}},
     .warm_up = WarmUp::until_freeze, .made = anywhere<struct OneBitAdam>()},
    {.name = "zero-one-adam", .family = Family::averaging, .rate = Rate::adam,
     .help = "the same, earlier, and ranks step alone, too; scatter-gather",
     .uses = {{"warmup-fraction"}, {"update-clip"}, {"variance-updates"}, {"local-interval"}, {"most-local-steps"}},
     // Ranks differ between meetings, and training may end there.
     .own_models = true, .warm_up = WarmUp::while_variance_is_exact, .made = on_host<struct ZeroOneAdam>()},
    {.name = "momentum-sgd", .synonym = "pmsgd", .family = Family::averaging, .rate = Rate::sgd,
     .help = "dense; the reference of those below, but for lamb and what goes by signs alone",
     .uses = {{"momentum"}}, .made = anywhere<struct MomentumSgd>()},
    // Momentum of 0.9 makes each gradient count ten times; this one has none. (Nor have some decentralized ones, but
    // between two mixtures a rank's own data must not lead it that far away.)
    {.name = "error-feedback-sgd", .family = Family::averaging, .rate = Rate::sgd, .whole_rate = true,
     .help = "signs, error feedback, no momentum but 10 times the rate; scatter-gather",
     .uses = {{"momentum"}}, .made = anywhere<struct ErrorFeedbackSgd>()},
    {.name = "dist-error-feedback-sgd", .family = Family::averaging, .rate = Rate::sgd,
     .help = "signs of Nesterov momenta, error feedback; scatter-gather",
     .uses = {{"momentum"}}, .made = anywhere<struct DistErrorFeedbackSgd>()},
    {.name = "sign-sgd", .family = Family::averaging, .rate = Rate::sign,
     .help = "majority vote of momenta, no error feedback; scatter-gather",
     .uses = {{"momentum"}}, .made = anywhere<struct SignSgd>()},
    {.name = "deep-gradient-compression", .family = Family::averaging, .rate = Rate::sgd,
     .help = "largest elements of momenta, error feedback; all-gather",
     .uses = {{"momentum"}, {"warmup-fraction"}, {"ratio", 0.005}},
     .route = "all-gather", .made = on_host<struct DeepGradientCompression>()},
    {.name = "power-sgd", .family = Family::averaging, .rate = Rate::sgd,
     .help = "matrices of rank 2, error feedback; scatter-gather",
     .uses = {{"momentum"}}, .made = on_host<struct PowerSgd>()},
    {.name = "quantized-sgd", .family = Family::averaging, .rate = Rate::sgd,
     .help = "4 bits, unbiased, no error feedback; scatter-gather",
     .uses = {{"momentum"}}, .made = anywhere<struct QuantizedSgd>()},
    {.name = "ef21-sgd", .family = Family::averaging, .rate = Rate::sgd,
     .help = "largest elements of what momenta have changed by; all-gather",
     .uses = {{"momentum"}, {"ratio", 0.05}},
     .route = "all-gather", .warm_up = WarmUp::first_step, .made = on_host<struct Ef21Sgd>()},
    {.name = "demo", .family = Family::averaging, .rate = Rate::sign,
     .help = "signs of the largest cosine waves of momenta, which lose them; all-gather",
     .uses = {{"ratio", 32.0 / 4096}}, .route = "all-gather", .made = on_host<struct DeMo>()},
    {.name = "distributed-lion", .family = Family::averaging, .rate = Rate::sign,
     .help = "majority vote of Lion's steps, ties are none; scatter-gather", .made = on_host<struct DistributedLion>()},
    {.name = "lamb", .family = Family::averaging, .rate = Rate::lamb,
     .help = "dense; layer-wise rates; the reference of one-bit-lamb", .made = on_host<struct Lamb>()},
    {.name = "one-bit-lamb", .family = Family::averaging, .rate = Rate::lamb,
     .help = "signs of LAMB's momentum, error feedback; scatter-gather",
     .uses = {{"warmup-fraction"}, {"update-clip"}},
     .warm_up = WarmUp::until_freeze, .made = on_host<struct OneBitLamb>()},
    {.name = "muon", .family = Family::averaging, .rate = Rate::adam,
     .help = "dense; momenta of all matrices but the last layer's are orthogonalized, the rest is adam",
     .made = on_host<struct Muon>()},

    {.name = "local-sgd", .family = Family::local_updates, .rate = Rate::sgd,
     .help = "all take the mean",
     .uses = {{"momentum"}, {"period"}, {"inner-buffers"}}, .made = on_host<struct LocalSgd>()},
    {.name = "post-local-sgd", .family = Family::local_updates, .rate = Rate::sgd,
     .help = "the same, after --average-until of the steps as momentum-sgd",
     .uses = {{"momentum"}, {"period"}, {"inner-buffers"}, {"average-until"}}, .made = on_host<struct LocalSgd>()},
    {.name = "slowmo", .family = Family::local_updates, .rate = Rate::sgd,
     .help = "momentum of how the mean moves",
     .uses = {{"momentum"}, {"period"}, {"inner-buffers"}, {"outer-learning-rate", 1}, {"outer-momentum", 0.5}},
     .made = on_host<struct SlowMo>()},
    {.name = "slowmo-sgp", .family = Family::local_updates, .rate = Rate::sgd,
     .help = "the same around stochastic-gradient-push; any --graph but mesh and star",
     .uses = {{"momentum"}, {"period"}, {"inner-buffers"}, {"outer-learning-rate", 1}, {"outer-momentum", 0.5}, {"graph"}},
     .graph = GraphNeeds::even, .made = on_host<struct SlowMoPush>()},
    {.name = "bmuf-classical", .family = Family::local_updates, .rate = Rate::sgd,
     .help = "slowmo's step; its momentum does not follow the learning rate",
     .uses = {{"momentum"}, {"period"}, {"inner-buffers"}, {"outer-learning-rate", 1}, {"outer-momentum"}},
     .made = on_host<struct BmufClassical>()},
    {.name = "bmuf-nesterov", .synonym = "bmuf", .family = Family::local_updates, .rate = Rate::sgd,
     .help = "the same with Nesterov momentum",
     .uses = {{"momentum"}, {"period"}, {"inner-buffers"}, {"outer-learning-rate", 1}, {"outer-momentum"}},
     .made = on_host<struct BmufNesterov>()},
    {.name = "diloco", .family = Family::local_updates, .rate = Rate::adam,
     .help = "the same around adam",
     .uses = {{"period"}, {"inner-buffers"}, {"outer-learning-rate", 0.7}, {"outer-momentum", 0.9}},
     .made = on_host<struct DiLoCo>()},
    {.name = "streaming-diloco", .family = Family::local_updates, .rate = Rate::adam,
     .help = "the same in --fragments, whose means come --fragment-delay steps late",
     .uses = {{"period"}, {"outer-learning-rate", 0.7}, {"outer-momentum", 0.9}, {"fragments"}, {"fragment-delay"}, {"local-share"}},
     .late = true, .made = on_host<struct StreamingDiLoCo>()},
    {.name = "overlap-local-sgd", .family = Family::local_updates, .rate = Rate::sgd,
     .help = "means that come a period late pull the ranks to them",
     .uses = {{"momentum"}, {"period"}, {"pullback"}, {"anchor-momentum"}},
     .late = true, .made = on_host<struct OverlapLocalSgd>()},
    {.name = "cocod-sgd", .family = Family::local_updates, .rate = Rate::sgd,
     .help = "means that come a period late, and what a rank has done since",
     .uses = {{"momentum"}, {"period"}}, .late = true, .made = on_host<struct CocodSgd>()},
    {.name = "swarm-sgd", .family = Family::local_updates, .rate = Rate::sgd,
     .help = "ranks meet in pairs, drawn anew each time, and take their mean",
     .uses = {{"momentum"}, {"period"}}, .route = "random-matching", .made = on_host<struct SwarmSgd>()},
    {.name = "swarm-sgd-lattice", .family = Family::local_updates, .rate = Rate::sgd,
     .help = "the same in 8 bits, --lattice-step apart",
     .uses = {{"momentum"}, {"period"}, {"lattice-step"}},
     .route = "random-matching", .made = on_host<struct SwarmSgdLattice>()},
    {.name = "swarm-sgd-non-blocking", .family = Family::local_updates, .rate = Rate::sgd,
     .help = "means that come a period late, and what a rank has done since",
     .uses = {{"momentum"}, {"period"}}, .route = "random-matching", .made = on_host<struct NonBlockingSwarmSgd>()},
    {.name = "async-swarm-sgd", .family = Family::local_updates, .rate = Rate::sgd,
     .help = "each rank reads what another has published last; waits for nobody, not reproducible",
     .uses = {{"momentum"}, {"period"}}, .route = "mailbox", .made = on_host<struct AsyncSwarmSgd>()},

    {.name = "d-sgd", .synonym = "dsgd", .family = Family::gossip, .rate = Rate::sgd,
     .help = "step, then mix (ATC); no momentum, at the same rate",
     .uses = {{"momentum"}, {"graph"}, {"average-every"}}, .made = on_host<struct DSgd>()},
    {.name = "awc-d-sgd", .family = Family::gossip, .rate = Rate::sgd,
     .help = "mix, and step by the gradient there was; no momentum",
     .uses = {{"momentum"}, {"graph"}, {"average-every"}}, .made = on_host<struct AwcDSgd>()},
    {.name = "cta-d-sgd", .family = Family::gossip, .rate = Rate::sgd,
     .help = "mix, and step by the gradient at the mixture; no momentum",
     .uses = {{"momentum"}, {"graph"}, {"average-every"}}, .made = on_host<struct CtaDSgd>()},
    {.name = "dm-sgd", .synonym = "dmsgd", .family = Family::gossip, .rate = Rate::sgd,
     .help = "d-sgd with momentum on each rank",
     .uses = {{"momentum"}, {"graph"}, {"average-every"}}, .made = on_host<struct DmSgd>()},
    {.name = "da-dm-sgd", .synonym = "da-dmsgd", .family = Family::gossip, .rate = Rate::sgd,
     .help = "the same, and momenta are mixed, too",
     .uses = {{"momentum"}, {"graph"}, {"average-every"}}, .made = on_host<struct DaDmSgd>()},
    {.name = "awc-dm-sgd", .synonym = "awc-dmsgd", .family = Family::gossip, .rate = Rate::sgd,
     .help = "awc-d-sgd with momentum on each rank",
     .uses = {{"momentum"}, {"graph"}, {"average-every"}}, .made = on_host<struct AwcDmSgd>()},
    {.name = "qg-dm-sgd", .synonym = "qg-dmsgd", .family = Family::gossip, .rate = Rate::sgd,
     .help = "momentum of how the model moves, mixing included",
     .uses = {{"momentum"}, {"graph"}, {"average-every"}}, .made = on_host<struct QgDmSgd>()},
    {.name = "decentlam", .family = Family::gossip, .rate = Rate::sgd,
     .help = "momentum without its bias; graphs that are fixed and symmetric",
     .uses = {{"momentum"}, {"graph"}}, .graph = GraphNeeds::fixed_symmetric, .made = on_host<struct DecentLaM>()},
    {.name = "momentum-consensus", .family = Family::gossip, .rate = Rate::sgd,
     .help = "momentum of how the model moves, half of it mixed; the same graphs",
     .uses = {{"momentum"}, {"graph"}}, .graph = GraphNeeds::fixed_symmetric, .made = on_host<struct MomentumConsensus>()},
    {.name = "d2", .family = Family::gossip, .rate = Rate::sgd,
     .help = "exact diffusion on (I + W) / 2; no momentum; the same graphs",
     .uses = {{"momentum"}, {"graph"}}, .graph = GraphNeeds::fixed_symmetric, .made = on_host<struct D2>()},
    {.name = "d2-dm-sgd", .synonym = "d2-dmsgd", .family = Family::gossip, .rate = Rate::sgd,
     .help = "the same with momentum; the same graphs",
     .uses = {{"momentum"}, {"graph"}}, .graph = GraphNeeds::fixed_symmetric, .made = on_host<struct D2DmSgd>()},
    {.name = "gradient-tracking", .family = Family::gossip, .rate = Rate::sgd,
     .help = "mixes estimates of the mean gradient, too; no momentum",
     .uses = {{"momentum"}, {"graph"}, {"average-every"}}, .made = on_host<struct GradientTracking>()},
    {.name = "momentum-tracking", .family = Family::gossip, .rate = Rate::sgd,
     .help = "the same of momentum",
     .uses = {{"momentum"}, {"graph"}, {"average-every"}}, .made = on_host<struct MomentumTracking>()},
    {.name = "stochastic-gradient-push", .synonym = "sgp", .family = Family::gossip, .rate = Rate::sgd,
     .help = "dm-sgd by push-sum weights",
     .uses = {{"momentum"}, {"graph"}}, .made = on_host<struct StochasticGradientPush>()},
    {.name = "choco-sgd", .synonym = "choco", .family = Family::compressed_gossip, .rate = Rate::sgd,
     .help = "dm-sgd by compressed differences, 4 bits; fixed graphs",
     .uses = {{"momentum"}, {"graph"}, {"consensus-rate", 0.4}},
     .graph = GraphNeeds::fixed, .made = on_host<struct ChocoSgd>()},
    // It compresses parameters, not how they move, which takes more bits.
    {.name = "deep-squeeze", .synonym = "deepsqueeze", .family = Family::compressed_gossip, .rate = Rate::sgd,
     .help = "dm-sgd by compressed parameters with error feedback, 8 bits",
     .uses = {{"momentum"}, {"graph"}, {"consensus-rate", 0.4}}, .made = on_host<struct DeepSqueeze>()},
    {.name = "dcd-sgd", .family = Family::compressed_gossip, .rate = Rate::sgd,
     .help = "compressed differences, 8 bits, unbiased, no momentum; fixed graphs",
     .uses = {{"momentum"}, {"graph"}}, .graph = GraphNeeds::fixed, .made = on_host<struct DcdSgd>()},
    {.name = "beer", .family = Family::compressed_gossip, .rate = Rate::sgd,
     .help = "gradient-tracking by compressed differences, 4 bits; fixed graphs",
     .uses = {{"momentum"}, {"graph"}, {"consensus-rate", 0.4}},
     .graph = GraphNeeds::fixed, .made = on_host<struct Beer>()},
    {.name = "moniqua-sgd", .family = Family::compressed_gossip, .rate = Rate::sgd,
     .help = "awc-dm-sgd whose packets hold parameters modulo twice --moniqua-bound, 8 bits",
     .uses = {{"momentum"}, {"graph"}, {"moniqua-bound"}}, .made = on_host<struct MoniquaSgd>()},
};
// clang-format on

std::span<const Method> methods() { return table; }

}  // namespace train
