// SPDX-License-Identifier: Apache-2.0
// One rank of bench/network/run: steps of methods over MPI, timed on rank 0.
//
//   bench_network METHOD,... MODEL BATCH STEPS [SLICE_BYTES]
//
// Prints a line of JSON for each method: seconds of each step, gradient included, of which the gradient's on the slowest rank, for
// which all others wait, and the bytes that a step sends. Methods that send in one step of a period have the mean over a period in the
// place of a step. The method "gradient" computes gradients, on all ranks at once, and does nothing with them.

#include <algorithm>
#include <boost/mpi/collectives.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "methods.hpp"
#include "model.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/mpi.hpp"

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Job {
  Model& model;
  terse::Layout layout;
  std::vector<std::int64_t> offsets;
  terse::Options options;
  int steps;
};

/// One after the other, with commas between.
struct List {
  std::string text;
  void add(double value) { text += (text.empty() ? "" : ", ") + std::to_string(value); }
};

void print(const std::string& method, const List& seconds, const List& gradients, std::uint64_t bytes) {
  std::printf("{\"method\": \"%s\", \"seconds\": [%s], \"gradient\": [%s], \"bytes\": %llu, \"real\": %s}\n",
              method.c_str(), seconds.text.c_str(), gradients.text.c_str(),
              static_cast<unsigned long long>(bytes), real_model ? "true" : "false");
  std::fflush(stdout);
}

double on_slowest(double seconds) {
  return boost::mpi::all_reduce(boost::mpi::communicator(), seconds, boost::mpi::maximum<double>());
}

void measure_gradient(const Job& job, terse::AnyTransport& transport) {
  std::vector<float> x(static_cast<std::size_t>(job.layout.size())), g(x.size());
  job.model.begin(x.data(), job.offsets);
  List gradients;
  // More than steps, of which slow links leave time for few: gradients are quick, and the first ones slower than the others.
  for (int step = -3; step < std::max(job.steps, 10); ++step) {
    terse::barrier(transport);
    const auto begin = Clock::now();
    job.model.gradient(x.data(), g.data(), job.offsets, [](std::int64_t) {});
    const double own = seconds_since(begin);
    terse::barrier(transport);  // which sleeps, where a reduction spins on a core that a slower rank needs
    const double seconds = on_slowest(own);
    if (step >= 0) gradients.add(seconds);
  }
  if (transport.rank() == 0) print("gradient", gradients, gradients, 0);
}

void measure(const Method& method, const Job& job, terse::AnyTransport& transport) {
  const auto optimizer = method.make(transport, job.layout, job.options, {});
  std::vector<float> x(static_cast<std::size_t>(job.layout.size())), g(x.size());
  job.model.begin(x.data(), job.offsets);
  List seconds, gradients;
  std::uint64_t bytes = 0;
  const int period = method.period;
  // The dense step of a method that has one, then what sends something.
  const int before = (method.staged ? 1 : 0) + period;
  for (int step = -before; step < job.steps * period;) {
    terse::barrier(transport);
    const int together = step < 0 ? 1 : period;
    const auto begin = Clock::now();
    double gradient = 0;
    bytes = 0;
    for (int k = 0; k < together; ++k, ++step) {
      const auto from = Clock::now();
      if (method.overlaps) optimizer->begin(x, g);
      job.model.gradient(x.data(), g.data(), job.offsets, [&](std::int64_t segment) {
        if (method.overlaps) optimizer->ready(segment);
      });
      gradient += seconds_since(from);
      bytes += optimizer->step(x, g).bytes_sent;
    }
    const double whole = seconds_since(begin);
    gradient = on_slowest(gradient);
    if (step <= 0) continue;
    seconds.add(whole / period);
    gradients.add(gradient / period);
  }
  if (transport.rank() == 0)
    print(method.name, seconds, gradients, bytes / static_cast<std::uint64_t>(period));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) {
    std::fprintf(
        stderr,
        "usage: bench_network METHOD,... MODEL BATCH STEPS [SLICE_BYTES], with MODEL perceptron/WIDTH or "
        "transformer/WIDTH and METHOD one of gradient");
    for (const Method& one : methods()) std::fprintf(stderr, " %s", one.name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  return terse::Mpi::run(argc, argv, [&](terse::Mpi& mpi) {
    terse::AnyTransport transport(mpi.split(0, mpi.rank()));
    const auto model = make_model(argv[2], std::atoi(argv[3]), mpi.rank());
    Job job{*model, {}, {}, {}, std::atoi(argv[4])};
    // A dense step on one batch leaves many variances at 0; nothing is trained here.
    job.options.most_masked = 1;
    if (argc == 6) job.options.slice_bytes = std::atoll(argv[5]);
    for (const auto& shape : model->shapes()) {
      job.layout.add({"parameter" + std::to_string(job.offsets.size()), shape});
      job.offsets.push_back(job.layout.segments().back().offset);
    }
    std::istringstream names(argv[1]);
    for (std::string name; std::getline(names, name, ',');)
      if (name == "gradient")
        measure_gradient(job, transport);
      else
        measure(method(name, mpi.rank()), job, transport);
  });
}
