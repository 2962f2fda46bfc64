// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL  // so that nothing needs linking
#endif

#include <xxhash.h>

#include <cstddef>
#include <string>

namespace terse::checkpoint::detail {

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

}  // namespace terse::checkpoint::detail
