#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/network: namespaces are removed however the program ends, on a stand-in for `ip`; figures come out of the table as
they should. With root and iproute2: links hold their bandwidth.

Usage: check.py ROOT
"""

import importlib.machinery
import importlib.util
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # beside the scripts
FOLDER = pathlib.Path(sys.argv[1]).resolve() / "bench/network"
sys.path.insert(0, str(FOLDER))
import links  # noqa: E402

# Keeps account of namespaces as files, and says of one, when it is asked first, that a process is in it.
IP = """#!/bin/sh
case "$1 $2" in
"netns add") touch "$STATE/$3" ;;
"netns delete") rm "$STATE/$3" ;;
"netns pids") [ "$3" = "${3%-1}" ] || [ -e "$STATE/../asked" ] || { touch "$STATE/../asked"; cat "$STATE/pid"; } ;;
esac
"""
PROGRAM = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from links import Links, ended_by_signals
with ended_by_signals(), Links(3) as links:
    inside = subprocess.Popen(["sleep", "60"])
    open(sys.argv[2] + "/pid", "w").write(str(inside.pid))
    print("made", flush=True)
    time.sleep(60 if sys.argv[3] == "stay" else 0)
"""


def script(name):
    """A program of bench/network as a module."""
    loader = importlib.machinery.SourceFileLoader(f"network_{name}", str(FOLDER / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def expect(condition, what):
    if not condition:
        sys.exit(what)


def alive(pid):
    """Not of those that have ended, and whom nobody has waited for."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def check_removal(number):
    """Of what a program has made that ends by a signal, or by itself."""
    with tempfile.TemporaryDirectory() as folder:
        state = pathlib.Path(folder) / "state"
        state.mkdir()
        for name, text in (("ip", IP), ("tc", "#!/bin/sh\n")):
            (pathlib.Path(folder) / name).write_text(text)
            (pathlib.Path(folder) / name).chmod(0o755)
        environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", STATE=str(state))
        program = subprocess.Popen([sys.executable, "-B", "-c", PROGRAM, FOLDER, state, "stay" if number else "end"],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
                                   start_new_session=True)
        expect(program.stdout.readline() == "made\n", "the stand-in does not serve")
        if number:
            namespaces = sorted(path.name.rsplit("-", 1)[1] for path in state.iterdir() if path.name != "pid")
            expect(namespaces == ["0", "1", "2", "switch"], f"made are {namespaces}")
            # To all that a terminal would send it to.
            os.killpg(program.pid, number)
        program.communicate(timeout=20)
        inside = int((state / "pid").read_text())
        end = time.monotonic() + (20 if number == signal.SIGKILL else 0)
        left = None
        while left != [] or alive(inside):
            left = [path.name for path in state.iterdir() if path.name != "pid"]
            expect((not left and not alive(inside)) or time.monotonic() < end, f"signal {number} leaves {left}, or a process in them")
            time.sleep(0.05)


def check_table():
    run = script("run")
    text = run.table({100.0: {"adam": {"seconds": [9, 2, 1], "gradient": [0.5, 0.5, 4], "bytes": 10_000_000},
                              "ddp": {"seconds": [4, 5, 3], "gradient": []}}})
    expect("| 100 | adam | 2.000 | 9.000 | 0.500 | 10.00 | 0.800 | 2.50 | 1.000 | 0.500 |" in text, text)
    expect("| 100 | ddp | 4.000 | 5.000 | – | – | – | – | 2.000 | 1.000 |" in text, text)
    expect(run.dense_bytes("perceptron/2048", 4) == 60_125_244, f"{run.dense_bytes('perceptron/2048', 4)} bytes")
    text = script("pipeline").table({"measured": {"ratio:10": {"megabits": 8.2, "load": [0.5], "methods": {
        "exact": {"forward": 122_930, "backward": 122_920, "seconds": [2, 1.5, 9], "predicted": [1.6, 1.25, 1.7]},
        "direct 4/8": {"forward": 16_370, "backward": 31_720, "seconds": [0.5], "predicted": [0.4]}}}}})
    expect("| 8.2 | exact | 122.9 | 122.9 | 2.000 | 1.500 | 9.000 | 1.600 | 1.25 | 1.00 |" in text, text)
    expect("| 8.2 | direct 4/8 | 16.4 | 31.7 | 0.500 | 0.500 | 0.500 | 0.400 | 1.25 | 4.00 |" in text, text)


def check_bandwidth():
    """A message after an idle moment takes bytes / bandwidth. A loaded machine can only delay it, so that the fastest of five counts."""
    wire = script("wire")
    with links.ended_by_signals(), links.Links(2) as two:
        for megabits, size in ((4, 8192), (8, 65536), (100, 65536)):
            two.hold_to(megabits)
            wanted, least = size * 8e-6 / megabits, min(wire.transfers(two, size, 5))
            expect(0.93 * wanted < least < 1.1 * wanted + 0.01, f"{size} bytes at {megabits} Mbit/s took {least} s, not {wanted} s")


for one in (0, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL):
    check_removal(one)
check_table()
if reason := links.why_not():
    print(f"bandwidths are not checked: {reason}")
else:
    check_bandwidth()
