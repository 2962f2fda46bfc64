// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <new>
#include <string>
#include <utility>

#include "terse/core/error.hpp"
#include "terse/error_feedback/row_format.hpp"

namespace terse {

/// Storage of the copies of examples in RAM, or in a device's memory. Cost: RowFormat<Format>::bytes(elements) per
/// example, boundary and side.
///
/// A storage is a policy with `check()` and a row format `Format`: float, fp16, bf16 or Int8. Its `State<E>(policy, rows,
/// row_bytes)` contains zeroed, contiguous rows in the executor's memory, from `data()` on, one row for each example. It
/// may have `expect(row)`, a hint that a row will be needed soon.
template <class Format_ = fp16>
struct InMemory {
  using Format = Format_;

  void check() const {}

  template <Executor E>
  class State {
   public:
    State(const InMemory&, index_t rows, index_t row_bytes) : rows_(take(rows, row_bytes)) {}
    std::byte* data() { return rows_.data(); }

   private:
    using Rows = buffer<std::byte, typename E::memory>;
    static Rows take(index_t rows, index_t row_bytes) {
      try {
        return Rows(rows * row_bytes);
      } catch (const std::bad_alloc&) {
        throw usage_error("InMemory: there is no memory for copies of " + std::to_string(rows) +
                          " examples, " + std::to_string(rows * row_bytes) +
                          " bytes for one boundary: lower the capacity, take a smaller format or Mapped");
      }
    }

    Rows rows_;
  };
};

}  // namespace terse
