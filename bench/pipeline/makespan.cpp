// SPDX-License-Identifier: Apache-2.0
// A step of a pipeline whose stages sleep instead of computing, over links whose fp32 message takes twelve forward passes
// (terse::Delayed), beside terse::makespan. What is measured is the schedule, the messages, and how well a stage
// computes while they travel. With --check it fails where a step is 15 % longer than it says, or compressed messages are
// not 3.5 times as fast; a row beyond 12 % is measured again, at most three times: other work makes steps longer.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "terse/pipeline/makespan.hpp"
#include "terse/terse.hpp"
#include "terse/transport/delayed.hpp"
#include "terse/transport/metered.hpp"

namespace {

using namespace terse;
using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;
using Wire = Metered<Delayed<Threads>>;

constexpr int stages = 4;
constexpr index_t micro_batches = 8, rows = 2, elements = 4096;
constexpr double forward_seconds = 0.010, backward_seconds = 0.020, message_seconds = 0.120;

/// Takes its time; what it sends is noise that drifts.
class Sleeper {
 public:
  explicit Sleeper(int stage) : stage_(stage), values_(rows * elements) {
    for (index_t i = 0; i < rows * elements; ++i)
      values_.data()[i] = static_cast<float>(mix_hash(7, static_cast<std::uint64_t>(i)) >> 40) * 0x1p-24F;
  }
  index_t input_elements() const { return stage_ > 0 ? elements : 0; }
  index_t output_elements() const { return stage_ + 1 < stages ? elements : 0; }
  const float* forward(const MicroBatch&, const float*) {
    std::this_thread::sleep_for(Seconds(forward_seconds));
    values_.data()[0] += 1;
    return values_.data();
  }
  double loss(const MicroBatch& micro_batch) { return micro_batch.weight; }
  const float* backward(const MicroBatch&, const float*) {
    std::this_thread::sleep_for(Seconds(backward_seconds));
    return values_.data();
  }

 private:
  int stage_;
  buffer<float> values_;
};

struct Measured {
  double step, predicted;
};

/// The median step, first visits left out.
template <class Policy, class Plan>
Measured measure(const Policy& policy, const Plan& plan, int steps) {
  const double rate = static_cast<double>(rows * elements) * 4 / message_seconds;
  std::vector<double> took;
  std::vector<StageTimes> times(stages);
  ThreadGroup(stages, std::chrono::seconds(60)).run([&](Threads& threads) {
    const int rank = threads.rank();
    Wire wire{Delayed<Threads>(threads.split(0, rank), {std::chrono::nanoseconds(0), rate})};
    Sleeper stage(rank);
    Pipeline pipeline{policy, wire, stage, {.micro_batch = rows}, plan};
    std::vector<std::uint64_t> ids(micro_batches * rows);
    std::iota(ids.begin(), ids.end(), std::uint64_t{0});
    pipeline.train(ids);
    const auto sent = [&](Phase phase) { return static_cast<double>(wire.traffic()[phase].bytes_sent); };
    const double forward = sent(Phase::forward), backward = sent(Phase::backward);
    for (int step = 0; step < steps; ++step) {
      barrier(threads);
      const auto begin = Clock::now();
      pipeline.train(ids);
      barrier(threads);
      if (rank == 0) took.push_back(Seconds(Clock::now() - begin).count());
    }
    const double messages = rate * steps * static_cast<double>(micro_batches);
    times[static_cast<std::size_t>(rank)] = {forward_seconds, backward_seconds,
                                             (sent(Phase::forward) - forward) / messages,
                                             (sent(Phase::backward) - backward) / messages};
  });
  std::nth_element(took.begin(), took.begin() + steps / 2, took.end());
  return {took[static_cast<std::size_t>(steps / 2)], makespan(plan, times, micro_batches)};
}

}  // namespace

int main(int argc, char** argv) {
  int steps = 5;
  bool check = false;
  for (int k = 1; k < argc; ++k) {
    const std::string option = argv[k];
    if (option == "--check") {
      check = true;
    } else if (option == "--steps" && k + 1 < argc && std::atoi(argv[k + 1]) > 0) {
      steps = std::atoi(argv[++k]);
    } else {
      std::printf("bench_makespan [--steps N (5)] [--check]\n");
      return option == "--help" ? EXIT_SUCCESS : EXIT_FAILURE;
    }
  }
  const index_t capacity = micro_batches * rows;
  using Four = Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<256>>;
  using Eight = Uniform<8, Stochastic, Symmetric, MaxAbs, PerBlock<256>>;
  const ExactActivations exact;
  const DirectActivations<Cast<fp16>, Unchecked<Cast<fp16>>> halves;
  const AcSgd<Four, Eight> changes{.capacity = capacity};

  std::printf(
      "%d stages that sleep %.0f + %.0f ms, %lld micro-batches, %.0f ms for a message in fp32; ms a step\n\n",
      stages, 1e3 * forward_seconds, 1e3 * backward_seconds, static_cast<long long>(micro_batches),
      1e3 * message_seconds);
  std::printf("| schedule | messages | step | makespan | apart | times faster | by makespan |\n");
  std::printf("|---|---|---:|---:|---:|---:|---:|\n");
  bool good = true;
  const auto measured = [&](const auto& policy, const auto& plan) {
    Measured best = measure(policy, plan, steps);
    for (int again = 0; check && again < 3 && best.step > 1.12 * best.predicted; ++again)
      best.step = std::min(best.step, measure(policy, plan, steps).step);
    return best;
  };
  const auto rows_of = [&](const char* name, const auto& plan) {
    const Measured slow = measured(exact, plan);
    const auto print = [&](const char* messages, const Measured& one, double least_gain) {
      const double apart = one.step / one.predicted - 1, gain = slow.step / one.step;
      std::printf("| %s | %s | %.0f | %.0f | %+.1f %% | %.2f | %.2f |\n", name, messages, 1e3 * one.step,
                  1e3 * one.predicted, 100 * apart, gain, slow.predicted / one.predicted);
      std::fflush(stdout);
      good = good && std::abs(apart) <= 0.15 && gain >= least_gain;
    };
    print("fp32", slow, 1);
    print("16 bits", measured(halves, plan), 1);
    print("changes, 4 / 8 bits", measured(changes, plan), 3.5);
  };
  rows_of("GPipe", GPipe{});
  rows_of("1F1B, 1 ahead", OneForwardOneBackward{1});
  if (check && !good) {
    std::fputs("bench_makespan: a bar is missed; is the machine busy?\n", stderr);
    return EXIT_FAILURE;
  }
}
