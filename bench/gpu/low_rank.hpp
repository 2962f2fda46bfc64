// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "functors.hpp"
#include "terse/device.hpp"
#include "terse/executor/factors.hpp"

// What LowRank<R> does with one matrix between its messages.

namespace terse::bench::gpu {

TERSE_NUMERICS_BEGIN
struct TakeOff {
  float* x;
  TERSE_HD void operator()(const Piece&, index_t i, bool, float product) const { x[i] -= product; }
};
TERSE_NUMERICS_END

template <int R, Executor E>
class LowRankPasses {
 public:
  LowRankPasses(E ex, index_t rows, index_t columns)
      : ex_(ex),
        shape_{rows, columns},
        layout_(Layout::flat(rows * columns)),
        m_(layout_.size()),
        x_(layout_.size()),
        left_(R * aligned(rows)),
        right_(R * aligned(columns) + detail::Strip::width),
        table_(1),
        lost_(R) {
    const detail::Factored own{0, shape_, 0, 0};
    upload(view<const detail::Factored>(&own, 1), table_.all());
    for_each(ex, layout_.range(), Noise{m_.data(), Draw::shared(4, 0, Purpose::user)});
    prepare();
  }

  void prepare() {
    prepare_columns<R>(ex_, table_.all(), right_.data(), Draw::shared(4, 0, Purpose::initialization));
  }
  void multiply() {
    terse::multiply<R>(ex_, m_.data(), Columns<const float>{right_.data(), shape_.columns},
                       Columns<float>{left_.data(), shape_.rows});
  }
  void orthonormalize() { terse::orthonormalize<R>(ex_, table_.all(), left_.data(), lost_.data()); }
  void multiply_transposed() {
    terse::multiply_transposed<R>(ex_, m_.data(), Columns<const float>{left_.data(), shape_.rows},
                                  Columns<float>{right_.data(), shape_.columns});
  }
  void take_off() {
    for_each_product<R>(ex_, layout_.range(), {}, table_.all(), left_.data(), right_.data(),
                        TakeOff{x_.data()});
  }

  template <class Visit>
  void walk(Visit&& visit) {
    visit("left", left_.all(), index_t{0});
    visit("right", right_.all(), index_t{0});
    visit("x", x_.all(), index_t{0});
  }

 private:
  E ex_;
  MatrixShape shape_;
  Layout layout_;
  Floats<E> m_, x_, left_, right_;
  buffer<detail::Factored, typename E::memory> table_;
  buffer<std::uint8_t, typename E::memory> lost_;
};

}  // namespace terse::bench::gpu
