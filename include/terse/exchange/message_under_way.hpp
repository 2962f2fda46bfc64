// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

namespace terse::detail {

/// The message of an exchange's round, of any type, kept while the round is in flight. No memory is allocated.
template <class Owner>
class MessageUnderWay {
 public:
  template <class M>
  void keep(const M& message) {
    static_assert(
        sizeof(M) <= room && alignof(M) <= alignof(std::max_align_t) && std::is_trivially_copyable_v<M> &&
            std::is_trivially_destructible_v<M>,
        "terse: a message is a functor of views and numbers of at most 1 KiB, which can be copied as it "
        "lies in memory");
    ::new (static_cast<void*>(bytes_)) M(message);
    advance_ = &advance_with<M>;
    read_ = &read_with<M>;
  }
  /// Calls owner.advance(message, block).
  bool advance(Owner& owner, bool block) { return advance_(owner, bytes_, block); }
  /// Calls owner.read(message).
  void read(Owner& owner) { read_(owner, bytes_); }

 private:
  static constexpr std::size_t room = 1024;
  template <class M>
  static bool advance_with(Owner& owner, const void* kept, bool block) {
    return owner.advance(*static_cast<const M*>(kept), block);
  }
  template <class M>
  static void read_with(Owner& owner, const void* kept) {
    owner.read(*static_cast<const M*>(kept));
  }

  alignas(std::max_align_t) std::byte bytes_[room];
  bool (*advance_)(Owner&, const void*, bool) = nullptr;
  void (*read_)(Owner&, const void*) = nullptr;
};

}  // namespace terse::detail
