// SPDX-License-Identifier: Apache-2.0

// The five steps of Newton-Schulz that Muon takes, by the library's products and by the sgemm of the BLAS that this program
// is linked to, on one thread; and those of the rows that Dion2 chooses, choice included.
//
//     bench_newton_schulz [ROWSxCOLUMNS ...]
//
// OpenBLAS chooses its kernels by the processor's name, and takes old ones for a name that it doesn't know, as on virtual
// machines: OPENBLAS_CORETYPE=Haswell or SkylakeX sets it right.

#include <cblas.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

#include "terse/preconditioner/orthogonal_rows.hpp"

namespace {

using namespace terse;
using Floats = std::vector<float>;
using Sequence = NewtonSchulzSequence;

/// As the steps are written: A = X X^T, B = b A + c A A, X = a X + B X, wide side up. `x` is normalized.
class BySgemm {
 public:
  explicit BySgemm(MatrixShape shape)
      : rows_(static_cast<int>(shape.rows)),
        columns_(static_cast<int>(shape.columns)),
        side_(std::min(rows_, columns_)),
        square_(static_cast<std::size_t>(side_) * static_cast<std::size_t>(side_)),
        polynomial_(square_.size()),
        next_(static_cast<std::size_t>(rows_) * static_cast<std::size_t>(columns_)) {}

  void operator()(Floats& x) {
    const bool wide = rows_ <= columns_;
    const int longer = std::max(rows_, columns_);
    for (const Quintic& step : Sequence::steps) {
      cblas_sgemm(CblasRowMajor, wide ? CblasNoTrans : CblasTrans, wide ? CblasTrans : CblasNoTrans, side_,
                  side_, longer, 1, x.data(), columns_, x.data(), columns_, 0, square_.data(), side_);
      polynomial_ = square_;
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, side_, side_, side_, step.c, square_.data(),
                  side_, square_.data(), side_, step.b, polynomial_.data(), side_);
      next_ = x;
      const float* const left = wide ? polynomial_.data() : x.data();
      const float* const right = wide ? x.data() : polynomial_.data();
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows_, columns_, side_, 1, left,
                  wide ? side_ : columns_, right, columns_, step.a, next_.data(), columns_);
      std::swap(x, next_);
    }
  }

 private:
  int rows_, columns_, side_;
  Floats square_, polynomial_, next_;
};

template <class F>
double seconds(const F& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void measure(MatrixShape shape) {
  Layout layout;
  layout.add({.name = "m", .shape = {shape.rows, shape.columns}, .hidden = true});
  detail::Orthogonalizer<executor::host, Sequence> ours(executor::host{}, layout);
  detail::Orthogonalizer<executor::host, LargestRows<4, Sequence>> quarter(executor::host{}, layout);
  detail::Orthogonalizer<executor::host, LargestRows<8, Sequence>> eighth(executor::host{}, layout);
  BySgemm blas(shape);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  Floats first(static_cast<std::size_t>(layout.size()));
  for (float& value : first) value = normal(random);
  Floats normalized = first;
  double square = 0;
  for (const float value : first) square += static_cast<double>(value) * static_cast<double>(value);
  for (float& value : normalized) value /= static_cast<float>(std::sqrt(square));

  double our_best = 1e9, blas_best = 1e9, quarter_best = 1e9, eighth_best = 1e9, apart = 0, spent = 0;
  for (int turn = 0; turn < 3 || (turn < 30 && spent < 4); ++turn) {
    buffer<float> x(layout.size());
    std::copy(first.begin(), first.end(), x.data());
    Floats y = normalized;
    const double own = seconds([&] { ours(executor::host{}, x.data()); }), other = seconds([&] { blas(y); });
    our_best = std::min(our_best, own);
    blas_best = std::min(blas_best, other);
    spent += own + other;
    const auto best = [&](double& least, auto& rows) {
      buffer<float> some(layout.size());
      std::copy(first.begin(), first.end(), some.data());
      least = std::min(least, seconds([&] { rows(executor::host{}, some.data()); }));
    };
    best(quarter_best, quarter);
    best(eighth_best, eighth);
    for (std::size_t i = 0; i < y.size(); ++i)
      apart = std::max(apart,
                       std::abs(static_cast<double>(x[static_cast<index_t>(i)]) - static_cast<double>(y[i])));
  }
  const double m = static_cast<double>(std::min(shape.rows, shape.columns)),
               n = static_cast<double>(std::max(shape.rows, shape.columns));
  std::printf("%5ld x %-5ld %10.2f %10.2f %10.2f %12.1f %12.0e %10.2f %10.2f\n",
              static_cast<long>(shape.rows), static_cast<long>(shape.columns), 1e3 * our_best,
              1e3 * blas_best, blas_best / our_best, 5 * (4 * m * m * n + 2 * m * m * m) / blas_best * 1e-9,
              apart, 1e3 * quarter_best, 1e3 * eighth_best);
}

}  // namespace

int main(int argc, char** argv) {
  if (auto* set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))) set(1);
  auto* core = reinterpret_cast<char* (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  std::printf("BLAS: %s\n%13s %10s %10s %10s %12s %12s %10s %10s\n", core ? core() : "of its own name", "",
              "ours, ms", "BLAS, ms", "BLAS/ours", "BLAS Gflop/s", "largest diff", "1/4 of it", "1/8 of it");
  if (argc == 1)
    for (const MatrixShape shape :
         {MatrixShape{128, 256}, {256, 784}, {512, 512}, {768, 768}, {768, 3072}, {3072, 768}, {1024, 1024}})
      measure(shape);
  for (int k = 1; k < argc; ++k) {
    long rows = 0, columns = 0;
    if (std::sscanf(argv[k], "%ldx%ld", &rows, &columns) != 2 || rows < 1 || columns < 1 || rows > 20000 ||
        columns > 20000) {
      std::fprintf(stderr, "bench_newton_schulz: '%s' is no ROWSxCOLUMNS of 1 to 20000\n", argv[k]);
      return 2;
    }
    measure({rows, columns});
  }
}
