// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "places.hpp"
#include "terse/core/type_name.hpp"
#include "terse/optimizer/options.hpp"

namespace terse::checkpoint {
class Manifest;
}

namespace train {

/// What a checkpoint asks of an optimizer on the host, behind one type: checkpoints are compiled once, in any_state.cpp, and
/// not in each unit with a recipe, where they would be half of the compiler's work.
class AnyState {
 public:
  using runs_on = terse::executor::host;
  using parameter = float;

  /// Sees each part once, see terse::Optimizer::walk.
  class Visitor {
   public:
    virtual void part(const std::string& name, terse::view<float> part, terse::index_t offset) = 0;
    virtual void part(const std::string& name, terse::view<std::uint8_t> part, terse::index_t offset) = 0;
    virtual void part(const std::string& name, terse::view<std::uint16_t> part, terse::index_t offset) = 0;
    virtual void part(const std::string& name, terse::view<std::uint64_t> part, terse::index_t offset) = 0;
    virtual void number(const std::string& name, std::uint64_t& value) = 0;

   protected:
    ~Visitor() = default;
  };

  virtual std::string recipe_name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const terse::Options& options() const = 0;
  virtual const terse::Layout& layout() const = 0;
  virtual std::uint64_t steps() const = 0;
  virtual bool begun() const = 0;
  virtual OnHost::Transport& channel() = 0;
  virtual void show_parts(Visitor& visitor) = 0;

  template <class Visit>
  void walk(const Visit& visit) {
    struct Parts final : Visitor {
      explicit Parts(const Visit& visit_) : visit(visit_) {}
      void part(const std::string& name, terse::view<float> part, terse::index_t offset) override {
        visit(name, part, offset);
      }
      void part(const std::string& name, terse::view<std::uint8_t> part, terse::index_t offset) override {
        visit(name, part, offset);
      }
      void part(const std::string& name, terse::view<std::uint16_t> part, terse::index_t offset) override {
        visit(name, part, offset);
      }
      void part(const std::string& name, terse::view<std::uint64_t> part, terse::index_t offset) override {
        visit(name, part, offset);
      }
      void number(const std::string& name, std::uint64_t& value) override { visit(name, value); }
      const Visit& visit;
    } parts(visit);
    show_parts(parts);
  }

 protected:
  ~AnyState() = default;
};

template <class Optimizer>
class StateOf final : public AnyState {
 public:
  explicit StateOf(Optimizer& optimizer) : optimizer_(optimizer) {}

  std::string recipe_name() const override { return terse::type_name<decltype(optimizer_.recipe)>(); }
  int rank() const override { return optimizer_.rank(); }
  int size() const override { return optimizer_.size(); }
  const terse::Options& options() const override { return optimizer_.options(); }
  const terse::Layout& layout() const override { return optimizer_.layout(); }
  std::uint64_t steps() const override { return optimizer_.steps(); }
  bool begun() const override { return optimizer_.begun(); }
  OnHost::Transport& channel() override { return optimizer_.channel(); }
  void show_parts(Visitor& visitor) override { optimizer_.walk(Parts{visitor}); }

 private:
  struct Parts {
    Visitor& visitor;
    template <class T>
    void operator()(const std::string& name, terse::view<T> part, terse::index_t offset) const {
      visitor.part(name, part, offset);
    }
    void operator()(const std::string& name, std::uint64_t& value) const { visitor.number(name, value); }
  };

  Optimizer& optimizer_;
};

void save_state(const std::filesystem::path& file, AnyState& state, terse::view<const float> parameters);
/// What as many ranks or others have saved. Collective.
void load_state(const terse::checkpoint::Manifest& manifest, AnyState& state, terse::view<float> parameters);

template <class Optimizer>
void OnHost::save(const std::filesystem::path& file, Optimizer& optimizer, const float* parameters) {
  StateOf<Optimizer> state(optimizer);
  save_state(file, state, {parameters, optimizer.layout().size()});
}
template <class Optimizer>
void OnHost::load(const terse::checkpoint::Manifest& manifest, Optimizer& optimizer, float* parameters) {
  StateOf<Optimizer> state(optimizer);
  load_state(manifest, state, {parameters, optimizer.layout().size()});
}

}  // namespace train
