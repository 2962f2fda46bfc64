// SPDX-License-Identifier: Apache-2.0
#include "trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numbers>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "any_graph.hpp"
#include "label_skew.hpp"
#include "model.hpp"
#include "output.hpp"
#include "places.hpp"
#include "progress.hpp"
#include "saved_run.hpp"
#include "settings.hpp"
#include "terse/checkpoint/folder.hpp"
#include "terse/checkpoint/stop_signal.hpp"
#include "terse/core/draw.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/delayed.hpp"
#include "terse/transport/traced.hpp"
#include "workshop.hpp"
#ifdef TRAIN_HAVE_CUDA
#include "cuda_workshop.hpp"
#endif

namespace train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Of all ranks together: what those that began the run took, however many there are now. So a step means the same
/// pictures and the same rate to any number of ranks.
std::int64_t pictures_of_step(const Options& options) { return options.batch * options.ranks; }

/// When what happens.
struct Schedule {
  std::int64_t steps_per_epoch, steps, rate_warmup, ratio_warmup, freeze, average_until, local_interval;
  bool constant;

  Schedule(const Options& options, const Method& kind, std::int64_t pictures)
      : steps_per_epoch(pictures / pictures_of_step(options)),
        steps(steps_per_epoch * options.epochs),
        rate_warmup(share(options.learning_rate_warmup)),
        ratio_warmup(share(options.warmup_fraction)),
        freeze(std::max<std::int64_t>(1, ratio_warmup)),
        average_until(share(average_until_of(options, kind))),
        local_interval(std::max<std::int64_t>(1, share(options.local_interval))),
        constant(options.rate_schedule == RateSchedule::constant) {}

  /// A straight rise from almost 0 to 1, then a cosine down to almost 0, or 1. Steps count from 0.
  double rate(std::int64_t step) const {
    if (step < rate_warmup) return static_cast<double>(step + 1) / static_cast<double>(rate_warmup);
    if (constant) return 1;
    return (1 + std::cos(std::numbers::pi * static_cast<double>(step - rate_warmup) /
                         static_cast<double>(steps - rate_warmup))) /
           2;
  }

 private:
  std::int64_t share(double of) const { return std::llround(of * static_cast<double>(steps)); }
};

/// A rank's part of each step's pictures, which are shared out evenly, but for one.
struct Share {
  std::int64_t first, count;
  double weight;  ///< of its mean in the mean over ranks, so that each picture counts alike

  Share(std::int64_t pictures, int rank, int ranks)
      : first(pictures * rank / ranks),
        count(pictures * (rank + 1) / ranks - first),
        weight(static_cast<double>(count * ranks) / static_cast<double>(pictures)) {}
};

/// As slow as `modelled` says; `trace` becomes what it records, if it is asked to. Collective.
terse::AnyTransport make_wire(const Options& options, terse::AnyTransport& transport,
                              std::shared_ptr<terse::Trace>& trace) {
  terse::AnyTransport wire = transport.split(0, transport.rank());
  if (const Modelled& modelled = options.modelled; modelled.link()) {
    const std::chrono::duration<double, std::milli> delay(modelled.delay.value_or(0));
    wire = terse::AnyTransport(terse::Delayed<terse::AnyTransport>(
        std::move(wire),
        {std::chrono::duration_cast<std::chrono::nanoseconds>(delay), modelled.bytes_per_second()}));
  }
  if (options.trace.empty()) return wire;
  terse::Traced<terse::AnyTransport> traced(std::move(wire));
  trace = traced.trace();
  return terse::AnyTransport(std::move(traced));
}

/// In the same words on all ranks; empty if nothing is known. Collective.
std::string why_not_nccl([[maybe_unused]] terse::AnyTransport& ranks) {
#ifdef TRAIN_HAVE_NCCL
  return why_no_nccl(ranks);
#else
  return "this program was built without it";
#endif
}

/// What goes in place of `automatic` on a GPU; NCCL is asked for whether it can be. Collective.
Transport settle_transport(const Options& options, terse::AnyTransport& ranks) {
  const Transport wanted = options.transport;
  if (wanted != Transport::nccl && wanted != Transport::automatic) return wanted;
  if (options.modelled.link()) return Transport::staged;
  const std::string reason = why_not_nccl(ranks);
  if (reason.empty()) return Transport::nccl;
  if (wanted == Transport::nccl) throw input_error("--transport nccl: " + reason);
  if (ranks.rank() == 0 && !options.quiet)
    fmt::print(stderr, "train: messages go by way of the host, without NCCL: {}\n", reason);
  return Transport::staged;
}

/// Collective.
std::unique_ptr<Workshop> make_workshop([[maybe_unused]] const Options& options,
                                        [[maybe_unused]] Transport transport,
                                        [[maybe_unused]] const Model& model, terse::AnyTransport wire) {
#ifdef TRAIN_HAVE_NCCL
  if (options.device == Device::cuda && transport == Transport::nccl) {
    auto [nccl, traffic] = connect_nccl(wire, model.stream(), deadline_of(options));
    return make_cuda_workshop(std::move(nccl), traffic, model.stream());
  }
#endif
#ifdef TRAIN_HAVE_CUDA
  if (options.device == Device::cuda) return make_cuda_workshop(std::move(wire), model.stream());
#endif
  terse::Metered<terse::AnyTransport> metered(std::move(wire));
  const terse::Traffic& traffic = metered.traffic();
  return std::make_unique<TheWorkshop<OnHost>>(OnHost{std::move(metered), {}}, traffic);
}

/// One optimizer's run on one rank.
class Trainer {
 public:
  Trainer(const Job& job, const Method& kind, terse::AnyTransport& transport, Transport messages)
      : job_(job),
        options_(job.options),
        kind_(kind),
        rank_(transport.rank()),
        ranks_(transport.size()),
        side_(transport.split(0, rank_)),
        schedule_(options_, kind, job.training.count),
        share_(pictures_of_step(options_), rank_, ranks_),
        model_(options_.model, options_.seed, options_.device),
        workshop_(make_workshop(options_, messages, model_, make_wire(options_, transport, trace_))),
        values_(static_cast<std::size_t>(model_.layout().size())),
        optimizer_(make_optimizer(kind)),
        width_(job.training.rows * job.training.columns),
        order_(
            static_cast<std::size_t>(job.shares.empty() ? job.training.count : job.training.count / ranks_)),
        images_(static_cast<std::size_t>(share_.count * width_)),
        labels_(static_cast<std::size_t>(share_.count)) {
    run_.optimizer = name(kind);
    run_.transport = name(messages);
    run_.device = name(options_.device);
    run_.ranks = ranks_;
    run_.topology = route_of(options_, kind);
    run_.seed = options_.seed;
    run_.label_skew = options_.label_skew;
    run_.steps = schedule_.steps;
    run_.settings = settings_of(options_, kind, job.training);
    run_.modelled = options_.modelled;
    run_.warmup_steps = warm_up_steps();
    if (!options_.checkpoint.empty()) {
      checkpoints_.emplace(checkpoints_of(options_.checkpoint, kind), side_);
      stop_.emplace(side_);
    }
  }

  /// Nothing where it was asked to stop, and has saved what there is.
  std::optional<Run> run() {
    share_parameters();
    std::int64_t done = resume();
    Progress progress(rank_ == 0 && !options_.quiet, run_.optimizer, done, schedule_.steps, options_.epochs);
    const std::int64_t first = done;
    double recent = 0;  // running mean of rank 0's own loss
    while (done < schedule_.steps) {
      const Clock::time_point begin = Clock::now();
      const double loss = train_step(done);
      ++done;
      const std::int64_t seen = std::min(done - first, smoothing_window(schedule_.steps));
      recent += (loss - recent) / static_cast<double>(seen);
      const bool last = done == schedule_.steps;
      const int signal = stop_ && !last ? stop_->asked() : 0;
      const bool save =
          !options_.checkpoint.empty() &&
          (last || signal != 0 || (options_.checkpoint_every > 0 && done % options_.checkpoint_every == 0));
      if (last || save || done % schedule_.steps_per_epoch == 0) collect_losses();
      run_.seconds.total += seconds_since(begin);
      if (save) save_checkpoint(done);
      progress.update(done, recent, (done - first) * pictures_of_step(options_));
      if (signal != 0) {
        progress.finish();
        tell(fmt::format(
            "stopped by signal {} ({}) after step {} of {}, which is saved in '{}'; --resume auto continues",
            signal, strsignal(signal), done, schedule_.steps, options_.checkpoint));
        return std::nullopt;
      }
    }
    progress.finish();
    compare_parameters();
    if (keeps_own_models(kind_)) look_at_mean();
    run_.test_accuracy = accuracy_by_parts();
    count_rest([&] { optimizer_.reset(); });
    if (trace_) write_trace();
    if (sent_.dense_step == 0) measure_dense_step();
    collect_sent();
    return std::move(run_);
  }

 private:
  using Checkpoints = terse::checkpoint::Folder<terse::AnyTransport>;

  std::int64_t warm_up_steps() const {
    switch (kind_.warm_up) {
      case WarmUp::first_step:
        return 1;
      case WarmUp::until_freeze:
        return std::min(schedule_.freeze, schedule_.steps);
      case WarmUp::while_variance_is_exact:
        return std::min({options_.variance_updates, schedule_.freeze, schedule_.steps});
      case WarmUp::none:
        break;
    }
    return 0;
  }

  std::unique_ptr<AnyOptimizer> make_optimizer(const Method& kind) {
    const Stages stages{static_cast<std::uint64_t>(schedule_.ratio_warmup),
                        static_cast<std::uint64_t>(schedule_.freeze),
                        static_cast<std::uint64_t>(schedule_.average_until),
                        static_cast<std::uint64_t>(schedule_.local_interval)};
    return workshop_->make(kind, options_, stages, model_.layout());
  }

  /// Rank 0's parameters become everybody's: a step keeps ranks alike, but does not make them so.
  void share_parameters() {
    model_.read_parameters(values_.data());
    terse::broadcast(side_, values_);
    model_.write_parameters(values_.data());
  }

  /// Shows everybody what each rank has.
  template <class Value>
  std::vector<Value> everyones(const Value& mine) {
    return terse::all_gather(side_, mine);
  }

  /// Steps that are done already: those of the newest checkpoint that is whole on all ranks.
  std::int64_t resume() {
    if (options_.resume.empty()) return 0;
    // One that is skipped may be replaced by the folder that skipped it.
    std::optional<Checkpoints> only_read;
    Checkpoints& from =
        same_directory(options_.resume, options_.checkpoint)
            ? *checkpoints_
            : only_read.emplace(checkpoints_of(options_.resume, kind_), side_, terse::checkpoint::Use::read);
    SavedRun saved;
    std::optional<terse::checkpoint::Loaded> loaded;
    try {
      loaded = from.load(
          [&](const terse::checkpoint::Manifest& manifest) {
            from.together([&] {
              saved = read_saved_run(manifest, {run_.settings, ranks_, options_.elastic});
            });
            optimizer_->load(manifest, model_.parameters());
          },
          terse::checkpoint::Elastic::yes);
    } catch (const terse::checkpoint_error& fault) {
      throw input_error(std::string("--resume: ") + fault.what());
    }
    if (loaded)
      for (const std::string& why : loaded->skipped) tell("skips a checkpoint: " + why);
    if (!options_.quiet)
      tell(loaded ? fmt::format("resumes from '{}'{}", loaded->manifest.folder().string(),
                                loaded->manifest.world() == ranks_
                                    ? ""
                                    : fmt::format(", of {} ranks, on {}", loaded->manifest.world(), ranks_))
                  : std::string("has no checkpoint and starts from the beginning"));
    if (!loaded) return 0;
    run_.train_loss = saved.train_loss;
    run_.bytes_after_step = saved.bytes_after_step;
    run_.seconds = saved.seconds;
    // A rank that has come since counts as one that was there, so that all have had the same stages.
    sent_ = saved.sent[static_cast<std::size_t>(rank_) % saved.sent.size()];
    return saved.step;
  }
  void write_trace() {
    const std::string file = terse::gather_trace(side_, *trace_);
    const std::string lines = terse::waited_for(side_, *trace_);
    if (rank_ != 0) return;
    write_output(options_.trace, file);
    for (std::size_t first = 0, end = 0; first < lines.size(); first = end + 1) {
      end = lines.find('\n', first);
      tell(lines.substr(first, end - first));
    }
  }
  void tell(const std::string& what) const {
    if (rank_ == 0) fmt::print(stderr, "train: {} {}\n", name(kind_), what);
  }

  /// One step, counted from 0; returns this rank's loss.
  double train_step(std::int64_t step) {
    if (const std::int64_t epoch = step / schedule_.steps_per_epoch; epoch != epoch_) shuffle(epoch);
    gather_batch(step % schedule_.steps_per_epoch);

    const bool dense = optimizer_->full_precision();
    const std::uint64_t bytes_before = bytes_on_wire();
    const std::uint64_t packets_before = bytes_of_packets();
    const std::uint64_t rounds_before = bytes_of_rounds();
    const auto rate = static_cast<float>(rate_of(options_, kind_).rate * schedule_.rate(step));
    time_optimizer([&] { optimizer_->begin(model_.parameters(), rate); });

    const Clock::time_point begin = Clock::now();
    const double loss = model_.train_batch(images_.data(), labels_.data(), share_.count, share_.weight);
    if (const auto& straggler = options_.modelled.straggler; straggler && straggler->rank == rank_)
      std::this_thread::sleep_for(
          std::chrono::duration<double>((straggler->factor - 1) * seconds_since(begin)));
    const double computed = seconds_since(begin);
    run_.seconds.compute += computed;
    sent_.in_steps += computed;

    terse::StepResult result;
    time_optimizer([&] { result = optimizer_->step(model_.parameters(), model_.gradients(), rate); });
    tell_masked(result.masked, step + 1);
    if (trace_) trace_->step();

    const std::uint64_t bytes = bytes_on_wire() - bytes_before;
    // Exact averages of decentralized optimizers are neither: some average more than the gradient has. Nor are rounds
    // of local updates.
    const bool averages = is_local(kind_) || (is_decentralized(kind_) && options_.average_every > 0 &&
                                              (step + 1) % options_.average_every == 0);
    if (bytes_of_rounds() != rounds_before) ++sent_.rounds;
    if (bytes_of_packets() != packets_before && !averages)
      (dense ? sent_.dense_step : sent_.compressed_step) = bytes;
    sent_.bytes += bytes;
    run_.bytes_after_step.push_back(sent_.bytes);
    losses_.push_back(share_.weight * loss);
    return loss;
  }

  /// What never trains from here on.
  void tell_masked(const terse::Masked& masked, std::int64_t step) const {
    if (masked.elements == 0 || options_.quiet) return;
    std::string segments;
    for (const terse::MaskedSegment& segment : masked.segments)
      segments += fmt::format("{}{} of {} in '{}'", segments.empty() ? "" : ", ", segment.masked,
                              segment.elements, segment.name);
    tell(fmt::format("masks {} elements that had no gradient until step {}: {}", masked.elements, step,
                     segments));
  }
  template <class Work>
  void time_optimizer(Work work) {
    const double waited_before = workshop_->traffic().seconds;
    const Clock::time_point begin = Clock::now();
    work();
    const double waited = workshop_->traffic().seconds - waited_before;
    const double taken = seconds_since(begin);
    run_.seconds.local_passes += taken - waited;
    run_.seconds.communication += waited;
    sent_.in_steps += taken;
    sent_.waiting += waited;
  }

  /// Completes a late average that is under way, so that all bytes of all rounds are counted.
  template <class Work>
  void count_rest(Work work) {
    const std::uint64_t before = bytes_on_wire();
    work();
    sent_.bytes += bytes_on_wire() - before;
  }

  /// What steps send; setting up is left out. Who publishes sends nothing: there it is what steps read.
  std::uint64_t bytes_in(terse::Phase phase) const {
    const terse::Traffic::Count& count = workshop_->traffic()[phase];
    return sends_messages(kind_) ? count.bytes_sent : count.bytes_received;
  }
  std::uint64_t bytes_on_wire() const { return bytes_in(terse::Phase::agree) + bytes_of_packets(); }
  /// Nothing in a step that is skipped.
  std::uint64_t bytes_of_packets() const {
    return bytes_in(terse::Phase::reduce) + bytes_in(terse::Phase::spread);
  }

  /// Grow in steps that communicate; a late average's second half, where it has one, leaves in another step than the first.
  std::uint64_t bytes_of_rounds() const {
    const std::uint64_t reduced = bytes_in(terse::Phase::reduce);
    return kind_.late && reduced > 0 ? reduced : bytes_of_packets();
  }

  /// The order of an epoch, of all pictures or, where labels are skewed, of this rank's share; the same after a
  /// restart: a function of seed and epoch alone, and of the rank where it is the rank's own.
  void shuffle(std::int64_t epoch) {
    const auto number = static_cast<std::uint64_t>(epoch);
    const bool own = !job_.shares.empty();
    if (own)
      std::copy_n(job_.shares.begin() + static_cast<std::ptrdiff_t>(order_.size()) * rank_, order_.size(),
                  order_.begin());
    else
      std::iota(order_.begin(), order_.end(), 0);
    const terse::Draw draw = own ? terse::Draw::local(options_.seed, rank_, number, terse::Purpose::shuffle)
                                 : terse::Draw::shared(options_.seed, number, terse::Purpose::shuffle);
    for (std::size_t i = order_.size(); i-- > 1;) std::swap(order_[i], order_[draw.below(i + 1, i)]);
    epoch_ = epoch;
  }

  /// This rank's batch `index` of the epoch: a contiguous part of its own order, or of everybody's batch.
  void gather_batch(std::int64_t index) {
    const auto first = static_cast<std::size_t>(
        job_.shares.empty() ? index * pictures_of_step(options_) + share_.first : index * share_.count);
    for (std::size_t k = 0; k < labels_.size(); ++k) {
      const std::int64_t picture = order_[first + k];
      std::copy_n(job_.training.images.begin() + picture * width_, width_,
                  images_.begin() + static_cast<std::ptrdiff_t>(k) * width_);
      labels_[k] = job_.training.labels[static_cast<std::size_t>(picture)];
    }
  }

  /// Rank 0 learns the mean of the losses since the last time.
  void collect_losses() {
    const std::size_t count = losses_.size();
    const auto bytes = static_cast<terse::index_t>(count * sizeof(double));
    std::vector<double> others(rank_ == 0 ? count * static_cast<std::size_t>(ranks_) : 0);
    std::vector<terse::Send> sends;
    std::vector<terse::Receive> receives;
    if (rank_ != 0) sends.push_back({0, reinterpret_cast<const std::byte*>(losses_.data()), bytes});
    if (rank_ == 0)
      for (int peer = 1; peer < ranks_; ++peer)
        receives.push_back(
            {peer, reinterpret_cast<std::byte*>(others.data() + count * static_cast<std::size_t>(peer)),
             bytes});
    side_.exchange(sends, receives, terse::Phase::setup).wait();
    if (rank_ == 0)
      for (std::size_t k = 0; k < count; ++k) {
        double sum = losses_[k];
        for (std::size_t at = count + k; at < others.size(); at += count) sum += others[at];
        run_.train_loss.push_back(sum / ranks_);
      }
    losses_.clear();
  }

  void save_checkpoint(std::int64_t step) {
    checkpoints_->save(static_cast<std::uint64_t>(step), [&](terse::checkpoint::Draft& draft) {
      checkpoints_->together([&] {
        const std::filesystem::path file = draft.file(terse::checkpoint::rank_file(rank_, ranks_));
        count_rest([&] { optimizer_->save(file, model_.parameters()); });
      });
      const std::vector<Sent> sent = everyones(sent_);
      if (rank_ == 0)
        draft.write(state_file, state_of({step, run_.train_loss, run_.bytes_after_step, run_.seconds, sent},
                                         run_.settings));
    });
  }

  /// Each rank looks at a part of the test set; all hold the same parameters.
  double accuracy_by_parts() {
    const Dataset& test = job_.test;
    const std::int64_t first = test.count * rank_ / ranks_;
    std::int64_t right = 0;
    for (const std::int64_t one : everyones(right_among(first, test.count * (rank_ + 1) / ranks_ - first)))
      right += one;
    return static_cast<double>(right) / static_cast<double>(std::max<std::int64_t>(1, test.count));
  }
  /// Of `count` test pictures.
  std::int64_t right_among(std::int64_t first, std::int64_t count) {
    const Dataset& test = job_.test;
    const Evaluation mine =
        model_.evaluate(test.images.data() + first * width_, test.labels.data() + first, count);
    return std::llround(mine.accuracy * static_cast<double>(count));
  }

  /// Each rank's own model on the whole test set, and how far they are apart. Leaves the mean in all of them.
  void look_at_mean() {
    std::int64_t right = 0;
    for (const std::int64_t one : everyones(right_among(0, job_.test.count))) right += one;
    run_.mean_single_accuracy =
        static_cast<double>(right) / static_cast<double>(std::max<std::int64_t>(1, job_.test.count) * ranks_);

    const std::vector<float> mine = values_;
    terse::mean(side_, values_);
    double away = 0, length = 0;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const auto mean = static_cast<double>(values_[i]), difference = static_cast<double>(mine[i]) - mean;
      away += difference * difference;
      length += mean * mean;
    }
    double all = 0;
    for (const double one : everyones(away)) all += one;
    run_.consensus_distance = length > 0 ? std::sqrt(all / ranks_ / length) : 0;
    model_.write_parameters(values_.data());
    run_.parameters_hash = hash_of_values();
  }

  void compare_parameters() {
    model_.read_parameters(values_.data());
    run_.parameters_hash = hash_of_values();
    std::array<char, 32> mine{};
    std::copy_n(run_.parameters_hash.begin(), std::min(mine.size(), run_.parameters_hash.size()),
                mine.begin());
    run_.ranks_agree = true;
    for (const std::array<char, 32>& other : everyones(mine))
      run_.ranks_agree = run_.ranks_agree && other == mine;
  }
  std::string hash_of_values() const {
    return terse::checkpoint::parameters_hash(model_.layout(), terse::view<const float>(values_));
  }

  /// What a dense step sends, where this optimizer took none; of the model nothing is wanted any more. Collective.
  void measure_dense_step() {
    const auto dense = make_optimizer(method("momentum-sgd"));
    model_.zero_gradients();
    const std::uint64_t before = bytes_on_wire();
    dense->step(model_.parameters(), model_.gradients(), 0);
    sent_.dense_step = bytes_on_wire() - before;
  }

  /// Ranks may differ a little, as chunks do; the largest counts.
  void collect_sent() {
    for (const Sent& sent : everyones(sent_)) {
      run_.communication_rounds = std::max(run_.communication_rounds, sent.rounds);
      run_.waiting_share.push_back(sent.in_steps > 0 ? sent.waiting / sent.in_steps : 0);
      run_.bytes_sent_per_rank = std::max(run_.bytes_sent_per_rank, sent.bytes);
      run_.bytes_sent_per_compressed_step =
          std::max(run_.bytes_sent_per_compressed_step, sent.compressed_step);
      run_.dense_bytes_per_step = std::max(run_.dense_bytes_per_step, sent.dense_step);
    }
  }

  const Job& job_;
  const Options& options_;
  const Method& kind_;
  const int rank_, ranks_;
  terse::AnyTransport side_;  // for what is no part of a step and is not counted
  const Schedule schedule_;
  const Share share_;
  Model model_;
  std::shared_ptr<terse::Trace> trace_;  // if one is asked for
  const std::unique_ptr<Workshop> workshop_;
  std::vector<float> values_;  // of the parameters, on the host
  std::unique_ptr<AnyOptimizer> optimizer_;
  const std::int64_t width_;  // of a picture
  Run run_;
  Sent sent_;
  std::vector<double> losses_;  // of this rank, not yet collected
  std::optional<Checkpoints> checkpoints_;
  std::optional<terse::checkpoint::StopRequest<terse::AnyTransport>> stop_;

  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> order_;
  std::vector<float> images_;
  std::vector<std::int64_t> labels_;
};

/// Some graphs want a certain number.
void check_ranks(const Options& options, int ranks) {
  try {
    KeepsMean(options.graph, options.seed).check(ranks);
  } catch (const terse::usage_error& fault) {
    throw input_error(fmt::format("--graph {}: {}", name(options.graph), fault.what()));
  }
}

}  // namespace

Job load_job(const Options& options, int ranks) {
  if (std::any_of(options.optimizers.begin(), options.optimizers.end(),
                  [](const Method* kind) { return is_decentralized(*kind); }))
    check_ranks(options, ranks);
  if (const auto& straggler = options.modelled.straggler; straggler && straggler->rank >= ranks)
    throw input_error(
        fmt::format("--straggler: there is no rank {}; the last one is {}", straggler->rank, ranks - 1));
  Job job;
  job.options = options;
  job.options.ranks = job.ranks = ranks;
  if (!options.resume.empty())
    for (const Method* const kind : options.optimizers)
      if (const std::optional<int> began = ranks_at_start(options.resume, *kind)) {
        job.options.ranks = *began;
        break;
      }
  job.training = load_images_labels(options.data, true, options.inputs);
  job.test = load_images_labels(options.data, false, options.inputs);
  const std::int64_t pictures = job.training.count;
  if (pictures < pictures_of_step(job.options))
    throw input_error(fmt::format("--batch: {} ranks of {} pictures each take more than the {} there are",
                                  job.options.ranks, options.batch, pictures));
  if (options.label_skew)
    job.shares = deal_skewed(job.training.labels, ranks, *options.label_skew, options.seed);
  bool resumes = options.resume.empty() || options.resume_if_any;
  for (const Method* const kind : options.optimizers) {
    std::optional<SavedRun> saved;
    if (!options.resume.empty())
      saved = find_saved_run(options.resume, *kind,
                             {settings_of(job.options, *kind, job.training), ranks, options.elastic});
    resumes = resumes || saved.has_value();
    // What is newer where the run resumes from is what it skips.
    if (!options.checkpoint.empty() && !same_directory(options.resume, options.checkpoint))
      check_nothing_newer(options.checkpoint, *kind, saved ? saved->step : 0);
  }
  if (!resumes)
    throw input_error("--resume: '" + options.resume + "' holds no checkpoint of these optimizers");
  if (pictures_of_step(job.options) < ranks)
    throw input_error(fmt::format(
        "--elastic: {} ranks can't share the {} pictures of a step, --batch {} of each of the {} ranks that "
        "began the run; start fewer",
        ranks, pictures_of_step(job.options), options.batch, job.options.ranks));
  return job;
}

std::optional<std::vector<Run>> train_rank(const Job& job, terse::AnyTransport& transport, int number) {
  Model::pin_threads();
  Transport messages = job.options.transport;
  if (job.options.device == Device::cuda) {
    Model::use_gpu(number);
    messages = settle_transport(job.options, transport);
  }
  std::vector<Run> runs;
  for (const Method* const kind : job.options.optimizers) {
    std::optional<Run> run = Trainer(job, *kind, transport, messages).run();
    if (!run) return std::nullopt;
    runs.push_back(std::move(*run));
  }
  return runs;
}

}  // namespace train
