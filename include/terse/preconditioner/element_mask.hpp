// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/draw.hpp"
#include "terse/core/hash.hpp"
#include "terse/executor/concept.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// A predicate of (piece, i, bit) as codes of one bit.
template <class Predicate>
struct AsBit {
  Predicate holds;
  TERSE_HD void enter(const Piece& piece) { terse::enter(holds, piece); }
  TERSE_HD std::uint32_t operator()(const Piece& piece, index_t i, bool bit, float, std::uint32_t) const {
    return holds(piece, i, bit) ? 1U : 0U;
  }
};

}  // namespace detail

TERSE_NUMERICS_END

/// A bit for each element of a range, all 0 until `set`. State: n / 64 words.
template <Executor E>
class ElementMask {
 public:
  TERSE_COLD ElementMask(const Range& range, index_t arena)
      : range_(range), words_(arena / alignment), one_(1) {
    piece_.assign(Piece{});
  }

  /// Bit i becomes predicate(piece, i, bit i as it was).
  template <class Predicate>
  void set(E executor, const Predicate& predicate) {
    for (const Piece& piece : range_.pieces()) {
      piece_.assign(piece);
      // Each block of bits is read before it is written.
      pack<1, false>(executor, piece_, Units{}, mask(), detail::AsBit<Predicate>{predicate},
                     in<E>(one_.all()),
                     reinterpret_cast<std::byte*>(words_.data() + piece.offset / alignment),
                     Draw::shared(0, 0, Purpose::quantization));
    }
  }
  /// All bits become 1.
  TERSE_COLD void set_all(E executor) {
    buffer<std::uint64_t> here(words_.size());
    for (const Piece& piece : range_.pieces())
      for (index_t i = 0; i < piece.count; i += alignment) {
        const index_t left = piece.count - i;
        here[(piece.offset + i) / alignment] =
            left < alignment ? (std::uint64_t{1} << left) - 1 : ~std::uint64_t{0};
      }
    put(executor, view<const std::uint64_t>(here.all()), out<E, std::uint64_t>(words_.all()));
  }
  Mask<typename E::memory> mask() const { return {words_.data()}; }
  /// A hash of all bits, never 0. Waits for the executor; n / 64 words come to the host.
  TERSE_COLD std::uint64_t digest(E executor) const {
    buffer<std::uint64_t> here(words_.size());
    fetch(executor, in<E, std::uint64_t>(words_.all()), here.all());
    return hash_bytes(reinterpret_cast<const std::byte*>(here.data()),
                      static_cast<std::size_t>(here.size()) * sizeof(std::uint64_t));
  }
  template <class Visit>
  void walk(Visit&& visit) {
    visit("mask", words_.all(), index_t{0});
  }

 private:
  Range range_;
  Range piece_;  // whichever it is at; allocates once
  buffer<std::uint64_t, typename E::memory> words_;
  buffer<float, typename E::memory> one_;
};

}  // namespace terse
