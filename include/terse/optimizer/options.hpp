// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include "terse/core/config.hpp"
#include "terse/core/layout.hpp"
#include "terse/core/non_finite.hpp"
#include "terse/plan.hpp"
#include "terse/preconditioner/masked_elements.hpp"

namespace terse {

namespace detail {

/// Prints a warning on standard error.
TERSE_COLD inline void print_warning(const std::string& sentence) {
  std::fprintf(stderr, "terse: warning: %s\n", sentence.c_str());
}

}  // namespace detail

/// Options of a whole run, equal on all ranks.
struct Options {
  std::uint64_t seed = 0;  ///< seed of all random numbers, equal on all ranks
  /// Policy for a step with a gradient that is not finite.
  NonFinite on_non_finite = NonFinite::throw_;
  /// Bound on the norm of the averaged gradient in full-precision steps and, in compressed ones, on sqrt(mean over ranks of
  /// ||g_i||^2), which all ranks agree on. Infinity: no clipping.
  float clip_norm = std::numeric_limits<float>::infinity();
  /// Size of the slices in which packets are sent, in bytes of gradient, approximately. The last elements go first, and four slices
  /// are in flight at a time: one is encoded or summed while others are sent. Packets in flight need memory for four slices in each
  /// direction. In full precision the result over ScatterGather doesn't depend on it. Over Ring the last bit may depend on it, since
  /// the order of summation depends on the chunks. Compressed slices have separate scales and selections. 0 for one slice.
  index_t slice_bytes = automatic_slices;
  /// Payload checksums in packets, in half of the header's check, without additional bytes. A corrupt packet is a wire_error that
  /// names sender, phase and chunk, before any of it is read. The cost is one pass over the packets that are sent and one over those
  /// that are received. On the host only; sums inside a transport's own collectives (Native) have no checksum. The few bytes by which
  /// ranks agree on norms always have a checksum.
  bool check_payload = false;
  /// Number of steps between comparisons of the ranks' parameters and of the state that is equal on all ranks. A difference is a
  /// mismatch_error on all ranks, which names a rank and the place. A comparison costs a pass over both, and 12 bytes to each peer. In
  /// local methods a comparison waits for the next synchronization. 0 for no comparisons.
  std::uint64_t compare_every = 0;
  /// Largest share of compressed elements that a preconditioner may mask when it freezes (OneBitAdam, OneBitLamb, ZeroOneAdam,
  /// Staged). Masked elements had a gradient of 0 until then, and are never trained. If there are more, the first stage continues,
  /// and each step at whose end the stage should change throws a usage_error on all ranks. In [0, 1]; 1: any share.
  float most_masked = 0.01F;
  /// Function that is called on rank 0, at construction, with a warning about a setup that works but is probably not intended:
  /// tensors so small that compressed steps send more than exact ones. nullptr for no warnings.
  void (*warn)(const std::string& sentence) = &detail::print_warning;

  bool clips() const { return clip_norm < std::numeric_limits<float>::infinity(); }
};

/// The result of a step.
struct StepResult {
  bool applied = true;  ///< false: a gradient was not finite and the policy is to skip; nothing has changed
  /// Bytes that this rank has sent for the step, including headers and agreement messages, counted as by Metered.
  std::uint64_t bytes_sent = 0;
  bool compressed = false;  ///< true if it was a compressed step, regardless of the segments that take part
  Masked masked{};          ///< elements that were masked by a freeze after this step
};

/// The largest number of bytes that a rank sends for a step; 0 for a kind of step that a recipe doesn't have.
struct StepBytes {
  index_t full_precision = 0;  ///< bytes of a step in full precision
  index_t compressed = 0;      ///< bytes of a compressed step
  bool operator==(const StepBytes&) const = default;
};

}  // namespace terse
