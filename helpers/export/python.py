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
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

from ..base.gpu import H200, SHARED_KB
from ..catalogue.dispatch import RANKINGS, SOFTMAX_RANKING, Rank
from ..catalogue.expressions import Expression
from ..catalogue.plan import AXIS_INPUTS, INPUTS, Header
from ..catalogue.registry import split_trial
from ..run.bound import load
from .asked import PROJECT, TUNED_ON, Asked, NoSuchExport, of_a_matrix
from .pruning import pruned
from .terms import PYTHON_FUNCTIONS, as_python

PARTS = Path(__file__).parent / "parts"
FRAMEWORKS = {
    "torch": (
        ("pytorch", "pytorch_operators", "broadcasting"),
        "PyTorch's tensors",
        "PyTorch 2.4 or newer for CUDA 12 or 13",
    ),
    "cupy": (
        ("cupy_arrays", "cupy_around", "broadcasting"),
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
    """The file for a framework: "torch" or "cupy". It takes every dtype and shape that its
    kernels take, whatever was asked for. Raises `NoSuchExport` with a sentence."""
    for step in asked.kernels:
        if not of_a_matrix(step):
            raise NoSuchExport(
                f"a Python file of one kernel is softmax of a matrix, which {step} is not; "
                "best --as torch or cupy holds it"
            )
        if load(step).name.startswith("copy"):
            raise NoSuchExport(f"{step} computes no softmax, which is what a Python file is for")
    parts, what, needs = FRAMEWORKS[framework]
    ranks = SOFTMAX_RANKING if asked.best else _alone(asked.kernels[0])
    around = {name: tuple(rank.file for rank in ranks) for name, ranks in RANKINGS.items()}
    around = around if asked.best else {}
    tables = [*_tables(ranks), *_tables_around(around)]
    name = "softmax_worklog" if asked.name == "softmax" else asked.name
    texts = [_Part(name) for name in ("planning", "launching", *parts)]
    planning = texts[0].body.partition(WRITTEN)[0]
    functions = FUNCTIONS[framework].splitlines()[: None if around else 1]
    sections = [
        _head(asked, [file for file, _, _ in tables], what, needs, functions),
        _imports([line for text in texts for line in text.imports]),
        planning.strip() + "\n",
        _rule("the headers of the kernels"),
        PYTHON_FUNCTIONS,
        *(_table(*entry) for entry in tables),
        _ranking(ranks, around),
        _rule("compiling and launching"),
        texts[1].body.strip() + "\n",
        _rule(f"softmax of {what}"),
        *(text.body.replace(NAME, f'"{name}"').strip() + "\n" for text in texts[2:]),
        _rule("the kernels"),
        *_texts(tables),
        _kernels(tables),
    ]
    whole = re.sub(r"\n{4,}", "\n\n\n", "\n\n".join(sections)).rstrip() + "\n"
    if not asked.best:
        whole = pruned(whole, ("softmax", "plan"), ("softmax", "softmax_backward"))
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return whole.replace(CONTENT, CONTENT.replace('""', f'"{digest}"'), 1)


def _alone(step: str) -> tuple[Rank, ...]:
    """One kernel instead of the order of `choose`. Where x and y may start at different places
    between multiples of 16 bytes it must be told so, as `Kernel.starting_at` does."""
    if "LATE" not in load(step).header.macros or "LATE" in load(step).header.fixed:
        return (Rank(step, Expression("1"), "asked for"),)
    return (
        Rank(step, Expression("alike == 1"), "asked for"),
        Rank(f"{step}-LATE1", Expression("alike == 0"), "asked for"),
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


def _head(asked: Asked, files: list[str], what: str, needs: str, functions: list[str]) -> str:
    licence, copyright_line = asked.origin(asked.kernels[0])[:2]
    files = [f"    {asked.origin(file)[2]}" for file in files]
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


# ---- what the headers say ------------------------------------------------------------------------


def _files(steps: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(split_trial(step).file for step in steps))


def _named(prefix: str, file: str) -> str:
    """A name in Python for what belongs to a kernel file: table_08_cluster, TEXT_08_CLUSTER."""
    return prefix + file.rpartition("/")[2]


def _tables(ranks: tuple[Rank, ...]) -> Iterator[tuple[str, Header, set[str]]]:
    """(file, its header, names of its table that a rank gives) of every file once."""
    for file in _files(tuple(rank.file for rank in ranks)):
        yield (
            file,
            load(file).header,
            {
                name
                for rank in ranks
                if split_trial(rank.file).file == file
                for name in _given(rank)
            },
        )


def _tables_around(around: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, Header, set]]:
    """The same of kernels that are given the features that they build."""
    for file in (file for files in around.values() for file in files):
        header = load(file).header
        yield file, header, {entry.name for entry in header.built_features}


def _given(rank: Rank) -> dict[str, int]:
    """The values of a Build table that a trial replaces. Raises `NoSuchExport` for other trials."""
    trial, kernel = split_trial(rank.file), load(rank.file)
    table = {value.name for value in kernel.header.build}
    if trial.block is not None or not {name for name, _ in kernel.changes} <= table:
        raise NoSuchExport(f"{rank.file} changes more than its Build table, all that Python takes")
    return dict(kernel.changes)


def _table(file: str, header: Header, given: set[str]) -> str:
    """A function of the header's expressions, a line for each case of its table."""
    axis = AXIS_INPUTS if "inner" in header.operation.sizes else ()
    parameters = [*INPUTS, *axis, *(f"{name}=None" for name in sorted(given))]
    lines = [f"# {line}" for line in textwrap.wrap(f"{file}.cu: {header.fields['Idea']}", 96)]
    lines += _wrapped(f"def {_named('table_', file)}(", ", ".join(parameters), "):", "")
    used = {name for rule in header.rules.values() for name in rule.names}
    used |= {n for v in header.build for case in v.cases for e in case if e for n in e.names}
    lines += [f"    {name} = {value}" for name, value in header.numbers.items() if name in used]
    for value in header.build:
        indent = "    "
        if value.name in given:
            lines.append(f"    if {value.name} is None:")
            indent = "        "
        if len(value.cases) == 1 and value.cases[0][1] is None:
            lines += _wrapped(f"{indent}{value.name} = ", _number(value.cases[0][0]), "", indent)
            continue
        lines.append(f"{indent}{value.name} = (")
        word = ""
        for result, when in value.cases:
            case = f"{word}{_number(result)}" + (f" if {as_python(when)}" if when else "")
            lines += _lines(case, f"{indent}    ", "    ")
            word = "else "
        if when:
            lines.append(f"{indent}    else no_case()")
        lines.append(f"{indent})")
    for name, rule in (
        ("block", "block"),
        ("grid", "grid"),
        ("shared_mem", "Shared"),
        ("workspace", "Workspace"),
    ):
        value = _number(header.rules[rule]) if rule in header.rules else "0"
        lines += _wrapped(f"    {name} = ", value, "", "    ")
    columns = as_python(header.rules["Columns"])
    if "Features" in header.rules:
        columns = f"({columns}) and ({as_python(header.rules['Features'])})"
    lines += _wrapped("    columns = ", columns, "", "    ")
    return "\n".join([*lines, "    return locals()", ""])


def _number(expression: Expression) -> str:
    """A value in Python: 1 for a comparison that holds, not True."""
    text = as_python(expression)
    return f"int({text})" if re.search("[<>=]", text) else text


def _wrapped(before: str, text: str, after: str, indent: str) -> list[str]:
    """A statement in one line, or in parentheses over several."""
    if len(before + text + after) <= WIDTH:
        return [before + text + after]
    inside = _lines(text, f"{indent}    ")
    if after:  # of a function, which has its own
        return [before, *inside, f"{indent}{after}"]
    return [f"{before}(", *inside, f"{indent})"]


def _lines(text: str, indent: str, hanging: str = "") -> list[str]:
    """Text in lines that begin with an `and` or an `or`, or come after a comma; the first is not
    indented as far as others by `hanging`."""
    lines = [indent]
    for piece in re.split(r" (?=and |or )|(?<=,) ", text):
        if len(lines[-1]) + 1 + len(piece) > WIDTH:
            lines.append(f"{indent}{hanging}")
        blank = "" if lines[-1].isspace() else " "
        lines[-1] += blank + piece
    return lines


def _ranking(ranks: tuple[Rank, ...], around: Mapping[str, tuple[str, ...]]) -> str:
    """The order of `choose` as a table, and the GPU of the plans."""
    lines = [
        f"TUNED_ON = Gpu(capability={H200.capability}, sms={H200.sms}, l2={H200.l2})  # {TUNED_ON}",
        "# KB of shared memory that a block may have, by compute capability.",
        f"SHARED_KB = {SHARED_KB}",
        "# Kernel, values of its table that are given, which matrices it is for, why; best first.",
        "RANKING = (",
    ]
    for rank in ranks:
        names = "|".join(rank.when.names) or "(?!)"
        when = re.sub(rf"\b({names})\b", r"m.\1", as_python(rank.when))
        lines += [
            "    (",
            f"        {_text(split_trial(rank.file).file)},",
            f"        {_given(rank)},".replace("'", '"'),
            *_lines(f"lambda m: {when},", " " * 8),
            f"        {_text(rank.reason)},",
            "    ),",
        ]
    lines += [")", "# Of other operations, and of softmax with features: kernels, best first."]
    if not around:
        return "\n".join([*lines, "AROUND: dict[str, tuple[str, ...]] = {}", ""])
    entries = (f"    {_text(operation)}: {_text(files)}," for operation, files in around.items())
    return "\n".join([*lines, "AROUND = {", *entries, "}", ""])


def _text(value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    return f"({', '.join(map(_text, value))}{',' * (len(value) == 1)})"


# ---- the kernels ---------------------------------------------------------------------------------


def _texts(tables: list[tuple[str, Header, set[str]]]) -> Iterator[str]:
    """A constant for the text of each kernel, and for each included file that it is joined from."""
    constants: dict[str, str] = {}  # text -> name of its constant
    for file, _, _ in tables:
        code = re.sub(r"^// #include .*\n", "", load(file).code, flags=re.MULTILINE)
        code = re.sub(r"^#line .*\n(?=#line )", "", code, flags=re.MULTILINE)
        pieces = re.split(r"^(?=#line )", code, flags=re.MULTILINE)[1:]
        joined = []
        for piece in pieces:
            number, path = re.match(r'#line (\d+) "kernels/(.*)"', piece).groups()
            if not path.startswith("include/"):
                joined.append(f"r'''{piece}'''")
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


def _kernels(tables: list[tuple[str, Header, set[str]]]) -> str:
    lines = ["KERNELS = {"]
    for file, header, _ in tables:
        align = 0 if header.fields["Align"] == "size" else int(header.fields["Align"])
        lines += [
            f"    {_text(file)}: Kernel(",
            f"        table={_named('table_', file)},",
            *_lines(f"macros={_text(header.macros)},", " " * 8, "    "),
            f"        dtypes={_text(tuple(dtype.name for dtype in header.dtypes))},",
            f"        align={align},",
            *_lines(f"parameters={_text(_parameters(file))},", " " * 8, "    "),
            f"        features={json.dumps(header.features)},",
            f"        builds={_text(tuple(entry.name for entry in header.built_features))},",
            f"        cooperative={header.cooperative},",
            f"        arch={header.arch},",
            f"        function={_text(load(file).name)},",
            f"        text={_named('TEXT_', file).upper()},",
            "    ),",
        ]
    return "\n".join([*lines, "}"])


def _parameters(file: str) -> tuple[str, ...]:
    return tuple(parameter.name for parameter in load(file).parameters)
