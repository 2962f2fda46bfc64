// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terse/core/type_name.hpp"
#include "terse/executor/host.hpp"
#include "terse/optimizer/comparison.hpp"
#include "terse/optimizer/fingerprint.hpp"
#include "terse/optimizer/gradient_norm.hpp"
#include "terse/optimizer/groups.hpp"
#include "terse/optimizer/options.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/counting.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Masters start from what the model has.
template <Number P>
struct Adopt {
  float* masters;
  const P* parameters;
  TERSE_HD void operator()(const Piece&, index_t i) const { masters[i] = widened(parameters[i]); }
};

template <class State>
concept SaysBytes = requires(const State& state) {
  { state.bytes_per_step() } -> std::same_as<StepBytes>;
};

template <class State>
concept TakesMask = requires(State& state, const std::uint8_t* elements) {
  { state.leave_out(elements) } -> std::same_as<std::uint64_t>;
};

template <class R, class State, class E, class N>
concept Opens = requires(const R& recipe, const StepInput<E, N>& input, State& state, index_t segment) {
  recipe.open(input, state);
  recipe.allow(state, segment);
  recipe.progress(state);
};

template <class R, class State, class E, class Which>
concept ReadsOut = requires(const R& recipe, const State& state, E executor, Which which, out<E> to) {
  recipe.read_out(executor, state, which, to);
};

}  // namespace detail

TERSE_NUMERICS_END

/// A recipe at work on one rank: owns its state, counts its steps. Construction is collective: all ranks make
/// it alike, and a difference in layout, recipe, hyper-parameters, options, world or numerics throws
/// mismatch_error that names it.
///
///     terse::Optimizer optimizer{terse::Adam<>{.learning_rate = 1e-3f}, transport, layout};
///     optimizer.step(parameters, gradients);
///
/// All memory is taken here; a step allocates nothing. Hyper-parameters in `recipe` may be changed between
/// steps, alike on all ranks (packets of other values are refused); what can't work is a usage_error.
///
/// Models in 16 bits: `Optimizer optimizer{recipe, transport, layout, options, executor, Numbers<bf16>{}}`. The first
/// step then takes fp32 masters from the parameters it is given, unless a checkpoint has brought them; from then on
/// parameters are written, not read. Gradients may be scaled against underflow: give 1 / loss scale as
/// gradient_scale.
///
/// To compile an optimizer once, say `extern template class terse::Optimizer<terse::Adam<>, terse::Threads>;` where it is used
/// and `template class ...` of the same in one unit.
template <class R, class T, Executor E = executor::host, class N = Numbers<>>
class Optimizer {
  static_assert(check_transport<T>());
  static_assert(check_recipe<R>() && check_steps<R, Counting<T>, E, N>());
  using P = typename N::parameter;
  using G = typename N::gradient;
  using Channel = Counting<T>;
  using State = typename Composed<R>::template State<Channel, E>;
  static_assert(scalars_of<R>() <= StepScalars::most_own,
                "terse: the policies of a recipe have room for 14 scalars");
  static constexpr bool has_masters = !std::is_same_v<P, float>;

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
  /// throws.
  ///
  /// Ranks start from the same parameters, see `terse::broadcast`. The first step compares them, unless the recipe mixes
  /// models: mismatch_error on all ranks, which names a rank and a segment. Later ones do by Options::compare_every, behind the step.
  ///
  /// After non_finite_error parameters are as before, and so is momentum on the mean; in a compressed step the
  /// error feedback, and momentum before compression, have already taken the message up, so that going on from
  /// there loses that message's compressed part on every rank. Nothing that is kept is ever not finite.
  StepResult step(out<E, P> parameters, in<E, G> gradients, float gradient_scale = 1);

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
  /// Moves what travels of a step that `begin` has opened along, without waiting: for what computes long between two calls of
  /// `ready`, since messages of most transports move inside of calls only. Does nothing at other times.
  void progress();

  /// For recipes whose messages don't depend on the gradient: sends them, so that they travel while it is computed.
  /// The step that follows finishes the round; until then a second call does nothing. `parameters` stay as they are
  /// until then, except with CombineThenAdapt, which leaves the mixture in them: there the gradient must be computed.
  void begin(out<E, P> parameters) requires(detail::is_blind<R>());

  /// Enqueues the next step without taking it, for the executor's stream to record: between the beginning and the end
  /// of a CUDA graph's capture, for one. What changes from step to step (rates, gradient scale, step, bias
  /// corrections) stays out of the record; the addresses of the views are in it. A record serves one stage: see
  /// `full_precision`. Throws usage_error where a step needs the host in its middle: clip_norm, NonFinite::skip, and
  /// errors that follow the learning rate. Works over transports that don't wait for the host (Nccl), and with one
  /// rank.
  void record(out<E, P> parameters, in<E, G> gradients) requires GridExecutor<E>;
  /// Takes one step, which `run()` enqueues from a record of this optimizer. Throws as `step` does, and usage_error
  /// if the record is of the other stage.
  template <class Run>
  void replay(Run run, float gradient_scale = 1) requires GridExecutor<E> {
    if (!recorded_ || recorded_full_precision_ != full_precision())
      throw usage_error(
          std::string("this step averages ") + (full_precision() ? "exactly" : "compressed messages") +
              ", and there is no record of such a step; record again where full_precision() changes",
          channel_.rank(), static_cast<std::int64_t>(steps_ + 1));
    if (!full_precision() && recorded_masks_ != masks())
      throw usage_error(
          "which elements take part has changed since the record, by a checkpoint or a mask: record again",
          channel_.rank(), static_cast<std::int64_t>(steps_ + 1));
    const StepInput<E, N> input = input_of({nullptr, layout_.size()}, {nullptr, layout_.size()});
    prepare(input, gradient_scale);
    run();
    composed(recipe).complete(input, state_);
    steps_ = input.context.step;
  }

  /// Writes parameters for evaluation that are not those it steps on, of recipes that have such, in fp32. No
  /// communication; throws usage_error for a view of the wrong size.
  template <class Which>
  void read_out(Which which, out<E> to) const requires detail::ReadsOut<Composed<R>, State, E, Which> {
    check(to.size(), "read-out", steps_);
    composed(recipe).read_out(executor_, state_, which, to);
  }

  /// The mean over ranks of their parameters, in fp32: the model that methods whose ranks differ converge to, and that is
  /// evaluated. Collective, between steps; the same bits on all ranks. Throws usage_error for views of the wrong size.
  void mean_parameters(in<E, P> parameters,
                       out<E> to) requires std::same_as<typename E::memory, memory::host> {
    check(parameters.size(), "parameters", steps_);
    check(to.size(), "mean", steps_);
    const bool from_masters = has_masters && adopted_ != 0;
    for (index_t i = 0; i < to.size(); ++i)
      to[i] = from_masters ? masters_[i] : static_cast<float>(widened(parameters[i]));
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
  void mask(in<E, std::uint8_t> elements) {
    static_assert(
        detail::TakesMask<S>,
        "terse: a mask is for methods of two stages (OneBitAdam, OneBitLamb, Staged), whose second one "
        "compresses: it takes effect when the stages change");
    if constexpr (detail::TakesMask<S>) {
      const std::uint64_t step = steps_ + 1;
      check(elements.size(), "mask", step);
      if (begun())
        throw usage_error(
            "messages of a step are under way, and it has its mask: give another one between steps",
            channel_.rank(), static_cast<std::int64_t>(step));
      if (!full_precision() && steps_ > 0)
        throw usage_error(
            "the second stage has begun, and what takes part in it is settled: give the mask before that",
            channel_.rank(), static_cast<std::int64_t>(step));
      await_messages(channel());
      masked_ = state_.leave_out(elements.data());
    }
  }
  /// What this rank sends for a step, at most, if all goes well; exactly, where packets don't vary in size and all steps of a kind
  /// send alike. Without communication. Comparisons of parameters, 8 bytes to each peer, aren't in it.
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
  T& channel() { return channel_.inner(); }

  /// Shows every part of the state once: visit(name, view, arena offset) or visit(name, uint64&). One walk
  /// serves saving, loading, counting and printing.
  template <class Visit>
  void walk(Visit&& visit) {
    visit("steps", steps_);
    if constexpr (has_masters) {
      visit("adopted", adopted_);
      visit("masters", masters_.all(), index_t{0});
    }
    state_.walk(visit);
  }

 private:
  static void check_stream([[maybe_unused]] const T& transport, [[maybe_unused]] const E& executor) {
    if constexpr (requires { transport.stream() != executor.stream; })
      if (transport.stream() != executor.stream)
        throw usage_error("the transport works on another CUDA stream than the executor", transport.rank());
  }
  static void check(const Options& options) {
    if (!(options.clip_norm > 0)) throw usage_error("clip_norm must be positive; infinity switches it off");
    if (options.slice_bytes < 0) throw usage_error("slice_bytes must not be negative; 0: all in one slice");
    if (GridExecutor<E> && options.check_payload)
      throw usage_error(
          "check_payload is for packets in the host's memory: a device's have no checksum of their payload. "
          "Use a host executor, or leave it away");
    if (!detail::ever_alike<R>() && options.compare_every > 0)
      throw usage_error(
          "compare_every is for methods whose ranks hold the same parameters, in each step or when they "
          "meet; "
          "with this recipe they differ by design");
  }
  static std::uint64_t options_hash(const Options& options, const Layout& layout) {
    const std::uint64_t hash = mix_hash(static_cast<std::uint64_t>(options.on_non_finite),
                                        std::bit_cast<std::uint32_t>(options.clip_norm));
    const std::size_t slices = slices_of(layout.range(), options.slice_bytes).size();
    const std::uint64_t cut = slices == 1 ? hash : mix_hash(hash, slices);
    if (!options.check_payload && options.compare_every == 0) return cut;
    return mix_hash(mix_hash(cut, options.check_payload ? 1 : 0), options.compare_every);
  }
  void check(index_t size, const char* what, std::uint64_t step) const {
    if (size != layout_.size())
      throw usage_error(std::string(what) + " has " + std::to_string(size) + " elements, the layout " +
                            std::to_string(layout_.size()) +
                            ": each segment is padded to a multiple of 64, allocate layout.size()",
                        channel_.rank(), static_cast<std::int64_t>(step));
  }

  void check_apart(out<E, P> parameters, in<E, G> gradients, std::uint64_t step) const {
    const std::less<const void*> before;
    // A replay has no views of its own.
    if (parameters.data() != nullptr && before(parameters.data(), gradients.data() + gradients.size()) &&
        before(gradients.data(), parameters.data() + parameters.size()))
      throw usage_error("parameters and gradients overlap: they are two arenas", channel_.rank(),
                        static_cast<std::int64_t>(step));
  }
  void check_scale(float gradient_scale) const {
    if (!std::isfinite(gradient_scale))
      throw usage_error("gradient_scale is " + std::to_string(gradient_scale) + ", and must be finite",
                        channel_.rank(), static_cast<std::int64_t>(steps_ + 1));
  }

  StepInput<E, N> input_of(out<E, P> parameters, in<E, G> gradients) {
    const std::uint64_t step = steps_ + 1;
    check_values(recipe);
    groups_.check(recipe);
    check(parameters.size(), "parameters", step);
    check(gradients.size(), "gradients", step);
    check_apart(parameters, gradients, step);
    return {executor_,
            layout_,
            {.step = step,
             .seed = options_.seed,
             .agreement = agreement(),
             .on_non_finite = options_.on_non_finite,
             .now = now_.data(),
             .compressed = &compressed_,
             .checks_payload = options_.check_payload},
            options_.clip_norm,
            parameter_ref(parameters.data()),
            gradients.data()};
  }
  ParameterRef<P> parameter_ref(P* parameters) {
    if constexpr (has_masters)
      return {masters_.data(), parameters};
    else
      return {parameters};
  }
  /// Before the first step of a run: masters come later.
  void compare_start(in<E, P> parameters);
  /// By compare_every, of the step that has just been taken.
  void compare_replicas(in<E, P> parameters);
  void adopt([[maybe_unused]] P* parameters) {
    if constexpr (has_masters) {
      if (adopted_ == 0) for_each(executor_, range_, detail::Adopt<P>{masters_.data(), parameters});
      adopted_ = 1;
    }
  }
  /// What comes before anything of a step is sent.
  void enter(out<E, P> parameters) {
    if (!begun_) {
      sent_ = 0;
      compressed_ = false;
    }
    compare_start(parameters);
    adopt(parameters.data());
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
    const auto mix_in = [&](const char*, double value) {
      hash = mix_hash(hash, std::bit_cast<std::uint64_t>(value));
    };
    composed(recipe).settings(detail::SettingsVisitor(mix_in));
    return groups_.mix_into(hash);
  }

  Options options_;
  Layout layout_;
  E executor_;
  std::uint64_t sent_ = 0;  // for this step
  bool compressed_ = false;
  Channel channel_;
  std::uint64_t fingerprint_;
  std::uint64_t rescaled_ = 0;  // hash of a layout with other scales than at the start
  std::uint64_t masked_ = 0;    // of a user's mask
  detail::Groups<R> groups_;
  std::vector<StepScalars> scalars_;  // of each group
  detail::GradientNorm<Channel, E> norms_;
  detail::Comparison<Channel> comparison_;
  bool started_alike_ = false, due_ = false;
  std::uint64_t compared_ = 0;  // the last step after which all were alike
  State state_;
  Range range_;
  buffer<StepScalars, typename E::memory> now_;
  buffer<float, typename E::memory> masters_;
  std::uint64_t adopted_ = 0;  // whether the masters are there
  std::uint64_t steps_ = 0;
  std::uint64_t begun_agreement_ = 0;
  bool begun_ = false;
  /// What `begin` has been given; without it no step is open.
  struct Open {
    P* parameters = nullptr;
    const G* gradients = nullptr;
    float gradient_scale = 1;
    bool travels = false;  // whether the round is open, too
  };
  Open open_;
  std::vector<bool> ready_;  // by segment
  bool recorded_ = false, recorded_full_precision_ = false, recorded_masks_ = false;
};

}  // namespace terse

#include "terse/optimizer/steps.hpp"
