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

/// One stage of a model that is trained in a pipeline: rank s of the transport is stage s. Activations are sent to the
/// next stage and gradients to the previous one, compressed by the policy; each stage has its own optimizer.
///
///     terse::Pipeline pipeline{terse::AcSgd<>{.capacity = 10'000}, transport, stage, {.micro_batch = 32}};
///     const terse::PipelineResult result = pipeline.train(ids);
///
/// Construction is collective. If stages differ in policy, options, schedule or numerics, or boundaries don't match, the
/// constructor throws mismatch_error, which names the difference. `stage`, and any stage that it refers to, must outlive
/// the pipeline. Memory is allocated here and whenever a step or an evaluation has more micro-batches than all before;
/// other steps allocate nothing.
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
  // Not movable: messages in flight point into this object.
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Runs one batch forward and backward through all stages, and adds the gradients of these examples to the stage's
  /// gradients. Collective; `ids` are equal on all stages, in the order of the batch's rows. Stages may run ahead of
  /// each other as far as the schedule allows, even beyond the end of a call.
  ///
  /// `lengths` has the number of leading data positions of each row, out of PipelineOptions::positions; if empty, all
  /// positions are data. The remaining positions, padding, are not sent: the next stage reads zeros there, and this
  /// stage reads zeros in their gradients. `lengths` are equal on all stages.
  ///
  /// Throws usage_error on all stages, with nothing changed, in these cases: an example that is kept occurs twice in one
  /// micro-batch, a full memory refuses an example, `ids` is empty, or lengths are negative, above `positions`, or not one
  /// for each id. Throws wire_error if a neighbour's packet does not belong to these examples, or the neighbour's copies
  /// differ. Depending on the policy, throws non_finite_error on all stages, after the last message. Throws all exceptions
  /// of the stage, and peer_error, see the transport. The transport's deadline must be longer than a step: at its ends the
  /// pipeline waits for all remaining passes of a slower stage.
  ///
  /// After all of these errors except this usage_error and non_finite_error the pipeline is torn: the copies of two stages
  /// may be several messages out of step. `train` then throws until `forget()` is called or a checkpoint is loaded. Over
  /// NCCL, where all stages first agree on the batch, different examples are a wire_error on all stages with nothing
  /// changed, and a tear ends the transport; see nccl_lanes.hpp.
  PipelineResult train(std::span<const std::uint64_t> ids, std::span<const index_t> lengths = {}) {
    const detail::Call call(detail::Verb::train);
    return run<true>(ids, lengths, schedule_);
  }

  /// Returns the mean loss of a batch. Collective, without a backward pass. Activations are sent exactly, and no copy is
  /// read or written. The result is not finite if an activation was not finite, unless the policy is to throw.
  double evaluate(std::span<const std::uint64_t> ids, std::span<const index_t> lengths = {}) {
    const detail::Call call(detail::Verb::evaluate);
    return run<false>(ids, lengths, ForwardOnly{}).loss;
  }

  /// Drops the copies of these examples; their next visit counts as the first. All stages must make the same call.
  void forget(std::span<const std::uint64_t> ids) { batch_.forget(ids); }
  /// Drops all copies. All stages must make the same call. A torn pipeline may then be used again if its transport still
  /// works. It does not work after a stage was left waiting: the deadline then ends Threads, MPI and NCCL.
  void forget() {
    batch_.forget();
    torn_ = false;
  }

  /// Compares all copies at all boundaries. Collective; reads every row and sends 20 bytes to each stage. If copies
  /// differ, throws mismatch_error on all stages, which names the first boundary whose sides differ.
  void audit() {
    std::array<std::uint64_t, 2> mine{};  // digests of incoming and of outgoing copies
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

  /// Returns the number of batches trained on.
  std::uint64_t steps() const { return steps_; }
  /// Returns true if `train` and `evaluate` would throw because the pipeline is torn.
  bool torn() const { return torn_; }
  int rank() const { return rank_; }
  int size() const { return stages_; }
  const P& policy() const { return policy_; }
  const PipelineOptions& options() const { return options_; }
  /// Returns the elements of an example at the boundary before this stage (`output_elements`: after it); 0 at the ends.
  index_t input_elements() const { return shapes_.input; }
  index_t output_elements() const { return shapes_.output; }
  /// Describes compressors and copies in words, without the storage of copies, which may differ between stages.
  std::string kind() const { return detail::boundary_kind(policy_); }
  /// Returns the index of examples that have copies.
  const detail::ExampleIndex& examples() const { return batch_.examples(); }
  /// Returns a channel of all stages, for collective work between steps.
  T& channel() { return lanes_.channel(); }

  PipelineStatistics statistics() const { return passes_.statistics(); }
  void reset_statistics() { passes_.reset_statistics(); }

  /// Shows the scalars of the state to visit(name, uint64&). A checkpoint holds these and `copies`.
  template <class Visit>
  void walk(Visit&& visit) {
    visit("steps", steps_);
    visit("messages", messages_);
  }
  /// Shows the copies at each boundary to visit(name, bytes of `slot_count` rows, bytes of a row).
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
  /// Adopts the index of the examples whose copies are at the places that `copies` shows: the last step of loading a
  /// checkpoint, after scalars and copies were read. `examples` has this pipeline's capacity. Ends a tear; throws
  /// nothing.
  void restore(detail::ExampleIndex examples) {
    batch_.restore(std::move(examples));
    evaluations_ = 0;
    torn_ = false;
  }

 private:
  /// Guard of a step: marks the pipeline as torn and abandons messages if an exception ends the step.
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
          "an earlier step ended in its middle, so that copies of examples may differ between stages: make a "
          "new transport and pipeline and load a checkpoint, or call forget() if all stages can still "
          "communicate",
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
    // Message lengths depend on the batch: no receive may be posted before all stages agree on the batch.
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

  index_t checked_ = -1;  // number of micro-batches for which the schedule was checked
  std::uint64_t steps_ = 0, messages_ = 0, evaluations_ = 0;
  bool torn_ = false;
};

}  // namespace terse
