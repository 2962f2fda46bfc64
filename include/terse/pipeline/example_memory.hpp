// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <new>
#include <string>
#include <utility>

#include "terse/core/error.hpp"
#include "terse/error_feedback/row_format.hpp"

namespace terse {

/// Where the copies of examples lie, a row for each, in the format `Format`: float, fp16, bf16 or Int8. A policy with
/// `check()`; its `State<E>(policy, rows, row_bytes)` holds zeroed rows in the executor's memory, one after the other
/// from `data()` on, and may have `expect(row)`, a hint that a row will be asked for soon.
///
/// In RAM, or in a device's memory. Cost: RowFormat<Format>::bytes(elements) an example, a boundary and a side.
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
