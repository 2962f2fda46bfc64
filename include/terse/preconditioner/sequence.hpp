// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "terse/core/layout.hpp"
#include "terse/executor/concept.hpp"

// The hook between the two sweeps of a layer-wise method, where a Sequence of polynomials orthogonalizes steps (Muon), and its
// default, which does nothing. Methods without matrices need only this header: the products are in orthogonalizer.hpp.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// The step of an element that a Sequence leaves out: -0, a value that such a Sequence gives to no other element.
inline constexpr float no_step = -0.0F;
TERSE_HD inline bool is_no_step(float step) {
  return std::bit_cast<std::uint32_t>(step) == std::bit_cast<std::uint32_t>(no_step);
}

/// The default Sequence: nothing is orthogonalized.
struct NoSequence {};

/// The orthogonalization of a Sequence, see orthogonalizer.hpp.
template <Executor E, class Sequence>
class Orthogonalizer;
template <Executor E>
class Orthogonalizer<E, NoSequence> {
 public:
  Orthogonalizer(E, const Layout&) {}
  void operator()(E, float*) {}
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
