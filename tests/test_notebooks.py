"""Rules that every committed notebook keeps, which nbval does not check; README and headers too."""

import json
import re

import pytest

from helpers.catalogue import steps
from helpers.commands import figures
from helpers.paths import ROOT

nbformat = pytest.importorskip("nbformat")  # not where kernels are only recorded and tested

PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TAGS = {"gpu", "raises-exception", "nbval-skip", "nbval-ignore-output"}
# A measured figure typed in prose: 4283 GB/s, 0.88 of a copy, 12 us, 3 x faster than a copy.
MEASURED = re.compile(
    r"\d[\d.,]*\s*(GB/s|TB/s|us\b|µs|ms\b|ns\b|(x|times) (faster|slower)|of a copy|% of a copy)"
)
COUNTER = re.compile(r"[a-z0-9]+__\w+(\{\w*\}\w*)?\.(sum|avg|ratio)\b")  # Nsight Compute's names
MACHINE_PATH = re.compile(r"/(home|root|tmp|work|Users)/|[A-Z]:\\\\")


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def problems(notebook) -> list[str]:
    """Every rule that a notebook breaks, in words."""
    found = []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        found.append("cells were not executed once, in order")
    for cell in code:
        outputs = json.dumps(cell.outputs)
        if any(output.get("name") == "stderr" for output in cell.outputs):
            found.append("a cell wrote to stderr")
        if any(output.output_type == "error" for output in cell.outputs):
            if "raises-exception" not in cell.metadata.get("tags", []):
                found.append("a cell failed")
        if cell.source.rstrip().endswith(";"):
            found.append("a trailing semicolon does not hide output under nbval")
        if COUNTER.search(cell.source):
            found.append("a counter is spelled out; profile has named quantities")
        if not set(cell.metadata.get("tags", [])) <= TAGS:
            found.append("unknown tag")
        if MACHINE_PATH.search(outputs):
            found.append("an output names a path of one machine")
        if "earlier version" in outputs:
            found.append("a record is older than its kernel")
        found += [f"code line too long: {x}" for x in cell.source.splitlines() if len(x) > 88]
    if sum(text.count("\n# ") + text.startswith("# ") for text in prose) != 1:
        found.append("a notebook has one top heading")
    found += [f"measured figure in prose: {m[0]}" for m in map(MEASURED.search, prose) if m]
    if len(notebook.cells) > 26:
        found.append("too long")
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append("kernelspec is not python3")
    if "widgets" in notebook.metadata:
        found.append("widgets do not render on code hosts")
    if not any("cupy.RawKernel(source(" in cell.source for cell in code):
        found.append("the notebook builds no RawKernel from kernels/ in plain sight")
    if not any("print(grade(" in cell.source for cell in code):
        found.append("no exercise")
    if "**You need**" not in prose[0] or "**Next**" not in prose[0] or "**Time**" not in prose[0]:
        found.append("the first cell lacks prerequisites, minutes or links")
    return found


def test_notebook_keeps_the_rules(notebook):
    nbformat.validate(notebook)
    assert problems(notebook) == []


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebook_is_below_a_megabyte(path):
    assert path.stat().st_size < 1_000_000


def test_every_step_has_its_notebook():
    assert [path.stem[:2] for path in PATHS] == sorted({step[:2] for step in steps()})


def test_links_between_files_lead_somewhere():
    pages = [*PATHS, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "notebooks/GLOSSARY.md"]
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+?)\)", page.read_text(encoding="utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize(
    ("plant", "complaint"),
    [
        (lambda nb: nb.cells[1].update(execution_count=None), "not executed"),
        (lambda nb: nb.cells[0].update(source=nb.cells[0].source + "\n# Two"), "top heading"),
        (lambda nb: nb.cells[0].update(source=nb.cells[0].source + " 4200 GB/s"), "in prose"),
        (lambda nb: nb.cells[1].update(source=nb.cells[1].source + "\nx = 1;"), "semicolon"),
        (lambda nb: nb.cells[1].update(source="x" * 89), "too long"),
        (
            lambda nb: nb.cells[1].update(source='seen["dram__bytes_read.sum"]'),
            "a counter is spelled out",
        ),
        (lambda nb: nb.cells[1].metadata.update(tags=["whatever"]), "unknown tag"),
        (
            lambda nb: nb.cells[1].outputs.append(
                nbformat.v4.new_output("stream", name="stderr", text="warning")
            ),
            "stderr",
        ),
        (
            lambda nb: nb.cells[1].outputs.append(
                nbformat.v4.new_output("error", ename="E", evalue="e", traceback=[])
            ),
            "failed",
        ),
        (
            lambda nb: nb.cells[1].outputs.append(
                nbformat.v4.new_output("stream", name="stdout", text="see /home/me/x.py")
            ),
            "path of one machine",
        ),
        (lambda nb: nb.metadata.update(widgets={}), "widgets"),
    ],
)
def test_a_planted_breach_is_found(plant, complaint):
    notebook = nbformat.read(PATHS[0], as_version=4)
    plant(notebook)
    assert any(complaint in problem for problem in problems(notebook))


def test_readme_headers_and_plot_show_the_records():
    assert figures.out_of_date() == []


def test_a_changed_record_makes_the_readme_stale(monkeypatch):
    real = figures.load_record
    from helpers import records, tables

    def slower(step):
        record = real(step)
        record.cases[:] = [
            type(case)(**{**vars(case), "samples_us": [2 * t for t in case.samples_us]})
            for case in record.cases
        ]
        return record

    monkeypatch.setattr(figures, "load_record", slower)
    monkeypatch.setattr(tables, "load_record", slower)
    monkeypatch.setattr(records, "load_record", slower)
    stale = figures.out_of_date()
    assert "README.md" in stale
    assert "kernels/01_naive.cu" in stale
    assert any(name.endswith("series.png") for name in stale)
