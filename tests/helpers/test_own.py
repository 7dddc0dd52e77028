"""A kernel in mine/kernels/ replaces that of the series in the reader's own notebooks, and nowhere
else."""

from pathlib import Path

import pytest

from helpers import show
from helpers.base.paths import ROOT
from helpers.catalogue import registry
from helpers.catalogue.dispatch import step_hash
from helpers.commands import export
from helpers.page import rich
from helpers.run.bound import load
from helpers.simt.cuda_text import token_hash

FILE = "07_warp.cu"
CHANGED = "// mine\nint changed;\n"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder mine/ with a changed kernel, for a notebook that runs there."""
    mine = tmp_path / "mine"
    (mine / "kernels").mkdir(parents=True)
    (mine / "deeper").mkdir()
    text = (ROOT / "kernels" / FILE).read_text(encoding="utf-8")
    (mine / "kernels" / FILE).write_text(text + CHANGED, encoding="utf-8")
    monkeypatch.setattr(rich, "MINE", mine)
    monkeypatch.setattr(rich, "ROOT", tmp_path)
    monkeypatch.delenv("SOFTMAX_REPLAY", raising=False)
    monkeypatch.chdir(mine)
    return mine


def test_it_replaces_the_file_with_its_includes_and_line_numbers(mine: Path) -> None:
    before, now = registry.source(FILE), rich.source(FILE)
    assert now.endswith(CHANGED) and now.startswith(f'#line 1 "mine/kernels/{FILE}"')
    assert now.removesuffix(CHANGED).replace('"mine/', '"') == before
    assert rich.source("06_registers.cu") == registry.source("06_registers.cu")
    with pytest.raises(FileNotFoundError, match="there are: 00_copy.cu"):
        rich.source("99_mine.cu")
    (mine / "kernels" / FILE).unlink()
    assert rich.source(FILE) == before


@pytest.mark.parametrize("place", ["root", "notebooks", "replay"])
def test_it_is_ignored_outside_of_the_readers_notebooks(mine: Path, monkeypatch, place) -> None:
    if place == "replay":
        monkeypatch.setenv("SOFTMAX_REPLAY", "1")
    else:
        monkeypatch.chdir(ROOT if place == "root" else ROOT / "notebooks")
    assert rich.source(FILE) == registry.source(FILE)
    assert rich.note(f"kernels/{FILE}") == ("", "")


def test_records_plans_and_exports_never_see_it(mine: Path) -> None:
    """Not even from a process that runs in mine/."""
    series = registry.source(FILE)
    assert step_hash("07_warp") == token_hash(series) != token_hash(rich.source(FILE))
    assert load("07_warp").code == series
    assert export.main(["07_warp", "--as", "cuda", "-o", str(mine / "out.cu")]) == 0
    assert "changed" not in (mine / "out.cu").read_text(encoding="utf-8")


def test_a_listing_says_whose_kernel_it_shows(mine: Path, monkeypatch, capsys) -> None:
    shown: list[dict] = []
    monkeypatch.setattr("IPython.display.display", lambda texts, raw: shown.append(texts))
    show.kernel(FILE)
    says = f"yours: mine/kernels/{FILE}; delete it to return"
    assert says in shown[0]["text/plain"].splitlines()
    assert f'<a href="kernels/{FILE}">mine/kernels/{FILE}</a>' in shown[0]["text/html"]
    monkeypatch.chdir(mine / "deeper")
    show.kernel(rich.source(FILE).replace("changed", "again"))
    assert says in shown[1]["text/plain"].splitlines() and "as edited" in shown[1]["text/plain"]
    assert f'<a href="../kernels/{FILE}">' in shown[1]["text/html"]
    show.kernel("01_naive.cu")
    says = "to change this kernel, copy kernels/01_naive.cu to mine/kernels/01_naive.cu"
    assert says in shown[2]["text/plain"].splitlines() and "<a " not in shown[2]["text/html"]
    show.kernel("__global__ void k() {}")
    assert "mine" not in shown[3]["text/plain"]
