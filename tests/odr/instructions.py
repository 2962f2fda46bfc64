#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A core for any x86-64 with units for two other instruction sets: the program links in both orders and trains to the same bits,
and no function of the core that a unit may take in the place of its own names an executor, whose loops would be slow there or
illegal elsewhere. A core of another ABI doesn't link, and the linker says its name.

Usage: instructions.py ROOT COMPILER [FLAG ...]
"""

import pathlib
import re
import subprocess
import sys
import tempfile

root, compiler = pathlib.Path(sys.argv[1]), sys.argv[2:]
flags = pathlib.Path("/proc/cpuinfo").read_text().split()


def run(*command, fails=False):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    if (done.returncode != 0) != fails:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def weak(file):
    return {line.split(maxsplit=2)[2] for line in run("nm", "-C", "--defined-only", file).splitlines()
            if line.split()[1] in "WVu"}


with tempfile.TemporaryDirectory() as folder:
    def compiled(source, name, *more):
        made = pathlib.Path(folder) / f"{name}.o"
        run(*compiler, "-std=c++20", "-O1", "-fno-math-errno", "-DTERSE_SEPARATE", f"-I{root / 'include'}", *more, "-c", root / source,
            "-o", made)
        return made

    core = compiled("src/terse.cpp", "core", "-march=x86-64")
    one = compiled("tests/odr/one.cpp", "one", "-march=x86-64-v3")
    two = compiled("tests/odr/two.cpp", "two", "-march=x86-64-v4")
    common = weak(core) & (weak(one) | weak(two))
    if not any("terse::Range" in name for name in common):
        sys.exit("nm shows no function that both have: this test would find nothing")
    if lost := [name for name in weak(core) if re.search(r"executor::|terse::detail::(sweep|reduce_unit)|Packets", name)]:
        sys.exit("the core has code that belongs to an instruction set: " + "; ".join(lost))
    program = pathlib.Path(folder) / "program"
    for order in ([core, one, two], [two, one, core]):
        run(*compiler, "-pthread", *order, "-o", program)
        if "avx512bw" in flags and "avx512vl" in flags and "avx2" in flags:
            run(program)
    # Its string has another layout. Only the linker can know.
    other = compiled("src/terse.cpp", "other", "-O0", "-D_GLIBCXX_USE_CXX11_ABI=0")
    if "terse_core_" not in (said := run(*compiler, "-pthread", other, one, two, "-o", program, fails=True)) or "cxx11" not in said:
        sys.exit(f"a core of another ABI links, or the linker doesn't name it:\n{said}")
