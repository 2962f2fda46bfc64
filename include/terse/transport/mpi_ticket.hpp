// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <boost/mpi/communicator.hpp>
#include <boost/mpi/exception.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/transport/call.hpp"
#include "terse/transport/concept.hpp"
#include "terse/transport/deadline.hpp"

namespace terse::detail {

inline void check_mpi(const char* call, int result) {
  if (result != MPI_SUCCESS) throw boost::mpi::exception(call, result);
}

/// State of a batch in flight; recycled, so that steady traffic allocates nothing.
struct MpiBatch {
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  Phase phase = Phase::setup;
  bool used = false;
};

/// The ticket of an MpiBatch of End, a BasicMpi.
template <class End>
class MpiTicket {
 public:
  MpiTicket(MpiTicket&& other) noexcept
      : end_(std::exchange(other.end_, nullptr)), batch_(std::exchange(other.batch_, nullptr)) {}
  MpiTicket& operator=(MpiTicket&& other) noexcept {
    std::swap(end_, other.end_);
    std::swap(batch_, other.batch_);
    return *this;
  }
  ~MpiTicket() {
    if (batch_ != nullptr) abandon();
  }

  bool ready() {
    if (batch_ == nullptr) return true;
    int all = 0;
    const int result = MPI_Testall(static_cast<int>(batch_->requests.size()), batch_->requests.data(), &all,
                                   MPI_STATUSES_IGNORE);
    if (result == MPI_ERR_IN_STATUS || result == MPI_ERR_TRUNCATE)
      throw peer_error("MPI reports a message that has failed in " +
                           place_of(batch_->phase, Call::current()) +
                           ", as one does that is longer than this rank expects; " + same_calls,
                       -1, end_->rank());
    check_mpi("MPI_Testall", result);
    if (all == 0) return false;
    batch_->used = false;
    batch_ = nullptr;
    return true;
  }
  /// Returns the first peer whose message has not arrived or not left; -1 if there is none, or in a collective.
  int awaited() { return batch_ == nullptr ? -1 : missing().value_or(-1); }
  void wait() {
    if (batch_ != nullptr) wait(end_->deadline_);
  }
  void wait(Deadline deadline) {
    if (batch_ == nullptr) return;
    deadline = time_left(deadline);
    auto until = time_after(deadline);
    for (int polls = 0; !ready(); ++polls) {
      if (polls < 100) continue;
      // Ranks may outnumber cores, and the kernel moves their messages: a waiting rank sleeps for longer and longer.
      if (polls < 1000)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(std::min(polls / 100, 100)));
      const bool over = std::chrono::steady_clock::now() > until;
      if (end_->signs_ && (over || polls % 256 == 0))
        until = std::max(until, end_->signs_->last() + std::chrono::milliseconds(deadline));
      if (over && std::chrono::steady_clock::now() > until) blame(deadline);
    }
  }

 private:
  friend End;
  MpiTicket(End* end, MpiBatch* batch) : end_(end), batch_(batch) {}

  /// Returns the peer of the first request that is not done; -1 is a collective's.
  std::optional<int> missing() {
    for (std::size_t k = 0; k < batch_->requests.size(); ++k) {
      int done = 0;
      check_mpi("MPI_Request_get_status",
                MPI_Request_get_status(batch_->requests[k], &done, MPI_STATUS_IGNORE));
      if (done == 0) return batch_->peers[k];
    }
    return std::nullopt;
  }
  void blame(Deadline deadline) {
    const std::optional<int> late = missing();
    if (!late) return;  // all arrived at the last moment
    const int peer = *late;
    const std::string whom = peer < 0 ? "one or more of " + std::to_string(end_->size()) + " ranks"
                                      : "rank " + std::to_string(peer);
    throw peer_error("waited " + std::to_string(deadline.count()) + " ms for " + whom + " in " +
                         place_of(batch_->phase, Call::current()) + ": late, or in another call; " +
                         same_calls,
                     peer, end_->rank());
  }
  /// Abandons the batch and cancels what can be cancelled; MPI may still use the buffers. The communicator is kept: MPI
  /// would give its number to another one, which would get messages that peers may still send to this one.
  void abandon() noexcept {
    (void)new boost::mpi::communicator(end_->communicator_);
    bool whole = true;
    for (std::size_t k = 0; k < batch_->requests.size(); ++k)
      if (MPI_Request& request = batch_->requests[k]; request != MPI_REQUEST_NULL) {
        // Collectives can be neither cancelled nor freed.
        if (batch_->peers[k] < 0) {
          whole = false;
          continue;
        }
        MPI_Cancel(&request);
        MPI_Request_free(&request);
      }
    if (whole) batch_->used = false;
  }

  End* end_;
  MpiBatch* batch_;
};

}  // namespace terse::detail
