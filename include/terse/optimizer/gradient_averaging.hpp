// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "terse/error_feedback/residual.hpp"
#include "terse/momentum_correction/heavy_ball.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/topology/all_gather.hpp"
#include "terse/topology/ring.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// x = x - learning_rate (direction(mean) + weight_decay x).
template <Number P, class Direction>
struct Descend {
  Weights<P> parameters;
  const Rate* rates;
  Direction direction;
  float gradient_factor = 1;
  Rate rate{};

  TERSE_HD void enter(const Piece& piece) { rate = rates[piece.segment]; }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    const float x = parameters[i];
    parameters.set(i,
                   x - rate.learning_rate * (direction(i, mean * gradient_factor) + rate.weight_decay * x));
  }
};
template <Number P, class Direction>
Descend(Weights<P>, const Rate*, Direction) -> Descend<P, Direction>;

/// The mean counts for nothing.
struct Ignore {
  TERSE_HD void operator()(const Piece&, index_t, float) const {}
};

/// Starts a Difference from an exact round on the way to what the mean is for.
template <class View, Number G, class Use>
struct Seeding {
  View feedback;
  index_t end;  // one past the last arena index that the feedback holds
  ScaledGradient<G> own;
  Use use;
  float gradient_factor = 1;
  bool held = false;

  TERSE_HD void enter(const Piece& piece) {
    use.gradient_factor = gradient_factor;
    terse::enter(own, piece);
    terse::enter(use, piece);
    held = piece.offset >= feedback.begin && piece.offset + piece.count <= end;
  }
  TERSE_HD void operator()(const Piece& piece, index_t i, float mean) const {
    if (held) feedback.seed(i, sanitized(own(piece, i)).value, mean);
    use(piece, i, mean);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

/// SGD on averaged gradients, whatever they are compressed with: the family that ErrorFeedbackSgd, SignSgd,
/// DeepGradientCompression, PowerSgd, QuantizedSgd, Ef21Sgd and MomentumSgd are members of.
///
///     message_i   by the momentum correction, from this rank's gradient
///     mean        of the compressed messages, by error feedback and topology
///     x = x - learning_rate (direction(mean) + weight_decay x)
///
/// The first `warmup_steps` steps average exactly, as do segments with `compress == false`, and as does the first
/// step where the error feedback starts from an exact one (Difference). Weight decay is decoupled from the
/// message. State: n floats of momentum where the correction has any, and the feedback's. Passes over n: see the
/// compressor, and one for the update. warmup_steps and the error feedback's hyper-parameters hold from construction
/// on; the others may be changed between steps.
template <class C, MomentumCorrection M, Topology P, ErrorFeedback F>
struct GradientAveraging {
  static_assert(check_compressor<C>() && check_feedback<C, F>() && check_stages<C, F, P>());

  float learning_rate = 0.1F;
  float weight_decay = 0;
  std::uint64_t warmup_steps = 0;
  M momentum_correction{};
  C compressor{};
  F error_feedback{};

  void check() const {
    detail::check_rate("learning_rate", learning_rate);
    detail::check_rate("weight_decay", weight_decay);
    detail::check_policy(momentum_correction);
    detail::check_policy(compressor);
    detail::check_policy(error_feedback);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("learning_rate", static_cast<double>(learning_rate));
    visit("weight_decay", static_cast<double>(weight_decay));
    visit("warmup_steps", static_cast<double>(warmup_steps));
    detail::policy_settings(momentum_correction, visit);
    detail::policy_settings(compressor, visit);
    detail::policy_settings(error_feedback, visit);
  }

  template <Transport T, Executor E>
  struct State {
    /// Where there are exact steps.
    std::optional<DenseExchange<P, T, E>> exact;
    std::optional<Exchange<C, F, P, T, E>> compressed;
    Rates<E> rates;
    buffer<float, typename E::memory> velocity;
    std::uint64_t exact_steps;
    std::uint64_t steps = 0;
    /// Of feedbacks that keep copies on all ranks, which a round that throws leaves apart: 2 in a compressed round, 1 in
    /// the exact one that starts the copies anew after a failure.
    std::uint64_t torn = 0;

    State(const GradientAveraging& recipe, E executor, T& transport, const Layout& layout, bool clips)
        : rates(layout), exact_steps(recipe.exact_steps()) {
      if (C::lossless || exact_steps > 0)
        exact.emplace(executor, transport, layout, layout.range(), Dense{}, None{}, clips);
      if constexpr (!C::lossless)
        compressed.emplace(executor, transport, layout, layout.range(), recipe.compressor,
                           recipe.error_feedback);
      if (M::stateful) velocity = buffer<float, typename E::memory>(layout.size());
    }
    bool full_precision() const { return C::lossless || steps < exact_steps || torn != 0; }
    bool failed() const { return torn != 0; }
    /// The same as full_precision() within a step.
    bool averages_exactly() const { return C::lossless || steps < exact_steps || torn == 1; }
    template <class Visit>
    void walk(Visit&& visit) {
      visit("averaged_steps", steps);
      if (seeds()) visit("torn", torn);
      if (M::stateful) visit("momentum", velocity.all(), index_t{0});
      if constexpr (!C::lossless) compressed->walk(visit);
    }
  };

  template <Transport T, Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<T, E>& state, StepScalars&) const {
    state.rates.set(input.executor, input.layout, learning_rate, weight_decay);
    if (seeds()) state.torn = state.torn != 0 ? 1 : state.full_precision() ? 0 : 2;
  }
  template <Transport T, Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<T, E>& state) const {
    float* v = state.velocity.data();
    const auto x = input.parameters;
    const Rate* rates = state.rates.table();
    const ScaledGradient gradient{input.gradients, input.context.now};
    const detail::Descend exact{x, rates, momentum_correction.exact_direction(v)};

    if (state.averages_exactly())
      average_exactly(input, state, exact);
    else if constexpr (!C::lossless) {
      const Message message{momentum_correction.message(gradient, v), gradient};
      const StepContext context = input.context.at_rate(learning_rate);
      state.compressed->set_compressor(compressor);
      if (holds())
        state.compressed->mix(context, {}, message, Message{detail::Ignore{}, exact});
      else
        state.compressed->mix(context, {}, message,
                              Message{detail::Descend{x, rates, momentum_correction.direction(v)}, exact});
    }
  }
  template <Transport T, Executor E, class N>
  void complete(const StepInput<E, N>& input, State<T, E>& state) const {
    if (state.averages_exactly())
      state.exact->settle(input.context);
    else if constexpr (!C::lossless)
      state.compressed->settle(input.context);
    ++state.steps;
    state.torn = 0;
  }

 private:
  static constexpr bool seeds() {
    return !C::lossless && requires(typename F::View view) { view.seed(index_t{}, 0.0F, 0.0F); };
  }
  std::uint64_t exact_steps() const { return seeds() && warmup_steps == 0 ? 1 : warmup_steps; }

  /// At rate 0 an error that follows the rate stays as it is, and momentum must not take it up.
  bool holds() const {
    if constexpr (requires { error_feedback.follows_rate; })
      return error_feedback.follows_rate && learning_rate == 0;
    return false;
  }

  template <Transport T, Executor E, class N, class Use>
  static void average_exactly(const StepInput<E, N>& input, State<T, E>& state, const Use& use) {
    // In each of them, so that a record of one serves for all; what the last one says counts.
    if constexpr (seeds())
      average_gradients(*state.exact, input,
                        detail::Seeding<typename F::View, typename N::gradient, Use>{
                            state.compressed->feedback(),
                            state.compressed->plan().whole.compressed.end_offset(),
                            {input.gradients, input.context.now},
                            use});
    else
      average_gradients(*state.exact, input, use);
  }
};

}  // namespace terse
