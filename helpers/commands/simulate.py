"""The SIMT machine's command, which also knows the headers of this series' kernel files.

    python -m helpers.commands.simulate kernels/01_naive.cu --shape 64x1024

--shape ROWSxCOLS stands for --grid, --block and --args of a kernel file with a header; what its
Build table computes for the shape need not be given. All else is as `simt` has it:

"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace

from ..problem.problem import DTYPES
from ..run.bound import bind, kernel_of
from ..run.launch import simulate
from ..run.references import make_inputs, outputs
from ..simt import KernelText, Trace, command
from ..simt.command import KernelLaunch, Launches

DESCRIPTION = __doc__ + command.DESCRIPTION  # in a class __doc__ is that of the class
REPLACED = ("grid", "block", "args", "shared", "cooperative")  # by --shape


class PlannedLaunches(Launches):
    """Launches that a header plans."""

    prog = "python -m helpers.commands.simulate"
    description = DESCRIPTION

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--shape", help="ROWSxCOLS or OUTERxDIMxINNER, for a kernel file with a header"
        )
        parser.add_argument(
            "--dtype",
            choices=DTYPES,
            help="of x and y with --shape; the header's first if left out",
        )

    def check(self, parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
        given = [f"--{name}" for name in REPLACED if getattr(options, name) is not None]
        if options.shape is not None and given:
            parser.error(f"--shape stands for {', '.join(given)} too: give one or the other")
        if options.dtype and options.shape is None:
            parser.error("--dtype is that of x and y with --shape; --args name their own")

    def plans(self, options: argparse.Namespace) -> bool:
        return options.shape is not None

    def launch(self, options: argparse.Namespace, kernel: KernelText) -> KernelLaunch:
        if options.shape is None:
            return super().launch(options, kernel)
        if not re.fullmatch(r"\d+(x\d+){1,2}", options.shape):
            raise ValueError(f"--shape is ROWSxCOLS, not {options.shape!r}")
        unbound = kernel_of(kernel)
        axes = "inner" in unbound.operation.sizes
        form = "OUTERxDIMxINNER" if axes else "ROWSxCOLS"
        if options.shape.count("x") != 1 + axes:
            raise ValueError(f"--shape is {form}, not {options.shape!r}")
        outer, cols, inner = (*map(int, options.shape.split("x")), 1)[:3]
        dtype = options.dtype or unbound.header.dtype.name
        bound = bind(kernel, outer * inner, cols, dtype, inner=inner)
        plan = bound.plan
        kernel = replace(kernel, options=plan.options, enable_cooperative_groups=plan.cooperative)
        declared = {parameter.name for parameter in bound.kernel.parameters}
        given = make_inputs(bound.problem)
        given = {name: value for name, value in given.items() if name in declared}
        written = outputs(bound.problem, given)
        values = bound.arguments(**given, **written)
        return KernelLaunch(kernel, plan.grid, plan.block, plan.shared_mem, values)

    def run(self, launch: KernelLaunch, **options) -> Trace:
        sizes = launch.grid, launch.block
        return simulate(launch.kernel, *sizes, launch.values, launch.shared, **options)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return command.main(arguments, PlannedLaunches())


if __name__ == "__main__":
    sys.exit(main())
