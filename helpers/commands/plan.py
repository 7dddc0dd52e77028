"""How a kernel is built and launched for a shape: the values of its header's table, the compiler
options, and the launch.

    python -m helpers.commands.plan 08_cluster 1024 262144
    python -m helpers.commands.plan 09_grid 1 1048576 --dtype bfloat16 --gpu 114,52428800,90
    python -m helpers.commands.plan choose 4096 1000 --x-stride 1024

The kernel is a step, a variant or a trial, or "choose" for the one that ought to be fastest; then
it says first why that one, and why none of those before it. Plans are for the GPU in use, where
there is none for an H200, or for the one that --gpu names as in exports.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from ..base.gpu import replaying
from ..catalogue.dispatch import choose, why
from ..catalogue.registry import split_trial
from ..problem.problem import DTYPES
from ..run.bound import BoundKernel, load
from ..simt import CUPY_OPTIONS
from ..simt.hardware import STATIC_SHARED_BYTES
from ..simt.words import at_least
from .export import gpu as named_gpu


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status: 0, or 2 if there is no such plan."""
    options = parse_arguments(arguments)
    step, shape = options.kernel, (options.rows, options.cols, options.dtype)
    strides = {"x_stride": options.x_stride, "y_stride": options.y_stride}
    try:
        gpu = options.gpu  # None for the GPU in use, so that what was tuned on it counts
        if step == "choose":
            step = choose(*shape, gpu, **strides)
            print(f"{why(*shape, gpu, **strides)}\n")
        bound = load(step).bind(*shape, gpu, **strides)
        name = "a GPU" if gpu else "an H200" if replaying() else "the GPU in use"
        print(describe(step, bound, name))
    except (FileNotFoundError, ValueError, RuntimeError) as error:  # the last: no GPU
        print(error, file=sys.stderr)
        return 2
    return 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.commands.plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kernel", help="a step, variant or trial, or choose")
    parser.add_argument("rows", type=at_least(1))
    parser.add_argument("cols", type=at_least(1))
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0])
    for name in ("x", "y"):
        help = f"elements from one row of {name} to the next, cols if not given"
        parser.add_argument(f"--{name}-stride", type=at_least(1), help=help)
    help = "multiprocessors, bytes of L2 and compute capability: 132,62914560,90"
    parser.add_argument("--gpu", type=named_gpu, help=help)
    return parser.parse_args(arguments)


def describe(step: str, bound: BoundKernel, gpu: str) -> str:
    """Values, compiler options and launch of a bound kernel, as text."""
    plan, numbers = bound.plan, bound.gpu
    lines = [
        f"{step} at {bound.problem.place(dtype=True)}, for {gpu}: "
        f"{numbers.sms} SMs, {numbers.l2} bytes of L2, compute capability {numbers.capability}",
        "",
    ]
    names = [value.name for value in bound.kernel.header.build]
    width = max(map(len, names), default=0)
    lines += [f"{name:{width}} = {bound[name]}" for name in names] or ["no Build table"]
    file = f"kernels/{split_trial(step).file}.cu"
    defines = " ".join(plan.options)
    extra = " ".join(CUPY_OPTIONS)
    lines += [
        "",
        f"options of cupy.RawKernel   {defines or 'none'}",
        f"what CuPy adds              {extra} --std=c++17 -arch=sm_{numbers.capability}",
        "with nvcc                   "
        f"nvcc -std=c++17 -ftz=true -arch=sm_{numbers.capability} {defines} -c {file}",
        "",
        f"launch     <<<{plan.grid}, {plan.block}, {plan.shared_mem}>>>{_attributes(bound)}",
        f"arguments  {', '.join(_arguments(bound))}",
    ]
    return "\n".join(lines)


def _arguments(bound: BoundKernel) -> Iterator[str]:
    """What the kernel takes: the names of arrays and numbers, the values of sizes."""
    for parameter in bound.kernel.parameters:
        if parameter.name == "workspace":
            yield f"{bound.plan.workspace} bytes of zeros"
        else:
            yield str(bound.numbers.get(parameter.name, parameter.name))


def _attributes(bound: BoundKernel) -> str:
    """What a launch needs beside its sizes, each with CUDA's name for it. Only a compiler knows how
    much shared memory the kernel file declares itself."""
    plan, needs = bound.plan, []
    if plan.shared_mem:
        unsure = ", if this and the static memory exceed 48 KB"
        unsure *= plan.shared_mem <= STATIC_SHARED_BYTES
        needs.append(f"cudaFuncAttributeMaxDynamicSharedMemorySize{unsure}")
    if plan.cluster > 8:
        needs.append("cudaFuncAttributeNonPortableClusterSizeAllowed")
    if plan.cooperative:
        needs.append("cudaLaunchAttributeCooperative")
    if plan.programmatic:
        needs.append("cudaLaunchAttributeProgrammaticStreamSerialization, if it may start early")
    return "".join(f"\n           {need}" for need in needs)


if __name__ == "__main__":
    sys.exit(main())
