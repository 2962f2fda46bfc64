// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

#include "terse/core/error.hpp"
#include "terse/core/layout.hpp"
#include "terse/core/packet.hpp"
#include "terse/executor/concept.hpp"
#include "terse/optimizer/optional_parts.hpp"
#include "terse/optimizer/options.hpp"
#include "terse/plan.hpp"

// Checks of an optimizer's arguments: they throw usage_error before anything has changed.

namespace terse::detail {

/// Throws usage_error for invalid options: options that are always invalid, those invalid on a device (`on_device`), and those invalid
/// for a recipe whose ranks always differ by design (`ever_alike` = false).
TERSE_COLD void check_options(const Options& options, bool on_device, bool ever_alike);

/// Throws usage_error for a layout without elements to train.
TERSE_COLD void check_layout(const Layout& layout, int rank);

/// Warns of compression that increases communication. Either `compressed` exceeds `exact`, both the bytes of a packet, or a
/// compressed step of `step` bytes exceeds an exact average over a ring of `ranks` ranks.
TERSE_COLD void warn_of_growth(const Options& options, index_t compressed, index_t exact, index_t step,
                               int ranks);

/// Returns the options. If messages overlap with the program's work (`overlapped`), the default slices are those of a host, even over a
/// transport in a stream's order.
inline Options with_slices(Options options, bool overlapped) {
  if (overlapped && options.slice_bytes == automatic_slices)
    options.slice_bytes = slice_bytes_of(automatic_slices, false, false);
  return options;
}

template <class T, Executor E>
void check_stream([[maybe_unused]] const T& transport, [[maybe_unused]] const E& executor) {
  if constexpr (requires { transport.stream() != executor.stream; })
    if (transport.stream() != executor.stream)
      throw usage_error("the transport works on another CUDA stream than the executor", transport.rank());
}

/// Checks of the arguments of one step on one rank; each throws usage_error.
struct StepGuard {
  int rank;
  std::uint64_t step;

  [[noreturn]] TERSE_COLD void refuse(const std::string& what) const {
    throw usage_error(what, rank, static_cast<std::int64_t>(step));
  }
  void check_size(index_t size, const char* what, const Layout& layout) const {
    if (size != layout.size())
      refuse(std::string(what) + " has " + std::to_string(size) + " elements, the layout " +
             std::to_string(layout.size()) +
             ": each segment is padded to a multiple of 64, allocate layout.size()");
  }
  template <class Parameters, class Gradients>
  void check_apart(const Parameters& parameters, const Gradients& gradients) const {
    const std::less<const void*> before;
    // A replay has no views.
    if (parameters.data() != nullptr && before(parameters.data(), gradients.data() + gradients.size()) &&
        before(gradients.data(), parameters.data() + parameters.size()))
      refuse("parameters and gradients overlap: they are two arenas");
  }
  void check_scale(float gradient_scale) const {
    if (!std::isfinite(gradient_scale))
      refuse("gradient_scale is " + std::to_string(gradient_scale) + ", and must be finite");
  }
};

}  // namespace terse::detail

#ifndef TERSE_SEPARATE
#include "terse/optimizer/guards.ipp"
#endif
