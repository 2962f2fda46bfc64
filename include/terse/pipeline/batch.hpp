// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/pipeline/ac_sgd.hpp"
#include "terse/pipeline/example_index.hpp"
#include "terse/pipeline/micro_batch.hpp"
#include "terse/pipeline/options.hpp"
#include "terse/pipeline/row_visit.hpp"

namespace terse::detail {

/// The current batch: its micro-batches, and the slots of their examples' copies. Keeps the index of all examples that
/// have copies; each training batch adds examples to it. Slots depend only on the batches, so they are equal on all
/// stages that were given equal batches.
class Batch {
 public:
  /// Creates an empty batch. Without `when_full` no copies are kept.
  Batch(const PipelineOptions& options, index_t capacity, std::optional<WhenFull> when_full, int rank);

  /// Returns the number of micro-batches of a batch with this many examples.
  index_t count_of(std::size_t examples, bool training) const {
    return (static_cast<index_t>(examples) + options_.rows(training) - 1) / options_.rows(training);
  }
  /// Begins a batch of step `step`, which counts from 1, after `messages` training micro-batches: finds the rows' copies,
  /// and slots for new ones. An evaluation looks for no copies; its step is the number of the next training step. `ids` and
  /// `lengths` must live as long as the batch. Throws usage_error, with no example added, if an example occurs twice in a
  /// micro-batch or does not fit into the memory, or if lengths are invalid.
  void open(std::span<const std::uint64_t> ids, std::span<const index_t> lengths, bool training,
            std::uint64_t step, std::uint64_t messages);
  /// Drops the examples that `open` has added; then the batch counts as not opened.
  void take_back();

  /// Returns the maximum number of examples in a micro-batch.
  index_t most_rows() const { return most_rows_; }
  /// Returns the number of micro-batches.
  index_t count() const { return count_; }
  bool training() const { return training_; }
  std::uint64_t step() const { return step_; }
  /// Returns the step in packet headers: an evaluation belongs to the previous step.
  std::uint64_t round() const { return training_ ? step_ : step_ - 1; }
  /// Returns the number of examples without a copy.
  index_t fresh() const { return fresh_; }
  MicroBatch micro_batch(index_t j) const;
  std::span<const RowVisit> visits(index_t j) const {
    const MicroBatch rows = micro_batch(j);
    return {visits_.data() + rows.first, static_cast<std::size_t>(rows.rows)};
  }
  /// Returns, for each micro-batch, a hash of its examples and of which were seen; both sides of a boundary must agree on it.
  std::span<const std::uint64_t> hashes() const { return hashes_; }
  /// Returns the number of micro-batch j in the run, from 1.
  std::uint64_t number(index_t j) const { return messages_ + static_cast<std::uint64_t>(j) + 1; }

  /// Returns the index of examples that have copies.
  const ExampleIndex& examples() const { return index_; }
  void forget(std::span<const std::uint64_t> ids) {
    for (const std::uint64_t id : ids) index_.erase(id);
  }
  void forget() { index_.clear(); }
  /// Resumes from the examples of a checkpoint.
  void restore(ExampleIndex examples);

 private:
  std::uint64_t look_up(const MicroBatch& rows);
  void look_up(RowVisit& visit, std::uint64_t id, index_t j);
  void check_lengths(std::size_t rows, std::span<const index_t> lengths) const;
  void forget_visits() { std::fill(last_visit_.begin(), last_visit_.end(), 0); }

  PipelineOptions options_;
  std::optional<WhenFull> when_full_;
  int rank_;
  ExampleIndex index_;
  std::vector<std::uint64_t> last_visit_;  // by slot: number of the last micro-batch

  std::span<const std::uint64_t> ids_;
  std::span<const index_t> lengths_;
  index_t most_rows_ = 0;  // of a micro-batch
  bool training_ = true;
  std::uint64_t step_ = 0, messages_ = 0;
  index_t count_ = 0, fresh_ = 0;
  std::vector<RowVisit> visits_;       // by row
  std::vector<std::uint64_t> hashes_;  // by micro-batch
  std::vector<std::uint64_t> added_;   // examples that got a slot
};

}  // namespace terse::detail

#ifndef TERSE_SEPARATE
#include "terse/pipeline/batch.ipp"
#endif
