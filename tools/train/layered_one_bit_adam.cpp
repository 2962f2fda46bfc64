// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "any_optimizer.hpp"
#include "idx.hpp"
#include "terse/compressor/low_rank.hpp"
#include "terse/compressor/select.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/core/hash.hpp"
#include "terse/exchange/low_rank_round.hpp"
#include "terse/exchange/selected_rounds.hpp"
#include "terse/optimizer/one_bit_adam.hpp"

namespace train {

namespace {

/// A predicate whose patterns are known when the program runs: behind a pointer, since recipes are copied in each step.
template <LayerKind Kind>
struct Listed {
  std::shared_ptr<const std::vector<LayerRule>> rules = std::make_shared<std::vector<LayerRule>>();

  bool operator()(const terse::Segment& segment) const {
    for (const LayerRule& rule : *rules)
      if (terse::matches(rule.pattern, segment.name)) return rule.kind == Kind;
    return false;
  }
  /// Ranks that were started with other rules are found out.
  template <class Visit>
  void settings(Visit&& visit) const {
    std::uint64_t hash = 0;
    for (const LayerRule& rule : *rules) {
      for (const char letter : rule.pattern) hash = terse::mix_hash(hash, static_cast<unsigned char>(letter));
      hash = terse::mix_hash(hash, 256 + static_cast<std::uint64_t>(rule.kind));
    }
    visit("layers", static_cast<double>(hash >> 11));
  }
};

using Layered = terse::Select<terse::Where<Listed<LayerKind::dense>, terse::Dense>,
                              terse::Where<Listed<LayerKind::top_k>, terse::TopK<>>,
                              terse::Where<Listed<LayerKind::low_rank>, terse::LowRank<4>>,
                              terse::Otherwise<terse::Sign>>;

void check_patterns(const std::vector<LayerRule>& rules, const terse::Layout& layout) {
  for (const LayerRule& rule : rules) {
    std::string names;
    bool found = false;
    for (const terse::Segment& segment : layout.segments()) {
      found = found || terse::matches(rule.pattern, segment.name);
      names += (names.empty() ? "" : ", ") + segment.name;
    }
    if (!found)
      throw input_error(
          fmt::format("--layers: no layer's name is as '{}'; this model has {}", rule.pattern, names));
  }
}

}  // namespace

template <>
Made make<struct LayeredOneBitAdam>(const Order<OnHost>& order) {
  check_patterns(order.options.layers, order.layout);
  Layered layered;
  const auto rules = std::make_shared<const std::vector<LayerRule>>(order.options.layers);
  layered.branch<0>().predicate.rules = rules;
  layered.branch<1>().predicate.rules = rules;
  layered.branch<2>().predicate.rules = rules;
  return made(order, terse::OneBitAdam<Layered>{
                         .learning_rate = order.rate(),
                         .weight_decay = order.weight_decay(),
                         .bias_correction = order.options.bias_correction == BiasCorrection::first_stage,
                         .preconditioner = {terse::AtStep{order.stages.freeze},
                                            static_cast<float>(order.options.update_clip)},
                         .compressor = layered});
}

}  // namespace train
