// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace {

class Pass : public Model {
 public:
  explicit Pass(std::int64_t hidden)
      : shapes_{{hidden, 784},    {hidden}, {hidden, hidden}, {hidden},
                {hidden, hidden}, {hidden}, {10, hidden},     {10}} {}
  std::vector<std::vector<std::int64_t>> shapes() const override { return shapes_; }
  void begin(float* x, const Offsets& offsets) override {
    for (std::size_t k = 0; k < shapes_.size(); ++k) std::fill_n(x + offsets[k], count(k), 0.01F);
  }
  void take(const float*, const std::int64_t*) override {}
  std::int64_t inputs() const override { return 784; }
  std::int64_t targets() const override { return 1; }
  double gradient(const float* x, float* g, const Offsets& offsets,
                  const std::function<void(std::int64_t)>& ready) override {
    for (std::size_t k = shapes_.size(); k-- > 0; ready(static_cast<std::int64_t>(k)))
      for (std::int64_t i = offsets[k]; i < offsets[k] + count(k); ++i) g[i] = 0.01F * x[i] + 0.001F;
    return 0;
  }

 private:
  std::int64_t count(std::size_t k) const {
    std::int64_t count = 1;
    for (const std::int64_t size : shapes_[k]) count *= size;
    return count;
  }

  std::vector<std::vector<std::int64_t>> shapes_;
};

}  // namespace

const bool real_model = false;
std::unique_ptr<Model> make_model(const std::string& name, int, int) {
  const std::string kind = "perceptron/";
  if (name.rfind(kind, 0) != 0)
    throw std::invalid_argument("'" + name + "' needs LibTorch; without it there is perceptron/WIDTH alone");
  return std::make_unique<Pass>(std::atoi(name.c_str() + kind.size()));
}
