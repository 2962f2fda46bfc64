// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <boost/mpi/communicator.hpp>
#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "terse/transport/mailbox.hpp"
#include "terse/transport/watchdog.hpp"

namespace terse::detail {

/// A Mailbox between processes, see BasicMpi::mailbox: an MPI window in which each rank has its version and packet, under
/// MPI's own locks: exclusive to publish, shared to fetch. If the network or shared memory implements windows, a fetch
/// disturbs no rank. If an MPI library implements them in software, a fetch ends only when its target next calls MPI.
///
/// Its destruction is collective: a rank waits there for the others, which may still fetch from it, up to the deadline.
/// After the deadline, or during an exception, it leaves the window to MPI; `close()` throws peer_error instead. If a
/// rank dies while it has a lock, MPI must handle that. Errors of MPI are thrown as terse::error.
template <class Channel>
class MpiMailbox {
 public:
  /// Collective over `channel`, which belongs to the mailbox, and whose communicator is `communicator`.
  MpiMailbox(Channel channel, const boost::mpi::communicator& communicator, index_t bytes, Deadline deadline)
      : channel_(std::move(channel)), bytes_(bytes), deadline_(deadline) {
    {
      const Watchdog watchdog("MPI_Win_allocate", deadline_, channel_.rank());
      check("MPI_Win_allocate", MPI_Win_allocate(static_cast<MPI_Aint>(header) + static_cast<MPI_Aint>(bytes),
                                                 1, MPI_INFO_NULL, communicator, &slot_, &window_));
    }
    MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN);
    constexpr std::uint64_t none = 0;
    lock(MPI_LOCK_EXCLUSIVE, channel_.rank());
    std::memcpy(slot_, &none, sizeof none);
    unlock(channel_.rank());
    // A version must be cleared before any rank reads it.
    barrier(channel_, Phase::setup);
  }
  MpiMailbox(MpiMailbox&& other) noexcept
      : channel_(std::move(other.channel_)),
        bytes_(other.bytes_),
        deadline_(other.deadline_),
        slot_(other.slot_),
        window_(std::exchange(other.window_, MPI_WIN_NULL)),
        version_(other.version_) {}
  MpiMailbox& operator=(MpiMailbox&& other) noexcept {
    std::swap(channel_, other.channel_);
    std::swap(bytes_, other.bytes_);
    std::swap(deadline_, other.deadline_);
    std::swap(slot_, other.slot_);
    std::swap(window_, other.window_);
    std::swap(version_, other.version_);
    return *this;
  }
  ~MpiMailbox() {
    try {
      if (std::uncaught_exceptions() <= exceptions_)
        close();
      else if (window_ != MPI_WIN_NULL)
        (void)new Channel(std::move(channel_));  // others may still wait there for this rank
    } catch (const std::exception&) {
      // The window is kept, since a late rank may still read it.
    }
  }

  void publish(std::span<const std::byte> packet) {
    const int rank = channel_.rank();
    check_packet(packet.size(), bytes_, rank);
    lock(MPI_LOCK_EXCLUSIVE, rank);
    ++version_;
    std::memcpy(slot_, &version_, sizeof version_);
    if (!packet.empty()) std::memcpy(slot_ + header, packet.data(), packet.size());
    unlock(rank);
  }
  std::uint64_t fetch(int peer, std::span<std::byte> place) {
    check_publisher(peer, channel_.size(), channel_.rank());
    check_packet(place.size(), bytes_, channel_.rank());
    std::uint64_t version = 0;
    lock(MPI_LOCK_SHARED, peer);
    get(peer, 0, std::as_writable_bytes(std::span(&version, 1)));
    check("MPI_Win_flush", MPI_Win_flush(peer, window_));
    for (index_t at = 0; version > 0 && at < bytes_; at += Channel::chunk_bytes)
      get(peer, header + at,
          place.subspan(static_cast<std::size_t>(at),
                        static_cast<std::size_t>(std::min(Channel::chunk_bytes, bytes_ - at))));
    unlock(peer);
    return version;
  }

  /// Waits for all ranks and frees the window; no other call may follow. Throws peer_error at the deadline.
  void close() {
    if (window_ == MPI_WIN_NULL) return;
    MPI_Win window = std::exchange(window_, MPI_WIN_NULL);
    barrier(channel_, Phase::finalize);
    // A rank that also passes this barrier knows that no rank has given up at the first one, and that all are about to free
    // the window.
    barrier(channel_, Phase::finalize);
    const Watchdog watchdog("MPI_Win_free", deadline_, channel_.rank());
    check("MPI_Win_free", MPI_Win_free(&window));
  }

 private:
  static constexpr index_t header = 64;  // for the version; the packet then begins on a cache line

  void check(const char* call, int result) const {
    if (result == MPI_SUCCESS) return;
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(result, text.data(), &length);
    throw error(std::string(call) + " failed: " + text.data(), channel_.rank());
  }
  void lock(int how, int peer) { check("MPI_Win_lock", MPI_Win_lock(how, peer, 0, window_)); }
  void unlock(int peer) { check("MPI_Win_unlock", MPI_Win_unlock(peer, window_)); }
  void get(int peer, index_t from, std::span<std::byte> place) {
    const auto count = static_cast<int>(place.size());
    check("MPI_Get", MPI_Get(place.data(), count, MPI_BYTE, peer, static_cast<MPI_Aint>(from), count,
                             MPI_BYTE, window_));
  }

  Channel channel_;
  index_t bytes_;
  std::chrono::milliseconds deadline_;
  std::byte* slot_ = nullptr;
  MPI_Win window_ = MPI_WIN_NULL;
  std::uint64_t version_ = 0;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace terse::detail
