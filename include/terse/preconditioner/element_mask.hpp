// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>

#include "terse/core/draw.hpp"
#include "terse/core/hash.hpp"
#include "terse/executor/concept.hpp"
#include "terse/preconditioner/masked_elements.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// A predicate of (piece, i, bit) as one-bit codes.
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

namespace detail {

/// A bit for each element of a range, all 0 until `set`. State: n / 64 words, and as many for a mask that is being
/// tested.
template <Executor E>
class ElementMask {
 public:
  /// `masked_`: the counter that `settle` uses, with the largest share of elements that may be masked.
  TERSE_COLD ElementMask(E executor, const Range& range, index_t arena, MaskedElements masked_)
      : masked(std::move(masked_)),
        executor_(executor),
        range_(range),
        words_(arena / alignment),
        tried_(arena / alignment),
        here_(1024),
        one_(1) {
    piece_.assign(Piece{});
  }

  /// Sets bit i to predicate(piece, i, previous bit i). Waits for the executor.
  template <class Predicate>
  void set(const Predicate& predicate) {
    write(predicate, words_);
    look();
  }
  /// Works like `set`, except that it changes nothing and returns false if that would mask too many elements.
  /// predicate_of(true) must return a predicate without side effects, which is true for elements that are not masked.
  template <class PredicateOf>
  TERSE_COLD bool settle(const PredicateOf& predicate_of) {
    for (const bool tries : {true, false}) {
      write(predicate_of(tries), tries ? tried_ : words_);
      if (tries && !few_masked()) return false;
    }
    look();
    return true;
  }
  /// Sets all bits to 1.
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
  /// Returns the mask for verbs; an empty one if all bits are 1, so that verbs read no bits.
  Mask<typename E::memory> mask() const { return full_ ? Mask<typename E::memory>{} : bits(); }
  bool full() const { return full_; }
  /// Returns a hash of all bits, never 0. Waits for the executor; n / 64 words are copied to the host.
  TERSE_COLD std::uint64_t digest() const {
    buffer<std::uint64_t> here(words_.size());
    fetch(executor_, in<E, std::uint64_t>(words_.all()), here.all());
    return hash_bytes(reinterpret_cast<const std::byte*>(here.data()),
                      static_cast<std::size_t>(here.size()) * sizeof(std::uint64_t));
  }
  /// Visits the bits. Waits for the executor.
  template <class Visit>
  void walk(Visit&& visit) {
    full_ = false;  // in case visit throws
    visit("mask", words_.all(), index_t{0});
    look();
  }

  MaskedElements masked;  ///< counts of the last `settle`

 private:
  Mask<typename E::memory> bits() const { return {words_.data()}; }
  template <class Predicate>
  TERSE_COLD void write(const Predicate& predicate, buffer<std::uint64_t, typename E::memory>& words) {
    for (const Piece& piece : range_.pieces()) {
      piece_.assign(piece);
      // Each block of bits is read before it is written.
      pack<1, false>(executor_, piece_, Units{}, bits(), AsBit<Predicate>{predicate}, in<E>(one_.all()),
                     reinterpret_cast<std::byte*>(words.data() + piece.offset / alignment),
                     Draw::shared(0, 0, Purpose::quantization));
    }
  }
  /// Calls use(segment, count, words) for blocks of bits. Waits for the executor.
  template <class Use>
  TERSE_COLD void on_host(const buffer<std::uint64_t, typename E::memory>& words, const Use& use) {
    const index_t block = here_.size() * alignment;
    for (const Piece& piece : range_.pieces())
      for (index_t i = 0; i < piece.count; i += block) {
        const index_t count = std::min(block, piece.count - i), first = (piece.offset + i) / alignment;
        const view<std::uint64_t> here = here_.all().part(0, (count + alignment - 1) / alignment);
        fetch(executor_, in<E, std::uint64_t>(words.all().part(first, here.size())), here);
        use(piece.segment, count, view<const std::uint64_t>(here));
      }
  }
  /// Checks whether the mask in `tried_` masks few enough elements.
  TERSE_COLD bool few_masked() {
    masked.begin();
    on_host(tried_, [this](index_t segment, index_t count, view<const std::uint64_t> bits) {
      masked.add(segment, count, bits);
    });
    // A bit that is 1 before the freeze marks an element that a user has masked.
    on_host(words_, [this](index_t segment, index_t count, view<const std::uint64_t> bits) {
      masked.leave_out(segment, count - MaskedElements::zeros(bits, count));
    });
    return masked.end();
  }
  TERSE_COLD void look() {
    full_ = true;
    on_host(words_, [this](index_t, index_t count, view<const std::uint64_t> bits) {
      full_ = full_ && MaskedElements::zeros(bits, count) == 0;
    });
  }

  E executor_;
  Range range_;
  Range piece_;  // the current piece; allocates once
  buffer<std::uint64_t, typename E::memory> words_, tried_;
  buffer<std::uint64_t> here_;  // a block of `tried_` on the host
  buffer<float, typename E::memory> one_;
  bool full_ = false;
};

}  // namespace detail

}  // namespace terse
