// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <boost/mpi/communicator.hpp>
#include <boost/mpi/exception.hpp>
#include <chrono>
#include <utility>

namespace terse::detail {

/// Signs of life for all channels of a transport over MPI: messages without bytes on a communicator of all its ranks, which a
/// rank that is at work sends to all others, and which those that wait for long take. A wait goes on after a sign of any rank,
/// since a rank knows of its own waits alone: the one that it waits for may wait for the one that works.
class MpiSigns {
 public:
  using Clock = std::chrono::steady_clock;

  MpiSigns(boost::mpi::communicator everyone, std::chrono::milliseconds deadline)
      : everyone_(std::move(everyone)), deadline_(deadline) {}
  MpiSigns(const MpiSigns&) = delete;
  MpiSigns& operator=(const MpiSigns&) = delete;
  ~MpiSigns() {
    // A sign may still be on its way: MPI would give the communicator's number to another one, which would get it.
    if (given_.load() != Clock::time_point()) (void)new boost::mpi::communicator(everyone_);
  }

  /// Sends one, four times in a deadline at most: ranks that never wait for long take none of them.
  void give() {
    const Clock::time_point now = Clock::now();
    if (now - given_.load() < deadline_ / 4) return;
    given_ = now;
    for (int peer = 0; peer < everyone_.size(); ++peer) {
      if (peer == everyone_.rank()) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      check("MPI_Isend", MPI_Isend(nullptr, 0, MPI_BYTE, peer, tag, everyone_, &request));
      check("MPI_Request_free", MPI_Request_free(&request));
    }
  }
  /// Takes what has come, and returns when something last had.
  Clock::time_point last() {
    for (;;) {
      int found = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      check("MPI_Improbe", MPI_Improbe(MPI_ANY_SOURCE, tag, everyone_, &found, &message, MPI_STATUS_IGNORE));
      if (found == 0) return heard_;
      check("MPI_Mrecv", MPI_Mrecv(nullptr, 0, MPI_BYTE, &message, MPI_STATUS_IGNORE));
      heard_ = Clock::now();
    }
  }

 private:
  static constexpr int tag = 1;  // batches have 0

  static void check(const char* call, int result) {
    if (result != MPI_SUCCESS) throw boost::mpi::exception(call, result);
  }

  boost::mpi::communicator everyone_;
  std::chrono::milliseconds deadline_;
  std::atomic<Clock::time_point> given_{}, heard_{};  // channels may be used by threads of their own
};

}  // namespace terse::detail
