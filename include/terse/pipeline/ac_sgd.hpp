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

/// Policy for new examples when the memory is full.
///
/// refuse : usage_error on all stages, before any message send_whole : they are sent whole each time, like at a
/// first visit, and no copy is kept
enum class WhenFull { refuse, send_whole };

/// Activation compression with a memory of examples (AC-SGD, later AQ-SGD). Sender and receiver at a boundary keep a
/// copy m of each example's activation a:
///
///     first visit       First(a) is sent            x = First(a), decoded      m = R(x)
///     later visits      d = a - m;  Forward(d)      x = m + Forward(d)         m = R(x)
///     backward          Backward(dLoss / dx), unbiased, without memory
///
/// x is the receiver's input, in fp32; R rounds to the memory's format. Both sides compute the same in the same order, so
/// that their copies are equal bit for bit. Forward must be a contraction, see Remembered.
///
/// Granularity: PerBlock<N> with N a multiple of 64 that divides the elements of a row, or PerSegment, a scale for each
/// row. With both, an example's code does not depend on the other examples. Bytes of `rows` changes of D elements, D and N
/// multiples of 64: 40 + 8 ceil(rows D / N / 2) + rows D bits / 8.
///
/// It is useful if examples are seen again and their activations change slowly: the gain over quantizing a itself is
/// ||d|| / ||a||, which `statistics()` returns. Source: Wang et al., "Fine-tuning language models over slow networks
/// using activation compression with guarantees", NeurIPS 2022, algorithm 1.
template <Compressor Forward = Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<256>>,
          Compressor Backward = Uniform<8, Stochastic, Symmetric, MaxAbs, PerBlock<256>>,
          ExampleMemory Memory = InMemory<fp16>, Compressor First = Dense>
struct AcSgd {
  static constexpr bool remembers = true;

  index_t capacity = 0;                   ///< maximum number of examples with copies, equal on all stages
  WhenFull when_full = WhenFull::refuse;  ///< policy for more examples than `capacity`
  bool audit = true;                      ///< if true, each message has the hash of one copied row, 8 bytes
  Memory memory{};                        ///< storage of the copies
  Forward forward{};                      ///< the compressor of changes
  Backward backward{};                    ///< the compressor of gradients, unbiased
  First first{};                          ///< the compressor of activations at a first visit

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

/// The baseline: activations are quantized directly, so their error remains c ||a||. No memory.
template <Compressor Forward = Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<256>>,
          Compressor Backward = Uniform<8, Stochastic, Symmetric, MaxAbs, PerBlock<256>>>
struct DirectActivations {
  static constexpr bool remembers = false;

  Forward forward{};    ///< the compressor of activations
  Backward backward{};  ///< the compressor of gradients, unbiased

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

/// fp32 in both directions: gives the bits of one rank that runs all stages.
struct ExactActivations : DirectActivations<Dense, Dense> {};

}  // namespace terse
