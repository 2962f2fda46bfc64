// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "terse/core/config.hpp"
#include "terse/core/step_scalars.hpp"

namespace terse {

namespace detail {

/// Philox4x32-10: 128 random bits as a pure function of a 128-bit counter and a 64-bit key.
/// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3.
TERSE_HD constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                           std::array<std::uint32_t, 2> key) {
  // Words have names: without optimization an array's operator is a call.
  std::uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3];
  std::uint32_t first_key = key[0], second_key = key[1];
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53} * a;
    const std::uint64_t second = std::uint64_t{0xCD9E8D57} * c;
    a = static_cast<std::uint32_t>(second >> 32) ^ b ^ first_key;
    b = static_cast<std::uint32_t>(second);
    c = static_cast<std::uint32_t>(first >> 32) ^ d ^ second_key;
    d = static_cast<std::uint32_t>(first);
    first_key += 0x9E3779B9;
    second_key += 0xBB67AE85;
  }
  return {a, b, c, d};
}

}  // namespace detail

/// The purposes of random numbers. Each has a separate stream, so that a new consumer changes no other.
enum class Purpose : std::uint32_t {
  quantization = 1,
  selection = 2,
  matching = 3,
  shuffle = 4,
  second_quantization = 5,  // of the mean, by its owner: independent of its message's quantization
  initialization = 6,
  user = 16
};

/// A stateless random stream: each number is a function of (seed, rank or shared, step, purpose, index) alone. `shared`
/// streams are equal on all ranks (for random-k), `local` ones differ (for stochastic rounding).
class Draw {
 public:
  static constexpr Draw shared(std::uint64_t seed, std::uint64_t step, Purpose purpose) {
    return Draw(seed, 0, step, purpose);
  }
  static constexpr Draw local(std::uint64_t seed, int rank, std::uint64_t step, Purpose purpose) {
    return Draw(seed, static_cast<std::uint32_t>(rank) + 1, step, purpose);
  }

  /// Returns 128 bits for index `block` of this stream: 16 bits for each of eight elements.
  TERSE_HD constexpr std::array<std::uint32_t, 4> block(std::uint64_t block) const {
    // The step's upper bits share a word with the rank; 2^40 steps and 2^24 ranks fit.
    return detail::philox4x32(
        {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), low_, high_}, key_);
  }
  /// The key and the upper half of the counter, for code that makes many blocks at once.
  struct Stream {
    std::array<std::uint32_t, 2> key;
    std::uint32_t low, high;
  };
  constexpr Stream stream() const { return {key_, low_, high_}; }
  /// Returns the same stream in another step.
  TERSE_HD constexpr Draw at_step(std::uint64_t step) const {
    Draw other = *this;
    other.low_ = static_cast<std::uint32_t>(step);
    other.high_ = static_cast<std::uint32_t>(step >> 32) << 24 ^ stream_;
    return other;
  }
  /// Returns 64 random bits for `index`.
  TERSE_HD constexpr std::uint64_t bits(std::uint64_t index) const {
    const std::array<std::uint32_t, 4> words = block(index / 2);
    return index % 2 == 0 ? words[0] | std::uint64_t{words[1]} << 32
                          : words[2] | std::uint64_t{words[3]} << 32;
  }
  /// Returns a uniform number in [0, bound), bound > 0; the bias is below bound / 2^64.
  constexpr std::uint64_t below(std::uint64_t bound, std::uint64_t index) const {
    __extension__ using wide = unsigned __int128;
    return static_cast<std::uint64_t>((wide{bits(index)} * bound) >> 64);
  }

 private:
  constexpr Draw(std::uint64_t seed, std::uint32_t stream, std::uint64_t step, Purpose purpose)
      : key_{static_cast<std::uint32_t>(seed),
             static_cast<std::uint32_t>(seed >> 32) ^ (static_cast<std::uint32_t>(purpose) * 0x9E3779B1U)},
        low_(static_cast<std::uint32_t>(step)),
        high_(static_cast<std::uint32_t>(step >> 32) << 24 ^ stream),
        stream_(stream) {}

  std::array<std::uint32_t, 2> key_;
  std::uint32_t low_;
  std::uint32_t high_;
  std::uint32_t stream_;  // rank + 1; 0: shared
};

/// A stream that may read its step from the executor's memory, so that recorded kernels can be replayed in another
/// step.
struct StepDraw : Draw {
  const StepScalars* now = nullptr;  ///< nullptr: the step for which the draw was made

  StepDraw(const Draw& draw, const StepScalars* now_ = nullptr)
      : Draw(draw), now(now_) {}  // NOLINT: implicit
  TERSE_HD Draw here() const { return now == nullptr ? Draw(*this) : at_step(now->step); }
};

}  // namespace terse
