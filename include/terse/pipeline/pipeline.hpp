// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/packet.hpp"
#include "terse/pipeline/agreement.hpp"
#include "terse/pipeline/batch.hpp"
#include "terse/pipeline/copy_samples.hpp"
#include "terse/pipeline/options.hpp"
#include "terse/pipeline/passes.hpp"
#include "terse/pipeline/schedule.hpp"
#include "terse/transport/call.hpp"

namespace terse {

/// One stage of a model that is trained in a pipeline: rank s of a transport is stage s. Activations go to the next
/// stage, gradients come back, compressed as the policy says; the stage's own optimizer steps on the gradients.
///
///     terse::Pipeline pipeline{terse::AcSgd<>{.capacity = 10'000}, transport, stage, {.micro_batch = 32}};
///     const terse::PipelineResult result = pipeline.train(ids);
///
/// Construction is collective: all stages make it alike, and a difference in policy, options, schedule or numerics, or
/// boundaries that don't fit each other, throw mismatch_error that names them. `stage` must outlive it, and so must the
/// stage that it refers to. Memory is taken here and in the first step or evaluation of each larger number of micro-batches; other
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

 public:
  using runs_on = E;

  Pipeline(P policy, T& transport, S& stage, const PipelineOptions& options, Plan schedule = {},
           E executor = {})
      : policy_((policy.check(), std::move(policy))),
        options_((detail::check_options(options, schedule), options)),
        schedule_(schedule),
        rank_(transport.rank()),
        stages_(transport.size()),
        lanes_(transport, executor),
        fingerprint_(detail::agree_on_pipeline(channel(), policy_, options_, schedule_, executor)),
        shapes_(detail::agree_on_shapes(channel(), stage, options_.positions)),
        everyone_(channel()),
        batch_(options_, capacity(), when_full(), rank_),
        passes_(executor, policy_, options_, shapes_, stage, lanes_, batch_) {}
  // Messages in flight point into this object.
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// One batch through all stages, forward and back: the stage's gradients have what these examples add. Collective;
  /// `ids` are alike on all stages, in the order of the batch's rows. Stages run as far ahead of each other as the
  /// schedule lets them, within the call and beyond it.
  ///
  /// `lengths` has for each row how many of its first positions are data, of PipelineOptions::positions; none: all are.
  /// The rest, padding, doesn't travel: the next stage reads zeros there, and so does this one in its gradients. Equal on
  /// all stages, as the ids are.
  ///
  /// Throws, with nothing changed, usage_error on all stages alike where an example that is kept stands twice in one
  /// micro-batch, a full memory refuses, `ids` is empty, or lengths are negative, above `positions`, or not one for each id. Throws wire_error where a neighbour's packet does not belong to these examples
  /// or its copies are others; non_finite_error on all stages, after the last message, by the policy; what the stage
  /// throws; and peer_error, see the transport, whose deadline must outlast a step: an end of the pipeline waits for all
  /// passes that a slower stage still has to take. After all but the
  /// first and non_finite_error the pipeline is torn: the copies may be messages apart, and it refuses to train until
  /// `forget()` or a checkpoint is loaded. Over NCCL, where all stages first agree on the batch, other examples are a
  /// wire_error on all of them with nothing changed, and a tear ends the transport; see nccl_lanes.hpp.
  PipelineResult train(std::span<const std::uint64_t> ids, std::span<const index_t> lengths = {}) {
    const detail::Call call(detail::Verb::train);
    return run<true>(ids, lengths, schedule_);
  }

  /// The mean loss of a batch. Collective, and without a backward pass. Activations travel exactly, and no copy is
  /// touched. Not finite where an activation was not, unless the policy is to throw.
  double evaluate(std::span<const std::uint64_t> ids, std::span<const index_t> lengths = {}) {
    const detail::Call call(detail::Verb::evaluate);
    return run<false>(ids, lengths, ForwardOnly{}).loss;
  }

  /// Drops the copies of these examples, which will be new ones when they come again. All stages do so alike.
  void forget(std::span<const std::uint64_t> ids) { batch_.forget(ids); }
  /// Drops all copies. All stages do so alike. A torn pipeline may then be used again if its transport still works: not
  /// after a stage was left waiting, for which the deadline ends Threads, MPI and NCCL.
  void forget() {
    batch_.forget();
    torn_ = false;
  }

  /// Compares all copies at all boundaries. Collective; reads every row and sends 20 bytes to each stage. Throws
  /// mismatch_error on all stages that names the first boundary whose sides differ.
  void audit() {
    std::array<std::uint64_t, 2> mine{};  // of what comes in, and of what goes out
    if constexpr (P::remembers) {
      using Memory = typename E::memory;
      if (auto& before = passes_.before())
        mine[0] = detail::copies_digest<Memory>(examples(), before->trained);
      if (auto& behind = passes_.behind())
        mine[1] = detail::copies_digest<Memory>(examples(), behind->trained);
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
  std::string kind() const { return detail::boundary_kind(policy_); }
  /// The examples of which copies are kept.
  const ExampleIndex& examples() const { return batch_.examples(); }
  /// A channel of all stages, for collective work between steps.
  T& channel() { return lanes_.channel(); }

  PipelineStatistics statistics() const { return passes_.statistics(); }
  void reset_statistics() { passes_.reset_statistics(); }

  /// Shows the scalars of the state: visit(name, uint64&). With `copies`, what a checkpoint of it holds.
  template <class Visit>
  void walk(Visit&& visit) {
    visit("steps", steps_);
    visit("messages", messages_);
  }
  /// Shows the copies at each boundary: visit(name, bytes of `slot_count` rows, bytes of a row).
  template <class Visit>
  void copies(index_t slot_count, Visit&& visit) {
    if constexpr (P::remembers) {
      const auto show = [&](const char* name, auto& side) {
        visit(name, view<std::byte, typename E::memory>(side.copies(), slot_count * side.row_bytes()),
              side.row_bytes());
      };
      if (auto& before = passes_.before()) show("incoming", before->trained);
      if (auto& behind = passes_.behind()) show("outgoing", behind->trained);
    }
  }
  /// Takes over the examples whose copies stand where `copies` shows them: what is left to do once scalars and copies are
  /// a checkpoint's. `examples` has this pipeline's capacity. Ends a tear; throws nothing.
  void restore(ExampleIndex examples) {
    batch_.restore(std::move(examples));
    evaluations_ = 0;
    torn_ = false;
  }

 private:
  /// What is left of a step that an exception ends.
  class Tear {
   public:
    explicit Tear(Pipeline& pipeline) : pipeline_(&pipeline) {}
    ~Tear() {
      if (pipeline_ == nullptr) return;
      pipeline_->torn_ = true;
      pipeline_->passes_.abandon();
    }
    Tear(const Tear&) = delete;
    Tear& operator=(const Tear&) = delete;
    void mend() { pipeline_ = nullptr; }

   private:
    Pipeline* pipeline_;
  };

  index_t capacity() const {
    if constexpr (P::remembers)
      return policy_.capacity;
    else
      return 0;
  }
  std::optional<WhenFull> when_full() const {
    if constexpr (P::remembers)
      return policy_.when_full;
    else
      return std::nullopt;
  }

  template <bool Training, class Order>
  PipelineResult run(std::span<const std::uint64_t> ids, std::span<const index_t> lengths,
                     const Order& order) {
    if (torn_)
      throw usage_error(
          "an earlier step ended in its middle, so that copies of examples may differ between stages: make "
          "transport and "
          "pipeline anew and load a checkpoint, or, where all stages are still in touch, forget()",
          rank_, static_cast<std::int64_t>(steps_ + 1));
    detail::check_processor(rank_, steps_ + 1);
    if (ids.empty())
      throw usage_error("a batch needs an example at least", rank_, static_cast<std::int64_t>(steps_ + 1));
    const index_t count = batch_.count_of(ids.size(), Training);
    if (Training && checked_ != count) {
      check_order(order, rank_, stages_, count);
      checked_ = count;
    }
    open_batch(ids, lengths, Training);

    Tear tear(*this);
    passes_.open(order.in_flight(rank_, stages_, count),
                 mix_hash(fingerprint_, Training ? 0 : ++evaluations_));
    for (index_t k = 0; k < order.actions(count); ++k) {
      const Action action = order.at(k, rank_, stages_, count);
      if (action.forward)
        passes_.template forward<Training>(action.micro_batch);
      else
        passes_.backward(action.micro_batch);
    }
    const auto [flags, loss] = passes_.close();
    tear.mend();
    if (Training) {
      ++steps_;
      messages_ += static_cast<std::uint64_t>(count);
    }
    PipelineResult result{loss, true, Training ? batch_.fresh() : 0};
    if (flags == PacketHeader::finite) return result;
    if (options_.on_non_finite == NonFinite::throw_)
      throw non_finite_error("an activation, gradient or loss of stage " + std::to_string(flags - 1) +
                                 " is not finite (NaN, infinity, or beyond 2^63)",
                             flags - 1, rank_, static_cast<std::int64_t>(steps_));
    result.applied = Training && options_.on_non_finite == NonFinite::zero;
    if (!Training) result.loss = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
  void open_batch(std::span<const std::uint64_t> ids, std::span<const index_t> lengths, bool training) {
    batch_.open(ids, lengths, training, steps_ + 1, messages_);
    // Messages whose lengths follow from the batch must not be asked for before all stages have the same one.
    if constexpr (detail::Lanes<T, E>::exact) {
      try {
        detail::agree_on_batch(channel(), everyone_, batch_);
      } catch (...) {
        batch_.take_back();
        throw;
      }
    }
  }

  P policy_;
  PipelineOptions options_;
  Plan schedule_;
  int rank_, stages_;
  detail::Lanes<T, E> lanes_;
  std::uint64_t fingerprint_;
  detail::BoundaryShapes shapes_;
  detail::TwoWords<T> everyone_;
  detail::Batch batch_;
  detail::Passes<P, T, S, E> passes_;

  index_t checked_ = -1;  // number of micro-batches that the schedule was asked about
  std::uint64_t steps_ = 0, messages_ = 0, evaluations_ = 0;
  bool torn_ = false;
};

}  // namespace terse
