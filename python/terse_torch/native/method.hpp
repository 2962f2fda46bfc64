// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "terse/checkpoint/checkpoint.hpp"
#include "terse/optimizer/carry_over.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/any.hpp"
#include "terse/transport/through_host.hpp"

// One optimizer behind an interface that names no recipe, so that Python's module is compiled without any, and each recipe in
// a unit that knows nothing of PyTorch.

namespace terse_torch {

/// Hyper-parameters by name.
class Settings {
 public:
  explicit Settings(std::map<std::string, double> values) : values_(std::move(values)) {}

  float number(const char* name) const { return static_cast<float>(values_.at(name)); }
  std::uint64_t count(const char* name) const {
    const double value = values_.at(name);
    if (!(value >= 0 && value < 0x1p53 && value == std::floor(value)))
      throw terse::usage_error(std::string(name) + " must be a whole number of at least 0, not " +
                               std::to_string(value));
    return static_cast<std::uint64_t>(value);
  }
  bool flag(const char* name) const { return values_.at(name) != 0; }
  bool has(const char* name) const { return values_.contains(name); }

 private:
  std::map<std::string, double> values_;
};

/// An optimizer over arenas of `layout().size()` floats, where its executor has its memory.
class __attribute__((visibility("default"))) Method {
 public:
  virtual ~Method() = default;
  virtual const terse::Layout& layout() const = 0;
  virtual void learning_rate(float rate) = 0;
  virtual void rescale(const std::string& segment, float learning_rate, float weight_decay) = 0;
  virtual void begin(float* parameters, const float* gradients, float gradient_scale) = 0;
  virtual void ready(terse::index_t segment) = 0;
  virtual terse::StepResult step(float* parameters, const float* gradients, float gradient_scale) = 0;
  virtual std::uint64_t steps() const = 0;
  virtual bool full_precision() const = 0;
  virtual void save(const std::filesystem::path& file, const float* parameters) = 0;
  virtual void load(const std::filesystem::path& file, float* parameters) = 0;
  virtual void carry_over(Method& before, float* parameters) = 0;
  virtual void join(float* parameters) = 0;
};

/// Messages of executors that are not the host go by way of it.
template <class Recipe, class E>
class MethodOf final : public Method {
  using Transport = std::conditional_t<std::is_same_v<E, terse::executor::host>, terse::AnyTransport,
                                       terse::ThroughHost<terse::AnyTransport, E>>;

 public:
  MethodOf(const Recipe& recipe, terse::AnyTransport& transport, const terse::Layout& layout,
           const terse::Options& options, E executor)
      : transport_(over(transport.split(0, transport.rank()), executor)),
        optimizer_(recipe, transport_, layout, options, executor) {}

  const terse::Layout& layout() const override { return optimizer_.layout(); }
  void learning_rate(float rate) override { optimizer_.learning_rate(rate); }
  void rescale(const std::string& segment, float learning_rate, float weight_decay) override {
    optimizer_.rescale(segment, learning_rate, weight_decay);
  }
  void begin(float* parameters, const float* gradients, float gradient_scale) override {
    optimizer_.begin(Out(parameters, size()), In(gradients, size()), gradient_scale);
  }
  void ready(terse::index_t segment) override { optimizer_.ready(segment); }
  terse::StepResult step(float* parameters, const float* gradients, float gradient_scale) override {
    return optimizer_.step(Out(parameters, size()), In(gradients, size()), gradient_scale);
  }
  std::uint64_t steps() const override { return optimizer_.steps(); }
  bool full_precision() const override { return optimizer_.full_precision(); }
  void save(const std::filesystem::path& file, const float* parameters) override {
    terse::checkpoint::save(file, optimizer_, In(parameters, size()));
  }
  void load(const std::filesystem::path& file, float* parameters) override {
    terse::checkpoint::load(file, optimizer_, Out(parameters, size()));
  }
  void carry_over(Method& before, float* parameters) override {
    auto* const other = dynamic_cast<MethodOf*>(&before);
    if (other == nullptr) throw terse::usage_error("the optimizer before has another method");
    carry([&] {
      if constexpr (goes_on) terse::carry_over(other->optimizer_, optimizer_, Out(parameters, size()));
    });
  }
  void join(float* parameters) override {
    carry([&] {
      if constexpr (goes_on) terse::carry_over(optimizer_, Out(parameters, size()));
    });
  }

 private:
  using Out = terse::out<E>;
  using In = terse::in<E>;

  static constexpr bool goes_on = terse::detail::goes_on<Recipe>();
  template <class Carry>
  static void carry(Carry carry_over) {
    if (!goes_on)
      throw terse::usage_error(
          "this method can't do without a lost rank's state, nor give its own to a rank that joins: load "
          "the ranks' last state_dicts in a new job");
    carry_over();
  }
  static Transport over(terse::AnyTransport transport, const E& executor) {
    if constexpr (std::is_same_v<Transport, terse::AnyTransport>)
      return transport;
    else
      return Transport(std::move(transport), executor);
  }
  terse::index_t size() const { return optimizer_.layout().size(); }

  Transport transport_;
  terse::Optimizer<Recipe, Transport, E> optimizer_;
};

/// Of recipes around each other the innermost one's, where it has one.
template <class Recipe>
void set_weight_decay(Recipe& recipe, const Settings& settings) {
  if constexpr (requires { recipe.weight_decay = 0.0F; }) {
    if (settings.has("weight_decay")) recipe.weight_decay = settings.number("weight_decay");
  } else if constexpr (requires { recipe.inner; }) {
    set_weight_decay(recipe.inner, settings);
  }
}

/// `stream` is the address of the stream that PyTorch works on; the host has none.
using Make = std::unique_ptr<Method> (*)(const Settings&, terse::AnyTransport&, const terse::Layout&,
                                         const terse::Options&, std::uintptr_t stream);

inline terse::executor::host on_host(std::uintptr_t /*stream*/) { return {}; }

/// Makes the method of the recipe that `RecipeOf(settings)` returns, on the executor that `ExecutorOf(stream)` does.
template <auto RecipeOf, auto ExecutorOf = on_host>
std::unique_ptr<Method> make(const Settings& settings, terse::AnyTransport& transport,
                             const terse::Layout& layout, const terse::Options& options,
                             std::uintptr_t stream) {
  const auto recipe = RecipeOf(settings);
  return std::make_unique<MethodOf<std::remove_const_t<decltype(recipe)>, decltype(ExecutorOf(stream))>>(
      recipe, transport, layout, options, ExecutorOf(stream));
}

/// Methods by the names that Python knows them by.
std::map<std::string, Make>& methods();
/// What a unit adds to them.
template <auto RecipeOf>
bool add(const char* name) {
  return methods().emplace(name, &make<RecipeOf>).second;
}

}  // namespace terse_torch
