"""Bad input to the commands that read and write the repository itself: measure, figures,
lab. They run in a small copy of it, a folder, where there is no GPU, or one that is only
said to be there."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import nbformat
import pytest

from helpers.base import gpu, paths
from helpers.catalogue import store
from helpers.commands import figures, lab, measure
from helpers.measure import campaign, profiling, records
from helpers.measure.records import load_record
from tests.bad_input.inputs import ODD_JSON, Input, damage, few_lines, text_of

STEP = "01_naive"
GPU = "nvidia-h200"
FILES = ("steps", "comparison", "pipelines", "counters", "sass", "sanitizer", "numerics")
LINES: dict[str, tuple[Callable[[list[str]], int], list[str]]] = {
    "measure": (
        measure.main,
        "pipelines --shapes 64x1024 --only float32 --baselines torch --minutes 2".split(),
    ),
    "measure ": (measure.main, "steps --only float32 --fresh".split()),
    "measure  ": (measure.main, "profile --only sass counters --jobs 2 --fresh".split()),
    "figures": (figures.main, ["--check"]),
    "lab": (lab.main, ["--no-browser", "--port", "8888"]),
}
OTHERS = ("--show", "--only", "--shapes", "--check", "--drawn", "--jobs", "comparison")


def small(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Have the commands work in a small repository of one step and two notebooks."""
    stored, mine, series = folder / "records", folder / "mine", folder / "notebooks"
    shutil.copytree(paths.RECORDS / GPU, stored / GPU, copy_function=_small_copy)
    shutil.copyfile(paths.RECORDS / "predictions.json", stored / "predictions.json")
    series.mkdir()
    for name in ("00_a.ipynb", "01_b.ipynb"):
        cells = [nbformat.v4.new_markdown_cell(f"# {name}\n[next](01_b.ipynb)", id="a")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), series / name)
    (folder / "README.md").write_text("# Here\n[first](notebooks/00_a.ipynb)\n", encoding="utf-8")
    (folder / "folder").mkdir()
    for module in (store, paths):
        patch.setattr(module, "RECORDS", stored)
    patch.setattr(records, "PREDICTIONS", stored / "predictions.json")
    notebooks = sorted(series.glob("*.ipynb"))
    patch.setattr(lab, "core_notebooks", lambda: notebooks)
    patch.setattr(lab, "deeper_notebooks", lambda: [])
    patch.setattr(lab, "MINE", mine)
    patch.setattr(lab, "pages", lambda: {path.name: path for path in notebooks})
    patch.setenv("JUPYTER_DATA_DIR", str(folder.parent / "jupyter"))
    patch.setattr("jupyterlab.labapp.LabApp.launch_instance", lambda arguments: None)
    patch.setattr(gpu, "has_gpu", lambda: False)
    patch.setattr(figures, "wanted_texts", _texts)
    patch.setattr(figures, "plots", dict)
    patch.setattr(figures, "ROOT", folder)
    patch.setattr(campaign, "deal", lambda *_: iter(()))  # nothing is measured here


def _small_copy(source: str, target: str) -> None:
    if Path(source).stem in FILES and Path(source).suffix.startswith(".json"):
        Path(target).write_text(_few(Path(source)), encoding="utf-8")


@cache
def _few(path: Path) -> str:
    return text_of(few_lines(path))


def _texts() -> dict[str, str]:
    """As figures has them, of the one step."""
    return {"README.md": f"{figures.measured_line(STEP)}\n{len(records.predictions())}\n"}


def forget() -> None:
    """What was read of files that are others now."""
    records.predictions.cache_clear()


def damaged(number: int, folder: Path, patch: pytest.MonkeyPatch) -> Input:
    """A command whose files are damaged."""
    r = random.Random(f"damaged {number}")
    name = r.choice(("profile", "figures", "lab"))
    stored = folder / "records" / GPU
    if name == "profile":
        only = r.choice(("counters", "sass", "numerics", "sanitizer"))
        what = damage(stored / f"{only}.jsonl", r)
        run = load_record(STEP).run
        patch.setattr(gpu, "has_gpu", lambda: True)
        patch.setattr(gpu, "gpu_in_use", lambda: gpu.H200)
        patch.setattr(gpu, "describe_device", lambda: run.device)
        patch.setattr(gpu, "describe_versions", lambda: run.versions)
        patch.setattr(profiling.shutil, "which", lambda tool: tool)
        return Input(f"{only}: {what}", lambda: measure.main(["profile", "--only", only]))
    if name == "figures":
        file = r.choice((stored / "steps.jsonl", folder / "records" / "predictions.json"))
        what = damage(file, r)
        return Input(f"figures, {file.name}: {what}", lambda: figures.main(["--check"]))
    lab.refresh()
    what = spoil_copy(folder / "mine", r)
    return Input(f"lab: {what}", lambda: lab.main([]))


def spoil_copy(mine: Path, r: random.Random) -> str:
    """Do to a reader's folder what happens there."""
    how = r.choice(("state", "state", "page", "no folder", "a folder", "no page", "nowhere"))
    page = r.choice([*mine.glob("*.ipynb")])
    if how == "state":
        odd = (*ODD_JSON, "{", {page.name: 3}, {page.name: None}, {"../x": "y"}, {"a": []})
        chosen = r.choice(odd)
        text = chosen if chosen == "{" else json.dumps(chosen)
        (mine / lab.STATE).write_text(text, encoding="utf-8")
        return f"state {text[:40]}"
    if how == "page":
        return f"{page.name}: {damage(page, r)}"
    if how == "no page":
        page.unlink()
    elif how == "a folder":
        page.unlink()
        page.mkdir()
    else:
        shutil.rmtree(mine)
        if how == "no folder":
            mine.write_text("a file")
        else:
            mine.symlink_to(mine.parent / "gone" / "away")
    return how
