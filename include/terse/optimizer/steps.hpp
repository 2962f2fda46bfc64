// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/call.hpp"

// The members of Optimizer that construct it and take its steps.

namespace terse {

// They are defined outside the class, so that they are not inline and `extern template` prevents their
// instantiation.

template <class R, class T, Executor E, class N>
TERSE_COLD Optimizer<R, T, E, N>::Optimizer(R recipe_, T& transport, const Layout& layout,
                                            const Options& options, E executor, N)
    : recipe((detail::check_values(recipe_), std::move(recipe_))),
      options_((detail::check_options(options, GridExecutor<E>, detail::ever_alike<R>()),
                detail::with_slices(options, detail::OverlappedExecutor<E>))),
      layout_((detail::check_layout(layout, transport.rank()), layout)),
      executor_((detail::check_stream(transport, executor), executor)),
      transport_(transport.split(0, transport.rank())),
      channel_(transport_, &sent_),
      fingerprint_(
          detail::agree_on_fingerprint<R>(channel_, layout_, recipe, options_, numerics_of(executor_))),
      groups_(layout_, recipe),
      scalars_(groups_.recipes().size() + 1),
      norms_(channel_, executor_, layout_),
      replicas_(channel_),
      state_(detail::composed(recipe), executor, channel_, layout_, options_),
      masters_(layout_) {
  now_ = buffer<StepScalars, typename E::memory>(static_cast<index_t>(scalars_.size()));
  ready_.resize(layout_.segments().size());
  if constexpr (!std::is_same_v<P, float> && detail::keeps_masters<R>()) state_.keep_masters();
  if constexpr (requires { detail::composed(recipe).compressor; })
    if (rank() == 0 && size() > 1) {
      const Plan compressed(detail::composed(recipe).compressor, layout_, layout_.range(), 1, false);
      const Plan exact(Dense{}, layout_, layout_.range(), 1, false);
      index_t step = 0;
      // Only for methods that average in each step.
      if constexpr (requires { state_.exact_bytes; }) step = state_.bytes_per_step().compressed;
      detail::warn_of_growth(options_, compressed.whole.bytes, exact.whole.bytes, step, size());
    }
}

template <class R, class T, Executor E, class N>
TERSE_COLD Optimizer<R, T, E, N>::~Optimizer() = default;

template <class R, class T, Executor E, class N>
StepResult Optimizer<R, T, E, N>::step(out<E, P> parameters, in<E, G> gradients, float gradient_scale) try {
  guard().check_scale(gradient_scale);
  const StepInput<E, N> input = input_of(parameters, gradients);
  const std::uint64_t step = input.context.step;
  const detail::Call call(detail::Verb::step, step);
  detail::follow(executor_);
  if (open_.parameters == nullptr)
    enter(parameters);
  else if (open_.parameters != parameters.data() || open_.gradients != gradients.data() ||
           std::bit_cast<std::uint32_t>(open_.gradient_scale) != std::bit_cast<std::uint32_t>(gradient_scale))
    guard().refuse("begin was given other parameters, gradients or another gradient_scale than step");
  const Open open = std::exchange(open_, Open{});
  if (waits_for_norm()) {
    const auto norm = norms_(channel_, executor_, input.gradients, gradient_scale, step);
    // Bytes sent by begin are counted once, although the round continues in the next step.
    if (norm.culprit >= 0 && options_.on_non_finite == NonFinite::skip)
      return {false, std::exchange(sent_, 0), false};
    if (norm.culprit >= 0 && options_.on_non_finite == NonFinite::throw_)
      refuse_non_finite(norm.culprit, parameters, gradients, gradient_scale, true);
    if (clips_before()) gradient_scale *= detail::clip_factor(norm.value, options_.clip_norm);
  }
  if (!open.travels) prepare(input, gradient_scale);
  try {
    detail::composed(recipe).enqueue(input, state_);
    detail::composed(recipe).complete(input, state_);
  } catch (const non_finite_error& found) {
    refuse_non_finite(found.culprit(), parameters, gradients, gradient_scale, detail::all_throw<R>());
  } catch (const peer_error& lost) {
    failure_.keep();
    // Peers may have found this rank's bad value first, and left. Host only: the device itself may have failed.
    if constexpr (std::is_same_v<typename E::memory, memory::host>)
      if (options_.on_non_finite == NonFinite::throw_)
        if (const auto found =
                find_own(parameters, gradients, gradient_scale, std::numeric_limits<float>::max());
            found.arena != detail::NonFiniteValue::Arena::unknown)
          detail::throw_non_finite(found, layout_, rank(), true, rank(), step, lost.what());
    throw;
  }
  begun_ = false;
  steps_ = step;
  compare_replicas(parameters);
  if constexpr (std::is_same_v<typename E::memory, memory::host>)
    watch_.look(layout_, in<E, P>(parameters), rank(), steps_);
  detail::lead(executor_);
  return {true, sent_, compressed_, detail::masked_by_freeze(state_, rank(), steps_)};
} catch (...) {
  failure_.keep();
  throw;
}

template <class R, class T, Executor E, class N>
void Optimizer<R, T, E, N>::check_start(in<E, P> parameters) {
  if constexpr (detail::needs_one_start<R>()) {
    if (steps_ != 0 || started_) return;
    replicas_.check_start(channel_, layout_, [&](const auto& visit) { visit("parameters", parameters); });
    // Replicas are equal here, so all ranks throw.
    detail::NonFiniteValue found;
    if (detail::find_value(layout_, parameters, 1, std::numeric_limits<float>::max(), found))
      detail::throw_parameters(found, layout_, "before the first step", "", rank(), 1);
    started_ = true;
  }
}

template <class R, class T, Executor E, class N>
TERSE_COLD detail::NonFiniteValue Optimizer<R, T, E, N>::find_own(in<E, P> parameters, in<E, G> gradients,
                                                                  float gradient_scale, float most) const {
  using Arena = detail::NonFiniteValue::Arena;
  detail::NonFiniteValue found;
  if (detail::find_value(layout_, gradients, gradient_scale, most, found))
    found.arena = Arena::gradient;
  else if (detail::find_value(layout_, parameters, 1, most, found))
    found.arena = Arena::parameters;
  return found;
}

template <class R, class T, Executor E, class N>
TERSE_COLD void Optimizer<R, T, E, N>::refuse_non_finite(int culprit, in<E, P> parameters, in<E, G> gradients,
                                                         float gradient_scale, bool all_ranks) {
  detail::NonFiniteValue found;
  if (culprit == rank()) found = find_own(parameters, gradients, gradient_scale, largest_finite);
  bool known = culprit == rank();
  if (all_ranks) try {
      Assembly<detail::NonFiniteValue, Channel> everyone(channel_);
      found = everyone(channel_, found, Phase::agree)[static_cast<std::size_t>(culprit)];
      known = true;
    } catch (const peer_error&) {
      failure_.keep();
      // A rank that has already received the error may have ended its program.
    }
  detail::throw_non_finite(found, layout_, culprit, known, rank(), steps_ + 1);
}

template <class R, class T, Executor E, class N>
template <class Parameters, class Visit>
void Optimizer<R, T, E, N>::walk_shared([[maybe_unused]] Parameters parameters,
                                        [[maybe_unused]] const Visit& visit) {
  if (detail::alike(detail::composed(recipe), state_)) {
    visit("parameters", parameters);
    if constexpr (Masters::kept) visit("masters", masters_.all());
  }
  detail::walk_shared(state_, visit);
}

template <class R, class T, Executor E, class N>
template <class Visit>
void Optimizer<R, T, E, N>::walk_derived(const Visit& visit) {
  detail::walk_derived(state_, visit);
}

template <class R, class T, Executor E, class N>
void Optimizer<R, T, E, N>::compare_replicas([[maybe_unused]] in<E, P> parameters) {
  if constexpr (detail::ever_alike<R>())
    replicas_.check_after(channel_, layout_, steps_, options_.compare_every,
                          detail::alike(detail::composed(recipe), state_),
                          [&](const auto& visit) { walk_shared(parameters, visit); });
}

template <class R, class T, Executor E, class N>
void Optimizer<R, T, E, N>::begin(out<E, P> parameters, in<E, G> gradients, float gradient_scale) try {
  failure_.rethrow();
  if (open_.parameters != nullptr)
    guard().refuse("begin has opened a step, which `step` must finish before another one begins");
  guard().check_scale(gradient_scale);
  const StepInput<E, N> input = input_of(parameters, gradients);
  const detail::Call call(detail::Verb::begin, input.context.step);
  detail::follow(executor_);
  enter(parameters);
  open_ = {parameters.data(), gradients.data(), gradient_scale, false};
  if (!begun_) begun_agreement_ = input.context.agreement;
  std::fill(ready_.begin(), ready_.end(), std::uint8_t{0});
  if constexpr (detail::Opens<detail::Composed<R>, State, E, N>) {
    if (waits_for_norm()) return;
    prepare(input, gradient_scale);
    detail::composed(recipe).open(input, state_);
    open_.travels = true;
  }
} catch (...) {
  failure_.keep();
  throw;
}

template <class R, class T, Executor E, class N>
template <class S>
void Optimizer<R, T, E, N>::mask(in<E, std::uint8_t> elements) {
  static_assert(
      detail::TakesMask<S>,
      "terse: a mask is for methods of two stages (OneBitAdam, OneBitLamb, Staged), whose second one "
      "compresses: it takes effect when the stages change");
  if constexpr (detail::TakesMask<S>) {
    guard().check_size(elements.size(), "mask", layout_);
    if (begun())
      guard().refuse("messages of a step are under way, and it has its mask: give another one between steps");
    if (!full_precision() && steps_ > 0)
      guard().refuse(
          "the second stage has begun, and its mask can't change any more: set the mask before that");
    detail::await_messages(channel());
    detail::follow(executor_);
    masked_ = state_.leave_out(elements.data());
  }
}

template <class R, class T, Executor E, class N>
void Optimizer<R, T, E, N>::ready(index_t segment) {
  failure_.rethrow();
  // `ready` may be called by another thread than `step`.
  detail::check_processor(rank(), steps_ + 1);
  const detail::Call call(detail::Verb::step, steps_ + 1);
  if (open_.parameters == nullptr)
    guard().refuse("ready belongs between begin(parameters, gradients) and step");
  if (segment < 0 || segment >= static_cast<index_t>(ready_.size()))
    guard().refuse("ready was called for segment " + std::to_string(segment) + ", and the layout has " +
                   std::to_string(ready_.size()));
  const auto place = static_cast<std::size_t>(segment);
  if (ready_[place] != 0)
    guard().refuse("ready was called twice for segment '" + layout_.segments()[place].name + "'");
  ready_[place] = 1;
  if constexpr (detail::Opens<detail::Composed<R>, State, E, N>)
    if (open_.travels) try {
        detail::follow(executor_);
        detail::composed(recipe).allow(state_, segment);
      } catch (...) {
        failure_.keep_any();
        throw;
      }
}

template <class R, class T, Executor E, class N>
void Optimizer<R, T, E, N>::progress() try {
  failure_.rethrow();
  const detail::Call call(detail::Verb::step, steps_ + 1);
  if constexpr (detail::Opens<detail::Composed<R>, State, E, N>)
    if (open_.travels) detail::composed(recipe).progress(state_);
} catch (...) {
  failure_.keep_any();
  throw;
}

template <class R, class T, Executor E, class N>
void Optimizer<R, T, E, N>::begin(out<E, P> parameters) requires(detail::is_blind<R>()) try {
  failure_.rethrow();
  // Despite the constraint, clang 14 instantiates it with the class.
  if constexpr (detail::is_blind<R>()) {
    if (begun_) return;
    const StepInput<E, N> input = input_of(parameters, {nullptr, layout_.size()});
    const detail::Call call(detail::Verb::begin, input.context.step);
    detail::follow(executor_);
    enter(parameters);
    prepare(input, 1);
    begun_agreement_ = agreement();
    detail::composed(recipe).begin(input, state_);
    begun_ = true;
  }
} catch (...) {
  failure_.keep();
  throw;
}

template <class R, class T, Executor E, class N>
void Optimizer<R, T, E, N>::record(out<E, P> parameters, in<E, G> gradients) requires GridExecutor<E> {
  if constexpr (GridExecutor<E>) {
    if (options_.clips() || must_agree())
      throw usage_error(
          "a step with clip_norm or NonFinite::skip, or whose messages don't show whether the gradient is "
          "finite, waits for the norm and can't be recorded",
          channel_.rank());
    if (options_.compare_every > 0)
      throw usage_error("compare_every brings parameters to the host and can't be recorded", channel_.rank());
    detail::check_recordable(detail::composed(recipe), {steps_ + 1, steps_ + 1}, full_precision(), begun_,
                             rank());
    if constexpr (requires { state_.recovers(); })
      if (state_.recovers())
        throw usage_error(
            "after a step that failed, and after a checkpoint of an earlier stage, take one step before a "
            "record",
            channel_.rank());
    if (!masters_.there())
      throw usage_error("take one step before a record, so that the masters are there", channel_.rank());
    detail::composed(recipe).enqueue(input_of(parameters, gradients), state_);
    record_.take(steps_ + 1, full_precision(), masks());
  }
}

template <class R, class T, Executor E, class N>
void Optimizer<R, T, E, N>::rescale(std::string_view segment, float learning_rate_scale, float weight_decay) {
  if (begun()) guard().refuse("begin has sent messages of the next step: rescale before it, or after step");
  layout_.rescale(segment, learning_rate_scale, weight_decay);
  rescaled_ = detail::layout_hash(layout_);
}

}  // namespace terse
