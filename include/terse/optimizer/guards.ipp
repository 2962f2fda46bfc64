// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/separate.hpp"
#include "terse/optimizer/guards.hpp"

namespace terse::detail {

TERSE_CORE void check_options(const Options& options, bool on_device, bool ever_alike) {
  if (!(options.clip_norm > 0)) throw usage_error("clip_norm must be positive; infinity switches it off");
  if (!(options.most_masked >= 0 && options.most_masked <= 1))
    throw usage_error("most_masked is a share of elements: it must be in [0, 1], not " +
                      std::to_string(options.most_masked));
  if (options.slice_bytes < 0 && options.slice_bytes != automatic_slices)
    throw usage_error("slice_bytes must not be negative; 0: all in one slice");
  if (on_device && options.check_payload)
    throw usage_error(
        "check_payload is for packets in the host's memory: a device's have no checksum of their payload. "
        "Use a host executor, or don't set it");
  if (!ever_alike && options.compare_every > 0)
    throw usage_error(
        "compare_every is for methods whose ranks hold the same parameters, in each step or when they "
        "synchronize; with this recipe they differ by design");
}

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
