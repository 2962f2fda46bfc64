// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <mutex>
#include <numeric>
#include <random>

#include "guards.inc"
#include "terse/compressor/qsgd.hpp"
#include "terse/exchange/selected_rounds.hpp"
#include "terse/optimizer/power_sgd.hpp"
#include "terse/transport/forwarding.hpp"

// Select: each branch has the bits of an optimizer of its segments alone, and what concerns a step concerns all branches.

namespace {

Layout layers() {
  Layout layout;
  layout.add({"embedding.table", {90, 20}}).add({"first.weight", {40, 50}}).add({"first.bias", {40}});
  layout.add({"first.gain", {700}}).add({"second.weight", {30, 40}, 0.5F}).add({"second.bias", {30}, 1, 0});
  layout.add({"head.weight", {10, 30}, 1, 0, false}).add({"last.gain", {200}});
  return layout;
}

using Branches = Select<SmallerThan<100>, Where<Named<"embedding*">, TopK<>, Residual>,
                        Where<IsMatrix, LowRank<2>>, Otherwise<Sign>>;
/// Without a compressor that needs whole segments.
using Cuttable = Select<SmallerThan<100>, Where<Named<"embedding*">, TopK<>, Residual>, Otherwise<Sign>>;

/// The segments of each branch of Branches, and those in full precision last.
const std::vector<std::vector<std::string>> split{{"embedding.table"},
                                                  {"first.weight", "second.weight"},
                                                  {"first.gain", "last.gain"},
                                                  {"first.bias", "second.bias", "head.weight"}};

const Segment& named(const Layout& layout, const std::string& name) {
  return *std::find_if(layout.segments().begin(), layout.segments().end(),
                       [&](const Segment& segment) { return segment.name == name; });
}

constexpr std::uint64_t steps = 9;

struct End {
  Floats parameters;
  index_t promised = 0;  // bytes of a compressed step
};

/// Steps of a recipe on some segments of `whole`, with the gradient that they have there.
template <class R>
End alone(const R& recipe, Threads& transport, const Layout& whole, const std::vector<Floats>& gradients,
          const std::vector<std::string>& names, bool compress) {
  Layout layout;
  for (const std::string& name : names) {
    Segment segment = named(whole, name);
    segment.compress = compress;
    layout.add(segment);
  }
  const auto gather = [&](const Floats& from) {
    Floats to(at(layout.size()));
    for (const Segment& segment : layout.segments())
      std::copy_n(from.begin() + named(whole, segment.name).offset, segment.count,
                  to.begin() + segment.offset);
    return to;
  };
  Optimizer optimizer{recipe, transport, layout};
  End end;
  Floats x = gather(start(whole));
  for (const Floats& g : gradients) {
    if (optimizer.steps() == 5) optimizer.learning_rate(4e-3F);
    optimizer.step(x, gather(g));
  }
  end.promised = optimizer.bytes_per_step().compressed;
  end.parameters.resize(at(whole.size()));
  for (const Segment& segment : layout.segments())
    std::copy_n(x.begin() + segment.offset, segment.count,
                end.parameters.begin() + named(whole, segment.name).offset);
  return end;
}

std::vector<Floats> gradients_of(const Layout& layout, int rank) {
  std::vector<Floats> gradients;
  for (std::uint64_t step = 1; step <= steps; ++step) gradients.push_back(gradient(layout, rank, step, 1));
  return gradients;
}

/// Steps, of which those behind the fifth have another rate, as in `alone`.
template <class O>
void take(O& optimizer, Floats& x, const std::vector<Floats>& gradients) {
  for (const Floats& g : gradients) {
    if (optimizer.steps() == 5) optimizer.learning_rate(4e-3F);
    optimizer.step(x, g);
  }
}

/// Where each segment is that of the optimizer of its branch alone. `with` gives the recipe with another compressor.
/// `one_order`: full-precision sums have the same order wherever elements stand; `one_way`: they go as packets do.
template <class With>
void check_parts(const With& with, bool one_order, bool one_way) {
  const Layout layout = layers();
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
      Optimizer optimizer{with(Branches{}), transport, layout};
      Floats x = start(layout);
      const std::vector<Floats> gradients = gradients_of(layout, transport.rank());
      std::uint64_t bytes = 0, exact_steps = 0;
      for (const Floats& g : gradients) {
        if (optimizer.steps() == 5) optimizer.learning_rate(4e-3F);
        exact_steps += optimizer.full_precision() ? 1U : 0U;
        bytes += optimizer.step(x, g).bytes_sent;
      }
      const std::vector<End> ends{alone(with(TopK<>{}), transport, layout, gradients, split[0], true),
                                  alone(with(LowRank<2>{}), transport, layout, gradients, split[1], true),
                                  alone(with(Sign{}), transport, layout, gradients, split[2], true),
                                  alone(with(Sign{}), transport, layout, gradients, split[3], false)};
      index_t promised = 0;
      for (std::size_t k = 0; k < ends.size(); ++k) {
        promised += ends[k].promised;
        if (k == 3 && ranks > 2 && !one_order) continue;
        for (const std::string& name : split[k]) {
          CAPTURE(name);
          const Segment& segment = named(layout, name);
          const auto begin = x.begin() + segment.offset;
          CHECK(std::equal(begin, begin + segment.count, ends[k].parameters.begin() + segment.offset));
        }
      }
      if (one_way) CHECK(optimizer.bytes_per_step().compressed == promised);
      const StepBytes most = optimizer.bytes_per_step();
      CHECK(bytes <= exact_steps * static_cast<std::uint64_t>(most.full_precision) +
                         (steps - exact_steps) * static_cast<std::uint64_t>(most.compressed) +
                         12 * static_cast<std::uint64_t>(ranks - 1));
      CHECK((ranks == 1 || bytes > 0));
    });
  }
}

template <class T>
struct OneBit {
  template <class C>
  auto operator()(const C& compressor) const {
    return OneBitAdam<C, T>{
        .learning_rate = 1e-2F, .preconditioner = {.freeze = AtStep{4}}, .compressor = compressor};
  }
};
template <class T>
struct Feedback {
  template <class C>
  auto operator()(const C& compressor) const {
    // A branch's own doesn't.
    constexpr bool follows = !std::is_same_v<C, TopK<>>;
    return ErrorFeedbackSgd<C, T>{
        .learning_rate = 1e-2F, .compressor = compressor, .error_feedback = {.follows_rate = follows}};
  }
};

/// Parameters of rank 0 after steps on `layout`, alike on all ranks.
template <class R>
Floats run_on(const Layout& layout, const R& recipe, int ranks, bool opened = false,
              index_t slice_bytes = 0) {
  std::vector<Floats> ends(at(ranks));
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout, Options{.slice_bytes = slice_bytes}};
    Floats x = start(layout), g(x.size());
    for (std::uint64_t step = 1; step <= steps; ++step) {
      const Floats whole = gradient(layout, transport.rank(), step, 1);
      if (opened) {
        // Another order on each rank and in each step.
        std::vector<index_t> order(layout.segments().size());
        std::iota(order.begin(), order.end(), 0);
        std::mt19937 random(static_cast<unsigned>(transport.rank() + 100 * static_cast<int>(step)));
        std::shuffle(order.begin(), order.end(), random);
        order.resize(order.size() - step % 3);
        std::fill(g.begin(), g.end(), 1e9F);
        optimizer.begin(x, g);
        for (const index_t segment : order) {
          const Segment& s = layout.segments()[at(segment)];
          std::copy_n(whole.begin() + s.offset, s.count, g.begin() + s.offset);
          optimizer.ready(segment);
        }
      }
      g = whole;
      optimizer.step(x, g);
    }
    ends[at(transport.rank())] = x;
  });
  for (const Floats& one : ends) CHECK(one == ends[0]);
  return ends[0];
}

}  // namespace

TEST_CASE("names match patterns") {
  CHECK(matches("", ""));
  CHECK(!matches("", "a"));
  CHECK(matches("*", ""));
  CHECK(matches("*.bias", "first.bias"));
  CHECK(!matches("*.bias", "first.bias2"));
  CHECK(matches("a*b*c", "a_b_b_c"));
  CHECK(!matches("a*b*c", "a_b_b"));
  CHECK(matches("block?.w*", "block7.weight"));
  CHECK(!matches("block?.w*", "block17.weight"));
  CHECK(matches("**a", "bba"));
}

TEST_CASE("the first branch that holds takes a segment, and what it leaves goes in full precision") {
  const Branches select;
  std::vector<std::size_t> taken;
  const Layout layout = layers();
  for (const Segment& segment : layout.segments()) taken.push_back(select.branch_of(segment));
  CHECK(taken == std::vector<std::size_t>{1, 2, 4, 3, 2, 4, 4, 3});
  // LowRank takes no matrix that its factors would hardly make smaller, and the branches after it aren't asked.
  CHECK(select.branch_of({"thin", {600, 2}, 1, 1, true, 0, false, 0, 1200}) == 4);
  CHECK(IsMatrix{}({"row", {1, 600}, 1, 1, true, 0, false, 0, 600}) == false);
}

TEST_CASE("a branch has the bits of an optimizer of its segments alone, and sends what that sends") {
  check_parts(OneBit<ScatterGather>{}, true, true);
  check_parts(Feedback<Ring>{}, false, true);
  check_parts(Feedback<AllGather>{}, true, false);
  check_parts(Feedback<Star>{}, true, true);
}

TEST_CASE("copies of Ef21, which all branches share, start from the exact step") {
  using Mixed = Select<SmallerThan<100>, Where<IsMatrix, TopK<>>, Otherwise<ScaledSign<MeanAbs>>>;
  const Layout layout = layers();
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{Ef21Sgd<Mixed>{.learning_rate = 1e-2F}, transport, layout};
    Floats x = start(layout);
    const std::vector<Floats> gradients = gradients_of(layout, transport.rank());
    take(optimizer, x, gradients);
    const End matrices = alone(Ef21Sgd<TopK<>>{.learning_rate = 1e-2F}, transport, layout, gradients,
                               {"embedding.table", "first.weight", "second.weight"}, true);
    for (const char* name : {"embedding.table", "second.weight"}) {
      const Segment& segment = named(layout, name);
      const auto begin = x.begin() + segment.offset;
      CHECK(std::equal(begin, begin + segment.count, matrices.parameters.begin() + segment.offset));
    }
  });
}

TEST_CASE("copies are started for the branches that share them alone") {
  using Mixed = Select<Where<Named<"own*">, TopK<>, Residual>, Otherwise<TopK<>>>;
  Layout layout;
  layout.add({"own_a", {6400}}).add({"shared", {640}}).add({"own_b", {6400}});
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{Ef21Sgd<Mixed>{.learning_rate = 1e-2F}, transport, layout};
    Floats x = start(layout);
    const std::vector<Floats> gradients = gradients_of(layout, transport.rank());
    take(optimizer, x, gradients);
    const End shared =
        alone(Ef21Sgd<TopK<>>{.learning_rate = 1e-2F}, transport, layout, gradients, {"shared"}, true);
    const auto begin = x.begin() + named(layout, "shared").offset;
    CHECK(std::equal(begin, begin + 640, shared.parameters.begin() + named(layout, "shared").offset));
  });
}

/// Messages in the order of one stream, as NCCL's: an exchange begins when the one before it is done.
class InOrder : public Forwarding<InOrder, Threads> {
 public:
  struct Ticket {
    std::unique_ptr<int> only_moves;
    static bool ready() { return true; }
    static void wait() {}
    static void wait(std::chrono::milliseconds) {}
  };

  explicit InOrder(Threads transport) : Forwarding<InOrder, Threads>(std::move(transport)) {}
  template <class Call>
  auto carry(Phase, const Load&, const Call& call) {
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
    } else {
      call().wait();
      return Ticket{};
    }
  }
  static InOrder around(Threads transport) { return InOrder(std::move(transport)); }
  static void synchronize() {}
};

TEST_CASE("in a stream's order branches' messages have one order, whichever gradients become ready first") {
  const Layout layout = layers();
  enum class Say { nothing, forwards_or_backwards, some_on_rank_0 };
  for (const Say say : {Say::nothing, Say::forwards_or_backwards, Say::some_on_rank_0}) {
    CAPTURE(static_cast<int>(say));
    Floats ends[2];
    ThreadGroup(2, std::chrono::seconds(5)).run([&](Threads& threads) {
      const int rank = threads.rank();
      InOrder transport(threads.split(0, rank));
      Optimizer optimizer{ErrorFeedbackSgd<Branches>{.learning_rate = 1e-2F}, transport, layout};
      Floats x = start(layout);
      for (const Floats& g : gradients_of(layout, rank)) {
        if (say != Say::nothing) optimizer.begin(x, g);
        const auto all = static_cast<index_t>(layout.segments().size());
        if (say == Say::forwards_or_backwards)
          for (index_t k = 0; k < all; ++k) optimizer.ready(rank == 0 ? k : all - 1 - k);
        if (say == Say::some_on_rank_0 && rank == 0) optimizer.ready(1);
        optimizer.step(x, g);
      }
      ends[rank] = x;
    });
    CHECK(ends[0] == ends[1]);
    CHECK(ends[0] == run_on(layout, ErrorFeedbackSgd<Branches>{.learning_rate = 1e-2F}, 2));
  }
}

TEST_CASE("a step that is opened early has the same bits, in whatever order gradients become ready") {
  const Layout layout = layers();
  for (const int ranks : {1, 3}) {
    const auto recipe = OneBit<ScatterGather>{}(Branches{});
    CHECK(run_on(layout, recipe, ranks, true) == run_on(layout, recipe, ranks));
    CHECK(run_on(layout, recipe, ranks, true, 1024) == run_on(layout, recipe, ranks, false, 1024));
  }
}

TEST_CASE("over Hierarchical branches are cut between nodes") {
  const Layout layout = layers();
  const auto over = [](auto topology) {
    return OneBitAdam<Cuttable, decltype(topology)>{
        .learning_rate = 1e-2F, .preconditioner = {.freeze = AtStep{4}}, .topology = topology};
  };
  // One rank a node.
  CHECK(run_on(layout, over(Hierarchical<ScatterGather, Ring>{1}), 3) == run_on(layout, over(Ring{}), 3));
  // All of a sparse message is the exact mean.
  using All = Select<SmallerThan<100>, Otherwise<TopK<>>>;
  All all;
  all.branch<1>().compressor.selection.ratio = 1;
  const auto whole = [&](auto compressor) {
    return run_on(layout,
                  ErrorFeedbackSgd<decltype(compressor), Hierarchical<>>{
                      .learning_rate = 1e-2F, .compressor = compressor, .topology = {2}},
                  4);
  };
  TopK<> everything;
  everything.selection.ratio = 1;
  CHECK(whole(all) == whole(everything));
  CHECK(run_on(layout, over(Hierarchical<>{2}), 4) != start(layout));
}

TEST_CASE("a gradient that isn't finite in one branch is known to all of them, and moves nothing") {
  check_policies(OneBit<ScatterGather>{}(Select<Where<Named<"w">, Sign>>{}));
  check_throw(OneBit<Ring>{}(Select<Where<Named<"w">, Sign>>{}));
  check_throw(
      OneBitAdam<Select<Otherwise<Sign>>, Hierarchical<>>{
          .learning_rate = 1e-2F, .preconditioner = {.freeze = AtStep{5}}, .topology = {2}},
      4);
  const Layout layout = layers();
  for (const char* name : {"embedding.table", "first.weight", "first.gain", "first.bias"}) {
    CAPTURE(name);
    std::atomic<int> caught{0};
    ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
      Optimizer optimizer{OneBit<ScatterGather>{}(Branches{}), transport, layout};
      Floats x = start(layout);
      for (std::uint64_t step = 1; step <= 8; ++step) {
        Floats g = gradient(layout, transport.rank(), step, 1);
        if (step == 7 && transport.rank() == 1) g[at(named(layout, name).offset + 5)] = not_a_number;
        const Floats before = x;
        try {
          optimizer.step(x, g);
        } catch (const non_finite_error& failure) {
          CHECK(failure.culprit() == 1);
          CHECK(x == before);
          ++caught;
        }
      }
      Seen seen;
      optimizer.walk(seen);
      CHECK(all_finite(seen, x));
    });
    CHECK(caught == 3);
  }
}

TEST_CASE("a rank that stays away while branches are under way ends the others' step at the deadline") {
  const Layout layout = layers();
  constexpr auto deadline = std::chrono::milliseconds(600);
  std::atomic<int> ended{0};
  const auto begin = std::chrono::steady_clock::now();
  try {
    ThreadGroup(3, deadline).run([&](Threads& transport) {
      Optimizer optimizer{OneBit<Ring>{}(Branches{}), transport, layout};
      Floats x = start(layout);
      for (std::uint64_t step = 1; step <= 8; ++step) {
        const Floats g = gradient(layout, transport.rank(), step, 1), before = x;
        optimizer.begin(x, g);
        for (index_t segment = 7; segment >= 2; --segment) optimizer.ready(segment);
        if (step == 7 && transport.rank() == 1) {
          std::this_thread::sleep_for(2 * deadline);
          return;
        }
        try {
          optimizer.step(x, g);
        } catch (const peer_error&) {
          CHECK(x == before);
          ++ended;
          throw;
        }
      }
    });
  } catch (const peer_error&) {
  }
  CHECK(ended == 2);
  CHECK(std::chrono::steady_clock::now() - begin < 2 * deadline + std::chrono::seconds(2));
}

TEST_CASE("a step allocates nothing") {
  check_allocations(OneBit<ScatterGather>{}(Select<Where<Named<"w">, Sign>>{}), {});
  check_allocations(OneBit<Ring>{}(Select<Where<Named<"w">, LowRank<1>>, Otherwise<TopK<>>>{}), {});
}

TEST_CASE("ranks whose branches differ in a hyper-parameter are told so") {
  std::string what;
  try {
    ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
      Branches select;
      select.branch<1>().compressor.selection.ratio = transport.rank() == 0 ? 0.01 : 0.02;
      Optimizer optimizer{OneBit<ScatterGather>{}(select), transport, layers()};
    });
  } catch (const mismatch_error& fault) {
    what = fault.what();
  }
  CHECK(what.find("hyper-parameters: Select's branch 1: ratio is ") != std::string::npos);
}

TEST_CASE("a branch's own error feedback can't follow the rate") {
  ThreadGroup(1, std::chrono::seconds(20)).run([&](Threads& transport) {
    Branches select;
    select.branch<1>().error_feedback.follows_rate = true;
    CHECK_THROWS_WITH_AS((Optimizer{OneBit<ScatterGather>{}(select), transport, layers()}),
                         doctest::Contains("terse: Select's branch 1: follows_rate is for"), usage_error);
  });
}

TEST_CASE("values that can't work are said of their branch") {
  ThreadGroup(1, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = layers();
    Optimizer optimizer{OneBit<ScatterGather>{}(Branches{}), transport, layout};
    optimizer.recipe.compressor.branch<1>().compressor.selection.ratio = 7;
    Floats x = start(layout);
    CHECK_THROWS_WITH_AS(optimizer.step(x, gradient(layout, 0, 1, 1)),
                         doctest::Contains("terse: Select's branch 1: ratio must be in (0, 1]"), usage_error);
  });
}

TEST_CASE("a branch may be used against the advice of the checks, as a compressor may") {
  // Qsgd's error grows under Residual, in the time of a test by little.
  const auto over = [](auto compressor) {
    return run_on(
        layers(),
        ErrorFeedbackSgd<decltype(compressor), Residual>{.learning_rate = 1e-2F, .compressor = compressor},
        1);
  };
  using Daring = Unchecked<Qsgd<4>>;
  CHECK(over(Select<Otherwise<Daring>>{}) == over(Select<Where<AnySegment, Daring, Residual>>{}));
}
