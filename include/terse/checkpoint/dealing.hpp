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

// What of a state several ranks have held, and what of it those get that take it up.

namespace terse::checkpoint::detail {

/// Where a part stands in the arena, over all ranks.
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

/// Whether a part is what a rank owes by its error feedback, or the scales of that.
inline bool is_error(const std::string& name) {
  return name.ends_with("error") || name.ends_with("error_scales");
}

/// Of those ranks that hold an element now, by rank: how many there are, and at which place this one is. None for what is not
/// dealt out.
struct Heirs {
  std::size_t count = 0, place = 0;
};

/// Those of the elements [first, last) of this part on rank `mine`.
std::vector<Heirs> heirs_of(const std::vector<Extents>& of_ranks, std::size_t mine, const std::string& name,
                            index_t first, index_t last);

/// The first of several ranks' codes that keeps them from being combined; old.size(): none does. Codes that differ have no mean,
/// but those that are dealt out stay what they are where each goes to equally many heirs.
template <class T>
std::size_t differing(std::span<const T> old, const Heirs& heirs) {
  if (!std::is_integral_v<T> || old.empty() || (heirs.count > 0 && heirs.count % old.size() == 0))
    return old.size();
  const auto found =
      std::find_if(old.begin(), old.end(), [&](T code) { return std::not_equal_to{}(code, old[0]); });
  return static_cast<std::size_t>(found - old.begin());
}

/// What this rank gets of what several have held of an element: the mean, which is exact where all are alike, since a sum of W
/// equal floats has room in a double. Of what is dealt out the heir at place k gets that of rank k mod W, and as much as all others of
/// what is left, so that their mean stays; exactly its rank's where W divides the number of heirs.
template <class T>
T combined(std::span<const T> old, const Heirs& heirs) {
  if (old.empty()) return T{};
  const T own = old[heirs.place % old.size()];
  if constexpr (std::is_integral_v<T>) {
    return own;
  } else {
    const std::size_t more = heirs.count % old.size();  // the errors of so many ranks go to one heir more
    // The first one as it is, so that a sum of negative zeros is one.
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
