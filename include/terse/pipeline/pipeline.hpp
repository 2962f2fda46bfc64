// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "terse/core/non_finite.hpp"
#include "terse/core/timer.hpp"
#include "terse/core/type_name.hpp"
#include "terse/executor/numerics.hpp"
#include "terse/pipeline/activation_gradients.hpp"
#include "terse/pipeline/activations.hpp"
#include "terse/pipeline/lane.hpp"
#include "terse/topology/envelope.hpp"
#include "terse/transport/agreement.hpp"

namespace terse {

/// What holds for a whole run, alike on all stages.
struct PipelineOptions {
  index_t micro_batch = 0;  ///< examples that go through the stages at once, at most; must be given
  std::uint64_t seed = 0;
  NonFinite on_non_finite = NonFinite::throw_;
  int window = 2;  ///< messages of a direction that each side has room for, 1 to 8
};

/// What became of a step, alike on all stages.
struct PipelineResult {
  double loss = 0;  ///< mean over the batch
  bool applied =
      true;  ///< false: something was not finite and the policy is to skip; don't step on these gradients
  index_t fresh = 0;  ///< examples that travelled whole: seen for the first time, or not kept
};

/// What a stage has seen since `reset_statistics`.
struct PipelineStatistics {
  /// ||a - m|| / ||a|| of the activations that it sent again: what is gained by sending changes. NaN until there are some,
  /// where nothing is remembered, at the last stage, and on devices.
  double change = std::numeric_limits<double>::quiet_NaN();
  double error = std::numeric_limits<double>::quiet_NaN();  ///< ||a - m'|| / ||a||, after the change
  index_t sampled = 0;  ///< rows that these two are taken from, one of each message
  double forward_seconds = 0, backward_seconds = 0;  ///< inside the stage's passes
  double coding_seconds = 0;                         ///< packing and unpacking
  double waiting_seconds = 0;  ///< for neighbours and their messages: the bubble and the wire
};

/// One stage of a model that is trained in a pipeline: rank s of a transport is stage s. Activations go to the next
/// stage, gradients come back, compressed as the policy says; the stage's own optimizer steps on the gradients.
///
///     terse::Pipeline pipeline{terse::AcSgd<>{.capacity = 10'000}, transport, stage, {.micro_batch = 32}};
///     const terse::PipelineResult result = pipeline.train(ids);
///
/// Construction is collective: all stages make it alike, and a difference in policy, options, schedule or numerics, or
/// boundaries that don't fit each other, throw mismatch_error that names them. `stage` must outlive it, and so must the
/// stage that it refers to. Memory is taken here and in the first step of each larger number of micro-batches; other
/// steps allocate nothing.
template <class P, Transport T, class S, class Plan = GPipe, Executor E = executor::host>
class Pipeline {
  static_assert(check_boundary<P>() && check_stage<S>());
  static_assert(
      Schedule<Plan>,
      "terse: a schedule has check(), settings(visit), actions(micro_batches), at(k, stage, stages, "
      "micro_batches), in_flight(stage, stages, micro_batches) and lead(); see terse/pipeline/schedule.hpp");
  static_assert(std::is_same_v<typename T::memory, typename E::memory>,
                "terse: the transport carries messages of another memory than the executor's; put "
                "ThroughHost around it");
  using A = ActivationOf<S>;
  using Timer = detail::Timer;
  using Lanes = detail::Lanes<T, E>;
  using Lane = typename Lanes::Lane;
  static constexpr bool on_host = std::is_same_v<typename E::memory, memory::host>;

 public:
  using runs_on = E;

  Pipeline(P policy, T& transport, S& stage, const PipelineOptions& options, Plan schedule = {},
           E executor = {})
      : policy_((policy.check(), std::move(policy))),
        options_((check(options, schedule), options)),
        schedule_(schedule),
        executor_(executor),
        stage_(stage),
        rank_(transport.rank()),
        stages_(transport.size()),
        lanes_(transport, executor),
        fingerprint_(agree_on_settings()),
        shapes_(agree_on_shapes()),
        everyone_(lanes_.channel()),
        index_(capacity()),
        last_visit_(static_cast<std::size_t>(capacity())),
        closing_(executor, ExactActivations{}, 0, 1),
        note_(1),
        now_(1) {
    const index_t rows = options_.micro_batch;
    if (rank_ > 0) {
      const index_t elements = shapes_.input;
      in_.emplace(executor_, policy_, rows, elements);
      exact_in_.emplace(executor_, ExactActivations{}, rows, elements);
      gradients_out_.emplace(executor_, policy_, rows, elements);
      open(forward_in_, rank_ - 1, *in_, *exact_in_, Phase::forward);
      open(backward_out_, rank_ - 1, *gradients_out_, closing_, Phase::backward);
    }
    if (!last()) {
      const index_t elements = shapes_.output;
      out_.emplace(executor_, policy_, rows, elements);
      exact_out_.emplace(executor_, ExactActivations{}, rows, elements);
      gradients_in_.emplace(executor_, policy_, rows, elements);
      gradient_ = buffer<A, typename E::memory>(rows * elements);
      open(forward_out_, rank_ + 1, *out_, *exact_out_, Phase::forward);
      open(backward_in_, rank_ + 1, *gradients_in_, closing_, Phase::backward);
    }
  }
  // Messages in flight point into this object.
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// One batch through all stages, forward and back: the stage's gradients have what these examples add. Collective;
  /// `ids` are alike on all stages, in the order of the batch's rows. Stages run as far ahead of each other as the
  /// schedule lets them, within the call and beyond it.
  ///
  /// Throws, with nothing changed, usage_error on all stages alike where an example that is kept stands twice in one
  /// micro-batch, a full memory refuses, or `ids` is empty. Throws wire_error where a neighbour's packet does not belong to these examples
  /// or its copies are others; non_finite_error on all stages, after the last message, by the policy; what the stage
  /// throws; and peer_error, see the transport, whose deadline must outlast a step: an end of the pipeline waits for all
  /// passes that a slower stage still has to take. After all but the
  /// first and non_finite_error the pipeline is torn: the copies may be messages apart, and it refuses to train until
  /// `forget()` or a checkpoint is loaded. Over NCCL, where all stages first agree on the batch, other examples are a
  /// wire_error on all of them with nothing changed, and a tear ends the transport; see nccl_lanes.hpp.
  PipelineResult train(std::span<const std::uint64_t> ids) { return run(ids, schedule_, true); }

  /// The mean loss of a batch. Collective, and without a backward pass. Activations travel exactly, and no copy is
  /// touched. Not finite where an activation was not, unless the policy is to throw.
  double evaluate(std::span<const std::uint64_t> ids) { return run(ids, ForwardOnly{}, false).loss; }

  /// Drops the copies of these examples, which will be new ones when they come again. All stages do so alike.
  void forget(std::span<const std::uint64_t> ids) {
    for (const std::uint64_t id : ids) index_.erase(id);
  }
  /// Drops all copies. All stages do so alike. A torn pipeline may then be used again if its transport still works: not
  /// after a stage was left waiting, for which the deadline ends Threads, MPI and NCCL.
  void forget() {
    index_.clear();
    torn_ = false;
  }

  /// Compares all copies at all boundaries. Collective; reads every row and sends 16 bytes to each stage. Throws
  /// mismatch_error on all stages that names the first boundary whose sides differ.
  void audit() {
    std::array<std::uint64_t, 2> mine{};  // of what comes in, and of what goes out
    if constexpr (P::remembers) {
      if (in_) mine[0] = digest(*in_);
      if (out_) mine[1] = digest(*out_);
    }
    const auto all = everyone_(channel(), mine, Phase::agree);
    for (std::size_t s = 0; s + 1 < all.size(); ++s)
      if (all[s][1] != all[s + 1][0])
        throw mismatch_error(
            "stages " + std::to_string(s) + " and " + std::to_string(s + 1) +
                " keep different copies of the examples between them: load a checkpoint, or forget()",
            rank_);
  }

  /// Batches trained on.
  std::uint64_t steps() const { return steps_; }
  /// Whether `train` and `evaluate` would refuse.
  bool torn() const { return torn_; }
  int rank() const { return rank_; }
  int size() const { return stages_; }
  const P& policy() const { return policy_; }
  const PipelineOptions& options() const { return options_; }
  /// Of an example at the boundary before this stage and at the one behind it; 0 at the ends.
  index_t input_elements() const { return shapes_.input; }
  index_t output_elements() const { return shapes_.output; }
  /// What compresses and what is kept, in words. Where copies lie is each stage's own affair and not said.
  std::string kind() const {
    std::string kind = "whole " + type_name<std::remove_cvref_t<decltype(policy_.whole())>>() +
                       ", gradients " + type_name<std::remove_cvref_t<decltype(policy_.gradients())>>();
    if constexpr (P::remembers)
      kind += ", changes " + type_name<std::remove_cvref_t<decltype(policy_.changes())>>() + ", copies " +
              RowFormat<typename decltype(P::memory)::Format>::name;
    return kind;
  }
  /// The examples of which copies are kept.
  const ExampleIndex& examples() const { return index_; }
  /// A channel of all stages, for collective work between steps.
  T& channel() { return lanes_.channel(); }

  PipelineStatistics statistics() const {
    PipelineStatistics shown = statistics_;
    if (squares_.whole > 0) {
      shown.change = std::sqrt(squares_.change / squares_.whole);
      shown.error = std::sqrt(squares_.error / squares_.whole);
    }
    return shown;
  }
  void reset_statistics() {
    statistics_ = {};
    squares_ = {};
  }

  /// Shows the scalars of the state: visit(name, uint64&). With `copies`, what a checkpoint of it holds.
  template <class Visit>
  void walk(Visit&& visit) {
    visit("steps", steps_);
    visit("messages", messages_);
  }
  /// Shows the copies at each boundary: visit(name, bytes of `slots` rows, bytes of a row).
  template <class Visit>
  void copies(index_t slots, Visit&& visit) {
    if constexpr (P::remembers) {
      const auto show = [&](const char* name, auto& side) {
        visit(name, view<std::byte, typename E::memory>(side.copies(), slots * side.row_bytes()),
              side.row_bytes());
      };
      if (in_) show("incoming", *in_);
      if (out_) show("outgoing", *out_);
    }
  }
  /// Takes over the examples whose copies stand where `copies` shows them: what is left to do once scalars and copies are
  /// a checkpoint's. `examples` has this pipeline's capacity. Ends a tear; throws nothing.
  void restore(ExampleIndex examples) {
    index_ = std::move(examples);
    // What messages of another past have seen counts for nothing.
    std::fill(last_visit_.begin(), last_visit_.end(), 0);
    evaluations_ = 0;
    torn_ = false;
  }

 private:
  struct Shapes {
    index_t input = 0, output = 0;
  };
  /// What is left of a step that an exception ends: nobody may read or write its slots any more.
  class Tear {
   public:
    explicit Tear(Pipeline& pipeline) : pipeline_(&pipeline) {}
    ~Tear() {
      if (pipeline_ == nullptr) return;
      pipeline_->torn_ = true;
      for (std::optional<Lane>* lane : pipeline_->lanes())
        if (*lane) (*lane)->abandon();
    }
    Tear(const Tear&) = delete;
    Tear& operator=(const Tear&) = delete;
    void mend() { pipeline_ = nullptr; }

   private:
    Pipeline* pipeline_;
  };
  enum class Kind : std::uint64_t { activation, gradient, verdict, evaluation, total };

  bool last() const { return rank_ + 1 == stages_; }
  index_t capacity() const {
    if constexpr (P::remembers)
      return policy_.capacity;
    else
      return 0;
  }
  std::array<std::optional<Lane>*, 4> lanes() {
    return {&forward_in_, &forward_out_, &backward_in_, &backward_out_};
  }
  template <class One, class Other>
  void open(std::optional<Lane>& lane, int peer, const One& one, const Other& other, Phase phase) {
    lane.emplace(lanes_, peer, std::max(one.largest_packet(), other.largest_packet()), options_.window,
                 phase);
  }

  static void check(const PipelineOptions& options, const Plan& schedule) {
    schedule.check();
    if (options.micro_batch <= 0)
      throw usage_error(
          "micro_batch is the number of examples that go through the stages at once, and must be positive, "
          "not " +
          std::to_string(options.micro_batch));
    if (options.window < 1 || options.window > detail::most_in_lane)
      throw usage_error("window must be in [1, 8], not " + std::to_string(options.window));
    if (schedule.lead() > 4 * index_t{options.window})
      throw usage_error("neighbours of this schedule are " + std::to_string(schedule.lead()) +
                        " micro-batches apart, and with a window of " + std::to_string(options.window) +
                        " would wait for each other for ever; the window must be a quarter of that at least");
  }

  std::uint64_t agree_on_settings() {
    const Agreed fields[] = {{"wire version", PacketHeader::wire_version},
                             {"number of stages", static_cast<std::uint64_t>(stages_)},
                             {"policy", mix_hash(0, kind().c_str())},
                             {"schedule", mix_hash(0, type_name<Plan>().c_str())},
                             {"seed", options_.seed},
                             {"numerics", numerics_of(executor_)}};
    constexpr std::size_t count = std::size(fields);
    const std::uint64_t alike = agree(channel(), fields, [](const std::vector<std::uint64_t>& all) {
      return describe_numerics(all, count, count - 1);
    });
    check_numerics(fields[count - 1].value, channel().rank());
    SettingsList settings;
    policy_.settings(settings);
    schedule_.settings(settings);
    settings("micro_batch", static_cast<double>(options_.micro_batch));
    settings("on_non_finite", static_cast<double>(options_.on_non_finite));
    settings("window", options_.window);
    terse::agree_on_settings(channel(), "another setting", settings);
    return mix_hash(alike, settings.hash());
  }
  Shapes agree_on_shapes() {
    const Shapes mine{static_cast<index_t>(stage_.input_elements()),
                      static_cast<index_t>(stage_.output_elements())};
    Assembly<Shapes, T> assembly(channel());
    const auto all = assembly(channel(), mine, Phase::setup);
    if (all.front().input != 0 || all.back().output != 0)
      throw mismatch_error(
          "the first stage has no input and the last one no output: input_elements() and "
          "output_elements() there must be 0, not " +
              std::to_string(all.front().input) + " and " + std::to_string(all.back().output),
          rank_);
    for (std::size_t s = 0; s + 1 < all.size(); ++s)
      if (all[s].output != all[s + 1].input || all[s].output <= 0)
        throw mismatch_error("stage " + std::to_string(s) + " gives " + std::to_string(all[s].output) +
                                 " elements an example, and stage " + std::to_string(s + 1) + " takes " +
                                 std::to_string(all[s + 1].input),
                             rank_);
    return mine;
  }

  // The batch.

  MicroBatch micro_batch(index_t j) const {
    const auto all = static_cast<index_t>(ids_.size());
    const index_t first = j * options_.micro_batch, rows = std::min(options_.micro_batch, all - first);
    return {j,        first, rows, ids_.data() + first, static_cast<double>(rows) / static_cast<double>(all),
            training_};
  }
  std::span<const RowVisit> visits(index_t j) const {
    const MicroBatch rows = micro_batch(j);
    return {visits_.data() + rows.first, static_cast<std::size_t>(rows.rows)};
  }

  /// Finds the rows' copies, and slots for new ones. Nothing has changed if it throws.
  void look_up() {
    // Room for whole micro-batches, so that steps of as many take no more.
    const auto most = static_cast<std::size_t>(count_ * options_.micro_batch);
    visits_.reserve(most);
    added_.reserve(most);
    hashes_.reserve(static_cast<std::size_t>(count_));
    visits_.assign(ids_.size(), {});
    hashes_.clear();
    fresh_ = 0;
    std::size_t added = 0;
    try {
      for (index_t j = 0; j < count_; ++j) {
        const MicroBatch rows = micro_batch(j);
        // The size of the whole batch, too, so that the first packet tells.
        std::uint64_t hash =
            mix_hash(mix_hash(ids_.size(), static_cast<std::uint64_t>(rows.rows)), training_ ? 1 : 0);
        for (index_t row = rows.first; row < rows.first + rows.rows; ++row) {
          RowVisit& visit = visits_[static_cast<std::size_t>(row)];
          const std::uint64_t id = ids_[static_cast<std::size_t>(row)];
          if (P::remembers && training_ && id != no_example) visit = look_up(id, j, added);
          fresh_ += visit.seen ? 0 : 1;
          hash = mix_hash(mix_hash(hash, id), visit.seen ? 1 : 0);
        }
        hashes_.push_back(hash);
      }
      if constexpr (Lanes::exact) agree_on_batch();
    } catch (...) {
      // From the last one on, so that slots will be given out as if nothing had been.
      while (added > 0) index_.erase(added_[--added]);
      // The next try has the same numbers of messages.
      std::fill(last_visit_.begin(), last_visit_.end(), 0);
      throw;
    }
  }
  /// Messages whose lengths follow from the batch must not be asked for before all stages have the same one.
  void agree_on_batch() {
    const std::uint64_t step = training_ ? steps_ + 1 : steps_;
    std::uint64_t examples = 0;
    for (const std::uint64_t hash : hashes_) examples = mix_hash(examples, hash);
    const auto all = everyone_(channel(), {mix_hash(step, training_ ? 1 : 0), examples}, Phase::agree);
    for (std::size_t s = 1; s < all.size(); ++s)
      if (all[s] != all[0])
        throw wire_error(
            "stages 0 and " + std::to_string(s) +
                (all[s][0] != all[0][0]
                     ? " are in different steps: all stages call train and evaluate alike, and go on from "
                       "checkpoints of one step"
                     : " work on different examples: other ids, another order or number, or one that only "
                       "one of them has seen before. All stages are given the same ids in the same order"),
            rank_, static_cast<std::int64_t>(steps_ + 1));
  }
  RowVisit look_up(std::uint64_t id, index_t j, std::size_t& added) {
    const std::uint64_t now = messages_ + static_cast<std::uint64_t>(j) + 1;
    RowVisit visit{index_.find(id), true};
    if (visit.slot == ExampleIndex::none) {
      visit.seen = false;
      if (index_.size() == index_.capacity()) {
        if constexpr (P::remembers)
          if (policy_.when_full == WhenFull::refuse)
            throw usage_error("the memory of examples is full: it has a capacity of " +
                                  std::to_string(index_.capacity()) + ", and example " + std::to_string(id) +
                                  " is one more. Raise capacity, forget some, or let WhenFull::send_whole",
                              rank_, static_cast<std::int64_t>(steps_ + 1));
        return visit;
      }
      if (added_.size() == added) added_.push_back(id);
      visit.slot = index_.insert(id);
      added_[added++] = id;
      last_visit_[static_cast<std::size_t>(visit.slot)] = 0;
    }
    std::uint64_t& before = last_visit_[static_cast<std::size_t>(visit.slot)];
    if (before == now)
      throw usage_error("example " + std::to_string(id) + " stands twice in micro-batch " +
                            std::to_string(j) + ": there would be two changes of one copy",
                        rank_, static_cast<std::int64_t>(steps_ + 1));
    before = now;
    return visit;
  }

  // A step.

  template <class Order>
  PipelineResult run(std::span<const std::uint64_t> ids, const Order& order, bool training) {
    if (torn_)
      throw usage_error(
          "an earlier step ended in its middle, so that copies of examples may differ between stages: make "
          "transport and "
          "pipeline anew and load a checkpoint, or, where all stages are still in touch, forget()",
          rank_, static_cast<std::int64_t>(steps_ + 1));
    if (ids.empty())
      throw usage_error("a batch needs an example at least", rank_, static_cast<std::int64_t>(steps_ + 1));
    ids_ = ids;
    training_ = training;
    count_ = (static_cast<index_t>(ids.size()) + options_.micro_batch - 1) / options_.micro_batch;
    if (training && checked_ != count_) check_order(order, rank_, stages_, count_);
    if (training) checked_ = count_;
    look_up();

    Tear tear(*this);
    const index_t slots = order.in_flight(rank_, stages_, count_);
    if (rank_ > 0 && input_slots_ < slots) {
      inputs_ = buffer<A, typename E::memory>(slots * options_.micro_batch * shapes_.input);
      input_slots_ = slots;
    }
    open_step(slots);
    for (index_t k = 0; k < order.actions(count_); ++k) {
      const Action action = order.at(k, rank_, stages_, count_);
      if (!action.forward)
        backward(action.micro_batch);
      else if (training_)
        forward(in_, out_, action.micro_batch);
      else
        forward(exact_in_, exact_out_, action.micro_batch);
    }
    const PipelineResult result = close_step();
    tear.mend();
    if (!result.applied && options_.on_non_finite == NonFinite::throw_)
      throw non_finite_error("an activation, gradient or loss of stage " + std::to_string(culprit_) +
                                 " is not finite (NaN, infinity, or beyond 2^63)",
                             culprit_, rank_, static_cast<std::int64_t>(steps_));
    return result;
  }

  void open_step(index_t slots) {
    slots_ = slots;
    loss_ = 0;
    const std::uint64_t round = training_ ? steps_ + 1 : steps_;
    round_ = {round, mix_hash(fingerprint_, training_ ? 0 : ++evaluations_)};
    put(executor_, view<const StepScalars>(&round_, 1), now_.all());
    envelope_.open(executor_, {round_.step, round_.agreement, now_.data()}, rank_);
    expect(0);
    // Behind the activations comes the verdict; before a loss, in an evaluation, come no gradients.
    if (forward_in_) forward_in_->open(count_ + (training_ ? 1 : 0), forward_bytes());
    if (backward_in_) backward_in_->open(training_ ? count_ : 1, backward_bytes());
  }

  /// The copies that micro-batch j asks for, if there is one, had better be in memory by then.
  void expect(index_t j) {
    if (!training_ || j >= count_) return;
    if (in_) in_->expect(visits(j));
    if (out_) out_->expect(visits(j));
  }

  template <class In, class Out>
  void forward(In& in, Out& out, index_t j) {
    const MicroBatch rows = micro_batch(j);
    A* input = nullptr;
    expect(j + 1);
    if (in) {
      wait([&] { forward_in_->take(j); });
      const Timer timer(statistics_.coding_seconds);
      input = inputs_.data() + j % slots_ * options_.micro_batch * shapes_.input;
      const std::byte* const packet = forward_in_->slot(j);
      in->lay_out(visits(j));
      accept(*in, packet, training_ ? Kind::activation : Kind::evaluation, j, rank_ - 1);
      check_proof(*in, packet, j);
      in->decode(packet, draws(j, Purpose::quantization).shared, envelope_, input);
      forward_in_->release(j, forward_bytes());
    }
    const A* output;
    {
      const Timer timer(statistics_.forward_seconds);
      output = stage_.forward(rows, static_cast<const A*>(input));
      if (last()) {
        // Whoever asks for it may wait for the device.
        await_messages(channel());
        loss_ += stage_.loss(rows);
        if (!std::isfinite(loss_)) envelope_.note(executor_);
      }
    }
    if (!out) return;
    if (output == nullptr) refuse_nothing("forward", "output", "last", j);
    wait([&] { forward_out_->prepare(j); });
    const Timer timer(statistics_.coding_seconds);
    std::byte* const packet = forward_out_->slot(j);
    const index_t bytes = out->lay_out(visits(j));
    const std::uint64_t proof = sample(*out, j, output);
    out->encode(output, draws(j, Purpose::quantization), proof, envelope_, packet);
    sample_error(*out, j, output);
    stamp(packet, bytes, training_ ? Kind::activation : Kind::evaluation, j, rank_);
    forward_out_->send(j, bytes);
  }

  void backward(index_t j) {
    const MicroBatch rows = micro_batch(j);
    const A* gradient = nullptr;
    if (gradients_in_) {
      wait([&] { backward_in_->take(j); });
      const Timer timer(statistics_.coding_seconds);
      const std::byte* const packet = backward_in_->slot(j);
      gradients_in_->lay_out(rows.rows);
      accept(*gradients_in_, packet, Kind::gradient, j, rank_ + 1);
      gradients_in_->decode(packet, draws(j, Purpose::second_quantization).shared, envelope_,
                            gradient_.data());
      take_note(packet + gradients_in_->note_at());
      backward_in_->release(j, backward_bytes());
      gradient = gradient_.data();
    }
    const A* input_gradient;
    {
      const Timer timer(statistics_.backward_seconds);
      input_gradient = stage_.backward(rows, gradient);
    }
    if (!gradients_out_) return;
    if (input_gradient == nullptr) refuse_nothing("backward", "input", "first", j);
    wait([&] { backward_out_->prepare(j); });
    const Timer timer(statistics_.coding_seconds);
    std::byte* const packet = backward_out_->slot(j);
    const index_t bytes = gradients_out_->lay_out(rows.rows);
    gradients_out_->encode(input_gradient, draws(j, Purpose::second_quantization), envelope_, packet);
    give_note(packet + gradients_out_->note_at());
    stamp(packet, bytes, Kind::gradient, j, rank_);
    backward_out_->send(j, bytes);
  }

  [[noreturn]] void refuse_nothing(const char* pass, const char* side, const char* end, index_t j) const {
    throw usage_error("the stage's " + std::string(pass) + " pass of micro-batch " + std::to_string(j) +
                          " returned nullptr, which only the " + end + " stage's may: this one has " + side +
                          "_elements() > 0",
                      rank_, static_cast<std::int64_t>(steps_ + 1));
  }

  /// Every stage learns the loss, which the last one knows, and what was not finite: what the backward passes found is
  /// all known to the first stage, which tells the others; in an evaluation it is known to the last one.
  PipelineResult close_step() {
    if (training_)
      pass_on(forward_in_, forward_out_, count_, Kind::verdict, rank_ - 1);
    else
      pass_on(backward_in_, backward_out_, 0, Kind::total, rank_ + 1);
    // First what this stage waits for itself: a lane alone doesn't tell who is late.
    wait([&] { await_messages(channel()); });
    for (std::optional<Lane>* lane : lanes())
      if (*lane) wait([&] { (*lane)->drain(); });
    const std::uint16_t flags = conclude();
    if (detail::is_refusal(flags)) detail::throw_refused(flags, rank_, steps_ + 1);
    if (training_) ++steps_, messages_ += static_cast<std::uint64_t>(count_);
    PipelineResult result{loss_, true, training_ ? fresh_ : 0};
    if (!last()) fetch(executor_, in<E, double>(note_.all()), view<double>(&result.loss, 1));
    if (flags != PacketHeader::finite) {
      culprit_ = flags - 1;
      result.applied = training_ && options_.on_non_finite == NonFinite::zero;
      if (!training_) result.loss = std::numeric_limits<double>::quiet_NaN();
    }
    return result;
  }
  void pass_on(std::optional<Lane>& from, std::optional<Lane>& to, index_t j, Kind kind, int sender) {
    const index_t bytes = closing_.lay_out(0);
    if (from) {
      wait([&] { from->take(j); });
      accept(closing_, from->slot(j), kind, j, sender);
      if (kind == Kind::total) take_note(from->slot(j) + closing_.note_at());
    }
    if (!to) return;
    wait([&] { to->prepare(j); });
    give_note(to->slot(j) + closing_.note_at());
    stamp(to->slot(j), bytes, kind, j, rank_);
    to->send(j, bytes);
  }

  // Packets.

  /// How long the j-th message of this step from a neighbour is, for lanes that must know.
  auto forward_bytes() {
    return [this](index_t j) {
      if (j == count_) return closing_.lay_out(0);
      return training_ ? in_->lay_out(visits(j)) : exact_in_->lay_out(visits(j));
    };
  }
  auto backward_bytes() {
    return [this](index_t j) {
      return training_ ? gradients_in_->lay_out(micro_batch(j).rows) : closing_.lay_out(0);
    };
  }
  template <class F>
  void wait(F f) {
    const Timer timer(statistics_.waiting_seconds);
    f();
  }
  std::uint64_t place(Kind kind, index_t j, int sender) const {
    const std::uint64_t rows = j < count_ ? hashes_[static_cast<std::size_t>(j)] : 0;
    return mix_hash(mix_hash(rows, static_cast<std::uint64_t>(kind)),
                    static_cast<std::uint64_t>(sender) << 40 ^ static_cast<std::uint64_t>(j));
  }
  void stamp(std::byte* packet, index_t bytes, Kind kind, index_t j, int sender) {
    envelope_.stamp(executor_, static_cast<std::uint64_t>(bytes), place(kind, j, sender), packet);
  }
  template <class Side>
  void accept(Side& side, const std::byte* packet, Kind kind, index_t j, int sender) {
    try {
      side.accept(envelope_, packet, place(kind, j, sender), sender);
      envelope_.arrived(executor_, false);
    } catch (const wire_error&) {
      if constexpr (on_host) {
        PacketHeader header;
        std::memcpy(&header, packet, sizeof header);
        const std::uint64_t check = mix_hash(round_.agreement, place(kind, j, sender));
        explain(find_fault(header, {0, header.length, round_.step, check}), j, sender);
      }
      throw;
    }
  }
  /// What a device has found.
  std::uint16_t conclude() {
    try {
      return envelope_.conclude(executor_, round_.step);
    } catch (const wire_error&) {
      if constexpr (!on_host) explain(envelope_.found().fault, -1, envelope_.found().sender);
      throw;
    }
  }
  /// Says in a pipeline's words what a packet of another step, or of other examples, comes from. Lengths follow from the
  /// examples. A device doesn't remember which message it was: j is negative.
  void explain(const PacketFault& fault, index_t j, int sender) const {
    const std::string stage = "stage " + std::to_string(sender);
    const auto step = static_cast<std::int64_t>(steps_ + 1);
    if (fault.field == PacketFault::step)
      throw wire_error(
          stage + " is in step " + std::to_string(fault.found) + ", and this stage in step " +
              std::to_string(round_.step) +
              ": all stages call train and evaluate alike, and go on from checkpoints of one step",
          rank_, step);
    const bool differs = fault.field == PacketFault::check || fault.field == PacketFault::length;
    if (differs && j < count_)
      throw wire_error(stage + " and this stage work on different examples" +
                           (j < 0 ? "" : " in micro-batch " + std::to_string(j)) +
                           ": other ids, another order or number, or one that only one of them has seen "
                           "before. All stages are given the same ids in the same order",
                       rank_, step);
    if (differs) throw wire_error(stage + "'s packet is not the one that ends this step", rank_, step);
  }

  /// Random bits depend on the message's number in the run, not on the schedule.
  EncodeContext draws(index_t j, Purpose rounding) const {
    const std::uint64_t number = messages_ + static_cast<std::uint64_t>(j) + 1;
    return {number, Draw::local(options_.seed, rank_, number, rounding),
            Draw::shared(options_.seed, number, Purpose::selection)};
  }
  /// The loss travels towards the first stage beside the gradients.
  void take_note(const std::byte* note) {
    copy(executor_, in<E, double>(reinterpret_cast<const double*>(note), 1), note_.all());
  }
  void give_note(std::byte* note) {
    if (last()) put(executor_, view<const double>(&loss_, 1), note_.all());
    copy(executor_, in<E, double>(note_.all()), out<E, double>(reinterpret_cast<double*>(note), 1));
  }

  // Copies that prove each other: one row of each message.

  index_t sampled_row(index_t j) const {
    // By lot: in turn, examples that come in one order would be sampled in every epoch or in none.
    return static_cast<index_t>(mix_hash(0, messages_ + static_cast<std::uint64_t>(j)) %
                                static_cast<std::uint64_t>(micro_batch(j).rows));
  }
  /// Returns what proves the copy, if that is asked for.
  template <class Side>
  std::uint64_t sample([[maybe_unused]] Side& side, [[maybe_unused]] index_t j,
                       [[maybe_unused]] const A* output) {
    sampling_ = false;
    if constexpr (P::remembers && on_host) {
      const index_t row = sampled_row(j);
      if (!training_ || !visits(j)[static_cast<std::size_t>(row)].seen) return 0;
      const auto [whole, change] = side.squares(visits(j), row, output);
      sampling_ = std::isfinite(whole);
      if (sampling_) {
        squares_.whole += whole;
        squares_.change += change;
        ++statistics_.sampled;
      }
      return policy_.audit ? side.proof(visits(j), row) : 0;
    }
    return 0;
  }
  template <class Side>
  void sample_error([[maybe_unused]] Side& side, [[maybe_unused]] index_t j,
                    [[maybe_unused]] const A* output) {
    if constexpr (P::remembers && on_host)
      if (sampling_) squares_.error += side.squares(visits(j), sampled_row(j), output).second;
  }
  template <class Side>
  void check_proof([[maybe_unused]] Side& side, [[maybe_unused]] const std::byte* packet,
                   [[maybe_unused]] index_t j) {
    if constexpr (P::remembers && on_host) {
      if (!policy_.audit || !training_) return;
      std::uint64_t theirs;
      std::memcpy(&theirs, packet + side.note_at(), sizeof theirs);
      const index_t row = sampled_row(j);
      const std::uint64_t own = side.proof(visits(j), row);
      // A device sends none.
      if (theirs == 0 || theirs == own) return;
      throw wire_error("stage " + std::to_string(rank_ - 1) + "'s copy of example " +
                           std::to_string(micro_batch(j).ids[row]) +
                           " differs from this stage's: load a checkpoint, or forget()",
                       rank_, static_cast<std::int64_t>(steps_ + 1));
    }
  }
  /// The sum over all examples of a hash of id and copy: the order of slots is each stage's own.
  template <class Side>
  std::uint64_t digest(Side& side) {
    std::vector<std::byte> row(static_cast<std::size_t>(side.row_bytes()));
    std::uint64_t sum = 0;
    for (index_t slot = 0; slot < index_.end(); ++slot) {
      if (index_.id(slot) == no_example) continue;
      download(view<const std::byte, typename E::memory>(side.copies() + slot * side.row_bytes(),
                                                         side.row_bytes()),
               view<std::byte>(row));
      sum += mix_hash(index_.id(slot), hash_bytes(row.data(), row.size()));
    }
    return sum;
  }

  P policy_;
  PipelineOptions options_;
  Plan schedule_;
  E executor_;
  S& stage_;
  int rank_, stages_;
  Lanes lanes_;
  std::uint64_t fingerprint_;
  Shapes shapes_;
  Assembly<std::array<std::uint64_t, 2>, T> everyone_;

  ExampleIndex index_;
  std::vector<std::uint64_t> last_visit_;  // by slot: the number of the message
  std::optional<Activations<P, E>> in_, out_;
  std::optional<Activations<ExactActivations, E>> exact_in_, exact_out_;
  std::optional<ActivationGradients<P, E>> gradients_in_, gradients_out_;
  ActivationGradients<ExactActivations, E> closing_;
  std::optional<Lane> forward_in_, forward_out_, backward_in_, backward_out_;
  Envelope<E> envelope_;

  buffer<A, typename E::memory> inputs_, gradient_;
  buffer<double, typename E::memory> note_;
  buffer<StepScalars, typename E::memory> now_;
  index_t input_slots_ = 0, slots_ = 0;
  index_t checked_ = -1;  // number of micro-batches that the schedule was asked about

  // Of the batch under way.
  std::span<const std::uint64_t> ids_;
  std::vector<RowVisit> visits_;       // by row
  std::vector<std::uint64_t> hashes_;  // by micro-batch: what both sides must agree on
  std::vector<std::uint64_t> added_;   // examples that got a slot
  index_t count_ = 0, fresh_ = 0;
  bool training_ = true;
  StepScalars round_;
  double loss_ = 0;
  int culprit_ = -1;

  std::uint64_t steps_ = 0, messages_ = 0, evaluations_ = 0;
  bool torn_ = false;
  PipelineStatistics statistics_;
  struct {
    double whole = 0, change = 0, error = 0;
  } squares_;
  bool sampling_ = false;
};

}  // namespace terse
