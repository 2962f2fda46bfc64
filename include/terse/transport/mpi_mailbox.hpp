// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <boost/mpi/communicator.hpp>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "terse/transport/mailbox.hpp"

namespace terse {

/// A Mailbox between processes, see BasicMpi::mailbox: a window of MPI's in which each rank has its version and packet,
/// under MPI's own locks: exclusive to publish, shared to fetch. Where a network or a shared memory serves windows by
/// itself nobody is disturbed; MPI libraries that do it in software serve a fetch when its target next calls MPI.
///
/// Its end is collective: a rank waits there for the others, who may still fetch from it, up to the deadline.
/// Afterwards, or while an exception is on its way, it leaves the window to MPI; `close()` throws peer_error instead.
/// A rank that dies within a lock is MPI's affair. What MPI calls an error is thrown as terse::error.
class MpiMailbox {
 public:
  /// Collective over `communicator`, which should be the mailbox's own. Messages have up to `chunk_bytes` bytes.
  MpiMailbox(boost::mpi::communicator communicator, index_t bytes, index_t chunk_bytes,
             std::chrono::milliseconds deadline)
      : communicator_(std::move(communicator)),
        bytes_(bytes),
        chunk_bytes_(chunk_bytes),
        deadline_(deadline) {
    MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
    check("MPI_Win_allocate", MPI_Win_allocate(static_cast<MPI_Aint>(header) + static_cast<MPI_Aint>(bytes),
                                               1, MPI_INFO_NULL, communicator_, &slot_, &window_));
    MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN);
    constexpr std::uint64_t none = 0;
    lock(MPI_LOCK_EXCLUSIVE, rank());
    std::memcpy(slot_, &none, sizeof none);
    unlock(rank());
    // Nobody reads what has not been cleared.
    wait_for_all();
  }
  MpiMailbox(MpiMailbox&& other) noexcept
      : communicator_(std::move(other.communicator_)),
        bytes_(other.bytes_),
        chunk_bytes_(other.chunk_bytes_),
        deadline_(other.deadline_),
        slot_(other.slot_),
        window_(std::exchange(other.window_, MPI_WIN_NULL)),
        version_(other.version_) {}
  MpiMailbox& operator=(MpiMailbox&& other) noexcept {
    std::swap(communicator_, other.communicator_);
    std::swap(bytes_, other.bytes_);
    std::swap(chunk_bytes_, other.chunk_bytes_);
    std::swap(deadline_, other.deadline_);
    std::swap(slot_, other.slot_);
    std::swap(window_, other.window_);
    std::swap(version_, other.version_);
    return *this;
  }
  ~MpiMailbox() {
    if (std::uncaught_exceptions() > exceptions_) return;
    try {
      close();
    } catch (const error&) {
      // The window stays, since a rank that is late may still read it.
    }
  }

  void publish(std::span<const std::byte> packet) {
    detail::check_packet(packet.size(), bytes_, rank());
    lock(MPI_LOCK_EXCLUSIVE, rank());
    ++version_;
    std::memcpy(slot_, &version_, sizeof version_);
    if (!packet.empty()) std::memcpy(slot_ + header, packet.data(), packet.size());
    unlock(rank());
  }
  std::uint64_t fetch(int peer, std::span<std::byte> place) {
    detail::check_publisher(peer, communicator_.size(), rank());
    detail::check_packet(place.size(), bytes_, rank());
    std::uint64_t version = 0;
    lock(MPI_LOCK_SHARED, peer);
    get(peer, 0, std::as_writable_bytes(std::span(&version, 1)));
    check("MPI_Win_flush", MPI_Win_flush(peer, window_));
    for (index_t at = 0; version > 0 && at < bytes_; at += chunk_bytes_)
      get(peer, header + at,
          place.subspan(static_cast<std::size_t>(at),
                        static_cast<std::size_t>(std::min(chunk_bytes_, bytes_ - at))));
    unlock(peer);
    return version;
  }

  /// Waits until all ranks are here and frees the window; nothing else may follow. Throws peer_error at the deadline.
  void close() {
    if (window_ == MPI_WIN_NULL) return;
    MPI_Win window = std::exchange(window_, MPI_WIN_NULL);
    wait_for_all();
    // Who passes this, too, knows that nobody has given up at the first, and that all are about to free it.
    wait_for_all();
    check("MPI_Win_free", MPI_Win_free(&window));
  }

 private:
  static constexpr index_t header = 64;  // the version, and a packet that begins on a cache line

  int rank() const { return communicator_.rank(); }
  void check(const char* call, int result) const {
    if (result == MPI_SUCCESS) return;
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(result, text.data(), &length);
    throw error(std::string(call) + " failed: " + text.data(), rank());
  }
  void lock(int how, int peer) { check("MPI_Win_lock", MPI_Win_lock(how, peer, 0, window_)); }
  void unlock(int peer) { check("MPI_Win_unlock", MPI_Win_unlock(peer, window_)); }
  void get(int peer, index_t from, std::span<std::byte> place) {
    const auto count = static_cast<int>(place.size());
    check("MPI_Get", MPI_Get(place.data(), count, MPI_BYTE, peer, static_cast<MPI_Aint>(from), count,
                             MPI_BYTE, window_));
  }
  void wait_for_all() {
    const auto until = detail::time_after(deadline_);
    // MPI goes on with a barrier that is given up: then this and the communicator stay.
    auto request = std::make_unique<MPI_Request>(MPI_REQUEST_NULL);
    auto communicator = std::make_unique<boost::mpi::communicator>(communicator_);
    check("MPI_Ibarrier", MPI_Ibarrier(communicator_, request.get()));
    for (int all = 0; all == 0; std::this_thread::yield()) {
      check("MPI_Test", MPI_Test(request.get(), &all, MPI_STATUS_IGNORE));
      if (all != 0 || std::chrono::steady_clock::now() < until) continue;
      (void)request.release();
      (void)communicator.release();
      throw peer_error("waited " + std::to_string(deadline_.count()) + " ms for all ranks at a mailbox", -1,
                       rank());
    }
  }

  boost::mpi::communicator communicator_;
  index_t bytes_, chunk_bytes_;
  std::chrono::milliseconds deadline_;
  std::byte* slot_ = nullptr;
  MPI_Win window_ = MPI_WIN_NULL;
  std::uint64_t version_ = 0;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace terse
