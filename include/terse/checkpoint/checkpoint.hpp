// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "terse/checkpoint/safetensors.hpp"
#include "terse/core/half.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/type_name.hpp"
#include "terse/core/view.hpp"
#include "terse/transport/concept.hpp"

// A rank's parameters and optimizer state in one safetensors file:
//
//     parameters.<segment>    F32, BF16 or F16, the segment's shape
//     state.<part>            F32, U8, U16 or U64, flat, as the optimizer's walk shows it; scalars have no dimensions
//     __metadata__            format, recipe, world, rank, step, seed, layout, digests, and for a part that
//                             begins within the arena its first index, offset.<part>

namespace terse::checkpoint {

namespace detail {

/// Bytes of views for the host to read: their own where they lie on the host, else copies that live as long as this.
class HostCopies {
 public:
  template <class T>
  view<const T> operator()(view<const T> from) {
    return from;
  }
  template <class T, class Space>
  view<const T> operator()(view<const T, Space> from) {
    std::vector<std::byte>& held = copies_.emplace_back(static_cast<std::size_t>(from.size()) * sizeof(T));
    const view<T> to(reinterpret_cast<T*>(held.data()), from.size());
    download(from, to);
    return to;
  }

 private:
  std::deque<std::vector<std::byte>> copies_;
};

template <Number P>
std::string parameters_hash(const Layout& layout, view<const P> parameters) {
  Digest digest;
  for (const Segment& segment : layout.segments())
    digest.add(parameters.data() + segment.offset, static_cast<std::size_t>(segment.count) * sizeof(P));
  return digest.hex();
}

}  // namespace detail

/// XXH3-128 of the parameters without padding, as 32 hex digits. Equal hashes mean equal bits.
inline std::string parameters_hash(const Layout& layout, view<const float> parameters) {
  return detail::parameters_hash(layout, parameters);
}
/// The same of 16-bit parameters and of parameters on a device, which are copied first.
template <Number P, class Space>
std::string parameters_hash(const Layout& layout, view<const P, Space> parameters) {
  detail::HostCopies here;
  return detail::parameters_hash(layout, here(parameters));
}

namespace detail {

template <class T>
constexpr const char* dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return "F32";
  else if constexpr (std::is_same_v<T, bf16>)
    return "BF16";
  else if constexpr (std::is_same_v<T, fp16>)
    return "F16";
  else if constexpr (std::is_same_v<T, std::uint8_t>)
    return "U8";
  else if constexpr (std::is_same_v<T, std::uint16_t>)
    return "U16";
  else {
    static_assert(std::is_same_v<T, std::uint64_t>, "terse: state is float, uint8, uint16 or uint64");
    return "U64";
  }
}

/// Lists the parts of a state as tensors.
struct Collect {
  std::vector<Tensor>& tensors;
  Metadata& metadata;
  HostCopies& copies;

  template <class T, class Space>
  void operator()(const std::string& name, view<T, Space> part, index_t offset) const {
    const view<const T> here = copies(view<const T, Space>(part));
    tensors.push_back({"state." + name, dtype_of<T>(), std::vector<index_t>{part.size()},
                       reinterpret_cast<const std::byte*>(here.data()),
                       static_cast<std::size_t>(part.size()) * sizeof(T)});
    if (offset != 0) metadata["offset." + name] = std::to_string(offset);
  }
  void operator()(const std::string& name, std::uint64_t& value) const {
    tensors.push_back({"state." + name, "U64", {}, reinterpret_cast<const std::byte*>(&value), sizeof value});
  }
};

/// Checks that a file has every part, or, with `apply`, copies them out.
struct Restore {
  const File& file;
  bool apply;

  template <class T, class Space>
  void operator()(const std::string& name, view<T, Space> part, index_t) const {
    // Spelled out for nvcc, which loses the braces.
    take(file.tensor("state." + name, dtype_of<T>(), std::vector<index_t>{part.size()}), part);
  }
  void operator()(const std::string& name, std::uint64_t& value) const {
    take(file.tensor("state." + name, "U64", {}), view<std::uint64_t>(&value, 1));
  }
  template <class T, class Space>
  void take(std::span<const std::byte> from, view<T, Space> to) const {
    // By way of bytes: a file's tensors start anywhere.
    if (apply)
      upload(view<const std::byte>(from), view<std::byte, Space>(reinterpret_cast<std::byte*>(to.data()),
                                                                 static_cast<index_t>(from.size())));
  }
};

template <class Optimizer>
Metadata describe(Optimizer& optimizer) {
  return {{"format", "terse checkpoint 1"},
          {"recipe", type_name<decltype(optimizer.recipe)>()},
          {"world", std::to_string(optimizer.size())},
          {"rank", std::to_string(optimizer.rank())},
          {"seed", std::to_string(optimizer.options().seed)},
          {"layout", std::to_string(layout_hash(optimizer.layout()))}};
}

template <class P, class Space>
void restore_parameters(const File& file, const Layout& layout, view<P, Space> parameters, bool apply) {
  const Restore restore{file, apply};
  for (const Segment& segment : layout.segments())
    restore.take(file.tensor("parameters." + segment.name, dtype_of<P>(), segment.shape),
                 parameters.part(segment.offset, segment.count));
}

}  // namespace detail

namespace detail {

template <class Optimizer>
void require_size(const std::filesystem::path& file, const Optimizer& optimizer, index_t size) {
  if (size != optimizer.layout().size())
    fail(file, "needs parameters of " + std::to_string(optimizer.layout().size()) +
                   " elements, as the layout has, not " + std::to_string(size));
}

/// What has left for the next step belongs to these parameters and this state alone.
template <class Optimizer>
void require_between_steps(const Optimizer& optimizer) {
  if (optimizer.begun())
    throw usage_error("begin has sent messages of the next step: save and load before it, or after step",
                      optimizer.rank(), static_cast<std::int64_t>(optimizer.steps() + 1));
}

}  // namespace detail

/// Writes this rank's parameters and state to `file`, beside it first and then renamed, so that an older file
/// stays whole until the new one is. Not collective, but for recipes that have a round under way between steps
/// (OverlapLocalSgd: all ranks save alike; SwarmSgd: the ranks of a pair), which it completes. Throws checkpoint_error,
/// and usage_error between begin and step.
template <class Optimizer>
void save(const std::filesystem::path& file, Optimizer& optimizer,
          in<typename Optimizer::runs_on, typename Optimizer::parameter> parameters) {
  detail::require_between_steps(optimizer);
  detail::require_size(file, optimizer, parameters.size());
  detail::HostCopies copies;
  using Parameter = typename Optimizer::parameter;
  const view<const Parameter> here = copies(parameters);
  std::vector<Tensor> tensors;
  Metadata metadata = detail::describe(optimizer);
  metadata["step"] = std::to_string(optimizer.steps());
  for (const Segment& segment : optimizer.layout().segments())
    tensors.push_back({"parameters." + segment.name, detail::dtype_of<Parameter>(), segment.shape,
                       reinterpret_cast<const std::byte*>(here.data() + segment.offset),
                       static_cast<std::size_t>(segment.count) * sizeof(Parameter)});
  optimizer.walk(detail::Collect{tensors, metadata, copies});
  write(file, tensors, std::move(metadata));
}

/// Reads what `save` wrote into an optimizer made alike. Collective: nothing changes on any rank unless every
/// rank's file is good, belongs to it, and all are of one step. Otherwise every rank throws: checkpoint_error
/// in its own words where its own file is at fault, else one that names the rank, and mismatch_error where
/// the steps differ.
template <class Optimizer>
void load(const std::filesystem::path& file, Optimizer& optimizer,
          out<typename Optimizer::runs_on, typename Optimizer::parameter> parameters) {
  struct Verdict {
    std::uint64_t good, step;
  };
  detail::require_between_steps(optimizer);
  // Completes what is under way on every rank, whatever becomes of its file.
  optimizer.walk([](auto&&...) {});
  Verdict mine{0, 0};
  std::optional<File> read;
  std::exception_ptr failure;
  try {
    detail::require_size(file, optimizer, parameters.size());
    read.emplace(File::read(file));
    for (const auto& [key, expected] : detail::describe(optimizer))
      if (const std::string& found = read->metadata(key); found != expected)
        detail::fail(
            file, "was saved with another " + key + ": it says '" + found + "', this run '" + expected + "'");
    optimizer.walk(detail::Restore{*read, false});
    detail::restore_parameters(*read, optimizer.layout(), parameters, false);
    std::memcpy(&mine.step, read->tensor("state.steps", "U64", {}).data(), sizeof mine.step);
    if (read->metadata("step") != std::to_string(mine.step))
      detail::fail(file, "disagrees with itself about its step");
    mine.good = 1;
  } catch (const error&) {
    failure = std::current_exception();
  }

  using Channel = std::remove_reference_t<decltype(optimizer.channel())>;
  Assembly<Verdict, Channel> everyone(optimizer.channel());
  const auto verdicts = everyone(optimizer.channel(), mine, Phase::setup);
  if (failure) std::rethrow_exception(failure);
  for (std::size_t rank = 0; rank < verdicts.size(); ++rank)
    if (verdicts[rank].good == 0)
      throw checkpoint_error("rank " + std::to_string(rank) + " can't load its file; nothing was changed",
                             optimizer.rank());
  for (std::size_t rank = 0; rank < verdicts.size(); ++rank)
    if (verdicts[rank].step != mine.step)
      throw mismatch_error("rank " + std::to_string(rank) + " has a checkpoint of step " +
                               std::to_string(verdicts[rank].step) + ", this rank of step " +
                               std::to_string(mine.step) + "; nothing was changed",
                           optimizer.rank());

  optimizer.walk(detail::Restore{*read, true});
  detail::restore_parameters(*read, optimizer.layout(), parameters, true);
}

}  // namespace terse::checkpoint
