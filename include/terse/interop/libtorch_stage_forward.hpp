// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include <torch/torch.h>

// Compiles as C++17, like all code that includes LibTorch.

namespace terse::detail {

template <class Part, class... Tensors>
auto has_forward(int)
    -> decltype(std::declval<Part&>()->forward(std::declval<const Tensors&>()...), std::true_type());
template <class Part, class... Tensors>
std::false_type has_forward(long);

}  // namespace terse::detail

namespace terse::interop {

/// A stage's function of its input, or of its input and the same rows of the batch's inputs. If a function can be
/// called with one tensor, it is.
class TorchForward {
  using OfOne = std::function<torch::Tensor(const torch::Tensor& input)>;
  using OfTwo = std::function<torch::Tensor(const torch::Tensor& input, const torch::Tensor& batch_inputs)>;

 public:
  template <class Function, std::enable_if_t<std::is_constructible_v<OfOne, Function>, int> = 0>
  TorchForward(Function function) : of_one_(std::move(function)) {}
  template <class Function, std::enable_if_t<!std::is_constructible_v<OfOne, Function> &&
                                                 std::is_constructible_v<OfTwo, Function>,
                                             int> = 0>
  TorchForward(Function function) : of_two_(std::move(function)) {}

  /// Returns a function that calls the module in `part`.
  template <class Part>
  static TorchForward of(Part part) {
    if constexpr (decltype(detail::has_forward<Part, torch::Tensor>(0))::value) {
      return OfOne([part](const torch::Tensor& input) mutable { return part->forward(input); });
    } else {
      static_assert(
          decltype(detail::has_forward<Part, torch::Tensor, torch::Tensor>(0))::value,
          "a TorchStage's module needs forward(Tensor) or forward(Tensor input, Tensor batch_inputs)");
      return OfTwo([part](const torch::Tensor& input, const torch::Tensor& batch_inputs) mutable {
        return part->forward(input, batch_inputs);
      });
    }
  }

  explicit operator bool() const noexcept { return of_one_ || of_two_; }
  bool reads_batch() const noexcept { return static_cast<bool>(of_two_); }
  torch::Tensor operator()(const torch::Tensor& input, const torch::Tensor& batch_inputs) const {
    return of_two_ ? of_two_(input, batch_inputs) : of_one_(input);
  }

 private:
  OfOne of_one_;
  OfTwo of_two_;
};

}  // namespace terse::interop
