#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the picture of tools/compare shows: the frontier by its definition, on points with ties; and the table in docs/choosing.md, read and
written again.

Usage: compare.py ROOT
"""

import importlib.machinery
import importlib.util
import pathlib
import random
import re
import sys

sys.dont_write_bytecode = True  # beside the script
root = pathlib.Path(sys.argv[1])
loader = importlib.machinery.SourceFileLoader("compare", str(root / "tools/compare"))
compare = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare", loader))
loader.exec_module(compare)


def expect(condition, what):
    if not condition:
        sys.exit(what)


def check_frontier(points):
    front = [points[k] for k in compare.frontier(points)]
    expect(len(front) == len(compare.frontier(points)) == len(set(front)), f"a place is twice in the frontier of {points}")
    expect(front == sorted(front), f"the frontier of {points} is not from the cheapest to the best: {front}")
    for one in points:
        beaten = any(other != one and other[0] <= one[0] and other[1] >= one[1] for other in points)
        expect((one in front) != beaten, f"{one} of {points}, beaten: {beaten}, frontier: {front}")


def main():
    draw = random.Random(1)
    check_frontier([])
    for _ in range(300):
        check_frontier([(draw.randrange(6), draw.randrange(6)) for _ in range(draw.randrange(1, 12))])
    page = (root / "docs/choosing.md").read_text()
    rows = compare.rows_in(page)
    methods = sorted(method for family in compare.FAMILIES.values() for method in family)
    in_tables = set(re.findall(r"^\| ([a-z0-9-]+) \|", page, re.MULTILINE)) & set(methods)
    expect(in_tables == set(methods), f"no table of docs/choosing.md has a row of {sorted(set(methods) - in_tables)}")
    expect(len({row["method"] for row in rows}) == len(rows), "a method has two rows in one table of docs/choosing.md")
    expect(compare.table(rows) in page, "the table in docs/choosing.md changes when it is read and written again")


main()
