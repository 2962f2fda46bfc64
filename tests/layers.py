#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the includes of all headers against the table of layers in docs/architecture.md: each goes to a lower layer or
stays in its module, which is a row of the table. Hosts read no header of a device. Bodies that are compiled once (.ipp) know no
executor, stand in src/, and their header includes them. And finds calls of functions that are lost in device code.

layers.py ROOT
"""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
include = root / "include"
modules = {}  # a folder or a header: (layer, row)
for row, line in enumerate((root / "docs" / "architecture.md").read_text().splitlines()):
    if layer := re.match(r"\| (\d+) \| (.*?) \|", line):
        for path in re.findall(r"\(\.\./include/(terse/[^)]+)\)", layer[2]):
            modules[path] = (int(layer[1]), row)
            if not (include / path).exists():
                sys.exit(f"docs/architecture.md names {path}, which is not there")
if len(modules) < 10:
    sys.exit("found no table of layers in docs/architecture.md")


# Headers of kernels and of device memory. Laws try both sides; pipeline/grid.hpp is of ranks.
DEVICE = re.compile(r"^terse/device/|/(device|nccl\w*)\.hpp$|\.cuh$|^terse/laws/")


def module_of(header):
    for path in (re.sub(r"\.ipp$", ".hpp", header), *map(str, pathlib.PurePosixPath(header).parents)):
        if path in modules:
            return modules[path]
    sys.exit(f"{header} belongs to no module of docs/architecture.md")


def includes_of(header):
    return re.findall(r'^#\s*include\s*["<](terse/[^">]+)[">]', (include / header).read_text(), re.MULTILINE)


def reaches(header, wanted, seen):
    """Whether `header` includes `wanted` in the end."""
    seen.add(header)
    return header == wanted or any(reaches(one, wanted, seen) for one in includes_of(header) if one not in seen)


wrong, arrows = 0, 0
sources = "".join(path.read_text() for path in (root / "src").glob("*.cpp"))
for file in sorted(path for path in include.rglob("*") if path.is_file()):
    header = file.relative_to(include).as_posix()
    layer, row = module_of(header)
    text = file.read_text()
    # nvcc 13.0 takes them in device code without a word, and leaves out the call.
    if header != "terse/core/ones.hpp" and (lost := re.search(r"std::(popcount|count[lr]_(zero|one))\b", text)):
        print(f"{header} calls {lost[0]}, which is lost in device code: terse/core/ones.hpp has what is not")
        wrong += 1
    # In generic lambdas it forgets the names, so that values go to the first members.
    if named := re.search(r"^ *\w[\w.\[\]>()-]* = \{\.\w+", text, re.MULTILINE):
        print(f"{header} assigns {named[0].strip()} ..., which nvcc may take for another member: assign each by itself")
        wrong += 1
    if header.endswith(".ipp"):
        own = header[:-4] + ".hpp"
        for other in includes_of(header):
            # Whoever includes that one first comes to the body before it.
            if other != own and reaches(other, own, {header}):
                print(f"{header} includes {other}, which includes {own}")
                wrong += 1
        # A body for a unit's instruction set would be slow in the core, or illegal where it runs.
        if executor := re.search(r"executor::|TERSE_LANES|TERSE_LAST_LANES|TERSE_INSTRUCTIONS|TERSE_NUMERICS", text):
            print(f"{header} names {executor[0]}: what depends on a unit's flags stays in a header")
            wrong += 1
        if f'#include "{header}"' not in sources:
            print(f"no file of src/ includes {header}")
            wrong += 1
        if f'#ifndef TERSE_SEPARATE\n#include "{header}"\n#endif\n' not in file.with_suffix(".hpp").read_text():
            print(f"{own} doesn't include {header} unless TERSE_SEPARATE is defined")
            wrong += 1
    for other in includes_of(header):
        arrows += 1
        other_layer, other_row = module_of(other)
        if other_row != row and other_layer >= layer:
            print(f"{header} (layer {layer}) includes {other} (layer {other_layer})")
            wrong += 1
        if DEVICE.search(other) and not DEVICE.search(header):
            print(f"{header} includes {other}, and hosts read no header of a device: it belongs into terse/device.hpp")
            wrong += 1
if arrows == 0:
    sys.exit("found no includes")
sys.exit(1 if wrong else 0)
