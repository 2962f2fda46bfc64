// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "terse/core/config.hpp"
#include "terse/core/error.hpp"
#include "terse/executor/host.hpp"
#include "terse/executor/sparse.hpp"

namespace terse {

namespace detail {

/// The ways in which arithmetic may deviate from docs/numerics.md.
enum NumericsFault : std::uint64_t { contracts = 1, flushes = 2, divides = 4, roots = 8, reorders = 16 };

}  // namespace detail

TERSE_NUMERICS_BEGIN

namespace detail {

/// Returns the deviations of this build's arithmetic from IEEE 754 and from these headers, as bits that
/// describe_numerics explains, or 0 if there are none.
TERSE_HD inline std::uint64_t numerics_faults() {
  volatile float factor = 1.0F + 0x1p-12F, rest = -1.0F - 0x1p-11F;
  volatile float tiny = std::numeric_limits<float>::denorm_min(), two = 2, one = 1, dust = 0x1p-25F;
  std::uint64_t faults = 0;
  if (factor * factor + rest != 0) faults |= contracts;  // 0x1p-24
  if (!(tiny * two > tiny)) faults |= flushes;
  const float large = one, small = dust;
  if ((large + small) - large != 0) faults |= reorders;  // 0x1p-25
  // Quotients that differ from the product with the divisor's reciprocal, even if the reciprocal is wrong by 2 in the
  // last place. All of them have one divisor, which is also a constant, so a compiler that uses reciprocals computes
  // this reciprocal once.
  constexpr float dividends[] = {0x1.46752cp0F, 0x1.a57b78p0F, 0x1.82fe3ap0F};
  constexpr float quotients[] = {0x1.54778p-1F, 0x1.b791b2p-1F, 0x1.939992p-1F};
  constexpr float constant = 0x1.eaeed2p0F;
  volatile float divisor = constant;
  const float common = divisor;
  for (int k = 0; k < 3; ++k) {
    volatile float dividend = dividends[k];
    if (dividend / common != quotients[k] || dividend / constant != quotients[k]) faults |= divides;
  }
  // Roots within a millionth of the middle between two floats, on both sides, which differ from the product with the
  // reciprocal root.
  constexpr float squares[] = {0x1.fffffap1F, 0x1.3862bp1F,  0x1.c83e8cp1F,
                               0x1.b5c076p1F, 0x1.bebf4ap1F, 0x1.9b23d8p1F};
  constexpr float exact_roots[] = {0x1.fffffcp0F, 0x1.8fed3cp0F, 0x1.e3519ep0F,
                                   0x1.d96c2ep0F, 0x1.de4316p0F, 0x1.cace8cp0F};
  for (int k = 0; k < 6; ++k) {
    volatile float square = squares[k];
    if (std::sqrt(float{square}) != exact_roots[k]) faults |= roots;
  }
  return faults;
}

}  // namespace detail

namespace detail {
/// Checks whether this thread's processor flushes subnormal numbers or doesn't round to nearest, which programs may
/// change at any time.
inline bool computes_otherwise() {
  volatile float tiny = std::numeric_limits<float>::denorm_min(), two = 2, one = 1, dust = 0x1p-26F;
  return !(tiny * two > tiny) || one + dust != 1 || one - dust != 1;
}
}  // namespace detail

TERSE_NUMERICS_END

namespace detail {
struct Probe {
  std::uint64_t* to;
  TERSE_HD void operator()(index_t) const { *to = numerics_faults(); }
};
}  // namespace detail

/// Returns numerics_faults() of an executor; a device runs a kernel for it.
template <Executor E>
std::uint64_t numerics_of([[maybe_unused]] E executor) {
  std::uint64_t faults = 0;
  if constexpr (GridExecutor<E>) {
    buffer<std::uint64_t, typename E::memory> place(1);
    for_each_entry(executor, 1, detail::Probe{place.data()});
    fetch(executor, in<E, std::uint64_t>(place.all()), view<std::uint64_t>(&faults, 1));
  } else {
    faults = detail::numerics_faults();
  }
  return faults;
}

/// Describes faults, which must not be 0, and their remedies.
TERSE_COLD std::string describe_numerics(std::uint64_t faults);

/// Describes the first rank whose arithmetic has faults, as text to append to an error. `all` has `count` fields of
/// each rank, one rank after the other; field `at` has the faults.
TERSE_COLD std::string describe_numerics(const std::vector<std::uint64_t>& all, std::size_t count,
                                         std::size_t at);

namespace detail {
/// Throws usage_error if the arithmetic of a step's thread differs from that agreed on at construction.
inline void check_processor(int rank, std::uint64_t step) {
  if (computes_otherwise()) [[unlikely]]
    throw usage_error(
        "this thread's processor flushes subnormal numbers to zero or doesn't round to nearest, so that "
        "replicas would diverge. It was set by torch.set_flush_denormal, a library that was linked with "
        "-ffast-math, or fesetround",
        rank, static_cast<std::int64_t>(step));
}
/// Throws usage_error if there are faults, even if all ranks have the same.
TERSE_COLD void check_numerics(std::uint64_t faults, int rank);

}  // namespace detail

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/executor/numerics.ipp"
#endif
