# SPDX-License-Identifier: Apache-2.0
"""The parts that experiments share. An experiment is a file NAME.py next to `run` with a class of this kind:

    from evidence import Experiment, Row

    class Example(Experiment):
        \"\"\"One sentence that `run` shows in its list.\"\"\"
        packages = ["libtorch-dev"]                  # of Debian, to build with; installed by scripts/require
        data = ["wordnet-base"]                      # of Debian, whose files the programs read; the same
        programs = ["examples/example"]              # targets of Meson; built in build/evidence
        wheels = ["torch==2.15"]                     # of PyPI; installed into build/evidence-NAME, whose Python is self.python

        def rows(self):                              # in the order in which they run; as many with --smoke, but tiny
            steps = 2 if self.smoke else 2000
            for seed in self.seeds:
                key = {"method": "adam", "steps": steps, "seed": seed}
                yield Row(key, [self.program("examples/example"), "--steps", steps, "--seed", seed, "--save", "{state}"], minutes=14)

        minutes_after = 20                           # of the rows that follow, for the list
        def rows_after(self, results):               # rows that depend on results of rows(), such as the best rate with other seeds
            return []

        def table(self, results):                    # header and lines
            return ["method", "loss"], [[row["method"], lines[-1]["loss"]] for row, lines in results]

        def picture(self, results):                  # a panel of scripts/draw.py, or None
            return None

A row's key holds all settings that decide about its result, so that changed settings are another row. Its first value names the row,
with `seed` if it has one. The command prints a line of JSON for each part of its result, and `"done"` in a line, from 0 to 1, tells how
far the row is. `{state}` in an argument becomes a folder that outlives an interruption: a program that saves its progress there, and
prints the earlier lines again, resumes. `results` are pairs of key and printed objects, of the rows that are done.

self.folder is out/evidence/NAME, where an experiment that overrides prepare() may keep its data: rows.jsonl, state and lock are the
driver's. With --smoke, wheels are not installed."""

import json
import os
import pathlib
import subprocess
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Missing(Exception):
    """A sentence about something that is not installed."""


class Row(typing.NamedTuple):
    key: dict
    command: list
    minutes: float

    def name(self):
        first = next(iter(self.key.values()))
        return f"{first}, seed {self.key['seed']}" if "seed" in self.key else first


class Experiment:
    packages, data, programs, wheels = [], [], [], []
    minutes_after = 0

    def __init__(self, name, folder, seeds=(1, 2, 3), smoke=False, build=None):
        self.name, self.folder, self.seeds, self.smoke = name, folder, seeds, smoke
        self.built = build is not None
        self.build = build or ROOT / "build" / "evidence"
        self.environment = ROOT / "build" / f"evidence-{name}"
        self.python = self.environment / "bin" / "python"

    def program(self, target):
        return self.build / target

    def rows_after(self, results):
        return []

    def picture(self, results):
        return None

    def prepare(self):
        """Installs and builds; in a build folder of the user's nothing is installed or built."""
        if self.built:
            require_installed(self.data)
            for target in self.programs:
                if not self.program(target).exists():
                    raise Missing(f"{self.program(target)} is not built, since one of its dependencies is missing")
            return
        tools = ["g++", "meson", "ninja-build", "pkg-config"] if self.programs else []
        packages = [*tools, *self.packages, *self.data]
        if subprocess.run([ROOT / "scripts" / "require", *packages]).returncode != 0:
            raise Missing("not all of its Debian packages are there: " + " ".join(packages))
        if self.programs:
            self._build()
        if self.wheels and not self.smoke:
            self._install_wheels()

    def _build(self):
        print("building " + " ".join(self.programs), flush=True)
        if not (self.build / "build.ninja").exists():
            subprocess.run(["meson", "setup", self.build, "-Dtests=disabled", "-Dcuda=disabled"], cwd=ROOT,
                           check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["ninja", "-C", self.build, *self.programs], check=True, stdout=subprocess.DEVNULL)

    def _install_wheels(self):
        """Writes the list of wheels last, so that an installation that was interrupted, or is of another list, begins again."""
        installed = self.environment / "wheels.json"
        if installed.exists() and json.loads(installed.read_text()) == self.wheels:
            return
        print("installing from PyPI: " + " ".join(self.wheels), flush=True)
        subprocess.run([ROOT / "scripts" / "require", "python3-venv"], check=True)
        subprocess.run(["python3", "-m", "venv", "--clear", self.environment], check=True)
        subprocess.run([self.python, "-m", "pip", "install", "--quiet", *self.wheels], check=True)
        installed.write_text(json.dumps(self.wheels))


def require_installed(packages):
    if not packages:
        return
    found = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *packages], capture_output=True, text=True)
    missing = set(packages) - {line.split()[1] for line in found.stdout.splitlines() if line.startswith("installed ")}
    if missing:
        raise Missing("Debian packages are not installed: " + " ".join(sorted(missing)))


def same(key):
    return json.dumps(key, sort_keys=True)


class Results:
    """The rows that are done, in a file to which each is appended as soon as it is there."""

    def __init__(self, path):
        self.path = path
        path.touch()
        whole = path.read_bytes().rpartition(b"\n")[0]
        self.rows = {}
        for line in whole.splitlines():
            row = json.loads(line)
            self.rows[same(row["key"])] = row
        # The rest is part of a line that an interruption has cut off.
        os.truncate(path, len(whole) + (1 if whole else 0))

    def __contains__(self, row):
        return same(row.key) in self.rows

    def add(self, row, seconds, lines):
        """`seconds` is None for a row that has resumed."""
        result = {"key": row.key, "seconds": seconds, "lines": lines}
        with self.path.open("a") as file:
            file.write(json.dumps(result) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows[same(row.key)] = result

    def of(self, rows):
        """Pairs of key and printed objects."""
        return [(row.key, self.rows[same(row.key)]["lines"]) for row in rows if row in self]

    def slowness(self, rows):
        """Measured over estimated minutes."""
        known = [(self.rows[same(row.key)]["seconds"] / 60, row.minutes) for row in rows
                 if row in self and self.rows[same(row.key)]["seconds"]]
        return sum(measured for measured, _ in known) / sum(estimated for _, estimated in known) if known else 1
