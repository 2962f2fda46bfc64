#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what people read first: in README.md, CONTRIBUTING.md and docs/ every link leads to a file and a heading that are there, every
command begins with a program that is there, and every C++ snippet is either a part of a program of this repository, word by word,
or compiles. Every page of docs/ is in the navigation of the site, mkdocs.yml.

A snippet that is no such part is compiled as it stands: what begins like a declaration at namespace scope, with those of its page
before it, the rest in a function with an optimizer's usual surroundings (context.hpp). What else it needs stands before it in the page,
where readers don't see it. What has no semicolon is a synopsis.

    <!-- given: Net net; -->              declarations, for this snippet
    <!-- not compiled: it is a synopsis -->

Usage: check.py [--list] [COMPILER FLAG ...]
  --list     say of each snippet what became of it
  COMPILER   compiles snippets; without one they are not"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = ("bench", "examples", "tests", "tools", "include")
# What chunks of a snippet begin with that stand at namespace scope.
DECLARATION = re.compile(r"(template\b|struct\b|class\b|namespace\b(?!.*=)|extern\b|#include\b|int main\(|(?:void|terse::\w+) \w+\(.*\{$)")

Snippet = collections.namedtuple("Snippet", "page line text given excuse")


def read(page):
    """The page's lines outside of code, by number; its snippets of C++; and the lines of its shell snippets."""
    prose, snippets, shell = {}, [], []
    given, excuse, code = [], "", None
    for number, line in enumerate(page.read_text().split("\n"), 1):
        if code is not None:
            if line.strip() != "```":
                code.append(line)
                continue
            if language == "cpp":
                snippets.append(Snippet(page, begin, "\n".join(code), "\n".join(given), excuse))
                given, excuse = [], ""
            elif language == "sh":
                shell += enumerate(code, begin)
            code = None
        elif line.strip().startswith("```"):
            language, code, begin = line.strip()[3:], [], number + 1
        elif match := re.fullmatch(r"<!-- (given|not compiled): (.*) -->", line.strip()):
            if match[1] == "given":
                given.append(match[2])
            else:
                excuse = match[2]
        else:
            prose[number] = line
    return prose, snippets, shell


def anchors(page):
    """Of a page's headings, as hosts of Markdown make them."""
    found = collections.Counter()
    names = set()
    for line in read(page)[0].values():
        if not line.startswith("#"):
            continue
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        names.add(name if found[name] == 0 else f"{name}-{found[name]}")
        found[name] += 1
    return names


def wrong_links(page, prose):
    for match in re.finditer(r"\]\(([^)\s]+)\)", "\n".join(prose.values())):
        target, _, anchor = match[1].partition("#")
        if re.match(r"\w+:", target):
            continue
        where = (page.parent / target).resolve() if target else page
        if not where.exists():
            yield f"{page.relative_to(ROOT)}: {match[1]}: there is no such file"
        elif anchor and where.suffix == ".md" and anchor not in anchors(where):
            yield f"{page.relative_to(ROOT)}: {match[1]}: there is no such heading"


def is_target(word):
    """Whether a folder's programs have such a name."""
    path = pathlib.Path(word)
    build = ROOT / path.parent / "meson.build"
    name = re.sub("^test_(cuda_)?", "", path.name)
    return build.exists() and re.search(rf"'(test_)?{name}'", build.read_text())


def wrong_commands(page, shell):
    for number, line in shell:
        for word in re.findall(r"(?<![\w/.=-])(?:%s)/[\w./-]+" % "|".join(PROGRAMS), line):
            if not (ROOT / word).exists() and not is_target(word):
                yield f"{page.relative_to(ROOT)}:{number}: there is no {word}"


def missing_in_site():
    """Pages of docs/ that mkdocs.yml has not in its navigation, and what it has there that is no page."""
    listed = collections.Counter(re.findall(r"^ *- ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    for page in sorted(pages - set(listed)):
        yield f"mkdocs.yml: docs/{page} is not in the navigation"
    for page in sorted(set(listed) - pages - {"api.md"}):  # which scripts/site_hooks.py makes
        yield f"mkdocs.yml: there is no docs/{page}"
    for page, count in listed.items():
        if count > 1:
            yield f"mkdocs.yml: docs/{page} is in the navigation {count} times"


def sources():
    """The repository's own C++, file by file, a blank for each gap."""
    for suffix in ("*.hpp", "*.cpp", "*.inc", "*.cu", "*.cuh", "*.py"):
        for folder in PROGRAMS:
            for path in sorted((ROOT / folder).rglob(suffix)):
                yield " ".join(path.read_text().split())


def chunks(text):
    """What blank lines part, but not within braces."""
    parts, depth = [[]], 0
    for line in text.split("\n"):
        if not line.strip() and depth == 0:
            parts.append([])
            continue
        parts[-1].append(line)
        code = line.split("//")[0]
        depth += code.count("{") + code.count("(") - code.count("}") - code.count(")")
    return ["\n".join(part) for part in parts if part]


def unit(snippets):
    """A unit of all snippets, a namespace to each page."""
    lines = ['#include "docs/context.hpp"']
    body = []
    for page in dict.fromkeys(snippet.page for snippet in snippets):
        body.append(f"namespace page_{len(body)} {{")
        body.append("using namespace terse;")
        for snippet in (s for s in snippets if s.page == page):
            inside = []
            for chunk in chunks(snippet.text):
                first = next((line for line in chunk.split("\n") if not line.lstrip().startswith("//")), "")
                at = snippet.text.find(chunk)
                mark = f'#line {snippet.line + snippet.text[:at].count(chr(10))} "{page.relative_to(ROOT)}"'
                if ";" not in re.sub("//.*", "", chunk) and "#include" not in chunk:
                    continue  # a synopsis
                includes = [line for line in chunk.split("\n") if line.startswith("#include")]
                rest = "\n".join("" if line in includes else line for line in chunk.split("\n"))
                lines += includes
                if DECLARATION.match(first) and not first.startswith("#include"):
                    body += [mark, rest]
                else:
                    inside += [mark, rest]
            body.append(f"[[maybe_unused]] int snippet_{snippet.line}(TERSE_DOCS_CONTEXT) {{ {{ {snippet.given} {{")
            body += inside + ["}}}"]
        body.append("}")
    return "\n".join(lines + body) + "\n"


def main(arguments):
    list_all = arguments[:1] == ["--list"]
    compiler = arguments[1:] if list_all else arguments
    problems, snippets = list(missing_in_site()), []
    for page in PAGES:
        prose, its, shell = read(page)
        problems += wrong_links(page, prose)
        problems += wrong_commands(page, shell)
        snippets += its
    texts = list(sources())
    of_programs, excused, to_compile = [], [], []
    for snippet in snippets:
        words = " ".join(snippet.text.split())
        if any(words in text for text in texts):
            of_programs.append(snippet)
        elif snippet.excuse:
            excused.append(snippet)
        else:
            to_compile.append(snippet)
    if list_all:
        for name, those in (("part of a program", of_programs), ("not compiled", excused), ("compiled", to_compile)):
            for snippet in those:
                print(f"{name}: {snippet.page.relative_to(ROOT)}:{snippet.line} {snippet.excuse}")
    if compiler:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "snippets.cpp"
            path.write_text(unit(to_compile))
            done = subprocess.run([*compiler, "-Wno-return-type", "-fsyntax-only", path], cwd=ROOT, capture_output=True, text=True)
            if done.returncode:
                problems.append(done.stdout + done.stderr)
    print(f"{len(PAGES)} pages, {len(snippets)} snippets: {len(of_programs)} are parts of programs, {len(to_compile)} are compiled by "
          f"themselves, {len(excused)} are not")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
