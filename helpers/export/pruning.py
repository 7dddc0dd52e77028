"""Remove the parts of a Python file that its public functions do not need."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

OPERATORS = "_OPERATORS"  # a table whose entries begin with a schema: "softmax(Tensor x) -> Tensor"


def pruned(text: str, functions: Collection[str], operators: Collection[str]) -> str:
    """Return the text without the top-level definitions, imports and headings that `functions` and
    the entries `operators` of the table do not reach. Other statements stay, with what they use.

    A definition is reached if its name occurs in one that is reached; attributes do not count.
    """
    lines = text.splitlines()
    body = ast.parse(text).body
    gone = {line for entry in _entries(body, operators) for line in _lines(entry, lines)}
    used = _reached(ast.parse(_without(lines, gone)).body, functions)
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            kept = [one for one in node.names if _bound(one) in used or _of_future(node)]
            if kept != node.names:
                gone |= {*_lines(node, lines)} - {node.lineno}
                node.names = kept
                lines[node.lineno - 1] = ast.unparse(node) if kept else ""
                gone |= set() if kept else {node.lineno}
        elif (name := _defined(node)) and name not in used:
            gone |= {*_lines(node, lines)}
    text = _without(lines, gone)
    heading = r"^# ---- .*\n\s*(?=# ---- |\Z)"
    return re.sub(r"\n{4,}", "\n\n\n", re.sub(heading, "", text, flags=re.MULTILINE))


def _entries(body: Sequence[ast.stmt], operators: Collection[str]) -> Iterator[ast.expr]:
    """Yield the entries of the table that are not needed."""
    for node in body:
        if _defined(node) == OPERATORS:
            for entry in node.value.elts:
                schema = next(one for one in ast.walk(entry) if isinstance(one, ast.Constant))
                if schema.value.partition("(")[0] not in operators:
                    yield entry


def _reached(body: Sequence[ast.stmt], functions: Collection[str]) -> set[str]:
    """Return the names that statements and `functions` use, directly or through definitions."""
    uses: dict[str, set[str]] = {}
    todo = [*functions]
    for node in body:
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        if name := _defined(node):
            uses.setdefault(name, set()).update(names)
        else:
            todo += names
    found: set[str] = set()
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += uses.get(name, ())
    return found


def _defined(node: ast.stmt) -> str:
    """Return the name that a statement defines if it does nothing else, or ""."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _lines(node: ast.AST, lines: Sequence[str]) -> range:
    """Return the line numbers of a node, with its decorators and the comment above it."""
    first = min(one.lineno for one in (node, *getattr(node, "decorator_list", ())))
    while re.match(r"#(?! ----)", lines[first - 2]):
        first -= 1
    return range(first, node.end_lineno + 1)


def _without(lines: Sequence[str], gone: Collection[int]) -> str:
    return "\n".join(line for at, line in enumerate(lines, 1) if at not in gone) + "\n"


def _bound(alias: ast.alias) -> str:
    """Return the name that an import binds."""
    return alias.asname or alias.name.partition(".")[0]


def _of_future(node: ast.stmt) -> bool:
    return getattr(node, "module", "") == "__future__"
