// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "terse/core/draw.hpp"
#include "terse/core/hash.hpp"
#include "terse/executor/atomic.hpp"
#include "terse/executor/concept.hpp"
#include "terse/preconditioner/masked_elements.hpp"

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

/// Raises a flag for elements that don't take part.
struct FindMasked {
  std::uint32_t* any;
  TERSE_HD void operator()(const Piece&, index_t, bool keep) const {
    if (!keep) atomic_raise(any);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

/// A bit for each element of a range, all 0 until `set`. State: n / 64 words, and as many to try a mask in.
template <Executor E>
class ElementMask {
 public:
  /// `masked_`: by `settle`, with the largest share that it may be.
  TERSE_COLD ElementMask(E executor, const Range& range, index_t arena, detail::MaskedElements masked_)
      : masked(std::move(masked_)),
        executor_(executor),
        range_(range),
        words_(arena / alignment),
        tried_(arena / alignment),
        one_(1),
        any_(1) {
    piece_.assign(Piece{});
  }

  /// Bit i becomes predicate(piece, i, bit i as it was). Waits for the executor.
  template <class Predicate>
  void set(const Predicate& predicate) {
    write(predicate, words_);
    look();
  }
  /// `set`, unless that masks too many elements: then it changes nothing and returns false. predicate_of(true) makes a predicate
  /// that changes nothing either, and holds for what is not masked.
  template <class PredicateOf>
  bool settle(const PredicateOf& predicate_of) {
    for (const bool tries : {true, false}) {
      write(predicate_of(tries), tries ? tried_ : words_);
      const auto fetch_tried = [this](index_t first, view<std::uint64_t> to) {
        fetch(executor_, in<E, std::uint64_t>(tried_.all().part(first, to.size())), to);
      };
      if (tries && !masked.count(range_, fetch_tried)) return false;
    }
    look();
    return true;
  }
  /// All bits become 1.
  TERSE_COLD void set_all() {
    buffer<std::uint64_t> here(words_.size());
    for (const Piece& piece : range_.pieces())
      for (index_t i = 0; i < piece.count; i += alignment) {
        const index_t left = piece.count - i;
        here[(piece.offset + i) / alignment] =
            left < alignment ? (std::uint64_t{1} << left) - 1 : ~std::uint64_t{0};
      }
    put(executor_, view<const std::uint64_t>(here.all()), out<E, std::uint64_t>(words_.all()));
    full_ = true;
  }
  /// What verbs take; where all bits are 1 they get none, and don't read any.
  Mask<typename E::memory> mask() const { return full_ ? Mask<typename E::memory>{} : bits(); }
  bool full() const { return full_; }
  /// A hash of all bits, never 0. Waits for the executor; n / 64 words come to the host.
  TERSE_COLD std::uint64_t digest() const {
    buffer<std::uint64_t> here(words_.size());
    fetch(executor_, in<E, std::uint64_t>(words_.all()), here.all());
    return hash_bytes(reinterpret_cast<const std::byte*>(here.data()),
                      static_cast<std::size_t>(here.size()) * sizeof(std::uint64_t));
  }
  /// Waits for the executor.
  template <class Visit>
  void walk(Visit&& visit) {
    full_ = false;  // should visit throw
    visit("mask", words_.all(), index_t{0});
    look();
  }

  detail::MaskedElements masked;  ///< by `settle`

 private:
  Mask<typename E::memory> bits() const { return {words_.data()}; }
  template <class Predicate>
  void write(const Predicate& predicate, buffer<std::uint64_t, typename E::memory>& words) {
    for (const Piece& piece : range_.pieces()) {
      piece_.assign(piece);
      // Each block of bits is read before it is written.
      pack<1, false>(executor_, piece_, Units{}, bits(), detail::AsBit<Predicate>{predicate},
                     in<E>(one_.all()), reinterpret_cast<std::byte*>(words.data() + piece.offset / alignment),
                     Draw::shared(0, 0, Purpose::quantization));
    }
  }
  TERSE_COLD void look() {
    fill(executor_, any_.all(), 0U);
    for_each(executor_, range_, bits(), NoPackets{}, detail::FindMasked{any_.data()});
    std::uint32_t any = 0;
    fetch(executor_, in<E, std::uint32_t>(any_.all()), view<std::uint32_t>(&any, 1));
    full_ = any == 0;
  }

  E executor_;
  Range range_;
  Range piece_;  // whichever it is at; allocates once
  buffer<std::uint64_t, typename E::memory> words_, tried_;
  buffer<float, typename E::memory> one_;
  buffer<std::uint32_t, typename E::memory> any_;  // whether a bit is 0
  bool full_ = false;
};

}  // namespace terse
