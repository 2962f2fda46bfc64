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

// Like interop/libtorch.hpp this keeps to C++17 and belongs into the one unit of the program that knows LibTorch; what
// leaves that unit is `float*`.

namespace terse::interop {

/// A LibTorch module as one stage of a pipeline. Parameters and gradients lie in the flat arenas of a FlatModule, so
/// that any terse optimizer steps on them.
///
///     torch::nn::Sequential part(torch::nn::Linear(256, 128), torch::nn::ReLU());         // stage 1 of 4
///     terse::interop::TorchStage stage(part, {{256}, {128}});
///     // elsewhere, in a unit of C++20: terse::Pipeline pipeline{policy, transport, stage, options};
///     stage.batch(pictures, labels);                       // on all stages, or on those that read it
///     stage.zero_gradients();
///     pipeline.train(ids);
///     // optimizer.step(stage.parameters(), stage.gradients());
///
/// The first stage reads rows of `batch`'s inputs, all others what comes from the stage before; the last computes
/// `loss` of its output and the labels' rows. One stage may be both. Tensors are read in place: the inputs given to
/// `forward`, the gradients given to `backward`, and `batch`.
///
/// **Masks.** A module with `forward(Tensor input, Tensor batch_inputs)`, or a function of two tensors, is given the
/// micro-batch's rows of the batch's inputs as well, on any stage: for instance to derive the mask of padding, which does
/// not travel. Such a stage needs every step's `batch`. On the first stage both tensors are those rows. A `forward` whose
/// second parameter has a default is called with one tensor: give a function of two instead.
///
/// The module takes rows x input and gives rows x output, both float32 on the CPU, and treats rows alike: what
/// it does across them, as batch normalization does, is done for each micro-batch. It must not change its input in
/// place, nor what it returned earlier. Training leaves the modes of its submodules as they are (so what the user froze
/// by `eval()` stays frozen); evaluation switches all to `eval()` and back.
///
/// Several micro-batches may be in flight, in ascending order each; the same calls give the same bits. A stage belongs to
/// one thread at a time; stages in different threads don't disturb each other.
///
/// **Memory.** In flight: the module's graph and output, rows x (what autograd keeps); with `recompute` nothing but a few
/// tensors' heads. After a micro-batch's backward pass nothing of it is kept, and after an evaluation nothing but the
/// last output, or on the last stage the scores of the whole batch. The last stage gains nothing from `recompute` under
/// schedules that take its backward pass at once.
///
/// **Errors** are usage_error, told before the module runs where that can be. After an exception out of a pass, call
/// `forget` and `zero_gradients`. LibTorch's own exceptions pass through.
class TorchStage {
 public:
  using Forward = TorchForward;
  /// The mean over the rows, one number: `[](const auto& y, const auto& t) { return cross_entropy(y, t); }`. Sums would
  /// weigh micro-batches by their sizes twice.
  using Loss = std::function<torch::Tensor(const torch::Tensor& output, const torch::Tensor& labels)>;

  /// `part` is what holds a module: torch::nn::Sequential, or any std::shared_ptr or ModuleHolder to a module with
  /// `forward(Tensor)` or `forward(Tensor, Tensor)`. The last stage, and no other, has a `loss`. Moves the parameters
  /// (FlatModule). Throws usage_error for shapes and a loss that make no stage, extents below 1, and a module that is not
  /// on the CPU or not float32.
  template <class Part, class = std::enable_if_t<!std::is_base_of_v<torch::nn::Module, Part>>>
  explicit TorchStage(Part part, TorchStageShapes shapes, Loss loss = nullptr, TorchStageOptions options = {})
      : TorchStage(*part, Forward::of(part), std::move(shapes), std::move(loss), std::move(options)) {}

  /// The same with any function over `module`'s parameters. `module` must outlive this object.
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
  /// `layout().size()` elements each, see FlatModule.
  float* parameters() noexcept { return flat_.parameters(); }
  const float* parameters() const noexcept { return flat_.parameters(); }
  float* gradients() noexcept { return flat_.gradients(); }
  const float* gradients() const noexcept { return flat_.gradients(); }
  void zero_gradients() { flat_.zero_gradients(); }
  /// Sum of the gradients' squares, for clipping by the norm over all stages. One pass.
  double square() const {
    double sum = 0;
    const float* const g = gradients();
    for (index_t i = 0; i < flat_.size(); ++i) sum += static_cast<double>(g[i]) * static_cast<double>(g[i]);
    return sum;
  }

  /// Elements of an example's input and output; 0 at the pipeline's ends.
  index_t input_elements() const noexcept { return input_elements_; }
  index_t output_elements() const noexcept { return output_elements_; }
  bool first() const noexcept { return shapes_.input.empty(); }
  bool last() const noexcept { return static_cast<bool>(loss_); }

  /// The data of the next step or evaluation: rows are examples, in the order of the ids. The first stage needs the
  /// inputs, float32 or whole numbers, as does each whose forward takes two tensors, and the last the labels; what a stage
  /// doesn't need is ignored and may be undefined. Keeps the tensors and copies nothing, so leave them alone until the next
  /// call. Throws for a missing or empty tensor, another floating-point type, another device, and inputs and labels of
  /// different numbers of rows.
  void batch(const torch::Tensor& inputs, const torch::Tensor& labels) { data_.set(inputs, labels); }

  /// Runs the module over the micro-batch's rows: of `batch` on the first stage, whose `input` is nullptr, of `input`,
  /// rows x input_elements(), on others. Returns rows x output_elements(), valid until the next call of `forward`; the
  /// last stage returns nullptr and knows the `loss`. In training `input` must stay in place until this micro-batch's
  /// backward pass. In evaluation autograd is off, and nothing is kept but what is returned. Throws where a batch is
  /// missing or hasn't the rows that the micro-batch's weight tells of, for a micro-batch that is in flight already, an
  /// output other than promised, an input changed in place, and a loss that isn't one number. Copies outputs that aren't
  /// contiguous, or are views of the input; nothing else.
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
      // A pipeline uses the input's place for the next micro-batch. One number counts as one row.
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
      // A pipeline may use the input's place for another row once this is an evaluation's.
      output_ = result.detach().contiguous();
      if (output_.is_alias_of(pass.input)) output_ = output_.clone();
    }
    if (micro_batch.training) {
      if (!options_.recompute) pass.result = std::move(result);
      passes_.push_back(std::move(pass));
    }
    return last() ? nullptr : output_.data_ptr<float>();
  }

  /// Adds the loss's gradients to `gradients()`, given those with respect to this micro-batch's output,
  /// rows x output_elements() (nullptr on the last stage), and returns those with respect to its input,
  /// rows x input_elements(), valid until the next call (nullptr on the first stage). Lets go of all that was kept for
  /// the micro-batch. Throws for a micro-batch without a forward pass in training, where the module cuts its output off
  /// from its input, and where a gradient has left the arena (FlatModule::check_gradients).
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

  /// The last stage's mean loss of the micro-batch's rows times its weight, by its latest forward pass.
  double loss(const MicroBatch& micro_batch) const {
    const auto index = static_cast<std::size_t>(micro_batch.index);
    if (micro_batch.index < 0 || index >= losses_.size() || !losses_[index])
      throw usage_error("the loss of micro-batch " + std::to_string(micro_batch.index) +
                        " is asked for, but no forward pass of a last stage has computed it");
    return *losses_[index];
  }

  /// The last stage's outputs in the latest evaluation, such as scores: those of all its micro-batches since the one of
  /// index 0, in the order of the batch's rows. Undefined on other stages and once a training pass follows. They take
  /// rows x (an output's elements) until then, and each call makes a copy.
  torch::Tensor scores() const { return scores_.empty() ? torch::Tensor() : torch::cat(scores_); }

  /// Micro-batches whose backward pass is still to come.
  index_t in_flight() const noexcept { return static_cast<index_t>(passes_.size()); }
  /// Lets go of the micro-batches in flight: after an exception, before the next step.
  void forget() noexcept { passes_.clear(); }

  /// Forward passes in training so far, which number the streams of draws. A run that goes on from a checkpoint sets
  /// what the checkpoint's stage had, and draws what it would have drawn.
  std::uint64_t draws() const noexcept { return draws_; }
  void set_draws(std::uint64_t draws) noexcept { draws_ = draws; }

 private:
  struct Pass {
    index_t index = 0, rows = 0;
    double weight = 1;
    std::uint64_t draws = 0;
    torch::Tensor input, batch_inputs, labels;  // views, nobody's memory
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

  // The output, or the last stage's mean loss.
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
