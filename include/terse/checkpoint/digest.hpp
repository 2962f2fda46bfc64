// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL  // so that nothing needs linking
#endif

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace terse::checkpoint::detail {

inline constexpr std::size_t digits = 32;  // of a digest

/// XXH3-128 of bytes that come in parts, as lower-case digits in the order that xxhsum prints.
class Digest {
 public:
  Digest() { XXH3_128bits_reset(&state_); }
  void add(const void* data, std::size_t bytes) {
    if (bytes > 0) XXH3_128bits_update(&state_, data, bytes);
  }
  std::string hex() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_));
    std::string text;
    for (const unsigned char byte : canonical.digest)
      text.append({"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]});
    return text;
  }

 private:
  XXH3_state_t state_;
};

/// Where the digits of digest_header start in the header's text; npos if it has none. A comma right before a
/// quote inside a string would end that string, so in valid JSON this finds a key, never a part of a string.
inline std::size_t digest_position(const std::string& text) {
  const std::string key = ",\"digest_header\":\"";
  const std::size_t at = text.find(key);
  return at == text.npos || text.size() - at < key.size() + digits ? text.npos : at + key.size();
}

inline std::string header_digest(const std::string& text, std::size_t position) {
  const std::uint64_t length = text.size();
  Digest digest;
  digest.add(&length, sizeof length);
  digest.add(text.data(), position);
  digest.add(std::string(digits, '0').data(), digits);
  digest.add(text.data() + position + digits, text.size() - position - digits);
  return digest.hex();
}

}  // namespace terse::checkpoint::detail
