// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/layout.hpp"
#include "terse/interop/libtorch.hpp"
#include "terse/interop/libtorch_guards.hpp"
#include "terse/interop/libtorch_stage_batch.hpp"
#include "terse/interop/libtorch_stage_forward.hpp"
#include "terse/interop/libtorch_stage_options.hpp"
#include "terse/pipeline/micro_batch.hpp"

// Like interop/libtorch.hpp this header compiles as C++17 and belongs in the one unit of the program that includes
// LibTorch. Other units see only `float*`.

namespace terse::interop {

/// A LibTorch module as one stage of a pipeline. Parameters and gradients are in the flat arenas of a FlatModule, for
/// any terse optimizer.
///
///     torch::nn::Sequential part(torch::nn::Linear(256, 128), torch::nn::ReLU());         // stage 1 of 4
///     terse::interop::TorchStage stage(part, {{256}, {128}});
///     // elsewhere, in a unit of C++20: terse::Pipeline pipeline{policy, transport, stage, options};
///     stage.batch(pictures, labels);                       // on all stages, or on those that read it
///     stage.zero_gradients();
///     pipeline.train(ids);
///     // optimizer.step(stage.parameters(), stage.gradients());
///
/// The first stage reads rows of `batch`'s inputs; all others read the output of the previous stage. The last stage
/// computes `loss` of its output and the labels' rows. One stage may be both first and last. Tensors are read in
/// place: the inputs given to `forward`, the gradients given to `backward`, and `batch`.
///
/// **Masks.** A module with `forward(Tensor input, Tensor batch_inputs)`, or a function of two tensors, also gets the
/// micro-batch's rows of the batch's inputs, on any stage. For instance, it can derive the mask of padding from them,
/// since masks are not sent. Such a stage requires every step's `batch`. On the first stage both tensors are those
/// rows. If the second parameter of a `forward` has a default, it is called with one tensor; then give a function of
/// two instead.
///
/// The module maps rows x input to rows x output, both float32 on the CPU, and treats rows independently. Operations
/// across rows, such as batch normalization, apply to each micro-batch. The module must not change its input in
/// place, nor an earlier output. Training leaves the modes of its submodules unchanged, so modules frozen by `eval()`
/// stay frozen. Evaluation switches all to `eval()` and back.
///
/// Several micro-batches may be in flight, each kind of pass in ascending order. The same calls give the same bits.
/// Only one thread at a time may use a stage; stages in different threads are independent.
///
/// **Memory.** A micro-batch in flight keeps the module's graph and output, rows x (autograd's tensors); with
/// `recompute` it keeps only a few tensor heads. After a micro-batch's backward pass none of it is kept. After an
/// evaluation only the last output is kept; the last stage keeps the scores of the whole batch. If a schedule runs
/// the last stage's backward pass at once, `recompute` gains nothing there.
///
/// **Errors** are usage_error, thrown before the module runs if possible. After an exception from a pass, call
/// `forget` and `zero_gradients`. LibTorch's own exceptions pass through.
class TorchStage {
 public:
  using Forward = TorchForward;
  /// A function that returns the mean over the rows, one number: `[](const auto& y, const auto& t) { return
  /// cross_entropy(y, t); }`. Sums would weigh micro-batches by their sizes twice.
  using Loss = std::function<torch::Tensor(const torch::Tensor& output, const torch::Tensor& labels)>;

  /// Constructs from `part`, a holder of a module: torch::nn::Sequential, or any std::shared_ptr or ModuleHolder of a
  /// module with `forward(Tensor)` or `forward(Tensor, Tensor)`. Only the last stage has a `loss`. Moves the
  /// parameters (FlatModule). Throws usage_error for shapes and a loss that don't make a stage, extents below 1, and
  /// a module that is not on the CPU or not float32.
  template <class Part, class = std::enable_if_t<!std::is_base_of_v<torch::nn::Module, Part>>>
  explicit TorchStage(Part part, TorchStageShapes shapes, Loss loss = nullptr, TorchStageOptions options = {})
      : TorchStage(*part, Forward::of(part), std::move(shapes), std::move(loss), std::move(options)) {}

  /// Constructs from any function over `module`'s parameters. `module` must outlive this object.
  TorchStage(torch::nn::Module& module, Forward forward, TorchStageShapes shapes, Loss loss = nullptr,
             TorchStageOptions options = {})
      : shapes_(checked(std::move(shapes), forward, loss)),
        forward_(std::move(forward)),
        loss_(std::move(loss)),
        options_(std::move(options)),
        module_(&module),
        flat_(module, options_.mark),
        input_elements_(elements(shapes_.input)),
        output_elements_(elements(shapes_.output)),
        data_(first() || forward_.reads_batch(), last()) {
    if (!flat_.device().is_cpu())
      throw usage_error("the module of a TorchStage lies on " + flat_.device().str() +
                        ", but stages run on the CPU");
  }

  const Layout& layout() const noexcept { return flat_.layout(); }
  /// Returns the arena of parameters, of `layout().size()` elements, see FlatModule.
  float* parameters() noexcept { return flat_.parameters(); }
  const float* parameters() const noexcept { return flat_.parameters(); }
  float* gradients() noexcept { return flat_.gradients(); }
  const float* gradients() const noexcept { return flat_.gradients(); }
  void zero_gradients() { flat_.zero_gradients(); }
  /// Returns the sum of the gradients' squares, for clipping by the norm over all stages. One pass.
  double square() const {
    double sum = 0;
    const float* const g = gradients();
    for (index_t i = 0; i < flat_.size(); ++i) sum += static_cast<double>(g[i]) * static_cast<double>(g[i]);
    return sum;
  }

  /// Returns the elements of an example's input or output; 0 at the pipeline's ends.
  index_t input_elements() const noexcept { return input_elements_; }
  index_t output_elements() const noexcept { return output_elements_; }
  bool first() const noexcept { return shapes_.input.empty(); }
  bool last() const noexcept { return static_cast<bool>(loss_); }

  /// Sets the data of the next step or evaluation. Rows are examples, in the order of the ids. The first stage, and
  /// each stage whose forward takes two tensors, requires the inputs, float32 or integers; the last stage requires
  /// the labels. A stage ignores tensors that it doesn't need; they may be undefined. Keeps the tensors without a
  /// copy, so don't change them until the next call. Throws for a missing or empty tensor, another floating-point
  /// type, another device, and unequal numbers of rows of inputs and labels.
  void batch(const torch::Tensor& inputs, const torch::Tensor& labels) { data_.set(inputs, labels); }

  /// Runs the module over the micro-batch's rows: of `batch` on the first stage, whose `input` is nullptr, and of
  /// `input`, rows x input_elements(), on others. Returns rows x output_elements(), valid until the next call of
  /// `forward`. The last stage returns nullptr and has the `loss`. In training `input` must stay in place until this
  /// micro-batch's backward pass. In evaluation autograd is off, and only the output is kept. Throws if a batch is
  /// missing or doesn't have the number of rows that the micro-batch's weight implies, or if a micro-batch is already
  /// in flight. Also for an output of another shape or type than declared, an input changed in place, and a loss that
  /// isn't one number. Copies only outputs that aren't contiguous or are views of the input.
  const float* forward(const MicroBatch& micro_batch, const float* input) {
    Pass pass = begin(micro_batch, input);
    output_.reset();
    if (micro_batch.training || micro_batch.index == 0) scores_.clear();
    torch::Tensor result;
    if (!micro_batch.training) {
      const torch::NoGradGuard no_grad;
      const detail::EvaluationMode evaluation(*module_);
      torch::Tensor scores;
      result = run(pass, &scores);
      // A pipeline reuses the input's memory for the next micro-batch. One number counts as one row.
      if (scores.defined())
        scores_.push_back(torch::atleast_1d(scores.is_alias_of(pass.input) ? scores.clone() : scores));
    } else {
      if (find(micro_batch.index) != passes_.end())
        throw usage_error("the forward pass of micro-batch " + std::to_string(micro_batch.index) +
                          " comes twice without its backward pass; after an exception, call forget()");
      pass.draws = draws_++;
      const torch::AutoGradMode mode(!options_.recompute);
      const detail::LentGenerator generator(options_.random, options_.seed, pass.draws);
      result = run(pass);
    }

    if (last()) {
      const torch::NoGradGuard no_grad;
      const auto index = static_cast<std::size_t>(micro_batch.index);
      if (losses_.size() <= index) losses_.resize(index + 1);
      losses_[index] = micro_batch.weight * result.item<double>();
    } else {
      // After an evaluation a pipeline may reuse the input's memory for another row.
      output_ = result.detach().contiguous();
      if (output_.is_alias_of(pass.input)) output_ = output_.clone();
    }
    if (micro_batch.training) {
      if (!options_.recompute) pass.result = std::move(result);
      passes_.push_back(std::move(pass));
    }
    return last() ? nullptr : output_.data_ptr<float>();
  }

  /// Adds the loss's gradients to `gradients()`. `output_gradient` is with respect to this micro-batch's output, rows
  /// x output_elements() (nullptr on the last stage). Returns the gradients with respect to its input, rows x
  /// input_elements(), valid until the next call (nullptr on the first stage). Releases everything kept for the
  /// micro-batch. Throws for a micro-batch without a forward pass in training, if the module detaches its output from
  /// its input, and if a gradient has left the arena (FlatModule::check_gradients).
  const float* backward(const MicroBatch& micro_batch, const float* output_gradient) {
    const auto found = find(micro_batch.index);
    if (found == passes_.end())
      throw usage_error("the backward pass of micro-batch " + std::to_string(micro_batch.index) +
                        " has no forward pass in training before it, or comes twice");
    if (found->rows != micro_batch.rows)
      throw usage_error("micro-batch " + std::to_string(micro_batch.index) + " has " +
                        std::to_string(micro_batch.rows) + " rows in the backward pass, but had " +
                        std::to_string(found->rows) + " in the forward pass");
    if (last() != (output_gradient == nullptr))
      throw usage_error(last() ? "the last stage is given gradients of an output, which it has not"
                               : "a stage with an output is given no gradients of it");
    Pass pass = std::move(*found);
    passes_.erase(found);
    input_gradient_.reset();

    const torch::AutoGradMode mode(true);
    if (options_.recompute) {
      const detail::LentGenerator generator(options_.random, options_.seed, pass.draws);
      pass.result = run(pass);
    }
    if (pass.result.requires_grad()) {
      const torch::Tensor gradient = last() ? torch::full_like(pass.result, pass.weight)
                                            : tensor_at(output_gradient, pass.rows, shapes_.output);
      pass.result.backward(gradient);
      if (!first() && pass.input.grad().defined()) {
        input_gradient_ = pass.input.grad().contiguous();
        if (!last() && input_gradient_.is_alias_of(gradient)) input_gradient_ = input_gradient_.clone();
      }
    }
    flat_.check_gradients();
    if (first()) return nullptr;
    if (!input_gradient_.defined())
      throw usage_error(
          "no gradient reaches the input of a stage: its module cuts it off, for instance by detach()");
    return input_gradient_.data_ptr<float>();
  }

  /// Returns the last stage's mean loss of the micro-batch's rows times its weight, by its latest forward pass.
  double loss(const MicroBatch& micro_batch) const {
    const auto index = static_cast<std::size_t>(micro_batch.index);
    if (micro_batch.index < 0 || index >= losses_.size() || !losses_[index])
      throw usage_error("the loss of micro-batch " + std::to_string(micro_batch.index) +
                        " is asked for, but no forward pass of a last stage has computed it");
    return *losses_[index];
  }

  /// Returns the last stage's outputs in the latest evaluation, such as scores. They are those of all its
  /// micro-batches since the one of index 0, in the order of the batch's rows. Undefined on other stages and after a
  /// training pass. Until the next training pass they take rows x (an output's elements) of memory; each call makes a
  /// copy.
  torch::Tensor scores() const { return scores_.empty() ? torch::Tensor() : torch::cat(scores_); }

  /// Returns the number of micro-batches whose backward pass is still to come.
  index_t in_flight() const noexcept { return static_cast<index_t>(passes_.size()); }
  /// Releases the micro-batches in flight: after an exception, before the next step.
  void forget() noexcept { passes_.clear(); }

  /// Returns the number of forward passes in training so far, by which the streams of draws are numbered. A run that
  /// resumes from a checkpoint sets the value from the checkpoint's stage, and so continues its draws.
  std::uint64_t draws() const noexcept { return draws_; }
  void set_draws(std::uint64_t draws) noexcept { draws_ = draws; }

 private:
  struct Pass {
    index_t index = 0, rows = 0;
    double weight = 1;
    std::uint64_t draws = 0;
    torch::Tensor input, batch_inputs, labels;  // views that own no memory
    torch::Tensor result;                       // the output or the mean loss, with its graph
  };

  static TorchStageShapes checked(TorchStageShapes shapes, const Forward& forward, const Loss& loss) {
    if (!forward) throw usage_error("a stage needs a forward function");
    if (shapes.output.empty() && !loss)
      throw usage_error("a stage needs the shape of its output or, as the last one, a loss");
    if (!shapes.output.empty() && loss)
      throw usage_error("a stage has both a loss and the shape of an output: the last stage sends none");
    for (const auto* shape : {&shapes.input, &shapes.output})
      for (const index_t extent : *shape)
        if (extent < 1) throw usage_error("a stage's shape has the extent " + std::to_string(extent));
    return shapes;
  }

  static index_t elements(const std::vector<index_t>& shape) {
    return shape.empty() ? 0 : c10::multiply_integers(shape);
  }

  // LibTorch has no read-only tensors; these are only read.
  static torch::Tensor tensor_at(const float* data, index_t rows, const std::vector<index_t>& shape) {
    std::vector<index_t> sizes{rows};
    sizes.insert(sizes.end(), shape.begin(), shape.end());
    return torch::from_blob(const_cast<float*>(data), sizes, torch::kFloat32);
  }

  std::vector<Pass>::iterator find(index_t index) {
    return std::find_if(passes_.begin(), passes_.end(),
                        [&](const Pass& pass) { return pass.index == index; });
  }

  Pass begin(const MicroBatch& micro_batch, const float* input) const {
    if (micro_batch.index < 0 || micro_batch.first < 0 || micro_batch.rows < 1 ||
        !(micro_batch.weight > 0 && micro_batch.weight <= 1))
      throw usage_error("micro-batch " + std::to_string(micro_batch.index) + " has " +
                        std::to_string(micro_batch.rows) + " rows from row " +
                        std::to_string(micro_batch.first) + " on and weighs " +
                        std::to_string(micro_batch.weight));
    if (first() != (input == nullptr))
      throw usage_error(first() ? "the first stage is given an input, but reads its own batch"
                                : "a stage behind the first is given no input");
    Pass pass;
    pass.index = micro_batch.index;
    pass.rows = micro_batch.rows;
    pass.weight = micro_batch.weight;
    pass.input = first() ? data_.inputs(micro_batch) : tensor_at(input, pass.rows, shapes_.input);
    if (!first()) pass.input.requires_grad_(micro_batch.training);
    pass.batch_inputs = forward_.reads_batch() ? data_.inputs(micro_batch) : pass.input;
    if (last()) pass.labels = data_.labels(micro_batch);
    return pass;
  }

  // Returns the output, or the last stage's mean loss.
  torch::Tensor run(const Pass& pass, torch::Tensor* scores = nullptr) const {
    const auto version = pass.input._version(), batch_version = pass.batch_inputs._version();
    torch::Tensor output = forward_(pass.input, pass.batch_inputs);
    if (pass.input._version() != version || pass.batch_inputs._version() != batch_version)
      throw usage_error("a stage's module changes its input in place, which is still needed");
    if (!output.defined() || !output.device().is_cpu() || output.scalar_type() != torch::kFloat32)
      throw usage_error("a stage's module must return a float32 tensor on the CPU");
    if (!last()) {
      const auto sizes = output.sizes();
      if (output.dim() < 1 || sizes[0] != pass.rows || sizes.slice(1) != c10::IntArrayRef(shapes_.output))
        throw usage_error("a stage's module returns " + text_of(sizes) + " for " + std::to_string(pass.rows) +
                          " rows, but each was promised to be " + text_of(shapes_.output));
      return output;
    }
    torch::Tensor mean = loss_(output, pass.labels);
    if (!mean.defined() || mean.numel() != 1)
      throw usage_error("a stage's loss must be one number, the mean over the rows");
    if (scores != nullptr) *scores = std::move(output);
    return mean;
  }

  static std::string text_of(c10::IntArrayRef sizes) {
    std::string text = "[";
    for (std::size_t d = 0; d < sizes.size(); ++d) text += (d > 0 ? ", " : "") + std::to_string(sizes[d]);
    return text + "]";
  }

  TorchStageShapes shapes_;
  Forward forward_;
  Loss loss_;
  TorchStageOptions options_;
  torch::nn::Module* module_;
  FlatModule flat_;
  index_t input_elements_, output_elements_;
  detail::TorchStageBatch data_;
  torch::Tensor output_, input_gradient_;  // of the latest pass
  std::vector<torch::Tensor> scores_;      // of the latest evaluation's micro-batches
  std::vector<Pass> passes_;
  std::vector<std::optional<double>> losses_;
  std::uint64_t draws_ = 0;
};

}  // namespace terse::interop
