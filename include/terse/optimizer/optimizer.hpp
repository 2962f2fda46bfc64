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

/// Runs a recipe on one rank: owns its state, counts its steps. Construction is collective: a difference between ranks in layout,
/// recipe, hyper-parameters, options, world or numerics throws mismatch_error that names it.
///
///     terse::Optimizer optimizer{terse::Adam<>{.learning_rate = 1e-3f}, transport, layout};
///     optimizer.step(parameters, gradients);
///
/// Takes all memory at construction; a step allocates nothing. Hyper-parameters in `recipe` may be changed between steps, equally on
/// all ranks (packets of other values are refused); those that can't work are a usage_error.
///
/// Models in 16 bits: `Optimizer optimizer{recipe, transport, layout, options, executor, Numbers<bf16>{}}`. The first step then
/// takes fp32 masters from the parameters it is given, unless a checkpoint has brought them; from then on parameters are written,
/// not read. Scale gradients against underflow, and give 1 / loss scale as gradient_scale.
///
/// To compile an optimizer once, say `extern template class terse::Optimizer<terse::Adam<>, terse::Threads>;` where it is used
/// and `template class ...` of the same in one unit.
template <class R, class T, Executor E = executor::host, class N = Numbers<>>
class Optimizer {
  static_assert(check_transport<T>());
  static_assert(check_recipe<R>() && check_steps<R, T, E, N>());
  using P = typename N::parameter;
  using G = typename N::gradient;
  using State = typename Composed<R>::template State<E>;
  static_assert(scalars_of<R>() <= StepScalars::most_own,
                "terse: the policies of a recipe have room for 14 scalars");
  using Masters = detail::Masters<E, P>;

 public:
  using runs_on = E;
  using parameter = P;

  R recipe;  ///< what may change between steps, such as the learning rate

  Optimizer(R recipe_, T& transport, const Layout& layout, const Options& options = {}, E executor = {},
            N = {});
  ~Optimizer();
  // Exchanges in flight and their lists point into this object.
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One step on views of `layout.size()` elements each. The gradient is this rank's own, of its own samples;
  /// ranks count alike. `gradient_scale` multiplies it first (1 / accumulated batches, 1 / loss scale).
  /// Throws usage_error for views of the wrong size, non_finite_error by policy, and what the transport
  /// throws. After an error of messages (peer_error, wire_error, an exception of the transport's own) each later call throws it again.
  ///
  /// Ranks start from the same parameters, see `terse::broadcast`. The first step compares them, unless the recipe mixes
  /// models: mismatch_error on all ranks, which names a rank and a segment. Later ones do by Options::compare_every, behind the step.
  ///
  /// non_finite_error says which rank's gradient, parameters or message it is about, and in which segment. It also comes for parameters
  /// that are NaN or infinite, before the first step and, on the host, at the end of one of the 16 steps after they became so.
  ///
  /// After one of a gradient parameters are as before, and so is momentum on the mean; in a compressed step the
  /// error feedback, and momentum before compression, have already taken the message up, so that going on from
  /// there loses that message's compressed part on every rank. Nothing that is kept is ever not finite.
  StepResult step(out<E, P> parameters, in<E, G> gradients, float gradient_scale = 1);
  // Compilers print the line of a deleted function that was chosen, so that line holds the sentence.
  // clang-format off
  template <class X, class D> requires(detail::HoldsOther<X, P> || detail::HoldsOther<D, const G>)
  StepResult step(X&&, D&&, float = 1) = delete;  // terse: step writes parameters and reads gradients, containers of float or, with Numbers<bf16> or Numbers<fp16>, of those; convert others, such as double
  template <class X, class D> requires(detail::HoldsOther<X, P> || detail::HoldsOther<D, const G>)
  void begin(X&&, D&&, float = 1) = delete;  // terse: begin takes what step takes: containers of float or, with Numbers<bf16> or Numbers<fp16>, of those; convert others, such as double
  // clang-format on

  /// Opens the next step while its gradient is still being computed, so that it travels meanwhile: `ready` then says of one
  /// segment after the other that its gradient is final, and `step`, with the same views and scale, does the rest. Those
  /// segments alone that are said to be ready are read before; in any order, all, some or none: the bits are the same.
  ///
  ///     optimizer.begin(parameters, gradients);
  ///     ... for each segment, the last one first:   optimizer.ready(segment);
  ///     optimizer.step(parameters, gradients);
  ///
  /// A slice leaves when all its segments are ready, see Options::slice_bytes; of low-rank steps all leaves with the last one.
  /// Nothing leaves before `step` where that must know a norm first (NonFinite::skip; clip_norm in compressed steps), over
  /// hierarchies, and of recipes that don't average gradients or momenta over all ranks: there both calls
  /// are allowed, and do nothing. Between them parameters, hyper-parameters and what is ready stay as they are. `ready` doesn't
  /// wait for anybody. Throws usage_error where calls come in another order, and what `step` throws.
  void begin(out<E, P> parameters, in<E, G> gradients, float gradient_scale = 1);
  void ready(index_t segment);
  /// Moves what travels of an opened step along, without waiting: messages of most transports move inside of calls only.
  void progress();

  /// Sends the messages of recipes in which they don't depend on the gradient, so that they travel while it is computed. The
  /// step that follows finishes the round; until then a second call does nothing, and `parameters` stay as they are, except
  /// with CombineThenAdapt, which leaves the mixture in them: there the gradient must be computed.
  void begin(out<E, P> parameters) requires(detail::is_blind<R>());

  /// Enqueues the next step without taking it, for the executor's stream to record: between the beginning and the end
  /// of a CUDA graph's capture, for one. What changes from step to step (rates, gradient scale, step, bias
  /// corrections) stays out of the record; the addresses of the views are in it. A record serves one stage: see
  /// `full_precision`. Throws usage_error where a step needs the host in its middle: clip_norm, NonFinite::skip, and
  /// what a policy says, such as an error feedback that follows the learning rate. Of one step all ranks replay a record, or none.
  /// For transports that don't wait for the host (Nccl), and for one rank.
  void record(out<E, P> parameters, in<E, G> gradients) requires GridExecutor<E>;
  /// Takes one step, which `run()` enqueues from a record of this optimizer. Throws as `step` does, and usage_error
  /// if the record is of the other stage, or of a step of another kind: see detail::unrecordable.
  template <class Run>
  void replay(Run run, float gradient_scale = 1) requires GridExecutor<E> {
    record_.check(full_precision(), masks(), guard());
    detail::check_recordable(composed(recipe), {record_.step(), steps_ + 1}, full_precision(), begun_,
                             rank());
    const StepInput<E, N> input = input_of({nullptr, layout_.size()}, {nullptr, layout_.size()});
    prepare(input, gradient_scale);
    try {
      run();
      composed(recipe).complete(input, state_);
    } catch (...) {
      failure_.keep();
      throw;
    }
    steps_ = input.context.step;
    detail::masked_by_freeze(state_, rank(), steps_);
  }

  /// Writes parameters for evaluation that are not those it steps on, of recipes that have such, in fp32. No
  /// communication; throws usage_error for a view of the wrong size.
  template <class Which>
  void read_out(Which which, out<E> to) const requires detail::ReadsOut<Composed<R>, State, E, Which> {
    detail::StepGuard{rank(), steps_}.check_size(to.size(), "read-out", layout_);
    composed(recipe).read_out(executor_, state_, which, to);
  }

  /// The mean over ranks of their parameters, in fp32: the model that methods whose ranks differ converge to, and that is
  /// evaluated. Collective, between steps; the same bits on all ranks. Throws usage_error for views of the wrong size.
  void mean_parameters(in<E, P> parameters,
                       out<E> to) requires std::same_as<typename E::memory, memory::host> {
    failure_.rethrow();
    const detail::StepGuard after{rank(), steps_};
    after.check_size(parameters.size(), "parameters", layout_);
    after.check_size(to.size(), "mean", layout_);
    for (index_t i = 0; i < to.size(); ++i) to[i] = masters_.at(i, parameters);
    mean(channel(), to);
  }

  /// The hyper-parameters of segments of group `id`, from the next step on, alike on all ranks (packets of others are refused): a
  /// copy of the recipe as it was at construction; of group 0 the recipe itself. What belongs to the whole step (compressor, error
  /// feedback, topology, the end of a first stage) must be alike in all groups: usage_error in the next step. Throws usage_error
  /// where no segment is of this group.
  R& group(int id) { return id == 0 ? recipe : groups_.at(id); }
  /// The learning rate from the next step on, alike on all ranks: `recipe.learning_rate`, of recipes around each other the
  /// innermost one's.
  void learning_rate(float rate) { set_learning_rate(recipe, rate); }
  float learning_rate() const { return learning_rate_of(recipe); }
  /// Gives a segment other scales of the recipe's learning rate and weight decay, from the next step on, alike on all ranks
  /// (packets of others are refused). A checkpoint says which scales it was saved with: a run that goes on from it sets them
  /// again before it loads. Throws usage_error for a name that no segment has, scales that are negative or not finite, and
  /// between begin and step.
  void rescale(std::string_view segment, float learning_rate_scale, float weight_decay);
  /// Leaves elements out of the second stage of methods of two (Staged, OneBitAdam, OneBitLamb): element i of the arena, in
  /// segments that are compressed, where `elements[i]` is 0. For those whose gradient will be 0, which codes of one bit, that
  /// know no 0, would move for ever. When the stages change it is as if nothing had been learned of them: their momentum
  /// becomes 0, they are in no scale, keep no error, and only weight decay moves them. Until then, and in segments that are
  /// not compressed, nothing changes.
  ///
  /// Alike on all ranks, between steps, before the stages change (without a first stage, before the first step): packets of
  /// ranks with other masks are refused. The last call counts. It lasts, in checkpoints, too: `load` brings what was saved, in
  /// the place of what was given before. Throws usage_error for a view of the wrong size, and when it is too late. Reads all
  /// elements once and brings n / 8 bytes to the host. Compressed steps then read n / 8 bytes more in each pass.
  template <class S = State>
  void mask(in<E, std::uint8_t> elements);
  /// What this rank sends for a step, at most, if all goes well; exactly, where packets don't vary in size and all steps of a kind
  /// send alike. Without communication. Comparisons of parameters, 12 bytes to each peer, aren't in it.
  StepBytes bytes_per_step() const requires detail::SaysBytes<State> {
    StepBytes bytes;
    // clang 14 instantiates it with the class, whatever the constraint says.
    if constexpr (detail::SaysBytes<State>) bytes = state_.bytes_per_step();
    const bool clips = options_.clips();
    const index_t norms = norms_.bytes(channel_.size());
    // Where some steps are compressed, those that aren't average exactly, and clip the mean.
    const bool compresses = bytes.compressed > 0;
    const bool agrees = must_agree() || (clips && !compresses && !full_precision());
    if (agrees && (!compresses || bytes.full_precision > 0)) bytes.full_precision += norms;
    if (compresses && (must_agree() || clips)) bytes.compressed += norms;
    return bytes;
  }
  /// Whether messages of the next step have left: `begin` has been called, and `step` not yet.
  bool begun() const { return begun_ || open_.parameters != nullptr; }
  /// Steps taken; skipped ones don't count.
  std::uint64_t steps() const { return steps_; }
  /// Whether the next step averages gradients exactly.
  bool full_precision() const { return state_.full_precision(); }
  const Layout& layout() const { return layout_; }
  const Options& options() const { return options_; }
  int rank() const { return channel_.rank(); }
  int size() const { return channel_.size(); }
  /// The optimizer's own channel, for collective work between steps.
  T& channel() { return transport_; }

  /// Shows every part of the state once: visit(name, view, arena offset) or visit(name, uint64&). One walk
  /// serves saving, loading, counting and printing.
  template <class Visit>
  void walk(Visit&& visit) {
    visit("steps", steps_);
    masters_.walk(visit);
    state_.walk(visit);
  }

 private:
  detail::StepGuard guard() const { return {rank(), steps_ + 1}; }

  StepInput<E, N> input_of(out<E, P> parameters, in<E, G> gradients) {
    failure_.rethrow();
    detail::check_processor(rank(), steps_ + 1);
    check_values(recipe);
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
  /// Before the first step of a run: masters come later.
  void check_start(in<E, P> parameters);
  /// By compare_every, of the step that has just been taken.
  void compare_replicas(in<E, P> parameters);
  /// Finds what of this rank is larger than `most`, or NaN.
  detail::NonFiniteValue find_own(in<E, P> parameters, in<E, G> gradients, float gradient_scale,
                                  float most) const;
  /// Throws non_finite_error that says what of rank `culprit` is not finite, and where. `all_ranks`: all of them are here, and the
  /// culprit tells the others.
  [[noreturn]] void refuse_non_finite(int culprit, in<E, P> parameters, in<E, G> gradients,
                                      float gradient_scale, bool all_ranks);
  /// What comes before anything of a step is sent.
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
        composed(groups_.recipes()[k - 1]).prepare_group(input, state_, k, scalars_[k]);
    composed(recipe).prepare(input, state_, scalars_[0]);
    put(executor_, view<const StepScalars>(scalars_), now_.all());
  }

  /// Whether gradients are clipped by their agreed norm, and not their mean by its own.
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
    // Of a step that has begun, messages are on their way.
    if (begun_ || open_.parameters != nullptr) return begun_agreement_;
    std::uint64_t hash = rescaled_ == 0 ? fingerprint_ : mix_hash(fingerprint_, rescaled_);
    if (masked_ != 0) hash = mix_hash(hash, masked_);
    detail::SettingsHash settings{hash};
    composed(recipe).settings(detail::SettingsVisitor(settings));
    return groups_.mix_into(settings.hash);
  }

  Options options_;
  Layout layout_;
  E executor_;
  std::uint64_t sent_ = 0;  // for this step
  bool compressed_ = false;
  T transport_;      // the optimizer's own
  Channel channel_;  // around it
  std::uint64_t fingerprint_;
  std::uint64_t rescaled_ = 0;  // hash of a layout with other scales than at the start
  std::uint64_t masked_ = 0;    // of a user's mask
  detail::Groups<R> groups_;
  std::vector<StepScalars> scalars_;  // of each group
  detail::GradientNorm<E> norms_;
  detail::Replicas replicas_;
  State state_;
  Masters masters_;
  buffer<StepScalars, typename E::memory> now_;
  std::uint64_t steps_ = 0;
  std::uint64_t begun_agreement_ = 0;
  bool begun_ = false, started_ = false;
  /// What `begin` has been given; without it no step is open.
  struct Open {
    P* parameters = nullptr;
    const G* gradients = nullptr;
    float gradient_scale = 1;
    bool travels = false;  // whether the round is open, too
  };
  Open open_;
  std::vector<std::uint8_t> ready_;  // by segment, 1 or 0
  detail::Record record_;
  detail::Failure failure_;
  detail::FiniteWatch watch_;
};

}  // namespace terse

#include "terse/optimizer/steps.hpp"
