// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "terse/core/half.hpp"
#include "terse/core/layout.hpp"
#include "terse/executor/concept.hpp"
#include "terse/preconditioner/parameter_ref.hpp"

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Initializes masters from the model's parameters.
template <Number P>
struct Adopt {
  float* masters;
  const P* parameters;
  using StreamsOf = Adopt;
  TERSE_HD auto streams() { return writes(masters) + reads(parameters); }
  TERSE_HD void operator()(const Piece&, index_t i) const { masters[i] = widened(parameters[i]); }
};

TERSE_NUMERICS_END

/// The parameters that steps update: fp32 copies for a model in 16 bits, otherwise the model's own parameters.
/// Without Kept the recipe keeps those of 16-bit models itself.
template <Executor E, Number P, bool Kept = !std::is_same_v<P, float>>
class Masters {
 public:
  static constexpr bool kept = Kept;

  explicit Masters(const Layout& layout) {
    if constexpr (kept) {
      range_ = layout.range();
      masters_ = buffer<float, typename E::memory>(layout.size());
    }
  }
  /// Copies the parameters to the masters, unless an earlier step or a checkpoint has set them.
  void adopt([[maybe_unused]] E executor, [[maybe_unused]] const P* parameters) {
    if constexpr (kept) {
      if (adopted_ == 0) for_each(executor, range_, Adopt<P>{masters_.data(), parameters});
      adopted_ = 1;
    }
  }
  /// Checks whether the masters are set, or not needed.
  bool there() const { return !kept || adopted_ != 0; }
  ParameterRef<P> behind(P* parameters) {
    if constexpr (kept)
      return {masters_.data(), parameters};
    else if constexpr (std::is_same_v<P, float>)
      return {parameters};
    else
      return {nullptr, parameters};
  }
  /// Returns element i of the model, on the host.
  float at(index_t i, in<E, P> parameters) const {
    return kept && there() ? masters_[i] : static_cast<float>(widened(parameters[i]));
  }
  out<E> all() { return masters_.all(); }
  in<E> all() const { return masters_.all(); }
  template <class Visit>
  void walk([[maybe_unused]] Visit&& visit) {
    if constexpr (kept) {
      visit("adopted", adopted_);
      visit("masters", masters_.all(), index_t{0});
    }
  }

 private:
  Range range_;
  buffer<float, typename E::memory> masters_;
  std::uint64_t adopted_ = 0;
};

}  // namespace terse::detail
