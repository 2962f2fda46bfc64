#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the picture of tools/compare shows: the frontier by its definition, on points with ties; and the table in docs/choosing.md, read and
written again; and runs whose rates are tuned, with a trainer whose accuracy is known: the best rate is taken, nothing is run twice.

Usage: compare.py ROOT
"""

import argparse
import importlib.machinery
import importlib.util
import math
import pathlib
import random
import re
import sys
import tempfile

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


# Best at 3.4 times the standard rate of the SGD family, but seeds other than 1 diverge above 3 times it. Writes a word to `count` for each run.
TRAINER = """#!/usr/bin/env python3
import json, pathlib, sys
if sys.argv[1] == "--help":
    print("  --outer-learning-rate RATE  of the outer step: slowmo [1]")
    for option, default in ("", 0.001), ("lamb-", 0.01), ("sgd-", 0.05), ("sign-", 0.0003):
        print(f"  --{option}learning-rate RATE   highest rate of some [{default}]")
    print("\\nOptimizers\\n" + "".join(f"  {name}  text\\n" for name in METHODS) + "\\n  Known as well")
    sys.exit()
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with (pathlib.Path(__file__).parent / "count").open("a") as file:
    file.write("x")
rate = float(given.get("--sgd-learning-rate", 0.05))
if rate > 0.15 and given["--seed"] != "1":
    sys.exit("the gradient of rank 0 is not finite")
if rate > 0.3:
    sys.exit("the packet from rank 1 can't be decoded with this rank's own parameters: the two differ by more")  # of a lattice
accuracy = 0.9 - abs(rate - 0.17) + 0.001 * int(given["--seed"])
run = {"optimizer": given["--optimizers"], "test_accuracy": accuracy, "train_loss": []}
pathlib.Path(given["--json"]).write_text(json.dumps({"runs": [run]}))
"""


def check_tuning(methods):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "build_trainer").write_text("#!/bin/sh\n")
        (folder / "train").write_text(TRAINER.replace("METHODS", repr(methods)))
        for program in "build_trainer", "train":
            (folder / program).chmod(0o755)
        compare.HERE, compare.TRAINER = folder, folder / "train"
        options = argparse.Namespace(methods="d-sgd", seeds="1,2,3", rates=[0.5, 1, 2, 4], ranks=2, epochs=1, rest=[], out=folder / "out")

        def count():
            return len((folder / "count").read_text())

        runs = compare.train(options)
        expect([run["rate"] for run in runs] == [2, 2], f"the best rate is 2 times the standard one: {runs}")
        expect([round(run["test_accuracy"], 6) for run in runs] == [0.832, 0.833], f"seeds 2 and 3 measure: {runs}")
        expect(count() == 9, f"five rates, and two seeds at 4 and 2 times, are nine runs, not {count()}")
        file = folder / "out.runs.jsonl"
        file.write_text(file.read_text()[:-9])  # interrupted while the last run was written
        expect(compare.train(options) == runs, "a resumed comparison has other runs")
        expect(count() == 10, f"one run was lost, and {count() - 9} were repeated")
        options.rates = []
        expect([run["rate"] for run in compare.train(options)] == [1, 1, 1], "without --rates each seed measures at the standard rate")
        expect(count() == 12, f"seeds 2 and 3 at the standard rate are two runs more, not {count() - 10}")


def check_ends():
    for best, nearest, tried in [(1.2, 1, 4), (8, 8, 6), (0.125, 0.125, 7), (100, 64, 8)]:
        asked = []

        def accuracy(factor):
            asked.append(factor)
            return -abs(math.log(factor / best))

        found = compare.from_the_best(accuracy, [0.5, 1, 2, 4])[0]
        expect(found == nearest, f"{found} is taken for {best}, of {asked}")
        expect(len(asked) == len(set(asked)) == tried, f"{asked} are tried for {best}, not {tried}")


def main():
    draw = random.Random(1)
    check_frontier([])
    for _ in range(300):
        check_frontier([(draw.randrange(6), draw.randrange(6)) for _ in range(draw.randrange(1, 12))])
    methods = sorted(method for family in compare.FAMILIES.values() for method in family)
    expect(sorted(compare.CHOSEN + compare.SELDOM) == methods, "SELDOM has names that are no methods")
    for page, named in ("docs/choosing.md", compare.CHOSEN), ("docs/also-expressible.md", compare.SELDOM):
        text = (root / page).read_text()
        rows = compare.rows_in(text)
        expect(sorted(row["method"] for row in rows) == sorted(named), f"{page} has rows of other methods than its part of tools/compare's")
        expect(compare.table(rows) in text, f"the table in {page} changes when it is read and written again")
        plain = [{**row, "rate": 1} for row in rows]
        expect(compare.rows_in("text\n" + compare.table(plain)) == plain, "a table without rates changes when it is read and written again")
    check_ends()
    check_tuning(methods)


main()
