// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "terse/device/compressor/cosines.hpp"
#include "terse/device/compressor/units.hpp"

// Transforms of tiles on a grid executor, one block of threads per tile.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Executor of one of several devices, each with separate memory.
template <class E>
concept SaysDevice = requires(const E& executor) {
  { executor.device } -> std::convertible_to<int>;
};

/// Returns the tables of Cosines<S> in an executor's memory, one copy per device for all holders.
template <int S, GridExecutor E>
std::shared_ptr<const buffer<float, typename E::memory>> shared_tables(const E& executor) {
  using Tables = buffer<float, typename E::memory>;
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<const Tables>> on_device;
  int device = 0;
  if constexpr (SaysDevice<E>) device = executor.device;
  const std::lock_guard lock(mutex);
  std::weak_ptr<const Tables>& known = on_device[device];
  if (auto tables = known.lock()) return tables;
  const auto all = Cosines<S>::instance().tables();
  const auto tables = std::make_shared<Tables>(static_cast<index_t>(all.size()), uninitialized);
  upload(view<const float>(all), tables->all());
  known = tables;
  return tables;
}

/// The tables of a basis in an executor's memory.
template <class Basis, int S, GridExecutor E>
struct BasisTables {
  std::shared_ptr<const buffer<float, typename E::memory>> held;

  explicit BasisTables(const E& executor) {
    if constexpr (Basis::transforms) held = shared_tables<S>(executor);
  }
  CosineTables all() const {
    // nvcc 13.0 loses the braces around a choice in one expression.
    CosineTables tables{};
    if (held != nullptr) tables.all = held->data();
    return tables;
  }
};

/// Kernel that transforms elements to the numbers for picking, which are adjacent in each tile, or, with `Back`,
/// numbers to elements.
template <class Basis, class Sections, bool Back>
struct TransformTilesKernel {
  static constexpr bool cooperative = true;
  using Units = SentUnits<Sections>;
  using Shape = TileTransform<Basis, Units::side>;
  struct Shared {
    float one[Shape::room], other[Shape::spare_room];
  };
  Units units;
  const float* from;  // both arenas begin at arena index `begin`
  float* to;
  index_t begin;
  CosineTables tables;
  float limit;         // of numbers
  std::uint32_t* bad;  // unless Back

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const SentUnit tile = units.part(Units::elements, block.index());
    const Shape shape(tile.place, tables);
    const index_t adjacent = tile.begin - begin;
    float *x = shared.one, *spare = shared.other;
    for (int e = block.thread(); e < shape.count(); e += block_threads)
      x[Back ? shape.number(e) : shape.element(e)] = from[Back ? adjacent + e : shape.index(e) - begin];
    block.sync();
    if constexpr (Back)
      shape.inverse(block, x, spare);
    else
      shape.forward(block, x, spare);
    bool good = true;
    for (int e = block.thread(); e < shape.count(); e += block_threads)
      if constexpr (Back)
        to[shape.index(e) - begin] = x[shape.element(e)];
      else
        to[adjacent + e] = Shape::within(limit, x[shape.number(e)], good);
    if (!good) atomic_raise(bad);
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
