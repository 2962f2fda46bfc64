#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a Markdown table and two pictures of what bench_compressor measured.

Usage: plot.py RESULTS.json     writes RESULTS.md, RESULTS_error.svg, RESULTS_speed.svg; the pictures need gnuplot
"""

import json
import math
import pathlib
import subprocess
import sys

BASELINE = "baseline: "
COLORS = {"ours": ("#1f5fa8", "#9cc3ea"), "baseline": ("#b5482a", "#efb9a5")}  # encode, accumulate
FONT = 12


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


def escaped(text):
    return text.replace("\\", "\\\\").replace('"', '\\"')


def gnuplot(script):
    subprocess.run(["gnuplot"], input=script, text=True, check=True)


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def place_labels(points, width, height):
    """A box for each (x, y, text), as near as there is room: none covers a point, a box, or a line to a box."""
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y, _ in points]
    turns = [turn * math.pi / 8 for turn in (0, 8, 4, 12, 2, 14, 6, 10, 1, 15, 7, 9, 3, 13, 5, 11)]
    boxes = {}
    for x, y, text in sorted(points, key=lambda point: -len(point[2])):
        lines = text.split("\n")
        w, h = max(map(len, lines)) * FONT * 0.62, len(lines) * FONT * 1.35

        def line_to(box):
            tip = (min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3]))
            steps = [k / 20 for k in range(3, 20)]
            spots = [(x + k * (tip[0] - x), y + k * (tip[1] - y)) for k in steps]
            return [(sx - 1, sy - 1, sx + 1, sy + 1) for sx, sy in spots]

        candidates = []
        for distance in range(9, 240, 5):
            for turn in turns:
                cx, cy = x + math.cos(turn) * (distance + w / 2), y + math.sin(turn) * (distance + h / 2)
                candidates.append((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2))
        own = (x - 5, y - 5, x + 5, y + 5)
        others = [one for one in taken if one != own]
        free = (box for box in candidates
                if 4 < box[0] and 4 < box[1] and box[2] < width - 4 and box[3] < height - 4 and not overlap(box, own)
                and not any(overlap(part, other) for part in [box, *line_to(box)] for other in others))
        boxes[x, y] = next(free, candidates[0])
        taken += [boxes[x, y], *line_to(boxes[x, y])]
    return [boxes[x, y] for x, y, _ in points]


def draw_errors(n, subjects, path):
    """Bits against error: a label for each point, one for several at the same place."""
    width, height, left, right, bottom, top = 980, 640, 80, 20, 60, 50
    plot_width, plot_height = width - left - right, height - bottom - top
    shown = {name: subject["encode"] for name, subject in subjects.items() if "error" in subject.get("encode", {})}
    if not shown:
        return False
    logs = [(math.log10(one["bits"]), math.log10(max(one["error"], 1e-9))) for one in shown.values()]
    low = [min(axis) - 0.25 for axis in zip(*logs)]
    high = [max(axis) + 0.25 for axis in zip(*logs)]

    places = {}
    for name, (bits, error) in zip(shown, logs):
        x = (bits - low[0]) / (high[0] - low[0]) * plot_width
        y = (error - low[1]) / (high[1] - low[1]) * plot_height
        near = next((place for place in places if math.dist(place, (x, y)) < 9), (x, y))
        places.setdefault(near, []).append(name)
    points = [(x, y, "\n".join(names)) for (x, y), names in places.items()]
    boxes = place_labels(points, plot_width, plot_height)

    labels = []
    for (x, y, text), box in zip(points, boxes):
        # From the point to the nearest spot of its label, where that is away.
        tip = (min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3]))
        if math.dist(tip, (x, y)) > 12:
            labels.append("set arrow from screen {},{} to screen {},{} nohead lc rgb '#999999'".format(
                (left + x) / width, (bottom + y) / height, (left + tip[0]) / width, (bottom + tip[1]) / height))
        # Lines begin or end at the side where the point is.
        middle, quarter = (box[0] + box[2]) / 2, (box[2] - box[0]) / 4
        side, at = (("left", box[0]) if middle > x + quarter else
                    ("right", box[2]) if middle < x - quarter else ("center", middle))
        first = (box[1] + box[3]) / 2 + text.count("\n") * FONT * 0.6
        labels.append('set label "{}" at screen {},{} {} font ",{}" noenhanced'.format(
            escaped(text).replace("\n", "\\n"), (left + at) / width, (bottom + first) / height, side, FONT))
    data = "\n".join(f"{10 ** (low[0] + x / plot_width * (high[0] - low[0]))} "
                     f"{10 ** (low[1] + y / plot_height * (high[1] - low[1]))}" for x, y, _ in points)
    gnuplot(f"""
set terminal svg size {width},{height} font "sans,{FONT + 1}" background "white"
set output "{escaped(str(path))}"
set lmargin at screen {left / width}; set rmargin at screen {1 - right / width}
set bmargin at screen {bottom / height}; set tmargin at screen {1 - top / height}
set logscale xy; set grid lc rgb "#e4e4e4"; unset key
set xrange [{10 ** low[0]}:{10 ** high[0]}]; set yrange [{10 ** low[1]}:{10 ** high[1]}]
set xlabel "bits an element"; set ylabel "relative error ||x - C(x)|| / ||x||" noenhanced
set xtics (0.0625, 0.125, 0.25, 0.5, 1, 2, 4, 8, 16); set format y "%g"
set title "What a bit buys: {size_text(n)} standard normal numbers, no feedback" font ",{FONT + 3}"
{chr(10).join(labels)}
plot "-" with points pt 7 ps 0.7 lc rgb "{COLORS['ours'][0]}"
{data}
e
""")
    return True


def draw_speeds(n, subjects, path):
    """Bars: GB/s of the message, with the yardsticks written beside them."""
    rows, most = [], 0.0
    for name, subject in subjects.items():
        kind = "baseline" if name.startswith(BASELINE) else "ours"
        encode = "encode_residual" if "encode_residual" in subject else "encode"
        for offset, color, what in [(0.2, 0, encode), (-0.2, 1, "accumulate")]:
            if what in subject:
                speed = 4e-9 * subject[what]["elements_per_second"]
                most = max(most, speed)
                text = digits(subject[what]["yardsticks"]) + (" (without residual)" if what == "encode" else "")
                rows.append((len(subjects) - list(subjects).index(name), offset, speed, COLORS[kind][color], text))
    if not rows:
        return False
    units = sorted(one["yardstick_seconds"] for subject in subjects.values() for one in subject.values())
    yardstick = 4e-9 * n / units[len(units) // 2]
    # One slow reader must not hide what matters, nor one that hardly reads at all.
    end = min(1.2 * max(most, yardstick), 1.3 * yardstick)
    width, height = 980, 110 + 30 * len(subjects)
    shapes = []
    for at, offset, speed, color, text in rows:
        y, tip = at + offset, min(speed, end * 0.86)
        shapes.append(f'set object rectangle from 0,{y - 0.18} to {tip},{y + 0.18} fc rgb "{color}" fs solid noborder')
        text += " and on" if tip < speed else ""
        shapes.append(f'set label "{text}" at {tip},{y} offset 0.4,0 font ",{FONT - 2}"')
    title = f"One core, {size_text(n)} floats; dashed: the yardstick, x[i] *= a"
    # gnuplot formats the names of ticks.
    names = ", ".join(f'"{escaped(name).replace("%", "%%")}" {len(subjects) - k}' for k, name in enumerate(subjects))
    keys = [("encode with residual", "ours", 0), ("accumulate", "ours", 1),
            ("baseline: encode", "baseline", 0), ("baseline: accumulate", "baseline", 1)]
    for k, (text, kind, color) in enumerate(keys):
        x, y = 0.16 + 0.2 * k, 1 - 44 / height
        shapes.append(f'set object rectangle center screen {x},{y} size screen 0.022,{10 / height} '
                      f'fc rgb "{COLORS[kind][color]}" fs solid noborder')
        shapes.append(f'set label "{text}" at screen {x + 0.016},{y}')
    gnuplot(f"""
set terminal svg size {width},{height} font "sans,{FONT}" background "white"
set output "{escaped(str(path))}"
set lmargin at screen 0.34; set rmargin at screen 0.97
set tmargin at screen {1 - 62 / height}; set bmargin at screen {60 / height}
set xrange [0:{end}]; set yrange [0.4:{len(subjects) + 0.6}]
set grid xtics lc rgb "#e4e4e4"; set ytics ({names}) noenhanced scale 0
set xlabel "GB/s of message (4 bytes an element); beside the bars: yardsticks"
set label "{title}" at screen 0.5,{1 - 20 / height} center noenhanced font ",{FONT + 3}"
unset key
set arrow from {yardstick},graph 0 to {yardstick},graph 1 nohead dt 2 lc rgb "#555555" front
{chr(10).join(shapes)}
plot NaN
""")
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
