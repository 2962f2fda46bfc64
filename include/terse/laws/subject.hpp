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

// A type-erased interface of compressors for the laws, so that laws are compiled once.

namespace terse::laws {

/// Claims of a compressor and its error feedback.
struct Claims {
  std::string name;
  bool unbiased = false;           ///< the expectation of the decoded message is the message
  bool contractive = false;        ///< the norm of errors is less than that of the message
  bool tracks = false;             ///< with Residual the mean is tracked, see Traits
  bool variable = false;           ///< the size of a section depends on the data
  bool selects = false;            ///< a selection picks the elements to send
  bool zero_to_zero = false;       ///< a message of zeros decodes to zeros
  std::optional<bool> stochastic;  ///< packets depend on random draws; empty if not stated
  bool accumulates = false;        ///< the feedback keeps the unsent part
  bool exact = true;               ///< the feedback keeps the unsent part to the last bit
  bool decodes_sums = false;       ///< decodes sums of packets, which are right only up to rounding
  float fresh = 1;                 ///< share of the unsent part that is kept
  float old = 0;                   ///< share of the old error that is kept
  std::function<double(const std::vector<index_t>&)> delta, omega;  ///< by segments; empty: not stated
};

/// The arguments of random draws.
struct Moment {
  std::uint64_t seed = 1;  ///< seed of the run
  std::uint64_t step = 1;  ///< step of the message
  int rank = 0;            ///< sender of the message
};

/// A packet between two margins that must not be written. The next packet has room for every element a second time.
class Packet {
 public:
  Packet(index_t most, std::byte fill, index_t elements)
      : room_(at(2 * margin + most + 8 * elements), fill), most_(most), fill_(fill) {}
  std::byte* data() { return room_.data() + margin; }
  const std::byte* data() const { return room_.data() + margin; }
  index_t most() const { return most_; }
  bool intact() const {
    const auto untouched = [this](std::byte b) { return b == fill_; };
    return std::all_of(room_.begin(), room_.begin() + margin, untouched) &&
           std::all_of(room_.begin() + margin + most_, room_.end(), untouched);
  }
  index_t bytes = 0;  ///< bytes that `encode` returned

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

  /// Resets the state to that before the first message.
  virtual void reset() = 0;
  /// Encodes an arena's message as one packet for each part.
  virtual Sent encode(const Values& message, const Moment& moment, std::byte fill = std::byte{0xA5}) = 0;
  /// Decodes the weighted sum of several ranks' packets; `packets[r][p]` points to part p of rank r.
  virtual void decode(const std::vector<std::vector<const std::byte*>>& packets,
                      const std::vector<float>& weights, const Moment& moment, Values& sum) = 0;
  /// Returns the message after compensation: for a message of zeros, the stored error.
  virtual Values compensated(const Values& message) = 0;
  virtual bool take_bad() = 0;

  virtual int parts() const = 0;
  /// Returns the offset of a part's section in its packet, or the maximum bytes of the section (`section_most`).
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

/// The subject of the laws: a type-erased compressor and error feedback, with their claims.
class Subject {
 public:
  Subject() = default;
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
  virtual ~Subject() = default;
  virtual const Claims& claims() const = 0;
  /// Returns an arena for an example's elements, with those that this compressor encodes.
  virtual Arena arena(const Example& example) const = 0;
  virtual std::unique_ptr<Rank> rank(const Arena& arena) const = 0;
};

/// A law: the examples on which it is tried, and a function that describes a violation, or returns "" if there is
/// none.
struct Law {
  std::string name;
  bool applies = true;              ///< true if it applies to this compressor
  std::vector<Example> examples{};  ///< examples on which it is tried
  std::function<std::string(const Example&)> violation;
  bool shrinks = true;   ///< true if a failing example may be shrunk
  bool decides = false;  ///< true if no other law is tried after this one is broken
};

/// Returns the moment of message m of an example: step `step + m`.
inline Moment moment(const Example& example, std::size_t m = 0, int rank = 0) {
  return {example.seed, example.step + m, rank};
}

/// Describes the first difference of two packets after their headers, or returns "".
inline std::string difference(const Sent& a, const Sent& b) {
  for (std::size_t p = 0; p < a.size(); ++p) {
    if (a[p].bytes != b[p].bytes)
      return say("%lld bytes and %lld", static_cast<long long>(a[p].bytes),
                 static_cast<long long>(b[p].bytes));
    for (index_t i = static_cast<index_t>(sizeof(PacketHeader)); i < a[p].bytes; ++i)
      if (a[p].data()[i] != b[p].data()[i])
        return say("byte %lld of packet %zu, after the header, is %02x and %02x",
                   static_cast<long long>(i) - static_cast<long long>(sizeof(PacketHeader)), p,
                   static_cast<unsigned>(a[p].data()[i]), static_cast<unsigned>(b[p].data()[i]));
  }
  return "";
}

/// Describes the first difference of two vectors, with -0 equal to 0, or returns "".
inline std::string difference(const Values& a, const Values& b) {
  for (std::size_t e = 0; e < a.size(); ++e)
    if (!std::equal_to{}(a[e], b[e])) return say("element %zu: ", e) + say(a[e]) + " and " + say(b[e]);
  return "";
}

/// Describes the first difference of two vectors above 64 roundings of the largest element, or returns "".
inline std::string distance(const Values& a, const Values& b) {
  float largest = 0;
  for (const float value : b) largest = std::max(largest, std::abs(value));
  for (std::size_t e = 0; e < a.size(); ++e)
    if (!(std::abs(a[e] - b[e]) <= 64 * 0x1p-24F * largest))
      return say("element %zu: ", e) + say(a[e]) + " and " + say(b[e]);
  return "";
}

/// Describes the first element that is not finite, or returns "".
inline std::string not_finite(const Values& values) {
  for (std::size_t e = 0; e < values.size(); ++e)
    if (!std::isfinite(values[e])) return say("element %zu: ", e) + say(values[e]);
  return "";
}

}  // namespace terse::laws
