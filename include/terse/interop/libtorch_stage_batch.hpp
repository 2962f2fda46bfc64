// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <string>

#include <torch/torch.h>

#include "terse/core/error.hpp"
#include "terse/core/layout.hpp"
#include "terse/pipeline/micro_batch.hpp"

// Compiles as C++17, like all code that includes LibTorch.

namespace terse::detail {

/// The part of a step's data that a stage reads: inputs on the first stage and on stages whose forward takes two
/// tensors, labels on the last stage. Shares the tensors.
class TorchStageBatch {
 public:
  TorchStageBatch(bool reads_inputs, bool reads_labels)
      : reads_inputs_(reads_inputs), reads_labels_(reads_labels) {}

  /// Sets the data, see TorchStage::batch.
  void set(const torch::Tensor& inputs, const torch::Tensor& labels) {
    if (reads_inputs_) {
      check_rows(inputs, "inputs");
      if (inputs.is_complex() || (inputs.is_floating_point() && inputs.scalar_type() != torch::kFloat32))
        throw usage_error(std::string("a stage's inputs are ") + c10::toString(inputs.scalar_type()) +
                          ", but must be float32 or whole numbers; convert them with to(torch::kFloat32)");
    }
    if (reads_labels_) check_rows(labels, "labels");
    if (reads_inputs_ && reads_labels_ && inputs.size(0) != labels.size(0))
      throw usage_error("a batch has " + std::to_string(inputs.size(0)) + " rows of inputs, but " +
                        std::to_string(labels.size(0)) + " of labels");
    inputs_ = reads_inputs_ ? inputs.detach() : torch::Tensor();
    labels_ = reads_labels_ ? labels.detach() : torch::Tensor();
  }
  /// Returns the rows of a micro-batch, in place. Throws usage_error if the batch is missing or has other rows than
  /// the pipeline.
  torch::Tensor inputs(const MicroBatch& micro_batch) const {
    return rows_of(inputs_, micro_batch, "inputs");
  }
  torch::Tensor labels(const MicroBatch& micro_batch) const {
    return rows_of(labels_, micro_batch, "labels");
  }

 private:
  static void check_rows(const torch::Tensor& tensor, const char* what) {
    if (!tensor.defined() || tensor.dim() < 1 || tensor.size(0) < 1)
      throw usage_error(std::string("a batch without ") + what + " is given to the stage that reads them");
    if (!tensor.device().is_cpu())
      throw usage_error(std::string("a batch's ") + what + " lie on " + tensor.device().str() +
                        ", but stages run on the CPU");
  }
  static torch::Tensor rows_of(const torch::Tensor& batch, const MicroBatch& micro_batch, const char* what) {
    if (!batch.defined())
      throw usage_error(
          std::string("a stage that reads ") + what +
          " runs before its first batch(...): each stage that reads them needs every step's batch");
    const index_t rows = std::llround(static_cast<double>(micro_batch.rows) / micro_batch.weight);
    if (batch.size(0) != rows || micro_batch.first + micro_batch.rows > rows)
      throw usage_error(std::string("the stage's batch has ") + std::to_string(batch.size(0)) + " rows of " +
                        what + ", but the pipeline runs " + std::to_string(rows) + " examples");
    return batch.narrow(0, micro_batch.first, micro_batch.rows);
  }

  bool reads_inputs_, reads_labels_;
  torch::Tensor inputs_, labels_;
};

}  // namespace terse::detail
