// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

#include "terse/executor/host.hpp"
#include "terse/executor/numerics.hpp"
#include "terse/optimizer/comparison.hpp"
#include "terse/optimizer/failure.hpp"
#include "terse/optimizer/fingerprint.hpp"
#include "terse/optimizer/gradient_norm.hpp"
#include "terse/optimizer/groups.hpp"
#include "terse/optimizer/guards.hpp"
#include "terse/optimizer/masters.hpp"
#include "terse/optimizer/non_finite_value.hpp"
#include "terse/optimizer/optional_parts.hpp"
#include "terse/optimizer/options.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/optimizer/record.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/channel.hpp"
#include "terse/transport/collectives.hpp"

namespace terse {

/// Runs a recipe on one rank: owns its state and counts its steps. Construction is collective. Throws mismatch_error if ranks differ
/// in layout, recipe, hyper-parameters, options, world or numerics; the error names the difference.
///
///     terse::Optimizer optimizer{terse::Adam<>{.learning_rate = 1e-3f}, transport, layout};
///     optimizer.step(parameters, gradients);
///
/// Construction takes all memory; a step allocates nothing. Hyper-parameters in `recipe` may be changed between steps, to equal
/// values on all ranks: packets of ranks with other values are refused. Invalid values are a usage_error.
///
/// Models in 16 bits: `Optimizer optimizer{recipe, transport, layout, options, executor, Numbers<bf16>{}}`. The first step copies
/// the parameters into fp32 masters, unless a checkpoint has loaded the masters. From then on parameters are written, not read.
/// Scale the loss against underflow of gradients, and pass 1 / loss scale as gradient_scale.
///
/// To compile an optimizer once, write `extern template class terse::Optimizer<terse::Adam<>, terse::Threads>;` where it is used
/// and `template class ...` of the same type in one translation unit.
template <class R, class T, Executor E = executor::host, class N = Numbers<>>
class Optimizer {
  static_assert(check_transport<T>());
  static_assert(check_recipe<R>() && detail::check_steps<R, T, E, N>());
  using P = typename N::parameter;
  using G = typename N::gradient;
  using State = typename detail::Composed<R>::template State<E>;
  static_assert(detail::scalars_of<R>() <= StepScalars::most_own,
                "terse: the policies of a recipe have room for 14 scalars");
  using Masters = detail::Masters<E, P, !std::is_same_v<P, float> && !detail::keeps_masters<R>()>;

 public:
  using runs_on = E;
  using parameter = P;
  R recipe;  ///< the hyper-parameters, such as the learning rate; may change between steps

  Optimizer(R recipe_, T& transport, const Layout& layout, const Options& options = {}, E executor = {},
            N = {});
  ~Optimizer();
  // Exchanges in flight and their lists point into this object.
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Takes one step on views of `layout.size()` elements each. The gradient is that of this rank's own samples; all ranks have equal
  /// weight. `gradient_scale` multiplies the gradient first (1 / accumulated batches, 1 / loss scale). Throws usage_error for views of
  /// the wrong size, non_finite_error by policy, and exceptions of the transport. After an error of messages (peer_error, wire_error,
  /// an exception specific to the transport) each later call throws that error again.
  ///
  /// Ranks start from the same parameters, see `terse::broadcast`. The first step compares the parameters, unless the recipe mixes
  /// models: a difference is a mismatch_error on all ranks, which names a rank and a segment. Later steps compare them at the end of
  /// the step, as often as Options::compare_every says.
  ///
  /// non_finite_error names the rank, the segment, and one of gradient, parameters or message. It is also thrown for parameters that
  /// are NaN or infinite: before the first step and, on the host, within 16 steps after they became NaN or infinite.
  ///
  /// After a non_finite_error of a gradient, the parameters and the momentum on the mean are unchanged. In a compressed step the error
  /// feedback and momentum before compression already contain the message. A run that continues from there loses the compressed part of
  /// that message on every rank. The state never contains a value that is not finite.
  StepResult step(out<E, P> parameters, in<E, G> gradients, float gradient_scale = 1);
  // Compilers print the line of a deleted function that was chosen, so that line contains the sentence.
  // clang-format off
  template <class X, class D> requires(detail::HoldsOther<X, P> || detail::HoldsOther<D, const G>)
  StepResult step(X&&, D&&, float = 1) = delete;  // terse: step writes parameters and reads gradients, containers of float or, with Numbers<bf16> or Numbers<fp16>, of those; convert others, such as double
  template <class X, class D> requires(detail::HoldsOther<X, P> || detail::HoldsOther<D, const G>)
  void begin(X&&, D&&, float = 1) = delete;  // terse: begin takes what step takes: containers of float or, with Numbers<bf16> or Numbers<fp16>, of those; convert others, such as double
  // clang-format on

  /// Opens the next step while its gradient is still being computed, to overlap communication with it. `ready` then marks segments as
  /// final, one after the other, and `step`, with equal views and scale, does the rest. Only segments marked as ready are read before
  /// `step`. All, some or none of them may be marked, in any order: the result has the same bits.
  ///
  ///     optimizer.begin(parameters, gradients);
  ///     ... for each segment, the last one first:   optimizer.ready(segment);
  ///     optimizer.step(parameters, gradients);
  ///
  /// A slice is sent as soon as all its segments are ready, see Options::slice_bytes; a low-rank step sends everything with the last
  /// segment. Nothing is sent before `step` in three cases: the step needs a norm first (NonFinite::skip; clip_norm in compressed
  /// steps), messages go over hierarchies, or the recipe doesn't average gradients or momenta over all ranks. In these cases calls of
  /// `begin` and `ready` are allowed and do nothing. Until `step`, parameters, hyper-parameters and gradients of ready segments must
  /// not change. `ready` doesn't wait for any rank. Throws usage_error for calls in another order, and all exceptions that `step`
  /// throws.
  void begin(out<E, P> parameters, in<E, G> gradients, float gradient_scale = 1);
  void ready(index_t segment);
  /// Advances the messages of an open step, without waiting: most transports make progress only inside calls.
  void progress();

  /// Sends the messages of a recipe whose messages don't depend on the gradient, so that communication overlaps with the computation of
  /// the gradient. The next step finishes the round; until then a second call does nothing, and `parameters` must not change.
  /// CombineThenAdapt writes the mixture to `parameters`; the gradient must be computed there.
  void begin(out<E, P> parameters) requires(detail::is_blind<R>());

  /// Enqueues the next step without taking it, so that the executor's stream can record it, for example in the capture of a CUDA graph.
  /// The record contains the addresses of the views, but not the values that change between steps (rates, gradient scale, step, bias
  /// corrections). A record is valid for one stage: see `full_precision`. Throws usage_error if a step needs the host before its end:
  /// with clip_norm, NonFinite::skip, or a policy that needs the host, such as an error feedback that follows the learning rate. In
  /// each step either all ranks replay a record, or none does. For transports that don't wait for the host (Nccl), and for one rank.
  void record(out<E, P> parameters, in<E, G> gradients) requires GridExecutor<E>;
  /// Takes one step, which `run()` enqueues from a record of this optimizer. Throws as `step` does, and usage_error if the record was
  /// made in the other stage, or from a step of another kind: see detail::unrecordable.
  template <class Run>
  void replay(Run run, float gradient_scale = 1) requires GridExecutor<E> {
    record_.check(full_precision(), masks(), guard());
    detail::check_recordable(detail::composed(recipe), {record_.step(), steps_ + 1}, full_precision(), begun_,
                             rank());
    const StepInput<E, N> input = input_of({nullptr, layout_.size()}, {nullptr, layout_.size()});
    detail::follow(executor_);
    prepare(input, gradient_scale);
    try {
      run();
      detail::composed(recipe).complete(input, state_);
    } catch (...) {
      failure_.keep();
      throw;
    }
    steps_ = input.context.step;
    detail::masked_by_freeze(state_, rank(), steps_);
    detail::lead(executor_);
  }

  /// Writes the parameters for evaluation in fp32, for recipes whose steps use other parameters. No communication. Throws
  /// usage_error for a view of the wrong size.
  template <class Which>
  void read_out(Which which,
                out<E> to) const requires detail::ReadsOut<detail::Composed<R>, State, E, Which> {
    detail::StepGuard{rank(), steps_}.check_size(to.size(), "read-out", layout_);
    detail::follow(executor_);
    detail::composed(recipe).read_out(executor_, state_, which, to);
    detail::lead(executor_);
  }

  /// Writes the mean of all ranks' parameters, in fp32: the model to evaluate if the ranks of a method differ. Collective,
  /// between steps; bitwise equal on all ranks. Throws usage_error for views of the wrong size.
  void mean_parameters(in<E, P> parameters,
                       out<E> to) requires std::same_as<typename E::memory, memory::host> {
    failure_.rethrow();
    const detail::StepGuard after{rank(), steps_};
    after.check_size(parameters.size(), "parameters", layout_);
    after.check_size(to.size(), "mean", layout_);
    for (index_t i = 0; i < to.size(); ++i) to[i] = masters_.at(i, parameters);
    mean(channel(), to);
  }

  /// Returns the hyper-parameters of the segments in group `id`: a copy of the recipe as it was at construction; for group 0 it
  /// returns `recipe` itself. Changes take effect in the next step and must be equal on all ranks (other packets are refused).
  /// Compressor, error feedback, topology and the end of a first stage belong to the whole step: a group that differs in them is a
  /// usage_error in the next step. Throws usage_error if the group has no segment.
  R& group(int id) { return id == 0 ? recipe : groups_.at(id); }
  /// Sets the learning rate from the next step on, to an equal value on all ranks: `recipe.learning_rate`, in nested recipes that of
  /// the innermost recipe.
  void learning_rate(float rate) { set_learning_rate(recipe, rate); }
  float learning_rate() const { return detail::learning_rate_of(recipe); }
  /// Sets a segment's scales of the recipe's learning rate and weight decay, from the next step on, to equal values on all ranks
  /// (other packets are refused). A checkpoint contains the scales that were set when it was saved; a run that resumes from it must
  /// set them again before it loads. Throws usage_error for a name that no segment has, for scales that are negative or not finite,
  /// and for calls between begin and step.
  void rescale(std::string_view segment, float learning_rate_scale, float weight_decay);
  /// Masks elements in the second stage of two-stage methods (Staged, OneBitAdam, OneBitLamb): element i of the arena if `elements[i]`
  /// is 0 and its segment is compressed. Mask elements whose gradient will be 0: a one-bit code cannot represent 0, and would move them
  /// forever. When the second stage begins, the momentum of masked elements becomes 0. From then on masked elements don't count in
  /// scales and have no error, and only weight decay moves them. Until then, and in segments that are not compressed, nothing changes.
  ///
  /// Call it with the same mask on all ranks (other packets are refused), between steps, before the second stage begins (without a
  /// first stage, before the first step). The last call counts. The mask is part of checkpoints: `load` replaces an earlier mask by the
  /// mask of the checkpoint. Throws usage_error for a view of the wrong size, and if the second stage has begun. Reads all elements
  /// once and copies n / 8 bytes to the host. Compressed steps then read n / 8 bytes more in each pass.
  template <class S = State>
  void mask(in<E, std::uint8_t> elements);
  /// Returns the largest number of bytes that this rank sends for a step without errors. It is exact if packets have a fixed size and
  /// all steps of one kind send equally many bytes. No communication. Comparisons of parameters, which send 12 bytes to each peer,
  /// are not included.
  StepBytes bytes_per_step() const requires detail::SaysBytes<State> {
    StepBytes bytes;
    // Despite the constraint, clang 14 instantiates it with the class.
    if constexpr (detail::SaysBytes<State>) bytes = state_.bytes_per_step();
    const bool clips = options_.clips();
    const index_t norms = norms_.bytes(channel_.size());
    // If some steps are compressed, the others average exactly and clip the mean.
    const bool compresses = bytes.compressed > 0;
    const bool agrees = must_agree() || (clips && !compresses && !full_precision());
    if (agrees && (!compresses || bytes.full_precision > 0)) bytes.full_precision += norms;
    if (compresses && (must_agree() || clips)) bytes.compressed += norms;
    return bytes;
  }
  /// Checks whether the next step has begun: `begin` has been called, and `step` not yet.
  bool begun() const { return begun_ || open_.parameters != nullptr; }
  /// Returns the number of steps taken; skipped steps don't count.
  std::uint64_t steps() const { return steps_; }
  /// Checks whether the next step averages gradients exactly.
  bool full_precision() const { return state_.full_precision(); }
  const Layout& layout() const { return layout_; }
  const Options& options() const { return options_; }
  int rank() const { return channel_.rank(); }
  int size() const { return channel_.size(); }
  /// Returns the optimizer's own channel, for collective work between steps.
  T& channel() { return transport_; }

  /// Visits every part of the state once, to save, load, count or print it: visit(name, view, arena offset) or visit(name, uint64&).
  template <class Visit>
  void walk(Visit&& visit) {
    visit("steps", steps_);
    masters_.walk(visit);
    state_.walk(visit);
  }
  /// Visits the arenas that are equal on all ranks after the step just taken, the parameters unless they differ: visit(name, view).
  /// `walk_derived` visits the other parts that are equal, such as masks: visit(name, view, offset).
  template <class Parameters, class Visit>
  void walk_shared(Parameters parameters, const Visit& visit);
  template <class Visit>
  void walk_derived(const Visit& visit);
  /// Drops messages in flight after a loss of a rank, for carry_over: no call waits for them. No step may follow.
  void drop_rounds() { detail::drop_rounds(state_, executor_); }

 private:
  detail::StepGuard guard() const { return {rank(), steps_ + 1}; }

  StepInput<E, N> input_of(out<E, P> parameters, in<E, G> gradients) {
    failure_.rethrow();
    detail::check_processor(rank(), steps_ + 1);
    detail::check_values(recipe);
    groups_.check(recipe);
    guard().check_size(parameters.size(), "parameters", layout_);
    guard().check_size(gradients.size(), "gradients", layout_);
    guard().check_apart(parameters, gradients);
    return {executor_,
            layout_,
            {.step = steps_ + 1,
             .seed = options_.seed,
             .agreement = agreement(),
             .on_non_finite = options_.on_non_finite,
             .now = now_.data(),
             .compressed = &compressed_,
             .checks_payload = options_.check_payload},
            options_.clip_norm,
            masters_.behind(parameters.data()),
            gradients.data()};
  }
  /// Compares the ranks' parameters before the first step of a run, and checks that they are finite. The masters don't exist yet.
  void check_start(in<E, P> parameters);
  /// Compares replicas after the step just taken, if compare_every says so.
  void compare_replicas(in<E, P> parameters);
  /// Finds a value of this rank's gradient or parameters whose magnitude exceeds `most`, or which is NaN.
  detail::NonFiniteValue find_own(in<E, P> parameters, in<E, G> gradients, float gradient_scale,
                                  float most) const;
  /// Throws a non_finite_error that names the value of rank `culprit` that is not finite, and its place. `all_ranks`: all ranks call
  /// it, and the culprit tells the others its value.
  [[noreturn]] void refuse_non_finite(int culprit, in<E, P> parameters, in<E, G> gradients,
                                      float gradient_scale, bool all_ranks);
  /// Enters a step, before its first message is sent.
  void enter(out<E, P> parameters) {
    if (!begun_) {
      sent_ = 0;
      compressed_ = false;
    }
    check_start(parameters);
    masters_.adopt(executor_, parameters.data());
  }
  void prepare(const StepInput<E, N>& input, float gradient_scale) {
    const StepScalars none{input.context.step, input.context.agreement, gradient_scale};
    std::fill(scalars_.begin(), scalars_.end(), none);
    if constexpr (detail::takes_groups<R>())
      for (std::size_t k = 1; k < scalars_.size(); ++k)
        detail::composed(groups_.recipes()[k - 1]).prepare_group(input, state_, k, scalars_[k]);
    detail::composed(recipe).prepare(input, state_, scalars_[0]);
    put(executor_, view<const StepScalars>(scalars_), now_.all());
  }

  /// Checks whether gradients are clipped by the norm that ranks agree on; otherwise the mean is clipped by its own
  /// norm.
  bool clips_before() const { return options_.clips() && !detail::clips_mean(state_); }
  bool masks() const {
    if constexpr (requires { state_.masks(); }) return state_.masks();
    return false;
  }
  bool waits_for_norm() const { return clips_before() || must_agree(); }
  bool must_agree() const {
    return options_.on_non_finite == NonFinite::skip ||
           (detail::is_blind<R>() && options_.on_non_finite == NonFinite::throw_);
  }

  std::uint64_t agreement() const {
    // Messages of a step that has begun have already been sent.
    if (begun_ || open_.parameters != nullptr) return begun_agreement_;
    std::uint64_t hash = rescaled_ == 0 ? fingerprint_ : mix_hash(fingerprint_, rescaled_);
    if (masked_ != 0) hash = mix_hash(hash, masked_);
    detail::SettingsHash settings{hash};
    detail::composed(recipe).settings(detail::SettingsVisitor(settings));
    return groups_.mix_into(settings.hash);
  }

  Options options_;
  Layout layout_;
  E executor_;
  std::uint64_t sent_ = 0;  // bytes, for this step
  bool compressed_ = false;
  T transport_;      // the optimizer's own
  Channel channel_;  // around it
  std::uint64_t fingerprint_;
  std::uint64_t rescaled_ = 0;  // hash of a layout whose scales have changed since the start
  std::uint64_t masked_ = 0;    // hash of a user's mask
  detail::Groups<R> groups_;
  std::vector<StepScalars> scalars_;  // one for each group
  detail::GradientNorm<E> norms_;
  detail::Replicas replicas_;
  State state_;
  Masters masters_;
  buffer<StepScalars, typename E::memory> now_;
  std::uint64_t steps_ = 0;
  std::uint64_t begun_agreement_ = 0;
  bool begun_ = false, started_ = false;
  /// The arguments of `begin`; without parameters no step is open.
  struct Open {
    P* parameters = nullptr;
    const G* gradients = nullptr;
    float gradient_scale = 1;
    bool travels = false;  // the exchange's round is open as well
  };
  Open open_;
  std::vector<std::uint8_t> ready_;  // by segment, 1 or 0
  detail::Record record_;
  detail::Failure failure_;
  detail::FiniteWatch watch_;
};

}  // namespace terse

#include "terse/optimizer/steps.hpp"
