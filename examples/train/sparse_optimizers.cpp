// SPDX-License-Identifier: Apache-2.0
#include "any_optimizer.hpp"
#include "terse/optimizer/deep_gradient_compression.hpp"
#include "terse/optimizer/demo.hpp"
#include "terse/optimizer/distributed_lion.hpp"
#include "terse/optimizer/ef21_sgd.hpp"

namespace train {
namespace {

/// Vectors, such as biases, travel dense.
terse::Layout matrices_alone(const terse::Layout& layout) {
  terse::Layout other;
  for (terse::Segment segment : layout.segments()) {
    segment.compress = segment.shape.size() > 1;
    other.add(std::move(segment));
  }
  return other;
}

}  // namespace

template <class P>
std::unique_ptr<AnyOptimizer> make_sparse_optimizer(Optimizer kind, const Options& options,
                                                    std::uint64_t warmup, P& place,
                                                    const terse::Layout& layout) {
  const auto make = [&]<class Recipe>(const Recipe& recipe) -> std::unique_ptr<AnyOptimizer> {
    return std::make_unique<TheOptimizer<Recipe, P>>(recipe, place, matrices_alone(layout),
                                                     terse_options(options));
  };
  const auto rate = static_cast<float>(rate_of(options, kind).rate);
  const auto weight_decay = static_cast<float>(options.weight_decay);
  const auto momentum = static_cast<float>(options.momentum);
  // Momentum before the differences: without it they are mostly noise of single batches.
  using Ef21Sgd = terse::Ef21Sgd<terse::TopK<>, terse::LocalMomentumBefore>;
  const double ratio = ratio_of(options, kind);
  if (kind == Optimizer::ef21_sgd)
    return make(Ef21Sgd{.learning_rate = rate,
                        .weight_decay = weight_decay,
                        .momentum_correction = {.momentum = momentum, .nesterov = false},
                        .compressor = {.selection = {.ratio = ratio}}});
  if (kind == Optimizer::demo)
    return make(terse::DeMo<>{.learning_rate = rate,
                              .weight_decay = weight_decay,
                              .compressor = {.inner = {.selection = {.ratio = ratio}}},
                              .error_feedback = {.follows_rate = true}});
  if (kind == Optimizer::distributed_lion)
    return make(terse::DistributedLion<>{.learning_rate = rate, .weight_decay = weight_decay});
  return make(terse::DeepGradientCompression<>{
      .learning_rate = rate,
      .weight_decay = weight_decay,
      .momentum_correction = {.momentum = momentum},
      .compressor = {.selection = {.ratio = ratio, .warmup_steps = warmup}}});
}

template std::unique_ptr<AnyOptimizer> make_sparse_optimizer(Optimizer, const Options&, std::uint64_t,
                                                             OnHost&, const terse::Layout&);

}  // namespace train
