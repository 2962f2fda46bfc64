// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "data.hpp"
#include "terse/core/layout.hpp"
#include "terse/pipeline/micro_batch.hpp"

namespace pipeline {

/// What a model is and which part of it this is.
struct ModelOptions {
  Task task = Task::pictures;
  int stage = 0;
  int stages = 4;              ///< 1, 2 or 4
  std::uint64_t seed = 1;      ///< of the parameters, which don't depend on the number of stages
  bool recompute = false;      ///< see terse::interop::TorchStage
  Pretrained pretrained = {};  ///< of `glosses`, which needs it
};

/// Right answers of the last stage.
struct Score {
  std::int64_t right = 0;
  std::int64_t asked = 0;
};

/// One stage of a model written with LibTorch, which stays behind this interface: a pipeline runs it, and any terse
/// optimizer steps on its flat arenas. Neither model draws random numbers in its passes.
///
///     pictures   784-256-128-128-10 with ReLU between, cut at the widths 256, 128, 128 (in two: 128); 251,658 parameters
///     text       a transformer of 4 blocks of width 64 and 4 heads that predicts the next of 96 symbols at each of 64
///                characters; every cut is at 64 x 64 elements. Symbols and places are embedded on the first stage, and
///                the last has the head; 216,544 parameters
///     glosses    a pretrained BERT of 6 layers of width 384 with a classifier, see ../bert/bert.hpp; 4 stages have 1, 2, 2
///                and 1 layers. The table of word pieces is frozen, and the classifier learns ten times as fast as the rest
///
/// Cross entropy in nats, the mean over examples or characters.
///
/// A model belongs to one thread at a time; stages in different threads don't disturb each other. For the same bits call
/// train::Model::pin_threads (../../tools/train/model.hpp) in each thread first.
class Model {
 public:
  /// Throws std::invalid_argument for another number of stages, or a stage that isn't one of them.
  explicit Model(const ModelOptions& options);
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  // What a pipeline asks of a stage, see terse::interop::TorchStage, which throws the errors.
  terse::index_t input_elements() const;
  terse::index_t output_elements() const;
  const float* forward(const terse::MicroBatch& micro_batch, const float* input);
  const float* backward(const terse::MicroBatch& micro_batch, const float* output_gradient);
  double loss(const terse::MicroBatch& micro_batch) const;

  /// This stage's parameters; names are the whole model's.
  const terse::Layout& layout() const;
  /// `layout().size()` elements each, valid until the model dies.
  float* parameters();
  float* gradients();
  void zero_gradients();
  /// Sum of the gradients' squares.
  double square() const;
  /// Takes the values of this stage's parameters out of an arena that holds them all, such as a model's of one stage.
  /// Throws std::invalid_argument naming the parameter that isn't there.
  void take(const terse::Layout& layout, const float* parameters);

  /// The next step's or evaluation's examples: those numbered `ids`, `rows` of them. Copies what this stage reads, the
  /// inputs on the first and the targets on the last. Throws std::out_of_range for a number that there isn't.
  void set_batch(const Examples& examples, const std::uint64_t* ids, std::int64_t rows);
  /// Of the latest evaluation, whose batch is still set; the last stage's alone.
  Score score() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace pipeline
