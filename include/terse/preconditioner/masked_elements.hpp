// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "terse/core/config.hpp"
#include "terse/core/error.hpp"
#include "terse/core/layout.hpp"
#include "terse/core/ones.hpp"
#include "terse/core/view.hpp"

namespace terse {

/// A segment that contains elements which a freeze has masked.
struct MaskedSegment {
  std::string_view name;  ///< owned by the optimizer
  index_t masked = 0;     ///< the masked elements, which are never trained
  index_t elements = 0;   ///< all elements of the segment that can be masked by the freeze
};

/// Elements that a preconditioner has masked at its freeze, because it had learned nothing about them.
struct Masked {
  index_t elements = 0;  ///< their number in all segments
  std::span<const MaskedSegment>
      segments{};  ///< the segments with masked elements; owned by the optimizer, valid until the next freeze
};

namespace detail {

/// The count of elements that a freeze is about to mask, kept until the step is over. Takes its memory at construction.
class MaskedElements {
 public:
  /// `most`: the largest share of all elements. `instead`: advice for gradients that stay 0, other than a later freeze. The layout
  /// must outlive this object.
  TERSE_COLD MaskedElements(const Layout& layout, float most, const char* instead)
      : layout_(&layout),
        most_(most),
        instead_(instead),
        segments_(std::make_unique<MaskedSegment[]>(layout.segments().size())) {}

  TERSE_COLD void begin() {
    count_ = layout_->segments().size();
    for (std::size_t s = 0; s < count_; ++s) segments_[s] = {layout_->segments()[s].name, 0, 0};
  }
  /// Subtracts elements of a segment that a user has masked.
  TERSE_COLD void leave_out(index_t segment, index_t elements) {
    segments_[static_cast<std::size_t>(segment)].elements -= elements;
  }
  /// Adds elements of a segment; those whose bit is 0 are masked.
  TERSE_COLD void add(index_t segment, index_t elements, view<const std::uint64_t> bits) {
    MaskedSegment& of = segments_[static_cast<std::size_t>(segment)];
    of.elements += elements;
    of.masked += zeros(bits, elements);
  }
  /// Counts the zeros among the first `count` bits.
  TERSE_COLD static index_t zeros(view<const std::uint64_t> bits, index_t count) {
    index_t zeros = 0;
    for (index_t w = 0; w * alignment < count; ++w) {
      const index_t left = count - w * alignment;
      const std::uint64_t here = left < alignment ? (std::uint64_t{1} << left) - 1 : ~std::uint64_t{0};
      zeros += ones_in(here & ~bits[w]);
    }
    return zeros;
  }
  /// Checks whether the counted elements are few enough; if not, the stage must not change.
  TERSE_COLD bool end() {
    const std::size_t all = std::exchange(count_, 0);
    masked_ = elements_ = 0;
    for (std::size_t s = 0; s < all; ++s) {
      masked_ += segments_[s].masked;
      elements_ += segments_[s].elements;
      if (segments_[s].masked > 0) segments_[count_++] = segments_[s];
    }
    // Computed in floats, so that 1 of 100 is 0.01F.
    too_many_ = elements_ > 0 &&
                static_cast<float>(static_cast<double>(masked_) / static_cast<double>(elements_)) > most_;
    news_ = true;
    return !too_many_;
  }
  /// Returns the elements masked by the last step. Throws usage_error if they were too many.
  Masked of_step(int rank, std::uint64_t step) {
    if (!std::exchange(news_, false)) return {};
    if (too_many_) refuse(rank, step);
    return {masked_, {segments_.get(), count_}};
  }

 private:
  [[noreturn]] TERSE_COLD void refuse(int rank, std::uint64_t step) const;

  const Layout* layout_;
  float most_;
  const char* instead_;
  index_t masked_ = 0, elements_ = 0;
  std::unique_ptr<MaskedSegment[]> segments_;  // all segments while counting, then those with masked elements
  std::size_t count_ = 0;
  bool too_many_ = false, news_ = false;
};

}  // namespace detail

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/preconditioner/masked_elements.ipp"
#endif
