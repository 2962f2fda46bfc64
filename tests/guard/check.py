#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Guards what a step costs, without a clock: instructions for each element, and streams of n floats that a step fetches from
memory, both as valgrind counts them.

check.py PROGRAM COMPILER [--update]    COMPILER is such as clang-14; of one without figures the streams alone are looked at

A figure may be 3 % above the one here. Who makes steps cheaper puts the new ones here: --update prints them.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOM = 1.03
ELEMENTS = 1 << 15  # 128 KiB an array, in twice the cache
CACHE = ("--cache-sim=yes", "--D1=8192,8,64", "--LL=65536,16,64")
# Lines fetched, in n floats: those of one rank, which is its own chunk's owner, too.
STREAMS = {"adam": 8.27, "one-bit-adam": 7.50, "one-bit-adam-blocks": 7.42}
# For each element and step, of programs without instructions beyond the architecture's first.
INSTRUCTIONS = {
    "clang-14": {"adam": 17.5, "one-bit-adam": 35.4, "one-bit-adam-blocks": 37.5},
    "gcc-12": {"adam": 19.5, "one-bit-adam": 38.3, "one-bit-adam-blocks": 38.7},
}


def counted(program, steps, method, options):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out"
        run = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *options, program, str(steps), str(ELEMENTS), method],
            capture_output=True, text=True, timeout=200, check=False)
        if run.returncode != 0:
            sys.exit(f"valgrind ended with status {run.returncode}:\n{run.stderr}")
        text = out.read_text()
    events = re.search(r"^events: (.*)$", text, re.MULTILINE)[1].split()
    totals = [int(number) for number in re.search(r"^(?:summary|totals): (.*)$", text, re.MULTILINE)[1].split()]
    return dict(zip(events, totals))


def a_step(program, method, events, options=()):
    """What one more step counts, of those that follow a few others."""
    few, more = 2, 6
    counts = [counted(program, steps, method, options) for steps in (few, more)]
    return sum(counts[1][event] - counts[0][event] for event in events) / (more - few)


def main(arguments):
    program, compiler = arguments[:2]
    if shutil.which("valgrind") is None:
        print("valgrind isn't installed")
        return 77
    wrong = 0
    for method, most in STREAMS.items():
        lines = a_step(program, method, ("DLmr", "DLmw"), CACHE)
        wrong += judged(f"{method}: streams fetched", lines * 16 / ELEMENTS, most)
    for method, most in INSTRUCTIONS.get(compiler, dict.fromkeys(STREAMS)).items():
        instructions = a_step(program, method, ("Ir",)) / ELEMENTS
        wrong += judged(f"{method}: instructions an element, {compiler}", instructions, most)
    return "what a step costs has grown" if wrong and "--update" not in arguments else 0


def judged(what, found, most):
    print(f"{what}: {found:.3f}" + ("" if most is None else f", at most {most * ROOM:.3f}"), flush=True)
    return most is not None and found > most * ROOM


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
