#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/site has built: nothing is loaded from elsewhere, the search has its index in a script, the first page is the README's, the
index of names leads to descriptions that are there, and in the reference no word of a sentence is a link to a type.

Usage: built.py SITE
"""

import pathlib
import re
import sys

site = pathlib.Path(sys.argv[1])


def expect(condition, what):
    if not condition:
        sys.exit(what)


pages = [path for path in site.rglob("*.html") if path.relative_to(site).parts[0] != "api"]
expect(len(pages) > 80, f"only {len(pages)} pages")
for path in pages:
    elsewhere = re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="?(?:https?:)?//[^>]*>', path.read_text())
    expect(not elsewhere, f"{path} loads {elsewhere}")
expect((site / "search/search_index.js").read_text().startswith("var __index = {"), "the search has no index in a script")
first = re.sub(r"<[^>]*>", "", (site / "index.html").read_text())
expect("int main() {" in first and "Is it for you?" in first and "Documentation" in first, "the first page is not the README's")
expect("<math>" in (site / "algorithms/one-bit-adam.html").read_text(), "formulas are not set")

targets, names = {}, re.findall(r'href="?api/([\w.]+html)(?:#(\w+))?"?><code>', (site / "api.html").read_text())
expect(len(names) > 600, f"the index has {len(names)} names only")
for page, anchor in names:
    if page not in targets:
        text = (site / "api" / page).read_text()
        targets[page] = text, set(re.findall(r'id="(\w+)"', text))
    expect(not anchor or anchor in targets[page][1], f"api.html: there is no api/{page}#{anchor}")
for page, (text, _) in targets.items():
    for sentence in re.findall(r"<p>(.*?)</p>", text, re.DOTALL):
        sentence = re.sub(r"<code>#include.*?</code>", "", sentence)
        expect('<a class="el"' not in sentence, f"api/{page}: a word is a link in: {sentence}")
