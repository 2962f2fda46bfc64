// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "terse/core/separate.hpp"
#include "terse/preconditioner/masked_elements.hpp"

namespace terse::detail {

TERSE_CORE void MaskedElements::refuse(int rank, std::uint64_t step) const {
  constexpr std::size_t most_named = 8;
  std::string named;
  for (std::size_t s = 0; s < count_ && s < most_named; ++s)
    named +=
        sentence("%s%td of %td in segment '%.*s'", s > 0 ? ", " : "", segments_[s].masked,
                 segments_[s].elements, static_cast<int>(segments_[s].name.size()), segments_[s].name.data());
  throw usage_error(
      sentence("the second stage would begin after this step, and %td of %td elements would be masked and "
               "never train, because they had no gradient yet: %s%s. Freeze later, after they have had "
               "gradients; or, if these stay 0, %sallow a larger share (Options::most_masked). The step "
               "itself has been taken, and the first stage continues",
               masked_, elements_, named.c_str(), count_ > most_named ? " and some in other segments" : "",
               instead_),
      rank, static_cast<std::int64_t>(step));
}

}  // namespace terse::detail
