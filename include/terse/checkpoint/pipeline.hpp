// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/checkpoint/agreement.hpp"
#include "terse/checkpoint/digest.hpp"
#include "terse/checkpoint/file_io.hpp"
#include "terse/checkpoint/state.hpp"
#include "terse/core/hash.hpp"
#include "terse/transport/call.hpp"

// The state of a pipeline's stage between steps, in one safetensors file. The stage's parameters and their optimizer
// have a separate file:
//
//     state.<scalar>          U64, as the pipeline's walk shows it
//     examples.ids            U64, by slot; all ones for free slots
//     examples.incoming       U8, slots x bytes of a row: the copies at the boundary before the stage
//     examples.outgoing       U8, as incoming: the copies at the boundary after the stage
//     __metadata__            format, policy, stages, stage, input_elements, output_elements, step, seed, examples ("kept"
//                             or "left out"), capacity, digests

namespace terse::checkpoint {

/// The choice whether a file of a pipeline contains the copies of examples, which are nearly all of its bytes.
/// Without copies, examples that return count as new: results are valid, but not bitwise those of an uninterrupted
/// run.
enum class Examples { kept, left_out };

namespace detail {

/// The members of terse::Pipeline that its files require.
template <class P>
concept KeepsExamples = requires(P& pipeline) {
  pipeline.examples();
  pipeline.torn();
};

/// Returns the metadata that a file of this stage must have; identity comes before content.
template <class Pipeline>
std::vector<std::pair<std::string, std::string>> describe_pipeline(const Pipeline& pipeline) {
  return {{"format", "terse pipeline checkpoint 1"},
          {"stages", std::to_string(pipeline.size())},
          {"stage", std::to_string(pipeline.rank())},
          {"policy", pipeline.kind()},
          {"input_elements", std::to_string(pipeline.input_elements())},
          {"output_elements", std::to_string(pipeline.output_elements())},
          {"seed", std::to_string(pipeline.options().seed)}};
}

/// Returns the advice for a file with a different value.
inline std::string advice(const std::string& key) {
  if (key == "format") return "a pipeline and the optimizer of its stage have a file each";
  if (key == "stage") return "each stage loads the file that it saved";
  if (key == "seed") return "give the pipeline the seed that it was saved with";
  if (key == "policy")
    return "another policy can't use its copies; only their place, InMemory or Mapped, may change";
  return "the model must be cut into the same stages";
}

/// A mapped file and its findings, made before anything changes.
template <class Pipeline>
class PipelineFile {
 public:
  using Index = std::remove_cvref_t<decltype(std::declval<Pipeline&>().examples())>;
  struct Found {
    std::uint64_t step = 0;
    std::uint64_t past = 0;                    // a hash of the scalars
    std::uint64_t kept = 0, examples = 0;      // the number of examples, and a sum of hashes of their ids
    std::uint64_t incoming = 0, outgoing = 0;  // sums of hashes of id and copy
  };

  PipelineFile(const std::filesystem::path& file, Pipeline& pipeline)
      : file_(file), read_(File::map(file)), index_(pipeline.examples().capacity()) {
    for (const auto& [key, expected] : describe_pipeline(pipeline))
      if (const std::string& says = read_.metadata(key); says != expected)
        throw foreign_checkpoint_error(about(file, "was saved with " + key + " '" + says +
                                                       "', and this is '" + expected + "': " + advice(key)));
    found_.step = step_of(file, read_);
    pipeline.walk([&](const std::string& name, std::uint64_t&) {
      std::uint64_t value;
      std::memcpy(&value, read_.tensor("state." + name, "U64", {}).data(), sizeof value);
      found_.past = mix_hash(found_.past, value);
    });
    if (read_.metadata("examples") == "kept") look_at_examples(pipeline);
  }

  const Found& found() const { return found_; }

  void apply(Pipeline& pipeline) {
    // Forgets first, so that no copy is taken for another one's if this ends early.
    pipeline.forget();
    pipeline.walk(Restore{OneFile(read_), true});
    pipeline.copies(static_cast<index_t>(found_.kept), [&](const char* name, auto rows, index_t row_bytes) {
      index_t to = 0;
      for (const Run& run : runs_) {
        const index_t bytes = run.count * row_bytes;
        upload(view<const std::byte>(copies(name, row_bytes) + run.first * row_bytes, bytes),
               rows.part(to, bytes));
        to += bytes;
      }
    });
    pipeline.restore(std::move(index_));
  }

 private:
  /// A range of used slots between free ones, moved together.
  struct Run {
    index_t first, count;
  };

  void look_at_examples(Pipeline& pipeline) {
    const std::vector<index_t>& shape = read_.shape("examples.ids");
    slots_ = shape.empty() ? 0 : shape[0];
    const std::span<const std::byte> bytes =
        read_.tensor("examples.ids", "U64", std::vector<index_t>{slots_});
    std::vector<std::uint64_t> ids(static_cast<std::size_t>(slots_)), kept;
    if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), bytes.size());
    for (index_t slot = 0; slot < slots_; ++slot) {
      const std::uint64_t id = ids[static_cast<std::size_t>(slot)];
      if (id == Index::nobody) continue;
      kept.push_back(id);
      if (!runs_.empty() && runs_.back().first + runs_.back().count == slot)
        ++runs_.back().count;
      else
        runs_.push_back({slot, 1});
      found_.examples += mix_hash(0, id);
    }
    found_.kept = kept.size();
    if (static_cast<index_t>(kept.size()) > index_.capacity())
      fail(file_, "has copies of " + std::to_string(kept.size()) + " examples, and there is a capacity of " +
                      std::to_string(index_.capacity()) + ": raise it, or save after forgetting some");
    try {
      index_.assign(kept);
    } catch (const usage_error& fault) {
      fail(file_, std::string("has impossible examples: ") + fault.what());
    }
    pipeline.copies(0, [&](const char* name, const auto&, index_t row_bytes) {
      std::uint64_t& sum = name == std::string("incoming") ? found_.incoming : found_.outgoing;
      const std::byte* const rows = copies(name, row_bytes);
      for (const Run& run : runs_)
        for (index_t slot = run.first; slot < run.first + run.count; ++slot) {
          const std::uint64_t hash = hash_of(rows + slot * row_bytes, static_cast<std::size_t>(row_bytes));
          sum += mix_hash(ids[static_cast<std::size_t>(slot)], hash);
        }
    });
  }
  const std::byte* copies(const std::string& name, index_t row_bytes) const {
    return read_.tensor("examples." + name, "U8", std::vector<index_t>{slots_, row_bytes}).data();
  }

  std::filesystem::path file_;
  File read_;
  Index index_;
  index_t slots_ = 0;
  std::vector<Run> runs_;
  Found found_;
};

}  // namespace detail

/// Writes the state of this stage of a pipeline to `file`, as the optimizer's `save` does: to a file next to it,
/// which is then renamed. Call it between steps, on all stages after the same step; not collective. Copies of
/// examples on the host are written directly from their memory, and read twice; copies on a device are first copied
/// to the host, all at once. Rows of slots that are free after `forget(ids)` are also written, with their last
/// content.
///
/// Throws checkpoint_error, and usage_error if the pipeline is torn: its copies may be half a step ahead of others.
template <detail::KeepsExamples Pipeline>
void save(const std::filesystem::path& file, Pipeline& pipeline, Examples examples = Examples::kept) {
  if (pipeline.torn())
    throw usage_error("a step ended in its middle, so that this stage's state is none to save to '" +
                          file.string() + "': load a checkpoint, or forget(), and then save",
                      pipeline.rank(), static_cast<std::int64_t>(pipeline.steps() + 1));
  const bool kept = examples == Examples::kept;
  detail::HostCopies here;
  std::vector<Tensor> tensors;
  const auto description = detail::describe_pipeline(pipeline);
  Metadata metadata(description.begin(), description.end());
  metadata["step"] = std::to_string(pipeline.steps());
  metadata["examples"] = kept ? "kept" : "left out";
  metadata["capacity"] = std::to_string(pipeline.examples().capacity());
  pipeline.walk(detail::Collect{tensors, metadata, here});
  if (kept) {
    const index_t slot_count = pipeline.examples().end();
    const std::span<const std::byte> ids = std::as_bytes(pipeline.examples().ids());
    tensors.push_back({"examples.ids", "U64", {slot_count}, ids.data(), ids.size()});
    pipeline.copies(slot_count, [&](const std::string& name, auto rows, index_t row_bytes) {
      using Rows = decltype(rows);
      const auto bytes = here(view<const std::byte, typename Rows::space>(rows));
      tensors.push_back({"examples." + name,
                         "U8",
                         {slot_count, row_bytes},
                         bytes.data(),
                         static_cast<std::size_t>(bytes.size())});
    });
  }
  write(file, tensors, std::move(metadata));
}

/// Reads a file of `save` into a pipeline that was made with the same arguments. Collective: nothing changes on any
/// stage unless every stage's file is good and belongs to it. All files must be of one step, with equal examples,
/// and with equal copies on both sides of each boundary. Without copies, two runs with the same number of steps
/// can't be distinguished. Otherwise every stage throws. A stage whose own file is at fault throws its own
/// checkpoint_error, the others one that names the stage. Files that don't belong together are a mismatch_error.
/// After a load, a torn pipeline may train again.
///
/// The policy's capacity may differ, but not be below the number of copies. The place of the copies, micro_batch,
/// schedule and window may differ, too. The file is mapped, not read into memory, so no process may change it in
/// place meanwhile. Reads it twice.
template <detail::KeepsExamples Pipeline>
void load(const std::filesystem::path& file, Pipeline& pipeline) {
  const terse::detail::Call call(terse::detail::Verb::load);
  std::optional<detail::PipelineFile<Pipeline>> read;
  const auto all = detail::read_together(file, pipeline.channel(), "stage", [&] {
    read.emplace(file, pipeline);
    return read->found();
  });
  const auto refuse = [&](const std::string& sentence) {
    throw mismatch_error(
        sentence + " (this stage's is '" + file.string() + "'); nothing was changed. Load files of one save",
        pipeline.rank());
  };
  for (std::size_t s = 0; s + 1 < all.size(); ++s) {
    const auto &one = all[s], &next = all[s + 1];
    const std::string both =
        "the checkpoints of stages " + std::to_string(s) + " and " + std::to_string(s + 1);
    if (one.past != next.past) refuse(both + " are of the same step, but not of the same run");
    if (one.kept != next.kept)
      refuse(both + " have copies of " + std::to_string(one.kept) + " and of " + std::to_string(next.kept) +
             " examples");
    if (one.examples != next.examples) refuse(both + " have copies of different examples");
    if (one.outgoing != next.incoming) refuse(both + " have different copies of the examples between them");
  }
  read->apply(pipeline);
}

}  // namespace terse::checkpoint
