// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <new>
#include <type_traits>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "terse/core/config.hpp"
#include "terse/core/layout.hpp"

namespace terse {

/// The memory spaces. A space is part of a view's type, so that host code can't use a device pointer. Spaces other
/// than the host's define how bytes are copied; `device` is completed by device/cuda.cuh, which includes CUDA:
///
///     static void* allocate(std::size_t bytes)            zeroed, aligned to 256 bytes; throws std::bad_alloc
///     static void release(void*) noexcept                 also of nullptr
///     static void download(void* to, const void* from, std::size_t bytes)
///     static void upload(void* to, const void* from, std::size_t bytes)
///
/// The last two wait for all work in flight in the space, and return when the bytes have arrived. If a space has
/// allocate_uninitialized, which is allocate without zeroing, `uninitialized` buffers use it.
namespace memory {
struct host {};
struct device;
}  // namespace memory

namespace detail {

/// A container of T in contiguous host memory. It replaces concepts of std::ranges, whose header takes longer to
/// compile than all of this library's.
template <class Container, class T>
concept ContiguousOf = requires(Container container) {
  std::begin(container);
  { std::size(container) } -> std::convertible_to<std::size_t>;
  { std::data(container) } -> std::convertible_to<T*>;
};

/// A container or host view of elements that can't be used as T: of another type, or constant where T isn't.
template <class Container, class T>
concept HoldsOther = requires(Container container) {
  std::begin(container);
  *std::data(container);
}
&&!std::convertible_to<decltype(std::data(std::declval<Container&>())), T*>;

}  // namespace detail

/// A view of `size` elements of T in memory space `Space`, without ownership. Host views are made from any contiguous
/// container, device views from a pointer and a size.
template <class T, class Space = memory::host>
class view {
 public:
  using element = T;
  using space = Space;

  view() = default;
  TERSE_HD view(T* data, index_t size) : data_(data), size_(size) {}

  /// Makes a host view of a contiguous container: std::vector, std::span, std::array.
  template <class Container>
  requires(std::same_as<Space, memory::host>&& detail::ContiguousOf<Container&, T>)
      view(Container&& container)  // NOLINT: a view is meant to be implicit
      : data_(std::data(container)), size_(static_cast<index_t>(std::size(container))) {}

  /// Converts a view of mutable elements to one of constant elements, in the same memory space only.
  template <class U>
  requires(std::is_const_v<T>&& std::same_as<U, std::remove_const_t<T>>) TERSE_HD view(view<U, Space> other)
      : data_(other.data()), size_(other.size()) {}  // NOLINT: implicit

  // Compilers print the line of a deleted function that is called, so that line contains the error message.
  // clang-format off
  template <class U, class Other> requires(!std::same_as<Other, Space>)
  view(view<U, Other>) = delete;  // terse: a view keeps its memory space; copy between host and device
  // clang-format on

  TERSE_HD T* data() const { return data_; }
  TERSE_HD index_t size() const { return size_; }
  TERSE_HD bool empty() const { return size_ == 0; }
  TERSE_HD T& operator[](index_t i) const { return data_[i]; }

  /// Returns `count` elements from `offset`; the caller must stay within the size.
  TERSE_HD view part(index_t offset, index_t count) const { return {data_ + offset, count}; }

  /// Returns an iterator, for host code.
  T* begin() const requires std::same_as<Space, memory::host> { return data_; }
  T* end() const requires std::same_as<Space, memory::host> { return data_ + size_; }

 private:
  T* data_ = nullptr;
  index_t size_ = 0;
};

/// The memory that executor E reads.
template <class E, class T = float>
using in = view<const T, typename E::memory>;
/// The memory that executor E writes.
template <class E, class T = float>
using out = view<T, typename E::memory>;

namespace detail {

/// A tag for buffers whose elements are never read before they are written: scratch, and packets in flight.
struct Uninitialized {};

}  // namespace detail

/// The argument that leaves a buffer's elements unset: `buffer<float>(n, uninitialized)`.
inline constexpr detail::Uninitialized uninitialized{};

/// The old name, which version 0.2 removes.
[[deprecated("its name is uninitialized")]] inline constexpr detail::Uninitialized unwritten{};

/// A move-only owner of elements of a trivial T in memory space `Space`, zero-initialized unless `uninitialized`.
template <class T, class Space = memory::host>
class buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  buffer() = default;
  explicit buffer(index_t size) : size_(size) {
    if (size > 0) data_ = static_cast<T*>(Space::allocate(bytes()));
  }
  buffer(index_t size, detail::Uninitialized) : size_(size) {
    if (size <= 0) return;
    if constexpr (requires { Space::allocate_uninitialized(bytes()); })
      data_ = static_cast<T*>(Space::allocate_uninitialized(bytes()));
    else
      data_ = static_cast<T*>(Space::allocate(bytes()));
  }
  buffer(buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  buffer& operator=(buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~buffer() { Space::release(data_); }

  index_t size() const { return size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  operator view<T, Space>() { return {data_, size_}; }  // NOLINT: implicit, like a container's span
  operator view<const T, Space>() const { return {data_, size_}; }  // NOLINT: implicit
  view<T, Space> all() { return {data_, size_}; }
  view<const T, Space> all() const { return {data_, size_}; }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }

  T* data_ = nullptr;
  index_t size_ = 0;
};

/// Copies from a memory space to the host's, which may be the same; waits for all work in flight there.
template <class T, class Space>
void download(view<const T, Space> from, view<T> to) {
  const std::size_t bytes = static_cast<std::size_t>(from.size()) * sizeof(T);
  if (bytes == 0) return;
  if constexpr (std::same_as<Space, memory::host>)
    std::memcpy(to.data(), from.data(), bytes);
  else
    Space::download(to.data(), from.data(), bytes);
}
/// Copies from the host's memory to a memory space, which may be the same; waits for all work in flight there.
template <class T, class Space>
void upload(view<const T> from, view<T, Space> to) {
  const std::size_t bytes = static_cast<std::size_t>(from.size()) * sizeof(T);
  if (bytes == 0) return;
  if constexpr (std::same_as<Space, memory::host>)
    std::memcpy(to.data(), from.data(), bytes);
  else
    Space::upload(to.data(), from.data(), bytes);
}

namespace detail {

/// The memory of host buffers: zeroed, in separate cache lines, and in huge pages if it is large.
class HostMemory {
  // The bytes of a cache line and of the widest vector register. Every aligned block of lanes begins at a multiple of
  // it.
  static constexpr std::size_t line = 64;
  static constexpr std::size_t huge_page = std::size_t{2} << 20;
  static std::align_val_t place(std::size_t bytes) {
    return std::align_val_t{bytes >= huge_page ? huge_page : line};
  }

 public:
  TERSE_COLD static void* allocate(std::size_t bytes) {
    if (bytes == 0) return nullptr;
    void* const data = ::operator new(bytes, place(bytes));
#ifdef __linux__
    // Address translation would otherwise limit passes over several arrays at once. It is only a hint, so a failure
    // is harmless.
    if (bytes >= huge_page) madvise(data, bytes / huge_page * huge_page, MADV_HUGEPAGE);
#endif
    return std::memset(data, 0, bytes);
  }
  TERSE_COLD static void release(void* data, std::size_t bytes) noexcept {
    ::operator delete(data, place(bytes));
  }
};

}  // namespace detail

/// A buffer in the host's memory, whose elements can be read and written in place.
template <class T>
class buffer<T, memory::host> {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  buffer() = default;
  explicit buffer(index_t size) : size_(size) {
    data_ = static_cast<T*>(detail::HostMemory::allocate(bytes()));
  }
  buffer(index_t size, detail::Uninitialized) : buffer(size) {}
  buffer(buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  buffer& operator=(buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~buffer() { detail::HostMemory::release(data_, bytes()); }

  index_t size() const { return size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](index_t i) { return data_[i]; }
  const T& operator[](index_t i) const { return data_[i]; }
  operator view<T>() { return {data_, size_}; }              // NOLINT: implicit, like a container's span
  operator view<const T>() const { return {data_, size_}; }  // NOLINT: implicit
  view<T> all() { return {data_, size_}; }
  view<const T> all() const { return {data_, size_}; }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }

  T* data_ = nullptr;
  index_t size_ = 0;
};

}  // namespace terse
