#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/draw.py: labels that cover neither each other nor lines, on random panels; ticks; values where they belong; names with any
characters; the same look of a name in all panels; colors for dark pages; refusals. Every picture of the docs is its work.

Usage: draw.py ROOT
"""

import json
import math
import pathlib
import random
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

sys.dont_write_bytecode = True
root = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(root / "scripts"))
import draw  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def expect(condition, what):
    if not condition:
        sys.exit(what)


def check_labels(source):
    count = source.randrange(1, 8)
    xs, ys = (sorted(source.sample(range(1, 380), count)) for _ in range(2))
    points = list(zip(xs, ys))
    labels = [([point], source.choice(["lamb", "one-bit-adam", "swarm-sgd-non-blocking", "two\nlines"])) for point in points]
    taken = set().union(*(draw.between(a, b) for a, b in zip(points, points[1:])), *(draw.between(one, one) for one in points))
    found = draw.place(labels, taken, 390, 390)
    for k, (box, anchor) in enumerate(found):
        expect(anchor == points[k], f"label {k} of {labels} is at {anchor}")
        expect(box[0] >= 0 and box[1] >= 0 and box[2] <= 390 and box[3] <= 390, f"label {k} of {labels} leaves the frame: {box}")
        for other, _ in found[:k]:
            apart = box[2] <= other[0] or other[2] <= box[0] or box[3] <= other[1] or other[3] <= box[1]
            expect(apart, f"label {k} and another of {labels} overlap: {found}")
        for a, b in zip(points, points[1:] + points[-1:]):
            for step in range(21):
                x, y = (one + step / 20 * (two - one) for one, two in zip(a, b))
                expect(not (box[0] < x < box[2] and box[1] < y < box[3]), f"label {k} of {labels} covers the line at {x}, {y}")


def check_ticks(source):
    for _ in range(300):
        log, low = source.random() < 0.5, 10 ** source.uniform(-9, 6)
        high = low * 10 ** source.uniform(0.01, 9) if log else low + 10 ** source.uniform(-6, 6)
        scale = draw.Scale({"log": log, "range": [low, high]}, [], source.choice([150, 330, 700]), 60)
        ticks = scale.ticks()
        expect(2 <= len(ticks) <= 1 + 1.5 * scale.count or (log and len(ticks) >= 1), f"ticks of {low} to {high}, log {log}: {ticks}")
        for value in ticks:
            slack = 1e-6 * (high - low)
            expect(low - slack <= value <= high + slack, f"tick {value} is outside of {low} to {high}")
    expect(draw.number(1e-12) == "10⁻¹²" and draw.number(2.5e7) == "2.5·10⁷" and draw.number(-0.25) == "−0.25", "numbers in words")


def check_values():
    name = 'a <b> & "c" 50 %'
    line = {"name": name, "points": [[1, 10], [10, 1], [100, 0.1]], "marks": True}
    panels = [{"title": "left", "x": {"log": True, "reverse": True, "range": [1, 100]}, "y": {"log": True, "range": [0.1, 10]}, "series": [
                  {"points": [[1, 1]]}, line], "lines": [{"x": 10, "text": "half"}]},
              {"x": {}, "y": {"rows": ["first", "second"]}, "series": [line | {"points": [[0, 0], [1, 1]]}, {"name": "none", "points": []}]}]
    text = draw.svg(json.loads(json.dumps({"panels": panels, "title": "T"})))
    svg = ElementTree.fromstring(text)
    words = ["".join(one.itertext()) for one in svg.iter(SVG + "text")]
    expect(words.count(name) == 1 and "none" not in words, f"the key: {words}")
    expect({"left", "half", "first", "second", "T"} <= set(words), f"words: {words}")
    expect("prefers-color-scheme:dark" in text, "no colors for dark pages")
    left, right = (group for group in svg.iter(SVG + "g") if group.get("transform"))
    looks = [[one.get("class") for one in group.iter(SVG + "g") if "clip-path" in one.attrib] for group in (left, right)]
    expect(looks[0][1] == looks[1][0], f"a name has two looks: {looks}")
    width, height = (float(left.find(f"{SVG}clipPath/{SVG}rect").get(side)) - 10 for side in ("width", "height"))
    path = next(one for one in left.iter(SVG + "path") if one.get("d").count("L") == 2 and one.get("stroke-width") == "2")
    places = [tuple(map(float, one.split())) for one in path.get("d")[1:].split("L")]
    for (x, y), (to_x, to_y) in zip(places, [(width, 0), (width / 2, height / 2), (0, height)]):
        expect(math.dist((x, y), (to_x, to_y)) < 0.2, f"{places} in a frame of {width} x {height}")


def check_program():
    def run(text):
        return subprocess.run([sys.executable, root / "scripts/draw.py"], input=text, capture_output=True, text=True, timeout=60)

    picture = {"panels": [{"x": {}, "y": {}, "series": [{"name": "one", "points": [[0, 1], [1, 2]]}]}]}
    done = run(json.dumps(picture))
    expect(done.returncode == 0 and done.stdout == draw.svg(picture), done.stderr)
    for wrong in ("", "{}", '{"panels": []}', '{"panels": [{"x": {}, "y": {}, "series": [{"points": []}]}]}'):
        done = run(wrong)
        expect(done.returncode != 0 and done.stderr.startswith("draw.py: "), f"{wrong} was drawn, or refused without words: {done.stderr}")


def check_pages():
    style = draw.style()
    for path in sorted((root / "docs/images").glob("*.svg")):
        text = path.read_text()
        ElementTree.fromstring(text)
        expect(style in text and set(re.findall('font-family="([^"]*)"', text)) == {draw.FONT}, f"{path} is not scripts/draw.py's")


numbers = random.Random(1)
for _ in range(300):
    check_labels(numbers)
check_ticks(numbers)
check_values()
check_program()
check_pages()
