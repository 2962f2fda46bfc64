// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/local/outer_step.hpp"

namespace terse {

/// Streaming DiLoCo's merge of a late mean. Let D_i = anchor - x_i when a fragment is sent:
///
///     v = momentum v + mean_i D_i        anchor = anchor - rate (mean_i D_i + momentum v)
///     x_i = local_share x_i + (1 - local_share) anchor        `delay` steps later; x_i contains those steps
///
/// local_share is the paper's alpha: 0 discards the local steps since sending, and 1 leaves x_i unchanged. The
/// anchor is equal on all ranks and is the trained model, see ReadOut. If the mean is lost with a rank, nothing is merged,
/// and the next D_i contains D_i. Source: Douillard et al., "Streaming DiLoCo with overlapping communication", 2025 (arXiv
/// 2501.18512), algorithm 2.
struct LateMomentum {
  static constexpr std::array<const char*, 2> state{"anchor", "outer_velocity"};
  static constexpr int from_start = 1, shared = 2;
  static constexpr bool follows_rate = false;
  static constexpr bool merges_as_it_sends = false;

  float rate = 0.7F;         ///< outer learning rate
  float momentum = 0.9F;     ///< outer momentum; in [0, 1)
  float local_share = 0.5F;  ///< alpha: the share of the local steps since sending that stays; in [0, 1]

  void check() const {
    as_momentum().check();
    require(local_share >= 0 && local_share <= 1, "local_share must be in [0, 1]",
            static_cast<double>(local_share));
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    as_momentum().settings(visit);
    visit("local_share", static_cast<double>(local_share));
  }
  template <Number P>
  static detail::Move<P> message(ParameterRef<P> x, OuterBuffers own) {
    return {x, own.first};
  }
  detail::StepAnchor<true> land(OuterBuffers own, const StepScalars* now, int ratio_at) const {
    return {own.first, own.second, now, ratio_at, rate, momentum};
  }
  template <Number P>
  detail::MixWithAnchor<P> merge(ParameterRef<P> x, OuterBuffers own, const StepScalars*, int) const {
    return {x, own.first, local_share};
  }
  float ahead(ReadOut which) const { return as_momentum().ahead(which); }

 private:
  OuterMomentum<OuterKind::di_lo_co> as_momentum() const { return {rate, momentum}; }
};

/// CocktailSGD's merge of a late mean. Let D_i = anchor - x_i when a fragment is sent, and s_i its sent part:
///
///     anchor = anchor - mean_i s_i
///     x_i = x_i + s_i - mean_i s_i       `delay` steps later; x_i contains those steps
///
/// The unsent part stays in x_i, and so in the next D_i, as with error feedback. If everything is sent, x_i becomes
/// the mean of the x_i, plus the local steps since then. The mean of the x_i moves only by their steps, unless the
/// mean is compressed again. The anchor is equal on all ranks, see ReadOut. If the mean is lost with a rank, s_i counts as
/// unsent. Source: Wang, Lu, Yuan, Chen, Liang, De Sa, Ré and Zhang, "CocktailSGD: fine-tuning foundation models over
/// 500Mbps networks", ICML 2023.
struct TradeForMean {
  static constexpr std::array<const char*, 2> state{"anchor", "traded"};
  static constexpr int from_start = 1, shared = 1;
  static constexpr bool follows_rate = false;
  static constexpr bool merges_as_it_sends = false;
  static constexpr bool keeps_errors = true;

  static void check() {}
  template <class Visit>
  void settings(Visit&&) const {}
  template <Number P>
  static detail::TradedMove<P> message(ParameterRef<P> x, OuterBuffers own) {
    return {{x, own.first}, own.second};
  }
  template <Number P>
  static detail::TradedWhole<P> whole_message(ParameterRef<P> x, OuterBuffers own) {
    return {{x, own.first}, own.second};
  }
  static detail::GiveForMean land(OuterBuffers own, const StepScalars*, int) {
    return {own.first, own.second};
  }
  template <Number P>
  static detail::TakeTrade<P> merge(ParameterRef<P> x, OuterBuffers own, const StepScalars*, int) {
    return {x, own.second};
  }
  static detail::CancelTrade without_mean(OuterBuffers own) { return {own.second}; }
  static float ahead(ReadOut) { return 0; }
};

/// Overlap-Local-SGD's merge of a late mean: x_i is pulled towards the anchor z, which has its own momentum. Let a =
/// pullback, b = anchor_momentum, and gamma the learning rate:
///
///     x_i = (1 - a) x_i + a z        v_i = b r v_i + (z - x_i)        next z = mean_i (z - v_i)
///
/// v is gamma times the paper's v, and r, the ratio of the learning rates of two rounds, rescales it. If the rate
/// jumps, r is bounded as in OuterMomentum, by 1 / b. a = 0 ignores the anchor, and a = 1 discards every local step:
/// neither is Local SGD. At b = 0, (1 - a) mean x + a z moves by (1 - a) gamma times the mean gradient in every
/// step. If the mean is lost with a rank, z - v_i takes its place; the next mean makes z equal again. Source: Wang, Liang
/// and Joshi, "Overlap Local-SGD", ICASSP 2020, equations 3 to 8.
struct PullBack {
  static constexpr std::array<const char*, 2> state{"mean", "merged"};
  static constexpr int from_start = 1, shared = 0;
  static constexpr bool follows_rate = true;
  static constexpr bool merges_as_it_sends = true;
  static constexpr bool sends_models = true;

  float pullback = 0.6F;         ///< a; in [0, 1]
  float anchor_momentum = 0.7F;  ///< b; in [0, 1)
  bool follows_jumps = false;    ///< true removes the bounds of r, as in the paper, for rates that jump

  void check() const {
    require(pullback >= 0 && pullback <= 1, "pullback must be in [0, 1]", static_cast<double>(pullback));
    detail::check_beta("anchor_momentum", anchor_momentum);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("pullback", static_cast<double>(pullback));
    visit("anchor_momentum", static_cast<double>(anchor_momentum));
    visit("follows_jumps", follows_jumps ? 1.0 : 0.0);
  }
  float largest_ratio(std::uint64_t t) const {
    return detail::largest_ratio(follows_jumps, anchor_momentum, t);
  }
  template <Number P>
  static detail::AheadOfAnchor message(ParameterRef<P>, OuterBuffers own) {
    return {own.first, own.second};
  }
  static detail::WriteMean land(OuterBuffers own, const StepScalars*, int) { return {own.first}; }
  static detail::StepAhead without_mean(OuterBuffers own) { return {own.first, own.second}; }
  template <Number P>
  detail::PullBackStep<P> merge(ParameterRef<P> x, OuterBuffers own, const StepScalars* now,
                                int ratio_at) const {
    return {x, own.first, own.second, now, ratio_at, pullback, anchor_momentum};
  }
};

/// CoCoD-SGD's merge of a late mean: x_i = mean of the sent parameters + this rank's local steps since then. No step
/// is discarded. If the mean is lost with a rank, the parameters that this rank has sent take its place. Source: Shen et
/// al., "Faster distributed deep net training: computation and communication decoupled stochastic gradient descent", IJCAI
/// 2019, algorithm 1.
struct DelayCorrection {
  static constexpr std::array<const char*, 2> state{"mean", "merged"};
  static constexpr int from_start = 2, shared = 0;
  static constexpr bool follows_rate = false;
  static constexpr bool merges_as_it_sends = true;
  static constexpr bool sends_models = true;

  static void check() {}
  template <class Visit>
  void settings(Visit&&) const {}
  template <Number P>
  static detail::ReadParameters<P> message(ParameterRef<P> x, OuterBuffers) {
    return {x};
  }
  static detail::WriteMean land(OuterBuffers own, const StepScalars*, int) { return {own.first}; }
  static detail::KeepAnchor<float> without_mean(OuterBuffers own) { return {{own.second}, own.first}; }
  template <Number P>
  static detail::CorrectDelay<P> merge(ParameterRef<P> x, OuterBuffers own, const StepScalars*, int) {
    return {x, own.first, own.second};
  }
};

}  // namespace terse
