#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two Google Benchmark programs, or two subjects of one, in pairs of runs that take turns, and says which differences are noise.

Usage: bench/run compare [OPTION ...] A B
  A, B              PROGRAM, or PROGRAM:SUBJECT for its benchmarks that are named SUBJECT/..., such as build/bench_x:Sign;
                    or FILE.json:SUBJECT, the same file twice, of what bench_gpu_variants or bench_gpu measured by turns
  --only REGEX      benchmarks whose names match, behind the subject (.)
  --rounds N        pairs of each benchmark, 3 at least (20)
  --seconds S       that a run of one benchmark takes, at least (0.05)
  --cpu             compare the processor's time, which other programs on the machine disturb less than the clock's
  --counter NAME    compare this counter in the place of time
  --confidence P    that all intervals of the table hold together (0.95)
  --out PATH        writes PATH.md, PATH.json and PATH.svg (out/bench/compare)

Each pair is two processes, one behind the other, and which goes first changes from round to round. A's names and B's must agree, behind
the subject; what only one of them has is left out, and said. Exit status: 0, 1 if something could not be run, 2 for wrong arguments."""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import paired

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from draw import draw  # noqa: E402

DEADLINE = 600  # seconds, of one process
COLORS = {"faster": 0, "slower": 1, "noise": "grey"}


class Failure(Exception):
    pass


class Side(NamedTuple):
    program: str
    subject: str

    def call(self, *arguments):
        try:
            done = subprocess.run([self.program, *arguments], capture_output=True, text=True, timeout=DEADLINE)
        except OSError as problem:
            raise Failure(f"{self.program}: {problem.strerror}: build it, and name it by its path") from None
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.program} {' '.join(arguments)}: took more than {DEADLINE} s") from None
        if done.returncode != 0:
            raise Failure(f"{self.program} {' '.join(arguments)}: ended with {done.returncode}\n{done.stderr}")
        return done.stdout

    def names(self):
        """{the part after the subject: name}."""
        every = self.call("--benchmark_list_tests").splitlines()
        if not self.subject:
            return {name: name for name in every}
        mine = {name[len(self.subject) + 1:]: name for name in every if name.startswith(self.subject + "/")}
        if not mine:
            subjects = sorted({name.split("/")[0] for name in every})
            raise Failure(f"{self.program}: no benchmark begins with {self.subject}/; there are {', '.join(subjects)}")
        return mine

    def measure(self, name, seconds, counter, time_of):
        """A figure of one benchmark, its counter or else its time, and the unit."""
        pattern = re.sub(r"([][.{}()*+?^$|\\])", r"\\\1", name)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "result.json"
            self.call(f"--benchmark_filter=^{pattern}$", f"--benchmark_min_time={seconds}", f"--benchmark_out={path}",
                      "--benchmark_out_format=json")
            runs = [one for one in json.loads(path.read_text())["benchmarks"] if one.get("run_type") != "aggregate"]
        if not runs:
            raise Failure(f"{self.program}: {name} is in its list, but did not run by the filter ^{pattern}$")
        for run in runs:
            if run.get("error_occurred"):
                raise Failure(f"{self.program}: {name}: {run.get('error_message')}")
            if counter and counter not in run:
                raise Failure(f"{self.program}: {name} has no counter {counter}")
        figure = statistics.median(run[counter or time_of] for run in runs)
        if not figure > 0:
            raise Failure(f"{self.program}: {name}: {counter or 'its time'} is {figure}, and ratios take figures above 0")
        return figure, "" if counter else runs[0]["time_unit"]


def side(text):
    program, _, subject = text.partition(":")
    if "/" not in program and not program.endswith(".json"):
        program = shutil.which(program) or program
    return Side(program, subject)


def measured_by_turns(a, b, only):
    """As measure, of two subjects in a file that bench/gpu's programs have written: a pair is a round."""
    if a.program != b.program or not a.subject or not b.subject:
        raise Failure("pairs are rounds of one run: name the same file twice, each time with a subject, FILE.json:SUBJECT")
    times = {}
    try:
        for line in json.loads(pathlib.Path(a.program).read_text())["lines"]:
            times.setdefault(line["subject"], {})[f"{line['what']}/{line['elements']}"] = line["ms"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise Failure(f"{a.program}: {problem!r}: not a file that bench/gpu's programs have written") from None
    for subject in (a.subject, b.subject):
        if subject not in times:
            raise Failure(f"{a.program}: no subject {subject}; there are {', '.join(sorted(times))}")
    of_a, of_b = times[a.subject], times[b.subject]
    lines = [(name, list(zip(of_a[name], of_b[name])), "ms") for name in of_a if name in of_b and re.search(only, name)]
    if not lines:
        raise Failure(f"A and B share no line whose name matches {only}")
    return lines


def measure(a, b, options):
    """[(name, [(a, b), ...], unit)]"""
    of_a, of_b = a.names(), b.names()
    shared = [name for name in of_a if name in of_b and re.search(options.only, name)]
    for one, other, letter in (of_a, of_b, "A"), (of_b, of_a, "B"):
        for name in one:
            if name not in other and re.search(options.only, name):
                print(f"only {letter} has {name}")
    if not shared:
        raise Failure(f"A and B share no benchmark whose name matches {options.only}")
    pairs, units = {name: [] for name in shared}, {}
    for number in range(options.rounds):
        if sys.stderr.isatty():
            print(f"round {number + 1} of {options.rounds}", end="\r", flush=True, file=sys.stderr)
        for name in shared:
            figures = {}
            order = [("a", a, of_a), ("b", b, of_b)]
            for key, one, names in order if number % 2 == 0 else reversed(order):
                figures[key], units[name] = one.measure(names[name], options.seconds, options.counter,
                                                                options.time)
            pairs[name].append((figures["a"], figures["b"]))
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return [(name, pairs[name], units[name]) for name in shared]


def verdict(found):
    return "slower" if found.low > 1 else "faster" if found.high < 1 else "noise"


def markdown(a, b, options, lines, found):
    more, less = ("larger", "smaller") if options.counter else ("slower", "faster")
    text = [
        f"A: `{':'.join(filter(None, a))}`; B: `{':'.join(filter(None, b))}`. {options.rounds} pairs of each line, in turns, on "
        f"{time.strftime('%Y-%m-%d')}; {os.cpu_count()} processors, load average at the end {os.getloadavg()[0]:.1f}.",
        f"Of {options.words}, B / A: mean of the logarithms of the pairs' ratios, and Student's t interval, such that with "
        f"{100 * options.confidence:g} % all {len(lines)} hold (Bonferroni).", "",
        "| benchmark | A, median | B, median | B / A | interval | in words |", "|---|---:|---:|---:|---:|---|"]
    for (name, pairs, unit), one in zip(lines, found):
        medians = [f"{statistics.median(column):.4g} {unit}".strip() for column in zip(*pairs)]
        text.append(f"| `{name}` | {medians[0]} | {medians[1]} | {one.ratio:.3f} | {one.low:.3f} to {one.high:.3f} | "
                    f"{paired.words(one, more, less)} |")
    return "\n".join(text) + "\n"


def as_json(a, b, options, lines, found):
    return {
        "a": a._asdict(), "b": b._asdict(), "measured": options.counter or options.time, "rounds": options.rounds,
        "confidence_of_all": options.confidence, "method": "Student's t of the logarithms of ratios b / a of pairs, Bonferroni",
        "benchmarks": [{
            "name": name, "unit": unit, "a": [pair[0] for pair in pairs], "b": [pair[1] for pair in pairs], **one._asdict(),
            "differs": one.differs} for (name, pairs, unit), one in zip(lines, found)]}


def picture(options, lines, found, path):
    """A row for each line: its ratio and interval, on a logarithmic axis, next to that of no difference."""
    a, b = (":".join(filter(None, (pathlib.Path(one.program).name, one.subject))) for one in (options.a, options.b))
    less, more = ("smaller", "larger") if options.counter else ("faster", "slower")
    names = {"faster": f"B is {less}", "slower": f"B is {more}", "noise": "noise: the interval contains 1"}
    series = [{"name": names[kind], "color": color, "line": False, "marks": 0, "points": [
                  (one.ratio, row) for row, one in enumerate(found) if verdict(one) == kind]} for kind, color in COLORS.items()]
    series += [{"points": [(one.low, row), (one.high, row)], "color": COLORS[verdict(one)]} for row, one in enumerate(found)]
    draw(path, {"x": {"label": f"{options.words} of B / {options.words} of A, logarithmic; all intervals hold with "
                               f"{100 * options.confidence:g} %", "log": True}, "y": {"rows": [name for name, *_ in lines]}, "series": series, "lines": [{"x": 1}]},
         title=f"A is {a}; B is {b}")


def main(arguments):
    parser = argparse.ArgumentParser(usage=__doc__.split("Usage: ", 1)[1], add_help=False)
    parser.add_argument("a", type=side, help=argparse.SUPPRESS)
    parser.add_argument("b", type=side, help=argparse.SUPPRESS)
    parser.add_argument("--only", default=".", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=20, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0.05, help=argparse.SUPPRESS)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--cpu", dest="time", action="store_const", const="cpu_time", default="real_time", help=argparse.SUPPRESS)
    what.add_argument("--counter", help=argparse.SUPPRESS)
    parser.add_argument("--confidence", type=float, default=0.95, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/bench/compare", help=argparse.SUPPRESS)
    parser.add_argument("--help", action="help", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rounds < 3 or not 0 < options.seconds < DEADLINE or not 0 < options.confidence < 1:
        parser.error(f"--rounds is 3 at least, --seconds above 0 and below {DEADLINE}, --confidence between 0 and 1")
    options.words = options.counter or {"cpu_time": "processor time", "real_time": "time"}[options.time]
    try:
        re.compile(options.only)
    except re.error as problem:
        parser.error(f"--only {options.only}: {problem}")

    try:
        if options.a.program.endswith(".json") or options.b.program.endswith(".json"):
            lines = measured_by_turns(options.a, options.b, options.only)
            options.rounds = len(lines[0][1])
        else:
            lines = measure(options.a, options.b, options)
        found = paired.intervals([pairs for _, pairs, _ in lines], options.confidence)
    except ValueError as problem:
        print(f"bench/run compare: {problem}", file=sys.stderr)
        return 1
    except Failure as problem:
        print(f"bench/run compare: {problem}", file=sys.stderr)
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    written = [pathlib.Path(f"{options.out}.{kind}") for kind in ("md", "json", "svg")]
    table = markdown(options.a, options.b, options, lines, found)
    written[0].write_text(table)
    written[1].write_text(json.dumps(as_json(options.a, options.b, options, lines, found), indent=1) + "\n")
    picture(options, lines, found, written[2])
    print(table, *written, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
