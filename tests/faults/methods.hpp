// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model.hpp"
#include "terse/terse.hpp"

// One of each way in which ranks work together.

namespace faults {

/// An optimizer behind one indirect call a step.
struct Stepper {
  virtual ~Stepper() = default;
  virtual void step(Floats& x, const Floats& g) = 0;
};

template <class R>
class Steps : public Stepper {
 public:
  Steps(const R& recipe, terse::AnyTransport& transport, const terse::Layout& layout,
        const terse::Options& options)
      : optimizer_(recipe, transport, layout, options) {}
  void step(Floats& x, const Floats& g) override { optimizer_.step(x, g); }

 private:
  terse::Optimizer<R, terse::AnyTransport> optimizer_;
};

struct Method {
  std::string name;
  const char* with;  ///< whom a step is taken with: all, neighbours or nobody
  std::unique_ptr<Stepper> (*make)(terse::AnyTransport&, const terse::Layout&, const terse::Options&);
};

template <class Recipe>
Method method(const char* name, const char* with, Recipe) {
  return {name, with,
          [](terse::AnyTransport& transport, const terse::Layout& layout,
             const terse::Options& options) -> std::unique_ptr<Stepper> {
            const auto recipe = Recipe{}();
            return std::make_unique<Steps<std::remove_cv_t<decltype(recipe)>>>(recipe, transport, layout,
                                                                               options);
          }};
}

inline const std::vector<Method>& methods() {
  using namespace terse;
  static const std::vector<Method> all = {
      method("adam", "all", [] { return Adam<>{.learning_rate = 1e-2F}; }),
      method("1-bit-adam", "all",
             [] { return OneBitAdam<>{.learning_rate = 1e-2F, .preconditioner = {.freeze = AtStep{2}}}; }),
      method(
          "1-bit-adam/ring", "all",
          [] { return OneBitAdam<Ring>{.learning_rate = 1e-2F, .preconditioner = {.freeze = AtStep{2}}}; }),
      method("ef21-sgd", "all", [] { return Ef21Sgd<>{.learning_rate = 1e-2F}; }),
      method("power-sgd", "all", [] { return PowerSgd<2>{.learning_rate = 1e-2F}; }),
      method("dm-sgd/ring", "neighbours", [] { return DmSgd<Mixing<graph::Ring>>{.learning_rate = 1e-2F}; }),
      method("local-sgd", "nobody",
             [] { return LocalSgd<Adam<>>{.inner = {.learning_rate = 1e-2F}, .period = 2}; }),
      method("swarm-sgd", "nobody",
             [] {
               return SwarmSgd<MomentumSgd<>>{.inner = {.learning_rate = 1e-2F}, .schedule = {.period = 1}};
             }),
  };
  return all;
}

}  // namespace faults
