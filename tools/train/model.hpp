// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device.hpp"
#include "terse/core/layout.hpp"

namespace train {

/// How good a model is on some pictures.
struct Evaluation {
  double loss = 0;      ///< mean cross entropy
  double accuracy = 0;  ///< share of pictures classified right, from 0 to 1
};

/// A classifier of 28 x 28 pictures into 10 classes, written with LibTorch, which stays behind this
/// interface. Parameters and gradients are flat arenas under one layout, so that any terse optimizer can step
/// on them.
///
/// Each rank has its own model. Models in different threads don't disturb each other; one model belongs to
/// one thread at a time. The same kind, seed and batches give the same bits, if every thread calls
/// `pin_threads` first, on the same machine and libraries. (On a GPU cuBLAS has its own say about that, see
/// docs/libtorch.md.)
class Model {
 public:
  /// `kind` is "mlp" (784-256-128-10, 235,146 parameters) or "cnn" (convolutions of 16 channels, 5 x 5, and
  /// 32 channels, 3 x 3, both with stride 2, then 1568-64-10; 106,122 parameters); ReLU between. Weights and
  /// biases are uniform in +-1/sqrt(inputs of the layer), drawn from a generator of this model's own. Throws
  /// std::invalid_argument for another kind. On `Device::cuda` the model is on the GPU that `use_gpu` has chosen for
  /// this thread, and begins with the same values.
  Model(const std::string& kind, std::uint64_t seed, Device device = Device::cpu);
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const terse::Layout& layout() const;
  /// `layout().size()` elements in the device's memory; valid until the model dies.
  float* parameters();
  /// Like `parameters()`.
  float* gradients();
  void zero_gradients();
  /// What both are in the order of: a cudaStream_t, the thread's own from `use_gpu`; nothing on the CPU.
  void* stream() const;

  /// Between the parameters and host memory of `layout().size()` elements, wherever the model is.
  void read_parameters(float* to);
  void write_parameters(const float* from);

  /// One forward and backward pass over `batch` pictures (batch x 784) and their labels; returns the mean
  /// loss and overwrites the gradients with those of `weight` times it. Reads the pictures in place.
  double train_batch(const float* images, const std::int64_t* labels, std::int64_t batch, double weight = 1);

  /// Mean loss and accuracy over `count` pictures, 250 at a time. Leaves the gradients alone.
  Evaluation evaluate(const float* images, const std::int64_t* labels, std::int64_t count);

  /// One thread for LibTorch and one for BLAS. Call it in every thread that uses a model, before its first
  /// model: OpenMP keeps its number of threads for each calling thread on its own. LibTorch's call doesn't
  /// reach OpenBLAS, whose results change in the last bits with its number of threads, so OpenBLAS gets a
  /// call of its own where it is loaded. With another BLAS, set its environment variable before the program
  /// starts (OMP_NUM_THREADS=1, MKL_NUM_THREADS=1).
  static void pin_threads();

  /// The name and build of the BLAS in use as far as it is known, such as "OpenBLAS 0.3.21 ...", otherwise
  /// empty: then training may be many times slower.
  static std::string blas();

  /// Why no model can be on this device; empty where one can. LibTorch's own words where it has CUDA and no GPU.
  static std::string why_not(Device device);

  /// Makes GPU number `index`, modulo those there are, this thread's, with a CUDA stream of the thread's own.
  static void use_gpu(int index);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace train
