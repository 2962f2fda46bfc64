// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "terse/core/half.hpp"
#include "terse/core/view.hpp"

// The distribution of state that several ranks held to the ranks that load it.

namespace terse::checkpoint::detail {

/// The range of a part in the arena, over all ranks.
struct Extent {
  index_t begin = std::numeric_limits<index_t>::max(), end = 0;
  bool operator==(const Extent&) const = default;
  void take(index_t from, index_t to) {
    if (from == to) return;
    begin = std::min(begin, from);
    end = std::max(end, to);
  }
};
using Extents = std::map<std::string, Extent>;

Extents extents_in(const std::string& text);
Extents joined(const std::vector<Extents>& of_ranks);

/// Checks whether a part is the error of an error feedback, or the scales of one.
inline bool is_error(const std::string& name) {
  return name.ends_with("error") || name.ends_with("error_scales");
}

/// The number of ranks that hold an element now, and this rank's place among them. 0 for parts that are not
/// redistributed.
struct Heirs {
  std::size_t count = 0, place = 0;
};

/// Returns the heirs of the elements [first, last) of this part on rank `mine`.
std::vector<Heirs> heirs_of(const std::vector<Extents>& of_ranks, std::size_t mine, const std::string& name,
                            index_t first, index_t last);

/// Returns the first of several ranks' codes that prevents combining them; old.size() if none does. Different codes
/// have no mean. Codes of redistributed parts are copied if each goes to equally many heirs.
template <class T>
std::size_t differing(std::span<const T> old, const Heirs& heirs) {
  if (!std::is_integral_v<T> || old.empty() || (heirs.count > 0 && heirs.count % old.size() == 0))
    return old.size();
  const auto found =
      std::find_if(old.begin(), old.end(), [&](T code) { return std::not_equal_to{}(code, old[0]); });
  return static_cast<std::size_t>(found - old.begin());
}

/// Returns this rank's value of an element that several ranks held. It is the mean, which is exact for equal values,
/// since a sum of W equal floats fits in a double. If the part is redistributed, the heir at place k gets the value
/// of rank k mod W and an equal share of the rest, which keeps the mean. If W divides the number of heirs, it gets
/// exactly that value.
template <class T>
T combined(std::span<const T> old, const Heirs& heirs) {
  if (old.empty()) return T{};
  const T own = old[heirs.place % old.size()];
  if constexpr (std::is_integral_v<T>) {
    return own;
  } else {
    const std::size_t more = heirs.count % old.size();  // ranks whose errors go to one heir more
    // Starts from the first value, not 0, so that a sum of negative zeros stays negative.
    double all = static_cast<double>(widened(old[0])), once_more = more > 0 ? all : 0;
    for (std::size_t rank = 1; rank < old.size(); ++rank) {
      all += static_cast<double>(widened(old[rank]));
      if (rank < more) once_more += static_cast<double>(widened(old[rank]));
    }
    double value = all / static_cast<double>(old.size());
    if (heirs.count > 0) {
      const double left = static_cast<double>(more) * value - once_more;
      value = static_cast<double>(widened(own));
      if (std::not_equal_to{}(left, 0.0)) value += left / static_cast<double>(heirs.count);
    }
    const auto rounded = static_cast<float>(value);
    if constexpr (std::is_same_v<T, float>)
      return rounded;
    else
      return narrowed<T>(rounded);
  }
}

}  // namespace terse::checkpoint::detail

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/dealing.ipp"
#endif
