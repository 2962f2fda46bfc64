// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the tests of pipelines on TERSE_TEST_DEVICE share, an executor of the grid kind.

#include <doctest/doctest.h>

#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "pipeline/device_stage.hpp"
#include "terse/compressor/cast.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/device.hpp"
#include "terse/transport/thread.hpp"
#include "terse/transport/through_host.hpp"

namespace {

using namespace terse;
using namespace terse::test;
using Device = TERSE_TEST_DEVICE;
using Bytes = std::vector<std::byte>;
using Ids = std::vector<std::uint64_t>;

inline std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

/// Keeps what a rank sends to its neighbours.
template <Transport Inner>
class Taped {
 public:
  using memory = typename Inner::memory;
  explicit Taped(Inner inner) : inner_(std::move(inner)), packets_(std::make_shared<std::vector<Bytes>>()) {}

  int rank() const { return inner_.rank(); }
  int size() const { return inner_.size(); }
  const std::shared_ptr<std::vector<Bytes>>& packets() const { return packets_; }
  [[nodiscard]] auto exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    if (phase == Phase::forward || phase == Phase::backward)
      for (const Send& send : sends) packets_->emplace_back(send.data, send.data + send.bytes);
    return inner_.exchange(sends, receives, phase);
  }
  Taped split(int color, int key) { return Taped(inner_.split(color, key), packets_); }

 private:
  Taped(Inner inner, std::shared_ptr<std::vector<Bytes>> packets)
      : inner_(std::move(inner)), packets_(std::move(packets)) {}
  Inner inner_;
  std::shared_ptr<std::vector<Bytes>> packets_;
};

/// What a stage leaves.
struct Trace {
  std::vector<Bytes> packets, weights, copies;
  std::vector<std::uint64_t> losses, applied, fresh, scalars;
  std::string error;
  int culprit = -1;

  template <class T>
  static Bytes bytes(const std::vector<T>& values) {
    const auto all = std::as_bytes(std::span(values));
    return {all.begin(), all.end()};
  }
};

/// All copies of a pipeline, as the host reads them.
template <class Pipe>
std::vector<Bytes> copies_of(Pipe& pipeline) {
  std::vector<Bytes> all;
  pipeline.copies(pipeline.examples().end(),
                  [&]<class Space>(const char*, view<std::byte, Space> rows, index_t) {
                    Bytes& here = all.emplace_back(at(rows.size()));
                    download(view<const std::byte, Space>(rows), view<std::byte>(here));
                  });
  return all;
}

/// A run: three epochs of two batches of 10 of 20 examples, in another order each time, and an evaluation.
struct Run {
  int stages = 3;
  index_t elements = 65, micro_batch = 4;
  NonFinite on_non_finite = NonFinite::throw_;
  Spoiled spoiled{};
  std::uint64_t epochs = 3;
  bool strangers = false;  // some rows that are not to be kept
  index_t positions = 0;   // of which rows have none to all; 0: rows are whole

  /// Of an example other ones in each epoch.
  std::vector<index_t> lengths(const Ids& ids, std::uint64_t epoch) const {
    std::vector<index_t> all;
    if (positions > 0)
      for (const std::uint64_t id : ids)
        all.push_back(static_cast<index_t>((id * 5 + epoch) % at(positions + 1)));
    return all;
  }
  Ids batch(std::uint64_t epoch, std::uint64_t number) const {
    Ids ids;
    for (std::uint64_t k = 0; k < 10; ++k) ids.push_back(number * 10 + (k * 3 + epoch) % 10);
    if (strangers) ids[epoch % 10] = ids[5] = no_example;
    return ids;
  }
};

/// Trains this rank's stage.
template <Executor E, Number A, class P, class Plan, Transport T>
Trace train(const Run& run, const P& policy, const Plan& plan, T& transport, E executor = {}) {
  Trace trace;
  Toy<E, A> stage(executor, transport.rank(), transport.size(), run.elements, run.micro_batch, run.spoiled);
  Pipeline<P, T, Toy<E, A>, Plan, E> pipeline{policy,
                                              transport,
                                              stage,
                                              {.micro_batch = run.micro_batch,
                                               .seed = 7,
                                               .on_non_finite = run.on_non_finite,
                                               .positions = std::max<index_t>(run.positions, 1)},
                                              plan,
                                              executor};
  const auto note = [&](double loss, bool applied, index_t fresh) {
    trace.losses.push_back(std::bit_cast<std::uint64_t>(loss));
    trace.applied.push_back(applied ? 1 : 0);
    trace.fresh.push_back(static_cast<std::uint64_t>(fresh));
  };
  const auto catching = [&](auto act) {
    try {
      act();
    } catch (const non_finite_error& failure) {
      trace.culprit = failure.culprit();
      trace.error += failure.what();
    }
  };
  for (std::uint64_t epoch = 0; epoch < run.epochs; ++epoch) {
    for (std::uint64_t number = 0; number < 2; ++number) {
      catching([&] {
        const Ids ids = run.batch(epoch, number);
        const PipelineResult result = pipeline.train(ids, run.lengths(ids, epoch));
        note(result.loss, result.applied, result.fresh);
      });
      stage.descend(0.5F);
      trace.weights.push_back(Trace::bytes(stage.weights()));
    }
    const std::vector<Bytes> copies = copies_of(pipeline);
    trace.copies.insert(trace.copies.end(), copies.begin(), copies.end());
  }
  catching([&] {
    const Ids ids{1, 2, 3, 13, 5, 77};
    note(pipeline.evaluate(ids, run.lengths(ids, run.epochs)), true, 0);
  });
  const std::vector<Bytes> copies = copies_of(pipeline);
  CHECK(std::equal(copies.begin(), copies.end(),
                   trace.copies.end() - static_cast<std::ptrdiff_t>(copies.size())));
  pipeline.audit();
  pipeline.walk([&](const char*, std::uint64_t value) { trace.scalars.push_back(value); });
  return trace;
}

/// body.operator()<E>(transport) for each rank, where `places` says: 'h', the host, or 'd', the device.
template <class Body>
std::vector<Trace> on(const std::string& places, Body body) {
  std::vector<Trace> traces(places.size());
  ThreadGroup(static_cast<int>(places.size()), std::chrono::seconds(60)).run([&](Threads& transport) {
    const auto rank = at(transport.rank());
    Taped<Threads> taped(transport.split(0, transport.rank()));
    const auto packets = taped.packets();
    if (places[rank] == 'd') {
      ThroughHost<Taped<Threads>, Device> staged(std::move(taped), Device{});
      traces[rank] = body.template operator()<Device>(staged);
    } else {
      traces[rank] = body.template operator()<executor::host>(taped);
    }
    traces[rank].packets = *packets;
  });
  return traces;
}

void check_alike(const std::vector<Trace>& one, const std::vector<Trace>& other) {
  REQUIRE(one.size() == other.size());
  for (std::size_t rank = 0; rank < one.size(); ++rank) {
    CAPTURE(rank);
    const Trace &a = one[rank], &b = other[rank];
    CHECK(a.error == b.error);
    CHECK(a.culprit == b.culprit);
    CHECK(a.losses == b.losses);
    CHECK(a.losses == one[0].losses);
    CHECK(a.applied == b.applied);
    CHECK(a.fresh == b.fresh);
    CHECK(a.scalars == b.scalars);
    CHECK((a.weights == b.weights));
    CHECK((a.copies == b.copies));
    REQUIRE(a.packets.size() == b.packets.size());
    for (std::size_t k = 0; k < a.packets.size(); ++k) {
      CAPTURE(k);
      REQUIRE((a.packets[k] == b.packets[k]));
    }
  }
}

/// On the host, on the device, and with the two on opposite sides of each boundary.
template <Number A = float, class P, class Plan = GPipe>
std::vector<Trace> compare(const P& policy, const Run& run = {}, const Plan& plan = {}) {
  CAPTURE(run.elements);
  const auto body = [&]<Executor E>(auto& transport) { return train<E, A>(run, policy, plan, transport); };
  const std::vector<Trace> host = on(std::string(at(run.stages), 'h'), body);
  std::string mixed;
  for (int stage = 0; stage < run.stages; ++stage) mixed += stage % 2 == 0 ? 'd' : 'h';
  std::string other = mixed;
  for (char& place : other) place = place == 'd' ? 'h' : 'd';
  for (const std::string& places : {std::string(at(run.stages), 'd'), mixed, other}) {
    CAPTURE(places);
    check_alike(host, on(places, body));
  }
  for (const Trace& trace : host) {
    CHECK(!trace.weights.empty());
    CHECK(trace.weights.front() != trace.weights.back());
  }
  return host;
}

template <int Bits>
using Coarse = Uniform<Bits, Nearest, Asymmetric, MaxAbs, PerBlock<64>>;
template <int Bits>
using CoarseRows = Uniform<Bits, Nearest, Asymmetric, MaxAbs, PerSegment>;
using Gradients = Uniform<8, Stochastic, Symmetric, MaxAbs, PerBlock<64>>;

}  // namespace
