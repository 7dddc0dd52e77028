"""What a call of the exported PyTorch softmax costs beside PyTorch's own, on a GPU with PyTorch.

    python -m helpers.commands.time_export              # at the shapes of the race
    python -m helpers.commands.time_export --show

The file is written after each shape; --fresh forgets what it holds, else a shape that is there and
of the kernel as it is now is not timed again, unless somebody is installed who is not in it.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys

from .. import gpu
from ..export_times import (
    PROTOCOL,
    TITLES,
    Times,
    exported,
    implementations,
    load_times,
    measure,
    save_times,
    table,
    times_path,
)
from ..peers import versions
from ..races import DTYPES
from ..records import REFERENCE_GPU, gpu_folder, utc_now
from ..shapes import RACE_SHAPES, Shape, place, raced
from ..simt.options import at_least
from ..tables import lines_of


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = parse_arguments(arguments)
    if options.show:
        return show(options.show)
    if not gpu.has_gpu() or importlib.util.find_spec("torch") is None:
        print("calls are timed on a GPU with CuPy and PyTorch", file=sys.stderr)
        return 1
    device = gpu.describe_device()
    folder = gpu_folder(device["name"])
    times = Times(device, {**gpu.describe_versions(), **versions()}, utc_now(), [PROTOCOL])
    if times_path(folder).is_file() and not options.fresh:
        times.cases = load_times(folder).cases
    calls, failed = implementations(exported()), []
    for dtype in options.dtypes:
        for rows, cols in options.shapes or raced(dtype):
            key = dtype, rows, cols
            others = [case for case in times.cases if (case.dtype, *case.shape) != key]
            known = [case for case in times.cases if (case.dtype, *case.shape) == key]
            if known and known[0].is_current(gpu.gpu_in_use()) and known[0].holds(calls):
                continue
            try:
                case = measure(calls, rows, cols, dtype)
            except (AssertionError, RuntimeError) as error:
                failed.append(f"{place(rows, cols, dtype)}: {str(error).splitlines()[0]}")
                print(failed[-1], file=sys.stderr, flush=True)
                continue
            times.cases = [*others, case]
            save_times(times, folder)
            print(*next(table([case])), flush=True)
    print(f"the times are in {times_path(folder)}")
    return 1 if failed else 0


def show(folder: str) -> int:
    """Print what is recorded on a GPU; returns the exit status."""
    try:
        times = load_times(folder)
    except (FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    old = "" if times.is_current() else ", in part of earlier kernels"
    print(f"microseconds a call, {times.device['name']}, {times.utc[:10]}{old}")
    aligns = ("<28", "<24", *[">11"] * (len(TITLES) - 2))
    print(*lines_of([*zip(TITLES, aligns, strict=True)], table(times.cases)), sep="\n")
    return 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    def shape(text: str) -> Shape:
        rows, cols = map(at_least(1), text.split("x"))
        return rows, cols

    parser = argparse.ArgumentParser(
        prog="python -m helpers.commands.time_export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    help = f"instead of the {len(RACE_SHAPES)} of the race"
    parser.add_argument("--shapes", nargs="+", type=shape, metavar="ROWSxCOLS", help=help)
    parser.add_argument("--fresh", action="store_true", help="forget what is recorded")
    parser.add_argument("--show", nargs="?", const=REFERENCE_GPU, help="print what is recorded")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
