"""Everything that the golden tests take from helpers and from other tests. A rebuild that moves or
renames modules changes this file and no golden data."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType

import numpy as np

from helpers.base.gpu import H200, Gpu
from helpers.catalogue.dispatch import RANKINGS, choose, with_features
from helpers.catalogue.registry import TRIALS, split_trial, steps, variants
from helpers.export.python import write
from helpers.export.request import export_request
from helpers.problem.operations import OPERATIONS
from helpers.run.bound import BoundKernel, load
from helpers.run.references import make_inputs, outputs
from helpers.simt import Trace
from tests.hardware.cases import compared, patterns, reported
from tests.hardware.ragged import ragged
from tests.simt import global_races, order_races, pairs, strangers
from tests.simt.launches import PLANTED

# ---- plans --------------------------------------------------------------------------------------

loaded = cache(load)


def operations() -> dict[str, dict[str, int]]:
    """The operations that dispatch chooses for, with how many values each feature has."""
    return {
        name: {word: len(values) for word, values in OPERATIONS[name].features.items()}
        for name in RANKINGS
    }


def kernels() -> dict[str, list[str]]:
    """The kernel files, each with the names of itself and of its variants of macros."""
    found = {file: [file] for file in (*steps(), *variants())}
    for trial in TRIALS:
        found[split_trial(trial).file].append(trial)
    for file in {rank.file for ranks in RANKINGS.values() for rank in ranks}:
        contract = loaded(file).header
        for feature in sorted(contract.features.keys() - contract.made_for.keys()):
            found[file].append(with_features(file, {feature: 1}))
    return {file: list(dict.fromkeys(names)) for file, names in found.items()}


def dtypes(kernel: str) -> list[str]:
    return [dtype.name for dtype in loaded(kernel).header.dtypes]


@cache
def _takes_inner(kernel: str) -> bool:
    try:
        return "inner" in loaded(kernel).operation.sizes
    except (FileNotFoundError, ValueError):  # a kernel that is gone
        return False


def has_inner(subject: dict) -> bool:
    """Whether a subject's kernels take another axis than the last."""
    return "kernels" in subject and _takes_inner(subject["kernels"][0])


def plan(
    rows: int,
    cols: int,
    inner: int,
    dtype: str,
    gpu: tuple[int, int, int],
    x_stride: int,
    y_stride: int,
    kernel: str | None = None,
    operation: str = "softmax",
    features: dict[str, int] | None = None,
    aligned: bool = True,
    alike: bool = True,
) -> dict:
    """The plan of a kernel, or of the one that dispatch chooses; {"refused": why} if none."""
    gpu, sizes = Gpu(*gpu), {"x_stride": x_stride, "y_stride": y_stride, "inner": inner}
    try:
        kernel = kernel or choose(
            *(rows, cols, dtype, gpu),
            **{**sizes, "aligned": aligned, "alike": alike},
            **{"operation": operation, "features": features or {}},
        )
        found = loaded(kernel).bind(rows, cols, dtype, gpu, **sizes).plan
    except (FileNotFoundError, TypeError, ValueError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    return {
        "kernel": kernel,
        "grid": found.grid,
        "block": found.block,
        "shared": found.shared_mem,
        "workspace": found.workspace,
        "cooperative": found.cooperative,
        "cluster": found.cluster,
        "programmatic": found.programmatic,
        "options": list(found.options),
        "macros": dict(found.macros),
    }


# ---- exported files -----------------------------------------------------------------------------


@cache
def planning(framework: str, step: str = "best") -> ModuleType:
    """The planning part of an exported Python file, which needs no package of the framework."""
    text = write(export_request(step, []), framework)
    text = re.sub(r"^(import|from) (cupy|torch).*\n", "", text, flags=re.MULTILINE)
    before, _, rest = text.partition("# ---- compiling and launching")
    texts = rest[rest.index("# ---- the kernels") :]
    module = ModuleType("golden_exported")
    sys.modules[module.__name__] = module  # where typing.NamedTuple looks for it
    exec(compile(before + texts, "exported.py", "exec"), vars(module))
    return module


def exported_plan(
    rows: int,
    cols: int,
    inner: int,
    dtype: str,
    gpu: tuple[int, int, int],
    x_stride: int,
    y_stride: int,
    aligned: bool = True,
    alike: bool = True,
    kernel: str | None = None,
    **around,
) -> dict:
    """What `plan` answers for the same problem in an exported PyTorch file of a kernel, or of the
    best; the fields of that file's plan."""
    module = planning("torch", kernel or "best")
    around |= {} if kernel else {"inner": inner}
    place = aligned, alike, module.Gpu(*gpu)
    try:
        found = module.plan(rows, cols, dtype, x_stride, y_stride, *place, **around)
    except (module.Refused, TypeError, ValueError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    return {name: getattr(found, name) for name in found._fields}


# ---- the SIMT machine ---------------------------------------------------------------------------


def nvrtc_version() -> str:
    """Counters and lines depend on it, as on every compiler."""
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def counters(trace: Trace) -> dict[str, int]:
    return dict(vars(trace.counters))


def lines(trace: Trace) -> dict[int, dict[str, int]]:
    """Counters of the lines of the kernel's own file."""
    return {line: dict(vars(counts)) for line, counts in trace.own_counters().items()}


def standing(trace: Trace) -> dict[str, list]:
    """How each counter stands to the hardware's: exact, bounded by so many more, ..."""
    return {name: [one.word, one.more] for name, one in trace.standing().items()}


def _third_party(case: tuple, *spoilt: str) -> list[Trace]:
    compute, *arguments = case
    machine = strangers.Simt(*spoilt, limit=50_000) if spoilt else strangers.Simt()
    compute(machine, *arguments)
    return machine.traces


def _rules(module) -> dict[str, Callable[[], list[Trace]]]:
    return {
        f"{rule}, {'racy' if racy else 'right'}": lambda rule=rule, racy=racy: [
            module.RULES.run(rule, racy)
        ]
        for rule in module.CASES
        for racy in (True, False)
    }


def _spoilt() -> Iterable[tuple[str, Callable[[], list[Trace]]]]:
    for number, (case, old, new, _) in enumerate(strangers.SPOILT):
        name = f"{strangers.name_of(case)}, line {number} spoilt"
        yield name, lambda case=case, old=old, new=new: _third_party(case, old, new)


# Rows, columns, and how many elements columns are apart; a kernel is run at the first it takes.
SHAPES = ((5, 1003), (6, 2048), (37, 200), (3, 8200), (2, 32768))
AXES = ((21, 64, 7), (120, 33, 40), (96, 300, 32), (128, 2048, 64))


def _series() -> dict[str, Callable[[], list[Trace]]]:
    """Every kernel of the series and its variants at a shape that it takes, for an H200."""
    found = {}
    for kernel in (name for names in kernels().values() for name in names):
        dtypes = loaded(kernel).header.dtypes
        for dtype in dict.fromkeys((dtypes[0], dtypes[-1])):
            if bound := _bound(kernel, dtype):
                found[f"{kernel}, {dtype.name}"] = lambda bound=bound: [_run(bound)]
    return found


def _bound(kernel: str, dtype: np.dtype) -> BoundKernel | None:
    shapes = AXES if _takes_inner(kernel) else ((*shape, 1) for shape in SHAPES)
    for rows, cols, inner in shapes:
        if loaded(kernel).accepts(rows, cols, dtype, H200, inner=inner):
            return loaded(kernel).bind(rows, cols, dtype, H200, inner=inner)
    return None


def _run(bound: BoundKernel) -> Trace:
    given = make_inputs(bound.problem)
    given |= outputs(bound.problem, given)
    taken = {parameter.name for parameter in bound.kernel.parameters}
    return bound.simulate(**{name: value for name, value in given.items() if name in taken})


@cache
def sets() -> dict[str, dict[str, Callable[[], list[Trace]]]]:
    """Every set of kernels: the name of a case -> a function that runs its launches."""
    hardware = (*compared(), *reported(), *patterns(), *ragged())
    return {
        "hardware": {case.name: lambda case=case: [case.run()[0]] for case in hardware},
        "global_races": _rules(global_races),
        "order_races": _rules(order_races),
        "planted": {name: lambda one=one: [one.run()[0]] for name, one in PLANTED.items()},
        "series": _series(),
        "strangers": {
            **{
                strangers.name_of(case): lambda case=case: _third_party(case)
                for case in strangers.RUNS
            },
            **dict(_spoilt()),
        },
        "pairs": {
            f"{file}, {'racy' if racy else 'right'}": lambda file=file, racy=racy: [
                pairs.run(file, racy)
            ]
            for file in pairs.FILES
            for racy in (True, False)
        },
    }
