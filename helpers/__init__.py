"""What the notebooks import: load a kernel, launch it, check it, count it, time it, plot it."""

from .check import (
    WrongResult,
    check_copy,
    check_kernel,
    check_softmax,
    make_input,
    poisoned,
    reference,
)
from .device import describe_mode
from .exercises import grade
from .kernels import diff, header, source
from .launch import KernelBug, launch, simulate
from .plot import ledger, plot_series, plot_step, table
from .records import (
    REFERENCE_SHAPE,
    load_record,
    nsight,
    nsight_unfused,
    numerics,
    predictions,
    sass,
)
from .replay import timings

__all__ = [
    "KernelBug",
    "REFERENCE_SHAPE",
    "WrongResult",
    "check_copy",
    "check_kernel",
    "check_softmax",
    "describe_mode",
    "diff",
    "grade",
    "header",
    "launch",
    "ledger",
    "load_record",
    "make_input",
    "nsight",
    "nsight_unfused",
    "numerics",
    "plot_series",
    "plot_step",
    "poisoned",
    "predictions",
    "reference",
    "sass",
    "simulate",
    "source",
    "table",
    "timings",
]
