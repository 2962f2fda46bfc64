// SPDX-License-Identifier: Apache-2.0
#include "mpi_job.hpp"

#include <algorithm>
#include <boost/mpi/communicator.hpp>
#include <boost/mpi/environment.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "terse/transport/collectives.hpp"
#include "terse/transport/mpi.hpp"
#include "terse/transport/watchdog.hpp"

namespace train {

struct MpiJob::Parts {
  Parts(int& argc, char**& argv) : environment(argc, argv) {}
  boost::mpi::environment environment;
  boost::mpi::communicator world;
  std::chrono::milliseconds deadline = std::chrono::minutes(1);
};

MpiJob::MpiJob(int& argc, char**& argv) {
  const terse::Watchdog watchdog("MPI_Init", std::chrono::minutes(1));
  parts_ = std::make_unique<Parts>(argc, argv);
}
MpiJob::~MpiJob() {
  try {
    terse::Mpi::finalize(parts_->deadline);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    std::fflush(stderr);
    abort(EXIT_FAILURE);
  }
}

void MpiJob::deadline(std::chrono::milliseconds deadline) { parts_->deadline = deadline; }
int MpiJob::rank() const { return parts_->world.rank(); }
int MpiJob::size() const { return parts_->world.size(); }

Fault MpiJob::first_fault(const Fault& mine) {
  terse::Mpi transport(parts_->world, parts_->deadline);
  struct Size {
    std::int64_t words, status;
  };
  const auto sizes =
      terse::all_gather(transport, Size{static_cast<std::int64_t>(mine.words.size()), mine.status});
  const auto first =
      std::find_if(sizes.begin(), sizes.end(), [](const Size& size) { return size.words > 0; });
  if (first == sizes.end()) return {};
  Fault fault{mine.words, static_cast<int>(first->status)};
  fault.words.resize(static_cast<std::size_t>(first->words));
  terse::broadcast(transport, fault.words, static_cast<int>(first - sizes.begin()));
  return fault;
}

terse::AnyTransport MpiJob::connect() {
  return terse::AnyTransport(terse::Mpi(parts_->world, parts_->deadline));
}

int MpiJob::number() const {
  MPI_Comm neighbours = MPI_COMM_NULL;
  {
    const terse::Watchdog watchdog("MPI_Comm_split_type", parts_->deadline, rank());
    MPI_Comm_split_type(parts_->world, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &neighbours);
  }
  int number = 0;
  MPI_Comm_rank(neighbours, &number);
  MPI_Comm_free(&neighbours);
  return number;
}

void MpiJob::abort(int status) {
  boost::mpi::environment::abort(status);
  std::abort();  // not reached
}

}  // namespace train
