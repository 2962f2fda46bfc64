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

/// Prints a warning on standard error.
TERSE_COLD inline void print_warning(const std::string& sentence) {
  std::fprintf(stderr, "terse: warning: %s\n", sentence.c_str());
}

/// What holds for a whole run, alike on all ranks.
struct Options {
  std::uint64_t seed = 0;  ///< of what is drawn at random, alike on all ranks
  /// What becomes of a step with a gradient that is not finite.
  NonFinite on_non_finite = NonFinite::throw_;
  /// Bounds the norm of the averaged gradient in full-precision steps and, in compressed ones,
  /// sqrt(mean over ranks of ||g_i||^2), which all ranks agree on. Infinity: no clipping.
  float clip_norm = std::numeric_limits<float>::infinity();
  /// Packets travel in slices of about so many bytes of gradient, the last elements first, of which four are under way at a time:
  /// one is made or summed while others travel, and packets on their way take the memory of four slices each way. In full
  /// precision bits don't depend on it over ScatterGather; over Ring, whose order of summation depends on how a range is cut into
  /// chunks, the last bit may. Compressed slices have scales and selections of their own. 0: in one.
  index_t slice_bytes = automatic_slices;
  /// Gives packets a checksum of all that is in them, in half of the header's check: not a byte more. A packet that was damaged on
  /// its way is a wire_error that names sender, phase and chunk, before anything of it is read. Costs a pass over what is sent and
  /// one over what comes in. On the host; what a transport's own collectives add up (Native) has none on its way there. The few
  /// bytes by which ranks agree on norms have one always.
  bool check_payload = false;
  /// After every so many steps ranks compare their parameters and what of the optimizer's state is the same on all: a
  /// mismatch_error on all ranks names one that differs, and where. A pass over both, and 12 bytes to each peer. Where ranks train
  /// apart and meet, after the next meeting. 0: never.
  std::uint64_t compare_every = 0;
  /// The largest share of compressed elements that a preconditioner may mask as it freezes (OneBitAdam, OneBitLamb, ZeroOneAdam,
  /// Staged), since their gradients were 0 until then: they never train. Where there are more, each step after which the stage would change ends with a
  /// usage_error on all ranks and the first stage goes on. In [0, 1]; 1: any.
  float most_masked = 0.01F;
  /// Is called on rank 0, at construction, with what works and is hardly meant: tensors so small that compressed steps send more than
  /// exact ones. nullptr: nothing is said.
  void (*warn)(const std::string& sentence) = &print_warning;

  bool clips() const { return clip_norm < std::numeric_limits<float>::infinity(); }
};

/// What became of a step.
struct StepResult {
  bool applied = true;  ///< false: a gradient was not finite and the policy is to skip; nothing has changed
  /// What this rank has sent for it, headers and what ranks agree on included: what Metered counts.
  std::uint64_t bytes_sent = 0;
  bool compressed = false;  ///< whether it was a compressed step, whatever segments take part in one
  Masked masked{};          ///< by the freeze after this step, if there was one
};

/// What a rank sends for a step, at most; 0 of a kind of step that a recipe doesn't have.
struct StepBytes {
  index_t full_precision = 0;  ///< of a step in full precision
  index_t compressed = 0;      ///< of a compressed step
  bool operator==(const StepBytes&) const = default;
};

}  // namespace terse
