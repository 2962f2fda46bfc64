// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "faulty.hpp"
#include "methods.hpp"
#include "model.hpp"
#include "terse/transport/collectives.hpp"

// Steps of all methods for a long time, with ranks that are late at random: memory that grows would show, and parameters that are
// not what they would be without.

/// Where the address sanitizer is linked in.
extern "C" __attribute__((weak)) std::size_t __sanitizer_get_current_allocated_bytes();

namespace faults {

/// Of this process, in bytes; 0 where there is no /proc.
inline long long resident() {
  long long pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%*s %lld", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * 4096;
}

/// A round is a step of each method. In one of eight a rank sleeps for up to half a second, at one of the round's batches. Every 64
/// rounds each rank says where it is: a line of JSON. Ends with the first of those after `duration`.
template <terse::Transport T>
void soak(T&& raw, std::chrono::minutes duration) {
  using clock = std::chrono::steady_clock;
  const auto begin = clock::now();
  const int rank = raw.rank();
  Ambush ambush{.what = "late", .quiet = true};
  terse::AnyTransport transport(Faulty<std::remove_cvref_t<T>>(std::forward<T>(raw), ambush));
  const terse::Layout whole = layout();
  struct Run {
    const Method& method;
    std::unique_ptr<Stepper> optimizer;
    Floats x;
  };
  std::vector<Run> runs;
  for (const Method& method : methods()) {
    // Neighbours on a graph are not to be alike.
    const bool alike = method.with != std::string("neighbours") && method.name != "swarm-sgd";
    const terse::Options options{.check_payload = true, .compare_every = alike ? 16U : 0U};
    runs.push_back({method, method.make(transport, whole, options), noise(whole, 0, 0)});
  }
  const auto chance = static_cast<std::uint64_t>(begin.time_since_epoch().count());
  std::uint64_t batches = 0, times_late = 0;
  std::chrono::milliseconds late{};
  for (std::uint64_t round = 1;; ++round) {
    // A machine that has something else to do.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const terse::Draw draw = terse::Draw::local(chance, rank, round, terse::Purpose::user);
    if (!ambush.armed && batches > 0 && draw.below(8, 0) == 0) {
      ambush.armed = true;
      ambush.at = ambush.batches + draw.below(batches, 1);
      // 1 to 500 ms, each order of magnitude as often.
      ambush.patience = std::chrono::milliseconds(
          std::lround(std::pow(500.0, static_cast<double>(draw.below(1000, 2)) / 1000)));
      late += ambush.patience;
      ++times_late;
    }
    batches = ambush.batches;
    for (Run& run : runs) run.optimizer->step(run.x, noise(whole, rank, round));
    batches = ambush.batches - batches;
    if (round % 64 != 0) continue;
    const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(clock::now() - begin);
    std::string line = "{\"rank\": " + std::to_string(rank) + ", \"round\": " + std::to_string(round) +
                       ", \"seconds\": " + std::to_string(static_cast<double>(now.count()) / 1000) +
                       ", \"late\": " + std::to_string(times_late) +
                       ", \"late_ms\": " + std::to_string(late.count()) +
                       ", \"resident\": " + std::to_string(resident());
    if (__sanitizer_get_current_allocated_bytes != nullptr)
      line += ", \"allocated\": " + std::to_string(__sanitizer_get_current_allocated_bytes());
    for (const Run& run : runs) line += ", \"" + run.method.name + "\": \"" + hash(run.x) + "\"";
    say(line + "}");
    if (terse::broadcast(transport, now >= duration)) break;
  }
}

}  // namespace faults
