"""What the notebooks import: load a kernel, launch it, check it, count it, time it, plot it."""

from .bound import bind, load
from .catalogue import choose, diff, source
from .check import (
    WrongResult,
    check_copy,
    check_kernel,
    check_softmax,
    make_input,
    poisoned,
    reference,
)
from .execute import KernelBug
from .exercises import grade
from .header import header
from .kernels import arguments, compiled, step_kernel, step_plan
from .launch import launch, simulate
from .mode import describe_mode
from .plot import ledger, plot_series, plot_step, table
from .records import (
    REFERENCE_SHAPE,
    load_record,
    nsight,
    nsight_unfused,
    numerics,
    opcodes,
    predictions,
    sass,
)
from .replay import timings

OF_THE_RACE = ("plot_race", "race_cases", "race_origin", "race_table", "skipped_peers")

__all__ = [
    *OF_THE_RACE,
    "KernelBug",
    "REFERENCE_SHAPE",
    "WrongResult",
    "arguments",
    "bind",
    "check_copy",
    "check_kernel",
    "check_softmax",
    "choose",
    "compiled",
    "describe_mode",
    "diff",
    "grade",
    "header",
    "launch",
    "ledger",
    "load",
    "load_record",
    "make_input",
    "nsight",
    "nsight_unfused",
    "numerics",
    "opcodes",
    "plot_series",
    "plot_step",
    "poisoned",
    "predictions",
    "reference",
    "sass",
    "simulate",
    "source",
    "step_kernel",
    "step_plan",
    "table",
    "timings",
]


def __getattr__(name: str):
    """What belongs to the race is imported when it is asked for: `python -m helpers.race` runs
    that module, which must not have been imported before."""
    if name in OF_THE_RACE:
        from . import race

        return getattr(race, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
