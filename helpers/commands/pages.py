"""Write the series as web pages: `make pages`. They need no Python, and read on a telephone.

build/pages/ is laid out as the repository is, with README.md as index.html: a notebook or Markdown
file there is a page here, with the figures of its cells inside. Other files that a page links to
are copied, texts with ".txt" behind their names, which browsers show.
"""

from __future__ import annotations

import argparse
import os
import posixpath
import re
import shutil
import sys
from html import unescape
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter

from ..base.paths import BUILD, ROOT, core_notebooks, deeper_notebooks

PAGES = BUILD / "pages"
# What a link may end in, after "#": in lower case, as code hosts have it, for which links are
# written; nbconvert has headings as they are.
PLACE = re.compile(r' id="([^"]+)"')
LINK = re.compile(r'(<a [^>]*?href="|<img [^>]*?src=")([^":#]*)(#[^"]*)?(?=")')
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
{%- block stream_stdout -%}
<div class="jp-RenderedText jp-OutputArea-output" data-mime-type="text/plain">
<pre {%- if "  " not in output.text %} class="prose"{% endif %}>
{{- output.text | ansi2html -}}
</pre>
</div>
{%- endblock -%}
""".replace("STYLE", STYLE)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m helpers.commands.pages", description=__doc__)
    parser.parse_args(arguments)
    shutil.rmtree(PAGES, ignore_errors=True)
    exporter = HTMLExporter(raw_template=TEMPLATE, anchor_link_text="")
    todo = [ROOT / "README.md", *core_notebooks(), *deeper_notebooks()]
    for path in todo:  # it grows
        page = PAGES / page_name(path)
        page.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix != ".html":
            shutil.copyfile(path, page)
            continue
        notebook = as_notebook(path)
        title = re.search(r"^# (.+)", notebook.cells[0].source, flags=re.MULTILINE)
        name = title[1] if title else path.name
        html, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": name}})
        html = PLACE.sub(lambda found: found[0].lower(), html)
        todo += {target_of(link, path) for _, link, _ in LINK.findall(html)} - {None, *todo}
        html = LINK.sub(lambda found, at=path: relinked(found, at), html)
        page.write_text(html, encoding="utf-8", newline="\n")
    print(f"{len(todo)} files; begin with {os.path.relpath(PAGES / 'index.html')}")
    return 0


def as_notebook(path: Path) -> nbformat.NotebookNode:
    """A notebook as it is, Markdown as a notebook of one cell."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return nbformat.reads(text, as_version=4)
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])


def page_name(path: Path) -> str:
    """Where the page of a file, or its copy, is below PAGES: "notebooks/00_the_limit.html"."""
    name = path.relative_to(ROOT).as_posix()
    if name == "README.md":
        return "index.html"
    if path.suffix in (".ipynb", ".md"):
        return re.sub(r"\.\w+$", ".html", name)
    return name if path.suffix in (".png", ".svg") else f"{name}.txt"


def target_of(link: str, path: Path) -> Path | None:
    """The file of the repository to which a link of another one leads, if it does."""
    target = Path(os.path.normpath(path.parent / unescape(link)))
    return target if target.is_relative_to(ROOT) and target.is_file() else None


def relinked(found: re.Match, path: Path) -> str:
    """A link of the file `path`, as a link between pages."""
    before, link, place = found.groups(default="")
    if link and (target := target_of(link, path)):
        link = posixpath.relpath(page_name(target), posixpath.dirname(page_name(path)))
    return before + link + place.lower()


if __name__ == "__main__":
    sys.exit(main())
