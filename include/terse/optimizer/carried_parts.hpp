// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/checkpoint/dealing.hpp"
#include "terse/core/view.hpp"
#include "terse/transport/collectives.hpp"

namespace terse {

/// The outcome of carry_over.
struct CarriedOver {
  int ahead = 0;      ///< the first of the ranks with the most steps, whose shared state all ranks have now
  bool sent = false;  ///< true if that state was sent, because ranks differed in it
  std::vector<std::string>
      zeroed;  ///< errors of parts of the model that other ranks own now; they start at 0
};

namespace detail {

/// The parts of a state, in memory, and this rank's parameters.
class CarriedParts {
 public:
  /// The name of the parameters among the parts.
  static constexpr const char* parameters = "parameters of the rank";

  /// A visitor that lists a state's parts; those of a device are copied to the host.
  struct List {
    CarriedParts* parts;

    template <class T, class Space>
    void operator()(const std::string& name, view<T, Space> part, index_t offset) const {
      Part one{name, sizeof(T), part.size(), offset, {}, {}};
      if constexpr (std::is_same_v<Space, memory::host>) {
        one.data = reinterpret_cast<const std::byte*>(part.data());
      } else {
        one.copy.resize(one.bytes());
        download(view<const T, Space>(part), view<T>(reinterpret_cast<T*>(one.copy.data()), part.size()));
        one.data = one.copy.data();
      }
      parts->parts_.push_back(std::move(one));
    }
    void operator()(const std::string& name, std::uint64_t& value) const {
      (*this)(name, view<std::uint64_t>(&value, 1), 0);
    }
  };
  /// A visitor that copies the parts into another state or, without `apply`, looks for one that is missing.
  struct Bring {
    const CarriedParts* parts;
    bool apply;
    CarriedOver* result;
    std::string* missing;

    template <class T, class Space>
    void operator()(const std::string& name, view<T, Space> to, index_t offset) const {
      const Part* const from = parts->find(name, sizeof(T), to.size(), offset);
      if (from == nullptr) {
        if (!checkpoint::detail::is_error(name))
          *missing = name;
        else if (apply)
          result->zeroed.push_back(name);
      } else if (apply) {
        upload(view<const T>(reinterpret_cast<const T*>(from->data), to.size()), to);
      }
    }
    void operator()(const std::string& name, std::uint64_t& value) const {
      (*this)(name, view<std::uint64_t>(&value, 1), 0);
    }
  };

  /// Sends the parts of rank `from`, but for its errors, to the ranks that join, which must have none. Collective.
  template <class T>
  void give(T& channel, int from, const std::vector<int>& joining) {
    using Memory = typename std::remove_reference_t<T>::memory;
    const bool gives = channel.rank() == from;
    std::vector<std::byte> packed;
    if (gives) packed = pack();
    const index_t size = broadcast(channel, static_cast<index_t>(packed.size()), from);
    const bool takes = std::find(joining.begin(), joining.end(), channel.rank()) != joining.end();
    buffer<std::byte, Memory> bytes(gives || takes ? size : 0);
    if (gives) upload(view<const std::byte>(packed.data(), size), bytes.all());
    Parts<std::byte, Memory> messages(bytes.all());
    for (const int rank : joining)
      if (gives) messages.send(rank, Share(size, 0, 1));
    if (takes) messages.receive(from, Share(size, 0, 1));
    messages.exchange(channel);
    if (!takes) return;
    packed.resize(static_cast<std::size_t>(size));
    download(view<const std::byte, Memory>(bytes.all()), view<std::byte>(packed.data(), size));
    unpack(packed);
  }

 private:
  struct Part {
    std::string name;
    std::size_t element;  // its bytes
    index_t count, offset;
    const std::byte* data;
    std::vector<std::byte> copy;
    std::size_t bytes() const { return static_cast<std::size_t>(count) * element; }
  };
  /// The numbers before the name and the data of a packed part.
  struct Header {
    std::uint64_t name, element;
    index_t count, offset;
  };
  const Part* find(const std::string& name, std::size_t element, index_t count, index_t offset) const {
    const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const Part& one) {
      return one.name == name && one.element == element && one.count == count && one.offset == offset;
    });
    return found == parts_.end() ? nullptr : &*found;
  }
  std::vector<std::byte> pack() const {
    std::vector<std::byte> packed;
    const auto append = [&packed](const void* from, std::size_t bytes) {
      packed.insert(packed.end(), static_cast<const std::byte*>(from),
                    static_cast<const std::byte*>(from) + bytes);
    };
    for (const Part& part : parts_) {
      if (checkpoint::detail::is_error(part.name)) continue;
      const Header header{part.name.size(), part.element, part.count, part.offset};
      append(&header, sizeof header);
      append(part.name.data(), part.name.size());
      append(part.data, part.bytes());
    }
    return packed;
  }
  void unpack(const std::vector<std::byte>& packed) {
    const std::byte* at = packed.data();
    const auto take = [&at](void* to, std::size_t bytes) {
      if (bytes > 0) std::memcpy(to, at, bytes);
      at += bytes;
    };
    while (at != packed.data() + packed.size()) {
      Header header;
      take(&header, sizeof header);
      Part one{std::string(header.name, ' '), header.element, header.count, header.offset, {}, {}};
      take(one.name.data(), one.name.size());
      one.copy.resize(one.bytes());
      take(one.copy.data(), one.copy.size());
      one.data = one.copy.data();
      parts_.push_back(std::move(one));
    }
  }

  std::vector<Part> parts_;
};

}  // namespace detail

}  // namespace terse
