// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/support.hpp"

// Hashes of what every named method leaves in the parameters and sends, so that a redesign can show that it changes no
// bit. Golden figures prove nothing about a method: that is what the oracles are for.

namespace golden {

using namespace terse;
using namespace terse::test;

/// A transport that hashes what this rank sends in rounds: of each packet the number of bytes and all that is behind the
/// header, whose check depends on how a recipe's type and settings are called.
template <class Inner>
class Hashed {
 public:
  using memory = typename Inner::memory;
  using Ticket = typename Inner::Ticket;

  explicit Hashed(Inner inner) : Hashed(std::move(inner), std::make_shared<std::uint64_t>(0)) {}
  int rank() const { return inner_.rank(); }
  int size() const { return inner_.size(); }
  std::uint64_t hash() const { return *hash_; }

  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    if (phase == Phase::reduce || phase == Phase::spread) {
      // In which order a batch is posted is nobody's bits; some send one peer two messages, whose order is.
      std::vector<Send> by_peer(sends.begin(), sends.end());
      std::ranges::stable_sort(by_peer, {}, &Send::peer);
      for (const Send& send : by_peer) {
        *hash_ = mix_hash(mix_hash(*hash_, static_cast<std::uint64_t>(send.peer)),
                          static_cast<std::uint64_t>(send.bytes));
        // Some methods send two packets in a message.
        for (index_t packet = 0; packet < send.bytes;) {
          PacketHeader header;
          std::memcpy(&header, send.data + packet, sizeof header);
          const auto end = std::min(send.bytes, packet + static_cast<index_t>(header.length));
          if (header.magic != PacketHeader::expected_magic) throw error("no packet", rank());
          for (index_t at = packet + index_t{sizeof header}; at < end; at += 8) {
            std::uint64_t word = 0;
            std::memcpy(&word, send.data + at, static_cast<std::size_t>(std::min<index_t>(8, end - at)));
            *hash_ = mix_hash(*hash_, word);
          }
          packet = (end + 7) / 8 * 8;
        }
      }
    }
    return inner_.exchange(sends, receives, phase);
  }
  Hashed split(int color, int key) { return {inner_.split(color, key), hash_}; }

 private:
  Hashed(Inner inner, std::shared_ptr<std::uint64_t> hash)
      : inner_(std::move(inner)), hash_(std::move(hash)) {}

  Inner inner_;
  std::shared_ptr<std::uint64_t> hash_;
};

struct Row {
  std::string name;
  std::uint64_t parameters, packets;
};

/// Segments that are and aren't compressed, with rates and decay of their own, a hidden one; sizes that fill no block.
inline Layout layers() {
  Layout layout;
  layout.add({.name = "w", .shape = {33, 20}, .hidden = true})
      .add({"b", {20}, 2, 0, false})
      .add({"u", {300}})
      .add({"norm", {70}, 1, 0.5F, false})
      .add({"one", {1}});
  return layout;
}

/// A method as it is called in the table, and how it is run.
template <class R, class N = Numbers<>>
void add(std::vector<Row>& rows, const std::string& name, const R& recipe, Options options = {},
         std::initializer_list<int> worlds = {2, 3, 4, 7}, N numbers = {}) {
  using P = typename N::parameter;
  using G = typename N::gradient;
  constexpr std::uint64_t steps = 9;
  options.seed = 5;
  for (const int world : worlds) {
    std::vector<Row> ranks(at(world));
    ThreadGroup(world, std::chrono::seconds(30)).run([&](Threads& threads) {
      Hashed<Threads> transport(threads.split(0, threads.rank()));
      const Layout layout = layers();
      Optimizer optimizer{recipe, transport, layout, options, executor::host{}, numbers};
      std::vector<P> parameters;
      for (const float x : start(layout)) parameters.push_back(narrowed<P>(x));
      for (std::uint64_t step = 1; step <= steps; ++step) {
        optimizer.learning_rate(0.02F / static_cast<float>(step));
        std::vector<G> gradients;
        for (const float g : gradient(layout, transport.rank(), step, 0)) gradients.push_back(narrowed<G>(g));
        optimizer.step(parameters, gradients);
      }
      Row& mine = ranks[at(transport.rank())];
      mine.parameters = 0;
      for (const P x : parameters)
        mine.parameters = mix_hash(mine.parameters, std::bit_cast<std::uint32_t>(widened(x)));
      mine.packets = transport.hash();
    });
    Row row{name + " W=" + std::to_string(world), 0, 0};
    for (const Row& rank : ranks) {
      row.parameters = mix_hash(row.parameters, rank.parameters);
      row.packets = mix_hash(row.packets, rank.packets);
    }
    rows.push_back(std::move(row));
  }
}

void add_exact(std::vector<Row>& rows);
void add_one_bit(std::vector<Row>& rows);
void add_averaging(std::vector<Row>& rows);
void add_mixing(std::vector<Row>& rows);
void add_local(std::vector<Row>& rows);

}  // namespace golden
