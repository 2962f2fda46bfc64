// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace terse::checkpoint::detail {

inline constexpr std::size_t digits = 32;  // of a digest

/// XXH3-128 of bytes that come in parts, as lower-case digits in the order that xxhsum prints.
class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;
  void add(const void* data, std::size_t bytes);
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// XXH3-64 of bytes.
std::uint64_t hash_of(const void* data, std::size_t bytes);

/// Returns the position of digest_header's digits in the header's text; npos if it has none. In valid JSON this
/// finds a key, never a part of a string, since a comma right before a quote inside a string would end that string.
std::size_t digest_position(const std::string& text);

std::string header_digest(const std::string& text, std::size_t position);

}  // namespace terse::checkpoint::detail

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/digest.ipp"
#endif
