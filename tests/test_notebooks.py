"""Rules that every committed notebook keeps, which nbval does not check; README and headers too."""

import pytest

from helpers.catalogue import steps
from helpers.commands import figures
from helpers.paths import ROOT, core_notebooks, deeper_notebooks
from helpers.reading import name_of
from tests.earlier import EARLIER

nbformat = pytest.importorskip("nbformat")  # not where kernels are only recorded and tested

from tests import notebook_rules as rules  # noqa: E402

CORE, DEEPER = core_notebooks(), deeper_notebooks()
GLOSSARY = ROOT / "notebooks/GLOSSARY.md"

# (notebook, first line of a cell) -> why that cell must be longer than a dozen lines
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("00_the_limit", "exponential = cupy.RawKernel("): "the first kernel of all, in plain sight",
    ("00_the_limit", "x = np.ones((100, 1000))"): "five array operations, and their bytes counted",
    ("04_shuffle", "exchange = cupy.RawKernel("): "a shuffle alone, in a kernel of its own",
}


def page_of(path) -> rules.Page:
    names = [name_of(one) for one in CORE]
    place = names.index(name_of(path)) if path in CORE else len(names)
    return rules.Page(
        nbformat.read(path, as_version=4),
        name_of(path),
        previous=names[place - 1] if 0 < place < len(names) else None,
        next=names[place + 1] if place + 1 < len(names) else None,
        exceptions=EXCEPTIONS,
    )


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_core_notebook_keeps_the_rules(path):
    page = page_of(path)
    nbformat.validate(page.notebook)
    older = [rules.OLDER] * (path.stem in EARLIER)
    assert [*rules.of_every_notebook(page), *rules.of_core(page)] == older
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert list(rules.of_table(page, readme)) == []


@pytest.mark.parametrize("path", DEEPER, ids=name_of)
def test_deeper_notebook_keeps_the_rules(path):
    page = page_of(path)
    nbformat.validate(page.notebook)
    assert [*rules.of_every_notebook(page), *rules.of_deeper(page)] == []
    core = [page_of(one) for one in CORE if one.stem[:2] == path.stem[:2]]
    assert list(rules.of_way_in(page, core)) == []
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert list(rules.of_readme(page, readme)) == []


@pytest.mark.parametrize("path", [*CORE, *DEEPER], ids=name_of)
def test_notebook_is_below_a_megabyte(path):
    assert list(rules.of_size(path)) == []


def test_exceptions_are_of_notebooks_that_are_there():
    assert {name for name, _ in EXCEPTIONS} <= {name_of(path) for path in CORE}


def test_every_step_has_its_notebook():
    assert [path.stem[:2] for path in CORE] == sorted({step[:2] for step in steps()})


def test_words_are_explained_where_they_first_stand():
    assert list(rules.of_first_words([page_of(path) for path in CORE])) == []


def test_glossary_is_in_order_and_has_every_term():
    assert list(rules.of_glossary(GLOSSARY.read_text(encoding="utf-8"))) == []


def test_glossary_says_where_words_first_stand():
    glossary = GLOSSARY.read_text(encoding="utf-8")
    assert list(rules.of_first_places([page_of(path) for path in CORE], glossary)) == []


@pytest.mark.parametrize(
    "path",
    [*CORE, *DEEPER, ROOT / "README.md", ROOT / "CONTRIBUTING.md", GLOSSARY],
    ids=lambda path: path.stem,
)
def test_links_lead_somewhere(path):
    assert list(rules.of_links_between(path, GLOSSARY)) == []


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
