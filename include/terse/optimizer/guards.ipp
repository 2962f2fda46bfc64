// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/separate.hpp"
#include "terse/optimizer/guards.hpp"

namespace terse::detail {

TERSE_CORE void check_layout(const Layout& layout, int rank) {
  if (layout.range().elements() > 0) return;
  throw usage_error(layout.segments().empty()
                        ? "the layout has no segment: add the model's tensors before the optimizer is made"
                        : "no segment of the layout has an element, so there is nothing to train",
                    rank);
}

TERSE_CORE void warn_of_growth(const Options& options, index_t compressed, index_t exact, index_t step,
                               int ranks) {
  if (options.warn == nullptr) return;
  constexpr index_t header = sizeof(PacketHeader);
  const index_t ring = 2 * (ranks - 1) * ((exact - header + ranks - 1) / ranks + header);
  if (compressed > exact)
    options.warn(sentence(
        "a compressed packet of this optimizer has up to %td bytes, one in full precision %td: its segments "
        "are too "
        "small for this compressor. Leave small ones out (Segment::compress = false), or use an exact method",
        compressed, exact));
  else if (step > ring)
    options.warn(sentence(
        "a rank sends up to %td bytes for a compressed step of this optimizer, and about %td for one in full "
        "precision over Ring. Compare recipes (docs/advice.md), leave small segments out (Segment::compress "
        "= "
        "false), or use an exact method",
        step, ring));
}

}  // namespace terse::detail
