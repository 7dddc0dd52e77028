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
from .evidence.counters import nsight, nsight_unfused
from .evidence.numerics import numerics
from .evidence.sass import opcodes, sass
from .execute import KernelBug
from .exercises import grade
from .figures import plot_race, plot_series, plot_step
from .header import header
from .kernels import arguments, compiled, step_kernel, step_plan
from .launch import launch, simulate
from .mode import describe_mode
from .races import race_cases, race_origin, skipped_peers
from .records import load_record, predictions
from .replay import timings
from .shapes import REFERENCE_SHAPE
from .tables import ledger, race_table, table

__all__ = [
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
    "plot_race",
    "plot_series",
    "plot_step",
    "poisoned",
    "predictions",
    "race_cases",
    "race_origin",
    "race_table",
    "reference",
    "sass",
    "simulate",
    "skipped_peers",
    "source",
    "step_kernel",
    "step_plan",
    "table",
    "timings",
]
