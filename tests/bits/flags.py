#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles flags.cpp with flags that change arithmetic, and looks whether the program says which flag that is. What nvcc makes
of it can't be run here: there the instructions must be those that the probe is there to tell apart.

flags.py SOURCE_ROOT [NVCC]
"""

import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

root = pathlib.Path(sys.argv[1]).resolve()
source = root / "tests/bits/flags.cpp"
cpu = pathlib.Path("/proc/cpuinfo")
fuses = platform.machine() == "aarch64" or (cpu.exists() and re.search(r"\bfma\b", cpu.read_text()) is not None)
wrong = False


def report(good, name, found):
    global wrong
    wrong = wrong or not good
    print(f"{'ok' if good else 'FAILED':6}  {name}{'' if good else ': ' + found}", flush=True)


def build(folder, *command):
    return subprocess.run([*command, "-std=c++20", "-I", root / "include", source], timeout=120, cwd=folder,
                          capture_output=True, text=True)


# What programs with these flags say; None: they don't compile. g++ follows the headers' own word on contraction.
REORDERS = ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"]
CASES = [
    (["-O2"], ""),
    (["-O1", "-march=native", "-ffp-contract=fast"], {"clang++": "-ffp-contract=off", "g++": ""}),
    (["-O1", "-freciprocal-math"], "-freciprocal-math"),
    (["-O1", *REORDERS], "-fassociative-math"),
    (["-fsyntax-only", "-ffast-math"], None),
]
with tempfile.TemporaryDirectory() as folder:
    for compiler in ("g++", "clang++"):
        if not shutil.which(compiler):
            continue
        for flags, expected in CASES:
            if "-march=native" in flags and not fuses:
                continue
            name = " ".join([compiler, *flags])
            built = build(folder, compiler, *flags)
            if expected is None:
                good = built.returncode != 0 and "can't do so under -ffast-math" in built.stderr
                report(good, name, built.stderr or "it compiles")
                continue
            if built.returncode != 0:
                report(False, name, built.stderr)
                continue
            said = subprocess.run(["./a.out"], check=True, timeout=20, cwd=folder, capture_output=True, text=True).stdout
            word = expected[compiler] if isinstance(expected, dict) else expected
            report(word in said if word else said == "", name, said or "it says nothing")
    for nvcc in sys.argv[2:]:
        for flags, there in ((["-fmad=false"], {"mul.rn.f32", "add.rn.f32", "sub.rn.f32", "div.rn.f32", "sqrt.rn.f32"}),
                             (["-use_fast_math"], {"fma.rn.ftz.f32", "div.approx.ftz.f32", "sqrt.approx.ftz.f32"})):
            name = " ".join(["nvcc", *flags])
            built = build(folder, nvcc, "-x", "cu", "--expt-relaxed-constexpr", *flags, "-ptx", "-o", "flags.ptx")
            if built.returncode != 0:
                report(False, name, built.stderr)
                continue
            text = (pathlib.Path(folder) / "flags.ptx").read_text(encoding="utf-8")
            found = set(re.findall(r"\b((?:fma|mul|add|sub|div|sqrt)[a-z.]*\.f32)\b", text))
            report(there == found if "-fmad=false" in flags else there <= found, name, " ".join(sorted(found)))
sys.exit(wrong)
