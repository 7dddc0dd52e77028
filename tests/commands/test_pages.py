"""`make pages`: links lead to pages, figures are inside, and a page reads narrow."""

import re
from pathlib import Path

import nbformat
import pytest

from helpers.commands import pages
from helpers.page.rich import FIGURE

PIXEL = "iVBORw0KGgo="  # as far as anybody looks


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository: a README, a notebook with a deeper one, a glossary and a kernel."""
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "PAGES", tmp_path / "build/pages")
    figure = nbformat.v4.new_output(
        "display_data",
        {"image/png": PIXEL, "text/plain": "<figure: a <warp> & its lanes>", FIGURE: "5ee"},
        metadata={"image/png": {"width": 700}},
    )
    said = [nbformat.v4.new_output("stream", name="stdout", text=text) for text in ("A b.", "a  b")]
    code = nbformat.v4.new_code_cell("draw()", outputs=[figure, *said])
    texts = {
        "README.md": "# Work\n\n[first](notebooks/00_a.ipynb) [up](#work) [dir](kernels) "
        "![plot](plot.png) [it](plot.png) [web](https://example.org/x.ipynb)",
        "notebooks/GLOSSARY.md": "# Words\n\n## A Warp\n\n[back](../README.md)",
        "kernels/a.cu": "// ```\n__global__ void a() {}",
    }
    notebooks = {
        "notebooks/00_a.ipynb": "# The limit\n\n[words](GLOSSARY.md#a-warp) "
        '[why](deeper/00_b.ipynb) [code](../kernels/a.cu) <a href="../kernels/a.cu">same</a>',
        "notebooks/deeper/00_b.ipynb": "# Why?\n\n[up](../00_a.ipynb) [words](../GLOSSARY.md)"
        "\n\n<details>\n<summary>Why</summary>\n\nThus.\n\n</details>",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for name, text in notebooks.items():
        cells = [nbformat.v4.new_markdown_cell(text), code]
        (tmp_path / name).parent.mkdir(exist_ok=True)
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / name)
    (tmp_path / "plot.png").write_bytes(b"png")
    paths = [tmp_path / name for name in notebooks]
    monkeypatch.setattr(pages, "core_notebooks", lambda: paths[:1])
    monkeypatch.setattr(pages, "deeper_notebooks", lambda: paths[1:])
    return tmp_path


def hrefs(page: Path) -> list[str]:
    links = re.findall(r'<a [^>]*?href="([^"]*)"[^>]*>[^<]', page.read_text())
    return [link for link in links if link]


def test_links_lead_to_pages(root: Path, capsys) -> None:
    assert pages.main([]) == 0
    assert capsys.readouterr().out.startswith("6 files; begin with ")
    made = root / "build/pages"
    assert hrefs(made / "index.html") == [
        "notebooks/00_a.html",
        "#work",
        "kernels",
        "plot.png",
        "https://example.org/x.ipynb",
    ]
    assert hrefs(made / "notebooks/00_a.html") == [
        "GLOSSARY.html#a-warp",
        "deeper/00_b.html",
        "../kernels/a.cu.txt",
        "../kernels/a.cu.txt",
    ]
    assert hrefs(made / "notebooks/deeper/00_b.html") == ["../00_a.html", "../GLOSSARY.html"]
    assert (made / "plot.png").read_bytes() == b"png"
    assert "__global__" in (made / "kernels/a.cu.txt").read_text()


def test_pages_stand_alone_and_read_narrow(root: Path) -> None:
    pages.main([])
    text = (root / "build/pages/notebooks/00_a.html").read_text()
    assert "<title>The limit</title>" in text
    assert re.search(r'<meta [^>]*name="viewport"', text) and "max-width: 100%" in text
    (image,) = re.findall("<img [^>]*>", text)
    assert f"base64,{PIXEL}" in image and 'width="700"' in image
    assert 'alt="figure: a &lt;warp&gt; &amp; its lanes"' in image
    scripts = re.findall(r'<script[^>]* src="([^"]*)"', text)
    assert all("athjax" in script for script in scripts), "only formulas need the network"
    assert '<pre class="prose">A b.</pre>' in text and "<pre>a  b</pre>" in text
    plot = re.search(r'<img [^>]*alt="plot"[^>]*>', (root / "build/pages/index.html").read_text())
    assert 'src="plot.png"' in plot.group()


def test_what_is_folded_stays_folded(root: Path) -> None:
    pages.main([])
    text = (root / "build/pages/notebooks/deeper/00_b.html").read_text()
    assert re.search("<details>\\s*<summary>Why</summary>\\s*<p>Thus.</p>\\s*</details>", text)


def test_pages_of_before_are_gone(root: Path) -> None:
    pages.main([])
    (root / "build/pages/old.html").write_text("")
    pages.main([])
    assert not (root / "build/pages/old.html").exists()
