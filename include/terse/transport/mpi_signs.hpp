// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <boost/mpi/communicator.hpp>
#include <boost/mpi/exception.hpp>
#include <chrono>
#include <utility>

namespace terse::detail {

/// Signs of life for all channels of a transport over MPI: empty messages on a communicator of all its ranks. A busy rank
/// sends them to all others, and ranks that have waited for long receive them. A sign from any rank extends a wait, since
/// a rank knows only its own waits: the rank for which it waits may itself wait for the busy one.
class MpiSigns {
 public:
  using Clock = std::chrono::steady_clock;

  MpiSigns(boost::mpi::communicator everyone, std::chrono::milliseconds deadline)
      : everyone_(std::move(everyone)), deadline_(deadline) {}
  MpiSigns(const MpiSigns&) = delete;
  MpiSigns& operator=(const MpiSigns&) = delete;
  ~MpiSigns() {
    // A sign may still be in flight: MPI would give the communicator's number to another one, which would get that
    // sign.
    if (given_.load() != Clock::time_point()) (void)new boost::mpi::communicator(everyone_);
  }

  /// Sends a sign, at most four times per deadline, since ranks that never wait for long receive none of them.
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
  /// Receives the signs that have arrived, and returns the time of the last one.
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
  static constexpr int tag = 1;  // batches use 0

  static void check(const char* call, int result) {
    if (result != MPI_SUCCESS) throw boost::mpi::exception(call, result);
  }

  boost::mpi::communicator everyone_;
  std::chrono::milliseconds deadline_;
  std::atomic<Clock::time_point> given_{}, heard_{};  // channels may be used by different threads
};

}  // namespace terse::detail
