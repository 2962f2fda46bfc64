#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds comments of public headers that begin with a question's word in the place of a noun or a verb, and words that a plainer one
replaces. Names in backquotes are not words.

prose.py ROOT
"""

import pathlib
import re
import sys

OPENING = re.compile(r"(What|Whether|Where|Who|Whose|Whoever|Whatever|How|Both\.|The same\.)(?![\w'])")
PLAINER = {
    "behind": "after", "beside": "next to, with", "alike": "equal, the same", "apart": "separately", "lest": "so that ... not",
    "anew": "again", "whatever": "any", "nobody": "no rank, no thread", "for ever": "forever", "of one's own": "custom",
}
WORD = re.compile(r"\b(" + "|".join(PLAINER) + r")\b(?!\()", re.IGNORECASE)  # not the name of a function
# "An interface behind which ..." is plain English.
ORDINARY = re.compile(r"\bbehind (an? |one |the )?(\w+ )?(interface|type|base)", re.IGNORECASE)

headers = sorted(path for path in (pathlib.Path(sys.argv[1]) / "include").rglob("*") if path.suffix in (".hpp", ".ipp", ".cuh"))
if len(headers) < 300:
    sys.exit(f"prose.py: only {len(headers)} headers below {sys.argv[1]}")
found, comments = 0, 0
for header in headers:
    before = ""
    for number, line in enumerate(header.read_text(encoding="utf-8").splitlines(), 1):
        whole = re.match(r"\s*///?<? ?(.*)", line)
        rest = whole or re.search(r"//(?:/<)? (.*)", re.sub(r'"(?:\\.|[^"\\])*"', '""', line))
        text = rest[1] if rest else ""
        comments += bool(rest)
        # A paragraph's first line alone is an opening.
        if not (whole and before) and (opening := OPENING.match(text)):
            print(f"{header}:{number}: a comment begins with '{opening[1]}': begin with the noun or the verb")
            found += 1
        for word in WORD.findall(ORDINARY.sub("", re.sub(r"`[^`]*`", "", text))):
            print(f"{header}:{number}: '{word}': {PLAINER[word.lower()]}")
            found += 1
        before = text if whole else ""
if comments < 5000:
    sys.exit(f"prose.py: only {comments} lines of comments")
sys.exit(found > 0)
