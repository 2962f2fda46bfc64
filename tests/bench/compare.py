#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/run compare: its statistics on samples whose truth is known, and the whole of it on programs that make times up.

Usage: compare.py ROOT
"""

import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # beside the scripts
FOLDER = pathlib.Path(sys.argv[1]).resolve() / "bench"
sys.path.insert(0, str(FOLDER))
import paired  # noqa: E402

# As Google Benchmark's are. The machine gets slower all the time, as well for one side as for the other, and times have a spread.
PROGRAM = """#!/usr/bin/env python3
import json, math, pathlib, random, re, sys
times = {times}
options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
if "benchmark_list_tests" in options:
    print(*times, sep="\\n")
    sys.exit()
count = pathlib.Path({count!r})
number = len(count.read_text()) if count.exists() else 0
count.write_text("x" * (number + 1))
mine = [name for name in times if re.search(options["benchmark_filter"], name)]
result = [dict(name=name, run_type="iteration", time_unit="us", cpu_time=1, real_time=times[name] * math.exp(
    0.02 * number + random.Random(str((number, name))).gauss(0, 0.004))) for name in mine]
pathlib.Path(options["benchmark_out"]).write_text(json.dumps(dict(benchmarks=result)))
"""


def expect(condition, what):
    if not condition:
        sys.exit(what)


def samples(source, count, difference, spread, drift=0.0):
    """Pairs of times, the second longer by this much in truth; `drift` is of both."""
    pairs, common = [], 0.0
    for _ in range(count):
        common += source.gauss(0, drift)
        a, b = (math.exp(common + source.gauss(0, spread / math.sqrt(2))) for _ in range(2))
        pairs.append((a, b * (1 + difference)))
    return pairs


def check_bounds():
    # Tables of Student's distribution.
    for confidence, freedom, bound in (0.95, 1, 12.7062), (0.95, 4, 2.7764), (0.95, 9, 2.2622), (0.95, 19, 2.0930), (0.99, 2, 9.9248), \
            (0.99, 30, 2.7500), (0.998, 10, 4.1437):
        found = paired.student_bound(confidence, freedom)
        expect(abs(found - bound) < 1e-4, f"Student's t, {confidence}, {freedom}: {found}, not {bound}")


def check_verdicts():
    source = random.Random(1)
    equal = paired.interval(samples(source, 20, 0, 0.02), 0.95)
    expect(not equal.differs and paired.words(equal).startswith("noise"), f"equal: {equal}")
    apart = paired.interval(samples(source, 20, 0.03, 0.01), 0.95)
    expect(apart.low > 1 and abs(apart.ratio - 1.03) < 0.01, f"3 % apart: {apart}")
    expect(paired.words(apart).startswith("B is slower by"), paired.words(apart))
    sooner = paired.interval([(b, a) for a, b in samples(source, 20, 0.03, 0.01)], 0.95)
    expect(paired.words(sooner).startswith("B is faster by"), paired.words(sooner))
    expect(paired.words(paired.Interval(4, 2.5, 6.4)) == "B is slower: 2.5 to 6.4 times A", "more than twice as long")
    # Where the machine's own speed walks away by far more than the difference, pairs see it all the same.
    walking = samples(source, 20, 0.03, 0.01, drift=0.1)
    expect(paired.interval(walking, 0.95).differs, "3 % apart, drifting: taken for noise")
    shuffled = list(zip([a for a, _ in walking], source.sample([b for _, b in walking], len(walking))))
    expect(not paired.interval(shuffled, 0.95).differs, "without pairs a difference was found: the drift is too small to test them")
    hidden = paired.interval(samples(source, 20, 0.03, 0.5), 0.95)
    expect(not hidden.differs, f"3 % in a spread of 50 %: {hidden}")
    expect(not paired.interval([(2.0, 2.0)] * 5, 0.95).differs, "the same five times differ")
    expect(paired.words(paired.Interval(1.01, 0.99, 1.03)).startswith("noise"), "1 is inside, and yet words say more")
    for wrong in ([(1, 1)] * 2, [(1, 1), (1, 0), (1, 1)], [(1, 1), (math.nan, 1), (1, 1)]):
        try:
            paired.interval(wrong, 0.95)
            sys.exit(f"{wrong} was taken")
        except ValueError:
            pass


def check_coverage():
    """How often the truth is inside: 2000 intervals of 95 % miss it 100 +- 10 times."""
    source, runs = random.Random(2), 2000
    for count in 3, 10:
        missed = sum(not found.low <= 1.03 <= found.high
                     for found in (paired.interval(samples(source, count, 0.03, 0.02), 0.95) for _ in range(runs)))
        expect(abs(missed - 0.05 * runs) < 4 * math.sqrt(runs * 0.05 * 0.95), f"{count} pairs: {missed} of {runs} intervals miss the truth")
    # Of twenty equal lines at once, one in twenty tables may say that some line differs.
    tables = 200
    wrong = sum(any(found.differs for found in paired.intervals([samples(source, 8, 0, 0.02) for _ in range(20)], 0.95))
                for _ in range(tables))
    expect(1 <= wrong <= 25, f"{wrong} of {tables} tables of equal lines have a difference")


def check_programs(folder):
    def program(name, times):
        path = folder / name
        path.write_text(PROGRAM.format(times=times, count=str(folder / "count")))
        path.chmod(0o755)
        return str(path)

    def compare(*arguments, status=0):
        done = subprocess.run([FOLDER / "run", "compare", "--rounds", "4", "--out", folder / "out", *arguments], capture_output=True,
                              text=True, timeout=100)
        expect(done.returncode == status, f"{arguments}: ended with {done.returncode}, not {status}\n{done.stdout}\n{done.stderr}")
        return done.stdout + done.stderr

    old = program("old", {"Sign/encode/4096": 7, "Sign/pack/4096": 3, "Mine<8>/encode/4096": 10, "gone": 1})
    new = program("new", {"Sign/encode/4096": 7, "Sign/pack/4096": 2, "Mine<8>/encode/4096": 10, "Mine<8>/new/1": 1})
    text = compare(old, new)
    expect("only A has gone" in text and "only B has Mine<8>/new/1" in text, text)
    result = json.loads((folder / "out.json").read_text())
    differs = {line["name"]: line["differs"] for line in result["benchmarks"]}
    expect(differs == {"Sign/encode/4096": False, "Sign/pack/4096": True, "Mine<8>/encode/4096": False}, f"two builds: {differs}")
    expect(all(len(line["a"]) == len(line["b"]) == 4 for line in result["benchmarks"]), "not four pairs of each")
    table = (folder / "out.md").read_text()
    expect(table.count("| noise:") == 2 and table.count("| B is faster by") == 1, table)
    picture = (folder / "out.svg").read_text()
    expect(all(words in picture for words in (">A is old; B is new<", ">B is faster<", ">Sign/pack/4096<")), picture)

    expect("round" not in text, f"progress in a pipe: {text}")
    compare("--cpu", old, new)
    result = json.loads((folder / "out.json").read_text())
    expect(result["measured"] == "cpu_time" and all(line["a"] == [1] * 4 for line in result["benchmarks"]), f"--cpu: {result}")
    expect("processor time, B / A" in (folder / "out.md").read_text(), "--cpu isn't said")
    compare("--cpu", "--counter", "bytes", old, new, status=2)

    compare("--only", "enc", f"{new}:Sign", f"{new}:Mine<8>")
    lines = json.loads((folder / "out.json").read_text())["benchmarks"]
    expect([line["name"] for line in lines] == ["encode/4096"] and lines[0]["low"] < 10 / 7 < lines[0]["high"], f"two subjects: {lines}")

    source = random.Random(3)
    rounds = [source.gauss(5, 1) for _ in range(10)]
    (folder / "gpu.json").write_text(json.dumps({"lines": [
        {"subject": subject, "what": what, "elements": 4096, "ms": [one * factor * math.exp(source.gauss(0, 0.002)) for one in rounds]}
        for subject, what, factor in (("64 threads", "Adam", 1), ("32 threads", "Adam", 1.02), ("64 threads", "x", 1), ("32 threads", "x", 1))]}))
    compare(f"{folder}/gpu.json:64 threads", f"{folder}/gpu.json:32 threads")
    differs = {line["name"]: line["differs"] for line in json.loads((folder / "out.json").read_text())["benchmarks"]}
    expect(differs == {"Adam/4096": True, "x/4096": False}, f"by turns on a device: {differs}")
    expect("no subject 8" in compare(f"{folder}/gpu.json:8", f"{folder}/gpu.json:32 threads", status=1), "a subject that is not there")
    expect("the same file twice" in compare(f"{folder}/gpu.json:64 threads", new, status=1), "a file and a program")

    expect("no benchmark begins with Signs/" in compare(f"{new}:Signs", new, status=1), "a subject that is not there")
    expect("build it" in compare(str(folder / "none"), new, status=1), "a program that is not there")
    expect("share no benchmark" in compare("--only", "xyz", old, new, status=1), "nothing to compare")
    expect("has no counter" in compare("--counter", "bytes", old, new, status=1), "a counter that is not there")
    compare("--rounds", "2", old, new, status=2)


check_bounds()
check_verdicts()
check_coverage()
with tempfile.TemporaryDirectory() as place:
    check_programs(pathlib.Path(place))
