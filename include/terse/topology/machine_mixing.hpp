// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "terse/topology/mixing.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

struct MixtureOf {
  using StreamsOf = MixtureOf;
  TERSE_HD static Streams<> streams() { return {}; }
  TERSE_HD float operator()(const Piece&, index_t, float own, float difference) const {
    return own + difference;
  }
};

/// Packets of which the first is this rank's own, for encoding their mixture.
struct MixtureInbox {
  const Packets<Dense::Code>::Source* sources;
  int count;
  std::uint64_t* damage;
  static NoPackets compressed() { return {}; }
  Differences<Dense::Code> dense() const { return {{sources, count, {}, damage}}; }
};

}  // namespace detail

TERSE_NUMERICS_END

/// Mixing between machines of `ranks_per_machine` ranks each, where consecutive ranks are on one machine. It takes
/// the exact mean on each machine, and then Mixing of those means by the graph, whose nodes are the machines,
///
///     z_m = mean of z_i over machine m        difference_i = sum_m' W_mm' z_m' - z_i
///
/// so that W is the graph's matrix times 1 / L in each block, L = ranks_per_machine. All links work at the same time:
/// rank l of a machine sums, sends and receives the l-th part of the vectors. Sends L - 1 parts to its own machine
/// (counted as Phase::reduce), its part to its peer on each neighbouring machine (Phase::spread), and L - 1 parts to
/// its own machine again (Phase::reduce). If all z are equal, the difference is 0 up to rounding. It is for packets
/// that are not compressed.
template <class G, int Vectors = 1>
struct MachineMixing {
  static_assert(graph::check_graph<G>());
  static_assert(!graph::Traits<G>::push_sum, "terse: push-sum weights are for single ranks; use Mixing");
  static constexpr bool exact = false;
  static constexpr bool recompresses = false;
  using Graph = G;
  template <int Count>
  using With = MachineMixing<G, Count>;
  template <class Other>
  using On = MachineMixing<Other, Vectors>;

  G graph{};                  ///< the graph, whose nodes are machines
  int ranks_per_machine = 1;  ///< number of consecutive ranks on a machine; divides the number of ranks

  template <int Count>
  With<Count> with() const {
    return {graph, ranks_per_machine};
  }
  /// Returns the number of machines, the graph's nodes. Throws usage_error if the ranks don't fill them.
  int nodes(int size) const {
    if (ranks_per_machine < 1 || size % ranks_per_machine != 0)
      throw usage_error(std::to_string(size) + " ranks can't fill machines of " +
                        std::to_string(ranks_per_machine) + " each");
    return size / ranks_per_machine;
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("ranks_per_machine", ranks_per_machine);
    graph::visit_settings(graph, visit);
  }

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round {
    static_assert(C::lossless, "terse: mixing between machines is for packets that are not compressed");
    using Context = RoundContext<C, F, E>;
    using Bytes = buffer<std::byte, typename E::memory>;
    using Source = Packets<Dense::Code>::Source;
    using Every = std::make_integer_sequence<int, Vectors>;

   public:
    Round(Context& context, const MachineMixing& topology)
        : machines_(topology.nodes(context.size)),
          local_(topology.ranks_per_machine),
          machine_(context.rank / local_),
          mine_(context.rank % local_),
          inner_(context.channel.split(machine_, mine_)),
          outer_(context.channel.split(mine_, machine_)),
          plan_(context.codec.compressor(), context.layout, context.plan.whole.dense, local_, false),
          neighbors_(topology.graph, outer_, Vectors * part(mine_).bytes),
          inbox_(local_) {
      sources_.reserve(static_cast<std::size_t>(machines_) + 2);
      for (int c = 0; c < local_; ++c) {
        const index_t bytes = Vectors * part(c).bytes, own = Vectors * part(mine_).bytes;
        out_.emplace_back(bytes, uninitialized);
        mixed_.emplace_back(bytes, uninitialized);
        in_.emplace_back(c == mine_ ? 0 : own, uninitialized);
        if (c == mine_) continue;
        const auto at = static_cast<std::size_t>(c);
        scatter_.push_back({c, out_[at].data(), bytes, bytes});
        collect_.push_back({c, in_[at].data(), own, false});
        spread_.push_back({c, nullptr, own, own});
        gather_.push_back({c, mixed_[at].data(), bytes, false});
      }
      for (Send& send : spread_) send.data = mixed_[static_cast<std::size_t>(mine_)].data();
    }

    template <class M>
    void start(Context& context, const M& message) {
      encode_parts(context, message, Every{});
      context.note(context.codec);
      context.together([&] {
        for (int c = 0; c < local_; ++c) stamp(context, out_[static_cast<std::size_t>(c)].data(), c, c);
      });
      stage_ = Stage::sum;
      under_way_.emplace(inner_.exchange(scatter_, collect_, Phase::reduce));
    }

    template <class M>
    bool advance(Context& context, const M&, bool block) {
      if (stage_ == Stage::mix ? !neighbors_.settle(block) : !settled(*under_way_, block)) return false;
      if (stage_ == Stage::sum) {
        context.together([&] {
          for (int peer = 0; peer < local_; ++peer)
            if (peer != mine_)
              accept(context, in_[static_cast<std::size_t>(peer)].data(), mine_, mine_, machine_, peer);
        });
        for (int k = 0; k < Vectors; ++k) sum(context, k);
        stamp(context, neighbors_.own(), mine_, local_);
        neighbors_.post(outer_, context.step - 1, Vectors * part(mine_).bytes, false);
        stage_ = Stage::mix;
      } else if (stage_ == Stage::mix) {
        context.together([&] {
          for (std::size_t e = 0; e < neighbors_.edges().size(); ++e)
            accept(context, neighbors_.from(e), mine_, local_, neighbors_.edges()[e].peer, mine_);
        });
        for (int k = 0; k < Vectors; ++k) mix(context, k);
        stamp(context, mixed_[static_cast<std::size_t>(mine_)].data(), mine_, local_ + 1 + mine_);
        under_way_.emplace(inner_.exchange(spread_, gather_, Phase::reduce));
        stage_ = Stage::spread;
      } else {
        context.together([&] {
          for (int c = 0; c < local_; ++c)
            if (c != mine_)
              accept(context, mixed_[static_cast<std::size_t>(c)].data(), c, local_ + 1 + c, machine_, c);
        });
        return true;
      }
      return false;
    }

    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      consume(context, consumer, Every{});
    }
    index_t most_bytes(const Context&) const {
      index_t bytes = neighbors_.most_bytes();
      for (const std::vector<Send>* sends : {&scatter_, &spread_})
        for (const Send& send : *sends) bytes += send.room;
      return bytes;
    }

   private:
    enum class Stage { sum, mix, spread };

    std::uint32_t origin(const Context& context, int machine, int local) const {
      return detail::origin_of(Phase::spread, context.names(machine * local_ + local));
    }
    const Portion& part(int c) const { return plan_.chunks[static_cast<std::size_t>(c)]; }

    /// Stamps packets that are stored one after the other, one for each vector; `place` distinguishes the kinds of
    /// packets.
    void stamp(Context& context, std::byte* packets, int c, int place) {
      for (int k = 0; k < Vectors; ++k)
        context.stamp(packets + k * part(c).bytes, part(c).bytes, Phase::spread, place * Vectors + k);
    }
    void accept(Context& context, const std::byte* packets, int c, int place, int machine, int local) {
      for (int k = 0; k < Vectors; ++k)
        context.accept(packets + k * part(c).bytes, part(c), Phase::spread, place * Vectors + k,
                       machine * local_ + local);
    }

    template <class M, int... K>
    void encode_parts(Context& context, const M& message, std::integer_sequence<int, K...>) {
      for (int c = 0; c < local_; ++c)
        (context.codec.encode(part(c), {}, EmptyInbox{}, message.vector(Vector<K>{}), context.first, true,
                              out_[static_cast<std::size_t>(c)].data() + K * part(c).bytes),
         ...);
    }
    /// Encodes the machine's mean of this rank's part.
    void sum(Context& context, int k) {
      const index_t shift = k * part(mine_).bytes;
      inbox_.clear();
      for (int peer = 0; peer < local_; ++peer)
        context.add(inbox_, part(mine_),
                    (peer == mine_ ? out_ : in_)[static_cast<std::size_t>(peer)].data() + shift,
                    Phase::reduce, machine_ * local_ + peer);
      const MeanOf mean{1.0F / static_cast<float>(local_)};
      context.codec.encode(part(mine_), {}, inbox_, Message{mean, mean}, context.first, true,
                           neighbors_.own() + shift);
      context.note(context.codec, part(mine_), inbox_);
    }
    /// Encodes the mixture of the machines' means of this rank's part.
    void mix(Context& context, int k) {
      const index_t shift = k * part(mine_).bytes + part(mine_).dense_at;
      sources_.clear();
      sources_.push_back({neighbors_.own() + shift, nullptr, 0, origin(context, machine_, mine_)});
      for (std::size_t e = 0; e < neighbors_.edges().size(); ++e)
        sources_.push_back({neighbors_.from(e) + shift, nullptr,
                            static_cast<float>(neighbors_.edges()[e].weight),
                            origin(context, neighbors_.edges()[e].peer, mine_)});
      const detail::MixtureInbox inbox{sources_.data(), static_cast<int>(sources_.size()),
                                       context.envelope.damage()};
      context.codec.encode(part(mine_), {}, inbox, Message{detail::MixtureOf{}, detail::MixtureOf{}},
                           context.first, true,
                           mixed_[static_cast<std::size_t>(mine_)].data() + k * part(mine_).bytes);
    }

    template <class Consumer, int... K>
    void consume(Context& context, const Consumer& consumer, std::integer_sequence<int, K...>) {
      for (int c = 0; c < local_; ++c) (consume(context, consumer.vector(Vector<K>{}), c, K), ...);
    }
    template <class Consumer>
    void consume(Context& context, const Consumer& consumer, int c, int k) {
      const index_t shift = k * part(c).bytes + part(c).dense_at;
      const Source sources[] = {
          {out_[static_cast<std::size_t>(c)].data() + shift, nullptr, 0, origin(context, machine_, mine_)},
          {mixed_[static_cast<std::size_t>(c)].data() + shift, nullptr, 1, origin(context, machine_, c)}};
      for_each(context.executor, part(c).dense, NoMask{},
               Differences<Dense::Code>{{sources, 2, {}, context.envelope.damage()}},
               context.envelope.gated(detail::MixExact<decltype(consumer.dense)>{consumer.dense}));
    }

    int machines_, local_, machine_, mine_;  // mine_: this rank on its machine, and the part that it owns
    Channel inner_, outer_;
    Plan plan_;
    detail::Neighborhood<G, E> neighbors_;
    Inbox<C> inbox_;
    std::vector<Bytes> out_, in_, mixed_;  // by part, by rank on this machine, by part
    std::vector<Source> sources_;
    std::vector<Send> scatter_, spread_;
    std::vector<Receive> collect_, gather_;
    std::optional<Channel::Ticket> under_way_;
    Stage stage_ = Stage::sum;
  };
};

}  // namespace terse
