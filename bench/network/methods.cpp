// SPDX-License-Identifier: Apache-2.0
#include "methods.hpp"

#include <limits>

#include "terse/terse.hpp"

namespace {

using namespace terse;

template <class R>
class Steps : public Stepper {
 public:
  Steps(const R& recipe, AnyTransport& transport, const Layout& layout, const Options& options)
      : optimizer_(recipe, transport, layout, options) {}
  void begin(std::vector<float>& x, const std::vector<float>& g) override { optimizer_.begin(x, g); }
  void ready(std::int64_t segment) override { optimizer_.ready(segment); }
  StepResult step(std::vector<float>& x, const std::vector<float>& g) override {
    return optimizer_.step(x, g);
  }

 private:
  Optimizer<R, AnyTransport> optimizer_;
};

/// `recipe` is a function of Settings.
template <class Recipe>
Method named(const std::string& name, Recipe recipe, bool overlaps = false, bool staged = false,
             int period = 1) {
  return {name, overlaps, staged, period,
          [recipe](AnyTransport& transport, const Layout& layout, const Options& options,
                   const Settings& settings) -> std::unique_ptr<Stepper> {
            return std::make_unique<Steps<decltype(recipe(settings))>>(recipe(settings), transport, layout,
                                                                       options);
          }};
}

template <class P>
auto adam(P topology) {
  return [topology](const Settings& settings) {
    return Adam<P>{.learning_rate = settings.learning_rate, .topology = topology};
  };
}

/// Bias correction, for a freeze after tens of steps.
template <class R>
R one_bit(const Settings& settings) {
  return {.learning_rate = settings.learning_rate,
          .bias_correction = true,
          .preconditioner = {.freeze = AtStep{settings.dense_steps}}};
}

ZeroOneAdam<> zero_one_adam(const Settings& settings) {
  return {.learning_rate = settings.learning_rate,
          .variance_freeze_step = settings.dense_steps,
          .local_interval_steps = 1,
          .most_local_steps = 8};
}

/// A tenth of a percent, without the stages before it.
DeepGradientCompression<> deep_gradient_compression(const Settings& settings) {
  DeepGradientCompression<> recipe{.learning_rate = 10 * settings.learning_rate};
  recipe.compressor.selection.ratio = 0.001;
  return recipe;
}

template <class R>
R plain(const Settings& settings) {
  return {.learning_rate = 10 * settings.learning_rate};
}

template <class R>
R around_adam(const Settings& settings) {
  return {.inner = {.learning_rate = settings.learning_rate}, .period = 8};
}

}  // namespace

const std::vector<Method>& methods() {
  static const std::vector<Method> all = {
      named("adam", adam(BySize<>{})),
      named("adam+overlap", adam(BySize<>{}), true),
      named("adam/all-pairs", adam(BySize<>{.from = std::numeric_limits<index_t>::max()})),
      named("adam/ring", adam(Ring{})),
      named("momentum-sgd", plain<MomentumSgd<>>),
      named("1-bit-adam", one_bit<OneBitAdam<>>, false, true),
      named("1-bit-adam+overlap", one_bit<OneBitAdam<>>, true, true),
      named("1-bit-adam/ring", one_bit<OneBitAdam<Ring>>, false, true),
      named("1-bit-adam/ring+overlap", one_bit<OneBitAdam<Ring>>, true, true),
      named("1-bit-lamb", one_bit<OneBitLamb<>>, false, true),
      named("zero-one-adam", zero_one_adam, false, true, 8),
      named("deep-gradient-compression", deep_gradient_compression),
      named("power-sgd", plain<PowerSgd<4>>),
      named("local-sgd", around_adam<LocalSgd<Adam<>>>, false, false, 8),
      named("local-sgd/fp16", around_adam<LocalSgd<Adam<>, Cast<fp16>>>, false, false, 8),
      named("diloco", around_adam<DiLoCo<Adam<>>>, false, false, 8),
      named("diloco-int8", around_adam<DiLoCo<Adam<>, Uniform<8, Nearest, Symmetric>, Residual, Ring>>, false,
            false, 8),
      named("dm-sgd/one-peer", plain<DmSgd<Mixing<graph::OnePeerExponential>>>),
  };
  return all;
}

const Method& method(const std::string& name, int rank) {
  for (const Method& one : methods())
    if (one.name == name) return one;
  throw usage_error("there is no method " + name, rank);
}
