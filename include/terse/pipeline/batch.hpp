// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/pipeline/ac_sgd.hpp"
#include "terse/pipeline/example_index.hpp"
#include "terse/pipeline/micro_batch.hpp"
#include "terse/pipeline/options.hpp"
#include "terse/pipeline/row_visit.hpp"

namespace terse::detail {

/// The batch under way: its micro-batches, and where their examples' copies are. Keeps the index of all examples that
/// have copies, which each batch of training adds to. Slots follow from the batches alone, and so are alike on all stages
/// that were given the same ones.
class Batch {
 public:
  /// Without `when_full` no copies are kept.
  Batch(const PipelineOptions& options, index_t capacity, std::optional<WhenFull> when_full, int rank)
      : options_(options),
        when_full_(when_full),
        rank_(rank),
        index_(capacity),
        last_visit_(static_cast<std::size_t>(capacity)) {}

  /// How many micro-batches a batch of so many examples has.
  index_t count_of(std::size_t examples, bool training) const {
    return (static_cast<index_t>(examples) + options_.rows(training) - 1) / options_.rows(training);
  }
  /// Begins a batch of step `step`, which counts from 1, after `messages` micro-batches of training: finds the rows'
  /// copies, and slots for new ones. An evaluation looks for none; its step is that of the training to come. `ids` and
  /// `lengths` live as long as the batch. Throws usage_error, with no example added, where one stands twice in a
  /// micro-batch, or is one too many, and for lengths that can't be.
  void open(std::span<const std::uint64_t> ids, std::span<const index_t> lengths, bool training,
            std::uint64_t step, std::uint64_t messages) {
    step_ = step;
    check_lengths(ids.size(), lengths);
    ids_ = ids;
    lengths_ = lengths;
    training_ = training;
    messages_ = messages;
    most_rows_ = options_.rows(training);
    count_ = count_of(ids.size(), training);
    fresh_ = 0;
    // Room for whole micro-batches, so that steps of as many take no more.
    const auto most = static_cast<std::size_t>(count_ * most_rows_);
    visits_.reserve(most);
    added_.reserve(most);
    hashes_.reserve(static_cast<std::size_t>(count_));
    visits_.assign(ids.size(), {.length = options_.positions});
    added_.clear();
    hashes_.clear();
    try {
      for (index_t j = 0; j < count_; ++j) hashes_.push_back(look_up(micro_batch(j)));
    } catch (...) {
      take_back();
      throw;
    }
  }
  /// Drops the examples that `open` has added: the batch doesn't take place.
  void take_back() {
    // From the last one on, so that slots will be given out as if nothing had been.
    for (; !added_.empty(); added_.pop_back()) index_.erase(added_.back());
    // The next try has the same numbers of messages.
    forget_visits();
  }

  /// Examples of a micro-batch, at most.
  index_t most_rows() const { return most_rows_; }
  /// Micro-batches.
  index_t count() const { return count_; }
  bool training() const { return training_; }
  std::uint64_t step() const { return step_; }
  /// What its packets say the step is: an evaluation belongs to the one before.
  std::uint64_t round() const { return training_ ? step_ : step_ - 1; }
  /// Examples without a copy.
  index_t fresh() const { return fresh_; }
  MicroBatch micro_batch(index_t j) const {
    const auto all = static_cast<index_t>(ids_.size());
    const index_t first = j * most_rows_, rows = std::min(most_rows_, all - first);
    return {j,
            first,
            rows,
            ids_.data() + first,
            static_cast<double>(rows) / static_cast<double>(all),
            training_,
            lengths_.empty() ? nullptr : lengths_.data() + first};
  }
  std::span<const RowVisit> visits(index_t j) const {
    const MicroBatch rows = micro_batch(j);
    return {visits_.data() + rows.first, static_cast<std::size_t>(rows.rows)};
  }
  /// Of each micro-batch what both sides of a boundary must agree on: its examples, and which were seen.
  std::span<const std::uint64_t> hashes() const { return hashes_; }
  /// The number in the run of micro-batch j, from 1.
  std::uint64_t number(index_t j) const { return messages_ + static_cast<std::uint64_t>(j) + 1; }

  /// The examples that have copies.
  const ExampleIndex& examples() const { return index_; }
  void forget(std::span<const std::uint64_t> ids) {
    for (const std::uint64_t id : ids) index_.erase(id);
  }
  void forget() { index_.clear(); }
  /// Goes on from a checkpoint's examples.
  void restore(ExampleIndex examples) {
    index_ = std::move(examples);
    // What messages of another past have seen counts for nothing.
    forget_visits();
  }

 private:
  std::uint64_t look_up(const MicroBatch& rows) {
    // The size of the whole batch, too, so that the first packet tells.
    std::uint64_t hash =
        mix_hash(mix_hash(ids_.size(), static_cast<std::uint64_t>(rows.rows)), training_ ? 1 : 0);
    for (index_t row = rows.first; row < rows.first + rows.rows; ++row) {
      RowVisit& visit = visits_[static_cast<std::size_t>(row)];
      const std::uint64_t id = ids_[static_cast<std::size_t>(row)];
      if (when_full_ && training_ && id != no_example) look_up(visit, id, rows.index);
      if (!lengths_.empty()) visit.length = lengths_[static_cast<std::size_t>(row)];
      fresh_ += visit.seen ? 0 : 1;
      const auto padding = static_cast<std::uint64_t>(options_.positions - visit.length);
      hash = mix_hash(mix_hash(hash, id), padding << 1 | (visit.seen ? 1 : 0));
    }
    return hash;
  }
  void look_up(RowVisit& visit, std::uint64_t id, index_t j) {
    visit.slot = index_.find(id);
    visit.seen = true;
    if (visit.slot == ExampleIndex::none) {
      visit.seen = false;
      if (index_.size() == index_.capacity()) {
        if (when_full_ == WhenFull::refuse)
          throw usage_error("the memory of examples is full: it has a capacity of " +
                                std::to_string(index_.capacity()) + ", and example " + std::to_string(id) +
                                " is one more. Raise capacity, forget some, or let WhenFull::send_whole",
                            rank_, static_cast<std::int64_t>(step_));
        return;
      }
      visit.slot = index_.insert(id);
      added_.push_back(id);
      last_visit_[static_cast<std::size_t>(visit.slot)] = 0;
    }
    std::uint64_t& before = last_visit_[static_cast<std::size_t>(visit.slot)];
    if (before == number(j))
      throw usage_error("example " + std::to_string(id) + " stands twice in micro-batch " +
                            std::to_string(j) + ": there would be two changes of one copy",
                        rank_, static_cast<std::int64_t>(step_));
    before = number(j);
  }
  void check_lengths(std::size_t rows, std::span<const index_t> lengths) const {
    const auto refuse = [&](const std::string& fault) {
      throw usage_error(fault, rank_, static_cast<std::int64_t>(step_));
    };
    if (!lengths.empty() && lengths.size() != rows)
      refuse("a batch of " + std::to_string(rows) + " examples is given " + std::to_string(lengths.size()) +
             " lengths");
    for (std::size_t row = 0; row < lengths.size(); ++row)
      if (lengths[row] < 0 || lengths[row] > options_.positions)
        refuse("row " + std::to_string(row) + " has a length of " + std::to_string(lengths[row]) +
               ", and PipelineOptions::positions is " + std::to_string(options_.positions));
  }
  void forget_visits() { std::fill(last_visit_.begin(), last_visit_.end(), 0); }

  PipelineOptions options_;
  std::optional<WhenFull> when_full_;
  int rank_;
  ExampleIndex index_;
  std::vector<std::uint64_t> last_visit_;  // by slot: the number of the micro-batch

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
