#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws every picture of the project as SVG: one font, colors for light and for dark pages. Needs Python alone.

    scripts/draw.py < PICTURE.json > PICTURE.svg      what programs in C++ call; those in Python call draw()

A picture is {"title", "panels": [panel, ...]}, at most two panels to a row. A panel has
  title
  x, y      its axes: {"label", "log": false, "reverse": false, "range": [low, high]}, or, y alone, {"rows": [name, ...]}: y = 0 is the
            first row's, at the top
  series    [{"name", "points": [[x, y], ...], "line": true, "marks": false, "color": 0 to 9, "ink", "grey" or "pale", "dash": 0 to 2,
            "width": 2, "label": false}, ...]; with "label" the name is placed at an end of the line, else it is in the key above the panels
  lines     [{"x": value, "text"}, ...], dashed, from top to bottom
  height    of its frame (330 pixels)
  labels    [{"at": [x, y], "text"}, ...], placed near these points so that they cover nothing
"""

import itertools
import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"  # of equal widths
SIZE, SMALL, LINE = 14, 12, 18
WIDTH, HEIGHT = 860, 330  # of a picture, and of a panel's frame
PALE = {"paper": "#ffffff", "ink": "#1f2328", "soft": "#dfe3e7", "grey": "#6b747d", "pale": "#b3bcc5"}
DARK = {"paper": "#14181d", "ink": "#e2e6ea", "soft": "#343b43", "grey": "#8b949e", "pale": "#5b6671"}
COLORS = [("#0f67b1", "#6cb4f0"), ("#c24e08", "#ff9a57"), ("#1b7f3b", "#63c983"), ("#7b4fb5", "#bd9bf0"), ("#b8124f", "#ff7eb0"),
          ("#087a88", "#55cfdd"), ("#7a6a00", "#d6c94a"), ("#8c4a3b", "#dba08f"), ("#b03fa0", "#f29be0"), ("#4d5d6c", "#b4c2cf")]
DASHES = ["", "8 4", "3 3"]
SHAPES = ["M-4 0A4 4 0 1 1 4 0 4 4 0 1 1-4 0Z", "M-3.6-3.6H3.6V3.6H-3.6Z", "M0-4.8 4.6 3.6H-4.6Z", "M0-5.2 5.2 0 0 5.2-5.2 0Z",
          "M0 4.8 4.6-3.6H-4.6Z", "M-1.4-4.6H1.4V-1.4H4.6V1.4H1.4V4.6H-1.4V1.4H-4.6V-1.4H-1.4Z"]
CELL = 4  # pixels, of the grid in which labels find room


def style():
    def rules(names, colors):
        return "".join(f".{name}{{color:{color}}}" for name, color in zip(names, colors))

    names = [*PALE, *(f"c{k}" for k in range(len(COLORS)))]
    light, dark = (rules(names, [*shades.values(), *(pair[k] for pair in COLORS)]) for k, shades in enumerate((PALE, DARK)))
    return f"<style>{light}@media (prefers-color-scheme:dark){{{dark}}}</style>"


def width_of(text, size=SIZE):
    """About that of a line in Helvetica, in pixels."""
    return size * sum(0.28 if one in " .,:;|!'()ijlI/-" else 0.72 if one.isupper() or one in "<>+=~" else 0.86 if one in "mw%@→" else 0.55
                      for one in text)


def text(x, y, words, anchor="start", size=SIZE, color="ink", more=""):
    return f'<text class="{color}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{more}>{escape(words)}</text>'


def number(value):
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:.10g}".replace("-", "−")
    digits, power = f"{value:e}".split("e")
    power = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return ("" if float(digits) == 1 else f"{float(digits):g}·") + "10" + power


class Scale:
    """An axis of so many pixels: where a value is, and which ticks there are."""

    def __init__(self, axis, values, length, spacing):
        self.log, self.reverse, self.length = axis.get("log", False), axis.get("reverse", False), length
        self.count = max(2, length / spacing)
        low, high = map(self.share, axis.get("range") or (min(values), max(values)))
        room = 0 if "range" in axis else 0.04 * (high - low) or (0.1 if self.log else 0.1 * abs(high) or 1)
        self.low, self.high = low - room, high + room

    def share(self, value):
        return math.log10(value) if self.log else value

    def __call__(self, value):
        at = (self.share(value) - self.low) / (self.high - self.low)
        return (1 - at if self.reverse else at) * self.length

    def ticks(self):
        if self.log:
            decades = range(math.floor(self.low), math.ceil(self.high) + 1)
            steps = [parts for parts in ([1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8], [1, 1.5, 2, 3, 5, 7],
                                           [1, 2, 3, 5], [1, 2, 5], [1, 3], [1])
                     if len(parts) * (self.high - self.low) <= 1.4 * self.count]
            if steps:
                values = [part * 10.0 ** decade for decade in decades for part in steps[0]]
            else:
                every = math.ceil((self.high - self.low) / self.count)
                values = [10.0 ** decade for decade in decades if decade % every == 0]
            found = [value for value in values if self.low - 1e-9 <= math.log10(value) <= self.high + 1e-9]
            if len(found) > 2:
                return found
        low, high = (10 ** self.low, 10 ** self.high) if self.log else (self.low, self.high)
        for step in (part * 10.0 ** power for power in range(12, -13, -1) for part in (5, 2, 1)):
            found = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
            if len(found) >= max(2, 0.6 * self.count):
                return [float(f"{k * step:.12g}") for k in found]
        return []


def cells(box):
    left, top, right, bottom = (math.floor(side / CELL) for side in box)
    return {(i, j) for i in range(left, right + 1) for j in range(top, bottom + 1)}


def between(a, b):
    """Cells of a straight line."""
    steps = math.ceil(4 * math.dist(a, b) / CELL) or 1
    return {(math.floor((a[0] + k / steps * (b[0] - a[0])) / CELL), math.floor((a[1] + k / steps * (b[1] - a[1])) / CELL))
            for k in range(steps + 1)}


def place(labels, taken, width, height):
    """A box (left, top, right, bottom) and an anchor for each label (anchors, text), near one of its anchors: inside of the frame and off
    the cells that are taken, where there is such a place."""
    taken, found = set(taken), {}
    turns = [turn * math.pi / 8 for turn in (0, 12, 8, 4, 14, 10, 2, 6, 15, 9, 1, 7, 13, 11, 3, 5)]
    for k in sorted(range(len(labels)), key=lambda k: -len(labels[k][1])):
        anchors, words = labels[k]
        wide, high = max(map(width_of, words.split("\n"))) + 2, LINE * (words.count("\n") + 1) - 2
        best = math.inf, (*anchors[0], anchors[0][0] + wide, anchors[0][1] + high), anchors[0]
        for distance, (x, y), turn in itertools.product(range(8, 260, 5), anchors, turns):
            left = x + math.cos(turn) * (distance + wide / 2) - wide / 2
            top = y + math.sin(turn) * (distance + high / 2) - high / 2
            box = (left, top, left + wide, top + high)
            if left < 2 or top < 2 or box[2] > width - 2 or box[3] > height - 2:
                continue
            leader = between((x, y), nearest(box, (x, y))) - cells((x - 6, y - 6, x + 6, y + 6))
            cost = len(cells(box) & taken) + len(leader & taken)
            best = min(best, (cost, box, (x, y)), key=lambda one: one[0])
            if cost == 0:
                break
        found[k] = best[1:]
        taken |= cells(best[1]) | between(best[2], nearest(*best[1:]))
    return [found[k] for k in range(len(labels))]


def nearest(box, point):
    return min(max(point[0], box[0]), box[2]), min(max(point[1], box[1]), box[3])


def look_of(series):
    return series["color"] if isinstance(series["color"], str) else f"c{series['color'] % len(COLORS)}"


def mark(series, x, y):
    number = series["color"] if isinstance(series["color"], int) else 0
    shape = SHAPES[number % len(SHAPES) if series["marks"] is True else series["marks"]]
    return f'<path d="{shape}" transform="translate({x:.1f} {y:.1f}) scale({series.get("size", 0.85)})" fill="currentColor"/>'


def stroke(series, d):
    dash = DASHES[series.get("dash", 0)]
    return (f'<path d="{d}" fill="none" stroke="currentColor" stroke-width="{series.get("width", 2)}" stroke-linejoin="round"'
            + (f' stroke-dasharray="{dash}"' if dash else "") + "/>")


def frame(x_scale, y_scale, panel, rows, height, width):
    """Grid, ticks and names of the axes; the origin is the frame's upper left corner."""
    parts = []
    for value in x_scale.ticks():
        parts += [f'<path class="soft" d="M{x_scale(value):.1f} 0V{height:.1f}" stroke="currentColor"/>',
                  text(x_scale(value), height + 18, number(value), "middle", SMALL)]
    for k, name in enumerate(rows):
        parts.append(text(-8, y_scale(k) + 4.5, name, "end", SMALL))
    for value in [] if rows else y_scale.ticks():
        parts += [f'<path class="soft" d="M0 {height - y_scale(value):.1f}H{width:.1f}" stroke="currentColor"/>',
                  text(-8, height - y_scale(value) + 4.5, number(value), "end", SMALL)]
    parts.append(f'<path class="grey" d="M0 0V{height:.1f}H{width:.1f}" fill="none" stroke="currentColor"/>')
    parts.append(text(width / 2, height + 40, panel["x"].get("label", ""), "middle"))
    return parts


def draw_panel(panel, left, top, width, clip):
    """Its parts, and its whole height."""
    rows = panel["y"].get("rows", [])
    height = 25 * len(rows) if rows else panel.get("height", HEIGHT)
    points = [point for series in panel["series"] for point in series["points"]]
    lines = panel.get("lines", [])
    xs, ys = [point[0] for point in points] + [line["x"] for line in lines], [point[1] for point in points]
    probe = Scale(panel["y"], ys, height, 40) if not rows else None
    ticks = rows or [number(value) for value in probe.ticks()]
    margin = 14 + max(width_of(name, SMALL) for name in ticks) + (24 if panel["y"].get("label") else 0)
    width -= margin + 14
    x_scale = Scale(panel["x"], xs, width, 70)
    y_scale = Scale({"range": [-0.5, len(rows) - 0.5]}, [], height, 40) if rows else probe

    def at(point):
        return x_scale(point[0]), y_scale(point[1]) if rows else height - y_scale(point[1])

    drawn, labels, taken = [], [], set()
    for line in lines:
        x = x_scale(line["x"])
        drawn.append(f'<g class="grey">{stroke({"width": 1.2, "dash": 1}, f"M{x:.1f} 0V{height:.1f}")}</g>')
        taken |= between((x, 0), (x, height))
        if line.get("text"):
            labels.append(([(x, 12)], line["text"], "grey"))
    for series in panel["series"]:
        places = [at(point) for point in series["points"]]
        if not places:
            continue
        parts = []
        if series.get("line", True) and len(places) > 1:
            parts.append(stroke(series, "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)))
            for a, b in zip(places, places[1:]):
                taken |= between(a, b)
        if series.get("marks", False) is not False:
            parts += [mark(series, x, y) for x, y in places]
        for x, y in places:
            taken |= cells((x - 4, y - 4, x + 4, y + 4))
        drawn.append(f'<g class="{look_of(series)}" clip-path="url(#{clip})">{"".join(parts)}</g>')
        if series.get("label"):
            labels.append(([places[-1], places[0]], series["name"], look_of(series)))
    labels += [([at(label["at"])], label["text"], "ink") for label in panel.get("labels", [])]
    for (_, words, color), (box, (x, y)) in zip(labels, place([label[:2] for label in labels], taken, width, height)):
        tip = nearest(box, (x, y))
        if math.dist(tip, (x, y)) > 14:
            drawn.append(f'<g class="grey">{stroke({"width": 0.8}, f"M{x:.1f} {y:.1f}L{tip[0]:.1f} {tip[1]:.1f}")}</g>')
        anchor, edge = ("end", box[2] - 1) if box[2] < x else ("start", box[0] + 1)  # lines begin or end at the side of the point
        for k, line in enumerate(words.split("\n")):
            drawn.append(text(edge, box[1] + 13 + k * LINE, line, anchor, color=color))
    title = panel.get("title", "")
    down = top + (26 if title else 6)
    parts = [f'<g transform="translate({left + margin:.1f} {down:.1f})">',
             f'<clipPath id="{clip}"><rect x="-5" y="-5" width="{width + 10:.1f}" height="{height + 10:.1f}"/></clipPath>',
             text(width / 2, -10, title, "middle", SIZE, "ink", ' font-weight="bold"') if title else "",
             *frame(x_scale, y_scale, panel, rows, height, width), *drawn]
    if panel["y"].get("label"):
        middle = 10 - margin
        parts.append(text(middle, height / 2, panel["y"]["label"], "middle", more=f' transform="rotate(-90 {middle:.1f} {height / 2:.1f})"'))
    return [*parts, "</g>"], down - top + height + 56


def draw_key(entries, top):
    """A sample and the name of each series, in rows."""
    parts, x, y = [], 20.0, top
    for series in entries:
        wide = 46 + width_of(series["name"]) + 10
        if x + wide > WIDTH and x > 20:
            x, y = 20.0, y + 22
        sample = [stroke(series, f"M{x:.1f} {y:.1f}h26")] if series.get("line", True) else []
        if series.get("marks", False) is not False:
            sample.append(mark(series, x + 13, y))
        parts += [f'<g class="{look_of(series)}">{"".join(sample)}</g>', text(x + 33, y + 5, series["name"])]
        x += wide
    return parts, y + 20 if entries else top


def svg(picture):
    """The text of an SVG file. Throws ValueError if there is nothing to draw."""
    panels = picture["panels"]
    if not any(series["points"] for panel in panels for series in panel["series"]):
        raise ValueError("there is nothing to draw")
    looks, key = {}, {}
    for panel in panels:
        for k, series in enumerate(panel["series"]):
            # A name looks the same in all panels.
            first = looks.setdefault(series.get("name", k), len(looks))
            series.setdefault("color", first)
            if isinstance(series["color"], int) and series["color"] >= len(COLORS):
                series.setdefault("dash", series["color"] // len(COLORS) % len(DASHES))
            if series.get("name") and not series.get("label"):
                key.setdefault(series["name"], []).append(series)
    key = [each[0] for each in key.values() if any(series["points"] for series in each)]
    top, parts = 14, []
    if picture.get("title"):
        parts.append(text(20, 30, picture["title"], size=16, more=' font-weight="bold"'))
        top = 44
    more, top = draw_key(key, top + 10 if key else top)
    parts += more
    columns = min(2, len(panels))
    for first in range(0, len(panels), columns):
        heights = []
        for k, panel in enumerate(panels[first:first + columns]):
            more, height = draw_panel(panel, 6 + k * (WIDTH - 6) / columns, top, (WIDTH - 6) / columns, f"panel{first + k}")
            parts += more
            heights.append(height)
        top += max(heights)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top:.0f}" viewBox="0 0 {WIDTH} {top:.0f}" '
            f'font-family="{FONT}" fill="currentColor">{style()}<rect class="paper" width="100%" height="100%" rx="6"/>\n'
            + "\n".join(part for part in parts if part) + "\n</svg>\n")


def draw(path, *panels, title=""):
    pathlib.Path(path).write_text(svg({"title": title, "panels": list(panels)}))


if __name__ == "__main__":
    try:
        sys.stdout.write(svg(json.load(sys.stdin)))
    except (ValueError, KeyError, TypeError) as fault:
        sys.exit(f"draw.py: {type(fault).__name__}: {fault}")
