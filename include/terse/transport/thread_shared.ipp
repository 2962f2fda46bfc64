// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <numeric>

#include "terse/core/error.hpp"
#include "terse/core/separate.hpp"
#include "terse/transport/deadline.hpp"
#include "terse/transport/thread_shared.hpp"

namespace terse::detail {

TERSE_CORE void ThreadShared::Door::open() {
  const std::lock_guard lock(mutex);
  closed = false;
}

TERSE_CORE void ThreadShared::Door::close() {
  const std::lock_guard lock(mutex);
  closed = true;
  for (Guest* guest : waiting) guest->refused = true;
  waiting.clear();
  changed.notify_all();
}

TERSE_CORE ThreadShared::ThreadShared(int ranks, std::chrono::milliseconds deadline_,
                                      std::shared_ptr<Door> door_)
    : deadline(deadline_),
      wake(static_cast<std::size_t>(ranks)),
      progress(static_cast<std::size_t>(ranks)),
      here(static_cast<std::size_t>(ranks)),
      under_way(static_cast<std::size_t>(ranks)),
      left(static_cast<std::size_t>(ranks)),
      door(std::move(door_)),
      asks(static_cast<std::size_t>(ranks)),
      moved(static_cast<std::size_t>(ranks)),
      admits(static_cast<std::size_t>(ranks)) {
  for (std::vector<Batch*>& batches : under_way) batches.reserve(16);  // more only on demand
}

TERSE_CORE std::shared_ptr<ThreadShared::Channel> ThreadShared::take(std::uint64_t parent,
                                                                     std::uint64_t split, int color,
                                                                     std::vector<int> members) {
  const std::lock_guard lock(mutex);
  const auto place = making.try_emplace({parent, split, color}).first;
  Making& one = place->second;
  if (!one.channel) {
    one.takers = members.size();
    one.channel = std::make_shared<Channel>(++made, std::move(members));
  }
  const std::shared_ptr<Channel> channel = one.channel;
  if (--one.takers == 0) making.erase(place);
  return channel;
}

TERSE_CORE void ThreadShared::poison(int who, const std::string& why) {
  if (!reason.empty()) return;
  culprit = who;
  reason = why;
  for (std::condition_variable& one : wake) one.notify_all();
}

TERSE_CORE void ThreadShared::ask(std::size_t rank) {
  asks[rank] = 1;
  if (std::count(asks.begin(), asks.end(), 0) == 0) refuse();
  for (std::condition_variable& one : wake) one.notify_all();
}

TERSE_CORE void ThreadShared::settle_without_loss() {
  const auto first_guest = asks.end() - static_cast<std::ptrdiff_t>(guests);
  if (guests > 0 && std::count(asks.begin(), first_guest, 0) == 0)
    go_on();
  else
    refuse();
}

TERSE_CORE void ThreadShared::refuse() {
  ++refused;
  std::fill(asks.begin(), asks.end(), char{0});
  for (std::condition_variable& one : wake) one.notify_all();
}

TERSE_CORE void ThreadShared::regroup(std::size_t me, std::unique_lock<std::mutex>& lock) {
  if (next != nullptr || static_cast<int>(me) == culprit) return;
  const std::uint64_t before_this = refused;
  ask(me);
  const auto known = [&] { return next != nullptr || refused != before_this || all_ask(); };
  // A rank that others have refused may end its program later: then the others have the deadline from its end on.
  if (reason.empty())
    wake[me].wait_until(lock, detail::time_after(deadline), [&] { return known() || !reason.empty(); });
  const bool lost = !reason.empty();
  if (lost) wake[me].wait_until(lock, detail::time_after(deadline), known);
  if (!lost && !known()) settle_without_loss();
  if (refused != before_this)
    throw usage_error("no rank is lost: all have called regroup, or none has ended within the deadline" +
                          (reason.empty() ? "" : ", and the error would come again: " + reason),
                      static_cast<int>(me));
  if (next == nullptr) go_on();
}

TERSE_CORE bool ThreadShared::all_ask() const {
  for (std::size_t rank = 0; rank < asks.size(); ++rank)
    if (asks[rank] == 0 && left[rank] == 0 && static_cast<int>(rank) != culprit) return false;
  return true;
}

TERSE_CORE void ThreadShared::go_on() {
  for (std::size_t rank = 0; rank < asks.size(); ++rank)
    if (asks[rank] != 0) before.push_back(static_cast<int>(rank));
  move();
}

TERSE_CORE void ThreadShared::let_in() {
  const std::lock_guard lock(door->mutex);
  if (door->waiting.empty()) return;
  const auto rank_that_left = std::find(left.begin(), left.end(), 1);
  if (rank_that_left != left.end()) {
    const auto who = static_cast<int>(rank_that_left - left.begin());
    return poison(who, "rank " + std::to_string(who) + " has finished its program and can't admit others");
  }
  for (std::size_t rank = 0; rank < asks.size(); ++rank) before.push_back(static_cast<int>(rank));
  before.resize(before.size() + door->waiting.size(), -1);
  move();
  next->guests = door->waiting.size();
  int rank = static_cast<int>(asks.size());
  for (Door::Guest* guest : door->waiting) *guest = {next, next_channel, rank++, false};
  door->waiting.clear();
  door->changed.notify_all();
}

TERSE_CORE void ThreadShared::move() {
  std::vector<int> members(before.size());
  std::iota(members.begin(), members.end(), 0);
  next = std::make_shared<ThreadShared>(static_cast<int>(members.size()), deadline, door);
  next_channel = std::make_shared<Channel>(0, std::move(members));
  for (std::condition_variable& one : wake) one.notify_all();
}

}  // namespace terse::detail
