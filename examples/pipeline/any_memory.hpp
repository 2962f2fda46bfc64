// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "terse/pipeline/example_memory.hpp"
#include "terse/pipeline/mapped_memory.hpp"

namespace pipeline {

/// Copies of examples in RAM or, where `folder` isn't empty, in a mapped file: the same bits, so that pipelines are
/// compiled once.
template <class Format_>
struct AnyMemory {
  using Format = Format_;

  std::string folder;

  void check() const {}

  template <terse::Executor E>
  class State {
   public:
    State(const AnyMemory& policy, terse::index_t rows, terse::index_t row_bytes) {
      if (policy.folder.empty())
        in_memory_.emplace(terse::InMemory<Format>{}, rows, row_bytes);
      else
        mapped_.emplace(terse::Mapped<Format>{policy.folder}, rows, row_bytes);
    }
    std::byte* data() { return mapped_ ? mapped_->data() : in_memory_->data(); }
    void expect(terse::index_t row) {
      if (mapped_) mapped_->expect(row);
    }

   private:
    std::optional<typename terse::InMemory<Format>::template State<E>> in_memory_;
    std::optional<typename terse::Mapped<Format>::template State<E>> mapped_;
  };
};

}  // namespace pipeline
