#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a Markdown table and two pictures of what bench_compressor measured.

Usage: plot.py RESULTS.json     writes RESULTS.md, RESULTS_error.svg, RESULTS_speed.svg
"""

import json
import math
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "scripts"))
from draw import draw  # noqa: E402

BASELINE = "baseline: "


def subjects_of(results):
    """{floats: {subject: {what: figures}}}, sizes from the largest down, baselines last."""
    sizes = {}
    for one in results["benchmarks"]:
        name, what, n = one["name"].rsplit("/", 2)
        sizes.setdefault(int(n), {}).setdefault(name, {})[what] = one
    return {n: dict(sorted(sizes[n].items(), key=lambda item: item[0].startswith(BASELINE)))
            for n in sorted(sizes, reverse=True)}


def size_text(n):
    for unit, name in [(1 << 20, "Mi"), (1 << 10, "Ki")]:
        if n % unit == 0:
            return f"{n // unit} {name}"
    return str(n)


def figure(subject, whats, counter):
    """The first that was measured, or None."""
    return next((subject[what][counter] for what in whats if counter in subject.get(what, {})), None)


def digits(value):
    """Three of them, and no more than that."""
    if value is None:
        return "–"
    return f"{value:.{max(0, min(6, 2 - math.floor(math.log10(value)))) if value > 0 else 0}f}"


def machine(results):
    context = results["context"]
    caches = ", ".join(f"L{cache['level']} {cache['size'] >> 10} KiB" for cache in context["caches"]
                       if cache["type"] != "Instruction")
    return (f"One core of {context['num_cpus']} of {context['processor']} ({caches}), {context['compiler']}, "
            f"{context['date'][:10]}; load average at the start {context['load_avg'][0]:.1f}.")


def table(n, subjects):
    every = [one for subject in subjects.values() for one in subject.values()]
    units = sorted(one["yardstick_seconds"] for one in every)
    middle = units[len(units) // 2]
    lines = [
        f"{size_text(n)} floats; a yardstick was {middle * 1e3:.3g} ms ({8e-9 * n / middle:.0f} GB/s), "
        f"{units[0] * 1e3:.3g} to {units[-1] * 1e3:.3g} ms beside single lines.", "",
        "| compressor | bits an element | error, normal | error, Student t(2) | encode | with residual "
        "| of that pack | accumulate |",
        "|---|---:|---:|---:|---:|---:|---:|---:|"]
    for name, subject in subjects.items():
        cells = [figure(subject, ["encode", "encode_residual"], counter) for counter in
                 ("bits", "error", "error_heavy")]
        cells += [figure(subject, [what], "yardsticks") for what in
                  ("encode", "encode_residual", "pack", "accumulate")]
        label = name if name.startswith(BASELINE) else f"`{name}`"
        lines.append("| " + " | ".join([label, *map(digits, cells)]) + " |")
    return "\n".join(lines) + "\n"


def markdown(results, sizes):
    return "\n".join([
        machine(results),
        "Passes in yardsticks: best time against that of `x[i] *= a` over as many floats. Errors are ||x - C(x)|| / "
        "||x|| without feedback.", "", *(table(n, subjects) for n, subjects in sizes.items())])


def draw_errors(n, subjects, path):
    """Bits against error: a label for each point, one for several at the same place."""
    shown = {name: subject["encode"] for name, subject in subjects.items() if "error" in subject.get("encode", {})}
    if not shown:
        return False
    places = {}
    for name, one in shown.items():
        bits, error = one["bits"], max(one["error"], 1e-9)
        near = next((place for place in places if abs(math.log2(place[0] / bits)) < 0.15 and abs(math.log10(place[1] / error)) < 0.06),
                    (bits, error))
        places.setdefault(near, []).append(name)
    series = [{"points": list(places), "line": False, "marks": True}]
    labels = [{"at": place, "text": "\n".join(names)} for place, names in places.items()]
    draw(path, {"x": {"label": "bits per element", "log": True}, "y": {"label": "relative error ‖x − C(x)‖ / ‖x‖", "log": True},
                "series": series, "labels": labels, "height": 460}, title=f"Error against bits: {size_text(n)} standard normal values, without feedback")
    return True


def draw_speeds(n, subjects, path):
    """Times in yardsticks, one logarithmic scale for all: a row for each compressor, a mark for each pass."""
    series = []
    for ours in True, False:
        for what, passes in ("encode", ("encode_residual", "encode")), ("decode and accumulate", ("accumulate",)):
            points = [(value, row) for row, (name, subject) in enumerate(subjects.items()) if name.startswith(BASELINE) != ours
                      and (value := figure(subject, passes, "yardsticks")) is not None]
            series.append({"name": what if ours else BASELINE + what, "points": points, "line": False, "marks": 0 if what == "encode" else 3,
                           "color": 0 if ours else 1})
    series = [one for one in series if one["points"]]
    if not series:
        return False
    draw(path, {"x": {"label": "time / time of x[i] *= a over the same floats; less is faster →", "log": True, "reverse": True},
                "y": {"rows": list(subjects)}, "series": series, "lines": [{"x": 1}]},
         title=f"Time of compressors: one core, {size_text(n)} floats")
    return True


def main(arguments):
    if len(arguments) != 1:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    path = pathlib.Path(arguments[0])
    results = json.loads(path.read_text())
    sizes = subjects_of(results)
    if not sizes:
        print("nothing was measured", file=sys.stderr)
        return 1
    written = [path.with_suffix(".md")]
    written[0].write_text(markdown(results, sizes))
    largest = next(iter(sizes))
    for draw, name in [(draw_errors, "error"), (draw_speeds, "speed")]:
        picture = path.with_name(f"{path.stem}_{name}.svg")
        if draw(largest, sizes[largest], picture):
            written.append(picture)
    print("\n".join(map(str, written)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
