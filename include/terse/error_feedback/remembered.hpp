// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/error_feedback/materialized.hpp"
#include "terse/error_feedback/row_format.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// An error feedback that sends the difference between a row and its copy, which sender and receiver keep, and moves
/// the copy by the decoded difference:
///
///     d = a - m        C(d) is sent        x = m + C(d), the receiver's row        m' = R(x), on both sides
///
/// R rounds to the rows' format. Its rounding error does not accumulate: the next difference is taken against the
/// rounded copy. Under a contraction, ||d - C(d)|| <= c ||d|| with c < 1, the error of a constant row shrinks by c with
/// each visit. If a row moves by delta between visits, its error stays below c delta / (1 - c). A table gives the rows,
/// row r at `rows[piece.segment]`; the state does not own them. State: room for one message. Source: Wang et al.,
/// "Fine-tuning language models over slow networks using activation compression with guarantees", NeurIPS 2022,
/// algorithm 1.
template <class Format>
struct Remembered {
  static constexpr bool corrects = true;
  static constexpr bool follows_changes = true;
  static constexpr bool single_stage = true;

  std::byte* const* rows = nullptr;  ///< the table of rows, in the executor's memory
  index_t elements = 0;              ///< the length of a row; a message may have fewer elements

  template <class Cursor>
  struct View : detail::Materialized {
    /// R(m + 0) is m, but if rows are written in blocks, whole blocks must be committed.
    static constexpr bool commits_zero = !RowFormat<Format>::blocks;
    Cursor row;

    TERSE_HD void enter(const Piece& piece) { row.enter(piece); }
    TERSE_HD void enter_block(index_t first) {
      detail::enter_block(row, first);
      if constexpr (requires { row.hold(this->y); }) row.hold(this->y + (first - this->begin));
    }
    TERSE_HD void leave_block(index_t first, int count) { detail::leave_block(row, first, count); }
    TERSE_HD float compensate(index_t i, float message) const { return message - row.load(i); }
    TERSE_HD void commit(index_t i, bool keep, float, float decoded) const {
      row.store(i, row.load(i) + keep_if(keep, decoded));
    }
  };

  template <Executor E>
  struct State {
    static constexpr bool rounds_late = GridExecutor<E> && RowFormat<Format>::blocks;
    buffer<float, typename E::memory> message;
    index_t begin = 0;
    Remembered policy;

    State(const Remembered& policy_, index_t begin_, index_t end)
        : message(end - begin_), begin(begin_), policy(policy_) {}
    auto view() {
      if constexpr (rounds_late)
        return View<typename RowFormat<Format>::GridCursor>{
            {message.data(), begin}, {policy.rows, policy.elements, message.data(), begin}};
      else
        return View<typename RowFormat<Format>::Cursor>{
            {message.data(), begin}, typename RowFormat<Format>::Cursor(policy.rows, policy.elements)};
    }
    /// Rounds the new rows, which have replaced the messages, into the table.
    void store(E executor, const Range& range) requires rounds_late {
      for_each(executor, range, NoMask{}, NoPackets{}, typename RowFormat<Format>::Round(view().row));
    }
    template <class Visit>
    void walk(Visit&&) {}
  };
};

TERSE_NUMERICS_END

}  // namespace terse
