"""Write the series as web pages: `make pages`. They need no Python, and read on a telephone.

build/pages/ is laid out as the repository is, with README.md as index.html: what is a notebook or
text there is a page here, with the figures of its cells inside and its links leading to pages; a
picture is copied. What a page links to is written too, and so on.
"""

from __future__ import annotations

import argparse
import json
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter

from ..base.json_files import read_json
from ..base.paths import BUILD, ROOT, core_notebooks, deeper_notebooks
from ..page.notebooks import NO_NOTEBOOK

PAGES = BUILD / "pages"
LANGUAGES = {".cu": "cuda", ".py": "python", ".json": "json", ".txt": "text", ".sh": "bash"}
PICTURES = (".png", ".jpg", ".svg")
# What a link may end in, behind "#": in lower case, as code hosts have it, for which links are
# written; nbconvert has headings as they are.
PLACE = re.compile(r' id="([^"]+)"')
LINK = re.compile(r'(<a [^>]*?href="|<img [^>]*?src=")([^"]*)(")')
STYLE = """
main { max-width: 56rem; margin: 0 auto; }
body.jp-Notebook { overflow-x: hidden; }
.jp-OutputArea-output img, .jp-MarkdownOutput img { max-width: 100%; height: auto; }
.jp-RenderedHTMLCommon table { display: block; overflow-x: auto; margin-left: 0; }
.jp-OutputArea-output pre, .jp-RenderedHTMLCommon pre { white-space: pre; overflow-x: auto; }
.jp-RenderedHTMLCommon pre code { white-space: inherit; }
.jp-RenderedText { padding-left: 8px; }
.jp-OutputArea-output .prose { white-space: pre-wrap; word-break: normal; }
.jp-OutputArea { margin-bottom: 0.5em; }
@media (max-width: 640px) {
  body.jp-Notebook { padding: 4px; }
  .jp-InputPrompt, .jp-OutputPrompt, .jp-OutputArea-prompt { display: none; }
  .jp-Cell { padding: 2px; }
}
"""
# nbconvert's page without the scripts of widgets and diagrams. A figure says what it is of, and
# printed sentences are wrapped, other than tables, which have spaces in a row.
TEMPLATE = """{%- extends "index.html.j2" -%}
{%- block html_head_js_requirejs -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
{%- block html_head_css -%}<style>STYLE</style>{%- endblock -%}
{%- block data_png scoped -%}
{%- set width = output | get_metadata("width", "image/png") -%}
<div class="jp-RenderedImage jp-OutputArea-output">
<img alt="{{ output.data.get("text/plain", "figure").strip("<>") | escape_html }}"
{%- if width %} width="{{ width }}"{% endif %}
 src="data:image/png;base64,{{ output.data["image/png"] | escape_html }}">
</div>
{%- endblock -%}
{%- block input -%}
<div class="jp-CodeMirrorEditor jp-Editor jp-InputArea-editor"><div class="cm-editor cm-s-jupyter">
{{ cell.source | highlight_code(metadata=cell.metadata) }}
</div></div>
{%- endblock -%}
{%- block stream_stdout -%}
<div class="jp-RenderedText jp-OutputArea-output" data-mime-type="text/plain">
<pre {%- if "  " not in output.text %} class="prose"{% endif %}>
{{- output.text | ansi2html -}}
</pre>
</div>
{%- endblock -%}
""".replace("STYLE", STYLE)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status: 1 if a link leads nowhere, 2 if a file cannot be read,
    and then nothing is written."""
    parser = argparse.ArgumentParser(prog="python -m helpers.commands.pages", description=__doc__)
    parser.parse_args(arguments)
    try:
        pages, pictures = convert([ROOT / "README.md", *core_notebooks(), *deeper_notebooks()])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in pictures:
        target = PAGES / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for name, text in pages.items():
        target = PAGES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="\n")
    dead = sorted(dead_links(pages))
    print(f"{len(pages)} pages; begin with {os.path.relpath(PAGES / 'index.html')}")
    for link in dead:
        print(f"leads nowhere: {link}", file=sys.stderr)
    return 1 if dead else 0


def convert(first: list[Path]) -> tuple[dict[str, str], list[Path]]:
    """(name below PAGES -> HTML, pictures) of these files and of all that they link to."""
    exporter = HTMLExporter(raw_template=TEMPLATE, anchor_link_text="")
    todo, done, pictures = list(dict.fromkeys(first)), {}, []
    for path in todo:  # it grows
        if path.suffix in PICTURES:
            pictures.append(path)
            continue
        notebook = as_notebook(path)
        resources = {"metadata": {"name": title_of(notebook, path), "path": str(path.parent)}}
        html, _ = exporter.from_notebook_node(notebook, resources)
        html = PLACE.sub(lambda found: found[0].lower(), html)
        done[page_name(path)] = LINK.sub(lambda found, at=path: relinked(found, at), html)
        todo += [target for target in targets(html, path) if target not in todo]
    return done, pictures


def as_notebook(path: Path) -> nbformat.NotebookNode:
    """A notebook as it is, a text as a notebook of one cell. Raises `ValueError` that names a file
    which is neither."""
    name = path.relative_to(ROOT)
    try:
        if path.suffix == ".ipynb":
            data = read_json(path)
            if data.get("nbformat") != 4 or not isinstance(data.get("nbformat_minor"), int):
                raise TypeError("it says of no version that it is of it, or of another than 4")
            nbformat.validate(data)
            return nbformat.reads(json.dumps(data), as_version=4)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name} is no text") from None
    except NO_NOTEBOOK as error:
        if isinstance(error, ValueError):  # it says so itself
            raise
        why = str(error).partition("\n")[0]
        raise ValueError(f"{name} is JSON, but no notebook: {why}") from None
    if path.suffix != ".md":
        name = path.relative_to(ROOT).as_posix()
        text = f"`{name}`\n\n``````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n``````"
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])


def title_of(notebook: nbformat.NotebookNode, path: Path) -> str:
    """Its first heading, else the name of the file."""
    heading = re.search(r"^# (.+)", notebook.cells[0].source, flags=re.MULTILINE)
    return heading.group(1).replace("`", "") if heading else path.name


# ---- links ------------------------------------------------------------------------------------


def page_name(path: Path) -> str:
    """Where the page of a file is, below PAGES: "notebooks/00_the_limit.html"; a text that is no
    Markdown keeps its ending, since several files differ in that alone."""
    name = path.relative_to(ROOT).as_posix()
    if name == "README.md":
        return "index.html"
    return re.sub(r"\.(ipynb|md)$", "", name) + ".html"


def target_of(link: str, path: Path) -> Path | None:
    """The file of the repository that a link of another one means, if it means one."""
    name = unescape(link).partition("#")[0]
    if not name or re.match(r"[\w+.-]+:", name):
        return None
    target = Path(os.path.normpath(path.parent / name))
    return target if target.is_relative_to(ROOT) and target.exists() else None


def targets(html: str, path: Path) -> Iterator[Path]:
    """The files that a page links to."""
    for _, link, _ in LINK.findall(html):
        target = target_of(link, path)
        if target is not None and target.is_file():
            yield target


def relinked(found: re.Match, path: Path) -> str:
    """A link's beginning, to the page of its file; to a folder, of which there is none, no link."""
    before, link, after = found.groups()
    link, mark, place = link.partition("#")
    target = target_of(link, path)
    if target is None and link:
        return found.group()
    if target is None:
        return before + mark + place.lower() + after
    if target.is_dir():
        return before.replace("href", "title") + link + mark + place + after
    name = target.relative_to(ROOT).as_posix()
    name = name if target.suffix in PICTURES else page_name(target)
    there = posixpath.relpath(name, posixpath.dirname(page_name(path)))
    return before + there + mark + place.lower() + after


def dead_links(pages: dict[str, str]) -> Iterator[str]:
    """ "page: link" for every link within PAGES, of these pages, without file or place."""
    for name, html in pages.items():
        for _, link, _ in LINK.findall(html):
            if re.match(r"[\w+.-]+:", link):
                continue
            file, _, place = link.partition("#")
            page = posixpath.normpath(posixpath.join(posixpath.dirname(name), file))
            page = page if file else name
            places = [found[1] for found in PLACE.finditer(pages.get(page, ""))]
            if not (PAGES / page).is_file() or (place and place not in places):
                yield f"{name}: {link}"


if __name__ == "__main__":
    sys.exit(main())
