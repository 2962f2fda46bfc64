#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Has a rank of an MPI job come late, or never, to what all ranks do together around their steps, and looks at how the job
ends: by the deadline, with a status that is not 0 and sentences on stderr that name the rank.

mpi_late.py MPIRUN ARGUMENT ... PROGRAM
"""

import concurrent.futures
import os
import re
import resource
import subprocess
import sys
import time

RANKS = 3
DEADLINE = 0.6  # mpi.cpp's
LEAST = 5.0  # Watchdog::least
# See mpi_faults.py.
os.environ["OMPI_MCA_odls_base_sigkill_timeout"] = "0"
os.environ["OMPI_MCA_orte_base_help_aggregate"] = "0"
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
job = [*sys.argv[1:-1], "-n", str(RANKS), sys.argv[-1], "late"]


def run(place, rank, how):
    begin = time.monotonic()
    started = subprocess.Popen([*job, place, str(rank), how], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        said = started.communicate(timeout=15)[1]
        return started.returncode, said, time.monotonic() - begin
    except subprocess.TimeoutExpired:
        started.terminate()  # at which it ends its ranks
        return None, started.communicate()[1], time.monotonic() - begin


def names_culprit(said, culprit, phase):
    """Whether somebody has given up, and all who have were waiting for that rank."""
    found = re.findall(r"\[rank (\d)\] terse: rank \1: waited 600 ms for rank (\d) in phase '(\w+)'", said)
    return found and all(rank != str(culprit) and other == str(culprit) and where == phase for rank, other, where in found)


# Where, who, how; the phase.
polled = [
    ("constructor", 1, "stops", "setup"),
    ("constructor", 0, "sleeps", "setup"),
    ("split", 2, "sleeps", "setup"),
    ("parts", 0, "stops", "setup"),
    ("mailbox", 1, "sleeps", "setup"),
    ("mailbox_end", 0, "stops", "finalize"),
    ("end", 2, "stops", "finalize"),
    ("end", 0, "sleeps", "finalize"),
]
# Within these a rank can only stop, or come late to the first.
calls = ["MPI_Init", "MPI_Comm_split", "MPI_Win_allocate", "MPI_Win_free", "MPI_Finalize"]

failed = False


def punctual():
    """Returns the seconds that a job takes in which no rank is late."""
    status, said, seconds = run("nowhere", 0, "sleeps")
    if status != 0:
        sys.exit(f"a job in which nobody is late ends with status {status}:\n{said}")
    return seconds


def check(place, rank, how, wait, sentence, names):
    """Compares the job with a punctual one. A busy machine only adds to a job's time, so that one in time of five suffices."""
    for _ in range(5):
        baseline = punctual()
        status, said, seconds = run(place, rank, how)
        most = baseline + wait
        if seconds <= most:
            break
    problems = []
    if not status:
        problems.append(f"status {status}")
    if seconds > most:
        problems.append("too late")
    if not names(said):
        problems.append(f"stderr does not say '{sentence}'")
    print(f"{place} {rank} {how}: status {status}, {seconds:.2f} s (nobody late {baseline:.2f} s)", *problems, sep="; ")
    if problems:
        global failed
        failed = True
        print(said)


for place, rank, how, phase in polled:
    check(place, rank, how, DEADLINE + 1, f"waited 600 ms for rank {rank} in phase '{phase}'",
          lambda said: names_culprit(said, rank, phase))


def check_call(call):
    sentence = f"waited {LEAST * 1000:.0f} ms in {call} for one or more ranks"
    check(call, 1, "stops", LEAST + 1 + len(calls), sentence, lambda said: sentence in said)


# All at a time, since they take long and do nothing.
with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
    list(pool.map(check_call, calls))
sys.exit(failed)
