"""Run a CUDA file's kernel on the SIMT machine: `python -m helpers.commands.simulate`.

Takes kernels that are `extern "C"` or templates, with headers of CUDA and none of the host.

Prints statistics of the arrays that the kernel wrote, its memory traffic line by line, and the
bugs that were found. Exit status: 0 if there are none, 1 if there are, 2 if it cannot be run.

    python -m helpers.commands.simulate kernels/01_naive.cu --shape 64x1024
    python -m helpers.commands.simulate mine.cu --kernel scale --grid 4 --block 256 \\
        --args float32[1024] float32[1024] 1024 0.5

Each of --args is an argument of the kernel: an integer, a number, a .npy file, or an array such
as int32[64,1024], which is random if the kernel takes it as a const pointer and NaN (or -1) if
not. --shape ROWSxCOLS replaces --grid, --block and --args for a kernel file with a header; what
its Build table computes for the shape need not be given.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..bound import bind, kernel_of
from ..check import make_input, poisoned
from ..launch import simulate
from ..options import at_least
from ..plan import DTYPES
from ..simt import INSTRUCTION_LIMIT, KernelText
from ..simt.cuda_text import Parameter, kernel_names, signature

# CompileError is a ValueError; a RuntimeError says which PTX is not known, or that SOFTMAX_REPLAY=0
# asks for a GPU that is not there.
REFUSALS = (OSError, ValueError, TypeError, KeyError, RuntimeError, MemoryError)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = parse_arguments(arguments)
    try:
        kernel = load_kernel(
            options.file, options.kernel, tuple(options.option), bool(options.cooperative)
        )
        declared = signature(kernel.code, kernel.name)
        kernel, grid, block, shared, values = plan_launch(options, kernel, declared)
        limit = options.limit
        trace = simulate(kernel, grid, block, values, shared, instruction_limit=limit)
    except REFUSALS as error:
        print(error.args[0] if isinstance(error, KeyError) else error, file=sys.stderr)
        return 2
    lines = [f"{kernel.name}: grid {grid}, block {block}, {shared} bytes of dynamic shared memory"]
    for parameter, value in zip(declared, values, strict=True):
        if parameter.pointer and not parameter.const:
            lines.append(describe(parameter.name, value))
    lines.append(trace.report())
    if trace.findings:
        lines.append(str(trace.findings))
    show("\n".join(lines))
    return 1 if trace.findings else 0


def show(text: str) -> None:
    """Print; who reads may have had enough, as `head -1` has."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # so that Python's own flush at the end does not fail either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.commands.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="a CUDA source file")
    parser.add_argument(
        "--kernel",
        help='name of the kernel, "scale<float, 4>" for a template; if left out, the only one',
    )
    parser.add_argument("--shape", help="ROWSxCOLS, for a kernel file with a header")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="of x and y with --shape; the header's first if left out",
    )
    parser.add_argument("--grid", type=at_least(1), nargs="+", help="blocks, one to three numbers")
    parser.add_argument(
        "--block", type=at_least(1), nargs="+", help="threads, one to three numbers"
    )
    parser.add_argument("--args", nargs="*", help="the kernel's arguments in order")
    parser.add_argument("--shared", type=at_least(0), help="bytes of dynamic shared memory (0)")
    parser.add_argument(
        "--cooperative",
        action="store_true",
        default=None,
        help="all blocks run at once, and may synchronise",
    )
    parser.add_argument(
        "--option", action="append", default=[], help="compiler option, as --option=-DTILE=32"
    )
    parser.add_argument(
        "--limit",
        type=at_least(1),
        default=INSTRUCTION_LIMIT,
        help="instructions that a batch of blocks may execute before it counts as hanging",
    )
    options = parser.parse_args(arguments)
    sizes = ("grid", "block", "args", "shared", "cooperative")
    given = [f"--{name}" for name in sizes if getattr(options, name) is not None]
    if options.shape is not None and given:
        parser.error(f"--shape stands for {', '.join(given)} too: give one or the other")
    if options.dtype and options.shape is None:
        parser.error("--dtype is that of x and y with --shape; --args name their own")
    return options


def load_kernel(
    path: Path, name: str | None, options: tuple[str, ...], cooperative: bool = False
) -> KernelText:
    """Read a file; raises `ValueError` that lists the kernels if `name` does not pick one."""
    text = path.read_text(encoding="utf-8")
    known = kernel_names(text)
    if name is None and len(known) != 1:
        raise ValueError(f"{path} has {len(known)} kernels, pass --kernel: {', '.join(known)}")
    code = f'#line 1 "{path.as_posix()}"\n{text}'
    return KernelText(code, name or known[0], options, cooperative)


def plan_launch(
    options: argparse.Namespace, kernel: KernelText, declared: tuple[Parameter, ...]
) -> tuple:
    """(kernel, grid, block, dynamic shared bytes, arguments) from the command line; with --shape
    the kernel is one that is compiled for the shape."""
    if options.shape is not None:
        match = re.fullmatch(r"(\d+)x(\d+)", options.shape)
        if not match:
            raise ValueError(f"--shape is ROWSxCOLS, not {options.shape!r}")
        rows, cols = map(int, match.groups())
        dtype = options.dtype or kernel_of(kernel).header.dtype.name
        bound = bind(kernel, rows, cols, dtype)
        plan = bound.plan
        kernel = replace(kernel, options=plan.options, enable_cooperative_groups=plan.cooperative)
        x = make_input(rows, cols, dtype=dtype)
        return kernel, plan.grid, plan.block, plan.shared_mem, bound.arguments(x, poisoned(x))
    if not options.grid or not options.block:
        raise ValueError("--grid and --block are needed, or --shape for a file with a header")
    texts = options.args or []
    if len(texts) != len(declared):
        wanted = ", ".join(parameter.name for parameter in declared)
        raise ValueError(f"{kernel.name} takes {len(declared)} arguments: {wanted}")
    random = np.random.default_rng(0)
    values = [
        make_argument(text, parameter, random)
        for text, parameter in zip(texts, declared, strict=True)
    ]
    return kernel, tuple(options.grid), tuple(options.block), options.shared or 0, tuple(values)


def make_argument(text: str, parameter: Parameter, random: np.random.Generator):
    """One argument from its text; raises `ValueError` that names the parameter."""
    array = re.fullmatch(r"(\w+)\[([\d,]+)\]", text)
    if text.endswith(".npy"):
        return np.load(text)
    if array:
        dtype, shape = np.dtype(array[1]), tuple(int(size) for size in array[2].split(","))
        if not parameter.const:
            return np.full(shape, np.nan if is_float(dtype) else -1).astype(dtype)
        if is_float(dtype):
            return random.standard_normal(shape).astype(dtype)
        return random.integers(0, 100, shape).astype(dtype)
    try:
        number = float(text) if re.search(r"[.eE]", text) else int(text, 0)
    except ValueError:
        raise ValueError(
            f"{parameter.name}: {text!r} is no number, no .npy file and no dtype[shape]"
        ) from None
    if parameter.dtype is None:
        return number
    if parameter.dtype.kind in "iu" and not isinstance(number, int):
        raise ValueError(f"{parameter.name}: the kernel takes {parameter.type}, not {text}")
    try:
        with np.errstate(over="raise"):
            value = parameter.dtype.type(number)
    except (OverflowError, FloatingPointError):
        value = None
    if value is None or np.isinf(number):
        raise ValueError(f"{parameter.name}: {text} does not fit the kernel's {parameter.type}")
    return value


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def describe(name: str, array: np.ndarray) -> str:
    """Statistics of an output, to see at a glance whether it is what was meant."""
    missing = int(np.isnan(array).sum()) if is_float(array.dtype) else 0
    kept = array[~np.isnan(array)] if missing else array
    if not kept.size:
        return f"{name}: {array.dtype}{list(array.shape)}, all NaN"
    return (
        f"{name}: {array.dtype}{list(array.shape)}, min {float(kept.min()):.6g}, "
        f"max {float(kept.max()):.6g}, "
        f"mean {kept.mean(dtype=np.float64):.6g}, {missing} NaN"
    )


if __name__ == "__main__":
    sys.exit(main())
