// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "plain.hpp"
#include "terse/core/view.hpp"

namespace terse::bench {
namespace {

/// The largest 1 % of message + error, wherever `select` finds them; the rest is the next error.
class PlainTopK : public Baseline {
 public:
  explicit PlainTopK(index_t n) : n_(n), k_((n + 99) / 100), y_(n) {
    indices_.reserve(static_cast<std::size_t>(k_));
    values_.reserve(static_cast<std::size_t>(k_));
  }

  void encode(const float* message) final {
    float* y = y_.data();
    for (index_t i = 0; i < n_; ++i) y[i] += message[i];
    indices_.clear();
    values_.clear();
    select(y);
    for (const std::uint32_t i : indices_) {
      values_.push_back(y[i]);
      y[i] = 0;
    }
  }
  void accumulate(float* x, float rate) final {
    for (std::size_t e = 0; e < indices_.size(); ++e) x[indices_[e]] -= rate * values_[e];
  }
  std::ptrdiff_t bytes() const final { return 8 * k_; }

 protected:
  virtual void select(const float* y) = 0;

  index_t n_, k_;
  std::vector<std::uint32_t> indices_;

 private:
  std::vector<float> values_;
  buffer<float> y_;  // the error, between steps
};

class HeapTopK final : public PlainTopK {
 public:
  explicit HeapTopK(index_t n) : PlainTopK(n), heap_(static_cast<std::size_t>(k_)) {}

 private:
  void select(const float* y) override {
    const auto k = static_cast<std::uint32_t>(k_), n = static_cast<std::uint32_t>(n_);
    for (std::uint32_t i = 0; i < k; ++i) heap_[i] = {std::fabs(y[i]), i};
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    for (std::uint32_t i = k; i < n; ++i) {
      if (std::fabs(y[i]) <= heap_.front().first) continue;
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      heap_.back() = {std::fabs(y[i]), i};
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
    for (const auto& [size, i] : heap_) indices_.push_back(i);
  }

  std::vector<std::pair<float, std::uint32_t>> heap_;
};

class NthElementTopK final : public PlainTopK {
 public:
  explicit NthElementTopK(index_t n) : PlainTopK(n), copy_(n) {}

 private:
  void select(const float* y) override {
    float* c = copy_.data();
    for (index_t i = 0; i < n_; ++i) c[i] = std::fabs(y[i]);
    std::nth_element(c, c + (k_ - 1), c + n_, std::greater<>());
    const float least = c[k_ - 1];
    for (index_t i = 0; i < n_ && static_cast<index_t>(indices_.size()) < k_; ++i)
      if (std::fabs(y[i]) >= least) indices_.push_back(static_cast<std::uint32_t>(i));
  }

  buffer<float> copy_;
};

}  // namespace

BaselineMaker heap_top_k() {
  return [](std::ptrdiff_t n) -> std::unique_ptr<Baseline> { return std::make_unique<HeapTopK>(n); };
}
BaselineMaker nth_element_top_k() {
  return [](std::ptrdiff_t n) -> std::unique_ptr<Baseline> { return std::make_unique<NthElementTopK>(n); };
}

}  // namespace terse::bench
