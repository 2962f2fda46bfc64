// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "terse/core/config.hpp"

namespace terse {

namespace detail {

/// Makes a sentence by the rules of printf: one call, which compiles in less time than a chain of strings.
[[gnu::format(printf, 1, 2)]] TERSE_COLD std::string sentence(const char* format, ...);

}  // namespace detail

/// Every exception that terse throws. `what()` reads "terse: rank 2, step 17: the sentence"; rank and step
/// are -1 where the fault belongs to none.
class TERSE_VISIBLE error : public std::runtime_error {
 public:
  explicit error(const std::string& sentence, int rank = -1, std::int64_t step = -1)
      : std::runtime_error(compose(sentence, rank, step)), rank_(rank), step_(step) {}

  /// The rank that reports, or -1.
  int rank() const noexcept { return rank_; }
  /// The optimizer step in which it happened, or -1.
  std::int64_t step() const noexcept { return step_; }

 private:
  TERSE_COLD static std::string compose(const std::string& sentence, int rank, std::int64_t step);

  int rank_;
  std::int64_t step_;
};

/// A value that can't work: a negative size, a rate outside its range, a view of the wrong length.
class TERSE_VISIBLE usage_error : public error {
 public:
  using error::error;
};

/// A peer is dead, late or has thrown, or ranks in different calls wait for each other. The transport is unusable from here on.
class TERSE_VISIBLE peer_error : public error {
 public:
  peer_error(const std::string& sentence, int culprit, int rank, std::int64_t step = -1)
      : error(sentence, rank, step), culprit_(culprit) {}

  /// The rank that let the others down; -1 where none is known to have, as of those that wait for each other.
  int culprit() const noexcept { return culprit_; }

 private:
  int culprit_;
};

/// The ranks were not set up alike: layout, recipe, world, seed, numerics or wire version differ.
class TERSE_VISIBLE mismatch_error : public error {
 public:
  using error::error;
};

/// A packet does not belong here: wrong length, step, sender or version.
class TERSE_VISIBLE wire_error : public error {
 public:
  using error::error;
};

/// A gradient, a message or a parameter was NaN or infinite on some rank, and the policy is to throw. Where all ranks average, all of them
/// throw it in the same step.
class TERSE_VISIBLE non_finite_error : public error {
 public:
  non_finite_error(const std::string& sentence, int culprit, int rank, std::int64_t step)
      : error(sentence, rank, step), culprit_(culprit) {}

  /// The first rank whose value was not finite.
  int culprit() const noexcept { return culprit_; }

 private:
  int culprit_;
};

/// A checkpoint that can't be written, read or trusted.
class TERSE_VISIBLE checkpoint_error : public error {
 public:
  using error::error;
};

/// A folder for checkpoints that another run has. Once that one has ended, the folder can be had.
class TERSE_VISIBLE folder_in_use_error : public checkpoint_error {
 public:
  using checkpoint_error::checkpoint_error;
};

/// A checkpoint that is whole, but of another run: another recipe, number of ranks, layout or seed.
class TERSE_VISIBLE foreign_checkpoint_error : public checkpoint_error {
 public:
  using checkpoint_error::checkpoint_error;
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/core/error.ipp"
#endif
