// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "terse/compressor/sparse.hpp"
#include "terse/compressor/tiled.hpp"

// Selections whose memory is guarded, so that a selection that writes too much breaks a law instead of the program.

namespace terse::laws::detail {

/// Memory of `size` elements, and a margin after them that must not be written.
template <class V>
class Guarded {
 public:
  Guarded(index_t size, index_t margin) : size_(size), all_(size + margin, uninitialized) {
    std::memset(all_.data(), mark, static_cast<std::size_t>(all_.size()) * sizeof(V));
  }
  view<V> given() { return all_.all().part(0, size_); }
  /// Throws std::logic_error if the margin was written.
  void require_intact(const char* what, const char* member) const {
    const auto* margin = reinterpret_cast<const unsigned char*>(all_.data() + size_);
    const std::size_t bytes = static_cast<std::size_t>(all_.size() - size_) * sizeof(V);
    // Without optimization a loop over the bytes takes most of a law's time.
    if (bytes > 0 && (*margin != mark || std::memcmp(margin, margin + 1, bytes - 1) != 0))
      throw std::logic_error(std::string("select writes ") + what + " beyond the " + std::to_string(size_) +
                             " that " + member + " states");
  }

 private:
  static constexpr unsigned char mark = 0xA5;
  index_t size_;
  buffer<V> all_;
};

/// A selection that writes to guarded memory. `select` throws std::logic_error if it has written more than the selection states, or
/// if its picks are not ascending positions.
template <class S>
struct GuardedSelection : S {
  template <Executor E>
  index_t select(E executor, in<E> values, index_t key, const EncodeContext& context, PickScratch<E>,
                 out<E, std::uint32_t> positions, std::byte* wire) const {
    const S& selection = *this;
    const index_t n = values.size(), most = selection.most(n), margin = 2 * n + 1024;
    Guarded<float> floats(selection.floats(executor, n), margin);
    Guarded<std::uint32_t> words(selection.words(n), margin), picked(most, margin);
    Guarded<std::byte> written(selection.index_bytes(n, most), 8 * margin);
    std::copy_n(wire, written.given().size(), written.given().data());
    const index_t k = selection.select(executor, values, key, context, {floats.given(), words.given()},
                                       picked.given(), written.given().data());
    if (k < 0 || k > most || (!S::variable && k != most))
      throw std::logic_error("select picks " + std::to_string(k) + " of " + std::to_string(n) +
                             " values, and `most` states " + std::to_string(most) +
                             (S::variable ? " at most" : " exactly, since the selection is not `variable`"));
    picked.require_intact("positions", "`most`");
    floats.require_intact("floats of scratch", "`floats`");
    words.require_intact("words of scratch", "`words`");
    written.require_intact("bytes of positions", "`index_bytes`");
    for (index_t e = 0; e < k; ++e) {
      const index_t position = picked.given()[e], before = e > 0 ? index_t{picked.given()[e - 1]} : -1;
      if (position >= n || position <= before)
        throw std::logic_error("select writes position " + std::to_string(position) + " after " +
                               std::to_string(before) + ": positions ascend, from 0 to " +
                               std::to_string(n - 1));
    }
    std::copy_n(picked.given().data(), k, positions.data());
    std::copy_n(written.given().data(), selection.index_bytes(n, k), wire);
    return k;
  }
};

/// Returns the compressor with its selection guarded, if it has one.
template <class C>
const C& guarded(const C& compressor) {
  return compressor;
}
template <class S, class V, class G>
Sparse<GuardedSelection<S>, V, G> guarded(const Sparse<S, V, G>& compressor) {
  return {{compressor.selection}, compressor.values};
}
template <class B, int N, class S, class V>
Tiled<B, N, Sparse<GuardedSelection<S>, V, PerSegment>> guarded(
    const Tiled<B, N, Sparse<S, V, PerSegment>>& compressor) {
  return {guarded(compressor.inner)};
}

}  // namespace terse::laws::detail
