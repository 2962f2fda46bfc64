// SPDX-License-Identifier: Apache-2.0
#include "figures.hpp"

#include <malloc.h>

#include <cstdlib>
#include <new>
#include <span>
#include <stdexcept>

// Memory is counted where it is taken: this program replaces operator new.

namespace {

thread_local std::int64_t allocated = 0;
void* count(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  allocated += static_cast<std::int64_t>(malloc_usable_size(memory));
  return memory;
}
void release(void* memory) {
  allocated -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return count(std::malloc(size > 0 ? size : 1)); }
void* operator new(std::size_t size, std::align_val_t boundary) {
  const auto unit = static_cast<std::size_t>(boundary);
  return count(std::aligned_alloc(unit, (size + unit - 1) / unit * unit));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }

namespace advise {

std::int64_t allocated_bytes() { return allocated; }

Figures last_of(const Setting& setting, const Figures& mine) {
  constexpr std::size_t most_kinds = 64;
  struct Sent {
    double local, memory;
    std::size_t kinds;
    terse::predict::Batch batches[most_kinds];
  };
  const terse::predict::Round& round = mine.step.round;
  if (round.size() > most_kinds) throw std::logic_error("a step with batches of more than 64 sizes");
  Sent sent{mine.step.local, mine.memory, round.size(), {}};
  std::copy(round.begin(), round.end(), sent.batches);
  terse::Assembly<Sent, terse::AnyTransport> gather(setting.transport);
  Figures last = mine;
  double most = 0;
  for (const Sent& other : gather(setting.transport, sent, terse::Phase::setup)) {
    last.step.local = std::max(last.step.local, other.local);
    last.memory = std::max(last.memory, other.memory);
    // The rank that moves most is the one that others wait for, on links that are all alike.
    const terse::predict::Round theirs(other.batches, other.batches + other.kinds);
    const double moved = terse::predict::transfer_seconds(theirs, terse::predict::ideal_network(0, 1));
    if (moved > most) {
      most = moved;
      last.step.round = theirs;
    }
  }
  return last;
}

}  // namespace advise
