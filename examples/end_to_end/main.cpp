// SPDX-License-Identifier: Apache-2.0

// Every message of a training job compressed: pipelines of 4 stages, 2 of them side by side. Along a pipe travel changes
// of activations in 4 bits and gradients in 8 (terse::AcSgd), between replicas gradients in 8 bits (QuantizedSgd) or
// momenta in 1 (OneBitAdam), against exact messages everywhere. Clipped by the norm over all stages.
//
//   end_to_end [--help]
//   mpirun -n 8 end_to_end --transport mpi
//
// Losses and bytes are what they are. Times are a model's: links carry what they are said to (terse::Delayed), and passes
// take as long as they are said to, so that the figures tell what the methods send, not what a machine computes. The
// links are slow because the network is small: what counts is the ratio of wire to arithmetic, which larger stages have on
// faster links. Steps are timed when examples have been seen before and the variance is frozen; the column "whole run" has
// first visits and dense steps in. Fails where 8 bits everywhere gain less than the bar, or learn less than exact messages.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "../../tools/train/mpirun.hpp"
#include "job.hpp"
#include "options.hpp"
#include "terse/transport/thread.hpp"
#ifdef TERSE_HAVE_MPI
#include "terse/transport/mpi.hpp"
#endif

namespace {

constexpr int failed = 1;
constexpr int bad_input = 2;
constexpr int thread_replicas = 2;
constexpr double most_loss = 1.05;  // compressed, against exact messages

using end_to_end::Figures;
using end_to_end::Options;

void complain(const std::string& line) {
  std::fprintf(stderr, "end_to_end: %s\n", line.c_str());
  std::fflush(stderr);
}

/// Prints what came out, and returns the exit code.
int report(const Options& options, int ranks, const std::vector<Figures>& all) {
  const Figures& exact = all.front();
  std::printf("%d stages x %d replicas, %lld examples, %lld epochs; %lld micro-batches of %lld examples\n",
              end_to_end::stages, ranks / end_to_end::stages, static_cast<long long>(options.examples),
              static_cast<long long>(options.epochs), static_cast<long long>(end_to_end::micro_batches),
              static_cast<long long>(end_to_end::micro_batch));
  std::printf("modelled: links of %g Mbit/s, passes of %g ms forward and %g ms back\n\n", options.rate,
              options.pass, 2 * options.pass);
  std::printf("%-24s%18s%31s%11s%20s%14s\n", "messages", "loss", "kB a step, busiest rank", "whole run",
              "seconds of a step", "gain");
  std::printf("%-10s%-14s%9s%9s%10s%10s%11s%11s%10s%10s%7s%7s\n", "along", "between", "training", "held out",
              "forward", "backward", "replicas", "MB", "modelled", "measured", "model", "meas.");
  for (const Figures& one : all) {
    std::printf("%-10s%-14s%9.4f%9.4f%10.1f%10.1f%11.1f%11.2f%10.3f", one.along.c_str(), one.between.c_str(),
                one.loss, one.held_out, one.forward / 1e3, one.backward / 1e3, one.replicas / 1e3,
                one.whole_run / 1e6, one.modelled);
    if (one.measured > 0)
      std::printf("%10.3f%7.2f%7.2f\n", one.measured, exact.modelled / one.modelled,
                  exact.measured / one.measured);
    else
      std::printf("%10s%7.2f%7s\n", "-", exact.modelled / one.modelled, "-");
  }
  std::fflush(stdout);

  int status = EXIT_SUCCESS;
  for (const Figures& one : all) {
    const std::string messages = one.along + " along, " + one.between + " between: ";
    if (one.exact_loss > 0 && !(one.loss <= most_loss * one.exact_loss)) {
      complain(messages + "a loss of " + std::to_string(one.loss) + ", where exact messages reach " +
               std::to_string(one.exact_loss));
      status = failed;
    }
    const double gain = exact.measured / one.measured, wanted = options.bar * exact.modelled / one.modelled;
    if (one.must_meet_bar && one.measured > 0 && gain < wanted) {
      complain(messages + "a gain of " + std::to_string(gain) + ", where " + std::to_string(wanted) +
               " are wanted; is the machine busy?");
      status = failed;
    }
  }
  return status;
}

int run_threads(int argc, char** argv) {
  try {
    const std::optional<Options> options = end_to_end::parse_options(argc, argv, true);
    if (!options) return EXIT_SUCCESS;
    if (options->transport == end_to_end::Over::mpi)
      throw end_to_end::input_error("--transport: this program was built without MPI");
    constexpr int ranks = end_to_end::stages * thread_replicas;
    std::vector<Figures> all;
    terse::ThreadGroup(ranks, std::chrono::minutes(2)).run([&](terse::Threads& threads) {
      terse::AnyTransport world(threads.split(0, threads.rank()));
      std::vector<Figures> mine = end_to_end::run_rank(*options, world);
      if (threads.rank() == 0) all = std::move(mine);
    });
    return report(*options, ranks, all);
  } catch (const end_to_end::input_error& fault) {
    complain(fault.what());
    return bad_input;
  } catch (const std::exception& fault) {
    complain(fault.what());
    return failed;
  }
}

#ifdef TERSE_HAVE_MPI
int run_mpi(int argc, char** argv) {
  int status = EXIT_SUCCESS;
  const auto program = [&](terse::Mpi& mpi) {
    const bool first = mpi.rank() == 0;
    try {
      const std::optional<Options> options = end_to_end::parse_options(argc, argv, first);
      if (!options) return;
      if (options->transport == end_to_end::Over::threads)
        throw end_to_end::input_error("mpirun started " + std::to_string(mpi.size()) +
                                      " processes; they need --transport mpi to be one job");
      if (mpi.size() % end_to_end::stages != 0)
        throw end_to_end::input_error("mpirun started " + std::to_string(mpi.size()) +
                                      " processes; a multiple of 4 is needed, the number of stages");
      terse::AnyTransport world(mpi.split(0, mpi.rank()));
      const std::vector<Figures> all = end_to_end::run_rank(*options, world);
      if (first) status = report(*options, mpi.size(), all);
    } catch (const end_to_end::input_error& fault) {
      // Of options, which all ranks have alike.
      if (first) complain(fault.what());
      status = bad_input;
    }
  };
  const int ran = terse::Mpi::run(argc, argv, program, std::chrono::minutes(2));
  return ran != EXIT_SUCCESS ? ran : status;
}
#endif

}  // namespace

int main(int argc, char** argv) {
#ifdef TERSE_HAVE_MPI
  if (train::needs_mpi(argc, argv)) return run_mpi(argc, argv);
#endif
  return run_threads(argc, argv);
}
