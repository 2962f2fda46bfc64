#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails if a public name of namespace terse occurs in no page, example or tool: it belongs on a page if a user must name it, and
otherwise in terse::detail. Deprecated names are left out.

mentions.py ROOT
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

root = pathlib.Path(sys.argv[1])
index = ElementTree.parse(root / "build/api/xml/index.xml").getroot()
names = set()
for compound in index:
    name = compound.find("name").text
    if compound.get("kind") == "namespace" and name == "terse":
        names |= {member.find("name").text for member in compound.findall("member") if member.get("kind") != "enumvalue"}
    elif compound.get("kind") in ("class", "struct", "concept", "union"):
        names |= set(re.findall(r"^terse::(\w+)(?: <.*>)?$", name))
names = {name for name in names if re.fullmatch(r"\w+", name)}  # no operators
for header in (root / "include").rglob("*.hpp"):
    for alias, constant in re.findall(r"using (\w+) \[\[deprecated|\[\[deprecated.*? (\w+)\{\};", header.read_text()):
        names.discard(alias or constant)
if len(names) < 300:
    sys.exit(f"mentions.py: only {len(names)} names in {root}/build/api/xml")

words = set()
for folder in ("README.md", "docs", "examples", "tools", "bench", "python"):
    path = root / folder
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file() and file.suffix in ("", ".md", ".hpp", ".cpp", ".cu", ".cuh", ".inc", ".py", ".toml"):
            words |= set(re.findall(r"\w+", file.read_text(encoding="utf-8", errors="ignore")))
missing = sorted(names - words)
for name in missing:
    print(f"terse::{name} occurs in no page, example or tool: move it to terse::detail, or describe it where a user needs it")
sys.exit(bool(missing))
