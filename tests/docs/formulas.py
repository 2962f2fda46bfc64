#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/formulas.py, which sets the formulas of the site: their MathML, code that stays code, and all pages.

Usage: formulas.py ROOT
"""

import html
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

sys.dont_write_bytecode = True
root = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(root / "scripts"))
import formulas  # noqa: E402

SET = {
    "x_i": "<msub><mi>x</mi><mi>i</mi></msub>",
    "beta2 v": '<msub><mi>β</mi><mn>2</mn></msub><mspace width="0.15em"></mspace><mi>v</mi>',
    "a * b - 1": "<mi>a</mi><mo>⋅</mo><mi>b</mi><mo>−</mo><mn>1</mn>",
    "rate g": '<mi>rate</mi><mspace width="0.3em"></mspace><mi>g</mi>',
    "learning_rate <= 2": "<mi>learning_rate</mi><mo>≤</mo><mn>2</mn>",
    "sqrt(v)": "<msqrt><mi>v</mi></msqrt>",
    "2^(1 - n)": "<msup><mn>2</mn><mrow><mn>1</mn><mo>−</mo><mi>n</mi></mrow></msup>",
    "T^-1": "<msup><mi>T</mi><mrow><mo>−</mo><mn>1</mn></mrow></msup>",
    "sum_j W_ij": "<msub><mo>∑</mo><mi>j</mi></msub><mspace width=\"0.3em\"></mspace>"
                  "<msub><mi>W</mi><mrow><mi>i</mi><mi>j</mi></mrow></msub>",
    "||y||_2": '<msub><mrow><mo stretchy="false">‖</mo><mi>y</mi><mo stretchy="false">‖</mo></mrow><mn>2</mn></msub>',
    "g~ + x'": "<mover><mi>g</mi><mo>~</mo></mover><mo>+</mo><msup><mi>x</mi><mo>′</mo></msup>",
}
CODE = ["beta1", "rate", "Ring", "x[i] *= a", "keep_if(nesterov, g + momentum * v, v)", "a.size() / 2", "x == y", "-x y z", "(a + b",
        "a + b)", "f(x, g) = step(x) + 1", "--seed 1", "terse::Ring"]


def expect(condition, what):
    if not condition:
        sys.exit(what)


for text, wanted in SET.items():
    found = formulas.mathml(text)
    expect(found == f"<math><mrow>{wanted}</mrow></math>", f"{text}: {found}")
for text in CODE:
    page = f"<p><code>{html.escape(text)}</code></p>"
    expect(formulas.set_formulas(page) == page, f"{text} was set: {formulas.set_formulas(page)}")
kept = "<pre><code>x_i = y_i</code></pre>"
expect(formulas.set_formulas(kept) == kept, "a formula in a listing was set")
rows = ElementTree.fromstring(formulas.set_formulas('<pre class="formula">first   x_i = 1   y = z\nlast    two words, no formula\n</pre>'))
spans = [[cell.get("colspan") for cell in row] for row in rows]
expect(rows.tag == "table" and spans == [["1", "1", "1"], ["1", "2"]] and len(list(rows.iter("math"))) == 2, f"a block: {spans}")

count = 0
for path in (root / "docs").rglob("*.md"):
    for text in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"(?ms)^```.*?^```", "", path.read_text())):
        if found := formulas.inline(text):
            ElementTree.fromstring(found)
            count += 1
expect(count > 600, f"only {count} formulas are on the pages")
