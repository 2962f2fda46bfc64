// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL  // so that nothing needs linking
#endif

#include <xxhash.h>

#include <cstdint>

#include "terse/checkpoint/digest.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint::detail {

struct Digest::State {
  XXH3_state_t hash;
};

TERSE_CORE Digest::Digest() : state_(new State) { XXH3_128bits_reset(&state_->hash); }

TERSE_CORE Digest::~Digest() = default;

TERSE_CORE void Digest::add(const void* data, std::size_t bytes) {
  if (bytes > 0) XXH3_128bits_update(&state_->hash, data, bytes);
}

TERSE_CORE std::string Digest::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_->hash));
  std::string text;
  for (const unsigned char byte : canonical.digest)
    text.append({"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]});
  return text;
}

TERSE_CORE std::uint64_t hash_of(const void* data, std::size_t bytes) { return XXH3_64bits(data, bytes); }

TERSE_CORE std::size_t digest_position(const std::string& text) {
  const std::string key = ",\"digest_header\":\"";
  const std::size_t at = text.find(key);
  return at == text.npos || text.size() - at < key.size() + digits ? text.npos : at + key.size();
}

TERSE_CORE std::string header_digest(const std::string& text, std::size_t position) {
  const std::uint64_t length = text.size();
  Digest digest;
  digest.add(&length, sizeof length);
  digest.add(text.data(), position);
  digest.add(std::string(digits, '0').data(), digits);
  digest.add(text.data() + position + digits, text.size() - position - digits);
  return digest.hex();
}

}  // namespace terse::checkpoint::detail
