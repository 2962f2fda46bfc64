// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <boost/mpi/communicator.hpp>
#include <boost/mpi/environment.hpp>
#include <boost/mpi/exception.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "terse/core/view.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/call.hpp"
#include "terse/transport/mpi_mailbox.hpp"
#include "terse/transport/mpi_signs.hpp"
#include "terse/transport/mpi_ticket.hpp"
#include "terse/transport/watchdog.hpp"

namespace terse {

/// A transport whose ranks are processes of an MPI job, over Boost.MPI. Messages of any size; those longer than
/// `chunk_bytes` are sent in chunks, since MPI counts with 32 bits. Boost.MPI owns the environment and the
/// communicators; sends and receives are raw MPI, because a boost::mpi::request allocates each time.
///
/// A wait that takes longer than the deadline throws peer_error, which names the first missing peer. MPI can't recover
/// from that, so let `Mpi::run` end the job. Deadlines also hold for channels, mailboxes and the end: MPI's own calls for
/// them start after all ranks have reported there, and a Watchdog ends the process if a rank stops within such a call.
template <index_t ChunkBytes>
class BasicMpi {
  using Batch = detail::MpiBatch;

 public:
  using memory = terse::memory::host;
  static constexpr index_t chunk_bytes = ChunkBytes;
  static_assert(chunk_bytes > 0 && chunk_bytes < index_t{1} << 31);

  using Ticket = detail::MpiTicket<BasicMpi>;

  /// Makes a separate channel from `communicator`. Collective. No wait lasts longer than `deadline`. On `communicator`,
  /// ranks meet under the tag that Boost.MPI keeps for its collectives.
  explicit BasicMpi(const boost::mpi::communicator& communicator = boost::mpi::communicator(),
                    Deadline deadline = std::chrono::seconds(60))
      : BasicMpi(guest(communicator, detail::positive(deadline, communicator.rank()))
                     .split(0, communicator.rank())) {}

  BasicMpi(BasicMpi&&) = default;
  BasicMpi& operator=(BasicMpi&&) = default;

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }

  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    Batch& batch = unused_batch();
    batch.requests.clear();
    batch.peers.clear();
    batch.phase = phase;
    for (const Receive& receive : receives)
      for (index_t at = 0; at == 0 || at < receive.bytes; at += chunk_bytes) {
        MPI_Request& request = add(batch, receive.peer);
        check("MPI_Irecv", MPI_Irecv(receive.data + at, count(receive.bytes - at), MPI_BYTE, receive.peer,
                                     tag_, communicator_, &request));
      }
    // Has as many chunks as the receiver has posted, with empty ones after the last byte.
    for (const Send& send : sends)
      for (index_t at = 0; at == 0 || at < std::max(send.bytes, send.room); at += chunk_bytes) {
        MPI_Request& request = add(batch, send.peer);
        check("MPI_Isend", MPI_Isend(send.data + std::min(at, send.bytes), count(send.bytes - at), MPI_BYTE,
                                     send.peer, tag_, communicator_, &request));
      }
    batch.used = true;
    return Ticket(this, &batch);
  }

  /// Starts MPI's own reduce-scatter and all-gather, see ReducesNatively. Above `chunk_bytes` elements in total they become
  /// a reduction to each rank and a broadcast from each, in parts, since MPI counts with 32 bits.
  [[nodiscard]] Ticket reduce_scatter(const float* blocks, float* own, index_t count) {
    return collective(
        Phase::reduce, count,
        [&](int all, MPI_Request* request) {
          check("MPI_Ireduce_scatter_block",
                MPI_Ireduce_scatter_block(blocks, own, all, MPI_FLOAT, MPI_SUM, communicator_, request));
        },
        [&](int root, index_t at, int part, MPI_Request* request) {
          check("MPI_Ireduce", MPI_Ireduce(blocks + root * count + at, own + at, part, MPI_FLOAT, MPI_SUM,
                                           root, communicator_, request));
        });
  }
  [[nodiscard]] Ticket all_gather_in_place(std::byte* blocks, index_t bytes) {
    return collective(
        Phase::spread, bytes,
        [&](int all, MPI_Request* request) {
          check("MPI_Iallgather", MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, blocks, all, MPI_BYTE,
                                                 communicator_, request));
        },
        [&](int root, index_t at, int part, MPI_Request* request) {
          check("MPI_Ibcast",
                MPI_Ibcast(blocks + root * bytes + at, part, MPI_BYTE, root, communicator_, request));
        });
  }

  /// Reports that this rank is busy with work that may take longer than the deadline, such as an evaluation: the deadlines of
  /// all waits of this transport and its channels begin again. Sends an empty message to each peer, at most four times per
  /// deadline.
  void here() {
    if (signs_) signs_->give();
  }

  TERSE_COLD BasicMpi split(int color, int key) {
    const detail::Call call(detail::Verb::split);
    const std::array<int, 2> mine{color, key};
    BasicMpi here = guest(communicator_, deadline_);  // batches in flight on this channel don't see it
    here.signs_ = signs_;
    Assembly<std::array<int, 2>, BasicMpi> everyone(here);
    everyone(here, mine, Phase::setup);
    // A rank that also passes this gather knows that no rank has given up at the first one: all are about to call MPI.
    const auto all = everyone(here, mine, Phase::setup);
    const bool as_here = std::is_sorted(all.begin(), all.end()) && all.front()[0] == all.back()[0];
    BasicMpi channel(as_here ? duplicate() : part(color, key), deadline_, 0);
    MPI_Comm_set_errhandler(channel.communicator_, MPI_ERRORS_RETURN);
    channel.signs_ = signs_ ? signs_ : std::make_shared<detail::MpiSigns>(channel.communicator_, deadline_);
    return channel;
  }

  /// Makes a mailbox among this channel's ranks. Collective, as is its destruction. Throws usage_error unless all ranks
  /// request packets of one size.
  detail::MpiMailbox<BasicMpi> mailbox(index_t bytes) {
    const detail::Call call(detail::Verb::mailbox);
    detail::agree_on_packet(*this, bytes);
    BasicMpi channel = split(0, rank());
    const boost::mpi::communicator communicator = channel.communicator_;
    return detail::MpiMailbox<BasicMpi>(std::move(channel), communicator, bytes, deadline_);
  }

  /// Ends MPI as its environment's destructor would, but throws peer_error, and leaves MPI as it is, if a rank has not come
  /// there by the deadline. Collective; no channel may be in use. For programs that have an MPI environment of their own.
  TERSE_COLD static void finalize(Deadline deadline = std::chrono::seconds(60)) {
    guest(boost::mpi::communicator(), detail::positive(deadline)).end();
  }

  /// Runs program(transport) as this process's rank and returns the exit status. An exception is printed with its rank and
  /// ends the whole job with status 1, so that no rank waits for one that is gone. Starts and ends MPI, unless MPI was
  /// started before. From start to end no wait lasts longer than `deadline` or, if that is longer, Watchdog::least.
  template <class Program>
  static int run(int& argc, char**& argv, Program program, Deadline deadline = std::chrono::seconds(60)) {
    if (deadline.count() <= 0) {
      std::fputs((detail::deadline_fault(deadline) + "\n").c_str(), stderr);
      return EXIT_FAILURE;
    }
    const bool begins = !boost::mpi::environment::initialized();
    std::optional<Watchdog> watchdog(std::in_place, "MPI_Init", deadline);
    boost::mpi::environment environment(argc, argv);
    watchdog.reset();
    const boost::mpi::communicator world;
    try {
      BasicMpi last = guest(world, deadline);
      {
        BasicMpi transport(world, deadline);
        last.signs_ = transport.signs_;  // a rank may be busy when others have reached the end
        program(transport);
      }
      if (begins) last.end();
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "[rank %d] %s\n", world.rank(), failure.what());
      std::fflush(stderr);
      environment.abort(1);
    }
    return EXIT_SUCCESS;
  }

 private:
  friend Ticket;

  BasicMpi(boost::mpi::communicator communicator, std::chrono::milliseconds deadline, int tag)
      : communicator_(std::move(communicator)), deadline_(deadline), tag_(tag) {
    // An exchange needs two batches in flight; more are made on demand.
    for (int k = 0; k < 2; ++k) {
      Batch& batch = *batches_.emplace_back(std::make_unique<Batch>());
      batch.requests.reserve(2 * static_cast<std::size_t>(size()));
      batch.peers.reserve(2 * static_cast<std::size_t>(size()));
    }
  }

  /// Returns a transport for meetings on a communicator on which others have messages in flight.
  static BasicMpi guest(const boost::mpi::communicator& communicator, std::chrono::milliseconds deadline) {
    return BasicMpi(communicator, deadline, boost::mpi::environment::collectives_tag());
  }
  TERSE_COLD void end() {
    barrier(*this, Phase::finalize);
    signs_.reset();
    const Watchdog watchdog("MPI_Finalize", deadline_, rank());
    check("MPI_Finalize", MPI_Finalize());
  }
  TERSE_COLD boost::mpi::communicator duplicate() {
    // Kept if the wait is given up: MPI continues and may still write there.
    auto* const copy = new MPI_Comm(MPI_COMM_NULL);
    const auto start = [&](int, MPI_Request* request) {
      check("MPI_Comm_idup", MPI_Comm_idup(communicator_, copy, request));
    };
    collective(Phase::setup, 0, start, [](int, index_t, int, MPI_Request*) {}).wait();
    const std::unique_ptr<MPI_Comm> made(copy);
    return {*made, boost::mpi::comm_take_ownership};
  }
  TERSE_COLD boost::mpi::communicator part(int color, int key) {
    const Watchdog watchdog("MPI_Comm_split", deadline_, rank());
    return communicator_.split(color, key);
  }

  static int count(index_t left) { return static_cast<int>(std::clamp(left, index_t{0}, chunk_bytes)); }
  static void check(const char* call, int result) { detail::check_mpi(call, result); }
  static MPI_Request& add(Batch& batch, int peer) {
    batch.peers.push_back(peer);
    return batch.requests.emplace_back(MPI_REQUEST_NULL);
  }
  /// Starts a batch of one call for blocks of `count` elements, or of one for each part of each rank's block.
  template <class Whole, class Part>
  Ticket collective(Phase phase, index_t count, const Whole& whole, const Part& part) {
    Batch& batch = unused_batch();
    batch.requests.clear();
    batch.peers.clear();
    batch.phase = phase;
    if (count <= chunk_bytes / size())
      whole(static_cast<int>(count), &add(batch, -1));
    else
      for (int root = 0; root < size(); ++root)
        for (index_t at = 0; at < count; at += chunk_bytes)
          part(root, at, BasicMpi::count(count - at), &add(batch, -1));
    batch.used = true;
    return Ticket(this, &batch);
  }
  Batch& unused_batch() {
    for (const std::unique_ptr<Batch>& batch : batches_)
      if (!batch->used) return *batch;
    return *batches_.emplace_back(std::make_unique<Batch>());
  }

  boost::mpi::communicator communicator_;
  std::chrono::milliseconds deadline_;
  int tag_;
  std::vector<std::unique_ptr<Batch>> batches_;
  std::shared_ptr<detail::MpiSigns> signs_;  // of all channels; guests on other communicators have none
};

/// Mpi with chunks of 1 GiB.
using Mpi = BasicMpi<index_t{1} << 30>;

}  // namespace terse
