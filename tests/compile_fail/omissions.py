#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes members away from the archetypes of tests/laws, one at a time, and holds the compiler to one sentence for each.

Usage: omissions.py COMPILER [FLAG ...]

Omissions of several archetypes share a compilation, whose sentences must be those of its omissions and no others.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FLAGS = ["-std=c++20", "-Wall", "-Wextra", f"-I{ROOT / 'include'}"]

sys.path.append(str(HERE.parent))
from precompile import precompiled  # pylint: disable=wrong-import-position

NO_POLICY = r"one of this optimizer's arguments is not a policy: it has none of the members that tell its kind, neither `facts`"
BUFFERS = r"names its buffers: `static constexpr std::array<const char\*, N> state\{...\}`"
RULE = r"needs `template <class Real> struct Rule`, its arithmetic"
AT_STEP = r"at_step is `std::array<Real, N> at_step\(std::uint64_t t\) const`"

# Archetype -> macro without the archetype's name -> what the sentence holds behind "terse: ".
OMISSIONS = {
    "CORRECTION": {
        "OMIT_FACTS": NO_POLICY,
        "OMIT_STATE": "a momentum correction " + BUFFERS,
        "OMIT_RULE": "a momentum correction " + RULE,
        "OMIT_DIRECTION": r"a momentum correction's rule needs `Real direction\(e, mean\) const`",
        "WRONG_MESSAGE": r"a momentum correction's message is `Real message\(e\) const`",
        "WRONG_EXACT_DIRECTION": r"a momentum correction's exact_direction is `Real exact_direction\(e, mean\) const`",
        "WRONG_SENT": r"a momentum correction's sent is `void sent\(e, bool keep, Real decoded\) const`",
        "WRONG_MEAN_GRADIENT": r"a momentum correction's mean_gradient is `Real mean_gradient\(e, mean\) const`",
        "WRONG_BALANCE": r"a momentum correction's balance is `void balance\(layers\) const`",
        "WRONG_CARRY": r"a momentum correction's carry is `void carry\(e, bool keep\) const`",
        "WRONG_AT_STEP": "a momentum correction's " + AT_STEP,
        "WRONG_SETTINGS": r"a policy with members needs hyper_parameters\(\)",
        "WRONG_PARAMETERS": r"a policy's hyper_parameters\(\) has a HyperParameter for each member",
        "WRONG_CHECK": r"a policy's check is `void check\(\) const`",
    },
    "PRECONDITIONER": {
        "OMIT_FACTS": NO_POLICY,
        "OMIT_STATE": "a preconditioner " + BUFFERS,
        "OMIT_RULE": "a preconditioner " + RULE,
        "OMIT_STEP": r"a preconditioner's rule needs `Real step\(e, gradient, direction\) const`",
        "WRONG_DENOMINATOR": r"a preconditioner's denominator is `Real denominator\(e\) const`",
        "WRONG_CARRY": r"a preconditioner's carry is `void carry\(e, Real denominator\) const`",
        "WRONG_TAKES_PART": r"a preconditioner's takes_part is `bool takes_part\(e\) const`",
        "WRONG_AT_STEP": "a preconditioner's " + AT_STEP,
    },
    "LAYERS": {
        "OMIT_MEASURES": r"a layer-wise preconditioner's rule needs `using measures = Statistics<...>`",
        "OMIT_MEASURED": r"a layer-wise preconditioner's rule needs `Real measured\(int k, e, Real u\) const`",
        "OMIT_FACTOR": r"a layer-wise preconditioner's rule needs `Real factor\(layer\) const`",
        "WRONG_MOVE": r"a layer-wise preconditioner's move is `Real move\(e, Real u, Real rate\) const`",
        "WRONG_OBSERVE": r"a layer-wise preconditioner's observe is `void observe\(layer, Real factor\) const`",
        "WRONG_STATE": "a preconditioner " + BUFFERS,
    },
    "MIXING": {
        "OMIT_FACTS": NO_POLICY,
        "OMIT_STATE": "a mixing rule " + BUFFERS,
        "OMIT_RULE": "a mixing rule " + RULE,
        "OMIT_OUTGOING": r"a mixing rule needs `Real outgoing\(e\) const`",
        "OMIT_UPDATE": r"a mixing rule needs `Real update\(e, own, difference\) const`",
        "WRONG_ADAPT": r"a mixing rule that combines first .* needs `Real adapt\(e\) const`",
        "WRONG_TAKE_UP": r"a mixing rule that moves by its packet .* needs `void take_up\(e, difference\) const`",
        "WRONG_AT_STEP": "a mixing rule's " + AT_STEP,
        "WRONG_EIGENVALUES": r"a mixing rule's eigenvalues_above is `double eigenvalues_above\(\) const`",
    },
    "TRACKING": {
        "OMIT_OUTGOING": r"a mixing rule of two vectors needs `Real outgoing\(Vector<0>, e\) const`",
        "OMIT_UPDATE": r"a mixing rule of two vectors needs `Real update\(Vector<0>, e, own, difference\) const`",
        "OMIT_SECOND_UPDATE": r"a mixing rule of two vectors needs `void update\(Vector<1>, e, own, difference\) const`",
    },
    "DIRECTION": {
        "OMIT_FACTS": NO_POLICY,
        "OMIT_STATE": "a local direction " + BUFFERS,
        "OMIT_RULE": "a local direction " + RULE,
        "OMIT_DIRECTION": r"a local direction's rule needs `Real direction\(e\) const`",
        "OMIT_KEEP": r"a local direction's rule needs `void keep\(e\) const`",
        "WRONG_AT_STEP": "a local direction's " + AT_STEP,
    },
    "FEEDBACK": {
        "OMIT_CORRECTS": NO_POLICY,
        "OMIT_STATE": r"an error feedback needs `template <Executor E> struct State`",
        "OMIT_WALK": r"an error feedback's State needs `template <class Visit> void walk\(Visit&& visit\)`",
        "OMIT_VIEW": r"an error feedback's State needs `view\(\)`",
        "OMIT_COMPENSATE": r"an error feedback's view needs `float compensate\(index_t i, float message\) const`",
        "OMIT_LOAD": r"an error feedback's view needs `float load\(index_t i\) const`",
        "OMIT_COMMIT": r"an error feedback's view needs `void commit\(index_t i, bool keep, float y, float decoded\) const`",
        "WRONG_RECEIVE": r"an error feedback's receive is `float receive\(index_t i, bool keep, float mean\) const`",
        "WRONG_VISIT": r"an error feedback's walk calls visit\(name, buffer.all\(\), begin\)",
        "WRONG_START": r"an error feedback's start is `void start\(float rate\)`",
    },
    "QUANTIZER": {
        "OMIT_STATISTIC": r"a quantizer names its `Statistic`",
        "OMIT_FINISH": r"a quantizer names its `Statistic` .* finish",
        "OMIT_BITS": r"a quantizer states `static constexpr int bits`",
        "OMIT_STOCHASTIC": r"a quantizer states `static constexpr bool stochastic`",
        "OMIT_UNBIASED": r"a quantizer states `static constexpr bool unbiased`",
        "OMIT_CODE": r"a quantizer needs `static std::uint32_t code\(float value, Scale scale, std::uint32_t random\)`",
        "OMIT_VALUE": r"a quantizer needs `static float value\(std::uint32_t code, Scale scale\)`",
    },
    "COMPRESSOR": {
        "OMIT_LOSSLESS": NO_POLICY,
        "OMIT_UNBIASED": r"a compressor states `static constexpr bool unbiased`",
        "OMIT_MEASURED": r"a compressor states `static constexpr bool measured`",
        "OMIT_INCOMING": r"a compressor that is not lossless names `Incoming` and `Source`",
        "OMIT_WORKSPACE": r"a compressor needs `template <Executor E> struct Workspace`",
        "OMIT_WIRE_BYTES": r"a compressor needs `index_t wire_bytes\(const Range&\) const`",
        "OMIT_SOURCE": r"a compressor needs `Source source\(const Range&, const std::byte\* section, float weight",
        "OMIT_HOW_INCOMING": r"a compressor needs `static Incoming incoming\(Source\*, int count\)`",
        "OMIT_FAULT": r"a compressor needs `const char\* fault\(const Range&, const std::byte\* section, index_t bytes\)",
        "OMIT_ENCODE": r"a compressor needs `index_t measure_and_encode\(executor, workspace, range, mask",
    },
    "SELECTION": {
        "OMIT_TRAITS": r"a selection states `static constexpr bool` variable, unbiased and contractive",
        "OMIT_READER": r"a selection needs a `Reader`, .* with position\(\) and next\(\)",
        "OMIT_SETTINGS": r"a selection needs `void check\(\) const`, .* and `settings\(visit\) const`",
        "OMIT_MOST": r"a selection needs `index_t most\(index_t n\) const`",
        "OMIT_INDEX_BYTES": r"a selection needs `index_t index_bytes\(index_t n, index_t k\) const`",
        "OMIT_FLOATS": r"a selection needs `index_t floats\(executor, index_t n\) const`",
        "OMIT_FAULT": r"a selection needs `const char\* fault\(const std::byte\* wire, index_t n, index_t k\) const`",
        "OMIT_SELECT": r"a selection needs `index_t select\(executor, values, index_t key",
    },
    "GRAPH": {
        "OMIT_FIXED": r"a graph states `static constexpr bool` fixed, symmetric, doubly_stochastic and regular",
        "OMIT_CHECK": r"a graph needs `void check\(int size\) const`",
        "OMIT_ROW": r"a graph needs `void row\(int rank, int size, std::uint64_t round",
        "OMIT_RECEIVERS": r"a graph needs `void receivers\(int rank, int size, std::uint64_t round",
    },
    "TOPOLOGY": {
        "OMIT_EXACT": r"a topology states `static constexpr bool exact`, true if all ranks get the same mean",
        "OMIT_RECOMPRESSES": NO_POLICY,
        "OMIT_ROUND": r"a topology needs a nested `template <Compressor C, ErrorFeedback F, Executor E> class Round`",
        "WRONG_SETTINGS": r"a policy with members needs hyper_parameters\(\)",
        "OMIT_START": r"a topology's Round needs `void start\(context, message\)`",
        "OMIT_ADVANCE": r"a topology's Round needs `bool advance\(context, message, bool block\)`",
        "OMIT_CONSUME": r"a topology's Round needs `void consume\(context, consumer\)`",
        "OMIT_MOST_BYTES": r"a topology's Round needs `index_t most_bytes\(context\) const`",
        "OMIT_FOR_DENSE": r"a topology that carries full-precision packets itself needs, in its Round, `double notes\(executor\)`",
    },
    "RECIPE": {
        "OMIT_CHECK": r"a recipe needs composition\(\), or `void check\(\) const`",
        "OMIT_SETTINGS": r"a recipe needs `settings\(visit\) const`",
        "OMIT_STATE": r"a recipe needs `template <Executor E> struct State`",
        "OMIT_FULL_PRECISION": r"a recipe's State needs `bool full_precision\(\) const`",
        "OMIT_WALK": r"a recipe's State needs `template <class Visit> void walk\(Visit&& visit\)`",
        "OMIT_PREPARE": r"a recipe needs `void prepare\(input, state, StepScalars& now\) const`",
        "OMIT_ENQUEUE": r"a recipe needs `void enqueue\(input, state\) const`",
        "OMIT_COMPLETE": r"a recipe needs `void complete\(input, state\) const`",
    },
    "TRANSPORT": {
        "OMIT_MEMORY": r"a transport names the `memory` that its messages lie in",
        "OMIT_MOVE_ONLY": r"a transport's ticket, .* is movable and not copyable",
        "OMIT_READY": r"a transport's ticket needs `bool ready\(\)`",
        "OMIT_WAIT": r"a transport's ticket needs `void wait\(\)`",
        "OMIT_WAIT_DEADLINE": r"a transport's ticket needs `void wait\(std::chrono::milliseconds deadline\)`",
        "OMIT_RANK": r"a transport needs `int rank\(\) const`",
        "OMIT_SIZE": r"a transport needs `int size\(\) const`",
        "OMIT_EXCHANGE": r"a transport needs `exchange\(std::span<const Send>, std::span<const Receive>, Phase\)`",
        "OMIT_SPLIT": r"a transport needs `split\(int color, int key\)`",
    },
}


def macro(archetype, member):
    kind, name = member.split("_", 1)
    return f"{kind}_{archetype}_{name}"


def groups():
    """Omissions for one compilation each: of no archetype two, and none with the sentence of another."""
    found = []
    for archetype, members in OMISSIONS.items():
        for member, words in members.items():
            for group in found:
                if all(other != archetype and OMISSIONS[other][one] != words for other, one in group):
                    group.append((archetype, member))
                    break
            else:
                found.append([(archetype, member)])
    return found


def compile_without(compiler, library, group):
    command = [*compiler, *FLAGS, *library, "-fsyntax-only", f"-I{HERE.parent}",
               *(f"-D{macro(*omission)}" for omission in group), str(HERE / "omissions.cpp")]
    if "clang" in pathlib.Path(compiler[0]).name:
        command.append("-ferror-limit=0")
    environment = dict(os.environ, LC_ALL="C")
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    return done.returncode, done.stdout + done.stderr


def sentences(output):
    """The library's own, as compilers print them: g++ behind a colon, clang++ in quotation marks."""
    return set(re.findall(r'error: static.assert.*?(?:: |")terse: (.*?)"?$', output, re.MULTILINE))


def judge(group, code, output):
    """What is wrong with a compilation, line by line."""
    if not group:
        return [] if code == 0 and not output.strip() else ["nothing is omitted, and it does not compile without a word"]
    found, wrong = sentences(output), []
    for archetype, member in group:
        words = OMISSIONS[archetype][member]
        matching = {sentence for sentence in found if re.match(words, sentence)}
        if len(matching) != 1:
            wrong.append(f"{macro(archetype, member)}: {len(matching)} sentences with /{words}/")
        found -= matching
    return wrong + [f"nobody asked for: terse: {sentence}" for sentence in found]


def main(arguments):
    if not arguments:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    sources = "".join(path.read_text() for path in (HERE.parent / "laws").glob("archetype*.hpp"))
    named = set(re.findall(r"defined\(((?:OMIT|WRONG)_\w+)\)", sources))
    known = {macro(archetype, member) for archetype, members in OMISSIONS.items() for member in members}
    if named != known:
        print(f"the archetypes and omissions.py name different omissions: {sorted(named ^ known)}")
        return 1

    failures = 0
    runs = [[], *groups()]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        library = precompiled(arguments, FLAGS, ["terse/terse.hpp"], folder)
        for group, result in zip(runs, pool.map(lambda group: compile_without(arguments, library, group), runs)):
            wrong = judge(group, *result)
            print(f"{'FAILED' if wrong else 'ok':6}  {' '.join(macro(*one) for one in group) or 'twin'}", flush=True)
            for line in wrong:
                print(f"        {line}")
            if wrong and not group:
                print("\n".join("        " + line for line in result[1].splitlines()[:12]))
            failures += bool(wrong)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
