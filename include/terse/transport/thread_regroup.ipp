// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include "terse/core/separate.hpp"
#include "terse/transport/thread_rank.hpp"

namespace terse {

TERSE_CORE Regrouped<Threads> Threads::regroup() {
  const std::size_t me = world(rank_);
  std::unique_lock lock(shared_->mutex);
  require_whole("regroup");
  require_here();
  if (shared_->next == nullptr && static_cast<int>(me) != shared_->culprit) {
    const std::uint64_t refused = shared_->refused;
    shared_->ask(me);
    const auto known = [&] {
      return shared_->next != nullptr || shared_->refused != refused || shared_->all_ask();
    };
    // A rank that others have refused may end its program later: then the others have the deadline from its end on.
    if (shared_->reason.empty())
      wake().wait_until(lock, detail::time_after(shared_->deadline),
                        [&] { return known() || !shared_->reason.empty(); });
    const bool lost = !shared_->reason.empty();
    if (lost) wake().wait_until(lock, detail::time_after(shared_->deadline), known);
    if (!lost && !known()) shared_->settle_without_loss();
    if (shared_->refused != refused)
      throw usage_error(
          "no rank is lost: all have called regroup, or none has ended within the deadline" +
              (shared_->reason.empty() ? "" : ", and the error would come again: " + shared_->reason),
          static_cast<int>(me));
    if (shared_->next == nullptr) shared_->go_on();
  }
  return next_group();
}

TERSE_CORE std::optional<Regrouped<Threads>> Threads::admit(bool at_once) {
  const std::lock_guard lock(shared_->mutex);
  require_whole("admit");
  const std::uint64_t call = ++shared_->admits[world(rank_)];
  if (shared_->next == nullptr && (at_once || call > shared_->admitted)) {
    check(Phase::setup);
    shared_->admitted = call;
    shared_->let_in();
    check(Phase::setup);
  } else if (!at_once && call > shared_->admitted) {
    static_cast<void>(next_group());  // throws for a rank without which the others have gone on
    throw usage_error(
        "the ranks have gone on in another group: use the transport that admit or regroup has returned",
        rank_);
  }
  if (shared_->next == nullptr || (!at_once && call < shared_->admitted)) return {};
  return next_group();
}

TERSE_CORE void Threads::require_whole(const char* what) const {
  if (channel_->id != 0)
    throw usage_error(
        std::string(what) + " is for the transport of all ranks, and this is a channel that split has made",
        rank_);
}

TERSE_CORE void Threads::require_here() const {
  if (shared_->moved[world(rank_)] != 0)
    throw usage_error(
        "this rank has gone on in another group: make optimizers and channels with the transport that admit "
        "or regroup has returned, and carry_over to them",
        static_cast<int>(world(rank_)));
}

TERSE_CORE Regrouped<Threads> Threads::next_group() const {
  const int me = static_cast<int>(world(rank_));
  const std::vector<int>& before = shared_->before;
  const auto place = std::find(before.begin(), before.end(), me);
  if (place == before.end())
    throw peer_error("the other ranks go on without this one: " + shared_->reason, shared_->culprit, me);
  shared_->moved[static_cast<std::size_t>(me)] = 1;
  return {Threads(shared_->next, shared_->next_channel, static_cast<int>(place - before.begin())), before};
}

}  // namespace terse
