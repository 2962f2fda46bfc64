#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests examples/evidence/run with an experiment of its own: rows that are done are kept and skipped, an interrupted row resumes, half
a line at the end of the file is dropped, changed settings are another row, rows that depend on others' results come after them, and failures and missing packages are said. The project's own
experiments are listed, and two compare methods rightly, in results made up.

Usage: evidence.py ROOT
"""

import csv
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

root = pathlib.Path(sys.argv[1])
FILES = ["examples/evidence/run", "examples/evidence/evidence.py", "bench/network/links.py", "scripts/draw.py"]
EXPERIMENT = '''
import sys
from evidence import Experiment, Row

class Example(Experiment):
    """Counts."""
    data = PACKAGES

    def rows(self):
        for method in ["quick", "slow", "bad"]:
            for seed in self.seeds:
                yield Row({"method": method, "seed": seed, "steps": STEPS}, [sys.executable, PROGRAM, method, STEPS, "{state}"], 0.01)

    def rows_after(self, results):
        for key, lines in results:
            if AFTER and key["method"] == "quick":
                yield Row({"method": "after", "seed": key["seed"], "lines": len(lines)}, [sys.executable, PROGRAM, "after", 1, "{state}"], 0.01)

    def table(self, results):
        return ["method", "seed", "lines"], [[key["method"], key["seed"], len(lines)] for key, lines in results]
'''
# Notes that it was started; "slow" waits until it is interrupted when it is started first.
PROGRAM = '''
import json, pathlib, sys, time
method, steps, state = sys.argv[1:]
with open(pathlib.Path(__file__).parent / "starts", "a") as starts:
    starts.write(method + "\\n")
saved = pathlib.Path(state) / "saved"
for step in range(int(steps)):
    print(json.dumps({"step": step, "done": (step + 1) / int(steps)}), flush=True)
    if method == "slow" and step == 1 and not saved.exists():
        saved.touch()
        time.sleep(20)
if method == "bad":
    print("no JSON")
'''


def expect(condition, what):
    if not condition:
        sys.exit(what)


def write_experiment(folder, steps, packages=(), after=False):
    text = EXPERIMENT.replace("STEPS", str(steps)).replace("PACKAGES", repr(list(packages))).replace("AFTER", str(after))
    (folder / "examples/evidence/example.py").write_text(text.replace("PROGRAM", repr(str(folder / "program.py"))))


def start(folder, *options):
    command = [sys.executable, folder / "examples/evidence/run", "example", "--build", folder, "--seeds", "1", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(folder, status, *options):
    program = start(folder, *options)
    output = program.communicate(timeout=30)[0]
    expect(program.returncode == status, f"status {program.returncode} instead of {status}: {output}")
    return output


def rows_in(out):
    return [json.loads(line)["key"]["method"] for line in (out / "rows.jsonl").read_text().splitlines()]


def compare_stragglers():
    """All-reduce's loss is 0.4 on average in the last tenth; another method first has 0.42 at second 7."""
    import stragglers
    def row(kind, scene, rate, losses):
        curve = [{"at": at, "test": loss} for at, loss in enumerate(losses)]
        return {"kind": kind, "scene": scene, "seed": 1, "rate": rate}, [*curve, {"validation": losses[-1]}]
    results = [row("all-reduce", "4x", 0.1, [2.0] * 15 + [0.42] + [0.5] * 2 + [0.5, 0.3]), row("Local SGD", "4x", 0.1, [0.9] * 7 + [0.41, 0.9]),
               row("Local SGD", "rate 0.1", 0.1, [0.3]), row("Local SGD", "rate 0.2", 0.2, [0.2]), row("Local SGD", "rate 0.4", 0.4, [None])]
    key = results[0][0]
    expect(stragglers.reached(results, key, "all-reduce") == 15 and stragglers.reached(results, key, "Local SGD") == 7, "another time to the loss")
    expect(stragglers.reached(results, key, "NoLoCo") is None, "a method without a row reaches the loss")
    expect(stragglers.best_rates(results) == {"Local SGD": 0.2}, f"best rates: {stragglers.best_rates(results)}")


def compare_batches():
    """The rate is the best by validation of all seeds, among those that all have."""
    import batches
    def row(seed, *lines):
        return {"kind": "PmSGD", "setting": "labels differ", "batch": 256, "seed": seed}, list(lines)
    def line(rate, validation, test, loss=1.0):
        return {"rate": rate, "validation": validation, "test": test, "loss": loss, "apart": 0.01}
    results = [row(1, line(0.05, 0.9, 0.2), line(0.1, 0.6, 0.7), line(0.2, 0.8, 0.9), line(0.4, 0.9, 0.9, None), {"diverged": True}),
               row(2, line(0.1, 0.5, 0.75), line(0.2, 0.1, 0.8), line(0.4, 0.9, 0.9))]
    found = batches.tests(results, "PmSGD", "labels differ", 256)
    expect({seed: test for seed, (test, _) in found.items()} == {1: 70, 2: 75}, f"accuracies at the best rate: {found}")
    expect(batches.best_rate(results[:1], "PmSGD", "labels differ", 256) == 0.05, "another best rate of one seed")


def compare_outer_graphs():
    """A graph at its own best rate, and at the best rate of DiLoCo."""
    import outer_graphs
    def row(kind, seed, *scores):
        lines = [{"rate": rate, "validation": validation, "test": test, "loss": 1.0, "apart": 0.01, "bytes": 2e6} for rate, validation, test in scores]
        return {"kind": kind, "setting": "same labels", "batch": 32, "seed": seed}, lines
    results = [row("DiLoCo", 1, (0.1, 0.8, 0.75), (0.2, 0.7, 0.9)), row("DiLoCo", 2, (0.1, 0.8, 0.85), (0.2, 0.7, 0.9)),
               row("ring", 1, (0.1, 0.6, 0.5), (0.2, 0.7, 0.7)), row("ring", 2, (0.1, 0.6, 0.6), (0.2, 0.7, 0.7))]
    _, lines = outer_graphs.OuterGraphs("outer-graphs", None).table(results)
    expect(lines[1] == ["same labels", "ring", "0.2", "70.00 ± 0.00", "-10.00 ± 7.07", "55.00 ± 7.07", "-25.00 ± 0.00", "1.00", "2"],
           f"the table of graphs is {lines}")


def main(folder):
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, folder / name)
    (folder / "program.py").write_text(PROGRAM)
    write_experiment(folder, 3)
    out, starts = folder / "out/evidence/example", folder / "starts"

    listed = subprocess.run([sys.executable, folder / "examples/evidence/run"], capture_output=True, text=True, check=True).stdout
    expect("example" in listed and "Counts." in listed, f"the list is: {listed}")

    interrupted = start(folder)
    deadline = time.monotonic() + 30
    while not list(out.glob("state/*/saved")) and time.monotonic() < deadline:
        time.sleep(0.05)
    expect("another run writes" in finish(folder, 1), "two runs write to one folder")
    interrupted.send_signal(signal.SIGTERM)
    interrupted.communicate(timeout=30)
    expect(interrupted.returncode == 128 + signal.SIGTERM, f"status {interrupted.returncode} after SIGTERM")
    expect(rows_in(out) == ["quick"], f"rows after the interruption: {rows_in(out)}")

    with (out / "rows.jsonl").open("a") as file:
        file.write('{"key": {"meth')
    output = finish(folder, 1)
    expect("bad, seed 1 failed, this line of its output is not JSON: no JSON" in output, f"the failure isn't said: {output}")
    expect(rows_in(out) == ["quick", "slow"], f"rows after resuming: {rows_in(out)}")
    expect(starts.read_text().split() == ["quick", "slow", "slow", "bad"], f"started were: {starts.read_text()}")
    with (out / "example.csv").open(newline="") as file:
        expect(list(csv.reader(file)) == [["method", "seed", "lines"], ["quick", "1", "3"], ["slow", "1", "3"]], "another CSV file")
    expect("| slow | 1 | 3 |" in (out / "example.md").read_text(), "another table")

    write_experiment(folder, 2)
    finish(folder, 0, "--only", "quick")
    expect(rows_in(out) == ["quick", "slow", "quick"], f"rows of other settings: {rows_in(out)}")
    expect("| quick | 1 | 2 |" in (out / "example.md").read_text(), "the table holds rows of other settings")
    finish(folder, 0, "--only", "quick", "--seeds", "2")
    table = (out / "example.md").read_text()
    expect("| quick | 1 | 2 |" in table and "| quick | 2 | 2 |" in table, f"the table lacks a seed that is done: {table}")
    expect("none of these rows is asked for: quick, seed 1" in finish(folder, 1, "--only", "none"), "a row that isn't there is not missed")

    write_experiment(folder, 2, after=True)
    finish(folder, 0, "--only", "after")
    last = json.loads((out / "rows.jsonl").read_text().splitlines()[-1])["key"]
    expect(last == {"method": "after", "seed": 1, "lines": 2}, f"a row that depends on another's lines is {last}")

    listed = subprocess.run([sys.executable, root / FILES[0]], capture_output=True, text=True, timeout=30)
    names = {path.stem.replace("_", "-") for path in (root / FILES[0]).parent.glob("*.py")} - {"evidence"}
    expect({line.split()[0] for line in listed.stdout.splitlines()} == names, f"not all are listed: {listed.stdout}{listed.stderr}")

    write_experiment(folder, 2, ["no-such-package"])
    expect("skipped: Debian packages are not installed: no-such-package" in finish(folder, 77, "--smoke"), "a package is not missed")


sys.dont_write_bytecode = True
sys.path.insert(0, str(root / "examples" / "evidence"))
compare_stragglers()
compare_batches()
compare_outer_graphs()
with tempfile.TemporaryDirectory() as temporary:
    main(pathlib.Path(temporary))
