// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "terse/executor/concept.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/mpi.hpp"

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace terse {

/// Mpi for messages in an executor's memory, if the MPI library reads and writes device memory itself. It avoids the
/// copies of ThroughHost<Mpi, E>. The host still waits for the executor's stream before each batch, and for MPI after
/// it.
template <Executor E>
class CudaAwareMpi {
 public:
  using memory = typename E::memory;
  using Ticket = Mpi::Ticket;

  /// Checks whether this MPI library reports support of device memory; Open MPI does, through mpi-ext.h.
  static bool supported() {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
    return MPIX_Query_cuda_support() == 1;
#else
    return false;
#endif
  }

  /// Throws usage_error if the library does not report support of device memory.
  CudaAwareMpi(Mpi inner, E executor) : inner_(std::make_unique<Mpi>(std::move(inner))), executor_(executor) {
    if (!supported())
      throw usage_error(
          "this MPI library does not report that it reads device memory; use ThroughHost<Mpi, "
          "executor::cuda>",
          inner_->rank());
  }

  int rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }

  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    if (!sends.empty() || !receives.empty()) executor_.synchronize();
    return inner_->exchange(sends, receives, phase);
  }
  /// Gathers host bytes, for construction and agreement.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase phase) {
    gather_(*inner_, mine, all, phase);
  }
  void here() { inner_->here(); }
  CudaAwareMpi split(int color, int key) { return CudaAwareMpi(inner_->split(color, key), executor_); }

 private:
  std::unique_ptr<Mpi> inner_;  // tickets point to it
  E executor_;
  detail::HostGather gather_;
};

}  // namespace terse
