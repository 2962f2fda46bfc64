// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <limits>
#include <set>
#include <unordered_map>

#include "support.hpp"
#include "terse/compressor/cast.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/pipeline/mapped_memory.hpp"
#include "terse/transport/metered.hpp"

// Both sides of a boundary keep the same copies of examples, and find out when they don't.

namespace {

using namespace terse;
using namespace terse::test;

using Fine = Uniform<8, Stochastic, Symmetric, MaxAbs, PerBlock<64>>;
template <int Bits>
using Changes = Uniform<Bits, Nearest, Asymmetric, MaxAbs, PerBlock<64>>;

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }
bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr std::uint64_t examples = 23;

/// The batch of a step: examples in another order each time, of which some stand in several micro-batches, some are not
/// to be kept, and the last micro-batch is ragged.
Ids batch_of(std::uint64_t step, index_t micro_batch) {
  Ids ids = shuffled(examples, step + 1);
  ids.resize(9 + step % 3);
  ids[step % 5] = no_example;
  for (std::size_t k = at(micro_batch); k < ids.size() && k < at(2 * micro_batch); k += 2)
    ids[k] = ids[k - at(micro_batch)];
  if (step % 2 == 1) ids.back() = no_example;
  return ids;
}

/// Steps of four stages with boundaries of these widths.
struct Journey {
  std::vector<index_t> elements;
  index_t micro_batch = 1;
  std::uint64_t steps = 7;
};

/// [stage][step]
using Travelled = std::vector<std::vector<Copies>>;

template <class P>
Travelled travel(const P& policy, const Journey& journey, const Scripted::Script& activation = {}) {
  const int stages = static_cast<int>(journey.elements.size()) + 1;
  Travelled seen(at(stages));
  on_stages(stages, [&](Threads& transport) {
    Scripted stage(transport.rank(), journey.elements);
    if (activation) stage.activation = activation;
    Pipeline pipeline{
        policy, transport, stage, {.micro_batch = journey.micro_batch, .seed = 5}, AnySchedule{1}};
    std::set<std::uint64_t> kept;
    for (; stage.time < journey.steps; ++stage.time) {
      const Ids ids = batch_of(stage.time, journey.micro_batch);
      index_t fresh = 0;
      for (const std::uint64_t id : ids) {
        fresh += kept.count(id) == 0 ? 1 : 0;
        if (id != no_example && static_cast<index_t>(kept.size()) < policy.capacity) kept.insert(id);
      }
      CHECK(pipeline.train(ids).fresh == fresh);
      seen[at(transport.rank())].push_back(copies_of(pipeline));
      if (stage.time == 3) pipeline.forget(Ids{0, 1, 2, 3, 4, 5, 6, 100});
      if (stage.time == 3) kept.erase(kept.begin(), kept.lower_bound(7));
    }
    pipeline.audit();
  });
  return seen;
}

/// Sums up what is wrong, since there are many checks.
template <class P>
Travelled check_copies(const P& policy, const Journey& journey) {
  CAPTURE(type_name<P>());
  CAPTURE(journey.micro_batch);
  CAPTURE(journey.elements[0]);
  const Travelled seen = travel(policy, journey);
  for (std::size_t s = 0; s + 1 < seen.size(); ++s) {
    std::size_t different = 0, kept = 0, moved = 0;
    for (std::size_t step = 0; step < journey.steps; ++step) {
      const Copies::Side &sent = seen[s][step].outgoing, &received = seen[s + 1][step].incoming;
      different += sent != received ? 1 : 0;
      kept = std::max(kept, sent.size());
      if (step > 0 && sent != seen[s][step - 1].outgoing) ++moved;
    }
    CAPTURE(s);
    CHECK(different == 0);
    CHECK(kept > std::min<std::size_t>(at(policy.capacity) - 1, 15));
    CHECK(moved == journey.steps - 1);
  }
  CHECK(seen.front().back().incoming.empty());
  CHECK(seen.back().back().outgoing.empty());
  return seen;
}

const std::vector<index_t> narrow{1, 63, 64}, wide{65, 256, 1000};

template <class P>
void check_everywhere(const P& policy) {
  for (const index_t rows : {1, 7, 8}) check_copies(policy, {narrow, rows});
  for (const index_t rows : {1, 8}) check_copies(policy, {wide, rows});
}

}  // namespace

TEST_CASE("both sides have the same copies after every step, with any bits and formats") {
  check_everywhere(AcSgd<Changes<2>, Fine, InMemory<float>>{.capacity = 23});
  check_everywhere(AcSgd<Changes<3>, Fine, InMemory<bf16>>{.capacity = 23});
  check_everywhere(AcSgd<Changes<4>, Fine, InMemory<fp16>>{.capacity = 23});
  check_everywhere(AcSgd<Changes<8>, Fine, InMemory<Int8>>{.capacity = 23});
  check_everywhere(AcSgd<Changes<2>, Fine, InMemory<Int8>, Cast<fp16>>{.capacity = 23});
  check_everywhere(AcSgd<Uniform<2>, Dense, InMemory<fp16>, Changes<8>>{.capacity = 23});
  check_everywhere(AcSgd<Uniform<3>, Dense, InMemory<Int8>>{.capacity = 23});
  check_everywhere(AcSgd<TopK<>, Dense, InMemory<float>>{.capacity = 23, .forward = {{.ratio = 0.1}}});
}

TEST_CASE("a full memory keeps what it has, alike on both sides") {
  check_everywhere(
      AcSgd<Changes<4>, Dense, InMemory<fp16>>{.capacity = 9, .when_full = WhenFull::send_whole});
}

TEST_CASE(
    "zeros have no sign in copies, so that what a sparse packet leaves out is left alone on both sides") {
  // Below what 16 bits tell from zero, and zeros of both signs.
  const auto activation = [](int, std::uint64_t id, std::uint64_t time, index_t i) {
    constexpr std::array values{-0.0F, -1e-9F, -1e-41F, 1e-9F, 0.0F};
    return i % 11 == 0 ? random_value(1, id, time, i) : values[(id + static_cast<std::uint64_t>(i)) % 5];
  };
  const auto check = [&](const auto& policy) {
    CAPTURE(type_name<std::remove_cvref_t<decltype(policy)>>());
    const Travelled seen = travel(policy, {narrow, 7}, activation);
    for (std::size_t s = 0; s + 1 < seen.size(); ++s)
      for (std::size_t step = 0; step < seen[s].size(); ++step)
        CHECK(seen[s][step].outgoing == seen[s + 1][step].incoming);
  };
  check(AcSgd<TopK<>, Dense, InMemory<float>>{.capacity = 23, .forward = {{.ratio = 0.1}}});
  check(AcSgd<TopK<>, Dense, InMemory<fp16>>{.capacity = 23, .forward = {{.ratio = 0.1}}});
  check(AcSgd<TopK<>, Dense, InMemory<bf16>>{.capacity = 23, .forward = {{.ratio = 0.1}}});
  check(AcSgd<Cast<bf16>, Dense, InMemory<fp16>>{.capacity = 23});
}

TEST_CASE(
    "copies are the same wherever they lie, one side here, the other there, and with and without proofs") {
  using Policy = AcSgd<Changes<2>, Dense, InMemory<fp16>>;
  using OnDisk = AcSgd<Changes<2>, Dense, Mapped<fp16>>;
  const Journey journey{wide, 7};
  const Travelled here = check_copies(Policy{.capacity = 23}, journey);
  CHECK(check_copies(OnDisk{.capacity = 23}, journey) == here);
  CHECK(check_copies(Policy{.capacity = 23, .audit = false}, journey) == here);

  Travelled mixed(4);
  on_stages(4, [&](Threads& transport) {
    Scripted stage(transport.rank(), wide);
    const auto run = [&](const auto& policy) {
      Pipeline pipeline{policy, transport, stage, {.micro_batch = 7, .seed = 5}, AnySchedule{1}};
      for (; stage.time < 3; ++stage.time) {
        pipeline.train(batch_of(stage.time, 7));
        mixed[at(transport.rank())].push_back(copies_of(pipeline));
      }
      pipeline.audit();
    };
    if (transport.rank() % 2 == 0)
      run(Policy{.capacity = 23});
    else
      run(OnDisk{.capacity = 23});
  });
  for (std::size_t s = 0; s < 4; ++s)
    for (std::size_t step = 0; step < 3; ++step) CHECK(mixed[s][step] == here[s][step]);
}

namespace {

/// Turns a bit of an example's copy over.
template <class P>
void damage(P& pipeline, const std::string& side, std::uint64_t id) {
  const terse::detail::ExampleIndex& kept = pipeline.examples();
  REQUIRE(kept.find(id) != terse::detail::ExampleIndex::none);
  pipeline.copies(kept.end(), [&](const std::string& name, view<std::byte> rows, index_t row_bytes) {
    if (name == side) rows[kept.find(id) * row_bytes + 1] ^= std::byte{1};
  });
}

}  // namespace

TEST_CASE("an audit finds any byte that differs, and names the boundary on all stages") {
  on_stages(4, [&](Threads& transport) {
    const int rank = transport.rank();
    Scripted stage(rank, narrow);
    stage.activation = [](int s, std::uint64_t id, std::uint64_t time, index_t i) {
      return random_value(static_cast<std::uint64_t>(s), id, time, i);
    };
    Pipeline pipeline{AcSgd<Changes<2>, Dense, InMemory<fp16>>{.capacity = 23},
                      transport,
                      stage,
                      {.micro_batch = 7, .seed = 5},
                      AnySchedule{1}};
    const Ids ids = shuffled(20, 1);
    pipeline.audit();  // nothing is kept
    pipeline.train(ids);
    pipeline.audit();
    for (int boundary = 0; boundary < 3; ++boundary)
      for (const bool sender : {true, false}) {
        const int culprit = sender ? boundary : boundary + 1;
        const std::uint64_t id = ids[at(boundary) * 2 + (sender ? 1 : 0)];
        const std::string side = sender ? "outgoing" : "incoming";
        if (rank == culprit) damage(pipeline, side, id);
        std::string text;
        try {
          pipeline.audit();
        } catch (const mismatch_error& failure) {
          text = failure.what();
        }
        CHECK(says(text, "stages " + std::to_string(boundary) + " and " + std::to_string(boundary + 1) +
                             " keep different copies"));
        if (rank == culprit) damage(pipeline, side, id);
        pipeline.audit();
      }
    // Copies that nobody has a claim to any more may differ.
    pipeline.forget(Ids{ids[0]});
    pipeline.train(ids);
    pipeline.audit();
    CHECK(pipeline.examples().size() == 20);
  });
}

TEST_CASE("proofs in messages find a copy that differs, and name the example") {
  // As many micro-batches in an epoch as rows in one of them, and one more, always in the same order.
  for (const index_t count : {4, 5})
    for (const bool sender : {true, false}) {
      int epochs = 0, victims = 0;
      for (std::uint64_t victim = 0; victim < 4 * static_cast<std::uint64_t>(count); victim += 3) {
        std::vector<std::string> ends(3);
        on_stages(3, [&](Threads& transport) {
          const int rank = transport.rank();
          Scripted stage(rank, {64, 65});
          Pipeline pipeline{
              AcSgd<Changes<4>, Dense, InMemory<bf16>>{.capacity = 20}, transport, stage, {.micro_batch = 4}};
          Ids ids(at(4 * count));
          for (std::size_t k = 0; k < ids.size(); ++k) ids[k] = k;
          pipeline.train(ids);
          if (rank == (sender ? 1 : 2)) damage(pipeline, sender ? "outgoing" : "incoming", victim);
          try {
            for (int epoch = 0; epoch < 40; ++epoch) {
              if (rank == 2) ++epochs;
              pipeline.train(ids);
            }
            pipeline.train(ids);
          } catch (const wire_error& failure) {
            ends[at(rank)] = failure.what();
            CHECK(pipeline.torn());
          } catch (const peer_error&) {
            ends[at(rank)] = "peer";
            CHECK(pipeline.torn());
          }
        });
        CAPTURE(victim);
        ++victims;
        CHECK(ends[0] == "peer");
        CHECK(ends[1] == "peer");
        CHECK(says(ends[2], "stage 1's copy of example " + std::to_string(victim) + " differs"));
      }
      // Once in 4 epochs on average.
      CAPTURE(count);
      CHECK(epochs >= victims);
      CHECK(epochs <= 8 * victims);
    }
}

namespace {

void check_statistics(bool audit) {
  constexpr index_t width = 100;
  on_stages(3, [&](Threads& transport) {
    const int rank = transport.rank();
    Scripted stage(rank, {width, width});
    Pipeline pipeline{AcSgd<Changes<2>, Dense, InMemory<float>>{.capacity = 12, .audit = audit},
                      transport,
                      stage,
                      {.micro_batch = 1}};
    const auto squares = [&](const Copies::Side& side) {
      double whole = 0, apart = 0;
      for (const auto& [id, row] : side)
        for (index_t i = 0; i < width; ++i) {
          float m;
          std::memcpy(&m, row.data() + 4 * i, sizeof m);
          const auto a = static_cast<double>(stage.activation(rank, id, stage.time, i));
          whole += a * a;
          apart += (a - static_cast<double>(m)) * (a - static_cast<double>(m));
        }
      return std::pair{whole, apart};
    };
    double whole = 0, change = 0, error = 0;
    for (; stage.time < 5; ++stage.time) {
      const Copies before = copies_of(pipeline);
      pipeline.train(shuffled(12, stage.time));
      if (stage.time == 2) {
        const PipelineStatistics seen = pipeline.statistics();
        CHECK(seen.sampled == (rank < 2 ? 24 : 0));
        CHECK(seen.forward_seconds > 0);
        CHECK(seen.backward_seconds > 0);
        CHECK(seen.coding_seconds > 0);
        CHECK(seen.waiting_seconds > 0);
        pipeline.reset_statistics();
        CHECK(pipeline.statistics().sampled == 0);
        CHECK(pipeline.statistics().forward_seconds == 0);
        CHECK(std::isnan(pipeline.statistics().change));
        CHECK(std::isnan(pipeline.statistics().error));
      }
      if (stage.time <= 2) continue;
      const auto [all, moved] = squares(before.outgoing);
      whole += all;
      change += moved;
      error += squares(copies_of(pipeline).outgoing).second;
    }
    const PipelineStatistics seen = pipeline.statistics();
    CHECK(seen.sampled == (rank < 2 ? 24 : 0));
    if (rank == 2) {
      CHECK(std::isnan(seen.change));
      return;
    }
    CHECK(seen.change == doctest::Approx(std::sqrt(change / whole)).epsilon(1e-9));
    CHECK(seen.error == doctest::Approx(std::sqrt(error / whole)).epsilon(1e-9));
    CHECK(seen.error < 0.6 * seen.change);
  });
}

}  // namespace

TEST_CASE("what a stage has seen of changes and errors is what its copies tell, audited or not") {
  check_statistics(true);
  check_statistics(false);
}

TEST_CASE("what is not finite is left out of what a stage has seen") {
  on_stages(2, [&](Threads& transport) {
    Scripted stage(transport.rank(), {70});
    const auto usual = stage.activation;
    stage.activation = [&](int s, std::uint64_t id, std::uint64_t now, index_t i) {
      return now == 2 ? std::numeric_limits<float>::quiet_NaN() : usual(s, id, now, i);
    };
    Pipeline pipeline{AcSgd<Changes<2>, Dense>{.capacity = 4},
                      transport,
                      stage,
                      {.micro_batch = 2, .on_non_finite = NonFinite::skip}};
    for (stage.time = 0; stage.time < 4; ++stage.time)
      CHECK(pipeline.train(Ids{0, 1, 2, 3}).applied == (stage.time != 2));
    const PipelineStatistics seen = pipeline.statistics();
    if (transport.rank() > 0) return;
    CHECK(seen.sampled == 4);  // two messages of the second batch, two of the fourth
    CHECK(seen.change > 0);
    CHECK(seen.error > 0);
    CHECK(seen.error < seen.change);
  });
}

namespace {

/// Sends activations close to fp16's end, and looks for what is beyond it.
struct AtTheEnd {
  int stage;
  std::uint64_t time = 0;
  index_t infinities = 0;
  std::vector<terse::fp16> values = std::vector<terse::fp16>(128);

  index_t input_elements() const { return stage == 0 ? 0 : 64; }
  index_t output_elements() const { return stage == 0 ? 64 : 0; }
  const terse::fp16* forward(const MicroBatch& rows, const terse::fp16* input) {
    for (index_t k = 0; stage == 1 && k < 64 * rows.rows; ++k)
      infinities += !std::isfinite(terse::widened(input[k]));
    for (index_t k = 0; k < 64 * rows.rows; ++k)
      values[static_cast<std::size_t>(k)] =
          terse::narrowed<terse::fp16>(65000 * random_value(6, rows.ids[k / 64], time, k % 64));
    return stage == 0 ? values.data() : nullptr;
  }
  double loss(const MicroBatch& rows) { return rows.weight; }
  const terse::fp16* backward(const MicroBatch&, const terse::fp16*) {
    return stage == 0 ? nullptr : values.data();
  }
};

}  // namespace

TEST_CASE("finite activations of 16 bits arrive finite, though what compressors make of them is larger") {
  index_t larger = 0;
  on_stages(2, [&](Threads& transport) {
    AtTheEnd stage{transport.rank()};
    Pipeline pipeline{AcSgd<Changes<2>, Dense>{.capacity = 4}, transport, stage, {.micro_batch = 2}};
    for (; stage.time < 6; ++stage.time) CHECK(pipeline.train(Ids{0, 1, 2, 3}).applied);
    CHECK(stage.infinities == 0);
    if (transport.rank() == 0) return;
    for (const auto& [id, row] : copies_of(pipeline).incoming)
      for (std::size_t i = 0; i < 64; ++i) {
        terse::fp16 m;
        std::memcpy(&m, row.data() + 2 * i, sizeof m);
        larger += std::abs(terse::widened(m)) == terse::fp16::largest;
      }
  });
  CHECK(larger > 0);  // some have been cut
}

TEST_CASE("a loss that isn't finite is told to all stages, be there only one") {
  for (const int stages : {1, 3})
    for (const NonFinite policy : {NonFinite::throw_, NonFinite::skip, NonFinite::zero}) {
      CAPTURE(stages);
      CAPTURE(static_cast<int>(policy));
      on_stages(stages, [&](Threads& transport) {
        Layers stage = Layers::part({3, 4, 4, 2}, transport.rank(), stages);
        double spoiled = 0;
        struct Lossy : Layers {
          double* spoiled;
          double loss(const MicroBatch& rows) { return Layers::loss(rows) + *spoiled; }
        } lossy{std::move(stage), &spoiled};
        Pipeline pipeline{ExactActivations{}, transport, lossy, {.micro_batch = 2, .on_non_finite = policy}};
        CHECK(pipeline.train(Ids{1, 2, 3}).applied);
        spoiled = std::numeric_limits<double>::infinity();
        int culprit = -1;
        PipelineResult result;
        try {
          result = pipeline.train(Ids{1, 2, 3});
        } catch (const terse::non_finite_error& fault) {
          culprit = fault.culprit();
        }
        CHECK(culprit == (policy == NonFinite::throw_ ? stages - 1 : -1));
        if (policy != NonFinite::throw_) CHECK(result.applied == (policy == NonFinite::zero));
        CHECK_FALSE(pipeline.torn());
      });
    }
}

TEST_CASE("an evaluation is exact, and touches nothing") {
  const std::vector<index_t> widths{4, 70, 9, 64, 3};
  const auto policy =
      AcSgd<Changes<2>, Uniform<4, Stochastic, Symmetric, MaxAbs, PerBlock<64>>>{.capacity = 20};
  std::vector<Floats> parameters(4);
  std::array<double, 3> losses{};
  const std::array<Ids, 3> batches{Ids{3, 3, 3, no_example, 500}, shuffled(20, 9), Ids{7}};
  on_stages(4, [&](Threads& transport) {
    Layers stage = Layers::part(widths, transport.rank(), 4);
    Pipeline pipeline{policy, transport, stage, {.micro_batch = 3}, AnySchedule{0}};
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      stage.zero_gradients();
      pipeline.train(shuffled(20, epoch));
      stage.descend(0.1F);
    }
    const Copies before = copies_of(pipeline);
    const Floats gradients = stage.gradients;
    for (std::size_t k = 0; k < batches.size(); ++k) {
      const double loss = pipeline.evaluate(batches[k]);
      CHECK(pipeline.evaluate(batches[k]) == loss);
      if (transport.rank() == 1) losses[k] = loss;
    }
    CHECK(copies_of(pipeline) == before);
    CHECK(stage.gradients == gradients);
    CHECK(pipeline.steps() == 3);
    CHECK(pipeline.examples().size() == 20);
    pipeline.audit();
    parameters[at(transport.rank())] = stage.parameters;
  });
  Layers model = Layers::part(widths, 0, 1);
  model.parameters.clear();
  for (const Floats& part : parameters)
    model.parameters.insert(model.parameters.end(), part.begin(), part.end());
  for (std::size_t k = 0; k < batches.size(); ++k)
    CHECK(losses[k] == one_rank_step(model, batches[k], 3, false));
}

namespace {

/// What a stage in the middle was given, and what all have sent, in steps of rows of these lengths.
struct Padded {
  std::vector<Floats> inputs, output_gradients;
  std::uint64_t forward_bytes = 0, backward_bytes = 0;
};

constexpr index_t tokens = 5, token = 64;

/// `lengths(id, step)` of `tokens`; none: rows are whole. Activations of padding are 0 where `zeros`.
template <class P>
Padded train_padded(const P& policy, const std::function<index_t(std::uint64_t, std::uint64_t)>& lengths,
                    const std::function<index_t(std::uint64_t, std::uint64_t)>& zeros = {}) {
  std::array<Padded, 3> all;
  on_stages(3, [&](Threads& threads) {
    Metered<Threads> transport(threads.split(0, threads.rank()));
    Scripted stage(threads.rank(), {tokens * token, tokens * token});
    const auto padding = [&](auto script) {
      return [&, script](int s, std::uint64_t id, std::uint64_t now, index_t i) {
        return zeros && i >= token * zeros(id, now) ? 0.0F : script(s, id, now, i);
      };
    };
    stage.activation = padding(stage.activation);
    stage.gradient = padding(stage.gradient);
    Pipeline pipeline{policy, transport, stage, {.micro_batch = 3, .seed = 2, .positions = tokens}};
    Padded& mine = all[at(threads.rank())];
    for (; stage.time < 4; ++stage.time) {
      const Ids ids = shuffled(7, stage.time);
      std::vector<index_t> rows;
      if (lengths)
        for (const std::uint64_t id : ids) rows.push_back(lengths(id, stage.time));
      pipeline.train(ids, rows);
      mine.inputs.push_back(stage.inputs);
      mine.output_gradients.push_back(stage.output_gradients);
    }
    pipeline.audit();
    mine.forward_bytes = transport.traffic()[Phase::forward].bytes_sent;
    mine.backward_bytes = transport.traffic()[Phase::backward].bytes_sent;
  });
  return all[1];
}

template <class P>
void check_padding(const P& policy, index_t forward_bits, index_t backward_bits) {
  CAPTURE(type_name<P>());
  const auto of_example = [](std::uint64_t id, std::uint64_t) {
    return static_cast<index_t>(id) % (tokens + 1);
  };
  const Padded padded = train_padded(policy, of_example), whole = train_padded(policy, {}, of_example);
  // Scales are of a token, so that padding of zeros makes no difference to the others.
  CHECK(padded.inputs == whole.inputs);
  CHECK(padded.output_gradients == whole.output_gradients);
  // Lengths 0 to 5 and 0: 15 of 35 tokens travel; each of the others is 64 elements and a scale.
  const auto saved = [](index_t bits) {
    return static_cast<std::uint64_t>(20 * (token * bits / 8 + (bits < 32 ? 4 : 0)));
  };
  // Scales end at multiples of 8.
  const std::uint64_t slack = 4 * 3 * 4;
  const std::uint64_t first = P::remembers ? saved(32) : saved(forward_bits);
  const std::uint64_t forward = first + 3 * saved(forward_bits), backward = 4 * saved(backward_bits);
  CHECK(whole.forward_bytes - padded.forward_bytes + slack >= forward);
  CHECK(whole.forward_bytes - padded.forward_bytes <= forward + slack);
  CHECK(whole.backward_bytes - padded.backward_bytes + slack >= backward);
  CHECK(whole.backward_bytes - padded.backward_bytes <= backward + slack);
}

}  // namespace

TEST_CASE("padding doesn't travel, arrives as zeros, and the rest as if it had") {
  check_padding(AcSgd<Changes<4>, Fine>{.capacity = 7}, 4, 8);
  check_padding(AcSgd<Changes<2>, Fine, InMemory<Int8>>{.capacity = 7}, 2, 8);
  check_padding(DirectActivations<Changes<3>, Fine>{}, 3, 8);
  check_padding(ExactActivations{}, 32, 32);
}

TEST_CASE(
    "an example may be longer at a later visit: its copy is zeros there, also where the slot was another's") {
  const auto check = [](const auto& policy) {
    const auto grows = [](std::uint64_t id, std::uint64_t step) {
      return std::min<index_t>(tokens, static_cast<index_t>(id % 3 + 2 * step));
    };
    const Padded padded = train_padded(policy, grows), whole = train_padded(policy, {}, grows);
    CHECK(padded.inputs == whole.inputs);
    CHECK(padded.output_gradients == whole.output_gradients);
  };
  check(AcSgd<Changes<4>, Fine, InMemory<float>>{.capacity = 7});
  check(AcSgd<Changes<4>, Fine>{.capacity = 7});
  check(AcSgd<Changes<4>, Fine, InMemory<Int8>>{.capacity = 7});
  on_stages(2, [&](Threads& transport) {
    Scripted stage(transport.rank(), {tokens * token});
    Pipeline pipeline{AcSgd<Changes<4>, Dense, InMemory<float>>{.capacity = 1},
                      transport,
                      stage,
                      {.micro_batch = 1, .positions = tokens}};
    pipeline.train(Ids{1});
    pipeline.forget(Ids{1});
    pipeline.train(Ids{2}, std::vector<index_t>{1});
    for (const auto& side : {copies_of(pipeline).incoming, copies_of(pipeline).outgoing})
      for (const auto& [id, row] : side)
        for (std::size_t i = 4 * token; i < row.size(); ++i) REQUIRE(row[i] == std::byte{});
  });
}

TEST_CASE("a block of 8 bits that padding cuts is zeros there") {
  constexpr index_t half = 32, elements = 4 * half;
  on_stages(2, [&](Threads& transport) {
    Scripted stage(transport.rank(), {elements});
    stage.activation = [](int, std::uint64_t, std::uint64_t, index_t) { return 2.0F; };
    Pipeline pipeline{AcSgd<Changes<4>, Dense, InMemory<Int8>>{.capacity = 1},
                      transport,
                      stage,
                      {.micro_batch = 1, .positions = 4}};
    for (const index_t length : {1, 4, 3}) {
      pipeline.train(Ids{2}, std::vector<index_t>{length});
      for (const auto& side : {copies_of(pipeline).incoming, copies_of(pipeline).outgoing})
        for (auto [id, row] : side) {
          std::byte* const place = row.data();
          RowFormat<Int8>::Cursor cursor(&place, elements);
          cursor.enter({0, 0, elements});
          for (index_t i = 0; i < elements; ++i) {
            if (i % alignment == 0) cursor.enter_block(i);
            // A whole visit at first, and at the last one the block that is cut is forgotten where it is cut.
            if (i < half * length)
              CHECK(std::abs(cursor.load(i) - 2) < 0.27F);  // a step of 4 bits
            else
              CHECK(cursor.load(i) == 0);
          }
        }
    }
  });
}

TEST_CASE("an evaluation may have micro-batches of its own, and padding") {
  const std::vector<index_t> widths{4, 8, 8, 3};
  std::vector<std::vector<index_t>> sizes(2);
  on_stages(3, [&](Threads& transport) {
    Layers stage = Layers::part(widths, transport.rank(), 3);
    std::vector<index_t> rows;
    stage.on_output = [&](const MicroBatch& now, float*, index_t) { rows.push_back(now.rows); };
    Pipeline pipeline{AcSgd<Changes<4>, Fine>{.capacity = 20},
                      transport,
                      stage,
                      {.micro_batch = 2, .evaluation_micro_batch = 7}};
    const Ids ids = shuffled(17, 3);
    Layers model = Layers::part(widths, 0, 1);
    CHECK(pipeline.evaluate(ids) == one_rank_step(model, ids, 7, false));
    CHECK(rows == std::vector<index_t>{7, 7, 3});
    rows.clear();
    pipeline.train(Ids{1, 2, 3});
    CHECK(rows == std::vector<index_t>{2, 1});
    CHECK(pipeline.evaluate(ids) == one_rank_step(model, ids, 7, false));
  });
  on_stages(2, [&](Threads& transport) {
    Scripted stage(transport.rank(), {2 * token});
    Pipeline pipeline{ExactActivations{}, transport, stage, {.micro_batch = 2, .positions = 2}};
    const std::vector<index_t> lengths{1, 2, 0};
    pipeline.evaluate(Ids{5, 6, 7}, lengths);
    if (transport.rank() == 1)
      for (index_t r = 0; r < 3; ++r)
        for (index_t i = 0; i < 2 * token; ++i)
          REQUIRE(stage.inputs[at(r * 2 * token + i)] ==
                  (i < token * lengths[at(r)] ? stage.activation(0, 5 + static_cast<std::uint64_t>(r), 0, i)
                                              : 0.0F));
  });
}

TEST_CASE("a batch that is refused leaves slots as they were") {
  on_stages(2, [&](Threads& transport) {
    Scripted stage(transport.rank(), {3});
    const AcSgd<Changes<2>, Dense, InMemory<float>> policy{.capacity = 8};
    Pipeline tried{policy, transport, stage, {.micro_batch = 2}};
    Pipeline spared{policy, transport, stage, {.micro_batch = 2}};
    const auto slots = [](auto& pipeline, std::initializer_list<std::uint64_t> ids) {
      pipeline.train(Ids(ids));
      std::vector<std::uint64_t> held;
      for (index_t slot = 0; slot < 8; ++slot) held.push_back(pipeline.examples().id(slot));
      return held;
    };
    const auto refused = [&](std::initializer_list<std::uint64_t> ids) {
      CHECK_THROWS_AS(tried.train(Ids(ids)), usage_error);
    };
    refused({1, 2, 3, 3});
    CHECK(slots(tried, {1, 2, 3}) == slots(spared, {1, 2, 3}));
    refused({4, 5, 6, 7, 8, 9});
    refused({4, 1, 9, 9});
    CHECK(slots(tried, {1, 5, 4}) == slots(spared, {1, 5, 4}));
    for (auto* pipeline : {&tried, &spared}) pipeline->forget(Ids{2, 4, 1});
    refused({10, 11, 12, 13, 14, 15, 16});
    CHECK(slots(tried, {10, 11, 12, 13}) == slots(spared, {10, 11, 12, 13}));
  });
}

TEST_CASE("what is not finite leaves loss and copies finite and alike, whatever all stages make of it") {
  const std::vector<index_t> widths{4, 20, 64, 9, 3};
  constexpr float unbounded = std::numeric_limits<float>::infinity();
  constexpr float no_number = std::numeric_limits<float>::quiet_NaN();
  for (const bool forward : {true, false})
    for (const NonFinite choice : {NonFinite::throw_, NonFinite::skip, NonFinite::zero}) {
      CAPTURE(forward);
      CAPTURE(static_cast<int>(choice));
      std::vector<Copies> copies(4);
      on_stages(4, [&](Threads& transport) {
        const int rank = transport.rank();
        Layers stage = Layers::part(widths, rank, 4);
        bool spoilt = false;
        if (rank == 1)
          (forward ? stage.on_output : stage.on_input_gradient) = [&](const MicroBatch& rows, float* values,
                                                                      index_t count) {
            if (spoilt && rows.index == 1) values[count / 2] = forward ? no_number : unbounded;
          };
        Pipeline pipeline{AcSgd<Changes<4>, Fine, InMemory<float>>{.capacity = 12},
                          transport,
                          stage,
                          {.micro_batch = 3, .on_non_finite = choice},
                          AnySchedule{1}};
        for (std::uint64_t step = 0; step < 6; ++step) {
          spoilt = step == 0 || step == 3;
          stage.zero_gradients();
          bool applied = false;
          int culprit = -1;
          try {
            const PipelineResult result = pipeline.train(shuffled(12, step));
            applied = result.applied;
            CHECK(std::isfinite(result.loss));
          } catch (const non_finite_error& failure) {
            culprit = failure.culprit();
          }
          CHECK(culprit == (spoilt && choice == NonFinite::throw_ ? 1 : -1));
          CHECK(applied == (!spoilt || choice == NonFinite::zero));
          CHECK(pipeline.steps() == step + 1);
          if (applied) stage.descend(0.05F);
          pipeline.audit();
        }
        for (const float parameter : stage.parameters) REQUIRE(std::isfinite(parameter));
        copies[at(rank)] = copies_of(pipeline);
      });
      for (std::size_t s = 0; s < 3; ++s) {
        CHECK(copies[s].outgoing == copies[s + 1].incoming);
        CHECK(copies[s].outgoing.size() == 12);
        bool finite = true;
        for (const auto& [id, row] : copies[s].outgoing)
          for (std::size_t b = 0; b < row.size(); b += 4) {
            float value;
            std::memcpy(&value, row.data() + b, sizeof value);
            finite = finite && std::isfinite(value);
          }
        CHECK(finite);
      }
    }
}

TEST_CASE("the index of examples does what a map does, and gives slots in the order that it says") {
  for (const index_t capacity : {0, 1, 2, 7, 64, 1000}) {
    CAPTURE(capacity);
    terse::detail::ExampleIndex index(capacity);
    std::unordered_map<std::uint64_t, index_t> wanted;
    std::vector<index_t> given_back;
    index_t end = 0;
    std::size_t wrong = 0;
    const Draw draw = Draw::shared(1, static_cast<std::uint64_t>(capacity), Purpose::user);
    for (std::uint64_t k = 0; k < 40 * static_cast<std::uint64_t>(capacity + 3); ++k) {
      // Few ids, so that most are met again; far apart or next to each other.
      const std::uint64_t number = draw.bits(k) % (2 * static_cast<std::uint64_t>(capacity) + 3);
      const std::uint64_t id = number % 3 == 0 ? number * 0x9E3779B97F4A7C15 : number;
      const bool known = wanted.count(id) > 0;
      wrong += index.find(id) != (known ? wanted[id] : terse::detail::ExampleIndex::none) ? 1 : 0;
      if (draw.bits(k) >> 60 < 7) {
        index.erase(id);
        if (known) given_back.push_back(wanted[id]);
        wanted.erase(id);
      } else if (!known && index.size() < capacity) {
        const index_t slot = given_back.empty() ? end : given_back.back();
        if (given_back.empty())
          ++end;
        else
          given_back.pop_back();
        wrong += index.insert(id) != slot ? 1 : 0;
        wanted[id] = slot;
      } else if (draw.bits(k) >> 50 == 0) {
        index.clear();
        wanted.clear();
        given_back.clear();
        end = 0;
      }
      wrong += index.size() != static_cast<index_t>(wanted.size()) || index.end() != end ? 1 : 0;
      if (k % 64 != 0) continue;
      std::size_t held = 0;
      for (index_t slot = 0; slot < capacity; ++slot) {
        const std::uint64_t who = index.id(slot);
        if (who == no_example) continue;
        ++held;
        wrong += wanted.count(who) == 0 || wanted[who] != slot ? 1 : 0;
      }
      wrong += held != wanted.size() ? 1 : 0;
    }
    CHECK(wrong == 0);
    CHECK(index.capacity() == capacity);
  }
}

TEST_CASE("an index takes over the ids of another, or nothing") {
  terse::detail::ExampleIndex index(4);
  index.insert(9);
  CHECK_THROWS_WITH_AS(index.assign({1, 2, 3, 4, 5}),
                       doctest::Contains("5 examples don't fit into a memory of 4"), usage_error);
  CHECK_THROWS_WITH_AS(index.assign({1, no_example, 1}), doctest::Contains("example 1 is there twice"),
                       usage_error);
  CHECK(index.size() == 1);
  CHECK(index.find(9) == 0);
  index.assign({5, no_example, 7});
  CHECK(index.size() == 2);
  CHECK(index.end() == 3);
  CHECK(index.capacity() == 4);
  CHECK(index.find(9) == terse::detail::ExampleIndex::none);
  CHECK(index.find(7) == 2);
  CHECK(index.id(1) == no_example);
  CHECK(index.insert(11) == 1);
  CHECK(index.insert(12) == 3);
  terse::detail::ExampleIndex none(0);
  CHECK(none.find(3) == terse::detail::ExampleIndex::none);
  none.erase(3);
  none.assign({});
  CHECK(none.size() == 0);
  CHECK_THROWS_AS(none.assign({3}), usage_error);
  CHECK_THROWS_WITH_AS(terse::detail::ExampleIndex(-1), doctest::Contains("not -1"), usage_error);
  CHECK_THROWS_AS(terse::detail::ExampleIndex(index_t{1} << 31), usage_error);
}
