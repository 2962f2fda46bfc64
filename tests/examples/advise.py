#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries the advisor: on a network that is faster than anything, on one that is slower, on the threads' own, and with input
that can't be.

advise.py ADVISOR
"""

import json
import subprocess
import sys
import tempfile

advisor = sys.argv[1]
TINY = ["--ranks", "2", "--segments", "hidden:64x48,bias:64,head:10x64"]


def run(*words, fails=False):
    done = subprocess.run([advisor, *words], capture_output=True, text=True, timeout=60, check=False)
    if (done.returncode != 0) != fails:
        sys.exit(f"{' '.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stderr if fails else done.stdout


def expect(text, *parts):
    for part in parts:
        if part not in text:
            sys.exit(f"expected '{part}' in:\n{text}")


def rows(text):
    """Names of methods in the table's order."""
    lines = text.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("method")) + 1
    return [line.split()[0] for line in lines[first:lines.index("", first)]]


# Local passes take well below the gradient's time, and below a part in 20 of it.
fast = run(*TINY, "--gradient-seconds", "1", "--given-network", "0,1000000000")
expect(fast, "Sending less will not pay here")
# 20 ms of messages beside a second, nearly all of which the bits save.
expect(run(*TINY, "--gradient-seconds", "1", "--given-network", "0,6", "--methods", "1-bit-adam"), "less than 5 % faster")
slow = run(*TINY, "--gradient-seconds", "0.001", "--given-network", "1,0.1")
expect(slow, "Sending less pays here")
if len(rows(slow)) != 25 or rows(slow).index("1-bit-adam") > rows(slow).index("adam"):
    sys.exit(f"wrong rows:\n{slow}")

# The wire's own time: 2 batches of half of 4 bytes an element each way, 1 ms a batch, and packets' headers.
advice = json.loads(run(*TINY, "--gradient-seconds", "0.25", "--given-network", "1,8", "--methods", "adam", "--json"))
adam, overlapped = advice["methods"]
payload = 4 * (64 * 48 + 64 + 640)
if not payload <= adam["bytes"] <= payload + 200:
    sys.exit(f"adam sends {adam['bytes']} bytes, expected {payload} and headers")
# What goes in may be a unit of 64 elements more than what goes out.
if not 0 <= adam["wire"] - (2e-3 + adam["bytes"] / 1e6) <= 2 * 64 * 4 / 1e6:
    sys.exit(f"adam's messages take {adam['wire']} s")
if abs(adam["seconds"] - (0.25 + adam["local"] + adam["wire"])) > 1e-9:
    sys.exit(f"adam takes {adam['seconds']} s")
if overlapped["method"] != "adam+overlap" or overlapped["seconds"] > adam["seconds"]:
    sys.exit(f"overlap: {overlapped}")
# Parameters, gradient, two moments and packets of one copy and more.
if not 5 * payload <= adam["memory"] <= 12 * payload + 100_000:
    sys.exit(f"adam takes {adam['memory']} bytes of memory")

alone = run("--elements", "1000", "--ranks", "1", "--gradient-seconds", "0")
expect(alone, "nothing to compress")
if len(alone.splitlines()) != 1:
    sys.exit(f"one rank alone:\n{alone}")
if json.loads(run("--elements", "1000", "--ranks", "1", "--gradient-seconds", "0", "--methods", "adam", "--json"))["bandwidth"] is not None:
    sys.exit("a rank alone has links")
expect(run("--help"), "--given-network")
given = ["--gradient-seconds", "0.001", "--given-network", "0.1,16040"]
# Full precision alone, and a model whose matrices are no smaller as factors.
for words in (["--methods", "adam", *TINY], ["--methods", "power-sgd", "--ranks", "2", "--segments", "a:2x2"]):
    expect(run(*words, *given), "there is nothing to compare", "latency 0.1 ms, 16 Gbit/s\n")
expect(run("--elements", "1e3", "--ranks", "2", "--methods", "adam", *given), "2 ranks; 1000 parameters in 2 segments; gradient 1 ms")
with tempfile.NamedTemporaryFile("w", suffix=".txt") as layout:
    layout.write("a : 3x4  # a comment\n\n b:5\n")
    layout.flush()
    for words in (["--segments", "a: 3 x4, b :5"], ["--layout", layout.name]):
        expect(run(*words, "--ranks", "2", "--methods", "adam", *given), "17 parameters in 2 segments")
measured = run(*TINY, "--gradient-seconds", "0.001", "--methods", "1-bit-adam")
expect(measured, "links, measured", "bit/s\n")  # to one rank, where there is no other
if sorted(rows(measured)) != ["1-bit-adam", "1-bit-adam+overlap", "adam", "adam+overlap"]:
    sys.exit(f"wrong rows:\n{measured}")

for words, complaint in (
    (["--elements", "1000"], "--gradient-seconds is missing"),
    (["--gradient-seconds", "1"], "give the layout once"),
    (["--gradient-seconds", "nan", "--elements", "1000"], "'nan' is not a number of seconds"),
    (["--gradient-seconds", "1", "--elements", "10", "--elements", "10"], "give the layout once"),
    (["--gradient-seconds", "1", "--segments", "a:3x0"], "'0' is not a dimension"),
    (["--gradient-seconds", "1", "--segments", "a:3x"], "'' is not a dimension"),
    (["--gradient-seconds", "1", "--segments", "a:3,"], "'' is not a segment"),
    (["--gradient-seconds", "1", "--segments", "a"], "is not a segment"),
    (["--gradient-seconds", "1", "--segments", " :3"], "is not a segment"),
    (["--gradient-seconds", "1", "--elements", "1.5"], "'1.5' is not a whole number of parameters"),
    (["--gradient-seconds", "1", "--elements", "1e16"], "'1e16' is not a whole number of parameters"),
    (["--gradient-seconds", "1", "--layout", "/nonexistent"], "can't read /nonexistent"),
    (["--gradient-seconds", "1", "--elements", "10", "--given-network", "1"], "0.1,1000"),
    (["--gradient-seconds", "1", "--elements", "10", "--given-network", "1,0"], "a bandwidth in Mbit/s, above 0"),
    (["--gradient-seconds", "1", "--elements", "10", "--methods", "adam,sgd"], "'sgd' is none of adam, lamb"),
    (["--gradient-seconds"], "needs a value"),
    (["--fast"], "there is no option --fast"),
):
    expect(run(*words, fails=True), complaint)
