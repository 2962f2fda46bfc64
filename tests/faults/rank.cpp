// SPDX-License-Identifier: Apache-2.0
// Trains 4 ranks, one of which fails, and says how each of them ends: a line of JSON from each rank that still can.
//
//   faults TRANSPORT METHOD FAULT MOMENT VICTIM DEADLINE_MS
//   faults TRANSPORT soak MINUTES                                  # all methods, with ranks that are late: soak.hpp
//
// TRANSPORT  threads, or mpi under mpirun -n 4
// FAULT      none, throws, killed, stopped, late, nan, header, payload, agreement; elsewhere (takes a mean alone) and works (for
//            longer than the deadline, and says so), both between steps
// MOMENT     of nan a step; else the victim's batch, from the first of the job on; `between N`, `end`
//
// A rank that ends well says the hash of its parameters after each step and how many batches it had posted by then; one that fails
// what it caught, in which step, and the hash of what its parameters were. When the fault happens stderr says so.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "faulty.hpp"
#include "methods.hpp"
#include "soak.hpp"
#include "terse/transport/mpi.hpp"

namespace {

using namespace terse;
using faults::Ambush;
using faults::Floats;
using faults::hash;
using faults::noise;
using faults::say;

constexpr int ranks = 4;
constexpr std::uint64_t steps = 6;

struct Job {
  const faults::Method* method = nullptr;
  std::string fault, moment;
  int victim = -1;
  std::chrono::milliseconds deadline{};
  std::uint64_t number() const {
    return std::strtoull(moment.c_str() + moment.find_first_of("0123456789"), nullptr, 10);
  }
  bool between() const { return moment.rfind("between", 0) == 0; }
};

const char* kind(const std::exception& fault) {
  if (dynamic_cast<const non_finite_error*>(&fault) != nullptr) return "non_finite_error";
  if (dynamic_cast<const mismatch_error*>(&fault) != nullptr) return "mismatch_error";
  if (dynamic_cast<const wire_error*>(&fault) != nullptr) return "wire_error";
  if (dynamic_cast<const peer_error*>(&fault) != nullptr) return "peer_error";
  return "other";
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Between two steps does what the others don't.
void leave_the_others(AnyTransport& transport, Ambush& ambush) {
  const bool works = ambush.what == "works";
  if (!works && ambush.what != "elsewhere") return faults::strike(ambush);
  faults::say_when();
  if (!works) mean(transport, 1.0);
  const auto until = std::chrono::steady_clock::now() + ambush.patience;
  while (works && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    transport.here();
  }
}

template <Transport T>
void train(T&& raw, const Job& job) {
  const int rank = raw.rank();
  const bool mine = rank == job.victim;
  const bool at_batch = job.fault != "none" && job.fault != "nan" && !job.between();
  Ambush ambush{.what = job.fault,
                .armed = mine && at_batch,
                .at = job.number(),
                .patience = job.deadline + std::chrono::milliseconds(1500)};
  const Layout whole = faults::layout();
  Floats x = noise(whole, 0, 0);
  std::string hashes = "\"" + hash(x) + "\"", batches;
  std::uint64_t step = 0;
  bool finite = true;
  const auto failed = [&](const std::exception& fault, const std::string& found) {
    say("{\"rank\": " + std::to_string(rank) + ", \"error\": \"" + kind(fault) + "\", \"step\": " +
        std::to_string(step) + ", \"at\": " + std::to_string(now()) + ", \"hash\": \"" + found + "\"}");
  };
  try {
    AnyTransport transport(faults::Faulty<std::remove_cvref_t<T>>(std::forward<T>(raw), ambush));
    const Options options{.on_non_finite = job.fault == "agreement" ? NonFinite::skip : NonFinite::throw_,
                          .check_payload = job.fault == "payload"};
    const auto optimizer = job.method->make(transport, whole, options);
    batches = std::to_string(ambush.batches);
    for (step = 1; step <= steps; ++step) {
      Floats g = noise(whole, rank, step);
      const bool due = mine && job.number() == step && (job.fault == "nan" || job.between());
      if (due && job.fault == "nan") g[70] = std::numeric_limits<float>::quiet_NaN();
      if (due && job.between()) leave_the_others(transport, ambush);
      try {
        optimizer->step(x, g);
      } catch (const non_finite_error& fault) {
        // Of neighbours some have taken the step; all ranks leave it out together, or this one alone takes it again.
        if (job.method->with == std::string("neighbours")) throw;
        failed(fault, hash(x));
        if (job.method->with == std::string("nobody")) optimizer->step(x, noise(whole, rank, step));
      }
      hashes += ", \"" + hash(x) + "\"";
      batches += ", " + std::to_string(ambush.batches);
      for (const float value : x) finite = finite && std::isfinite(value);
    }
  } catch (const std::exception& fault) {
    failed(fault, hash(x));
    throw;
  }
  say("{\"rank\": " + std::to_string(rank) + ", \"with\": \"" + job.method->with + "\", \"finite\": " +
      (finite ? "true" : "false") + ", \"batches\": [" + batches + "], \"hashes\": [" + hashes + "]}");
}

/// Runs program(transport) on four ranks.
template <class Program>
int run(int argc, char** argv, std::chrono::milliseconds deadline, Program program) {
  if (std::string(argv[1]) == "mpi")
    return Mpi::run(
        argc, argv, [&](Mpi& mpi) { program(mpi.split(0, mpi.rank())); }, deadline);
  try {
    ThreadGroup(ranks, deadline).run([&](Threads& threads) { program(threads.split(0, threads.rank())); });
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[2]) == "soak")
    // Whoever stops all ranks for a while, for something that is measured, finds them well afterwards.
    return run(argc, argv, std::chrono::hours(1), [&](auto transport) {
      faults::soak(std::move(transport), std::chrono::minutes(std::atoi(argv[3])));
    });
  Job job;
  if (argc == 7)
    for (const faults::Method& one : faults::methods())
      if (one.name == argv[2]) job.method = &one;
  if (job.method == nullptr) {
    std::fprintf(stderr,
                 "usage: faults TRANSPORT METHOD FAULT MOMENT VICTIM DEADLINE_MS, or TRANSPORT soak MINUTES, "
                 "with METHOD one of");
    for (const faults::Method& one : faults::methods()) std::fprintf(stderr, " %s", one.name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  job.fault = argv[3];
  job.moment = argv[4];
  job.victim = std::atoi(argv[5]);
  job.deadline = std::chrono::milliseconds(std::atoi(argv[6]));
  return run(argc, argv, job.deadline, [&](auto transport) { train(std::move(transport), job); });
}
