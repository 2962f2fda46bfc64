// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "any_state.hpp"
#include "method.hpp"
#include "options.hpp"
#include "places.hpp"
#include "terse/executor/parallel.hpp"
#include "terse/optimizer/optimizer.hpp"

namespace train {

/// An optimizer whose recipe was chosen when the program ran. One indirect call a step: nothing inside of a
/// step is decided anew. Parameters and gradients lie where the optimizer runs.
class AnyOptimizer {
 public:
  virtual ~AnyOptimizer() = default;
  /// Before the gradient is computed: messages that don't depend on it travel meanwhile, and where the gradient is
  /// wanted at the mixture, `parameters` become that.
  virtual void begin(float* parameters, float learning_rate) = 0;
  virtual terse::StepResult step(float* parameters, const float* gradients, float learning_rate) = 0;
  virtual bool full_precision() const = 0;
  virtual void save(const std::filesystem::path& file, const float* parameters) = 0;
  /// What as many ranks or others have saved. Collective.
  virtual void load(const terse::checkpoint::Manifest& manifest, float* parameters) = 0;
};

template <class Recipe, class P, class Executor = typename P::Executor>
class TheOptimizer final : public AnyOptimizer {
 public:
  TheOptimizer(Recipe recipe, P& place, const terse::Layout& layout, const terse::Options& options,
               const Executor& executor)
      : optimizer_(std::move(recipe), place.transport, layout, options, executor) {}

  void begin([[maybe_unused]] float* parameters, [[maybe_unused]] float learning_rate) override {
    if constexpr (terse::detail::is_blind<Recipe>()) {
      optimizer_.learning_rate(learning_rate);
      optimizer_.begin({parameters, size()});
    }
  }
  terse::StepResult step(float* parameters, const float* gradients, float learning_rate) override {
    optimizer_.learning_rate(learning_rate);
    return optimizer_.step({parameters, size()}, {gradients, size()});
  }
  bool full_precision() const override { return optimizer_.full_precision(); }
  void save(const std::filesystem::path& file, const float* parameters) override {
    P::save(file, optimizer_, parameters);
  }
  void load(const terse::checkpoint::Manifest& manifest, float* parameters) override {
    P::load(manifest, optimizer_, parameters);
  }

 private:
  terse::index_t size() const { return optimizer_.layout().size(); }

  terse::Optimizer<Recipe, typename P::Transport, Executor> optimizer_;
};

inline terse::Options terse_options(const Options& options) {
  const auto policy = [](NonFinite value) {
    switch (value) {
      case NonFinite::skip:
        return terse::NonFinite::skip;
      case NonFinite::zero:
        return terse::NonFinite::zero;
      case NonFinite::raise:
        break;
    }
    return terse::NonFinite::throw_;
  };
  return {.seed = options.seed,
          .on_non_finite = policy(options.on_non_finite),
          .clip_norm = options.clip_norm ? static_cast<float>(*options.clip_norm)
                                         : std::numeric_limits<float>::infinity(),
          .most_masked = static_cast<float>(options.most_masked)};
}

/// The steps at which optimizers go over to something else.
struct Stages {
  std::uint64_t ratio_warmup = 0;  ///< DeepGradientCompression's ratio has fallen
  std::uint64_t freeze = 1;  ///< OneBitAdam and OneBitLamb compress after it, ZeroOneAdam's ranks step alone
  std::uint64_t average_until = 0;   ///< PostLocalSgd steps alone after it
  std::uint64_t local_interval = 1;  ///< steps after which ZeroOneAdam's meetings become rarer
};

/// What there is to make: a method with what decides about its recipe. `place` outlives what is made.
template <class P>
struct Order {
  const Method& method;
  const Options& options;
  const Stages& stages;
  const terse::Layout& layout;
  P& place;

  /// The highest; schedules go below it.
  float rate() const { return static_cast<float>(rate_of(options, method).rate); }
  float weight_decay() const { return static_cast<float>(options.weight_decay); }
  float momentum() const { return static_cast<float>(options.momentum); }
};

/// The recipe's optimizer over the order's layout, or another one of as many elements.
template <class P, class Recipe>
std::unique_ptr<AnyOptimizer> made(const Order<P>& order, const Recipe& recipe, const terse::Layout& layout) {
  return std::make_unique<TheOptimizer<Recipe, P>>(recipe, order.place, layout, terse_options(order.options),
                                                   order.place.executor);
}
template <class P, class Recipe>
std::unique_ptr<AnyOptimizer> made(const Order<P>& order, const Recipe& recipe) {
  return made(order, recipe, order.layout);
}
/// The same of a method that runs anywhere: on the host by all threads of a rank.
template <class P, class Recipe>
std::unique_ptr<AnyOptimizer> made_anywhere(const Order<P>& order, const Recipe& recipe) {
  if constexpr (std::is_same_v<P, OnHost>)
    return std::make_unique<TheOptimizer<Recipe, P, terse::executor::parallel>>(
        recipe, order.place, order.layout, terse_options(order.options),
        terse::executor::parallel(order.options.threads_per_rank));
  else
    return made(order, recipe);
}

/// How the method with this tag is made, see method_table.hpp.
template <class Tag, class P>
std::unique_ptr<AnyOptimizer> make(const Order<P>& order);

using Made = std::unique_ptr<AnyOptimizer>;

}  // namespace train
