// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terse/core/packet.hpp"
#include "terse/laws/example.hpp"

// What laws see of a compressor: the same few calls whatever its type, so that laws are compiled once.

namespace terse::laws {

/// What a compressor and its error feedback claim.
struct Claims {
  std::string name;
  bool unbiased = false;           ///< what is read has the message as its expectation
  bool contractive = false;        ///< errors are less than the message
  bool tracks = false;             ///< under Residual the mean is tracked, see Traits
  bool variable = false;           ///< the size of a section depends on the data
  bool zero_to_zero = false;       ///< a message of zeros reads as zeros
  std::optional<bool> stochastic;  ///< where it says so
  bool accumulates = false;        ///< what the feedback keeps is what was not sent
  bool exact = true;               ///< ... to the last bit
  bool decodes_sums = false;       ///< so that sums of packets are right to rounding
  float fresh = 1;                 ///< share of what was not sent that is kept
  float old = 0;                   ///< share of the old error that is kept
  std::function<double(const std::vector<index_t>&)> delta, omega;  ///< of these segments; empty: not stated
};

/// What random choices depend on.
struct Moment {
  std::uint64_t seed = 1;  ///< of the run
  std::uint64_t step = 1;  ///< of the message
  int rank = 0;            ///< that sends it
};

/// A packet between two margins that nobody may write to.
class Packet {
 public:
  Packet(index_t most, std::byte fill) : room_(at(2 * margin + most), fill), most_(most), fill_(fill) {}
  std::byte* data() { return room_.data() + margin; }
  const std::byte* data() const { return room_.data() + margin; }
  index_t most() const { return most_; }
  bool intact() const {
    const auto untouched = [this](std::byte b) { return b == fill_; };
    return std::all_of(room_.begin(), room_.begin() + margin, untouched) &&
           std::all_of(room_.end() - margin, room_.end(), untouched);
  }
  index_t bytes = 0;  ///< what `encode` said

 private:
  static constexpr std::ptrdiff_t margin = 512;  // keeps the alignment of new
  std::vector<std::byte> room_;
  index_t most_;
  std::byte fill_;
};
/// The packets of one message.
using Sent = std::vector<Packet>;

/// One rank's compressor and error feedback over one arena.
class Rank {
 public:
  Rank() = default;
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  virtual ~Rank() = default;

  /// As if no message had been there.
  virtual void reset() = 0;
  /// One packet for each part of an arena's message.
  virtual Sent encode(const Values& message, const Moment& moment, std::byte fill = std::byte{0xA5}) = 0;
  /// The weighted sum of several ranks' packets; `packets[r][p]` begins part p of rank r's.
  virtual void decode(const std::vector<std::vector<const std::byte*>>& packets,
                      const std::vector<float>& weights, const Moment& moment, Values& sum) = 0;
  /// What the feedback makes of a message: with zeros, what it will add to the next one.
  virtual Values compensated(const Values& message) = 0;
  virtual bool take_bad() = 0;

  virtual int parts() const = 0;
  /// Where a part's section lies in its packet, and how long it is at most.
  virtual index_t section_at(int part) const = 0;
  virtual index_t section_most(int part) const = 0;
  virtual index_t packet_most(int part) const = 0;
  virtual const char* fault(int part, const std::byte* section, index_t bytes) const = 0;

  Values decode(const Sent& packets, const Moment& moment, float weight = 1) {
    std::vector<const std::byte*> begins;
    for (const Packet& packet : packets) begins.push_back(packet.data());
    Values sum;
    decode(std::vector<std::vector<const std::byte*>>{begins}, {weight}, moment, sum);
    return sum;
  }
};

/// What the laws examine: a compressor and an error feedback of any types, as functions, with what they claim.
class Subject {
 public:
  Subject() = default;
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
  virtual ~Subject() = default;
  virtual const Claims& claims() const = 0;
  /// An example's elements, and which of them this compressor takes.
  virtual Arena arena(const Example& example) const = 0;
  virtual std::unique_ptr<Rank> rank(const Arena& arena) const = 0;
};

/// A law: on which examples it is tried, and what is wrong with one of them, "" where nothing is.
struct Law {
  std::string name;
  bool applies = true;              ///< to this compressor
  std::vector<Example> examples{};  ///< on which it is tried
  std::function<std::string(const Example&)> violation;
  bool shrinks = true;  ///< a smaller example says as much
};

/// Message m of an example is sent in step `step + m`.
inline Moment moment(const Example& example, std::size_t m = 0, int rank = 0) {
  return {example.seed, example.step + m, rank};
}

/// Where two packets differ behind their headers, or "".
inline std::string difference(const Sent& a, const Sent& b) {
  for (std::size_t p = 0; p < a.size(); ++p) {
    if (a[p].bytes != b[p].bytes)
      return say("%lld bytes and %lld", static_cast<long long>(a[p].bytes),
                 static_cast<long long>(b[p].bytes));
    for (index_t i = static_cast<index_t>(sizeof(PacketHeader)); i < a[p].bytes; ++i)
      if (a[p].data()[i] != b[p].data()[i])
        return say("byte %lld of packet %zu, behind the header, is %02x and %02x",
                   static_cast<long long>(i) - static_cast<long long>(sizeof(PacketHeader)), p,
                   static_cast<unsigned>(a[p].data()[i]), static_cast<unsigned>(b[p].data()[i]));
  }
  return "";
}

/// Where two vectors of elements differ, both zeros being alike, or "".
inline std::string difference(const Values& a, const Values& b) {
  for (std::size_t e = 0; e < a.size(); ++e)
    if (!std::equal_to{}(a[e], b[e])) return say("element %zu: ", e) + say(a[e]) + " and " + say(b[e]);
  return "";
}

/// Where two vectors are farther apart than some roundings of their largest element, or "".
inline std::string distance(const Values& a, const Values& b) {
  float largest = 0;
  for (const float value : b) largest = std::max(largest, std::abs(value));
  for (std::size_t e = 0; e < a.size(); ++e)
    if (!(std::abs(a[e] - b[e]) <= 64 * 0x1p-24F * largest))
      return say("element %zu: ", e) + say(a[e]) + " and " + say(b[e]);
  return "";
}

/// The first element that is not finite, or "".
inline std::string not_finite(const Values& values) {
  for (std::size_t e = 0; e < values.size(); ++e)
    if (!std::isfinite(values[e])) return say("element %zu: ", e) + say(values[e]);
  return "";
}

}  // namespace terse::laws
