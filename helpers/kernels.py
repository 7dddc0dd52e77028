"""What is left to be moved to `bound`, `catalogue`, `cuda_text` and `header`."""

import numpy as np

from .bound import kernel_of, load
from .catalogue import (  # noqa: F401
    TRIALS,
    choose,
    diff,
    known_steps,
    source,
    split_trial,
    step_number,
    steps,
    variants,
)
from .cuda_text import code_hash, kernel_names, signature  # noqa: F401
from .header import KEYS, OPTIONAL_KEYS, header  # noqa: F401
from .paths import KERNELS as FOLDER  # noqa: F401
from .plan import DTYPE_OPTIONS, Header, Plan  # noqa: F401


def step_plan(step, rows, cols, dtype="float32"):
    kernel = load(step)
    return kernel.bind(rows, cols, dtype).plan if kernel.accepts(rows, cols, dtype) else None


def step_kernel(step, plan=None):
    import cupy

    kernel = load(step)
    options = plan.options if plan else kernel.header.options
    cooperative = bool(plan and plan.cooperative)
    return cupy.RawKernel(
        kernel.code, kernel.name, options=options, enable_cooperative_groups=cooperative
    )


def compiled(code, plan):
    import cupy

    return cupy.RawKernel(
        code,
        kernel_names(code)[0],
        options=plan.options,
        enable_cooperative_groups=plan.cooperative,
    )


def compiled_for(kernel, rows, cols, dtype="float32", block=None):
    bound = kernel_of(kernel, block).bind(rows, cols, dtype)
    return bound.compiled, bound.plan


def contract_of(kernel):
    return kernel_of(kernel).header


def arguments(plan, x, y):
    workspace = (np.zeros(plan.workspace, np.uint8),) if plan.workspace else ()
    return x, y, *x.shape, *workspace
