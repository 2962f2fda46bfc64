// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "terse/checkpoint/safetensors.hpp"
#include "terse/core/half.hpp"
#include "terse/core/view.hpp"

// Conversion between the parts of a walk and tensors "state.<part>": buffers of any memory space are flat, scalars
// have no dimensions.

namespace terse::checkpoint::detail {

/// Views for the host to read: of the same memory if it is the host's, otherwise of copies that live as long as this
/// object.
class HostCopies {
 public:
  template <class T>
  view<const T> operator()(view<const T> from) {
    return from;
  }
  template <class T, class Space>
  view<const T> operator()(view<const T, Space> from) {
    std::vector<std::byte>& held = copies_.emplace_back(static_cast<std::size_t>(from.size()) * sizeof(T));
    const view<T> to(reinterpret_cast<T*>(held.data()), from.size());
    download(from, to);
    return to;
  }

 private:
  std::deque<std::vector<std::byte>> copies_;
};

template <class T>
constexpr const char* dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return "F32";
  else if constexpr (std::is_same_v<T, bf16>)
    return "BF16";
  else if constexpr (std::is_same_v<T, fp16>)
    return "F16";
  else if constexpr (std::is_same_v<T, std::uint8_t>)
    return "U8";
  else if constexpr (std::is_same_v<T, std::uint16_t>)
    return "U16";
  else {
    static_assert(std::is_same_v<T, std::uint64_t>, "terse: state is float, uint8, uint16 or uint64");
    return "U64";
  }
}

/// A visitor that lists the parts of a state as tensors.
struct Collect {
  std::vector<Tensor>& tensors;
  Metadata& metadata;
  HostCopies& copies;

  template <class T, class Space>
  void operator()(const std::string& name, view<T, Space> part, index_t offset) const {
    const view<const T> here = copies(view<const T, Space>(part));
    tensors.push_back({"state." + name, dtype_of<T>(), std::vector<index_t>{part.size()},
                       reinterpret_cast<const std::byte*>(here.data()),
                       static_cast<std::size_t>(part.size()) * sizeof(T)});
    if (offset != 0) metadata["offset." + name] = std::to_string(offset);
  }
  void operator()(const std::string& name, std::uint64_t& value) const {
    tensors.push_back({"state." + name, "U64", {}, reinterpret_cast<const std::byte*>(&value), sizeof value});
  }
};

/// A tensor from which state is to be restored.
struct Wanted {
  std::string name, dtype;
  std::vector<index_t> shape;
  index_t offset = 0;  // the arena index of its first element
};
/// A function that reads bytes of a tensor, starting at byte `at`.
using Put = std::function<void(std::size_t at, std::span<const std::byte>)>;

/// A source of state.
class Source {
 public:
  virtual ~Source() = default;
  /// Throws checkpoint_error if there is no such tensor.
  virtual void check(const Wanted& wanted) const = 0;
  virtual void read(const Wanted& wanted, const Put& put) const = 0;
};

/// A source of state in one file, which must have exactly the wanted tensors.
class OneFile : public Source {
 public:
  explicit OneFile(const File& file) : file_(file) {}
  void check(const Wanted& wanted) const override {
    static_cast<void>(file_.tensor(wanted.name, wanted.dtype, wanted.shape));
  }
  void read(const Wanted& wanted, const Put& put) const override {
    put(0, file_.tensor(wanted.name, wanted.dtype, wanted.shape));
  }

 private:
  const File& file_;
};

/// A visitor that checks that a source has every part or, with `apply`, copies the parts out.
struct Restore {
  const Source& source;
  bool apply;

  template <class T, class Space>
  void operator()(const std::string& name, view<T, Space> part, index_t offset) const {
    // Written out for nvcc, which loses the braces.
    take({"state." + name, dtype_of<T>(), std::vector<index_t>{part.size()}, offset}, part);
  }
  void operator()(const std::string& name, std::uint64_t& value) const {
    take({"state." + name, "U64", {}, 0}, view<std::uint64_t>(&value, 1));
  }
  template <class T, class Space>
  void take(const Wanted& wanted, view<T, Space> to) const {
    if (!apply) return source.check(wanted);
    // Copied as bytes: a file's tensors may start at any address.
    source.read(wanted, [to](std::size_t at, std::span<const std::byte> from) {
      upload(view<const std::byte>(from), view<std::byte, Space>(reinterpret_cast<std::byte*>(to.data()) + at,
                                                                 static_cast<index_t>(from.size())));
    });
  }
};

}  // namespace terse::checkpoint::detail
