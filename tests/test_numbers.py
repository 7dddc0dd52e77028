"""The numbers of a small made-up project, counted by hand."""

from pathlib import Path

from tests.numbers import measure

FILES = {
    "helpers/__init__.py": "from .high import draw\n",
    "helpers/low.py": (
        "import math\n\n"
        "class Plan:\n"
        "    def fit(self, rows, cols, a, *, b, c): ...\n\n"
        "def area(rows, cols): ...\n"
    ),
    "helpers/high/__init__.py": "from . import draw\n\ndef late():\n    import helpers.low\n",
    "helpers/high/draw.py": (
        "from ..low import Plan as Low\n\n"
        "class Plan(Low):\n"
        "    @staticmethod\n"
        "    def bars(rows, cols, a, b, c, *more): ...\n\n"
        "async def lines(rows, a, b, c, **more): ...\n"
    ),
    "helpers/high/template.cuh": "// one\n\n// three\n",
    "helpers/export/data.json": "[\n]\n",
    "tests/test_low.py": "\n" * 601,
    "tests/case.cu": "// one\n",
    "kernels/06_early.cu": "//\n",
    "kernels/07_late.cu": "//\n" * 2,
    "kernels/include/packs.cuh": "//\n" * 4,
    "kernels/variants/15_late.cu": "//\n" * 8,
    "kernels/exercises/07_late.cu": "//\n" * 16,
    "notebooks/records/gpu/07_late.json": "{\n}\n",
    "README.md": "Three plain words\n",
    "Makefile": "run: ## run it\n\ttrue\n\nhidden:\n\ttrue\n",
}
COUNTED = {
    "helpers, lines": 21,
    "tests, lines of Python": 601,
    "tests, lines of other written files": 1,
    "modules below helpers": 4,
    "entries directly below helpers": 2,
    "layers: longest import chain of entries": "2",
    "arrows between entries": 1,
    "import edges between modules": 4,
    "longest import chain of modules": "3",
    "functions with loose rows, cols": [
        "helpers/high/draw.py:5 bars",
        "helpers/low.py:6 area",
        "helpers/low.py:4 fit",
    ],
    "most parameters of a function": "6 (bars)",
    "functions with more than 5 parameters": ["helpers/high/draw.py:5 bars: 6"],
    "class names defined more than once": ["Plan: helpers/high/draw.py:3, helpers/low.py:3"],
    "functions and methods": 5,
    "kernels 07 to 15, includes counted once, lines": 6,
    "the same with all variants of 07 to 15": 14,
    "records, lines of JSON": 2,
    "README, words": 3,
    "make targets": 1,
    "modules over 600 lines, tests included": ["tests/test_low.py: 601"],
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_small_project_is_counted(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    numbers = measure(tmp_path)
    assert {name: numbers[name] for name in COUNTED} == COUNTED


def test_a_cycle_is_reported(tmp_path: Path) -> None:
    write(tmp_path, FILES | {"helpers/low.py": "def late():\n    from .high import draw\n"})
    numbers = measure(tmp_path)
    assert numbers["layers: longest import chain of entries"] == "2, cycles: 1"
    assert numbers["longest import chain of modules"] == "3, cycles: 1"
