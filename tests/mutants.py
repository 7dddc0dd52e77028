"""Mutation testing: how many small defects do the tests find?

    python -m tests.mutants draw --seed 1 --count 60 > mutants.json
    python -m tests.mutants run mutants.json        # kill them; a line each, a table at the end

A mutant is one changed place: an operator, a number, a condition or a removed call. Half of them
are in kernel files, whose text survives any rewrite of the Python. `run` tests each mutant in a
copy of the repository, with the tests of its subsystem until one fails. A test that fails after an
edit of a kernel without an effect notices any edit (it compares a token hash or a digest); it is
not run. Used by developers only; the tests themselves do not need it.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parent.parent
SUBSYSTEMS = {
    "kernels": ["kernels/[0-9]*.cu", "kernels/include/*.cuh", "kernels/variants/*.cu"],
    "simt": ["helpers/simt/**/*.py"],
    "plan": [
        *(f"helpers/catalogue/{name}.py" for name in ("plan", "expressions", "header")),
        "helpers/run/bound.py",
    ],
    "dispatch": [
        *(f"helpers/catalogue/{name}.py" for name in ("registry", "dispatch", "tuned")),
        "helpers/problem/*.py",
    ],
    "export": ["helpers/export/**/*.py"],
    "statistics": [
        f"helpers/measure/{name}.py"
        for name in ("samples", "bench", "records", "store", "comparison")
    ],
}
SHARES = {"kernels": 0.5, "simt": 0.18, "plan": 0.1, "dispatch": 0.06, "export": 0.1}
SWAPS = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="},
    **{ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"},
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "*"},
    **{ast.And: "or", ast.Or: "and", ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>"},
}
CUDA_SWAPS = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"},
    **{"+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "<<": ">>", ">>": "<<", "&": "|"},
    **{"+=": "-=", "fmaxf": "fminf", "__expf": "exp2f", "-INFINITY": "0.f", "true": "false"},
}
CUDA_TOKENS = re.compile(
    r"(?P<skip>//.*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|#\w+.*|template\s*<[^>]*>|\w+_cast<[^>]*>)"
    r"|(?P<call>\b__sync\w+\([^()]*\);)"
    r"|(?P<number>(?<![\w.])\d+(?![\w.]))"
    r"|(?P<swap>-INFINITY|<<|>>|<=|>=|==|!=|&&|\|\||\+=|(?<=\s)[<>+\-*/%&](?=\s)|\bfmaxf\b|\b__expf\b"
    r"|\btrue\b)"
)
# Of a kernel file, the tests that have its name.
TESTS = {
    "kernels": ["tests/kernels", "tests/helpers/exercises", "tests/copied"],
    "simt": ["tests/simt", "tests/hardware"],
    "plan": ["tests/kernels/test_plans.py", "tests/helpers", "tests/copied"],
    "dispatch": ["tests/helpers", "tests/commands", "tests/kernels"],
    "export": ["tests/helpers/export", "tests/copied", "tests/commands"],
    "statistics": ["tests/helpers", "tests/commands"],
}
SECONDS = 1800  # of the tests of one mutant


@dataclass(frozen=True)
class Mutant:
    """A place by the text of its line, so that it is found again after edits elsewhere."""

    subsystem: str
    path: str
    line: str  # its text, without indentation
    nth: int  # of the lines of the file with that text, from 0
    column: int  # in that text
    old: str
    new: str

    def row(self, text: str) -> int | None:
        """Index of its line in a file's text; None if it is not there any more."""
        rows = [row for row, line in enumerate(text.splitlines()) if line.strip() == self.line]
        return rows[self.nth] if self.nth < len(rows) else None

    def apply(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        row = self.row(text)
        indent = len(lines[row]) - len(lines[row].lstrip())
        start = indent + self.column
        assert lines[row][start:].startswith(self.old), self
        lines[row] = lines[row][:start] + self.new + lines[row][start + len(self.old) :]
        return "".join(lines)


# ---- drawing ------------------------------------------------------------------------------------


def draw(seed: int, count: int) -> list[Mutant]:
    """So many mutants, shared out over the subsystems; the same for the same seed and files. Each
    file of a subsystem is as likely as any other, and so is each of its places."""
    generator = random.Random(seed)
    rest = 1 - sum(SHARES.values())
    found = []
    for subsystem, patterns in SUBSYSTEMS.items():
        paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern)})
        places = {path: list(places_of(path, subsystem)) for path in paths}
        paths = [path for path in paths if places[path]]
        wanted, chosen = round(count * SHARES.get(subsystem, rest)), []
        while len(chosen) < wanted:
            mutant = generator.choice(places[generator.choice(paths)])
            chosen += [mutant] if mutant not in chosen else []
        found += chosen
    return found


def places_of(path: Path, subsystem: str) -> Iterator[Mutant]:
    """Everything in a file that a mutant can change."""
    text = path.read_text(encoding="utf-8")
    lines, name = text.splitlines(), path.relative_to(ROOT).as_posix()
    find = python_places if path.suffix == ".py" else cuda_places
    for row, column, old, new in find(text):
        indent = len(lines[row]) - len(lines[row].lstrip())
        line = lines[row].strip()
        nth = sum(other.strip() == line for other in lines[:row])
        yield Mutant(subsystem, name, line, nth, column - indent, old, new)


def cuda_places(text: str) -> Iterator[tuple[int, int, str, str]]:
    for row, line in enumerate(text.splitlines()):
        for match in CUDA_TOKENS.finditer(line):
            old = match[0]
            if match["call"]:
                yield row, match.start(), old, ";"
            elif match["number"]:
                yield row, match.start(), old, str(int(old) + 1)
            elif match["swap"]:
                yield row, match.start(), old, CUDA_SWAPS[old]


def python_places(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Inside functions alone: what a module computes on import, no single test reaches."""
    lines = text.splitlines()
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for statement in function.body:
            for node in ast.walk(statement):
                yield from node_places(node, lines)


def node_places(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, int, str, str]]:
    if isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        old = lines[node.lineno - 1][node.col_offset : node.end_col_offset]
        new = str(node.value + 1) if type(node.value) is int else str(not node.value)
        if node.lineno == node.end_lineno and old.isalnum():
            yield node.lineno - 1, node.col_offset, old, new
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from between(node.left, node.comparators[0], node.ops[0], lines)
    elif isinstance(node, ast.BinOp):
        yield from between(node.left, node.right, node.op, lines)
    elif isinstance(node, ast.BoolOp):
        yield from between(node.values[0], node.values[1], node.op, lines)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.lineno - 1, node.col_offset, "not ", ""
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        if node.lineno == node.end_lineno:
            old = lines[node.lineno - 1][node.col_offset : node.end_col_offset]
            yield node.lineno - 1, node.col_offset, old, "pass"


def between(
    left: ast.expr, right: ast.expr, operator: ast.AST, lines: list[str]
) -> Iterator[tuple[int, int, str, str]]:
    """The operator between two operands, where all three are on a line."""
    if type(operator) not in SWAPS or left.end_lineno != right.lineno:
        return
    row, begin, end = left.end_lineno - 1, left.end_col_offset, right.col_offset
    if match := re.search(
        r"not in|is not|[<>=!]=|<<|>>|//|[<>+\-*/%&|]|\w+", lines[row][begin:end]
    ):
        yield row, begin + match.start(), match[0], SWAPS[type(operator)]


# ---- killing ------------------------------------------------------------------------------------


def run(file: Path, jobs: int) -> int:
    """Test each mutant; prints a line each and a table, and writes the results beside the file."""
    mutants = [Mutant(**fields) for fields in json.loads(file.read_text())]
    results = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        first = copy_of_repository(Path(folder) / "0")
        compileall.compile_dir(first, quiet=2)
        others = [Path(folder) / str(number) for number in range(1, jobs)]
        copies = Queue()
        for copy in [first, *pool.map(lambda to: shutil.copytree(first, to, True), others)]:
            copies.put(copy)
        noticing = [f"--deselect={test}" for test in noticing_any_edit(first, mutants)]

        def one(mutant: Mutant) -> dict:
            copy = copies.get()
            try:
                return {**asdict(mutant), **verdict(copy, mutant, noticing)}
            finally:
                copies.put(copy)

        futures = {pool.submit(one, mutant): n for n, mutant in enumerate(mutants)}
        for future in as_completed(futures):
            result = results[futures[future]] = future.result()
            where = f"{result['path']}: {result['line'][:60]!r}"
            change = f"{result['old']} -> {result['new']}"
            print(f"{result['verdict']:9} {where} {change} {result['by']}", flush=True)
            in_order = [results[number] for number in sorted(results)]
            file.with_suffix(".results.json").write_text(json.dumps(in_order, indent=1))
    counts = Counter((result["subsystem"], result["verdict"]) for result in results.values())
    for subsystem in SUBSYSTEMS:
        row = {name: counts[subsystem, name] for name in ("killed", "survived", "gone")}
        print(f"{subsystem:12}", *(f"{count:4} {name}" for name, count in row.items()))
    return 0


def tests_of(*mutants: Mutant) -> list[str]:
    """Those of the subsystem of some mutants."""
    paths = [Path(mutant.path) for mutant in mutants]
    alone = all(path.suffix == ".cu" for path in paths)  # headers are in many kernels
    names = ["-k", " or ".join(sorted({path.stem for path in paths}))] if alone else []
    return [*TESTS[mutants[0].subsystem], *names]


def noticing_any_edit(copy: Path, mutants: list[Mutant]) -> list[str]:
    """The tests of mutated kernels that fail after an edit of every kernel without an effect."""
    texts = {path: path.read_text(encoding="utf-8") for path in (copy / "kernels").rglob("*.cu")}
    mutants = [mutant for mutant in mutants if mutant.subsystem == "kernels"]
    if not mutants:
        return []
    for path, text in texts.items():
        begin = text.find("{", text.find("__global__"))
        path.write_text(f"{text[: begin + 1]} ;{text[begin + 1 :]}", encoding="utf-8")
    output = run_pytest(copy, tests_of(*mutants))
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return failed(output)


def verdict(copy: Path, mutant: Mutant, more: list[str]) -> dict[str, str]:
    """Whether the tests of its subsystem kill a mutant, and which one does."""
    target = copy / mutant.path
    if not target.is_file() or mutant.row(target.read_text(encoding="utf-8")) is None:
        return {"verdict": "gone", "by": ""}
    text = target.read_text(encoding="utf-8")
    target.write_text(mutant.apply(text), encoding="utf-8")
    try:
        output = run_pytest(copy, ["-x", "--no-header", *more, *tests_of(mutant)])
    except subprocess.TimeoutExpired:
        return {"verdict": "killed", "by": "it does not end"}
    finally:
        target.write_text(text, encoding="utf-8")
    if killers := failed(output):
        return {"verdict": "killed", "by": killers[0]}
    if re.search(r"\d+ (passed|skipped)", output):
        return {"verdict": "survived", "by": ""}
    return {"verdict": "killed", "by": "pytest fails to start"}


def failed(output: str) -> list[str]:
    return re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)


# ---- the copy -----------------------------------------------------------------------------------


def copy_of_repository(target: Path) -> Path:
    """What git tracks and what is new, with this environment."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in names:
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    subprocess.run(["git", "init", "-q"], cwd=target, check=True)
    subprocess.run(["git", "add", "-A"], cwd=target, check=True)
    if (ROOT / ".venv").exists():
        (target / ".venv").symlink_to((ROOT / ".venv").resolve())
    return target


def run_pytest(copy: Path, arguments: list[str]) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu", "-p", "no:cacheprovider"]
    command += ["--tb=no", "-rfE", *arguments]
    done = subprocess.run(command, cwd=copy, timeout=SECONDS, capture_output=True, text=True)
    return done.stdout + done.stderr


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="print mutants as JSON")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, default=60)
    killing = commands.add_parser("run", help="test each mutant")
    killing.add_argument("file", type=Path)
    killing.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    options = parser.parse_args(arguments)
    if options.command == "draw":
        drawn = draw(options.seed, options.count)
        print(json.dumps([asdict(mutant) for mutant in drawn], indent=1))
        return 0
    return run(options.file, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
