// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace train {

enum class Family { averaging, local_updates, gossip, compressed_gossip };

/// The option that has a method's highest rate.
enum class Rate { adam, lamb, sgd, sign };

/// What a method asks of a graph, beyond that it keeps the mean of the ranks. Recipes say the same and would not compile
/// without, see gossip.hpp. `even`: all ranks have as many neighbours.
enum class GraphNeeds { nothing, even, fixed, fixed_symmetric };

/// The first steps that count as warm-up in reports.
enum class WarmUp { none, first_step, until_freeze, while_variance_is_exact };

/// An option without its dashes, and its value for this method if that is a number that differs from method to method.
struct Use {
  const char* option = nullptr;
  std::optional<double> standard = std::nullopt;
};

class AnyOptimizer;
struct OnHost;
struct OnCuda;
template <class P>
struct Order;

template <class P>
using Maker = std::unique_ptr<AnyOptimizer> (*)(const Order<P>&);

/// How a method is made, on each kind of place. Collective.
struct Makers {
  Maker<OnHost> on_host = nullptr;
  bool gpu = false;                 ///< whether it runs there, and by several threads of a host
  Maker<OnCuda> on_cuda = nullptr;  ///< of a build with CUDA
};

/// A row of the table, see method_table.hpp: all that the trainer knows of a method. Methods are told apart by address.
struct Method {
  const char* name;               ///< such as "one-bit-adam"
  const char* synonym = nullptr;  ///< what a paper calls it; understood, too
  Family family;
  Rate rate;
  bool whole_rate = false;  ///< times 1 / (1 - momentum), which the method doesn't have
  const char* help;
  Use uses[8] = {};  ///< beside what all have
  const char* route = "scatter-gather";
  GraphNeeds graph = GraphNeeds::nothing;
  bool late = false;        ///< averages are taken up in a later step than they were started in
  bool own_models = false;  ///< of the family of averaging: ranks may end apart
  WarmUp warm_up = WarmUp::none;
  Makers made;
};

/// All rows, in the order of `--help`.
std::span<const Method> methods();

/// By its name or a synonym; nothing where there is none.
const Method* find_method(std::string_view word);
/// The one of that name, which there must be.
const Method& method(std::string_view name);

bool uses(const Method& method, std::string_view option);
/// The method's own value of an option; nothing where it has none.
std::optional<double> standard_of(const Method& method, std::string_view option);

/// Whether ranks step on their own and meet now and then.
inline bool is_local(const Method& method) { return method.family == Family::local_updates; }
/// Whether ranks mix parameters of their own with those of their neighbours in `options.graph`.
inline bool is_decentralized(const Method& method) { return uses(method, "graph"); }
/// Whether ranks hold parameters of their own, so that it is their mean that is looked at in the end.
inline bool keeps_own_models(const Method& method) {
  return method.family != Family::averaging || method.own_models;
}
/// Or publishes what others read, and waits for nobody.
inline bool sends_messages(const Method& method) { return std::string_view(method.route) != "mailbox"; }

}  // namespace train
