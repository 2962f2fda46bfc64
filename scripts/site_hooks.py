# SPDX-License-Identifier: Apache-2.0
"""What mkdocs.yml needs beyond mkdocs: pages link to sources, which lie outside of docs/. The site gets a copy as text of
each, and a page that leads to the reference of the headers, which scripts/site puts beside it."""

import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)\s#]*)(#[^)\s]*)?\)")
API = "# API\n\n<a href=\"api/annotated.html\">Types</a>, <a href=\"api/namespaces.html\">namespaces</a> and " \
      "<a href=\"api/files.html\">headers</a>, from the comments in the headers.\n"


def outside(folder, link):
    """What `link` in a page of `folder` leads to if that isn't a page: a path of the repository."""
    target = (folder / link).resolve()
    return None if target.is_relative_to(DOCS) else target.relative_to(ROOT)


def on_files(files, config):
    files.append(File.generated(config, "api.md", content=API))
    copied = set()
    for page in list(files.documentation_pages()):
        if page.src_uri == "api.md":
            continue
        source = pathlib.Path(page.abs_src_path)
        for match in OUTSIDE.finditer(source.read_text()):
            path = outside(source.parent, match[1])
            if path and (ROOT / path).is_file() and path not in copied:
                copied.add(path)
                files.append(File.generated(config, f"source/{path}.txt", content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown, page, **_):
    if page.file.src_uri == "api.md":
        return markdown
    folder = pathlib.Path(page.file.abs_src_path).parent

    def lead(match):
        path = outside(folder, match[1])
        if path is None:
            return match[0]
        if not (ROOT / path).is_file():
            return "]"  # a folder: its name will do
        return f"]({'../' * page.file.src_uri.count('/')}source/{path}.txt)"

    # A list may follow its sentence at once elsewhere, and not here.
    markdown = re.sub(r"(?m)^(?!\s*(?:[-*]|\d+\.|\||>|#) ?)(\S.*)\n(?=(?:[-*]|1\.) )", r"\1\n\n", markdown)
    return re.sub(r"\[([^\[\]]*)\]$", r"\1", OUTSIDE.sub(lead, markdown))
