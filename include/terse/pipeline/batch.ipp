// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "terse/core/separate.hpp"
#include "terse/pipeline/batch.hpp"

namespace terse::detail {

TERSE_CORE Batch::Batch(const PipelineOptions& options, index_t capacity, std::optional<WhenFull> when_full,
                        int rank)
    : options_(options),
      when_full_(when_full),
      rank_(rank),
      index_(capacity),
      last_visit_(static_cast<std::size_t>(capacity)) {}

TERSE_CORE void Batch::open(std::span<const std::uint64_t> ids, std::span<const index_t> lengths,
                            bool training, std::uint64_t step, std::uint64_t messages) {
  step_ = step;
  check_lengths(ids.size(), lengths);
  ids_ = ids;
  lengths_ = lengths;
  training_ = training;
  messages_ = messages;
  most_rows_ = options_.rows(training);
  count_ = count_of(ids.size(), training);
  fresh_ = 0;
  // Reserves whole micro-batches, so that steps with the same number of them don't allocate.
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

TERSE_CORE void Batch::take_back() {
  // In reverse order, so that slots will be assigned as if the batch had not been opened.
  for (; !added_.empty(); added_.pop_back()) index_.erase(added_.back());
  // The next attempt reuses the message numbers.
  forget_visits();
}

TERSE_CORE MicroBatch Batch::micro_batch(index_t j) const {
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

TERSE_CORE void Batch::restore(ExampleIndex examples) {
  index_ = std::move(examples);
  // These visits are not part of the restored run.
  forget_visits();
}

TERSE_CORE std::uint64_t Batch::look_up(const MicroBatch& rows) {
  // The size of the whole batch is included, so that the first packet reveals a difference.
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

TERSE_CORE void Batch::look_up(RowVisit& visit, std::uint64_t id, index_t j) {
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
    throw usage_error("example " + std::to_string(id) + " occurs twice in micro-batch " + std::to_string(j) +
                          ": there would be two changes of one copy",
                      rank_, static_cast<std::int64_t>(step_));
  before = number(j);
}

TERSE_CORE void Batch::check_lengths(std::size_t rows, std::span<const index_t> lengths) const {
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

}  // namespace terse::detail
