// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/sparse.hpp"

namespace terse {

namespace detail {

/// The composition positions[e] = outer[inner[e]], where inner[e] may be any number.
struct ChoosePicks {
  Arrived arrived;
  PackedPositions outer;
  index_t middle;
  PackedPositions inner;
  std::uint32_t* positions;
  TERSE_HD index_t entries() const { return arrived.count(); }
  TERSE_HD void operator()(index_t e) const {
    const std::uint32_t place = inner[e];
    positions[e] = place < middle ? outer[place] : ~std::uint32_t{0};
  }
};

}  // namespace detail

/// A selection by Second among the picks of First, whose number is known.
template <class First, class Second>
struct Then {
  static_assert(!First::variable, "terse: only the last selection of a chain may vary in size");
  static_assert(!Traits<First>::single_stage && !Traits<Second>::single_stage,
                "terse: a chain takes selections that don't scale their picks");
  /// The offset of Second's random numbers from First's. Without it, First's random picks would depend on Second.
  static constexpr index_t other_draws = index_t{1} << 48;
  static constexpr bool variable = Second::variable;
  static constexpr bool unbiased = false;
  static constexpr bool contractive = First::contractive && Second::contractive;
  static constexpr bool tracks = Traits<First>::tracks && Traits<Second>::tracks;

  First first{};    ///< the selection among all elements
  Second second{};  ///< the selection among those picks

  void check() const {
    first.check();
    second.check();
  }
  const char* unrecordable(const RecordUse& use) const { return detail::unrecordable(use, first, second); }
  template <class Visit>
  void settings(Visit&& visit) const {
    first.settings(visit);
    second.settings(visit);
  }
  TERSE_HD index_t most(index_t n) const { return second.most(first.most(n)); }
  /// Returns the number of largest picks among the drawn elements, see PicksAmongDrawn in picks_together.hpp.
  index_t largest_among_drawn(index_t n, std::uint64_t step) const
      requires(detail::PicksByDraw<First>&& detail::PicksByRank<Second>) {
    return second.largest(among(n), step);
  }
  TERSE_HD index_t among(index_t n) const requires(detail::PicksByDraw<First>) { return first.most(n); }
  TERSE_HD static std::uint32_t element(index_t n, index_t among, index_t key, index_t e,
                                        const StepDraw& shared) requires(detail::PicksByDraw<First>) {
    return First::drawn(n, among, key, e, shared);
  }
  TERSE_HD index_t index_bytes(index_t n, index_t k) const {
    const index_t middle = first.most(n);
    return first.index_bytes(n, middle) + second.index_bytes(middle, k);
  }
  template <Executor E>
  index_t floats(E executor, index_t n) const {
    const index_t middle = first.most(n);
    return std::max(first.floats(executor, n), aligned(middle) + second.floats(executor, middle));
  }
  index_t words(index_t n) const {
    const index_t middle = first.most(n);
    return middle + std::max(first.words(n), second.words(middle));
  }
  double delta(index_t n) const { return first.delta(n) * second.delta(first.most(n)); }
  const char* fault(const std::byte* wire, index_t n, index_t k) const {
    const index_t middle = first.most(n);
    if (const char* found = first.fault(wire, n, middle)) return found;
    return second.fault(wire + first.index_bytes(n, middle), middle, k);
  }

  template <Executor E>
  index_t select(E executor, in<E> values, index_t key, const EncodeContext& context, PickScratch<E> scratch,
                 out<E, std::uint32_t> positions, std::byte* wire) const {
    const index_t n = values.size(), middle = first.most(n);
    const auto outer = scratch.words.part(0, middle);
    const PickScratch<E> rest = behind(scratch, middle);
    first.select(executor, values, key, context, {scratch.floats, rest.words}, outer, wire);
    const auto picked = scratch.floats.part(0, middle);
    gather(executor, values, in<E, std::uint32_t>(outer), picked);
    const index_t k = second.select(executor, in<E>(picked), key + other_draws, context, rest, positions,
                                    wire + first.index_bytes(n, middle));
    const auto chosen = positions.part(0, k);
    gather(executor, in<E, std::uint32_t>(outer), in<E, std::uint32_t>(chosen), chosen);
    return k;
  }

  template <GridExecutor E>
  Positions::List list(E executor, const detail::Arrived& arrived, index_t n, index_t key,
                       const StepDraw& shared, PickScratch<E> scratch,
                       out<E, std::uint32_t> positions) const {
    const index_t middle = first.most(n);
    const PickScratch<E> rest = behind(scratch, middle);
    const auto outer = first.list(executor, arrived.exactly(middle), n, key, shared,
                                  {scratch.floats, rest.words}, scratch.words.part(0, middle));
    const auto inner = second.list(executor, arrived.behind(first.index_bytes(n, middle)), middle,
                                   key + other_draws, shared, rest, positions);
    for_each_entry(executor, arrived.picks,
                   detail::ChoosePicks{arrived, outer, middle, inner, positions.data()});
    return Positions::List(positions.data());
  }
  template <GridExecutor E>
  void check(E executor, const detail::Arrived& arrived, index_t n, const detail::Report& report) const {
    const index_t middle = first.most(n);
    first.check(executor, arrived.exactly(middle), n, report);
    second.check(executor, arrived.behind(first.index_bytes(n, middle)), middle, report.next());
  }

  class Reader {
   public:
    Reader() = default;
    Reader(const Then& selection, const std::byte* wire, index_t n, index_t k, index_t key, Draw shared)
        : outer_(selection.first, wire, n, selection.first.most(n), key, shared),
          inner_(selection.second, wire + selection.first.index_bytes(n, selection.first.most(n)),
                 selection.first.most(n), k, key + other_draws, shared),
          left_(k) {
      find();
    }
    index_t position() const { return outer_.position(); }
    void next() {
      if (--left_ <= 0) return;
      inner_.next();
      find();
    }

   private:
    /// Moves to the outer pick that the inner one points to.
    void find() {
      if (left_ > 0) outer_.seek(inner_.position());
    }
    typename First::Reader outer_;
    typename Second::Reader inner_;
    index_t left_ = 0;
  };

 private:
  /// Returns the scratch after Second's values and First's positions.
  template <Executor E>
  static PickScratch<E> behind(const PickScratch<E>& scratch, index_t middle) {
    const index_t held = aligned(middle);
    return {scratch.floats.part(held, scratch.floats.size() - held),
            scratch.words.part(middle, scratch.words.size() - middle)};
  }
};

namespace detail {

template <class... Selections>
struct ChainOf;
template <class First>
struct ChainOf<First> {
  using type = First;
};
template <class First, class... Rest>
struct ChainOf<First, Rest...> {
  using type = Then<First, typename ChainOf<Rest...>::type>;
};

}  // namespace detail

/// Selections applied in order, then a coder for the picked values: Dense, or a Packed one, whose units count picks.
/// CocktailSGD uses Chain<Uniform<4, ..., PerBlock<128>>, Strata<false>, Largest>: a tenth at random, a fifth of that
/// by magnitude, four bits each. Source: Wang et al., "CocktailSGD", ICML 2023.
template <Compressor Values, class... Selections>
using Chain = Sparse<typename detail::ChainOf<Selections...>::type, Values, PerSegment>;

}  // namespace terse
