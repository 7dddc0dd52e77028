"""Mutation testing: how many small defects do the tests find?

    python -m tests.mutants draw --seed 1 --count 60 > mutants.json
    python -m tests.mutants map mutants.json ...    # which tests reach which mutant: a full run
    python -m tests.mutants run mutants.json        # kill them; a line each, a table at the end

A mutant is one changed place: an operator, a number, a condition or a removed call. Half of them
are in kernel files, whose text survives any rewrite of the Python. `map` runs all tests once on a
copy in which each place reports the tests that execute it. A test that fails on that copy notices
any edit (it compares a listing, a token hash or a digest); it does not count as a kill and is not
run. `run` then tests each mutant with the tests that reach it, the most specific first. Used by
developers only; the tests themselves do not need it.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
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
        *("helpers/run/bound.py", "helpers/measure/problem_groups.py"),
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
SECONDS = 90  # of tests for one mutant, by their recorded durations
HITS = """
import os
seen = set()
def hit(mutant):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if test and (test, mutant) not in seen:
        seen.add((test, mutant))
        with open(os.environ["MUTANT_HITS"], "a") as file:
            file.write(f"{mutant}\\t{test}\\n")
def kernel(code):
    for mutant, path in MUTANTS:
        if f'"{path}"' in code:
            hit(mutant)
"""


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
    find = cuda_places if path.suffix == ".cu" else python_places
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


# ---- which tests reach which mutant -------------------------------------------------------------


def map_tests(files: list[Path], jobs: int, tests: list[str]) -> None:
    """Run all tests on an instrumented copy; writes what reached what, how long each test took and
    which tests notice any edit, beside the mutants."""
    mutants = [mutant for file in files for mutant in load(file)]
    with tempfile.TemporaryDirectory() as folder:
        copy, hits = copy_of_repository(Path(folder) / "copy"), Path(folder) / "hits"
        instrument(copy, mutants, Path(folder))
        hits.touch()
        report = Path(folder) / "report.xml"
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"PYTHONPATH": os.pathsep.join(paths), "MUTANT_HITS": str(hits)}
        arguments = ["-n", f"{jobs}", "--dist", "worksteal", f"--junitxml={report}", *tests]
        arguments += ["--ignore=tests/golden"]  # it notices any difference, right ones too
        run_pytest(copy, arguments, environment)
        reached = defaultdict(set)
        for line in hits.read_text().splitlines():
            number, _, test = line.partition("\t")
            reached[number].add(test)
        seconds, failed = read_report(report)
    for number, mutant in enumerate(mutants):  # kernels that an earlier test left in a cache
        if mutant.subsystem == "kernels":
            stem = Path(mutant.path).stem
            reached[str(number)] |= {test for test in seconds if stem in test}
    begin = 0
    for file in files:
        numbers = range(len(load(file)))
        table = {number: sorted(reached[str(begin + number)]) for number in numbers}
        content = {"reached": table, "seconds": seconds, "notice_any_edit": sorted(failed)}
        file.with_suffix(".map.json").write_text(json.dumps(content))
        begin += len(numbers)
    print(f"{len(seconds)} tests, {sum(seconds.values()):.0f} s; {len(failed)} notice any edit")


def instrument(copy: Path, mutants: list[Mutant], folder: Path) -> None:
    """Let each mutant's place report that it is executed; edit each kernel without an effect."""
    by_path = defaultdict(list)
    for number, mutant in enumerate(mutants):
        target = copy / mutant.path
        if target.is_file() and mutant.row(target.read_text(encoding="utf-8")) is not None:
            by_path[mutant.path].append((number, mutant))
    kernels = [(n, m.path) for n, m in enumerate(mutants) if m.subsystem == "kernels"]
    (folder / "hits.py").write_text(f"MUTANTS = {kernels!r}\n{HITS}")
    for path, numbered in by_path.items():
        target = copy / path
        text = target.read_text(encoding="utf-8")
        if target.suffix == ".py":
            target.write_text(reporting(text, numbered), encoding="utf-8")
    for target in (copy / "kernels").rglob("*.cu"):
        text = target.read_text(encoding="utf-8")
        begin = text.find("{", text.find("__global__"))
        target.write_text(f"{text[: begin + 1]} ;{text[begin + 1 :]}", encoding="utf-8")
    compiler = copy / "helpers/simt/compile.py"
    text = compiler.read_text(encoding="utf-8")
    marker = "    from cuda.bindings import nvrtc\n"
    assert marker in text
    text = text.replace(marker, f'    __import__("hits").kernel(code)\n{marker}', 1)
    compiler.write_text(text, encoding="utf-8")


def reporting(text: str, numbered: list[tuple[int, Mutant]]) -> str:
    lines = text.splitlines(keepends=True)
    statements = {}
    for node in ast.walk(ast.parse(text)):  # outer before inner
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            for statement in block if isinstance(block, list) else []:
                begin = statement.lineno - 1
                is_elif = isinstance(statement, ast.If) and lines[begin].lstrip().startswith("elif")
                for row in range(begin, statement.end_lineno) if not is_elif else ():
                    statements[row] = begin
    found = defaultdict(str)
    for number, mutant in numbered:
        begin = statements[mutant.row(text)]
        indent = lines[begin][: len(lines[begin]) - len(lines[begin].lstrip())]
        found[begin] += f'{indent}__import__("hits").hit({number})\n'
    return "".join(found.get(row, "") + line for row, line in enumerate(lines))


def read_report(path: Path) -> tuple[dict[str, float], set[str]]:
    """(test -> seconds, tests that failed) of pytest's JUnit report."""
    import xml.etree.ElementTree as tree

    seconds, failed = {}, set()
    for case in tree.parse(path).getroot().iter("testcase"):
        parts = case.attrib.get("classname", "").split(".")
        name = f"{'/'.join(parts)}.py::{case.attrib['name']}"
        seconds[name] = float(case.attrib["time"])
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
    return seconds, failed


# ---- killing ------------------------------------------------------------------------------------


def run(file: Path, jobs: int) -> int:
    """Test each mutant; prints a line each and a table, and writes the results beside the file."""
    mutants, known = load(file), json.loads(file.with_suffix(".map.json").read_text())
    results = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        first = copy_of_repository(Path(folder) / "0")
        compileall.compile_dir(first, quiet=2)
        others = [Path(folder) / str(number) for number in range(1, jobs)]
        copies = Queue()
        for copy in [first, *pool.map(lambda to: shutil.copytree(first, to, True), others)]:
            copies.put(copy)

        def one(number: int) -> dict:
            copy = copies.get()
            try:
                return verdict(copy, number, mutants[number], known)
            finally:
                copies.put(copy)

        futures = {pool.submit(one, number): number for number in range(len(mutants))}
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


def verdict(copy: Path, number: int, mutant: Mutant, known: dict) -> dict:
    result = {**asdict(mutant), "verdict": "gone", "by": ""}
    target = copy / mutant.path
    if not target.is_file() or mutant.row(target.read_text(encoding="utf-8")) is None:
        return result
    tests = chosen(known, number)
    if not tests:
        return {**result, "verdict": "survived", "by": "no test reaches it"}
    text = target.read_text(encoding="utf-8")
    target.write_text(mutant.apply(text), encoding="utf-8")
    listed = copy / "selected-tests"
    listed.write_text("\n".join(tests))
    try:
        limit = 60 + 3 * sum(known["seconds"].get(test, 1) for test in tests)
        output = run_pytest(copy, ["-x", "--no-header", f"@{listed}"], {}, limit)
    except subprocess.TimeoutExpired:
        return {**result, "verdict": "killed", "by": "it does not end"}
    finally:
        target.write_text(text, encoding="utf-8")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    if not failed and not re.search(r"\d+ (passed|skipped)", output):
        return {**result, "verdict": "killed", "by": "pytest fails to start"}
    name = "killed" if failed else "survived"
    return {**result, "verdict": name, "by": failed[1] if failed else f"{len(tests)} tests"}


def chosen(known: dict, number: int) -> list[str]:
    """The tests for a mutant: those that reach few mutants first, for so many seconds."""
    specific = Counter(test for tests in known["reached"].values() for test in tests)
    excluded, budget, tests = {*known["notice_any_edit"]}, SECONDS, []
    able = [test for test in known["reached"].get(str(number), ()) if test not in excluded]
    for test in sorted(able, key=lambda test: (specific[test], known["seconds"].get(test, 1))):
        cost = known["seconds"].get(test, 1)
        if cost <= budget:
            budget -= cost
            tests.append(test)
    return tests


# ---- what both need -----------------------------------------------------------------------------


def load(file: Path) -> list[Mutant]:
    return [Mutant(**fields) for fields in json.loads(file.read_text())]


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


def run_pytest(
    copy: Path, arguments: list[str], environment: dict[str, str], timeout: float | None = None
) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--tb=no", "-rfE", *arguments],
        cwd=copy, env={**os.environ, **environment}, timeout=timeout,
        capture_output=True, text=True,
    )  # fmt: skip
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
    mapping = commands.add_parser("map", help="find the tests that reach each mutant")
    mapping.add_argument("files", type=Path, nargs="+")
    mapping.add_argument("--tests", nargs="+", default=["tests"], help="only these (default: all)")
    killing = commands.add_parser("run", help="test each mutant")
    killing.add_argument("file", type=Path)
    for one in (mapping, killing):
        one.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    options = parser.parse_args(arguments)
    if options.command == "draw":
        drawn = draw(options.seed, options.count)
        print(json.dumps([asdict(mutant) for mutant in drawn], indent=1))
        return 0
    if options.command == "map":
        map_tests(options.files, options.jobs, options.tests)
        return 0
    return run(options.file, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
