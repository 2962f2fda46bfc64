#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills pipelines over MPI in many ways and looks at how the jobs end: at once or by the deadline, with a status that is
not 0 and a sentence on stderr that names stage and cause.

mpi_faults.py MPIRUN ARGUMENT ... PROGRAM
"""

import os
import re
import resource
import subprocess
import sys
import time

RANKS = 4
DEADLINE = 0.4  # mpi.cpp's
# What would count as waiting and is not ours: Open MPI's second between SIGTERM and SIGKILL, its gathering of help
# messages of several ranks, and writing core files.
os.environ["OMPI_MCA_odls_base_sigkill_timeout"] = "0"
os.environ["OMPI_MCA_orte_base_help_aggregate"] = "0"
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
job = [*sys.argv[1:-1], "-n", str(RANKS), sys.argv[-1], "fault"]


def run(fault, rank, at):
    begin = time.monotonic()
    done = subprocess.run([*job, fault, str(rank), str(at)], timeout=60, capture_output=True, text=True)
    return done.returncode, done.stderr, time.monotonic() - begin


# Fault, rank and pass (ten make a step); what stderr says of it. Without a sentence: the others' own, of whom each names
# the neighbour on the culprit's side.
OTHERS = "others"
# Of whoever is at the end and alone there it is as true that it has waited.
ALONE = r"\[rank {0}\] terse: rank {0}: waited 400 ms for rank \d in phase 'finalize'"
cases = [
    *(("throws", rank, at, rf"\[rank {rank}\] out of memory")
      for rank, at in ((0, 12), (1, 0), (2, 17), (3, 15), (0, 19), (3, 19))),
    ("throws_int", 2, 13, r"process rank 2 .*exited on signal 6"),
    *(("stalls", rank, at, OTHERS) for rank, at in ((0, 10), (1, 12), (2, 16), (3, 19))),
    ("leaves", 2, 0, OTHERS),
    ("exits", 1, 13, r"Process name: \[\[\d+,1\],1\]\s*Exit code: +3"),
    ("exits_well", 3, 14, r"process rank 3 .*exiting improperly"),
    ("killed", 2, 11, r"process rank 2 .*exited on signal 9"),
    ("other_ids", 2, 0, r"\[rank 2\] terse: rank 2, step 2: stage 1 and this stage work on different examples in "
                        r"micro-batch 2: other ids.*All stages are given the same ids"),
    ("twice", 1, 0, r"\[rank 1\] terse: rank 1, step 2: example \d+ occurs twice in micro-batch 2"),
]


def names_culprit(said, culprit):
    """Whether somebody has given up, and all who have were waiting for their neighbour on that side."""
    found = re.findall(r"\[rank (\d)\] terse: rank \1: waited 400 ms for rank (\d) in phase '(?:forward|backward)'", said)
    return found and all(int(other) == int(rank) + (1 if culprit > int(rank) else -1) for rank, other in found)


# What it takes to start and end a job; the slower of two.
baseline = 0.0
for _ in range(2):
    status, said, seconds = run("none", 0, 0)
    if status != 0:
        sys.exit(f"a job without faults ends with status {status}:\n{said}")
    baseline = max(baseline, seconds)

failed = False
for fault, rank, at, sentence in cases:
    # A machine that does something else adds to the time and takes nothing from it: a job that ends late each time waits.
    for _ in range(3):
        status, said, seconds = run(fault, rank, at)
        if seconds <= baseline + DEADLINE + 1:
            break
    problems = []
    if status == 0:
        problems.append("status 0")
    if seconds > baseline + DEADLINE + 1:
        problems.append("too late")
    if sentence == OTHERS:
        named = names_culprit(said, rank) or (fault == "leaves" and re.search(ALONE.format(rank), said))
    else:
        named = re.search(sentence, said, re.DOTALL)
    if not named:
        problems.append(f"stderr does not say '{sentence}'")
    print(f"{fault} {rank} {at}: status {status}, {seconds:.2f} s (without a fault {baseline:.2f} s)", *problems, sep="; ")
    if problems:
        failed = True
        print(said)
sys.exit(failed)
