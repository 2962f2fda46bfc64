// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <utility>

#include "terse/device/memory.hpp"
#include "terse/executor/concept.hpp"

namespace terse::executor {

/// An executor E on a stream for communication, separate from the stream on which the program computes. With it an
/// optimizer's messages overlap with the backward pass:
///
///     terse::Optimizer optimizer{recipe, rank.transport(), layout, {}, rank.overlapped(compute)};
///     optimizer.begin(parameters, gradients);
///     ... for each segment, the last one first: enqueue its gradient on `compute`, then   optimizer.ready(segment);
///     optimizer.step(parameters, gradients);
///
/// `ready` records an event on the program's stream, for which the slice's passes and messages wait on E's stream. Later
/// gradients don't wait for them. `step` makes the program's stream wait for the updated parameters. The bits are those
/// of a step without overlap with the same slices; the default slices are a host's, 16 MiB. The program's own work on E
/// or on E's transport is not ordered: call `follow` before it and `lead` after it.
///
/// Copies share one event, so only one thread at a time may use them. Costs an event and a wait per call of `ready`.
template <class E>
class overlapped : public E {
 public:
  /// Takes a function that returns the stream on which the program computes at the time of each call, such as a
  /// framework's current stream. The stream must be of E's device.
  overlapped(E executor, std::function<cudaStream_t()> program)
      : E(std::move(executor)), shared_(std::make_shared<Shared>(std::move(program))) {}
  overlapped(E executor, cudaStream_t program)
      : overlapped(std::move(executor), [program] { return program; }) {}

  /// Makes later work of this executor wait for the program's previous work.
  void follow() const { join(shared_->program(), E::stream); }
  /// Makes later work of the program wait for this executor's previous work.
  void lead() const { join(E::stream, shared_->program()); }

 private:
  struct Shared {
    explicit Shared(std::function<cudaStream_t()> program_) : program(std::move(program_)) {}
    std::function<cudaStream_t()> program;
    detail::StreamEvent event;
  };
  void join(cudaStream_t first, cudaStream_t then) const {
    shared_->event.mark(first);
    shared_->event.hold(then);
  }
  std::shared_ptr<Shared> shared_;
};

}  // namespace terse::executor
