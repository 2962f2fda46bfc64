// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "terse/transport/any.hpp"

namespace train {

/// Why a rank can't begin, and the status to end with; without words it can.
struct Fault {
  std::string words;
  int status = 0;
};

/// The MPI job that this process is a rank of. MPI lives as long as this object. Only a build with MPI has
/// it. No wait lasts longer than the deadline; where that is over at the end, prints who is missing and ends the job.
class MpiJob {
 public:
  MpiJob(int& argc, char**& argv);
  ~MpiJob();

  /// For all that follows; a minute until then.
  void deadline(std::chrono::milliseconds deadline);

  int rank() const;
  int size() const;

  /// The fault of the first rank that has one, on all ranks; without words if none has. Collective.
  Fault first_fault(const Fault& mine);
  /// A transport of all ranks. Collective.
  terse::AnyTransport connect();
  /// Of this rank among those of its machine, from 0. Collective.
  int number() const;
  /// Ends the whole job at once: ranks that wait for this one would not notice otherwise.
  [[noreturn]] void abort(int status);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace train
