// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

/// The bytes that the fuzzer has chosen, as decisions: zeros once they are used up.
struct Input {
  const std::uint8_t* data;
  std::size_t size;
  std::uint8_t byte() {
    if (size == 0) return 0;
    --size;
    return *data++;
  }
  std::size_t word() {
    const std::size_t low = byte();
    return low | static_cast<std::size_t>(byte()) << 8;
  }
  std::string rest() {
    std::string bytes(reinterpret_cast<const char*>(data), size);
    size = 0;
    return bytes;
  }
};
