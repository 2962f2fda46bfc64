// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>

#include "terse/core/separate.hpp"
#include "terse/transport/thread_blame.hpp"
#include "terse/transport/thread_rank.hpp"

namespace terse {

TERSE_CORE Threads::Ticket& Threads::Ticket::operator=(Ticket&& other) noexcept {
  std::swap(end_, other.end_);
  std::swap(batch_, other.batch_);
  return *this;
}

TERSE_CORE bool Threads::Ticket::ready() {
  if (batch_ == nullptr) return true;
  std::unique_lock lock(end_->shared_->mutex);
  end_->want(*batch_);
  // Repeated if the lock was released: in that time a peer may have taken its message and left.
  do end_->check(batch_->phase);
  while (end_->advance_all(lock));
  if (batch_->open == 0) return finish(), true;
  end_->check_left(*batch_);
  const std::chrono::milliseconds deadline = end_->shared_->deadline;
  batch_->asked_at = Shared::Clock::now();
  if (!std::exchange(batch_->asked, true)) batch_->since = batch_->asked_at;
  if (batch_->asked_at - batch_->since > deadline)
    batch_->since = end_->patience(*batch_, deadline) - deadline;
  return false;
}

TERSE_CORE void Threads::Ticket::wait() {
  if (batch_ != nullptr) wait(end_->shared_->deadline);
}

TERSE_CORE void Threads::Ticket::wait(Deadline deadline) {
  if (batch_ == nullptr) return;
  deadline = detail::time_left(deadline);
  auto until = detail::time_after(deadline);
  std::unique_lock lock(end_->shared_->mutex);
  end_->want(*batch_);
  batch_->waited = true;
  for (;;) {
    end_->check(batch_->phase);
    if (end_->advance_all(lock)) continue;  // the lock was released meanwhile
    if (batch_->open == 0) return finish();
    end_->check_left(*batch_);
    if (Shared::Clock::now() >= until) until = end_->patience(*batch_, deadline);
    end_->wake().wait_until(lock, until);
  }
}

TERSE_CORE int Threads::Ticket::awaited() {
  if (batch_ == nullptr) return -1;
  const std::lock_guard lock(end_->shared_->mutex);
  for (std::size_t k = 0; k < batch_->receives.size(); ++k)
    if (batch_->receive_numbers[k] != done) return batch_->receives[k].peer;
  for (std::size_t k = 0; k < batch_->sends.size(); ++k)
    if (batch_->send_numbers[k] != done) return batch_->sends[k].peer;
  return -1;
}

TERSE_CORE Threads::Ticket Threads::exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                             Phase phase) {
  std::unique_lock lock(shared_->mutex);
  ++shared_->progress[world(rank_)];
  check(phase);
  // Either all or none: no peer may find a message of a refused list.
  for (const Receive& receive : receives) require_peer(receive.peer);
  for (const Send& send : sends) {
    require_peer(send.peer);
    Shared::Lane& out = channel_->lane(rank_, send.peer);
    if (out[out.posted].state != Post::State::free)
      throw usage_error("more than " + std::to_string(Shared::Lane::capacity) + " messages to rank " +
                            std::to_string(send.peer) + " are under way",
                        rank_);
  }
  Batch& batch = unused_batch();
  batch.channel = channel_.get();
  batch.rank = rank_;
  batch.phase = phase;
  batch.sends = sends;
  batch.receives = receives;
  batch.asked = batch.waited = batch.wanted = false;
  batch.poster = std::this_thread::get_id();
  batch.call = detail::Call::current();
  batch.send_numbers.clear();
  batch.receive_numbers.clear();
  for (const Send& send : sends) {
    Shared::Lane& out = channel_->lane(rank_, send.peer);
    out[out.posted] = {Post::State::posted, send.data, send.bytes, phase, batch.call};
    batch.send_numbers.push_back(out.posted++);
    shared_->pass_sign(world(rank_), world(send.peer));
    shared_->wake[world(send.peer)].notify_all();
  }
  for (const Receive& receive : receives)
    batch.receive_numbers.push_back(channel_->lane(receive.peer, rank_).expected++);
  batch.open = sends.size() + receives.size();
  batch.used = true;
  shared_->under_way[world(rank_)].push_back(&batch);
  return Ticket(this, &batch);
}

TERSE_CORE void Threads::here() {
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->reason.empty()) give_up("at its work");
  require_here();
  shared_->here[world(rank_)] = Shared::Clock::now();
}

TERSE_CORE Threads Threads::split(int color, int key) {
  const detail::Call call(detail::Verb::split);
  struct Choice {
    int color, key;
  };
  Assembly<Choice, Threads> assembly(*this);
  const std::span<const Choice> choices = assembly(*this, {color, key}, Phase::setup);
  std::vector<std::pair<int, int>> order;  // key, rank
  for (int peer = 0; peer < size(); ++peer)
    if (choices[static_cast<std::size_t>(peer)].color == color)
      order.emplace_back(choices[static_cast<std::size_t>(peer)].key, peer);
  std::sort(order.begin(), order.end());
  std::vector<int> members;
  int rank = 0;
  for (const auto& [_, peer] : order) {
    if (peer == rank_) rank = static_cast<int>(members.size());
    members.push_back(static_cast<int>(world(peer)));
  }
  return Threads(shared_, shared_->take(channel_->id, ++splits_, color, std::move(members)), rank);
}

TERSE_CORE Regrouped<Threads> Threads::regroup() {
  const std::size_t me = world(rank_);
  std::unique_lock lock(shared_->mutex);
  require_whole("regroup");
  require_here();
  shared_->regroup(me, lock);
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

TERSE_CORE void Threads::check(Phase phase) const {
  if (!shared_->reason.empty()) give_up("in " + detail::place_of(phase, detail::Call::current()));
  require_here();
}

TERSE_CORE detail::ThreadMailbox Threads::mailbox(index_t bytes) {
  const detail::Call call(detail::Verb::mailbox);
  detail::agree_on_packet(*this, bytes);
  std::shared_ptr<detail::ThreadMailbox::Slots> boxes;
  if (rank_ == 0) boxes = std::make_shared<detail::ThreadMailbox::Slots>(size(), bytes);
  using Place = const std::shared_ptr<detail::ThreadMailbox::Slots>*;
  Assembly<Place, Threads> everyone(*this);
  const Place first = everyone(*this, &boxes, Phase::setup).front();
  if (rank_ != 0) boxes = *first;
  // Rank 0 keeps the place until all ranks have read it.
  barrier(*this);
  return detail::ThreadMailbox(shared_, std::move(boxes), rank_, static_cast<int>(world(rank_)));
}

TERSE_CORE Threads::Threads(std::shared_ptr<Shared> shared, std::shared_ptr<Shared::Channel> channel,
                            int rank)
    : shared_(std::move(shared)), channel_(std::move(channel)), rank_(rank) {
  // An exchange needs two batches in flight; more are made on demand.
  for (int k = 0; k < 2; ++k) {
    Batch& batch = *batches_.emplace_back(std::make_unique<Batch>());
    batch.send_numbers.reserve(channel_->members.size());
    batch.receive_numbers.reserve(channel_->members.size());
  }
}

TERSE_CORE void Threads::require_peer(int peer) const {
  if (peer < 0 || peer >= size() || peer == rank_)
    throw usage_error(
        "no message can go between rank " + std::to_string(rank_) + " and rank " + std::to_string(peer),
        rank_);
}

TERSE_CORE detail::ThreadShared::Batch& Threads::unused_batch() {
  for (const std::unique_ptr<Batch>& batch : batches_)
    if (!batch->used) return *batch;
  return *batches_.emplace_back(std::make_unique<Batch>());
}

TERSE_CORE void Threads::give_up(const std::string& where) const {
  throw peer_error("gave up " + where + ": " + shared_->reason, shared_->culprit,
                   static_cast<int>(world(rank_)));
}

TERSE_CORE void Threads::check_left(const Batch& batch) {
  for (std::size_t k = 0; k < batch.receives.size(); ++k)
    if (batch.receive_numbers[k] != done && shared_->left[world(batch.receives[k].peer)] != 0)
      accuse_leaver(batch.receives[k].peer, batch.phase);
  for (std::size_t k = 0; k < batch.sends.size(); ++k)
    if (batch.send_numbers[k] != done && shared_->left[world(batch.sends[k].peer)] != 0)
      accuse_leaver(batch.sends[k].peer, batch.phase);
}

TERSE_CORE void Threads::accuse_leaver(int peer, Phase phase) {
  const auto who = static_cast<int>(world(peer));
  shared_->poison(who,
                  "rank " + std::to_string(who) + " has finished its program, but others still wait for it");
  check(phase);
}

TERSE_CORE void Threads::refuse_length(const Batch& batch, const Post& post, const Receive& receive) {
  const auto sender = static_cast<int>(member(*batch.channel, receive.peer));
  const bool same = post.phase == batch.phase && post.call.meets(batch.call);
  const std::string text =
      "rank " + std::to_string(sender) + " sent " + std::to_string(post.bytes) + " bytes in " +
      detail::place_of(post.phase, post.call) + " where rank " +
      std::to_string(member(*batch.channel, batch.rank)) + " expects " + std::to_string(receive.bytes) +
      (same ? "" : " in " + detail::place_of(batch.phase, batch.call) + "; " + detail::same_calls);
  shared_->poison(same ? sender : -1, text);
}

TERSE_CORE bool Threads::advance(Batch& batch, std::unique_lock<std::mutex>& lock) {
  Shared::Channel& channel = *batch.channel;
  bool released = false;
  for (std::size_t k = 0; k < batch.receives.size(); ++k) {
    const std::uint64_t number = batch.receive_numbers[k];
    if (number == done) continue;
    const Receive& receive = batch.receives[k];
    Shared::Lane& from = channel.lane(receive.peer, batch.rank);
    Post& post = from[number];
    if (from.posted <= number || post.state != Post::State::posted) continue;
    const index_t bytes = post.bytes;
    if (receive.up_to ? bytes > receive.bytes : bytes != receive.bytes) {
      refuse_length(batch, post, receive);
      check(batch.phase);
    }
    post.state = Post::State::copying;
    lock.unlock();
    if (bytes > 0) std::memcpy(receive.data, post.data, static_cast<std::size_t>(bytes));
    lock.lock();
    released = true;
    post.state = Post::State::taken;
    shared_->pass_sign(member(channel, batch.rank), member(channel, receive.peer));
    shared_->wake[member(channel, receive.peer)].notify_all();
    batch.receive_numbers[k] = done;
    --batch.open;
  }
  for (std::size_t k = 0; k < batch.sends.size(); ++k) {
    if (batch.send_numbers[k] == done) continue;
    Post& post = channel.lane(batch.rank, batch.sends[k].peer)[batch.send_numbers[k]];
    if (post.state != Post::State::taken) continue;
    post.state = Post::State::free;
    batch.send_numbers[k] = done;
    --batch.open;
  }
  return released;
}

TERSE_CORE bool Threads::advance_all(std::unique_lock<std::mutex>& lock) {
  bool released = false;
  // Loops by index, because another thread of this rank may post while a copy runs without the lock.
  std::vector<Batch*>& batches = shared_->under_way[world(rank_)];
  for (std::size_t k = 0; k < batches.size(); ++k)
    if (batches[k]->poster == std::this_thread::get_id() && advance(*batches[k], lock)) released = true;
  return released;
}

TERSE_CORE void Threads::want(Batch& wanted) {
  wanted.wanted = true;
  wanted.asked_at = Shared::Clock::now();
  wanted.wanted_in = detail::Call::current();
  for (const std::unique_ptr<Batch>& batch : batches_) batch->poster = std::this_thread::get_id();
}

TERSE_CORE void Threads::retire(Batch& batch) {
  std::erase(shared_->under_way[world(rank_)], &batch);
  batch.used = false;
}

TERSE_CORE detail::ThreadShared::Clock::time_point Threads::patience(const Batch& batch, Deadline deadline) {
  const detail::ThreadBlame blame(*shared_, batch, deadline);
  if (blame.over()) shared_->poison(blame.culprit(), blame.reason());
  check(batch.phase);
  return blame.patience();
}

TERSE_CORE void Threads::abandon(Batch& batch) {
  std::unique_lock lock(shared_->mutex);
  for (std::size_t k = 0; k < batch.sends.size(); ++k) {
    if (batch.send_numbers[k] == done) continue;
    Post& post = channel_->lane(rank_, batch.sends[k].peer)[batch.send_numbers[k]];
    wake().wait(lock, [&] { return post.state != Post::State::copying; });  // a copy always ends
    post.state = Post::State::free;
  }
  // During an exception, that exception's text will poison the group.
  if (batch.open > 0 && std::uncaught_exceptions() == 0)
    shared_->poison(
        static_cast<int>(world(rank_)),
        "rank " + std::to_string(rank_) + " abandoned a batch in phase '" + name(batch.phase) + "'");
  retire(batch);
}

}  // namespace terse
