// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "terse/core/draw.hpp"
#include "terse/core/error.hpp"
#include "terse/core/timer.hpp"
#include "terse/pipeline/agreement.hpp"
#include "terse/pipeline/batch.hpp"
#include "terse/pipeline/boundary.hpp"
#include "terse/pipeline/concept.hpp"
#include "terse/pipeline/copy_samples.hpp"
#include "terse/pipeline/options.hpp"
#include "terse/pipeline/stage_envelope.hpp"
#include "terse/transport/assembly.hpp"

namespace terse::detail {

/// A stage's passes of one step, with the messages that they receive and send. The schedule determines the order of
/// passes, the batch their examples.
///
///     open(slot_count, agreement)   begins a step, with up to `slot_count` micro-batches between forward and backward pass
///     forward<Training>(j), backward(j)
///     close()                       exchanges the last messages; returns the outcome, equal on all stages
///     abandon()                     replaces `close` if an exception ends the step
template <BoundaryPolicy P, Transport T, class S, Executor E>
class Passes {
  using A = ActivationOf<S>;
  using Lane = typename Lanes<T, E>::Lane;
  using Side = std::optional<Boundary<P, T, E>>;
  static constexpr bool on_host = std::is_same_v<typename E::memory, memory::host>;

 public:
  /// Keeps references to `stage`, the lanes and `batch`.
  Passes(E executor, const P& policy, const PipelineOptions& options, const BoundaryShapes& shapes, S& stage,
         Lanes<T, E>& all, const Batch& batch)
      : executor_(executor),
        stage_(stage),
        channel_(all.channel()),
        batch_(batch),
        rank_(channel_.rank()),
        seed_(options.seed),
        input_elements_(shapes.input),
        closing_(executor, ExactActivations{}, 0, 1, 1),
        envelope_(executor, batch, rank_),
        samples_(batch, audited(policy), rank_),
        note_(1) {
    const auto open = [&](Side& side, index_t elements, int peer) {
      side.emplace(executor, policy, options, elements, all, peer, closing_.largest_packet());
    };
    if (rank_ > 0) open(before_, shapes.input, rank_ - 1);
    if (last()) return;
    open(behind_, shapes.output, rank_ + 1);
    gradient_ = buffer<A, typename E::memory>(options.micro_batch * shapes.output);
  }

  void open(index_t slot_count, std::uint64_t agreement) {
    slots_ = slot_count;
    slot_elements_ = batch_.most_rows() * input_elements_;
    if (inputs_.size() < slots_ * slot_elements_)
      inputs_ = buffer<A, typename E::memory>(slots_ * slot_elements_);
    loss_ = 0;
    envelope_.open(agreement);
    expect(0);
    const bool training = batch_.training();
    // The verdict follows the activations; in an evaluation no gradients precede the total.
    if (before_) before_->forward.open(batch_.count() + (training ? 1 : 0), forward_bytes());
    if (behind_) behind_->backward.open(training ? batch_.count() : 1, backward_bytes());
  }

  template <bool Training>
  void forward(index_t j) {
    constexpr MessageKind kind = Training ? MessageKind::activation : MessageKind::evaluation;
    const MicroBatch rows = batch_.micro_batch(j);
    A* input = nullptr;
    expect(j + 1);
    if (before_) {
      Lane& lane = before_->forward;
      auto& in = before_->template activations<Training>();
      wait([&] { lane.take(j); });
      const Timer timer(statistics_.coding_seconds);
      input = inputs_.data() + j % slots_ * slot_elements_;
      const std::byte* const packet = lane.slot(j);
      in.lay_out(batch_.visits(j));
      envelope_.accept(in, packet, kind, j, before_->peer);
      samples_.check(in, packet, j);
      in.decode(packet, draws(j, Purpose::quantization).shared, envelope_.inner(), input);
      lane.release(j, forward_bytes());
    }
    const A* output;
    {
      const Timer timer(statistics_.forward_seconds);
      output = stage_.forward(rows, static_cast<const A*>(input));
      if (last()) {
        // With a deadline: `loss` may wait for the device.
        await_messages(channel_);
        loss_ += stage_.loss(rows);
        if (!std::isfinite(loss_)) envelope_.note();
      }
    }
    if (!behind_) return;
    if (output == nullptr) refuse_nothing("forward", "output", "last", j);
    Lane& lane = behind_->forward;
    auto& out = behind_->template activations<Training>();
    wait([&] { lane.prepare(j); });
    const Timer timer(statistics_.coding_seconds);
    std::byte* const packet = lane.slot(j);
    const index_t bytes = out.lay_out(batch_.visits(j));
    const std::uint64_t proof = samples_.before(out, j, output);
    out.encode(output, draws(j, Purpose::quantization), proof, envelope_.inner(), packet);
    samples_.after(out, j, output);
    envelope_.stamp(packet, bytes, kind, j);
    lane.send(j, bytes);
  }

  void backward(index_t j) {
    const MicroBatch rows = batch_.micro_batch(j);
    const A* gradient = nullptr;
    if (behind_) {
      Lane& lane = behind_->backward;
      auto& in = behind_->gradients;
      wait([&] { lane.take(j); });
      const Timer timer(statistics_.coding_seconds);
      const std::byte* const packet = lane.slot(j);
      in.lay_out(batch_.visits(j));
      envelope_.accept(in, packet, MessageKind::gradient, j, behind_->peer);
      in.decode(packet, draws(j, Purpose::second_quantization).shared, envelope_.inner(), gradient_.data());
      take_note(packet + in.note_at());
      lane.release(j, backward_bytes());
      gradient = gradient_.data();
    }
    const A* input_gradient;
    {
      const Timer timer(statistics_.backward_seconds);
      input_gradient = stage_.backward(rows, gradient);
    }
    if (!before_) return;
    if (input_gradient == nullptr) refuse_nothing("backward", "input", "first", j);
    Lane& lane = before_->backward;
    auto& out = before_->gradients;
    wait([&] { lane.prepare(j); });
    const Timer timer(statistics_.coding_seconds);
    std::byte* const packet = lane.slot(j);
    const index_t bytes = out.lay_out(batch_.visits(j));
    out.encode(input_gradient, draws(j, Purpose::second_quantization), envelope_.inner(), packet);
    give_note(packet + out.note_at());
    envelope_.stamp(packet, bytes, MessageKind::gradient, j);
    lane.send(j, bytes);
  }

  struct Outcome {
    std::uint16_t flags;  ///< packet flags; they name the sender of a message that was not finite
    double loss;
  };
  /// Passes the loss, which the last stage knows, and the flags of non-finite messages to all stages. The first stage knows
  /// all flags after the backward passes and informs the others; in an evaluation the last stage does.
  Outcome close() {
    if (batch_.training())
      pass_on(before_, behind_, &Boundary<P, T, E>::forward, batch_.count(), MessageKind::verdict);
    else
      pass_on(behind_, before_, &Boundary<P, T, E>::backward, 0, MessageKind::total);
    // The stage's own messages come first: a lane alone doesn't know which stage is late.
    wait([&] { await_messages(channel_); });
    each_lane([&](Lane& lane) { wait([&] { lane.drain(); }); });
    Outcome outcome{envelope_.conclude(), loss_};
    if (!last()) fetch(executor_, in<E, double>(note_.all()), view<double>(&outcome.loss, 1));
    return outcome;
  }
  /// Abandons all messages: after that no transport reads or writes the slots.
  void abandon() {
    each_lane([](Lane& lane) { lane.abandon(); });
  }

  /// Returns the boundary before this stage or, if `behind`, after it; empty at the ends.
  Side& before() { return before_; }
  Side& behind() { return behind_; }

  PipelineStatistics statistics() const {
    PipelineStatistics shown = statistics_;
    samples_.show(shown);
    return shown;
  }
  void reset_statistics() {
    statistics_ = {};
    samples_.reset();
  }

 private:
  static bool audited([[maybe_unused]] const P& policy) {
    if constexpr (P::remembers)
      return policy.audit;
    else
      return false;
  }
  bool last() const { return rank_ + 1 == channel_.size(); }
  template <class F>
  void each_lane(const F& f) {
    if (before_) f(before_->forward);
    if (behind_) {
      f(behind_->forward);
      f(behind_->backward);
    }
    if (before_) f(before_->backward);
  }
  template <class F>
  void wait(F f) {
    const Timer timer(statistics_.waiting_seconds);
    f();
  }

  /// Prefetches the copies needed by micro-batch j, if there is one.
  void expect(index_t j) {
    if (!batch_.training() || j >= batch_.count()) return;
    if (before_) before_->trained.expect(batch_.visits(j));
    if (behind_) behind_->trained.expect(batch_.visits(j));
  }
  /// Returns the length of the j-th message of this step from a neighbour, for lanes that need it.
  auto forward_bytes() {
    return [this](index_t j) {
      if (j == batch_.count()) return closing_.lay_out({});
      return batch_.training() ? before_->trained.lay_out(batch_.visits(j))
                               : before_->evaluated.lay_out(batch_.visits(j));
    };
  }
  auto backward_bytes() {
    return [this](index_t j) {
      return batch_.training() ? behind_->gradients.lay_out(batch_.visits(j)) : closing_.lay_out({});
    };
  }
  /// Returns random draws that depend on the message's number in the run, not on the schedule.
  EncodeContext draws(index_t j, Purpose rounding) const {
    const std::uint64_t number = batch_.number(j);
    return {number, Draw::local(seed_, rank_, number, rounding),
            Draw::shared(seed_, number, Purpose::selection)};
  }

  void pass_on(Side& from, Side& to, Lane Boundary<P, T, E>::*direction, index_t j, MessageKind kind) {
    const index_t bytes = closing_.lay_out({});
    if (from) {
      Lane& lane = (*from).*direction;
      wait([&] { lane.take(j); });
      envelope_.accept(closing_, lane.slot(j), kind, j, from->peer);
      if (kind == MessageKind::total) take_note(lane.slot(j) + closing_.note_at());
    }
    if (!to) return;
    Lane& lane = (*to).*direction;
    wait([&] { lane.prepare(j); });
    give_note(lane.slot(j) + closing_.note_at());
    envelope_.stamp(lane.slot(j), bytes, kind, j);
    lane.send(j, bytes);
  }
  /// Reads the loss from a message; gradients carry it to the first stage.
  void take_note(const std::byte* note) {
    copy(executor_, in<E, double>(reinterpret_cast<const double*>(note), 1), note_.all());
  }
  void give_note(std::byte* note) {
    if (last()) put(executor_, view<const double>(&loss_, 1), note_.all());
    copy(executor_, in<E, double>(note_.all()), out<E, double>(reinterpret_cast<double*>(note), 1));
  }

  [[noreturn]] void refuse_nothing(const char* pass, const char* side, const char* end, index_t j) const {
    throw usage_error("the stage's " + std::string(pass) + " pass of micro-batch " + std::to_string(j) +
                          " returned nullptr, which only the " + end + " stage's may: this one has " + side +
                          "_elements() > 0",
                      rank_, static_cast<std::int64_t>(batch_.step()));
  }

  E executor_;
  S& stage_;
  T& channel_;
  const Batch& batch_;
  int rank_;
  std::uint64_t seed_;
  index_t input_elements_;  // of an example
  ActivationGradients<ExactActivations, E> closing_;
  Side before_, behind_;
  StageEnvelope<E> envelope_;
  CopySamples<P::remembers && on_host> samples_;
  PipelineStatistics statistics_;

  buffer<A, typename E::memory> inputs_, gradient_;
  index_t slots_ = 0, slot_elements_ = 0;  // of this step's inputs
  buffer<double, typename E::memory> note_;
  double loss_ = 0;
};

}  // namespace terse::detail
