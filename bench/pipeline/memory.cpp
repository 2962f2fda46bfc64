// SPDX-License-Identifier: Apache-2.0
// Steps of a pipeline of two stages whose copies of examples take a given number of bytes, in RAM or in a file that is
// mapped into memory. The stages compute next to nothing, so a step is coding and access to the copies. Prints a line of
// JSON for each epoch; the first has first visits alone. Bytes read and written are those that the system accounts to this
// process: a page that is changed again after it was written to disk counts again. On Linux.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <string>

#include "terse/bench/samples.hpp"
#include "terse/pipeline/mapped_memory.hpp"
#include "terse/terse.hpp"

namespace {

using namespace terse;
using Clock = std::chrono::steady_clock;

constexpr int stages = 2;
constexpr index_t batch = 32, micro_batch = 4, elements = 128 * 1024;  // an example has 128 tokens, 1024 wide
constexpr index_t copies_bytes = stages * RowFormat<fp16>::bytes(elements);  // of an example, on both sides

struct Settings {
  index_t megabytes = 64;
  int epochs = 3;
  std::string memory = "ram", order = "shuffled", folder = Mapped<>{}.folder;
};

/// A stage whose activations and gradients are noise that changes with each pass.
class Noise {
 public:
  Noise(int rank, const float* samples) : rank_(rank), samples_(samples) {}
  index_t input_elements() const { return rank_ > 0 ? elements : 0; }
  index_t output_elements() const { return rank_ == 0 ? elements : 0; }
  const float* forward(const MicroBatch&, const float*) {
    return rank_ == 0 ? bench::at_step(samples_, pass_++) : nullptr;
  }
  double loss(const MicroBatch& rows) { return rows.weight; }
  const float* backward(const MicroBatch&, const float*) {
    return rank_ == 0 ? nullptr : bench::at_step(samples_, pass_++);
  }

 private:
  int rank_;
  const float* samples_;
  std::uint64_t pass_ = 0;
};

/// Returns the number after `name` in a file of the system's about this process.
double number(const char* file, const std::string& name) {
  std::ifstream in(file);
  double value = 0;
  for (std::string word; in >> word;)
    if (word == name && in >> value) break;
  return value;
}

/// The counters of this process so far.
struct Usage {
  Clock::time_point time = Clock::now();
  double processor = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  double read = number("/proc/self/io", "read_bytes:") / 1e6,
         written = number("/proc/self/io", "write_bytes:") / 1e6;
  long faults = [] {
    rusage all{};
    ::getrusage(RUSAGE_SELF, &all);
    return all.ru_majflt;
  }();
};

double seconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

void report(int epoch, index_t count, const Usage& before, double slowest) {
  const Usage after;
  const auto steps = static_cast<double>(count / batch);
  std::printf(
      "{\"epoch\": %d, \"examples\": %lld, \"copies_mb\": %.1f, \"step\": %.5f, \"slowest\": %.5f, "
      "\"processor\": %.5f, \"anonymous_mb\": %.1f, \"file_mb\": %.1f, \"read_mb\": %.1f, "
      "\"written_mb\": %.1f, \"major_faults\": %ld}\n",
      epoch, static_cast<long long>(count), static_cast<double>(count * copies_bytes) / 1e6,
      seconds(before.time, after.time) / steps, slowest, (after.processor - before.processor) / steps,
      number("/proc/self/status", "RssAnon:") * 1.024e-3, number("/proc/self/status", "RssFile:") * 1.024e-3,
      after.read - before.read, after.written - before.written, after.faults - before.faults);
  std::fflush(stdout);
}

template <class Memory>
void measure(const Settings& settings, const Memory& memory) {
  const index_t steps = std::max<index_t>(1, settings.megabytes * 1'000'000 / (copies_bytes * batch));
  const index_t count = steps * batch;
  const float* const samples = bench::normal_samples(micro_batch * elements + bench::spare);
  using Policy = AcSgd<Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<256>>,
                       Uniform<8, Stochastic, Symmetric, MaxAbs, PerBlock<256>>, Memory>;
  ThreadGroup(stages, std::chrono::minutes(5)).run([&](Threads& threads) {
    Noise stage(threads.rank(), samples);
    Pipeline pipeline{
        Policy{.capacity = count, .memory = memory}, threads, stage, {.micro_batch = micro_batch}};
    for (int epoch = 1; epoch <= settings.epochs; ++epoch) {
      const ExampleOrder order(count, 1, settings.order == "same" ? 1 : static_cast<std::uint64_t>(epoch));
      const Usage before;
      double slowest = 0;
      for (index_t k = 0; k < steps; ++k) {
        const auto begin = Clock::now();
        pipeline.train(order.batch(k, batch));
        slowest = std::max(slowest, seconds(begin, Clock::now()));
        if (threads.rank() == 0 && k % 20 == 19) {
          std::printf(
              "{\"done\": %.4f}\n",
              (epoch - 1 + static_cast<double>(k + 1) / static_cast<double>(steps)) / settings.epochs);
          std::fflush(stdout);
        }
      }
      if (threads.rank() == 0) report(epoch, count, before, slowest);
      barrier(threads);  // the copies of both sides are in memory until all is counted
    }
  });
}

int usage(int status) {
  std::puts(
      "bench_memory [--megabytes N (64)] [--epochs N (3)] [--memory ram|mapped (ram)] [--folder FOLDER "
      "(/var/tmp)]\n"
      "             [--order shuffled|same (shuffled)]\n"
      "N megabytes are the copies on both sides of the boundary. `same` is the order of the first epoch in "
      "all epochs.");
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  for (int k = 1; k < argc; k += 2) {
    const std::string name = argv[k], value = k + 1 < argc ? argv[k + 1] : "";
    if (name == "--megabytes" && std::atoll(value.c_str()) > 0) {
      settings.megabytes = std::atoll(value.c_str());
    } else if (name == "--epochs" && std::atoi(value.c_str()) > 0) {
      settings.epochs = std::atoi(value.c_str());
    } else if (name == "--memory" && (value == "ram" || value == "mapped")) {
      settings.memory = value;
    } else if (name == "--order" && (value == "shuffled" || value == "same")) {
      settings.order = value;
    } else if (name == "--folder") {
      settings.folder = value;
    } else {
      return usage(name == "--help" ? EXIT_SUCCESS : EXIT_FAILURE);
    }
  }
  try {
    if (settings.memory == "ram")
      measure(settings, InMemory<fp16>{});
    else
      measure(settings, Mapped<fp16>{settings.folder});
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "bench_memory: %s\n", fault.what());
    return EXIT_FAILURE;
  }
}
