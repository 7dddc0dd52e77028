"""Measure how large and how entangled the project is: the table in tests/data/numbers.md.

    python -m tests.numbers                # the checkout that contains this file
    python -m tests.numbers FOLDER         # another checkout
    python -m tests.numbers --list         # also name the offenders

Every line of every text file counts, blank lines and comments included, except JSON and compressed
files, which programs write. `self` and `cls` are no parameters; `*args` and `**kwargs` count as one
each. An import edge, inside a function too, leads to the module that is named, not to the packages
that Python loads on the way. This script is for development only.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

from helpers.catalogue.registry import PRODUCTION

ROOT = Path(__file__).resolve().parent.parent
WRITTEN_BY_PROGRAMS = {".json", ".jsonl", ".xz", ".png", ".pyc"}
MAX_LINES = 600  # of a module
MAX_PARAMETERS = 5  # of a function
Function = ast.FunctionDef | ast.AsyncFunctionDef


def text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def lines(*files: Path) -> int:
    return sum(len(text(file).splitlines()) for file in files)


def written(folder: Path) -> list[Path]:
    """Return the files below a folder that people write."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return [file for file in files if file.suffix not in WRITTEN_BY_PROGRAMS]


def imported(file: Path, tree: ast.Module, modules: Iterable[Path], root: Path) -> Iterator[Path]:
    """Yield the modules that a module in `root` imports, itself excluded."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        level, module = getattr(node, "level", 0), getattr(node, "module", None) or ""
        base = file.parents[level - 1] if level else root
        for alias in node.names:
            target = base.joinpath(*filter(None, f"{module}.{alias.name}".split(".")))
            # The last part of the name may be a function or a class of the module before it.
            places = [p for t in (target, target.parent) for p in (f"{t}.py", t / "__init__.py")]
            found = next((Path(place) for place in places if Path(place) in modules), file)
            if found != file:
                yield found


def chain(edges: dict[Path, set[Path]]) -> str:
    """Return the number of nodes on the longest path of a graph. If the graph has cycles, the path
    leaves out the edges that close one, and their number follows."""
    depth: dict[Path, int] = {}
    closing = 0

    def visit(node: Path) -> int:
        nonlocal closing
        if node not in depth:
            depth[node] = 0  # in progress: an edge that returns here closes a cycle
            below = [visit(other) for other in sorted(edges.get(node, ()))]
            closing += below.count(0)
            depth[node] = 1 + max(below, default=0)
        return depth[node]

    longest = max(map(visit, sorted(edges)))
    return f"{longest}, cycles: {closing}" if closing else str(longest)


def parameters(function: Function, method: bool) -> list[str]:
    """Return the names of the parameters of a function, without `self` and `cls`."""
    listed = function.args
    static = any(ast.unparse(decorator) == "staticmethod" for decorator in function.decorator_list)
    rest = [a for a in (*listed.kwonlyargs, listed.vararg, listed.kwarg) if a]
    return [a.arg for a in [*listed.posonlyargs, *listed.args][method and not static :] + rest]


def measure(root: Path) -> dict[str, object]:
    """Return the numbers of a checkout; a list names what is counted, with its place."""
    helpers, tests, kernels = root / "helpers", written(root / "tests"), root / "kernels"
    files = written(helpers)
    modules = {file: ast.parse(text(file)) for file in files if file.suffix == ".py"}
    edges = {file: {*imported(file, tree, modules, root)} for file, tree in modules.items()}
    top = {file: helpers / file.relative_to(helpers).parts[0] for file in files}
    smaller = [file for file in files if top[file].name not in ("simt", "export")]
    packages: dict[Path, set[Path]] = defaultdict(set)
    for file in modules.keys() - {helpers / "__init__.py"}:
        packages[top[file]] |= {top[other] for other in edges[file]} - {top[file]}

    functions: dict[str, list[str]] = {}  # place and name -> parameters
    classes: dict[str, list[str]] = defaultdict(list)  # name -> places
    for file, tree in modules.items():
        for owner in ast.walk(tree):
            for node in ast.iter_child_nodes(owner):
                place = f"{file.relative_to(root).as_posix()}:{getattr(node, 'lineno', 0)}"
                if isinstance(node, ast.ClassDef):
                    classes[node.name].append(place)
                elif isinstance(node, Function):
                    method = isinstance(owner, ast.ClassDef)
                    functions[f"{place} {node.name}"] = parameters(node, method)
    loose = {place: names for place, names in functions.items() if {"rows", "cols"} <= {*names}}
    many = [f"{p}: {len(names)}" for p, names in functions.items() if len(names) > MAX_PARAMETERS]
    twice = [f"{name}: {', '.join(at)}" for name, at in sorted(classes.items()) if len(at) > 1]
    length = {file: lines(file) for file in [*modules, *tests] if file.suffix == ".py"}
    long = [f"{f.relative_to(root).as_posix()}: {n}" for f, n in length.items() if n > MAX_LINES]

    def most(of: dict[str, list[str]]) -> str:
        place, names = max(of.items(), key=lambda item: len(item[1]))
        return f"{len(names)} ({place.split()[-1]})"

    later = [f for f in written(kernels) if re.match(r"(0[7-9]|1[0-5])_.*\.cu$", f.name)]
    steps = [one for one in later if one.parent == kernels and one.stem not in PRODUCTION]
    variants = [one for one in later if one.parent.name in ("kernels", "variants")]
    variants = [one for one in variants if one not in steps]
    steps += written(kernels / "include")
    records = [*root.glob("notebooks/records/**/*.json*")]
    longest = max(modules, key=lambda file: length[file])
    kept = [line for file in modules for line in text(file).splitlines() if line.strip()]
    return {
        "helpers, lines": lines(*files),
        "helpers, lines of Python": lines(*modules),
        "helpers without simt and export, lines": lines(*smaller),
        "tests, lines of Python": lines(*(file for file in tests if file.suffix == ".py")),
        "tests, lines of other written files": lines(*(f for f in tests if f.suffix != ".py")),
        "modules below helpers": len(modules),
        "entries directly below helpers": len(packages),
        "layers: longest import chain of entries": chain(packages),
        "arrows between entries": sum(map(len, packages.values())),
        "import edges between modules": sum(map(len, edges.values())),
        "longest import chain of modules": chain(edges),
        "functions with loose rows, cols": [*loose],
        "most parameters of a function": most(functions),
        "most parameters of one with rows, cols": most(loose) if loose else 0,
        f"functions with more than {MAX_PARAMETERS} parameters": many,
        "class names defined more than once": twice,
        "functions and methods": len(functions),
        "classes": sum(map(len, classes.values())),
        "kernels 07 to 15, includes counted once, lines": lines(*steps),
        "the same with all variants of 07 to 15": lines(*steps, *variants),
        "records, MB of JSON": f"{sum(file.stat().st_size for file in records) / 1e6:.2f}",
        "records, lines of JSON": lines(*records),
        "README, words": len(text(root / "README.md").split()),
        "make targets": len(re.findall(r"^[a-z]+:.*## ", text(root / "Makefile"), re.MULTILINE)),
        "longest module of helpers, lines": f"{length[longest]} ({longest.name})",
        f"modules over {MAX_LINES} lines, tests included": long,
        "median line of helpers, characters": f"{median(map(len, kept)):g}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the size of the project.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT, help="default: this checkout")
    parser.add_argument("--list", action="store_true", help="also name the offenders")
    arguments = parser.parse_args()
    numbers = measure(arguments.folder.resolve())
    for name, value in numbers.items():
        value = len(value) if isinstance(value, list) else value
        print(f"{name:48}", f"{value:,}" if isinstance(value, int) else value)
    for name, value in numbers.items():
        if isinstance(value, list) and arguments.list:
            print(f"\n{name}:", *value, sep="\n  ")


if __name__ == "__main__":
    main()
