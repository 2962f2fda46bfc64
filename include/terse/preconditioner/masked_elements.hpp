// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terse/core/config.hpp"
#include "terse/core/error.hpp"
#include "terse/core/layout.hpp"
#include "terse/core/view.hpp"

namespace terse {

/// A segment of which a freeze has masked elements.
struct MaskedSegment {
  std::string_view name;  ///< the optimizer's
  index_t masked = 0;     ///< so many of them never train
  index_t elements = 0;   ///< of all that the freeze concerns
};

/// Elements that a preconditioner has masked as it froze, since it had learned nothing of them.
struct Masked {
  index_t elements = 0;
  std::span<const MaskedSegment>
      segments{};  ///< those that have some; the optimizer's, until it freezes again
};

namespace detail {

/// Counts what a freeze is about to mask, and keeps it until the step is over. Takes its memory at construction.
class MaskedElements {
 public:
  /// `most`: the largest share of all elements. `instead`: what else than to freeze later helps where gradients stay 0. The layout
  /// outlives this.
  TERSE_COLD MaskedElements(const Layout& layout, float most, const char* instead)
      : layout_(&layout), most_(most), instead_(instead), words_(block) {
    segments_.reserve(layout.segments().size());
  }

  /// Counts bits that are 0. fetch(first, to) brings words of bits, from word `first` on. Tells whether they are few enough; else
  /// the stage must stay as it is.
  TERSE_COLD bool count(const Range& range,
                        const std::function<void(index_t first, view<std::uint64_t> to)>& fetch) {
    segments_.assign(layout_->segments().size(), {});
    for (const Piece& piece : range.pieces()) {
      MaskedSegment& segment = segments_[static_cast<std::size_t>(piece.segment)];
      segment.elements += piece.count;
      const index_t first = piece.offset / alignment,
                    last = first + (piece.count + alignment - 1) / alignment;
      for (index_t begin = first; begin < last; begin += block) {
        const index_t words = std::min(block, last - begin);
        fetch(begin, words_.all().part(0, words));
        for (index_t w = 0; w < words; ++w) {
          const index_t left = piece.count - (begin + w - first) * alignment;
          const std::uint64_t here = left < alignment ? (std::uint64_t{1} << left) - 1 : ~std::uint64_t{0};
          segment.masked += std::popcount(here & ~words_[w]);
        }
      }
    }
    masked_ = elements_ = 0;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      segments_[s].name = layout_->segments()[s].name;
      masked_ += segments_[s].masked;
      elements_ += segments_[s].elements;
    }
    std::erase_if(segments_, [](const MaskedSegment& segment) { return segment.masked == 0; });
    too_many_ = static_cast<double>(masked_) > static_cast<double>(most_) * static_cast<double>(elements_);
    news_ = true;
    return !too_many_;
  }
  /// Says what was counted in the step that has just been taken. Throws usage_error where that was too much.
  Masked of_step(int rank, std::uint64_t step) {
    if (!std::exchange(news_, false)) return {};
    if (too_many_) refuse(rank, step);
    return {masked_, segments_};
  }

 private:
  [[noreturn]] TERSE_COLD void refuse(int rank, std::uint64_t step) const {
    constexpr std::size_t most_named = 8;
    std::string sentence = "the second stage would begin after this step, and of " + std::to_string(masked_) +
                           " of " + std::to_string(elements_) +
                           " elements its preconditioner has learned nothing: they would be masked and never "
                           "train. They are ";
    for (std::size_t s = 0; s < std::min(segments_.size(), most_named); ++s)
      sentence += (s == 0 ? "" : ", ") + std::to_string(segments_[s].masked) + " of " +
                  std::to_string(segments_[s].elements) + " in segment '" + std::string(segments_[s].name) +
                  "'";
    if (segments_.size() > most_named)
      sentence += " and others in " + std::to_string(segments_.size() - most_named) + " more segments";
    throw usage_error(sentence + ". Freeze later, when they have had gradients; or, where these stay 0, " +
                          instead_ +
                          "allow a larger share (Options::most_masked). The step itself has been taken, and "
                          "the first stage goes on",
                      rank, static_cast<std::int64_t>(step));
  }

  static constexpr index_t block = 1024;  // words
  const Layout* layout_;
  float most_;
  const char* instead_;
  buffer<std::uint64_t> words_;
  index_t masked_ = 0, elements_ = 0;
  std::vector<MaskedSegment> segments_;
  bool too_many_ = false, news_ = false;
};

}  // namespace detail

}  // namespace terse
