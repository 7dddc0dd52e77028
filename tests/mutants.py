"""Mutation testing: how many small defects do the tests find?

    python -m tests.mutants helpers/catalogue/plan.py -- tests/helpers/test_header.py
    python -m tests.mutants --seed 2 --count 40 kernels/07_warp.cu -- tests/kernels -k 07_warp

A mutant is one changed place in the given files: an operator, a number, a condition or a removed
barrier. Each is planted in a copy of the repository without untracked files, where pytest then runs
with the arguments after `--` until a test fails. Give no tests that fail after any edit of a kernel
because they compare a hash. Used by developers only.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import random
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SWAPS = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "*", "<<": ">>", ">>": "<<"},
    **{"&": "|", "&&": "||", "||": "&&", "+=": "-=", "and": "or", "or": "and", "not": ""},
    **{"True": "False", "False": "True", "true": "false", "if": "if not", "in": "not in"},
    **{"fmaxf": "fminf", "__expf": "exp2f", "-INFINITY": "0.f"},
}
CUDA_TOKENS = re.compile(
    r"(?P<skip>//.*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|#\w+.*|template\s*<[^>]*>|\w+_cast<[^>]*>)"
    r"|(?P<call>\b__sync\w+\([^()]*\);)|(?P<number>(?<![\w.])\d+(?![\w.]))"
    r"|(?P<swap>-INFINITY|<<|>>|<=|>=|==|!=|&&|\|\||\+=|(?<=\s)[<>+\-*/%&](?=\s)|\bfmaxf\b|\b__expf\b"
    r"|\btrue\b)"
)
SECONDS = 1800  # of the tests of one mutant
Place = tuple[int, int, str, str]  # line and column, from 0; old and new text


def cuda_places(text: str) -> Iterator[Place]:
    for row, line in enumerate(text.splitlines()):
        for match in CUDA_TOKENS.finditer(line):
            if not match["skip"]:
                new = ";" if match["call"] else changed(match[0])
                yield row, match.start(), match[0], new


def python_places(text: str) -> Iterator[Place]:
    """Inside functions alone: what a module computes on import, no single test reaches."""
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    inside = {n for f in functions for n in range(f.body[0].lineno, f.end_lineno + 1)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        (row, column), old = token.start, token.string
        number = token.type == tokenize.NUMBER and old.isdigit()
        swap = token.type in (tokenize.OP, tokenize.NAME) and old in SWAPS
        if row in inside and (number or swap):
            place = row - 1, column, old, changed(old)
            with contextlib.suppress(SyntaxError):  # the `in` of a loop is no condition
                ast.parse(planted(text, place))
                yield place


def changed(old: str) -> str:
    return str(int(old) + 1) if old.isdigit() else SWAPS[old]


def planted(text: str, place: Place) -> str:
    row, column, old, new = place
    lines = text.splitlines(keepends=True)
    lines[row] = lines[row][:column] + new + lines[row][column + len(old) :]
    return "".join(lines)


def killer(copy: Path, arguments: list[str]) -> str:
    """The first test that fails, or "" if none does."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not gpu", "--tb=no", "-rfE"]
    command += ["-p", "no:cacheprovider", *arguments]
    try:
        done = subprocess.run(command, cwd=copy, timeout=SECONDS, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return "it does not end"
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return "" if done.returncode == 0 else found[1] if found else "pytest fails to start"


def git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the number of mutants that no test finds."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20, help="mutants of all files together (20)")
    parser.add_argument("files", nargs="+", help="Python or CUDA files, relative to the repository")
    given = sys.argv[1:] if arguments is None else arguments
    at = given.index("--") if "--" in given else len(given)
    options, tests = parser.parse_args(given[:at]), given[at + 1 :]
    every = [
        (file, place)
        for file in options.files
        for text in [(ROOT / file).read_text(encoding="utf-8")]
        for place in (python_places if file.endswith(".py") else cuda_places)(text)
    ]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        git("worktree", "add", "--detach", str(copy), git("stash", "create").strip() or "HEAD")
        try:
            assert not (by := killer(copy, tests)), f"a test fails without a mutant: {by}"
            chosen = random.Random(options.seed).sample(every, min(options.count, len(every)))
            for file, place in chosen:
                text = (copy / file).read_text(encoding="utf-8")
                (copy / file).write_text(planted(text, place), encoding="utf-8")
                by = killer(copy, tests)
                (copy / file).write_text(text, encoding="utf-8")
                survived += not by
                change = f"{file}:{place[0] + 1}: {place[2]} -> {place[3]}"
                print(f"{'killed' if by else 'survived':8} {change} {by}", flush=True)
        finally:
            git("worktree", "remove", "--force", str(copy))
    print(f"{len(chosen) - survived} of {len(chosen)} killed")
    return survived


if __name__ == "__main__":
    sys.exit(main())
