# SPDX-License-Identifier: Apache-2.0
"""What mkdocs.yml needs beyond mkdocs. Pages link to sources, which lie outside of docs/: the site gets a copy as text of each. Its first
page begins with README.md, up to the installation; formulas are MathML; an index lists the public names, from what scripts/api/make has
left in build/api, the reference of the headers, which becomes a folder of the site."""

import html
import pathlib
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS, REFERENCE = ROOT / "docs", ROOT / "build" / "api"
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
from formulas import set_formulas  # noqa: E402

OUTSIDE = re.compile(r"\[([^\[\]]*)\]\(((?:\.\./)+[^)\s#]*)(#[^)\s]*)?\)")
KINDS = {"concept": "Concepts", "struct": "Types", "class": "Types", "typedef": "Aliases", "enum": "Enumerations", "function": "Functions",
         "variable": "Constants"}


def words_of(element):
    return " ".join("".join(element.itertext()).split()) if element is not None else ""


def names_in_reference():
    """{namespace: {kind: {name: (link, description)}}} of the public names."""
    compounds = [compound for path in sorted((REFERENCE / "xml").glob("*.xml")) for compound in ElementTree.parse(path).iter("compounddef")]
    found = {name: {} for compound in compounds if compound.get("kind") == "namespace"
             and (name := compound.findtext("compoundname")).startswith("terse")}
    for compound in compounds:
        kind, full = compound.get("kind"), compound.findtext("compoundname")
        if full in found:
            for member in compound.iter("memberdef"):
                page, anchor = member.get("id").rsplit("_1", 1)
                names = found[full].setdefault(KINDS[member.get("kind")], {})
                names.setdefault(member.findtext("name"), (f"{page}.html#{anchor}", words_of(member.find("briefdescription"))))
        elif kind in KINDS:
            # Not a specialization, nor a type within a type.
            space, _, name = full.rpartition("::")
            if "<" not in full and space in found:
                found[space].setdefault(KINDS[kind], {})[name] = f"{compound.get('id')}.html", words_of(compound.find("briefdescription"))
    return {space: kinds for space, kinds in found.items() if kinds}


def api_index():
    if not (REFERENCE / "xml" / "index.xml").exists():
        raise PluginError("there is no reference of the headers: run scripts/api/make first, or scripts/site for all")
    lines = ["---", "search: {boost: 0.3}", "---", "", "# API", "", "Every public name with the beginning of its description, from the comments in the headers. Also as trees: "
             '<a href="api/annotated.html">types</a>, <a href="api/namespaces.html">namespaces</a> and <a href="api/files.html">headers</a>.', ""]
    for space, kinds in sorted(names_in_reference().items()):
        lines += [f"## {space}", ""]
        for kind in dict.fromkeys(KINDS.values()):
            if kind in kinds:
                lines += [f"### {kind} in {space}", "", "| name | description |", "|---|---|"]
                lines += [f'| <a href="api/{link}">`{name}`</a> | {html.escape(words, quote=False).replace("|", "&#124;")} |'
                          for name, (link, words) in sorted(kinds[kind].items())]
                lines.append("")
    return "\n".join(lines)


def outside(folder, link):
    """The path in the repository of a link in a page of `folder`, or None if it leads to a page."""
    target = (folder / link).resolve()
    return None if target.is_relative_to(DOCS) else target.relative_to(ROOT)


def text_of(page):
    """A page's Markdown; the first one has README.md's first screens, whose links become those of a page."""
    text = pathlib.Path(page).read_text()
    if page != str(DOCS / "index.md"):
        return text
    readme = (ROOT / "README.md").read_text().split("\n## Methods\n")[0]
    readme = re.sub(r"\]\((?![a-z]+:|#)(?!docs/)", "](../", readme).replace("](docs/", "](")
    return f"{readme}\n\n{text.replace('# Documentation', '## Documentation')}"


def on_files(files, config):
    files.append(File.generated(config, "api.md", content=api_index()))
    for name, source in ("site.css", "site.css"), ("assets/iframe-worker.js", "site_search.js"):
        files.append(File.generated(config, name, content=(ROOT / "scripts" / source).read_text()))
    copied = set()
    for page in list(files.documentation_pages()):
        if page.src_uri == "api.md":
            continue
        for match in OUTSIDE.finditer(text_of(page.abs_src_path)):
            path = outside(pathlib.Path(page.abs_src_path).parent, match[2])
            if path and (ROOT / path).is_file() and path not in copied:
                copied.add(path)
                files.append(File.generated(config, f"source/{path}.txt", content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown, page, **_):
    if page.file.src_uri == "api.md":
        return markdown
    folder = pathlib.Path(page.file.abs_src_path).parent

    def lead(match):
        path = outside(folder, match[2])
        if path is None:
            return match[0]
        # The words of a link to a folder will do.
        return f"[{match[1]}]({'../' * page.file.src_uri.count('/')}source/{path}.txt)" if (ROOT / path).is_file() else match[1]

    # A list may follow its sentence at once elsewhere, and not here.
    markdown = re.sub(r"(?m)^(?!\s*(?:[-*]|\d+\.|\||>|#) ?)(\S.*)\n(?=(?:[-*]|1\.) )", r"\1\n\n", text_of(page.file.abs_src_path))
    markdown = re.sub(r"(?ms)^```formula\n(.*?)^```$", lambda match: f'<pre class="formula">{html.escape(match[1])}</pre>', markdown)
    return OUTSIDE.sub(lead, markdown)


def on_page_content(content, **_):
    def cell(match):
        return match[0].replace("<td", '<td class="short"', 1) if len(re.sub(r"<[^>]*>", "", match[1])) <= 32 else match[0]

    return re.sub(r"<td[^>]*>(.*?)</td>", cell, set_formulas(content), flags=re.DOTALL)


def on_post_build(config):
    shutil.copytree(REFERENCE / "html", pathlib.Path(config["site_dir"]) / "api", dirs_exist_ok=True)
