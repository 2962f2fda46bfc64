#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the library in 47 places, one at a time, and looks whether a test notices: what is tried by hand before and after tests
are moved, merged or left out. A mutation that no test finds is a test that is missing.

mutations.py [--list] [--build FOLDER] [NAME ...]    all of them take an hour on two cores; NAME is a header's or a test's

Works in a copy of the tree's committed files below FOLDER (build/mutations), and goes on there with the mutations that haven't
been tried.
"""

import argparse
import io
import os
import pathlib
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Header, its text, what takes its place, and the test that must fail.
MUTATIONS = [
    ("core/half.hpp", "return (size + 0x7FFF + (size >> 16 & 1)) >> 16;", "return (size + 0x8000) >> 16;", "half"),
    ("core/hash.ipp", "hash = mix_hash(hash, std::bit_cast<std::uint32_t>(segment.learning_rate_scale));", "", "core"),
    ("core/hash.ipp", "(segment.hidden ? std::uint64_t{1} << 40 : 0)", "0", "muon"),
    ("core/draw.hpp", "static_cast<std::uint32_t>(rank) + 1, step, purpose", "1U, step, purpose", "core"),
    ("core/packet.hpp", "if (header.step != expected.step) return", "if (false) return", "damage"),
    ("core/layout.ipp", "const index_t goal = elements_ * (part + 1) / parts - before;",
     "const index_t goal = elements_ * (part + 1) / parts;", "core"),
    ("compressor/sign.hpp", "static float value(std::uint32_t code, float scale) { return code != 0 ? scale : -scale; }",
     "static float value(std::uint32_t code, float scale) { return code != 0 ? scale : -0.5F * scale; }", "one_bit_adam"),
    ("compressor/uniform.hpp", "t = detail::between(t, -divisor, highest);", "t = detail::between(t, -divisor, divisor);",
     "quantizers"),
    ("compressor/natural.hpp", "(random << 7) + 64) >> 23", "64) >> 23", "quantizers"),
    ("compressor/hadamard.hpp", "x[k + half] = a - b;", "x[k + half] = b - a;", "hadamard"),
    ("compressor/qsgd.hpp", "std::bit_cast<std::uint32_t>(value) >> 31 << (Bits - 1)", "0U", "quantizers"),
    ("error_feedback/residual.hpp", "store(i, keep_if(keep, value - keep_if(!hold, decoded)));", "store(i, keep_if(keep, value));",
     "laws_feedbacks"),
    ("error_feedback/ef21.hpp", "return h + arrived;", "return mean[i - begin];", "sparse_averaging"),
    ("error_feedback/error_control.hpp", "error[l] - eta * error[l] + load(i)", "error[l] + load(i)", "controlled"),
    ("error_feedback/momentum_residual.hpp", "taken_out(1 - policy.momentum)", "taken_out(1)", "dion"),
    ("error_feedback/averaged_residual.hpp", "view.share = (1 - gain_) * weight;", "view.share = weight;", "laws_feedbacks"),
    ("executor/sinks.hpp", "hold ? Scale{} : scale;", "scale;", "lives"),
    ("late_errors.hpp", "keep_if(kept, message, std::numeric_limits<float>::quiet_NaN())", "message", "lives"),
    ("device/verbs/pack.hpp", "measured.note(tile.piece.segment, scale);", "", "device_lives"),
    ("executor/units.hpp", "unit += before;", "", "parallel"),
    ("executor/parallel.hpp", "(part.passed / reduction_block + part.unit)", "(part.passed / reduction_block)", "parallel"),
    ("executor/select.hpp", "larger[l] <= most ? size[l] : kth", "larger[l] < most ? size[l] : kth", "select"),
    ("topology/scatter_gather.hpp", "const MeanOf mean{1.0F / static_cast<float>(context.size)};", "const MeanOf mean{1.0F};",
     "laws_topologies"),
    ("topology/ring.hpp", "static int owner(const Context& context, int c) { return (c + context.size - 1) % context.size; }",
     "static int owner(const Context&, int c) { return c; }", "laws_topologies"),
    ("topology/gathered.hpp", "return static_cast<float>(counts / largest);", "return static_cast<float>(counts);", "merging"),
    ("topology/mixing.hpp", "receives_.push_back({edges_[e].peer, from(e), room_, variable});",
     "receives_.push_back({edges_[e].peer, from(0), room_, variable});", "mixing"),
    ("graph/weights.hpp", "std::max(mine, in_degree(adjacency, edge.peer, size, round))", "mine", "graph"),
    ("graph/random_matching.hpp", "return place % 2 == 0 ? behind.rank : before.rank;", "return behind.rank;", "graph"),
    ("transport/erased.hpp", "return one.use_count() == 1;", "return false;", "slices"),
    ("transport/channel.hpp", "if (sent_ != nullptr) *sent_ += load.bytes_sent;", "if (sent_ != nullptr) ++*sent_;", "figures"),
    ("transport/collectives.hpp", "mean[i] = static_cast<V>(sum / static_cast<double>(rows));", "mean[i] = static_cast<V>(sum);",
     "collectives"),
    ("exchange/rounds.hpp", "(started_ < lanes_ || slices_[started_ - lanes_]->here)", "true", "slices"),
    ("topology/owners.hpp", "context.second, false, packet", "context.first, false, packet", "within"),
    ("preconditioner/elementwise.hpp", "std::sqrt(e.scalar(0) * v)", "std::sqrt(v)", "dense"),
    ("preconditioner/freeze.hpp", "then > 0 && now > 0 && std::min(now / then, then / now) >= rule.threshold",
     "then > 0 && now > 0 && now / then >= rule.threshold", "one_bit_adam"),
    ("preconditioner/frozen_layer_rates.hpp", "return frozen * f;", "return f;", "lamb"),
    ("momentum_correction/quasi_global.hpp", "(1 - decay) * (step(e) - difference)", "(1 - decay) * step(e)", "mixing"),
    ("optimizer/recipe.hpp", "return norm > static_cast<double>(clip_norm) ?", "return norm > 0 ?", "dense"),
    ("optimizer/groups.hpp", "if (common_hash(recipes_[k]) != common_hash(recipe)) refuse_difference(k, recipe);", "", "groups"),
    ("optimizer/comparison.hpp", "due_ = due_ || steps % every == 0;", "due_ = due_ || steps == every;", "damage"),
    ("optimizer/local/schedule.hpp", "std::uint64_t offset(std::uint64_t turn, std::uint64_t period) const { return turn * period / count; }",
     "std::uint64_t offset(std::uint64_t turn, std::uint64_t period) const { return turn * period / (count + 1); }", "streaming"),
    ("optimizer/zero_one_adam_functors.hpp", "since.kept[s] = left * since.kept[s];", "since.kept[s] = since.kept[s];", "zero_one_adam"),
    ("error_feedback/observed.hpp", "Inner::compensate(i, 0.0F)", "Inner::load(i)", "observed"),
    ("error_feedback/compression_report.ipp", "both += said * e;", "both += y * e;", "observed"),
    ("pipeline/schedule.hpp", "stages - stage + index_t{ahead} * (stages - 1 - stage)", "stages - stage", "pipeline_schedule"),
    ("pipeline/makespan.hpp", "stage.out_free = begin + takes;", "stage.out_free = begin;", "pipeline_schedule"),
    ("pipeline/activations.hpp", "if (!visit.seen && count < elements_) cleared_.push_back(copy_of(visit));", "", "pipeline_copies"),
]


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("names", metavar="NAME", nargs="*")
    parser.add_argument("--list", action="store_true", help="print them, and whether each is still found in its header")
    parser.add_argument("--build", metavar="FOLDER", type=pathlib.Path, default=ROOT / "build" / "mutations")
    options = parser.parse_args(arguments)
    chosen = [one for one in MUTATIONS if not options.names or any(name in (one[0], one[3]) for name in options.names)]
    if not chosen:
        parser.error("no mutation is of such a header or test")
    gone = 0
    for header, before, after, test in chosen:
        found = (ROOT / "include" / "terse" / header).read_text().count(before)
        gone += found != 1
        if options.list or found != 1:
            print(f"{header}: {test}: {before!r} -> {after!r}" + ("" if found == 1 else f", which is there {found} times"))
    if gone:
        return "mutations that are not there once can't be tried: change them"
    if options.list:
        return 0
    return tried(chosen, options.build)


def tried(chosen, folder):
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    tree, build, log = folder / "tree", folder / "build", folder / f"results-{commit}"
    files = subprocess.run(["git", "-C", ROOT, "archive", "HEAD"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(files)) as archive:
        for member in filter(tarfile.TarInfo.isfile, archive):
            path, text = tree / member.name, archive.extractfile(member).read()
            # What is as it was keeps its time, so that it isn't compiled again.
            if not path.exists() or path.read_bytes() != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text)
                path.chmod(member.mode)
    if not (build / "build.ninja").exists():
        subprocess.run(["meson", "setup", build, tree, "-Doptimization=0", "-Dmpi=disabled", "-Dtorch=disabled", "-Dcuda=disabled",
                        "-Dexamples=disabled", "-Dbenchmarks=disabled"],
                       check=True, stdout=subprocess.DEVNULL, env={**os.environ, "CXX": os.environ.get("CXX", "clang++")})
    done = log.read_text().splitlines() if log.exists() else []
    survivors = 0
    for header, before, after, test in chosen:
        name = f"{header}: {before!r} -> {after!r}"
        if (known := next((line for line in done if line.endswith(f" by {test}: {name}")), None)) is None:
            path = tree / "include" / "terse" / header
            text = path.read_text()
            path.write_text(text.replace(before, after))
            try:
                known = f"{verdict(build, test)} by {test}: {name}"
            finally:
                path.write_text(text)
            with log.open("a") as results:
                results.write(known + "\n")
        print(known, flush=True)
        survivors += not known.startswith("found")
    return f"{survivors} of {len(chosen)} were not found" if survivors else 0


def verdict(build, test):
    if subprocess.run(["ninja", "-C", build, f"tests/test_{test}"], capture_output=True, check=False).returncode != 0:
        return "does not compile, tried"
    run = subprocess.run(["meson", "test", "-C", build, "--no-rebuild", test], capture_output=True, check=False)
    return "found" if run.returncode != 0 else "NOT FOUND"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
