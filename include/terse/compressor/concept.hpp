// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

#include "terse/compressor/requirements.hpp"

namespace terse {

/// A compressor turns a range of a message into bytes and back. A `lossless` one sends fp32 as it is. Any other has
///
///     wire_bytes(range)              the largest size of the range's section of a packet, in bytes;
///                                    the exact size unless `variable`
///     Workspace<E>                   memory for encoding, from (executor, compressor, the largest range)
///     measure, encode                if `measured`: read the message once, then encode packet by packet
///     measure_and_encode             otherwise: does both at once, returns the section's bytes
///     Incoming, source, incoming     the readers of sections in verbs
///     fault(range, section, bytes)   the fault of a section from a peer, or nullptr
///
/// unless its packets can't be summed. Then it has a custom protocol. It names `template <class F, class P, class E> using Round`
/// for error feedback F, topology P and executor E, or it is `keyed`. Packed makes these members from a Quantizer, Sparse from a
/// selection.
template <class C>
concept Compressor = std::copyable<C> && requires(const C& compressor, const Range& range) {
  { C::lossless } -> std::convertible_to<bool>;
  { C::unbiased } -> std::convertible_to<bool>;
  { compressor.wire_bytes(range) } -> std::same_as<index_t>;
  requires detail::has_packets<C>();
};

/// Reports a missing member of a compressor with a readable static_assert.
template <class C>
constexpr bool check_compressor() {
  static_assert(std::copyable<C>, "terse: a compressor is a value: it must be copyable");
  constexpr bool part = detail::is_part_of_compressor<C>();
  static_assert(
      part ||
          requires(const C& compressor, const Range& range) {
            { compressor.wire_bytes(range) } -> std::same_as<index_t>;
          },
      "terse: a compressor needs `index_t wire_bytes(const Range&) const`, the exact bytes of its section of "
      "a packet");
  constexpr bool says_lossless = requires {
    { C::lossless } -> std::convertible_to<bool>;
  };
  static_assert(
      part || says_lossless,
      "terse: a compressor states `static constexpr bool lossless`, whether it sends fp32 as it is");
  constexpr bool says_unbiased = requires {
    { C::unbiased } -> std::convertible_to<bool>;
  };
  static_assert(
      part || says_unbiased,
      "terse: a compressor states `static constexpr bool unbiased`, so that it is never paired with "
      "an error feedback that it diverges with");
  if constexpr (says_lossless && says_unbiased)
    if constexpr (!C::lossless && !Traits<C>::own_round) detail::check_packets<C>();
  return Compressor<C>;
}

}  // namespace terse
