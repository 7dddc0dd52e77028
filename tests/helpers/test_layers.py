"""The layers of helpers, lowest first, as the docstring of the package lists them: an arrow upward
fails with module and line. So do those of the SIMT machine and of its folders."""

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import helpers
from helpers.paths import ROOT

COMMANDS = "commands"


def layers(text: str) -> list[str]:
    """The names in a docstring's list of modules, one a line behind four spaces."""
    return re.findall(r"^    (\w+)  +\S", text, flags=re.MULTILINE)


def modules(root: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """(file, its parts below helpers) of every module; () for helpers itself."""
    for file in sorted((root / "helpers").rglob("*.py")):
        *folders, name = file.relative_to(root / "helpers").with_suffix("").parts
        yield file, tuple(folders if name == "__init__" else [*folders, name])


def imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(line, parts below helpers) of everything of helpers that is imported, in functions too;
    `package` are the parts of the package that the module is in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ("helpers", *package)[: len(package) + 2 - node.level] if node.level else ()
            base = (*base, *(node.module.split(".") if node.module else ()))
            names = [(*base, alias.name) for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name[1:]) for name in names if name[0] == "helpers")


def of_a_program(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) of what a library must not hold."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            yield node.lineno, "has a __getattr__"
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            yield node.lineno, f"can be run; what can be run stands in helpers/{COMMANDS}"


def complaints(root: Path, order: list[str]) -> list[str]:
    """Everything in `root`'s helpers and notebooks that does not keep to the layers."""
    found = []
    units = {parts[0] for _, parts in modules(root) if parts}
    found += [f"helpers/{unit} is in no layer" for unit in sorted(units - {*order})]
    found += [f"the layers list {unit}, which is not there" for unit in order if unit not in units]
    for file, parts in modules(root):
        place = file.relative_to(root).as_posix()
        tree = ast.parse(file.read_text(encoding="utf-8"))
        own = parts[0] if parts else ""
        if own != COMMANDS:
            found += [f"{place}:{line}: {what}" for line, what in of_a_program(tree)]
            if file.name == "__main__.py":
                found.append(f"{place}: what can be run stands in helpers/{COMMANDS}")
        package = parts if file.name == "__init__.py" else parts[:-1]
        for line, target in imported(tree, package):
            unit = target[0] if target and target[0] in units else ""
            if not unit:
                wrong = "imports helpers itself, which stands above all modules"
            elif unit == COMMANDS and (own != COMMANDS or len(target) > 1):
                wrong = f"imports {'.'.join(target)}; commands are imported by nobody"
            elif own and {own, unit} <= {*order} and order.index(unit) > order.index(own):
                wrong = f"imports {'.'.join(target)}, which stands above {own}"
            else:
                continue
            found.append(f"{place}:{line}: {wrong}")
    for file in sorted((root / "notebooks").rglob("*.ipynb")):
        for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code" and re.search(
                rf"helpers\.{COMMANDS}\b|from helpers import.*\b{COMMANDS}\b",
                "".join(cell["source"]),
            ):
                found.append(f"{file.name} imports a command; commands are imported by nobody")
    return found


def arrows_upward(root: Path, folder: tuple[str, ...], order: list[str]) -> list[str]:
    """Everything in a folder of helpers that does not keep to its own list."""
    inside = [(file, parts) for file, parts in modules(root) if parts[: len(folder)] == folder]
    depth, name = len(folder), "/".join(folder)
    units = {parts[depth] for _, parts in inside if parts[depth:]}
    found = [f"helpers/{name}/{unit} is in no layer" for unit in sorted(units - {*order})]
    found += [f"{name} lists {unit}, which is not there" for unit in order if unit not in units]
    for file, parts in inside:
        if not parts[depth:]:
            continue
        own = parts[depth]
        package = parts if file.name == "__init__.py" else parts[:-1]
        for line, target in imported(ast.parse(file.read_text(encoding="utf-8")), package):
            if target[:depth] != folder:
                continue
            unit = target[depth] if target[depth:] and target[depth] in units else ""
            if not unit:
                wrong = f"imports {name} itself, which stands above its modules"
            elif {own, unit} <= {*order} and order.index(unit) > order.index(own):
                wrong = f"imports {unit}, which stands above {own}"
            else:
                continue
            found.append(f"{file.relative_to(root).as_posix()}:{line}: {wrong}")
    return found


FOLDERS = [
    "simt",
    "simt.operations",
    "simt.memory",
    "simt.memory_instructions",
    "exercises",
    "export",
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_arrow_points_upward_within_the_machine(folder: str) -> None:
    order = layers(importlib.import_module(f"helpers.{folder}").__doc__)
    assert len(order) > 3 and len(set(order)) == len(order)
    assert arrows_upward(ROOT, tuple(folder.split(".")), order) == []


def test_no_arrow_points_upward() -> None:
    order = layers(helpers.__doc__)
    assert order[0] == "simt" and order[-1] == COMMANDS and len(set(order)) == len(order)
    assert complaints(ROOT, order) == []
