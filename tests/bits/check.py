#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds threads.cpp with every compiler and set of flags and compares what the programs print; then with a program
given on the command line (MPI's).

check.py [--all] SOURCE_ROOT [PROGRAM ARGUMENT ...]

Without --all, g++ builds at -O3 for this machine and, where no program is given, clang++ at -O2 for any; with it, each
does at both levels for both. Where libc++ is installed, clang++ builds with that, too.
"""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

arguments = [argument for argument in sys.argv[1:] if argument != "--all"]
root = arguments[0]
other = arguments[1:]
compilers = [c for c in ("g++", "clang++") if shutil.which(c)]
cases = [(compilers[0], ("-O3", ["-march=native"])), (compilers[-1], ("-O2", []))]
if other:
    cases = cases[:1]
if "--all" in sys.argv[1:]:
    cases = [*itertools.product(compilers, itertools.product(("-O2", "-O3"), ([], ["-march=native"])))]
if "clang++" in compilers and subprocess.run(["clang++", "-stdlib=libc++", "-x", "c++", "-E", "-"], input="#include <version>\n",
                                             text=True, capture_output=True, timeout=100, check=False).returncode == 0:
    cases.append(("clang++", ("-O0", ["-stdlib=libc++"])))
else:
    print("left out: clang++ with libc++, which is not installed")


def build_and_run(case):
    compiler, (level, machine) = case
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "bits")
        command = [compiler, "-std=c++20", level, *machine, "-fno-math-errno", "-pthread",
                   "-I", os.path.join(root, "include"), "-I", os.path.join(root, "tests"),
                   os.path.join(root, "tests/bits/threads.cpp"), "-o", program]
        subprocess.run(command, check=True, timeout=300)
        printed = subprocess.run([program], check=True, timeout=100, capture_output=True, text=True).stdout
    return " ".join([compiler, level, *machine]), printed


with ThreadPoolExecutor(os.cpu_count()) as pool:
    results = list(pool.map(build_and_run, cases))
if other:
    results.append((" ".join(other), subprocess.run(other, check=True, timeout=100, capture_output=True, text=True).stdout))

name, expected = results[0]
print(expected, end="")
failed = len(expected.splitlines()) != 7
for case, printed in results:
    same = printed == expected
    failed = failed or not same
    print("same bits" if same else "OTHER BITS", "-", case)
    if not same:
        print(printed, end="")
sys.exit(failed)
