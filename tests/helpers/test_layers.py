"""The layers of helpers, lowest first, as the docstring of each package lists them: an import
upward fails with file and line."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from helpers.base.paths import ROOT

HELPERS = ROOT / "helpers"
PACKAGES = [
    HELPERS,
    *(
        folder.parent
        for folder in sorted(HELPERS.rglob("__init__.py"))
        if folder.parent not in (HELPERS, HELPERS / "export" / "parts")
        and not folder.parent.is_relative_to(HELPERS / "commands")
    ),
]


def layers(package: Path) -> list[str]:
    """The names in a docstring's list of modules, one per line after four spaces."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8")), clean=False)
    return re.findall(r"^    (\w+)  +\S", text, flags=re.MULTILINE)


@cache
def imported(file: Path, root: Path) -> list[tuple[int, Path]]:
    """(line, path without suffix) of everything that a module imports from the tree at `root`,
    in functions too."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [(root.parent, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if node.level else root.parent
            names = [(base, f"{node.module or ''}.{alias.name}") for alias in node.names]
        else:
            continue
        for base, name in names:
            target = base.joinpath(*filter(None, name.split(".")))
            if target.is_relative_to(root):
                found.append((node.lineno, target))
    return found


def upward(package: Path, order: list[str]) -> list[str]:
    """What in a package does not keep to its list."""
    there = {p.stem for p in package.glob("*.py")} | {p.parent.name for p in package.glob("*/*.py")}
    found = [f"{name} is in no layer" for name in sorted(there - {"__init__", *order})]
    found += [f"there is no {name}" for name in order if name not in there]
    for file in sorted(package.rglob("*.py")):
        own = file.relative_to(package).with_suffix("").parts[0]
        for line, target in imported(file, package):
            other = target.relative_to(package).parts[:1]
            wrong = other and other[0] in order and own in order
            wrong = wrong and order.index(other[0]) > order.index(own)
            if wrong or (own != "__init__" and not (other and other[0] in order)):
                found.append(f"{file.relative_to(package)}:{line} imports {target.name}")
    return found


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_imports_upward(package: Path) -> None:
    order = layers(package)
    assert len(order) > 1 and len({*order}) == len(order)
    assert upward(package, order) == []


def test_there_are_ten_packages_and_commands_are_imported_by_nothing() -> None:
    order = layers(HELPERS)
    assert order[0] == "simt" and order[-1] == "commands" and len(order) <= 10
    for file in HELPERS.rglob("*.py"):
        for line, target in imported(file, HELPERS):
            inside = file.is_relative_to(HELPERS / "commands")
            assert inside or "commands" not in target.parts, f"{file}:{line}"
    for notebook in (ROOT / "notebooks").rglob("*.ipynb"):
        assert "from helpers." not in notebook.read_text(encoding="utf-8"), notebook
