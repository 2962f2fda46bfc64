#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails where a field that users may set has no description: a public member, not static and with a default, of a struct that
stands in a namespace. Doxygen's warnings don't tell these from other members; its XML does.

Usage: settings.py FOLDER       of Doxygen's XML
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree


def text(member, tag):
    return "".join(member.find(tag).itertext()).strip() if member.find(tag) is not None else ""


structs = fields = 0
missing = set()
for path in pathlib.Path(sys.argv[1]).glob("struct*.xml"):
    struct = ElementTree.parse(path).find("compounddef")
    name = re.sub(r"<.*", "", text(struct, "compoundname")).strip()
    structs += 1
    if not re.fullmatch(r"([a-z_]+::)+\w+(::Of)?", name):
        continue
    for member in struct.iter("memberdef"):
        if member.get("kind") != "variable" or member.get("static") == "yes" or member.get("prot") != "public":
            continue
        if member.find("initializer") is None:
            continue
        fields += 1
        if not text(member, "briefdescription") and not text(member, "detaileddescription"):
            where = member.find("location")
            missing.add(f"{where.get('file')}:{where.get('line')}: {name}::{text(member, 'name')} has no description")

if fields < 300:
    missing.add(f"settings.py found {fields} fields in {structs} structs, too few: has Doxygen's XML changed?")
print("\n".join(sorted(missing)), end="\n" if missing else "")
sys.exit(bool(missing))
