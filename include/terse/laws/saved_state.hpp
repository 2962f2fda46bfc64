// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "terse/core/view.hpp"

namespace terse::laws::detail {

/// The state that an object's walk(visit) visits, by name, as in a checkpoint.
class SavedState {
 public:
  template <class Walked>
  explicit SavedState(Walked& walked) {
    walked.walk([&](const std::string& name, auto&&... part) {
      if (name.empty()) fault_ = "a part of the state has no name";
      if (parts_.count(name) != 0) fault_ = "two parts of the state are called '" + name + "'";
      copy_part(parts_[name], true, part...);
    });
  }
  /// Describes names that a checkpoint can't contain, or returns "" if all are different.
  const std::string& fault() const { return fault_; }
  /// Loads the state into an object that is made in the same way.
  template <class Walked>
  void load(Walked& walked) const {
    auto parts = parts_;
    walked.walk([&](const std::string& name, auto&&... part) { copy_part(parts[name], false, part...); });
  }

 private:
  template <class T>
  static void copy_part(std::vector<std::byte>& bytes, bool save, view<T> part, index_t) {
    copy_bytes(bytes, save, part.data(), static_cast<std::size_t>(part.size()) * sizeof(T));
  }
  static void copy_part(std::vector<std::byte>& bytes, bool save, std::uint64_t& value) {
    copy_bytes(bytes, save, &value, sizeof value);
  }
  static void copy_bytes(std::vector<std::byte>& bytes, bool save, void* place, std::size_t count) {
    if (save) bytes.resize(count);
    if (count > 0) save ? std::memcpy(bytes.data(), place, count) : std::memcpy(place, bytes.data(), count);
  }

  std::map<std::string, std::vector<std::byte>> parts_;
  std::string fault_;
};

}  // namespace terse::laws::detail
