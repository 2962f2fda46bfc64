// SPDX-License-Identifier: Apache-2.0
#include "any_optimizer.hpp"
#include "terse/optimizer/muon.hpp"

namespace train {

template <class P>
std::unique_ptr<AnyOptimizer> make_muon_optimizer(const Options& options, P& place,
                                                  const terse::Layout& layout) {
  terse::Layout marked;
  for (terse::Segment segment : layout.segments()) {
    segment.hidden = segment.shape.size() >= 2 && segment.name != "last.weight";
    marked.add(segment);
  }
  return std::make_unique<TheOptimizer<terse::Muon<>, P>>(
      terse::Muon<>{.learning_rate = static_cast<float>(options.learning_rate),
                    .weight_decay = static_cast<float>(options.weight_decay)},
      place, marked, terse_options(options));
}

template std::unique_ptr<AnyOptimizer> make_muon_optimizer(const Options&, OnHost&, const terse::Layout&);

}  // namespace train
