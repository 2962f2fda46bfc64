// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <string>

// Checkpoint files that are forged: whatever they say, their digests are sound. By xxHash itself, not by terse's Digest.

namespace terse::test {

inline std::string digest(const std::string& bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  std::string text;
  for (const unsigned byte : canonical.digest) {
    text += "0123456789abcdef"[byte / 16];
    text += "0123456789abcdef"[byte % 16];
  }
  return text;
}

inline std::string length_bytes(std::uint64_t length) {
  std::string bytes(8, '\0');
  for (std::size_t b = 0; b < 8; ++b) bytes[b] = static_cast<char>(length >> (8 * b) & 255);
  return bytes;
}

/// A file with that header and data and with sound digests: "$" in the header stands for the members of the
/// metadata that hold them. Without one there are none.
inline std::string sealed(std::string header, const std::string& data) {
  const std::size_t at = header.find('$');
  if (at != header.npos) {
    const std::string members = "\"digest_data\":\"" + digest(data) + "\",\"digest_header\":\"";
    header.replace(at, 1, members + std::string(32, '0') + "\"");
    const std::string sum = digest(length_bytes(header.size()) + header);
    header.replace(at + members.size(), 32, sum);
  }
  return length_bytes(header.size()) + header + data;
}

}  // namespace terse::test
