"""One Python file for PyTorch or CuPy.

It is put together of the files of `parts/`, which are Python to be read and checked as it stands,
and of what the headers and `choose` say, as Python: a function for each Build table, a line a case.
Nothing of a kernel is written a second time, so nothing can drift.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from ..base.gpu import H200, SHARED_KB
from ..catalogue.dispatch import RANKINGS, SOFTMAX_RANKING, Rank
from ..catalogue.expressions import Expression
from ..catalogue.plan import AXIS_INPUTS, INPUTS
from ..catalogue.registry import split_trial
from ..catalogue.rules import Definition, Names, Requirement
from ..run.bound import load
from .asked import PROJECT, TUNED_ON, Asked, NoSuchExport, of_a_matrix
from .builds import file_of
from .pruning import pruned
from .terms import ATOM, COMPARE, Term, TextDomain

PARTS = Path(__file__).parent / "parts"
FRAMEWORKS = {
    "torch": (
        ("pytorch", "pytorch_operators", "layouts"),
        "PyTorch's tensors",
        "PyTorch 2.4 or newer for CUDA 12 or 13",
    ),
    "cupy": (
        ("cupy_arrays", "layouts"),
        "CuPy's arrays",
        "CuPy 13 or newer for CUDA 12 or 13, NVRTC",
    ),
}
FUNCTIONS = {  # for the head: how they are called; of one kernel there is the first alone
    "torch": """\
y = softmax(x, dim=-1)
y = log_softmax(x, dim=-1)
y = scaled_masked_softmax(x, mask, scale=0.125, bias=bias, is_causal=True, dropout_p=0.1)
loss = cross_entropy(logits, target, label_smoothing=0.1, z_loss=1e-4)""",
    "cupy": """\
y = softmax(x, axis=-1)
y = scaled_masked_softmax(x, mask, scale=0.125, bias=bias, dropout_p=0.1, seed=7)
dx = softmax_backward(y, dy, scale=0.125)
loss, statistics = cross_entropy(logits, target, label_smoothing=0.1)
dx = cross_entropy_backward(logits, target, statistics, dloss, label_smoothing=0.1, out=logits)""",
}
WRITTEN = "# ---- written by the export"  # in parts/planning.py, above what is replaced
NAME, CONTENT = '"softmax_worklog"', 'CONTENT = ""'  # in parts/pytorch.py
WIDTH = 100


def write(asked: Asked, framework: str) -> str:
    """Return the file for a framework, "torch" or "cupy".

    It supports every dtype and shape that its kernels accept, whatever was asked for. Raises
    `NoSuchExport` with the reason.
    """
    for step in asked.kernels:
        _check(step)
    parts, what, needs = FRAMEWORKS[framework]
    ranks, operations = SOFTMAX_RANKING, {}
    if asked.best:
        operations = {name: tuple(rank.file for rank in found) for name, found in RANKINGS.items()}
    else:
        ranks = (Rank(asked.kernels[0], Expression("1"), "asked for"),)
    steps = dict.fromkeys(file_of(rank.file) for rank in ranks)
    steps = [*steps, *(step for found in operations.values() for step in found)]
    name = "softmax_worklog" if asked.name == "softmax" else asked.name
    texts = [_Part(name) for name in ("planning", "launching", *parts)]
    planning = texts[0].body.partition(WRITTEN)[0]
    functions = FUNCTIONS[framework].splitlines()[: None if operations else 1]
    sections = [
        _head(asked, steps, what, needs, functions),
        _imports([line for text in texts for line in text.imports]),
        planning.strip() + "\n",
        _rule("the rules of the kernels"),
        *map(_table, steps),
        _ranking(ranks, operations),
        _rule("compiling and launching"),
        texts[1].body.strip() + "\n",
        _rule(f"softmax of {what}"),
        *(text.body.replace(NAME, f'"{name}"').strip() + "\n" for text in texts[2:]),
        _rule("the kernels"),
        *_texts(steps),
        _kernels(steps),
    ]
    whole = re.sub(r"\n{4,}", "\n\n\n", "\n\n".join(sections)).rstrip() + "\n"
    if not asked.best:
        whole = pruned(whole, ("softmax", "plan"), ("softmax", "softmax_backward"))
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return whole.replace(CONTENT, CONTENT.replace('""', f'"{digest}"'), 1)


def _check(step: str) -> None:
    """Raise `NoSuchExport` for a kernel that a Python file cannot contain."""
    kernel = load(step)
    if not of_a_matrix(step):
        raise NoSuchExport(
            f"a Python file of one kernel computes softmax of a matrix, which {step} does not; "
            "best --as torch or cupy contains it"
        )
    if kernel.name.startswith("copy"):
        raise NoSuchExport(f"{step} computes no softmax, which is what a Python file is for")
    table = {entry.name for entry in kernel.header.build}
    if kernel.block is not None or not {name for name, _ in kernel.changes} <= table:
        raise NoSuchExport(
            f"{step} changes more than its Build table, which is all that Python supports"
        )


# ---- parts ---------------------------------------------------------------------------------------


class _Part:
    """A file of `parts/`: its imports but those from its neighbours, and what follows them."""

    def __init__(self, name: str):
        text = (PARTS / f"{name}.py").read_text(encoding="utf-8")
        nodes = [
            node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        self.imports = [ast.unparse(node) for node in nodes if not getattr(node, "level", 0)]
        self.body = "\n".join(text.splitlines()[nodes[-1].end_lineno :])


def _imports(lines: list[str]) -> str:
    """The imports of all parts, each once: the future, Python's own, then others."""
    names: dict[str, set[str]] = {}
    for line in lines:
        module, _, imported = line.partition(" import ")
        names.setdefault(module, set()).update(filter(None, imported.split(", ")))
    merged = [f"{m} import {', '.join(sorted(n))}" if n else m for m, n in names.items()]

    def group(line: str) -> tuple:
        root = line.split()[1].split(".")[0]
        rank = 0 if root == "__future__" else 2 if root in FRAMEWORKS else 1
        return rank, line.startswith("from"), line

    groups: dict[int, list[str]] = {}
    for line in sorted(merged, key=group):
        groups.setdefault(group(line)[0], []).append(line)
    return "\n\n".join("\n".join(lines) for _, lines in sorted(groups.items()))


def _rule(title: str) -> str:
    return f"# ---- {title} ".ljust(WIDTH, "-") + "\n"


def _head(asked: Asked, steps: list[str], what: str, needs: str, functions: list[str]) -> str:
    licence, copyright_line = asked.origin(asked.kernels[0])[:2]
    files = [f"    {asked.origin(step)[2]}" for step in steps]
    told = (
        f"Needs {needs}, and a GPU of compute capability 7.5 or newer. `plan` tells which kernel "
        f"takes a matrix. The plans were tuned on an {TUNED_ON}; on another GPU they are right, "
        f"perhaps slower. Made by `make export` of {PROJECT}, which explains the kernels: do not "
        "edit, export again."
    )
    lines = [
        f'"""Softmax of {what}, by CUDA kernels that stand in this file.',
        "",
        *(f"    {line}" for line in functions),
        "",
        *textwrap.wrap(told, WIDTH),
        "",
        *files,
        '"""',
        "",
        f"# {licence}",
        f"# {copyright_line}",
    ]
    return "\n".join(lines)


# ---- the rules of headers ------------------------------------------------------------------------


class _PythonText(TextDomain):
    """The domain of Python: definitions become assignments, and the keys Columns and Features a
    condition. `plan` of the file checks what is the same for every kernel."""

    conjunction, disjunction, quotient = "and", "or", "//"

    def __init__(self, given: Collection[str] = ()) -> None:
        self.given = given  # names of the Build table that are parameters
        self.lines: list[str] = []
        self.conditions: list[Term] = []

    def define(self, definition: Definition, names: Names) -> Term:
        name, cases = definition.name, definition.cases
        if name in self.given:
            return Term(name, ATOM, 0)
        parts, least = [], []
        for value, condition in cases:
            term = value.value(names, self)
            least.append(term.least)
            parts.append(f"int({term.text})" if term.precedence <= COMPARE else term.text)
            if condition is not None:
                parts[-1] += f" if {condition.value(names, self).text}"
        if condition is not None:
            parts.append("no_case()")
        if len(parts) == 1:
            self.lines += _wrapped(f"    {name} = ", parts[0], "    ")
        else:
            self.lines.append(f"    {name} = (")
            for word, part in zip(("", *["else "] * len(parts)), parts, strict=False):
                self.lines += _lines(word + part, " " * 8, "    ")
            self.lines.append("    )")
        return Term(name, ATOM, min(least))

    def require(self, requirement: Requirement, names: Names) -> None:
        if requirement.rule in ("Columns", "Features"):
            self.conditions.append(requirement.condition.value(names, self))


def _table(step: str) -> str:
    """Return a function of the rules of a kernel's header, one line per case of its Build table."""
    header, block = load(step).header, load(step).block
    features = {entry.name: header.features[entry.name] for entry in header.built_features}
    domain, names = _PythonText(features), {name: Term(name) for name in (*INPUTS, *AXIS_INPUTS)}
    names |= {name: Term(name, ATOM, 0) for name in ("isAlike", "isAligned", "isContiguous")}
    header.program(block, any_start=True).evaluate(names | {"maxShared": Term("maxShared")}, domain)
    columns = domain.logical(
        True, [lambda names, _, term=term: term for term in domain.conditions], {}
    )
    lines = [*domain.lines, *_wrapped("    columns = ", columns.text, "    ")]
    used = {*re.findall(r"\w+", "\n".join(lines))}
    parameters = [name for name in (*INPUTS, *AXIS_INPUTS, "isAlike") if name in used]
    parameters += [f"{name}={value}" for name, value in features.items()]
    about = textwrap.wrap(f"{split_trial(step).file}.cu: {header.fields['Idea']}", 96)
    return "\n".join(
        [
            *(f"# {line}" for line in about),
            *_lines(f"def {_named('table_', step)}({', '.join(parameters)}, **_):", "", "    "),
            *lines,
            "    return locals()",
            "",
        ]
    )


def _wrapped(before: str, text: str, indent: str) -> list[str]:
    """Return a statement in one line, or in parentheses over several."""
    if len(before + text) <= WIDTH:
        return [before + text]
    return [f"{before}(", *_lines(text, f"{indent}    "), f"{indent})"]


def _lines(text: str, indent: str, hanging: str = "") -> list[str]:
    """Return text in lines of up to `WIDTH` columns; all but the first are indented by `hanging`
    in addition."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _ranking(ranks: tuple[Rank, ...], operations: Mapping[str, tuple[str, ...]]) -> str:
    """Return the order of `choose` as a table, and the GPU that plans were tuned on."""
    lines = [
        f"TUNED_ON = Gpu(capability={H200.capability}, sms={H200.sms}, l2={H200.l2})  # {TUNED_ON}",
        "# Maximum shared memory per block in KB, by compute capability.",
        f"SHARED_KB = {SHARED_KB}",
        "# For softmax: kernel, the problems that it is for, and why; best first.",
        "RANKING = (",
    ]
    for rank in ranks:
        names = {name: Term(f"m.{name}", ATOM, 0) for name in rank.when.names}
        lines += [
            "    (",
            f"        {_text(file_of(rank.file))},",
            *_lines(f"lambda m: {rank.when.value(names, _PythonText()).text},", " " * 8),
            f"        {_text(rank.reason)},",
            "    ),",
        ]
    entries = (
        f"    {_text(operation)}: {_text(steps)}," for operation, steps in operations.items()
    )
    lines += [")", "# For other operations, and softmax with features: kernels, best first."]
    opening, closing = ("{", ["}"]) if operations else ("{}", [])
    lines += [f"OPERATIONS: dict[str, tuple[str, ...]] = {opening}", *entries, *closing, ""]
    return "\n".join(lines)


def _text(value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    return f"({', '.join(map(_text, value))}{',' * (len(value) == 1)})"


# ---- the kernels ---------------------------------------------------------------------------------


def _texts(steps: Sequence[str]) -> Iterator[str]:
    """Yield a constant for the text of each kernel file, and for each file that it includes.

    The rules in the header are left out: they are the functions of the Build tables.
    """
    constants: dict[str, str] = {}  # text -> name of its constant
    for file in dict.fromkeys(split_trial(step).file for step in steps):
        code = re.sub(r"^// #include .*\n", "", load(file).code, flags=re.MULTILINE)
        code = re.sub(r"^#line .*\n(?=#line )", "", code, flags=re.MULTILINE)
        pieces = re.split(r"^(?=#line )", code, flags=re.MULTILINE)[1:]
        joined = []
        for piece in pieces:
            number, path = re.match(r'#line (\d+) "kernels/(.*)"', piece).groups()
            if not path.startswith("include/"):
                joined.append(f"r'''{_without_rules(piece)}'''")
                continue
            if piece not in constants:
                part = f"_{number}" if number != "1" else ""
                constants[piece] = f"INCLUDE_{PurePath(path).stem.upper()}{part}"
                yield f"{constants[piece]} = r'''{piece}'''"
            joined.append(constants[piece])
        name = _named("TEXT_", file).upper()
        if len(joined) == 1:
            yield f"{name} = {joined[0]}"
        else:
            lines = "".join(f"        {one},\n" for one in joined)
            yield f'{name} = "".join(\n    [\n{lines}    ]\n)'


def _without_rules(piece: str) -> str:
    """Return a piece of a kernel file without the rules in its header; lines keep their numbers."""
    rules = re.search(r"^// Build: (.*\n//  )*.*\n// Launch: (.*\n//  )*.*\n", piece, flags=re.M)
    if not rules:
        return piece
    first, path = re.match(r'#line (\d+) (".*")', piece).groups()
    line = int(first) + piece[: rules.end()].count("\n") - 1
    return f"{piece[: rules.start()]}#line {line} {path}\n{piece[rules.end() :]}"


def _kernels(steps: Sequence[str]) -> str:
    lines = ["KERNELS = {"]
    for step in steps:
        kernel, header = load(step), load(step).header
        align = 0 if header.fields["Align"] == "size" else int(header.fields["Align"])
        parameters = tuple(parameter.name for parameter in kernel.parameters)
        lines += [
            f"    {_text(step)}: Kernel(",
            f"        table={_named('table_', step)},",
            *_lines(f"macros={_text(header.macros)},", " " * 8, "    "),
            f"        dtypes={_text(tuple(dtype.name for dtype in header.dtypes))},",
            f"        align={align},",
            *_lines(f"parameters={_text(parameters)},", " " * 8, "    "),
            f"        features={json.dumps(header.features)},",
            f"        builds={_text(tuple(entry.name for entry in header.built_features))},",
            f"        cooperative={header.cooperative},",
            f"        arch={header.arch},",
            f"        function={_text(kernel.name)},",
            f"        text={_named('TEXT_', split_trial(step).file).upper()},",
            "    ),",
        ]
    return "\n".join([*lines, "}"])


def _named(prefix: str, step: str) -> str:
    """Return a Python name for what belongs to a kernel: table_08_cluster, TEXT_08_CLUSTER."""
    return re.sub(r"\W", "_", prefix + step.rpartition("/")[2])
