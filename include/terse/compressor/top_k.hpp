// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "terse/compressor/sparse.hpp"

namespace terse {

/// A selection of the k = ceil(ratio n) values of largest magnitude, ties to the lower position. Contractive, delta = k / n.
/// For the Whole n is the arena from the first to the last compressed element, including padding and gaps.
/// Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018; Aji and Heafield 2017.
struct Largest {
  using Reader = Positions::Reader;
  static constexpr bool variable = false;
  static constexpr bool unbiased = false;
  static constexpr bool contractive = true;

  double ratio = 0.01;  ///< in (0, 1]

  void check() const { detail::check_ratio("ratio", ratio); }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("ratio", ratio);
  }
  TERSE_HD index_t most(index_t n) const { return detail::share_of(ratio, n); }
  index_t largest(index_t n, std::uint64_t) const { return most(n); }
  template <Executor E>
  index_t floats(E executor, index_t n) const {
    return select_scratch(executor, n, most(n));
  }
  static index_t words(index_t) { return 0; }
  TERSE_HD static index_t index_bytes(index_t n, index_t k) { return Positions::bytes(n, k); }
  static const char* fault(const std::byte* wire, index_t n, index_t k) {
    return Positions::fault(wire, n, k);
  }
  template <GridExecutor E>
  static Positions::List list(E executor, const Positions::Arrived& arrived, index_t n, index_t,
                              const StepDraw&, PickScratch<E> scratch, out<E, std::uint32_t> positions) {
    return Positions::list(executor, arrived, n, scratch, positions);
  }
  template <GridExecutor E>
  static void check(E executor, const Positions::Arrived& arrived, index_t n,
                    const Positions::Report& report) {
    Positions::check(executor, arrived, n, report);
  }
  double delta(index_t n) const { return static_cast<double>(most(n)) / static_cast<double>(n); }

  template <Executor E>
  index_t select(E executor, in<E> values, index_t, const EncodeContext&, PickScratch<E> scratch,
                 out<E, std::uint32_t> positions, std::byte* wire) const {
    const index_t k = most(values.size());
    select_top(executor, values, k, scratch.floats, positions.part(0, k));
    Positions::write(executor, in<E, std::uint32_t>(positions.part(0, k)), values.size(), wire);
    return k;
  }
};

/// Largest with a warm-up of the ratio. The first `warmup_steps` steps are divided into `stages` equal stages; in
/// stage j the ratio is ratio^((j + 1) / (stages + 1)), and afterwards `ratio`: 25 %, 6.3 %, 1.6 %, 0.4 %, 0.1 %.
/// Source: Lin et al., "Deep gradient compression", ICLR 2018, section 3.3.
struct LargestWithWarmup {
  using Reader = Positions::Reader;
  static constexpr bool variable = true;
  static constexpr bool unbiased = false;
  static constexpr bool contractive = true;

  double ratio = 0.001;            ///< in (0, 1], after the warm-up
  std::uint64_t warmup_steps = 0;  ///< the first steps of training
  int stages = 4;                  ///< the stages of the warm-up, each with a lower ratio; at least 1

  void check() const {
    detail::check_ratio("ratio", ratio);
    if (stages < 1) throw usage_error("stages must be at least 1, not " + std::to_string(stages));
  }
  const char* unrecordable(const RecordUse& use) const {
    if (std::equal_to{}(ratio_at(use.recorded), ratio_at(use.step))) return nullptr;
    return "this step has another ratio than the record's: record again in each stage of a warm-up";
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("ratio", ratio);
    visit("warmup_steps", static_cast<double>(warmup_steps));
    visit("stages", static_cast<double>(stages));
  }
  TERSE_HD double ratio_at(std::uint64_t step) const {
    if (step > warmup_steps || step == 0) return ratio;
    const auto stage = (step - 1) * static_cast<std::uint64_t>(stages) / warmup_steps;
    return std::pow(ratio, static_cast<double>(stage + 1) / (stages + 1));
  }
  /// Returns the picks of the first stage, for which messages have room.
  TERSE_HD index_t most(index_t n) const { return at(1).most(n); }
  index_t largest(index_t n, std::uint64_t step) const { return at(step).most(n); }
  template <Executor E>
  index_t floats(E executor, index_t n) const {
    return at(1).floats(executor, n);
  }
  static index_t words(index_t) { return 0; }
  TERSE_HD static index_t index_bytes(index_t n, index_t k) { return Positions::bytes(n, k); }
  static const char* fault(const std::byte* wire, index_t n, index_t k) {
    return Positions::fault(wire, n, k);
  }
  template <GridExecutor E>
  static Positions::List list(E executor, const Positions::Arrived& arrived, index_t n, index_t,
                              const StepDraw&, PickScratch<E> scratch, out<E, std::uint32_t> positions) {
    return Positions::list(executor, arrived, n, scratch, positions);
  }
  template <GridExecutor E>
  static void check(E executor, const Positions::Arrived& arrived, index_t n,
                    const Positions::Report& report) {
    Positions::check(executor, arrived, n, report);
  }
  double delta(index_t n) const { return Largest{ratio}.delta(n); }

  template <Executor E>
  index_t select(E executor, in<E> values, index_t key, const EncodeContext& context, PickScratch<E> scratch,
                 out<E, std::uint32_t> positions, std::byte* wire) const {
    return at(context.step).select(executor, values, key, context, scratch, positions, wire);
  }

 private:
  TERSE_HD Largest at(std::uint64_t step) const { return {ratio_at(step)}; }
};

/// The k largest values, sent as fp32. G is PerSegment (k of each segment, or of its part if a topology divides it) or
/// Whole (k of everything that is encoded together).
///
///     TopK<>{.selection = {.ratio = 0.001}}
///
/// Wire: k positions and k floats per unit: (b + 32) k bits, b = ceil(log2(n)), or n + 32 k if k >= n / b.
template <Granularity G = PerSegment>
using TopK = Sparse<Largest, Dense, G>;

/// TopK with a warm-up of the ratio, see LargestWithWarmup.
template <Granularity G = PerSegment>
using WarmupTopK = Sparse<LargestWithWarmup, Dense, G>;

}  // namespace terse
