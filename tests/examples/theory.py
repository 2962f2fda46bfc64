#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the experiment `theory` in short runs: each method's mean squared gradient norm falls as the inverse root of its steps and its ranks,
and momentum moves the rest point of DmSGD as its closed form says, and not that of DecentLaM.

Usage: theory.py ROOT BUILD
"""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
root, build = map(pathlib.Path, sys.argv[1:])
sys.path.insert(0, str(root / "examples" / "evidence"))
from theory import METHODS, PIPELINES, norms, slope  # noqa: E402


def main():
    faults = []

    def expect(condition, what):
        if not condition:
            faults.append(what)

    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([root / "examples/evidence/run", "theory", "--smoke", "--build", build, "--out", folder])
        if done.returncode != 0:
            return done.returncode
        rows = [json.loads(line) for line in (pathlib.Path(folder) / "theory-smoke" / "rows.jsonl").read_text().splitlines()]
    seen = {}
    for row in rows:
        key, lines = row["key"], row["lines"]
        if "beta" in key:
            rest, beta = lines[-1]["methods"], key["beta"]
            plain, lam, momentum = (rest[name]["limit"] for name in ("dsgd", "decentlam", "dmsgd"))
            expect(abs(lam / plain - 1) < 1e-6, f"DecentLaM rests at {lam}, D-SGD at {plain}")
            squared = (momentum / plain * (1 - beta)) ** 2
            expect(abs(squared - 1) < 0.1, f"the square of DmSGD's bias grows by {squared} / (1 - beta)^2")
            continue
        run = seen[key["method"]] = norms(lines)
        fall = slope(run, 4)
        expect(-0.6 < fall < -0.4, f"{key['method']}: the slope in steps is {fall:.3f}")
        if key["method"] in METHODS:
            gain = (run[1, 4096] / run[4, 4096]) ** 2
            expect(gain > 0.7 * 4, f"{key['method']}: 4 ranks need {gain:.2f} times fewer steps")
    expect(set(seen) == {*METHODS, *PIPELINES}, f"rows of {sorted(seen)}")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


sys.exit(main())
