// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "input_error.hpp"
#include "terse/core/error.hpp"
#include "terse/transport/any.hpp"
#include "terse/transport/thread.hpp"
#ifdef TERSE_HAVE_MPI
#include "mpi_job.hpp"
#include "mpirun.hpp"
#endif

// From main() to every rank and back, for programs whose ranks are threads of one process or processes that mpirun has
// started. Such a program is a struct P of static members:
//
//     name                                     begins what it complains about
//     Job, Result                              what it does, and what a rank gives back
//     prepare(argc, argv, world, first, out)   std::optional<Job>, nothing where help was asked for; `first`: whether this
//                                              is the one process that speaks. Throws input_error, and whatever
//     ranks(job), deadline(job)                of threads, and of all waits
//     are_processes(job, world)                whether ranks are `world` processes
//     run_rank(job, transport, number)         Result; `number`: of this rank among those of its machine
//     finish(job, result, first)               the exit code

namespace train {

// Exit codes.
constexpr int failed = 1;
constexpr int bad_input = 2;

template <class P>
void complain(const std::string& line) {
  std::fprintf(stderr, "%s: %s\n", P::name, line.c_str());
  std::fflush(stderr);
}

template <class P>
typename P::Result run_threads(const typename P::Job& job) {
  typename P::Result result;
  terse::ThreadGroup(P::ranks(job), P::deadline(job)).run([&](terse::Threads& transport) {
    terse::AnyTransport any(transport.split(0, transport.rank()));
    typename P::Result mine = P::run_rank(job, any, transport.rank());
    if (transport.rank() == 0) result = std::move(mine);
  });
  return result;
}

template <class P>
int launch_threads(int argc, char** argv) {
  try {
    const std::optional<typename P::Job> job = P::prepare(argc, argv, 1, true, stdout);
    return job ? P::finish(*job, run_threads<P>(*job), true) : EXIT_SUCCESS;
  } catch (const input_error& fault) {
    complain<P>(fault.what());
    return fault.status();
  } catch (const std::exception& fault) {
    complain<P>(fault.what());
    return failed;
  }
}

#ifdef TERSE_HAVE_MPI
/// What P prepares, or why it can't.
template <class P>
std::optional<typename P::Job> prepare_process(int argc, char** argv, int world, bool first, Fault& fault) {
  std::FILE* const out = first ? stdout : std::fopen("/dev/null", "w");
  std::optional<typename P::Job> job;
  try {
    job = P::prepare(argc, argv, world, first, out);
  } catch (const input_error& input) {
    fault = {input.what(), input.status()};
  } catch (const std::exception& other) {
    fault = {other.what(), failed};
  }
  if (!first && out != nullptr) std::fclose(out);
  return job;
}

template <class P>
int launch_process(int argc, char** argv) {
  MpiJob mpi(argc, argv);
  const bool first = mpi.rank() == 0;
  Fault fault;
  const std::optional<typename P::Job> job = prepare_process<P>(argc, argv, mpi.size(), first, fault);
  if (job) mpi.deadline(P::deadline(*job));
  try {
    // One rank's fault is everybody's, and one line tells it.
    const Fault shown = mpi.first_fault(fault);
    if (!shown.words.empty()) {
      if (first) complain<P>(shown.words);
      return shown.status;
    }
    if (!job) return EXIT_SUCCESS;
    if (!P::are_processes(*job, mpi.size())) return P::finish(*job, run_threads<P>(*job), first);
    terse::AnyTransport transport = mpi.connect();
    return P::finish(*job, P::run_rank(*job, transport, mpi.number()), first);
  } catch (const input_error& input) {
    // Only what all ranks find out together: nobody waits for this one elsewhere.
    const Fault shown = mpi.first_fault({input.what(), input.status()});
    if (first) complain<P>(shown.words);
    return shown.status;
  } catch (const std::exception& other) {
    const auto* const own = dynamic_cast<const terse::error*>(&other);
    const bool says_rank = own != nullptr && own->rank() >= 0;
    complain<P>((says_rank ? "" : fmt::format("rank {}: ", mpi.rank())) + other.what());
  }
  mpi.abort(failed);
}
#endif

template <class P>
int launch(int argc, char** argv) {
#ifdef TERSE_HAVE_MPI
  if (needs_mpi(argc, argv)) return launch_process<P>(argc, argv);
#endif
  return launch_threads<P>(argc, argv);
}

}  // namespace train
