// SPDX-License-Identifier: Apache-2.0
#include "guards.inc"
#include "mixing_support.hpp"
#include "terse/graph/lazy.hpp"
#include "terse/optimizer/lars.hpp"

// Guards of decentralized SGD: what is refused, gradients that are not finite, allocations, and equal runs.

namespace {

using Circle = Mixing<graph::Ring>;
/// One of each kind: gradients in messages, and not; fixed graphs, changing ones, and two vectors.
using Sighted = DecentLaM<Circle>;
using Blind = AwcDmSgd<Circle>;
using Tracking = MomentumTracking<Circle>;
using Mixture = CtaDSgd<Circle>;

/// What the first failure of `program`, run by all ranks, says; empty if there is none.
template <class Error, class Program>
std::string refusal(int ranks, Program program) {
  try {
    on_ranks(ranks, program);
  } catch (const Error& failure) {
    return failure.what();
  }
  return {};
}
bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

template <class R>
std::string construction(const R& recipe, int ranks) {
  return refusal<usage_error>(ranks, [&](Threads& transport) {
    const Optimizer optimizer{recipe, transport, odd_sizes()};
  });
}

}  // namespace

TEST_CASE("exact means now and then are refused where they can't be taken or make a method diverge") {
  using Signs = DSgd<Circle, Sign, Residual>;
  CHECK(says(construction(Signs{.average_every = 5}, 3),
             "average_every is for packets that are not compressed"));
  CHECK(construction(Signs{}, 3).empty());
  const char* changes = "make the graph change from step to step";
  CHECK(says(construction(Sighted{.average_every = 5}, 3), changes));
  CHECK(says(construction(D2<Circle>{.average_every = 5}, 3), changes));
  CHECK(says(construction(DcdSgd<Dense, Circle>{.average_every = 5}, 3), "sums over neighbours"));
  CHECK(says(construction(StochasticGradientPush<>{.average_every = 5}, 3), "push-sum weights"));
  CHECK(construction(Blind{.average_every = 5}, 3).empty());
}

TEST_CASE(
    "exact diffusion is refused on a matrix with an eigenvalue of -1/3 or less, unless told otherwise") {
  using Matrix = graph::SymmetricMatrix;
  const auto on = [](const auto& graph) {
    using G = std::remove_cvref_t<decltype(graph)>;
    return construction(ParameterMixing<ExactDiffusion<GradientDirection>, Mixing<G>>{.topology = {graph}},
                        2);
  };
  const Matrix swap{{0.2, 0.8, 0.8, 0.2}};  // the eigenvalues 1 and -0.6
  const std::string refused = on(swap);
  CHECK(says(refused, "-0.6"));
  CHECK(says(refused, "graph::Lazy"));
  CHECK(on(Matrix{{0.4, 0.6, 0.6, 0.4}}).empty());
  CHECK(on(graph::Lazy<Matrix>{swap}).empty());
  CHECK(on(graph::Unchecked<Matrix>{swap}).empty());
}

TEST_CASE("momentum with a limit for eigenvalues is refused below it") {
  const auto nesterov = [](const auto& topology) {
    return construction(
        DecentLaM<std::remove_cvref_t<decltype(topology)>>{
            .momentum_correction = {.momentum = 0.9F, .nesterov = true}, .topology = topology},
        2);
  };
  const graph::SymmetricMatrix steep{{0.3, 0.7, 0.7, 0.3}};  // the eigenvalues 1 and -0.4
  CHECK(says(nesterov(Mixing<graph::SymmetricMatrix>{steep}), "above -0.357"));
  CHECK(nesterov(Mixing<graph::SymmetricMatrix>{{{0.4, 0.6, 0.6, 0.4}}}).empty());
  CHECK(nesterov(Mixing<graph::Unchecked<graph::SymmetricMatrix>>{{steep}}).empty());
  const auto shared = [&](float omega) {
    return construction(
        MomentumConsensus<Mixing<graph::SymmetricMatrix>>{
            .momentum_correction = {.momentum = 0.9F, .omega = omega}, .topology = {steep}},
        2);
  };
  CHECK(says(shared(1), "above -0.357"));
  CHECK(shared(0.5F).empty());
  const auto quasi_global = [](double stay) {
    const graph::SymmetricMatrix pair{{stay, 1 - stay, 1 - stay, stay}};
    return construction(QgDmSgd<Mixing<graph::SymmetricMatrix>>{.topology = {pair}}, 2);
  };
  CHECK(says(quasi_global(0.04), "the eigenvalue -0.92"));
  CHECK(quasi_global(0.05).empty());
}

TEST_CASE("rates, momenta and graphs that can't work are refused") {
  CHECK(says(construction(Blind{.consensus_rate = 0}, 1), "consensus_rate"));
  CHECK(says(construction(Blind{.consensus_rate = 1.5F}, 1), "consensus_rate"));
  CHECK(says(construction(Blind{.consensus_rate = not_a_number}, 1), "consensus_rate"));
  CHECK(says(construction(Blind{.learning_rate = -1}, 1), "learning_rate"));
  CHECK(says(construction(Blind{.momentum_correction = {{.momentum = 1}}}, 1), "momentum"));
  const DmSgd<Given> pair{.topology = {{{0.5, 0.5, 0.5, 0.5}}}};
  CHECK(says(construction(pair, 3), "2 x 2, but there are 3 ranks"));
  CHECK(construction(pair, 2).empty());
}

TEST_CASE("ranks with different graphs are told so") {
  const auto differ = [](const auto& zero, const auto& other) {
    return refusal<mismatch_error>(2, [&](Threads& transport) {
      const Optimizer optimizer{transport.rank() == 1 ? other : zero, transport, odd_sizes()};
    });
  };
  const Matched one{.topology = {{.seed = 1}}}, two{.topology = {{.seed = 2}}};
  // Seeds that a double can't tell apart.
  const Matched big{.topology = {{.seed = 1ULL << 62}}}, bigger{.topology = {{.seed = (1ULL << 62) + 1}}};
  CHECK(differ(one, one).empty());
  CHECK(says(differ(one, two), "hyper-parameters"));
  CHECK(says(differ(big, bigger), "hyper-parameters"));
  const DmSgd<Given> even{.topology = {{{0.5, 0.5, 0.5, 0.5}}}}, odd{.topology = {{{0.6, 0.4, 0.4, 0.6}}}};
  CHECK(differ(even, even).empty());
  CHECK(says(differ(even, odd), "hyper-parameters"));
}

TEST_CASE("only steps that are all alike may be recorded") {
  CHECK(Sighted{}.recordable());
  CHECK(Blind{}.recordable());
  CHECK_FALSE(Blind{.average_every = 5}.recordable());
  CHECK_FALSE(Mixture{}.recordable());
  CHECK_FALSE(Matched{}.recordable());
  CHECK_FALSE(StochasticGradientPush<graph::DirectedList>{}.recordable());
}

TEST_CASE("CombineThenAdapt without begin is refused, and works on with it") {
  const std::string refused = refusal<usage_error>(3, [&](Threads& transport) {
    Optimizer optimizer{Mixture{}, transport, odd_sizes()};
    Floats x = start(optimizer.layout());
    const Floats before = x;
    try {
      take_step(optimizer, transport.rank(), x, false);
    } catch (const usage_error&) {
      CHECK(x == before);
      take_step(optimizer, transport.rank(), x, true);
      CHECK(optimizer.steps() == 1);
      CHECK(x != before);
      throw;
    }
  });
  CHECK(says(refused, "call begin(parameters) before each step"));
  CHECK(says(refused, "step 1"));
}

TEST_CASE("a gradient that is not finite throws where it arrives, and nobody waits for long") {
  // Among three ranks on a ring everybody is everybody's neighbour.
  check_throw(Sighted{});
  check_throw(Tracking{});
  check_throw(Blind{});
  std::vector<std::string> ends(6);
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_AS(on_ranks(6,
                           [&](Threads& transport) {
                             Optimizer optimizer{Sighted{}, transport, odd_sizes()};
                             Floats x = start(optimizer.layout());
                             try {
                               for (int step = 1; step <= 8; ++step) {
                                 Floats g = Quadratics::gradient<float>(at(transport.rank()), x);
                                 if (step == 3 && transport.rank() == 0) g[70] = not_a_number;
                                 optimizer.step(x, g);
                               }
                             } catch (const non_finite_error& failure) {
                               ends[at(transport.rank())] = "rank " + std::to_string(failure.culprit());
                               // Who leaves poisons the group; its neighbours shall read its message first.
                               std::this_thread::sleep_for(std::chrono::milliseconds(300));
                               throw;
                             } catch (const peer_error&) {
                               ends[at(transport.rank())] = "peer";
                               throw;
                             }
                           }),
                  non_finite_error);
  for (const int near : {0, 1, 5}) CHECK(ends[at(near)] == "rank 0");
  for (const int far : {2, 3, 4}) CHECK(ends[at(far)] == "peer");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
}

TEST_CASE("the group's error has the value and its segment, whichever rank finds it first") {
  for (int turn = 0; turn < 20; ++turn) {
    std::string said;
    try {
      on_ranks(5, [&](Threads& transport) {
        Optimizer optimizer{DSgd<>{.learning_rate = 0.1F}, transport, odd_sizes()};
        Floats x = start(optimizer.layout());
        for (int step = 1; step <= 4; ++step) {
          Floats g = Quadratics::gradient<float>(at(transport.rank()), x);
          if (step == 3 && transport.rank() == 2) g[70] = not_a_number;
          optimizer.step(x, g);
        }
      });
    } catch (const non_finite_error& failure) {
      said = failure.what();
    }
    CHECK(said.find("the gradient of rank 2 is not finite: element ") != std::string::npos);
  }
}

namespace {

struct Poison {
  float value;  ///< what rank 1's gradient holds in step 3
  NonFinite policy = NonFinite::zero;
  bool begins = false;
};
/// x of all ranks after eight steps.
template <class R>
std::vector<Floats> poisoned(const R& recipe, const Poison& poison, int& skipped) {
  std::vector<Floats> all(4);
  std::atomic<int> not_applied{0};
  on_ranks(4, [&](Threads& transport) {
    Optimizer optimizer{recipe, transport, odd_sizes(), Options{.on_non_finite = poison.policy}};
    Floats& x = all[at(transport.rank())] = start(optimizer.layout());
    for (int step = 1; step <= 8; ++step) {
      if constexpr (R::blind)
        if (poison.begins) optimizer.begin(x);
      Floats g = Quadratics::gradient<float>(at(transport.rank()), x);
      if (step == 3 && transport.rank() == 1) g[70] = poison.value;
      const Floats before = x;
      Seen was, is;
      optimizer.walk(was);
      if (optimizer.step(x, g).applied) continue;
      ++not_applied;
      optimizer.walk(is);
      CHECK(x == before);
      CHECK(was.parts == is.parts);
    }
    Seen seen;
    optimizer.walk(seen);
    CHECK(all_finite(seen, x));
  });
  skipped = not_applied;
  return all;
}

template <class R>
void check_poison(const R& recipe) {
  CAPTURE(type_name<R>());
  int skipped = 0;
  const std::vector<Floats> expected = poisoned(recipe, {.value = 0}, skipped);
  for (const bool begins : {false, true})
    for (const float value : {not_a_number, unbounded, -1e30F}) {
      CHECK(poisoned(recipe, {value, NonFinite::zero, begins}, skipped) == expected);
      CHECK(skipped == 0);
      CHECK(poisoned(recipe, {value, NonFinite::skip, begins}, skipped) != expected);
      CHECK(skipped == 4);
    }
}

/// One step with clip_norm, and one with the scale that it stands for.
template <class R>
void check_clip(const R& recipe) {
  CAPTURE(type_name<R>());
  const Layout layout = odd_sizes();
  double square = 0;
  for (std::size_t rank = 0; rank < 4; ++rank)
    each(layout, any_one, [&, g = Quadratics::gradient<float>(rank, start(layout))](std::size_t k) {
      square += static_cast<double>(g[k]) * static_cast<double>(g[k]);
    });
  const float scale = static_cast<float>(0.5 / std::sqrt(square / 4));
  on_ranks(4, [&](Threads& transport) {
    Optimizer clipped{recipe, transport, layout, Options{.clip_norm = 0.5F}},
        scaled{recipe, transport, layout}, loose{recipe, transport, layout, Options{.clip_norm = 1e6F}};
    Floats x = start(layout), y = x, z = x, w = x;
    const Floats g = Quadratics::gradient<float>(at(transport.rank()), x);
    clipped.step(x, g);
    scaled.step(y, g, scale);
    // The norm is of fp32 sums.
    CHECK(relative_error(layout, x, y, any_one, 1) < 1e-6);
    loose.step(z, g);
    Optimizer{recipe, transport, layout}.step(w, g);
    CHECK(z == w);
    CHECK(relative_error(layout, x, z, any_one, 1) > 1e-3);
  });
}

}  // namespace

TEST_CASE("a gradient that is not finite counts as 0, or the step is skipped by all, by policy") {
  check_poison(Sighted{});
  check_poison(Tracking{});
  check_poison(Blind{});
}

TEST_CASE("clip_norm bounds the root mean square of the ranks' norms") {
  check_clip(Sighted{});
  check_clip(Blind{});
}

TEST_CASE("a step allocates nothing, on graphs that change as well, nor with exact means") {
  for (const Options& options : {Options{}, Options{.on_non_finite = NonFinite::skip, .clip_norm = 1}}) {
    check_allocations(Sighted{}, options);
    check_allocations(Tracking{}, options);
    check_allocations(Mixture{}, options);
    check_allocations(Lars<>{}, options);
    check_allocations(Blind{.average_every = 3}, options);
    check_allocations(Matched{.average_every = 4}, options);
    check_allocations(OnePeer{}, options);
    check_allocations(
        StochasticGradientPush<graph::DirectedList>{
            .topology = {graph::PushSum<graph::DirectedList>{{one_way(3)}}}},
        options);
  }
}

TEST_CASE("runs with the same seeds have the same bits") {
  const auto check = [](const auto& recipe) {
    CAPTURE(type_name<std::remove_cvref_t<decltype(recipe)>>());
    std::vector<std::vector<Floats>> runs;
    for (int run = 0; run < 3; ++run) {
      std::vector<Floats>& all = runs.emplace_back(7);
      on_ranks(7, [&](Threads& transport) {
        Optimizer optimizer{recipe, transport, odd_sizes()};
        Floats& x = all[at(transport.rank())] = start(optimizer.layout());
        for (int step = 1; step <= 20; ++step) take_step(optimizer, transport.rank(), x, true);
      });
    }
    CHECK(runs[0] == runs[1]);
    CHECK(runs[0] == runs[2]);
  };
  check(Sighted{});
  check(Tracking{});
  check(Matched{.average_every = 4, .topology = {{.seed = 5}}});
  check(Mixture{});
}
