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

from ..bound import bind, kernel_of
from ..launch import simulate
from ..plan import DTYPES
from ..references import make_input, poisoned
from ..simt import KernelText, Trace, command
from ..simt.command import Launch, Launches

REPLACED = ("grid", "block", "args", "shared", "cooperative")  # by --shape


class Shapes(Launches):
    """Launches that a header plans."""

    prog = "python -m helpers.commands.simulate"
    description = __doc__ + command.__doc__

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--shape", help="ROWSxCOLS, for a kernel file with a header")
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

    def asks_for_list(self, options: argparse.Namespace) -> bool:
        return options.shape is None and super().asks_for_list(options)

    def launch(self, options: argparse.Namespace, kernel: KernelText) -> Launch:
        if options.shape is None:
            return super().launch(options, kernel)
        match = re.fullmatch(r"(\d+)x(\d+)", options.shape)
        if not match:
            raise ValueError(f"--shape is ROWSxCOLS, not {options.shape!r}")
        rows, cols = map(int, match.groups())
        dtype = options.dtype or kernel_of(kernel).header.dtype.name
        bound = bind(kernel, rows, cols, dtype)
        plan = bound.plan
        kernel = replace(kernel, options=plan.options, enable_cooperative_groups=plan.cooperative)
        x = make_input(rows, cols, dtype=dtype)
        values = bound.arguments(x, poisoned(x))
        return Launch(kernel, plan.grid, plan.block, plan.shared_mem, values)

    def run(self, launch: Launch, **options) -> Trace:
        sizes = launch.grid, launch.block
        return simulate(launch.kernel, *sizes, launch.values, launch.shared, **options)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return command.main(arguments, Shapes())


if __name__ == "__main__":
    sys.exit(main())
