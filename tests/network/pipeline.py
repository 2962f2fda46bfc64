#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/network/pipeline on two stages: a link holds exact messages to its rate, and predictions know it. Needs root and iproute2.
Before, without either: tests of the program take as many examples as were asked for.

Usage: pipeline.py ROOT PROGRAM
"""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # beside the scripts
FOLDER = pathlib.Path(sys.argv[1]).resolve() / "bench/network"
sys.path.insert(0, str(FOLDER))
from links import why_not  # noqa: E402

line = subprocess.run([sys.argv[2], "--stages", "1", "--method", "exact", "--epochs", "1", "--epochs-before", "0", "--examples", "64",
                       "--held-out", "3", "--quiet", "--json", "-"], check=True, stdout=subprocess.PIPE, timeout=60).stdout
right = 3 * json.loads(line)["runs"][0]["epochs"][0]["test_accuracy"]
if abs(right - round(right)) > 1e-6:
    sys.exit(f"of 3 examples {right} were right")
if reason := why_not():
    print(reason)
    sys.exit(77)


def measure(methods, *more):
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([FOLDER / "pipeline", "--program", sys.argv[2], "--stages", "2", "--micro-batch", "16", "--rounds", "1", "--rates", "4",
                        "--methods", methods, "--out", out, *more, "--", "--task", "pictures"],
                       check=True, stdout=subprocess.DEVNULL, timeout=100)
        known = json.loads((pathlib.Path(out) / "pipeline.json").read_text())["measured"]["4"]["methods"]
        return [known[name] for name in known]


exact, direct = measure("exact,direct:4/8", "--batch", "64", "--steps", "4")
(grid,) = measure("exact", "--batch", "64", "--steps", "2", "--replicas", "2")
# Four messages of 8 kB there, and four back. The first packet of each way, 576 bytes, may pass before its time.
wire = 8 * exact["forward"] * 8e-6 / 4
averaged = (784 * 256 + 256 + 256 * 128 + 128) * 32e-6 / 4  # parameters of the first stage's two layers
for what, passed in ((f"messages of {exact['forward']} B", 8192 <= exact["forward"] < 8600),
                     (f"steps of {exact['seconds']} s, whose messages take {wire} s", exact["seconds"][0] > 0.96 * wire),
                     (f"predictions of {exact['predicted']} s", exact["predicted"][0] > wire),
                     (f"a step of {grid['seconds']} s with replicas, whose pipeline takes {grid['makespan_alone']} s alone and whose "
                      f"averaging {grid['averaging']} s",
                      grid["makespan_alone"][0] > wire / 2 and 0.96 * averaged < grid["averaging"][0] < grid["seconds"][0]),
                     (f"steps of {direct['seconds']} s with a fifth of the bytes", direct["seconds"][0] < 0.7 * exact["seconds"][0])):
    if not passed:
        sys.exit(f"{what}; exact {exact}, direct {direct}")
