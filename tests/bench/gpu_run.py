#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests bench/gpu_run with a plan and programs made for it: order, budget, resumption after a kill, timeouts, missing tools and
programs, failures, and summaries; and that the real plan names programs, test cases and kernels that exist.

Usage: gpu_run.py ROOT
"""

import fnmatch
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # next to the modules
ROOT = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT / "bench/gpu"))
import bars  # noqa: E402
import plan  # noqa: E402

# Writes its name and arguments into a trace, then does what its first argument says.
PROGRAM = """#!/bin/sh
echo "${0##*/} $*" >>"$TRACE"
echo "$MODE $1 of ${0##*/}"
case $1 in
  fail) exit 3 ;;
  absent) echo 'no CUDA device here'; exit 77 ;;
  hang) sleep 60 & echo $! $$ >"$TRACE.pid"; wait ;;
  library) echo 'error while loading shared libraries: libnccl.so.2: cannot open' ; exit 127 ;;
  counters) echo '==ERROR== ERR_NVGPUCTRPERM - no permission' ;;
  unnamed) echo '==WARNING== No kernels were profiled.' ;;
  cases) echo '[doctest] test cases: 0 | 0 passed | 0 failed | 7 skipped' ;;
  until) [ -e "$2" ] ;;
  json) cp "$2" "$3" ;;
esac
"""


def expect(condition, *what):
    if not condition:
        sys.exit(" ".join(map(str, what)))


class Place:
    """A copy of bench/gpu_run with another plan, and a folder of programs."""

    def __init__(self, stages):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="gpu_run-"))
        self.out, self.trace = self.root / "results", self.root / "trace"
        (self.root / "bench/gpu").mkdir(parents=True)
        shutil.copy(ROOT / "bench/gpu_run", self.root / "bench")
        shutil.copy(ROOT / "bench/gpu/bars.py", self.root / "bench/gpu")
        self.plan(stages)
        (self.root / "bin").mkdir()
        for name in "one", "two", "three", "tool":
            self.program(name)

    def plan(self, stages):
        text = (ROOT / "bench/gpu/plan.py").read_text()
        begin, end = text.index("PLAN = ["), text.index("def target(")
        text = text[:begin] + f"PLAN = [{', '.join(f'Stage({stage})' for stage in stages)}]\n\n\n" + text[end:]
        (self.root / "bench/gpu/plan.py").write_text(text)

    def program(self, name, end=""):
        path = self.root / "bin" / name
        path.write_text(PROGRAM + end)
        path.chmod(0o755)

    def start(self, *options):
        command = [sys.executable, self.root / "bench/gpu_run", "--binaries", self.root / "bin", "--out", self.out, *options]
        environment = {**os.environ, "TRACE": str(self.trace), "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", "MODE": ""}
        self.trace.write_text("")
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, status, *options):
        """Returns (stages' records, programs that were started, output)."""
        process = self.start(*options)
        output = process.communicate(timeout=60)[0]
        expect(process.returncode == status, f"status {process.returncode}, not {status}:", output)
        return json.loads((self.out / "summary.json").read_text())["stages"], self.started(), output

    def started(self):
        return self.trace.read_text().splitlines()

    def verdicts(self):
        return {name: one["status"] for name, one in json.loads((self.out / "summary.json").read_text())["stages"].items()}


def stage(name, program, arguments="", expected=1, timeout=20, **more):
    return ", ".join([repr(name), repr(program), repr(arguments), str(expected), str(timeout), repr(f"shows {name}"),
                      *(f"{key}={value!r}" for key, value in more.items())])


def check_order_and_summary():
    place = Place([stage("a", "one", "x 'y z'", figures=True), stage("b", "two", environment="MODE=LAZY", figures=True),
                   stage("c", "three", "{out}/file", tool="tool before"), stage("d", "", "alone", tool="tool")])
    records, started, output = place.run(0)
    expect(started == ["one x y z", "two ", f"tool before {place.root}/bin/three {place.out}/file", "tool alone"], started)
    expect(set(place.verdicts().values()) == {"passed"} and "4 passed" in output, output)
    expect((place.out / "logs/b.log").read_text().splitlines()[1] == "LAZY  of two", (place.out / "logs/b.log").read_text())
    text = (place.out / "summary.md").read_text()
    expect(text.startswith("# bench/gpu_run: 4 passed\n") and re.search(r"\| a \| passed \| [\d.]+ \| 1 \| shows a \|", text), text)
    expect(" x of one\n" in text and "LAZY  of two" in text and "alone of tool" not in text, "figures alone are shown:", text)
    # Passed stages stay, unless their program changes or it starts over.
    expect(place.run(0)[1] == [], "a passed stage was repeated")
    place.program("two", "# changed\n")
    expect(place.run(0)[1] == ["two "], "a changed program was not run again")
    expect(place.run(0, "--again", "--only", "a,d")[1] == ["one x y z", "tool alone"], "--again")
    expect(place.run(0, "--again", "--skip", "[abd]")[1][0].startswith("tool before"), "--skip")
    process = place.start("--only", "z")
    expect("no stage is named 'z'" in process.communicate(timeout=60)[0] and process.returncode == 2, "a wrong name")


def check_failures():
    file = tempfile.mktemp()
    stages = [stage("fails", "one", "fail"), stage("ends", "one", f"until {file}"), stage("absent", "one", "absent"),
              stage("no_program", "four"), stage("no_tool", "one", tool="no_such_tool"), stage("library", "one", "library"),
              stage("counters", "one", "counters"), stage("unnamed", "one", "unnamed"), stage("cases", "one", "cases"),
              stage("hangs", "one", "hang", timeout=3), stage("foreign", "foreign"), stage("last", "two")]
    place = Place(stages)
    place.program("foreign")
    (place.root / "bin/foreign").write_text("of another processor\n")
    records, started, output = place.run(1)
    wanted = {"fails": ("failed", "status 3"), "ends": ("failed", "status 1"), "absent": ("not run", "no CUDA device here"),
              "no_program": ("not run", f"four is not in {place.root}/bin"), "no_tool": ("not run", "no_such_tool is not installed"),
              "library": ("not run", "libnccl.so.2 is missing"), "counters": ("not run", "no permission to read the GPU's counters"),
              "unnamed": ("failed", "no kernel had that name"), "cases": ("failed", "no test case had that name"),
              "hangs": ("failed", "took longer than 3 s"), "foreign": ("failed", "status 126"), "last": ("passed", "")}
    found = {name: (one["status"], one["why"]) for name, one in records.items()}
    expect(found == wanted, found)
    expect(len(started) == 9, started)
    expect(gone(place), "a process of a stopped stage runs on")
    expect("## fails" in (place.out / "summary.md").read_text(), "a failed stage's output is missing")
    # What is repaired is repeated, and nothing that has passed; stages that were not run come before those that failed.
    pathlib.Path(file).touch()
    place.program("four")
    records, started, _ = place.run(1)
    os.remove(file)
    expect(records["ends"]["status"] == records["no_program"]["status"] == "passed", records)
    expect(records["ends"]["tries"] == 2 and records["last"]["tries"] == 1, records)
    expect([line.split()[:2] for line in started] == [["one", "absent"], ["four"], ["one", "library"], ["one", "counters"], ["one", "fail"],
           ["one", "until"], ["one", "unnamed"], ["one", "cases"], ["one", "hang"]], started)
    # No GPU at all, and nothing but missing programs.
    place = Place([stage("a", "one", "absent"), stage("b", "four")])
    place.run(77)
    place.run(75, "--only", "b")


def gone(place, itself=False):
    """Whether a hanging program's child, or the program itself, has ended."""
    pid = (place.root / "trace.pid").read_text().split()[itself]
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def check_budget():
    stages = [stage("a", "one"), stage("long", "two", expected=100), stage("huge", "two", expected=10000), stage("b", "three")]
    place = Place(stages)
    records, started, output = place.run(75, "--budget", "1.65")  # 99 s
    expect(started == ["one ", "three "], started)
    expect(records["long"]["why"] == "100 s are more than the whole budget", records)
    place = Place([stage("a", "one"), stage("hangs", "two", "hang"), stage("later", "three", expected=2), stage("b", "one")])
    records, started, output = place.run(75, "--budget", "0.1")  # 6 s
    expect(started == ["one ", "two hang"], started)
    expect(records["hangs"]["status"] == "not run" and records["hangs"]["why"].startswith("the budget ended after"), records)
    expect(records["later"]["status"] == records["b"]["status"] == "left" and "later takes about 2 s" in output, output)
    # It comes first again, with more time.
    place.plan([stage("a", "one"), stage("hangs", "two"), stage("later", "three"), stage("b", "one", "2")])
    expect(place.run(0)[1] == ["two ", "three ", "one 2"], place.started())


def check_kill():
    for number in signal.SIGKILL, signal.SIGTERM:
        place = Place([stage("a", "one"), stage("b", "two", "hang"), stage("c", "three")])
        process = place.start()
        until = time.monotonic() + 30
        while not (place.root / "trace.pid").exists() or not (place.root / "trace.pid").read_text().strip():
            expect(time.monotonic() < until and process.poll() is None, "the second stage has not begun")
            time.sleep(0.02)
        expect(place.verdicts() == {"a": "passed", "b": "left", "c": "left"}, place.verdicts())
        process.send_signal(number)
        process.communicate(timeout=60)
        expect(process.returncode != 0, "killed, and successful")
        expect(gone(place, itself=number == signal.SIGKILL), "a stage outlives the script")
        place.plan([stage("a", "one"), stage("b", "two"), stage("c", "three")])
        records, started, _ = place.run(0)
        expect(started == ["three ", "two "], "passed stages first, or repeated:", started)
        expect(records["b"]["tries"] == 2 and not list(place.out.glob("*.new")), records)


# Fakes of meson, ninja, strip and ldd. Targets named "three" can't be built, though an old one is there.
TOOLS = {"meson": """case $1 in
  setup) mkdir -p "$2/bench" "$2/tests/cuda"; touch "$2/build.ninja"; echo "$3" >"$2/options" ;;
  introspect) printf '[{"filename": ["%s/one", "%s/two", "%s/three"]}]' "$3/tests/cuda" "$3/tests/cuda" "$3/tests/cuda" ;;
esac""", "ninja": """cd "$2"; shift 2
if [ "$1" = -n ]; then
  [ "${2##*/}" = three ] && echo '[1/1] nvcc' || echo 'ninja: no work to do.'
  exit
fi
shift 2
for place; do printf '#!/bin/sh\necho "${0##*/} built" >>"$TRACE"\n' >"$place"; chmod +x "$place"; done
case "$*" in *three*) exit 1 ;; esac""", "strip": 'cp "$3" "$2"; echo "# stripped" >>"$2"', "ldd": 'echo "  libcudart.so.13 => $TRACE (0x7f)"'}


def check_build():
    place = Place([stage("a", "one"), stage("b", "two"), stage("c", "three"), stage("d", "four"), stage("e", "", tool="true")])
    for name, text in TOOLS.items():
        place.program(name)
        (place.root / "bin" / name).write_text("#!/bin/sh\n" + text + "\n")
    built, tree = place.root / "built", place.root / "tree"
    built.mkdir()
    (built / "three").write_text("an old one")

    def build(*options):
        process = place.start("--build-only", built, "--build", tree, *options)
        return process.communicate(timeout=60)[0], process.returncode

    output, status = build("--arch", "80")
    expect(status == 1 and "not built: three" in output and f"four: {tree} has no such target" in output, output)
    expect((tree / "options").read_text() == "-Dgencode=['arch=compute_80,code=sm_80']\n", "the architecture")
    expect({file.name for file in built.iterdir()} == {"one", "two", "libcudart.so.13"}, list(built.iterdir()))
    expect((built / "one").read_text().endswith("# stripped\n"), "not stripped")
    output, status = build("--only", "a,b")
    expect(status == 0 and "2 programs" in output, output)
    # The archive alone is taken along.
    shutil.rmtree(built)
    process = place.start("--binaries", place.root / "built.tar.xz", "--only", "a,b,e")
    process.communicate(timeout=60)
    expect(process.returncode == 0 and place.started() == ["one built", "two built"], place.started())


def check_bars():
    """A table of bars from figures of a device that is fast enough, and from one that is not."""
    def line(subject, what, ms, of_copy):
        return {"group": "step", "subject": subject, "what": what, "median_ms": ms, "least_ms": ms, "most_ms": ms, "of_copy": of_copy,
                "bytes": 2 << 30, "elements": bars.FULL_SIZE}

    ours = {"elements": bars.FULL_SIZE, "results_compared": 7, "device": {
        "name": "NVIDIA H100", "major": 9, "minor": 0, "multiprocessors": 132, "l2_bytes": 50 << 20, "runtime": 13000, "driver": 13000},
        "lines": [line("copy", "", 1, 1), *(line(*one, 1, 0.9 if k else 0.8) for k, one in enumerate(bars.PASSES)),
                  line("Adam", "update", 2, 0.9), line("1-bit Adam", "three local passes", 2, 0.9)]}
    torch = {"torch": "2", "cupy": None, "cupy_missing": "none", "lines": [
        line("copy", "", 1, 1), line("torch.optim.Adam(fused=True), one flat tensor", "", 4, 1), line(bars.SEPARATE, "", 12, 1)]}
    steps = "".join(f"{floats:11}        1      1  default  1-bit Adam, compressed        9.0 {graph:11.1f}        11.0 {part:9.2f}\n"
                    for floats, graph, part in ((1000000, 80, 0.3), (10000000, 90, 0.86), (100000000, 900, 0.84)))
    place = Place([stage("bench_gpu_256Mi", "one", f"json {place_json(ours)} {{out}}/bench_gpu_256Mi.json"),
                   stage("torch", "one", f"json {place_json(torch)} {{out}}/torch_steps.json"),
                   stage("steps_default", "two", shlex.quote(steps), figures=True)])
    place.run(0)
    found = {one["bar"]: (one["verdict"], one["measured"]) for one in json.loads((place.out / "summary.json").read_text())["bars"]}
    verdicts = [verdict for verdict, _ in found.values()]
    expect(verdicts == ["missed", *["met"] * 4, "missed", "met", "missed", "not run: the step was not measured", "missed"], found)
    expect(found["a compressed step of 1 M floats, by graph: times faster than 60 µs"][1] == 0.75, found)
    expect("| Adam, update: times the speed of torch.optim.Adam(fused=True), one flat tensor | 0.95 | 2.000 | met |" in
           (place.out / "summary.md").read_text(), "the table of bars")
    # Figures of a stage that has failed since are no longer shown.
    place.plan([stage("bench_gpu_256Mi", "one", "fail"), stage("steps_default", "two", figures=True)])
    place.run(1, "--again")
    expect(json.loads((place.out / "summary.json").read_text())["bars"] == [], "bars of figures that don't hold any more")
    ours["device"]["major"] = 8
    slow = bars.bars(ours, None, "it is not installed", steps)
    expect({verdict.split(":")[0] for *_, verdict in slow} == {"not run"}, slow)


def place_json(value):
    file = pathlib.Path(tempfile.mkstemp(prefix="gpu_run-", suffix=".json")[1])
    file.write_text(json.dumps(value))
    return file


def check_plan():
    """The real plan: what it names is there, and a stage fits into ten minutes."""
    names = [one.name for one in plan.PLAN]
    expect(len(set(names)) == len(names) > 40, names)
    meson = (ROOT / "tests/cuda/meson.build").read_text() + (ROOT / "bench/meson.build").read_text()
    kernels = re.findall(r"struct (\w+)", "".join(file.read_text() for file in (ROOT / "include/terse/device").rglob("*.hpp")))
    sources = {folder: pathlib.Path(ROOT / "tests" / folder) for folder in ("cuda", ".")}
    for one in plan.PLAN:
        expect(0 < one.expected < one.timeout <= 240, one)
        short = one.program.removeprefix("test_cuda_")
        expect(f"'{short}'" in meson or one.program in ("", "train", "test_nccl"), f"{one.program} is no target")
        tool = shlex.split(one.tool)
        for script in tool[1:2] if tool[:1] == ["python3"] else []:
            expect((ROOT / script).exists(), script)
        expect(("regex:" in one.tool) == one.name.startswith("ncu_"), one)
        for pattern in re.findall(r"regex:\.\*(\w+)\.\*", one.tool):
            expect(any(pattern in kernel for kernel in kernels), f"no kernel is named {pattern}")
        for word in shlex.split(one.arguments):
            if word.startswith("-tc="):
                text = (sources["cuda"] / f"{short}.cu").read_text()
                text += "".join((sources["."] / file).read_text() for file in re.findall(r'#include "(\w+/\w+\.inc)"', text))
                cases = re.findall(r'TEST_CASE(?:_TEMPLATE)?\("(.*?)"', text)
                for pattern in word.removeprefix("-tc=").split(","):
                    expect(any(fnmatch.fnmatchcase(case, pattern) for case in cases), f"{short} has no case '{pattern}'")
        if one.program == "bench_gpu" and (only := re.search(r"--only '(.*?)'", one.arguments)):
            figures = "".join((ROOT / "bench/gpu" / file).read_text() for file in ("measure.hpp", "passes.hpp"))
            expect(all(f'"{part}' in figures for part in only[1].split("/") if part), only[1])
    for option in "--list", "--help":
        done = subprocess.run([ROOT / "bench/gpu_run", option], stdout=subprocess.PIPE, text=True, timeout=60, env={
            **os.environ, "COLUMNS": "300"})
        expect(done.returncode == 0 and max(map(len, done.stdout.splitlines())) <= 100, f"{option} is wider than 100 columns")
    expect(done.stdout.count("\n") > 20, done.stdout)


def main():
    temporary = tempfile.TemporaryDirectory(prefix="gpu_run-test-")
    tempfile.tempdir = temporary.name
    with temporary:
        for check in check_plan, check_order_and_summary, check_failures, check_budget, check_kill, check_build, check_bars:
            check()


if __name__ == "__main__":
    main()
