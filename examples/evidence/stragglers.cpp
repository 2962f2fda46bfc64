// SPDX-License-Identifier: Apache-2.0

// One row of `stragglers`: trains the perceptron by 8 threads with one of the trainer's methods, one of them slow. A rank sleeps until its
// gradient has taken a fixed time, far longer than the processor needs, so that seconds show who waits for whom, not how fast the
// machine is. Prints lines of JSON: the held-out loss of the ranks' mean model at times, and each rank's seconds. Fails if a rank's
// gradients have taken much longer than planned, because then the processor was busy.

#include <CLI/CLI.hpp>
#include <chrono>
#include <fstream>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "perceptron.hpp"
#include "stragglers_lattice.hpp"
#include "terse/transport/collectives.hpp"

namespace {

using namespace perceptron;
using Clock = std::chrono::steady_clock;

constexpr int slow = 0;                // the rank
constexpr std::uint64_t rise = 20;     // steps until the learning rate is constant
constexpr std::int64_t tested = 5000;  // images

struct Stragglers {
  std::string method;
  double rate = 0.1;
  std::uint64_t steps = 300, snapshots = 40;
  double gradient = 0.05, factor = 1, stall = 1;  // seconds, and times as long
  std::uint64_t stall_every = 0;                  // steps on average; 0: never
  bool any_stalls = false, lattice = false;
  double most_overrun = 0.1;
  train::Options options;

  /// Returns the seconds of a rank's gradient.
  double planned(int rank, std::uint64_t step) const {
    double seconds = rank == slow ? factor * gradient : gradient;
    if (stall_every > 0) {
      const terse::Draw draw = terse::Draw::shared(options.seed, step, terse::Purpose::user);
      const int who =
          any_stalls ? static_cast<int>(draw.below(static_cast<std::uint64_t>(options.ranks), 1)) : slow;
      if (who == rank && draw.below(stall_every, 0) == 0) seconds += stall;
    }
    return seconds;
  }
  /// Returns the seconds in which a rank that waits for no other takes all its steps; the longest of all ranks.
  double planned() const {
    double longest = 0;
    for (int rank = 0; rank < options.ranks; ++rank) {
      double seconds = 0;
      for (std::uint64_t step = 0; step < steps; ++step) seconds += planned(rank, step);
      longest = std::max(longest, seconds);
    }
    return longest;
  }
  float rate_at(std::uint64_t step) const {
    return static_cast<float>(rate *
                              std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(rise)));
  }
};

/// Sums over ranks of the parameters that they had at multiples of `every` seconds, at most `most` of them.
class Snapshots {
 public:
  Snapshots(double every, std::size_t most) : every_(every), most_(most) {}

  double time(std::size_t k) const { return every_ * static_cast<double>(k); }
  /// Adds a rank's parameters x, which it has had until `now`, to the snapshots since its last one, whose number is `next`.
  void add(const std::vector<float>& x, double now, std::size_t& next) {
    for (; next < most_ && time(next) <= now; ++next) add(x, next);
  }
  /// Returns the mean of `ranks` ranks at each time. `last` has each rank's last parameters, and the number of its next snapshot.
  std::vector<std::vector<float>> means(const std::vector<std::pair<std::vector<float>, std::size_t>>& last) {
    const std::size_t count = sums_.size();
    for (const auto& [x, next] : last)
      for (std::size_t k = next; k < count; ++k) add(x, k);
    for (std::vector<float>& sum : sums_)
      for (float& value : sum) value /= static_cast<float>(last.size());
    return sums_;
  }

 private:
  void add(const std::vector<float>& x, std::size_t k) {
    const std::scoped_lock lock(mutex_);
    if (k >= sums_.size()) sums_.resize(k + 1, std::vector<float>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) sums_[k][i] += x[i];
  }

  const double every_;
  const std::size_t most_;
  std::mutex mutex_;
  std::vector<std::vector<float>> sums_;
};

struct Rank {
  std::uint64_t steps = 0, bytes = 0;
  double seconds = 0, waited = 0, planned = 0, computed = 0;
  double queued = 0;  ///< seconds in which the thread could run and had no processor, by Linux
  std::vector<float> x;
  std::size_t next = 0;  ///< snapshot
};

/// Returns this thread's seconds in the queue for a processor; 0 where the system doesn't count them.
double queued_seconds() {
  double running = 0, queued = 0;
  std::ifstream("/proc/thread-self/schedstat") >> running >> queued;
  return 1e-9 * queued;
}

Rank train_rank(const Stragglers& run, const Task& task, const std::vector<std::int64_t>& images,
                double budget, Snapshots& snapshots, terse::Threads& threads) {
  const int rank = threads.rank();
  const train::Method& method = train::method(run.method);
  const bool together = train::sends_messages(method);
  const train::Stages stages{};
  const terse::Layout layout = Model::layout();
  terse::Threads side = threads.split(0, rank);
  train::OnHost place{terse::Metered(terse::AnyTransport(threads.split(0, rank))), {}};
  const train::Order<train::OnHost> order{method, run.options, stages, layout, place};
  const train::Made optimizer = run.lattice ? lattice_swarm(order) : method.made.on_host(order);
  Model model;
  Rank one{.x = Model::start(run.options.seed)};
  std::vector<float> g(one.x.size()), before;
  Batch batch(static_cast<std::size_t>(run.options.batch));
  terse::barrier(side);
  const double queued = queued_seconds(), waited = place.transport.traffic().seconds;
  const Clock::time_point begin = Clock::now();
  const auto now = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  // A rank that waits for no other takes as many steps as there is time for. One that the system has woken too late computes for less
  // time in the next step.
  double late = 0;
  for (std::uint64_t& step = one.steps; together ? step < run.steps : now() < budget; ++step) {
    const double started = now(), planned = run.planned(rank, step), ready = started + planned - late;
    draw_batch(images, run.options.seed, rank, step, batch);
    model.gradient(one.x, task.training, batch, g);
    std::this_thread::sleep_until(begin + std::chrono::duration<double>(ready));
    late = now() - ready;
    one.planned += planned;
    one.computed += now() - started;
    before = one.x;
    optimizer->step(one.x.data(), g.data(), run.rate_at(step));
    snapshots.add(before, now(), one.next);
  }
  one.seconds = now();
  one.waited = place.transport.traffic().seconds - waited;
  one.queued = queued_seconds() - queued;
  one.bytes = place.transport.traffic().bytes_sent();
  return one;
}

void print(const Task& task, const std::vector<Rank>& ranks, Snapshots& snapshots) {
  std::vector<std::pair<std::vector<float>, std::size_t>> last;
  for (const Rank& rank : ranks) last.emplace_back(rank.x, rank.next);
  Model model;
  std::size_t k = 0;
  std::vector<float> mean;
  for (std::vector<float>& at : snapshots.means(last)) {
    const experiments::Score test = model.score(at, task.test, tested);
    fmt::print("{{\"at\": {:.3f}, \"test\": {}, \"accuracy\": {}}}\n", snapshots.time(k++), number(test.loss),
               number(test.accuracy));
    mean = std::move(at);
  }
  std::string each;
  for (const Rank& rank : ranks)
    each += fmt::format(
        R"({}{{"steps": {}, "seconds": {:.3f}, "waited": {:.3f}, "overrun": {:.4f}, "queued": {:.3f}, "bytes": {}}})",
        each.empty() ? "" : ", ", rank.steps, rank.seconds, rank.waited, rank.computed / rank.planned - 1,
        rank.queued, rank.bytes);
  fmt::print("{{\"done\": 1, \"validation\": {}, \"ranks\": [{}]}}\n",
             number(model.score(mean, task.validation, tested).loss), each);
}

void train_all(const Stragglers& run) {
  const Task task = load(run.options.data);
  std::vector<std::int64_t> images(static_cast<std::size_t>(task.training.count));
  std::iota(images.begin(), images.end(), 0);
  const double budget = run.planned();
  // A run on a busy machine may take many times its budget.
  Snapshots snapshots(budget / static_cast<double>(run.snapshots), 4 * run.snapshots);
  std::vector<Rank> ranks(static_cast<std::size_t>(run.options.ranks));
  terse::ThreadGroup(run.options.ranks, train::deadline_of(run.options)).run([&](terse::Threads& threads) {
    ranks[static_cast<std::size_t>(threads.rank())] =
        train_rank(run, task, images, budget, snapshots, threads);
  });
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank].computed > (1 + run.most_overrun) * ranks[rank].planned)
      throw std::runtime_error(
          fmt::format("rank {}'s gradients took {:.1f} s instead of {:.1f}: the processor was busy; repeat "
                      "on a quiet one",
                      rank, ranks[rank].computed, ranks[rank].planned));
  print(task, ranks, snapshots);
}

}  // namespace

int main(int argc, char** argv) {
  Stragglers run;
  train::Options& options = run.options;
  options.ranks = 8;
  options.batch = 32;
  CLI::App app{"Trains a perceptron by threads, one of which is slow, and prints lines of JSON."};
  app.option_defaults()->always_capture_default();
  std::string stalling = "one";
  app.add_option("--method", run.method, "of the trainer, such as local-sgd")->required();
  app.add_flag("--lattice", run.lattice, "packets of 8 bits, of swarm-sgd-non-blocking and async-swarm-sgd");
  app.add_option("--rate", run.rate, "the learning rate, constant after 20 steps");
  app.add_option("--steps", run.steps, "of each rank; asynchronous ranks take as many as there is time for")
      ->check(CLI::PositiveNumber);
  app.add_option("--gradient", run.gradient, "seconds of a gradient")->check(CLI::PositiveNumber);
  app.add_option("--factor", run.factor, "times as long on rank 0")->check(CLI::Range(1.0, 100.0));
  app.add_option("--stall-every", run.stall_every, "steps between stalls on average; 0: never");
  app.add_option("--stall", run.stall, "seconds of a stall")->check(CLI::PositiveNumber);
  app.add_option("--stalling", stalling, "rank 0, or any")->check(CLI::IsMember({"one", "any"}));
  app.add_option("--most-overrun", run.most_overrun, "of a rank's gradients, as a share of their time");
  app.add_option("--snapshots", run.snapshots, "of the model, at equal distances")
      ->check(CLI::PositiveNumber);
  app.add_option("--period", options.period, "steps between meetings");
  app.add_option("--batch", options.batch, "of a rank")->check(CLI::PositiveNumber);
  app.add_option("--ranks", options.ranks)->check(CLI::Range(1, 64));
  app.add_option("--seed", options.seed);
  app.add_option("--data", options.data);
  CLI11_PARSE(app, argc, argv);
  set_rate(options, run.rate);
  run.any_stalls = stalling == "any";
  return exit_status("stragglers", [&] { unless_diverged([&] { train_all(run); }); });
}
