// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "terse/core/config.hpp"

namespace terse {

namespace detail {

/// Formats a sentence as printf does, in one call, which compiles in less time than a chain of strings.
[[gnu::format(printf, 1, 2)]] TERSE_COLD std::string sentence(const char* format, ...);

}  // namespace detail

/// The base of all exceptions that terse throws. `what()` reads "terse: rank 2, step 17: the sentence"; rank and step
/// are -1 if the fault belongs to none.
class TERSE_VISIBLE error : public std::runtime_error {
 public:
  explicit error(const std::string& sentence, int rank = -1, std::int64_t step = -1)
      : std::runtime_error(compose(sentence, rank, step)), rank_(rank), step_(step) {}

  /// Returns the rank that reports, or -1.
  int rank() const noexcept { return rank_; }
  /// Returns the optimizer step of the fault, or -1.
  std::int64_t step() const noexcept { return step_; }

 private:
  TERSE_COLD static std::string compose(const std::string& sentence, int rank, std::int64_t step);

  int rank_;
  std::int64_t step_;
};

/// A value that is invalid: a negative size, a rate outside its range, a view of the wrong length.
class TERSE_VISIBLE usage_error : public error {
 public:
  using error::error;
};

/// A failed peer, which is dead, late or has thrown, or a deadlock of ranks in different calls. The transport is
/// unusable afterwards.
class TERSE_VISIBLE peer_error : public error {
 public:
  peer_error(const std::string& sentence, int culprit, int rank, std::int64_t step = -1)
      : error(sentence, rank, step), culprit_(culprit) {}

  /// Returns the rank at fault, or -1 if none is known, as in a deadlock.
  int culprit() const noexcept { return culprit_; }

 private:
  int culprit_;
};

/// A difference between the ranks' set-ups: in layout, recipe, world, seed, numerics or wire version.
class TERSE_VISIBLE mismatch_error : public error {
 public:
  using error::error;
};

/// A packet that doesn't belong here, with a wrong length, step, sender or version.
class TERSE_VISIBLE wire_error : public error {
 public:
  using error::error;
};

/// A NaN or infinite gradient, message or parameter on some rank, under the policy to throw. In methods that average
/// over all ranks, all of them throw it in the same step.
class TERSE_VISIBLE non_finite_error : public error {
 public:
  non_finite_error(const std::string& sentence, int culprit, int rank, std::int64_t step)
      : error(sentence, rank, step), culprit_(culprit) {}

  /// Returns the first rank whose value was not finite.
  int culprit() const noexcept { return culprit_; }

 private:
  int culprit_;
};

/// A checkpoint that can't be written, read or trusted.
class TERSE_VISIBLE checkpoint_error : public error {
 public:
  using error::error;
};

/// A checkpoint folder that another run uses. It is free once that run has ended.
class TERSE_VISIBLE folder_in_use_error : public checkpoint_error {
 public:
  using checkpoint_error::checkpoint_error;
};

/// An intact checkpoint of another run: another recipe, number of ranks, layout or seed.
class TERSE_VISIBLE foreign_checkpoint_error : public checkpoint_error {
 public:
  using checkpoint_error::checkpoint_error;
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/core/error.ipp"
#endif
