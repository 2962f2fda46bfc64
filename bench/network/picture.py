# SPDX-License-Identifier: Apache-2.0
"""Lines with their names at their ends, by gnuplot."""

import math
import shutil
import subprocess
import sys

FONT = 13
LETTER, LINE = 0.6 * FONT, 1.3 * FONT  # about the most that a letter is wide, and a line of text high, pixels
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 470, 400, 74, 56, 16  # of the frame, and beside it
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"]
BOUND = "#909090"


def spread(wanted, height):
    """Heights near those wanted, in order, of names a line apart within a frame."""
    order = sorted(range(len(wanted)), key=lambda k: wanted[k])
    places = {}
    at = LINE / 2
    for k in order:
        places[k] = at = max(at, wanted[k])
        at += LINE
    at = height - LINE / 2
    for k in reversed(order):
        places[k] = min(places[k], at)
        at = places[k] - LINE
    return [places[k] for k in range(len(wanted))]


def draw(path, lines, xlabel, ylabel, logarithmic="xy", reverse=False, falling=False, level=None):
    """`lines`: (name, [(x, y), ...], bound), each in the order of x as it is drawn; a bound is dashed, without points. With
    `reverse` x falls from left to right. `falling`: of many points, with their names in the upper right corner, where they don't
    come. `level`: a dotted horizontal line."""
    if shutil.which("gnuplot") is None:
        print("no picture: gnuplot is missing", file=sys.stderr)
        return
    scale = [math.log if axis in logarithmic else float for axis in "xy"]
    back = [math.exp if axis in logarithmic else float for axis in "xy"]
    ranges = []
    for axis in range(2):
        values = [scale[axis](point[axis]) for _, line, _ in lines for point in line]
        values += [scale[1](level)] if axis == 1 and level is not None else []
        low, high = min(values), max(values)
        room = (high - low) * (0.04 if axis == 1 else 0.03) or 1
        ranges.append((low - room, high + room))
    (left, right), (low, high) = ranges
    ends = [((scale[0](line[-1][0]) - left) / (right - left), (scale[1](line[-1][1]) - low) / (high - low))
            for _, line, _ in lines]
    ends = [(1 - x if reverse else x, y) for x, y in ends]
    places = spread([y * HEIGHT for _, y in ends], HEIGHT)
    width = LEFT + WIDTH + (16 if falling else 40 + max(len(name) for name, _, _ in lines) * LETTER)
    height = TOP + HEIGHT + BOTTOM
    x_from, x_to = (back[0](value) for value in ((right, left) if reverse else (left, right)))
    script = [f"set terminal svg size {width:.0f},{height} font 'sans,{FONT}' background 'white'; set output '{path}'",
              f"set lmargin at screen {LEFT / width}; set rmargin at screen {(LEFT + WIDTH) / width}",
              f"set bmargin at screen {BOTTOM / height}; set tmargin at screen {(BOTTOM + HEIGHT) / height}",
              f"set xrange [{x_from}:{x_to}]; set yrange [{back[1](low)}:{back[1](high)}]",
              f"set logscale {logarithmic}" if logarithmic else "unset logscale",
              "set grid lc rgb '#e4e4e4'; set key top right noenhanced; set tics nomirror scale 0.5; set format '%g'",
              f"set xlabel '{xlabel}' offset 0,0.3; set ylabel '{ylabel}' offset 1.2,0"]
    if level is not None:
        script.append(f"set arrow from graph 0,first {level} to graph 1,first {level} nohead dt 3 lc rgb '#505050'")
    plots, number = [], 0
    for k, ((name, line, bound), (x, y), place) in enumerate(zip(lines, ends, places)):
        color = BOUND if bound else COLORS[number % len(COLORS)]
        point = [7, 9, 5, 13, 11][number // len(COLORS) % 5]
        number += not bound
        script.append(f"$line{k} << EOD\n" + "\n".join(f"{a} {b}" for a, b in line) + "\nEOD")
        how = "lines dt 2" if bound else "lines" if falling else f"linespoints pt {point} ps 0.5"
        plots.append(f"$line{k} using 1:2 with {how} lw 1.6 lc rgb '{color}' " + (f"title '{name}'" if falling else "notitle"))
        if falling:
            continue
        script.append(f"set label '{name}' at graph 1,{place / HEIGHT} left offset 2.6,0 noenhanced textcolor rgb '{color}'")
        script.append(f"set arrow from graph {x},{y} to graph {1 + 17 / WIDTH},{place / HEIGHT} nohead lw 0.6 lc rgb '{color}'")
    script.append("plot " + ", ".join(plots))
    subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=True)
