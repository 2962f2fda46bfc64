# SPDX-License-Identifier: Apache-2.0
"""Formulas of the pages, which are plain text there as in the code's comments, in MathML for the site: browsers set it without a script
and without a network. `m_i = beta1 m + (1 - beta1) g_i` gets its subscripts and Greek letters; code stays code."""

import html
import re

GREEK = dict(zip("alpha beta gamma delta epsilon zeta eta theta lambda mu pi rho sigma tau phi psi omega Delta".split(), "αβγδεζηθλμπρστφψωΔ"))
SIGNS = {"*": "⋅", "<=": "≤", ">=": "≥", "!=": "≠", "->": "→", "-": "−", "+-": "±"}
FUNCTIONS = set("sqrt sgn sign min max clamp norm mean sum ceil floor abs log log2 exp round clip enc8 dec8 trace OuterOpt Forward fl Q4 DCT orthonormalize".split())
TOKEN = re.compile(r"\s*(?:(?P<number>\d+(?:[.,']\d+)*)|(?P<name>[^\W\d_]+\d*(?:_[^\W\d_]\w+)*)|(?P<sign>\|\||<=|>=|!=|->|\+-|[-+*/=<>|,~^_()']))")
CODE = re.compile(r"[.;{}&:\[\]\"\\$?#@%]|\w<|==|--|\+\+|\(\)|\b(?:const|auto|float|int|double|true|false)\b")


class NotAFormula(Exception):
    pass


def is_variable(name):
    return len(name) == 1 or re.sub(r"\d+$", "", name) in GREEK


def letters(name):
    """MathML of a name: a letter, Greek or not, with digits below; a longer one as it is."""
    word, digits = re.fullmatch(r"(.*?)(\d*)", name).groups()
    if word in GREEK or (len(word) == 1 and digits):
        return f"<msub><mi>{GREEK.get(word, word)}</mi><mn>{digits}</mn></msub>" if digits else f"<mi>{GREEK[word]}</mi>"
    return f"<mi>{html.escape(name)}</mi>"


class Reader:
    def __init__(self, text):
        self.tokens, at = [], 0
        while at < len(text.rstrip()):
            match = TOKEN.match(text, at)
            if not match:
                raise NotAFormula(text)
            spaced = match.start(match.lastgroup) > at
            word = match[match.lastgroup]
            head, _, tail = word.partition("_")
            if match.lastgroup == "name" and tail and (is_variable(head) or head in FUNCTIONS):
                # A subscript, unlike the rest of learning_rate.
                self.tokens += [("name", head, spaced), ("sign", "_", False)]
                self.tokens += [("sign", "(", False), *(("name", index, False) for index in tail), ("sign", ")", False)] if re.fullmatch(
                    "[ijkl]{2}", tail) else [("name", tail, False)]
            else:
                self.tokens.append((match.lastgroup, word, spaced))
            at = match.end()
        self.at = 0

    def next_is(self, *words):
        return self.at < len(self.tokens) and self.tokens[self.at][1] in words

    def atom(self, bare=False):
        """With `bare` the brackets around it are left out: it is below or above another one."""
        if self.at == len(self.tokens):
            raise NotAFormula
        kind, word, _ = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return f"<mn>{word}</mn>"
        if kind == "name":
            if self.next_is("(") and not self.tokens[self.at][2] and len(word) > 1 and word not in FUNCTIONS and not is_variable(word):
                raise NotAFormula(word)
            if word == "sqrt" and self.next_is("("):
                self.at += 1
                inside = self.row(")")
                self.at += 1
                return f"<msqrt>{inside}</msqrt>"
            return "<mo>∑</mo>" if word == "sum" and self.next_is("_") else letters(word)
        if word in ("(", "|", "||"):
            inside = self.row(")" if word == "(" else word)
            self.at += 1
            if bare and word == "(":
                return f"<mrow>{inside}</mrow>"
            open, close = {"(": "()", "|": "||", "||": "‖‖"}[word]
            return f'<mrow><mo stretchy="false">{open}</mo>{inside}<mo stretchy="false">{close}</mo></mrow>'
        if word == "-":
            return f"<mrow><mo>−</mo>{self.atom()}</mrow>"
        raise NotAFormula(word)

    def scripted(self):
        parts = self.atom()
        while self.next_is("_", "^", "~", "'"):
            sign = self.tokens[self.at][1]
            self.at += 1
            if sign == "'":
                parts = f"<msup>{parts}<mo>′</mo></msup>"
            elif sign == "~":
                parts = f"<mover>{parts}<mo>~</mo></mover>"
            else:
                tag = "msub" if sign == "_" else "msup"
                parts = f"<{tag}>{parts}{self.atom(bare=True)}</{tag}>"
        return parts

    def row(self, end=None):
        """All up to a sign that ends it. Neighbours without a sign between them are apart by a space, words by a larger one."""
        parts, before = [], None
        while self.at < len(self.tokens):
            kind, word, spaced = self.tokens[self.at]
            if word == end:
                return "".join(parts)
            if kind == "sign" and word not in ("(", "|", "||") and not (word == "-" and before is None):
                if word in (")", "_", "^", "~", "'"):
                    raise NotAFormula(word)
                self.at += 1
                parts.append(f"<mo>{html.escape(SIGNS.get(word, word))}</mo>")
                before = None
                continue
            if before and spaced:
                words = any(len(one) > 1 and not is_variable(one) for one in (before, word))
                parts.append(f'<mspace width="0.{3 if words else 15}em"></mspace>')
            parts.append(self.scripted())
            before = word
        if end:
            raise NotAFormula(end)
        return "".join(parts)


def mathml(text):
    """MathML of a formula. Throws NotAFormula if it can't be read as one."""
    return f"<math><mrow>{Reader(text).row()}</mrow></math>"


def is_formula(text):
    """Code has other characters, or only names; a formula has a variable of one letter or of Greek, and something done to it."""
    variables = [name for name in re.findall(r"(?<![^\W_])[^\W\d_]+\d*", text) if is_variable(name)]
    return bool(not CODE.search(text) and variables and re.search(r"\s(?:[-+*/=<>]|<=|>=)\s|\^|\|\||sqrt|(?<![^\W_])[^\W\d_]_\w|'", text))


def block(match):
    """Rows and columns of a block of formulas, words between them as they are."""
    rows = [re.split(r"\s{3,}", line.rstrip()) for line in html.unescape(match[1]).rstrip().split("\n")]
    columns = max(map(len, rows))

    def cells(row):
        spans = [1] * (len(row) - 1) + [columns + 1 - len(row)]
        return "".join(f'<td colspan="{span}">{inline(segment) or html.escape(segment)}</td>' for span, segment in zip(spans, row))

    return '<table class="formula"><tr>' + "</tr><tr>".join(map(cells, rows)) + "</tr></table>"


def inline(text):
    """MathML, or None if it isn't a formula."""
    try:
        return mathml(text) if is_formula(text) else None
    except NotAFormula:
        return None


def set_formulas(page):
    """A page's HTML with MathML in the place of the code that is a formula, and of blocks of class `formula`."""
    page = re.sub(r'<pre class="formula">(.*?)</pre>', block, page, flags=re.DOTALL)
    parts = re.split(r"(<pre.*?</pre>)", page, flags=re.DOTALL)
    return "".join(part if part.startswith("<pre") else re.sub(
        r"<code>([^<]*)</code>", lambda match: inline(html.unescape(match[1])) or match[0], part) for part in parts)
