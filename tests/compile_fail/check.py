#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the misuses of misuse.cpp, each of which must fail with words of its own, and the twin, which must not.

Usage: check.py COMPILER [FLAG ...], for instance: check.py clang++ -stdlib=libc++
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", f"-I{HERE.parent.parent / 'include'}"]

sys.path.append(str(HERE.parent))
from precompile import precompiled  # pylint: disable=wrong-import-position

# Case -> words that some line of the output must hold. Compilers break no line of their own accord.
CASES = {
    "NO_WIRE_BYTES": r"terse: a compressor needs `index_t wire_bytes\(const Range&\) const`",
    "BIASED_WITHOUT_FEEDBACK": r"terse: a biased compressor .* needs error feedback: .* Use Residual, not NoErrorFeedback",
    "NO_VALUE": r"terse: a quantizer needs `static float value\(std::uint32_t code, Scale scale\)`",
    "NO_SETTINGS": r"terse: a recipe needs `settings\(visit\) const`",
    "BLOCK_OFF_THE_WORD": r"terse: PerBlock<N> takes a positive multiple of 64 elements",
    "SCALED_TWICE": r"terse: this compressor scales its picks .* Use AllGather",
    "CARRIES_A_TRACKER": r"terse: this recipe keeps sums over all ranks, .* can't go on .*: resume from a checkpoint, checkpoint::load_elastic",
    "GATHERED_IN_FULL_PRECISION": r"terse: Gathered merges packets, .* Give this optimizer a compressor",
    "GATHERED_WITH_DIFFERENCE": r"terse: this error feedback .* and MeanOverSenders and Gathered make something else",
    "SELECT_WITHOUT_FEEDBACK": r"terse: a biased compressor .* needs error feedback",
    "SELECT_NO_BRANCH": r"terse: Select takes branches: Where<Predicate, Compressor>",
    "SELECT_NO_PREDICATE": r"terse: Where's first argument is a predicate",
    "SELECT_KEYED": r"terse: a branch of Select can't have a keyed compressor .* use a quantizer such as Uniform<8>",
    "SELECT_IN_SELECT": r"terse: a branch of Select is no Select",
    "SELECT_NOTHING_COMPRESSED": r"terse: no branch of this Select compresses: write Dense, or",
    "SELECT_BEHIND_OTHERWISE": r"terse: no segment reaches a branch of Select after Otherwise, .* put Otherwise last",
    "SELECT_OWN_COPIES": r"terse: Ef21 starts from the optimizer's exact steps",
    "SELECT_ON_A_GRAPH": r"terse: Select is for means over all ranks, by an exact topology",
    "SELECT_LOW_RANK_OVER_NODES": r"terse: over Hierarchical no branch of Select can be LowRank",
    "DIFFERENCE_RECOMPRESSED": r"terse: this error feedback \(Ef21, ErrorControl\) needs the mean of the packets",
    "DIFFERENCE_WITHOUT_CONTRACTION": r"terse: Ef21 needs a contractive compressor",
    "CONTROLLED_RECOMPRESSED": r"terse: this error feedback \(Ef21, ErrorControl\) needs the mean of the packets",
    "WITHIN_WITHOUT_COMPRESSOR": r"terse: Within uses the optimizer's compressor within nodes, too",
    "WITHIN_BACK_BIASED": r"terse: the way from the mean back to a node's ranks has no error feedback",
    "GROWING_RESIDUAL": r"terse: under Residual the error of this compressor grows without bound",
    "SMALL_ERROR_OF_A_SEGMENT": r"terse: an error stored in fewer bits holds the message for one block only",
    "DECENTLAM_ON_A_CHANGING_GRAPH": r"terse: momentum on the mixture .* need a graph that is fixed and symmetric",
    "CONSENSUS_ON_A_DIRECTED_GRAPH": r"terse: momentum on the mixture .* need a graph that is fixed and symmetric",
    "D2_ON_A_CHANGING_GRAPH": r"exact diffusion \(D2\) need a graph that is fixed and symmetric",
    "D2_NOT_LAZY": r"terse: exact diffusion \(D2\) diverges .* Use graph::Lazy<...>",
    "SECOND_VECTOR_WITH_DECAY": r"terse: compressed, this method's second vector .* Use DecoupledDecay",
    "OUTER_MEAN_OF_PUSH_SUM": r"terse: an outer step takes the plain mean, and push-sum weights",
    "MEAN_NOT_KEPT": r"terse: on this graph mixing does not keep the mean .* doubly stochastic",
    "PUSH_SUM_WITH_ANY_METHOD": r"terse: push-sum weights are for StochasticGradientPush",
    "COPIES_ON_A_CHANGING_GRAPH": r"terse: this method keeps sums over its neighbours .* the graph must be fixed",
    "CHANGES_WITHOUT_CONTRACTION": r"terse: changes are sent against copies .* only under a contraction",
    "BIASED_GRADIENTS": r"terse: gradients travel without error feedback, so that their compressor must be unbiased",
    "ROWS_OF_VARIABLE_SIZE": r"terse: both stages must know the length of a packet",
    "ROWS_WITH_COMPANIONS": r"terse: a scale for a whole packet would make an example's code depend on its companions",
    "ROWS_IN_ROUNDS": r"terse: rows of activations can't be compressed by a protocol of several rounds",
    "BLOCKS_OF_PICKS": r"terse: Int8 rounds rows block by block and must see every element",
    "TWO_FOLLOW_THE_RATE": r"terse: nested local methods must not follow the learning rate",
    "POLICY_INSIDE": r"terse: this is a policy, and local methods expect an inner optimizer first",
    "TOGETHER_IN_DILOCO": r"terse: this named optimizer fixes a policy of this kind",
    "DILOCO_ON_A_CHANGING_GRAPH": r"terse: DiLoCo over a graph needs one that is fixed and symmetric, such as Gossip",
    "DILOCO_COMPRESSED_OVER_A_GRAPH": r"terse: over a graph DiLoCo's ranks send their anchors, which don't become small: take Dense",
    "BARE_QUANTIZER": r"terse: this argument is a quantizer, not a compressor. Packed makes a compressor of it",
    "BARE_SELECTION": r"terse: this argument is a selection, not a compressor. Sparse makes a compressor of it",
    "BARE_SELECTION_CHECKED": r"is a selection, not a compressor. .* Sparse<Selection, Dense, PerSegment>",
    "MIXING_RULE_IN_A_MEAN": r"terse: a MixingRule, .* takes means over all ranks: write ParameterMixing<...>",
    "MOMENTUM_IN_A_MIXTURE": r"terse: a MomentumCorrection and a Preconditioner are for means .* write Averaging<...>",
    "COMPRESSED_NATIVE": r"terse: a transport's own collectives add floats, so Native carries full-precision messages only",
    "PLAIN_AVERAGE_IN_FRAGMENTS": r"terse: this outer rule takes its mean at once \(PlainAverage, OuterMomentum\), and here",
    "PULL_BACK_IN_FRAGMENTS": r"terse: this outer rule \(PullBack, DelayCorrection, LateSign\) merges a mean when it sends",
    "LATE_MOMENTUM_AT_ONCE": r"terse: this outer rule is for means that come late: take Overlapped or Streaming",
    "OVERLAP_ON_A_RING": r"terse: parameters change while their mean is under way, and this topology \(Ring\)",
    "OVERLAP_AROUND_LOCAL": r"terse: nested local methods must not follow the learning rate",
    "BOUNDARY_WITHOUT_SETTINGS": r"terse: a pipeline's policy has .* settings\(visit\)",
    "HALF_OF_A_FLOAT": r"narrowed<bf16>\(x\) rounds a float",
    "STAGE_WITHOUT_LOSS": r"terse: a stage needs `double loss\(const MicroBatch&\)`",
    "HIDDEN_IN_A_LOCAL_DIRECTION": r"terse: a local direction treats all segments equally, and ForHiddenMatrices",
    "ROW_MOMENTUM_IN_A_LOCAL_DIRECTION": r"terse: this momentum correction \(RowMomentum\) .* a local direction takes all",
    "SPARSE_LOCO_WITHOUT_A_MEMORY": r"terse: SparseLoCo's memory is an error feedback with a decay: Residual",
    "COCKTAIL_WITH_A_MEMORY": r"terse: with this outer rule \(TradeForMean, LateSign\) the unsent part stays in the parameters",
    "COCKTAIL_OF_FACTORS": r"terse: this outer rule \(TradeForMean, LateSign\) needs the values that were sent",
    "COCKTAIL_OF_NODES": r"terse: with this outer rule \(TradeForMean, LateSign\) each rank keeps its own unsent part",
    "OWNERS_RESIDUAL_ALONE": r"terse: OwnersResidual loses the unsent part of a rank's message, .* Use Residual",
    "SHARDED_POLICY": r"terse: this is a policy, and Sharded expects an optimizer first",
    "SHARDED_COMPRESSED": r"terse: this optimizer compresses messages of its own, .* write Sharded<Adam<>, Uniform<8>>",
    "SHARDED_LOCAL": r"terse: the owners of a Sharded step on means of gradients, by an Averaging",
    "SHARDED_LAYER_NUMBERS": r"terse: this preconditioner or momentum correction keeps numbers of layers",
    "SHARDED_ON_A_RING": r"terse: Sharded has a topology of its own, .* give its optimizer none",
    "SHARDED_LOW_RANK": r"terse: owners get parts of segments, and this compressor .* Use a quantizer, a Cast or TopK",
    "SHARDED_DIFFERENCE": r"terse: this error feedback \(Ef21, ErrorControl\) needs the mean on every rank",
    "SHARDED_INSIDE_LOCAL": r"terse: Sharded divides the state of one model among all ranks",
    "GATHER_OF_FACTORS": r"terse: owners send parts of segments, and this compressor .* Use Dense, a Cast",
    "GATHER_THAT_GROWS": r"terse: owners send again what was lost of their parameters, so the compressor must track",
    "GATHER_OF_NARROW_DIFFERENCES": r"terse: a model in 16 bits has no room for differences",
    "TWO_GATHERS": r"terse: this optimizer takes one GatherBy and has been given two",
    "TWO_COMPRESSORS": r"terse: this optimizer takes one Compressor and has been given two",
    "TWO_TOPOLOGIES": r"terse: this optimizer takes one Topology and has been given two",
    "TWO_FEEDBACKS": r"terse: this optimizer takes one ErrorFeedback and has been given two",
    "TWO_CORRECTIONS": r"terse: this optimizer takes one MomentumCorrection and has been given two",
    "TWO_PRECONDITIONERS": r"terse: this optimizer takes one Preconditioner and has been given two",
    "NO_POLICY": r"terse: one of this optimizer's arguments is not a policy",
    "FIXED_BY_ITS_NAME": r"terse: this named optimizer fixes a policy of this kind",
    "VOTES_ON_A_RING": r"terse: this momentum correction \(MajorityVote, for one\) counts whole messages",
    "TIE_WITHOUT_ZERO": r"terse: in this momentum correction a tie of votes is 0, .* Use UnitTernary",
    "MEAN_OF_SIGNS_AGAIN": r"terse: this momentum correction steps along the mean of the ranks' signs",
    "TILES_OF_NO_PICKS": r"terse: Tiles and Dct take a sparse compressor that picks PerSegment",
    "MOMENTUM_WITHOUT_DECAY": r"terse: DeMo's momentum is an error feedback with a decay",
    "MEAN_OF_NEIGHBOURS": r"terse: a mean over all ranks needs a topology that gives all the same",
    "NEVER_FREEZES": r"terse: the preconditioner of a 1-bit method has a member `freeze`",
    "MASK_WITHOUT_STAGES": r"terse: a mask is for methods of two stages",
    "RULE_IN_ONE_PRECISION": r"terse: a momentum correction needs .* its arithmetic in float and, for oracles, in double",
    "DIRECTION_BESIDE_A_RULE": r"terse: a mixing rule has its own local direction",
    "DIFFERENCE_IN_A_SECOND_STAGE": r"terse: after a failed step the copies of Ef21 restart from exact gradients",
    "STATISTICS_OF_OTHER_KINDS": r"terse: the statistics that the two stages measure of a layer",
    "STAGES_OF_ONE_KIND": r"terse: the second stage has a compressor: two exact stages are one",
    "ORTHOGONAL_STAGES": r"terse: a preconditioner that orthogonalizes .* is for an Averaging",
    "HIDDEN_MESSAGES": r"terse: ForHiddenMatrices takes momentum corrections that send the gradient",
    "HIDDEN_OF_TWO_KINDS": r"terse: ForHiddenMatrices takes two momentum corrections or two preconditioners",
    "DION2_OF_WHOLE_MATRICES": r"terse: Dion2 takes as its preconditioner OrthogonalRows<N>",
    "ROWS_BY_ELEMENT": r"terse: this momentum correction \(RowMomentum\) hears which steps are taken",
    "MUON_BY_ELEMENT": r"terse: Muon takes NewtonSchulz or PolarExpress",
    # The memory spaces are part of the types, which both compilers name.
    "DEVICE_VIEW_IN_STEP": r"terse: a view keeps its memory space",
    "DEVICE_VIEW_AS_HOST": r"terse: a view keeps its memory space",
    "DEVICE_ELEMENT_ON_HOST": r"memory::device.*memory::host|memory::host.*memory::device",
    "ROUNDS_WITHOUT_DEVICE": r"terse: rounds on this executor need terse/device\.hpp",
    "COMPRESSOR_WITHOUT_DEVICE": r"terse: compressors on this executor need terse/device\.hpp",
    "PICKS_IN_PARALLEL": r"terse: compressors that pick elements have no parallel form: take executor::host",
    "LOW_RANK_IN_PARALLEL": r"terse: low-rank compressors have no parallel form",
    "MATRICES_IN_PARALLEL": r"terse: preconditioners of matrices have no parallel form",
    "SMALL_ERROR_IN_PARALLEL": r"terse: errors in fewer bits have no parallel form",
    "KEYED_IN_PARALLEL": r"terse: keyed compressors have no parallel form",
    "NATIVE_WITHOUT_COLLECTIVES": r"terse: Native needs a transport with collectives of its own",
    "SWARM_WITHOUT_MAILBOX": r"terse: asynchronous swarms need a transport with a mailbox",
    "DOUBLES_IN_STEP": r"terse: step writes parameters and reads gradients, containers of float",
    "DOUBLES_IN_BEGIN": r"terse: begin takes what step takes: containers of float",
    "CONSTANT_PARAMETERS": r"terse: step writes parameters and reads gradients, containers of float",
}


# As above, and it must be the only error: compiled alone.
ONLY_ERRORS = {
    "MISSPELT_FACTS": r"error: .* .vektors.",
}
CASES |= ONLY_ERRORS


def groups():
    """The cases, several to a compilation, none with words that another of its group would show."""
    found = [[case] for case in ONLY_ERRORS]
    for case, words in CASES.items():
        if case in ONLY_ERRORS:
            continue
        for group in found[len(ONLY_ERRORS):]:
            if all(CASES[other] != words for other in group):
                group.append(case)
                break
        else:
            found.append([case])
    return found


def compile_cases(compiler, library, cases):
    defines = [f"-DCASE_{case}" for case in cases] + ["-DMISUSED"] * bool(cases)
    command = [*compiler, *FLAGS, *library, "-fsyntax-only", *defines, str(HERE / "misuse.cpp")]
    if "clang" in pathlib.Path(compiler[0]).name:
        command.append("-ferror-limit=0")
    environment = dict(os.environ, LC_ALL="C")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    return done.returncode, done.stdout + done.stderr


def judge(case, code, output):
    """What is wrong with this result; None if nothing is."""
    if not case:
        return "does not compile" if code != 0 else "compiles with warnings" if output.strip() else None
    if code == 0:
        return "compiles"
    if not re.search(CASES[case], output):
        return f"fails without the words /{CASES[case]}/"
    errors = len(re.findall(r"\berror: ", output))
    if case in ONLY_ERRORS and errors != 1:
        return f"ends in {errors} errors"
    return None


def main(arguments):
    if not arguments:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    source = (HERE / "misuse.cpp").read_text()
    sections = set(re.findall(r"#(?:el)?if defined\(CASE_(\w+)\)", source))
    if sections != set(CASES):
        print(f"misuse.cpp and check.py name different cases: {sorted(sections ^ set(CASES))}")
        return 1

    failures = 0
    runs = [[], *groups()]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        library = precompiled(arguments, FLAGS, ["terse/terse.hpp"], folder)
        results = pool.map(lambda cases: compile_cases(arguments, library, cases), runs)
        for cases, (code, output) in zip(runs, results):
            for case in cases or [""]:
                fault = judge(case, code, output)
                print(f"{'FAILED' if fault else 'ok':6}  {case or 'twin'}{': ' + fault if fault else ''}", flush=True)
                if fault:
                    failures += 1
                    print("\n".join("        " + line for line in output.splitlines()[:12]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
