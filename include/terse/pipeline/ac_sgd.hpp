// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "terse/compressor/dense.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/core/policy.hpp"
#include "terse/pipeline/concept.hpp"
#include "terse/pipeline/example_memory.hpp"

namespace terse {

/// What happens to examples that a full memory has no room for.
///
///   refuse       : usage_error on all stages, before any message
///   send_whole   : they travel as at a first visit each time, and no copy is kept
enum class WhenFull { refuse, send_whole };

/// Activation compression with a memory of examples (AC-SGD, later AQ-SGD). Sender and receiver of a boundary keep a
/// copy m of each example's activation a:
///
///     first visit       First(a) is sent            x = what it decodes to     m = R(x)
///     later visits      d = a - m;  Forward(d)      x = m + Forward(d)         m = R(x)
///     backward          Backward(dLoss / dx), unbiased, without memory
///
/// x is what the receiver computes with, in fp32; R rounds to the memory's format. Both sides do the same in the same
/// order, so that their copies are equal bit for bit. Forward must be a contraction, see Remembered.
///
/// Granularity: PerBlock<N> with N a multiple of 64 that divides the elements of a row, or PerSegment, a scale for each
/// row: then an example's code does not depend on its companions. Bytes of `rows` changes of D elements, D and N multiples
/// of 64: 40 + 8 ceil(rows D / N / 2) + rows D bits / 8.
///
/// It pays where examples come again and their activations move slowly: ||d|| / ||a||, which `statistics()` shows, is
/// what is gained over quantizing a itself. Source: Wang et al., "Fine-tuning language models over slow networks using
/// activation compression with guarantees", NeurIPS 2022, algorithm 1.
template <Compressor Forward = Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<256>>,
          Compressor Backward = Uniform<8, Stochastic, Symmetric, MaxAbs, PerBlock<256>>,
          ExampleMemory Memory = InMemory<fp16>, Compressor First = Dense>
struct AcSgd {
  static constexpr bool remembers = true;

  index_t capacity = 0;                   ///< examples that a stage can keep, alike on all stages
  WhenFull when_full = WhenFull::refuse;  ///< what to do when more than that come
  bool audit = true;                      ///< whether each message proves a row of the copies, for 8 bytes
  Memory memory{};                        ///< where the copies lie
  Forward forward{};                      ///< the compressor of changes
  Backward backward{};                    ///< that of gradients, unbiased
  First first{};                          ///< that of activations at a first visit

  const Forward& changes() const { return forward; }
  const First& whole() const { return first; }
  const Backward& gradients() const { return backward; }
  void check() const {
    if (capacity <= 0)
      throw usage_error(
          "AcSgd's capacity is the number of examples to keep copies of, and must be positive, not " +
          std::to_string(capacity));
    detail::check_policy(memory);
    detail::check_policy(forward);
    detail::check_policy(backward);
    detail::check_policy(first);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("capacity", static_cast<double>(capacity));
    visit("when_full", static_cast<double>(when_full));
    visit("audit", audit ? 1.0 : 0.0);
    detail::policy_settings(forward, visit);
    detail::policy_settings(backward, visit);
    detail::policy_settings(first, visit);
  }
};

/// The baseline: activations are quantized as they are, and so stay in error by c ||a|| for ever. No memory.
template <Compressor Forward = Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<256>>,
          Compressor Backward = Uniform<8, Stochastic, Symmetric, MaxAbs, PerBlock<256>>>
struct DirectActivations {
  static constexpr bool remembers = false;

  Forward forward{};    ///< the compressor of activations
  Backward backward{};  ///< that of gradients, unbiased

  const Forward& whole() const { return forward; }
  const Backward& gradients() const { return backward; }
  void check() const {
    detail::check_policy(forward);
    detail::check_policy(backward);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::policy_settings(forward, visit);
    detail::policy_settings(backward, visit);
  }
};

/// fp32 both ways: the same bits as one rank that runs all stages.
struct ExactActivations : DirectActivations<Dense, Dense> {};

}  // namespace terse
