// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <utility>

#include "options.hpp"
#include "places.hpp"
#include "terse/checkpoint/folder.hpp"
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
  virtual void step(float* parameters, const float* gradients, float learning_rate) = 0;
  virtual bool full_precision() const = 0;
  virtual void save(const std::filesystem::path& file, const float* parameters) = 0;
  /// What as many ranks or others have saved. Collective.
  virtual void load(const terse::checkpoint::Manifest& manifest, float* parameters) = 0;
};

template <class Recipe, class P>
class TheOptimizer final : public AnyOptimizer {
  using Executor = typename P::Executor;

 public:
  TheOptimizer(Recipe recipe, P& place, const terse::Layout& layout, const terse::Options& options)
      : optimizer_(std::move(recipe), place.transport, layout, options, place.executor) {}

  void begin([[maybe_unused]] float* parameters, [[maybe_unused]] float learning_rate) override {
    if constexpr (terse::detail::is_blind<Recipe>()) {
      optimizer_.learning_rate(learning_rate);
      optimizer_.begin({parameters, size()});
    }
  }
  void step(float* parameters, const float* gradients, float learning_rate) override {
    optimizer_.learning_rate(learning_rate);
    optimizer_.step({parameters, size()}, {gradients, size()});
  }
  bool full_precision() const override { return optimizer_.full_precision(); }
  void save(const std::filesystem::path& file, const float* parameters) override {
    terse::checkpoint::save(file, optimizer_, terse::in<Executor>(parameters, size()));
  }
  void load(const terse::checkpoint::Manifest& manifest, float* parameters) override {
    terse::checkpoint::load(manifest, optimizer_, terse::out<Executor>(parameters, size()));
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
  return {
      options.seed, policy(options.on_non_finite),
      options.clip_norm ? static_cast<float>(*options.clip_norm) : std::numeric_limits<float>::infinity()};
}

/// The steps at which optimizers go over to something else.
struct Stages {
  std::uint64_t ratio_warmup = 0;  ///< DeepGradientCompression's ratio has fallen
  std::uint64_t freeze = 1;  ///< OneBitAdam and OneBitLamb compress after it, ZeroOneAdam's ranks step alone
  std::uint64_t average_until = 0;   ///< PostLocalSgd steps alone after it
  std::uint64_t local_interval = 1;  ///< steps after which ZeroOneAdam's meetings become rarer
};

/// Adam or MomentumSgd; in dense_optimizers.hpp.
template <class P>
std::unique_ptr<AnyOptimizer> make_dense_optimizer(Optimizer kind, const Options& options, P& place,
                                                   const terse::Layout& layout);

/// ErrorFeedbackSgd without momentum or with momentum on each rank, SignSgd or QuantizedSgd; in
/// quantized_optimizers.hpp.
template <class P>
std::unique_ptr<AnyOptimizer> make_quantized_optimizer(Optimizer kind, const Options& options, P& place,
                                                       const terse::Layout& layout);

/// OneBitAdam over topology G, frozen after step `freeze`; in one_bit_adam.hpp, and instantiated in a unit for each
/// topology, since each holds six optimizers for each place.
template <class G, class P>
std::unique_ptr<AnyOptimizer> make_one_bit_adam(const Options& options, std::uint64_t freeze, P& place,
                                                const terse::Layout& layout);

// On the host only.

/// OneBitAdam with a compressor for each kind of layer, see --layers; in layered_one_bit_adam.cpp.
template <class P>
std::unique_ptr<AnyOptimizer> make_layered_one_bit_adam(const Options& options, std::uint64_t freeze,
                                                        P& place, const terse::Layout& layout);

/// DeepGradientCompression, whose ratio falls in the first `warmup` steps, or Ef21Sgd; in
/// sparse_optimizers.cpp.
template <class P>
std::unique_ptr<AnyOptimizer> make_sparse_optimizer(Optimizer kind, const Options& options,
                                                    std::uint64_t warmup, P& place,
                                                    const terse::Layout& layout);

/// Lamb or OneBitLamb, frozen after step `freeze`; in lamb_optimizers.cpp.
template <class P>
std::unique_ptr<AnyOptimizer> make_lamb_optimizer(Optimizer kind, const Options& options,
                                                  std::uint64_t freeze, P& place,
                                                  const terse::Layout& layout);

/// Muon, to which all matrices but the last layer's are hidden ones; in muon_optimizer.cpp.
template <class P>
std::unique_ptr<AnyOptimizer> make_muon_optimizer(const Options& options, P& place,
                                                  const terse::Layout& layout);

/// ZeroOneAdam; in zero_one_adam.cpp.
template <class P>
std::unique_ptr<AnyOptimizer> make_zero_one_adam(const Options& options, const Stages& stages, P& place,
                                                 const terse::Layout& layout);

/// Any of those with local updates; in local_optimizers.cpp. PostLocalSgd averages gradients until step `average_until`.
template <class P>
std::unique_ptr<AnyOptimizer> make_local_optimizer(Optimizer kind, const Options& options,
                                                   std::uint64_t average_until, P& place,
                                                   const terse::Layout& layout);

/// Any decentralized optimizer; in gossip_optimizers.cpp.
template <class P>
std::unique_ptr<AnyOptimizer> make_gossip_optimizer(Optimizer kind, const Options& options, P& place,
                                                    const terse::Layout& layout);

/// PowerSgd; in low_rank_optimizers.cpp.
template <class P>
std::unique_ptr<AnyOptimizer> make_low_rank_optimizer(const Options& options, P& place,
                                                      const terse::Layout& layout);

}  // namespace train
