// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/view.hpp"
#include "terse/pipeline/batch.hpp"
#include "terse/pipeline/example_index.hpp"
#include "terse/pipeline/options.hpp"

namespace terse::detail {

/// Samples of the copies, one row of each training message. They give the copies' distance from the activation and,
/// if `audit`, a hash in the message, which proves that both sides have equal copies. `Active` is true if there are
/// copies that the host can read; otherwise nothing is sampled.
template <bool Active>
class CopySamples {
 public:
  /// Keeps a reference to `batch`.
  CopySamples(const Batch& batch, bool audit, int rank) : batch_(batch), audit_(audit), rank_(rank) {}

  /// Samples a row of message j before `side` encodes its activations. Returns the hash of its copy; 0 if there is none.
  template <class Side, class A>
  std::uint64_t before([[maybe_unused]] Side& side, [[maybe_unused]] index_t j,
                       [[maybe_unused]] const A* activations) {
    sampling_ = false;
    if constexpr (Active) {
      const index_t row = row_of(j);
      if (!batch_.training() || !batch_.visits(j)[static_cast<std::size_t>(row)].seen) return 0;
      const auto [whole, change] = side.squares(batch_.visits(j), row, activations);
      sampling_ = std::isfinite(whole);
      if (sampling_) {
        whole_ += whole;
        change_ += change;
        ++sampled_;
      }
      return audit_ ? side.proof(batch_.visits(j), row) : 0;
    }
    return 0;
  }
  /// Samples the same row after encoding.
  template <class Side, class A>
  void after([[maybe_unused]] Side& side, [[maybe_unused]] index_t j, [[maybe_unused]] const A* activations) {
    if constexpr (Active)
      if (sampling_) error_ += side.squares(batch_.visits(j), row_of(j), activations).second;
  }
  /// Checks the hash in a received message before it is decoded. Throws wire_error.
  template <class Side>
  void check([[maybe_unused]] Side& side, [[maybe_unused]] const std::byte* packet,
             [[maybe_unused]] index_t j) const {
    if constexpr (Active) {
      if (!audit_ || !batch_.training()) return;
      std::uint64_t theirs;
      std::memcpy(&theirs, packet + side.note_at(), sizeof theirs);
      const index_t row = row_of(j);
      const std::uint64_t own = side.proof(batch_.visits(j), row);
      // A device sends no hash.
      if (theirs == 0 || theirs == own) return;
      throw wire_error("stage " + std::to_string(rank_ - 1) + "'s copy of example " +
                           std::to_string(batch_.micro_batch(j).ids[row]) +
                           " differs from this stage's: load a checkpoint, or forget()",
                       rank_, static_cast<std::int64_t>(batch_.step()));
    }
  }

  void show(PipelineStatistics& statistics) const {
    statistics.sampled = sampled_;
    if (whole_ <= 0) return;
    statistics.change = std::sqrt(change_ / whole_);
    statistics.error = std::sqrt(error_ / whole_);
  }
  void reset() {
    whole_ = change_ = error_ = 0;
    sampled_ = 0;
  }

 private:
  index_t row_of(index_t j) const {
    // The row is random: if rows took turns, examples in a fixed order would be sampled in every epoch or in none.
    return static_cast<index_t>(mix_hash(0, batch_.number(j) - 1) %
                                static_cast<std::uint64_t>(batch_.micro_batch(j).rows));
  }

  const Batch& batch_;
  bool audit_;
  int rank_;
  double whole_ = 0, change_ = 0, error_ = 0;  // sums of squares
  index_t sampled_ = 0;
  bool sampling_ = false;
};

/// Returns the sum over all examples of a hash of id and copy; it is a sum because stages may order slots
/// differently.
template <class Memory, class Side>
std::uint64_t copies_digest(const ExampleIndex& examples, Side& side) {
  std::vector<std::byte> row(static_cast<std::size_t>(side.row_bytes()));
  std::uint64_t sum = 0;
  for (index_t slot = 0; slot < examples.end(); ++slot) {
    if (examples.id(slot) == no_example) continue;
    download(view<const std::byte, Memory>(side.copies() + slot * side.row_bytes(), side.row_bytes()),
             view<std::byte>(row));
    sum += mix_hash(examples.id(slot), hash_bytes(row.data(), row.size()));
  }
  return sum;
}

}  // namespace terse::detail
