"""What a call of the exported PyTorch softmax costs beside PyTorch's own, on a GPU with PyTorch.

    python -m helpers.commands.time_export --warm 8     # at the shapes of the race
    python -m helpers.commands.time_export --show

At each shape the peer that is best there in the race is timed too, if it is installed: QuACK, Liger
or torch.compile, which are called as PyTorch's own softmax is. The file is written after each
shape; --fresh forgets what it holds, else a shape that is there and of the kernel as it is now is
not timed again, unless the best peer is installed and not in it.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Mapping, Sequence

from ..base import gpu
from ..measure import peers
from ..measure.export_times import (
    CALLED,
    NOTHING,
    OURS,
    PROTOCOL,
    TITLES,
    TORCH,
    Key,
    Times,
    best_peers,
    compile_ahead,
    installed,
    load_times,
    measure,
    save_times,
    summary,
    table,
    times_path,
)
from ..measure.races import DTYPES
from ..measure.records import REFERENCE_GPU, gpu_folder, utc_now
from ..page.tables import lines_of
from ..problem.problem import Problem
from ..problem.shapes import raced
from ..simt.options import at_least


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = parse_arguments(arguments)
    if options.show:
        return show(options.show)
    if not gpu.has_gpu() or importlib.util.find_spec("torch") is None:
        print("calls are timed on a GPU with CuPy and PyTorch", file=sys.stderr)
        return 1
    peers.use_cache()
    device = gpu.describe_device()
    folder = gpu_folder(device["name"])
    versions = {**gpu.describe_versions(), **peers.versions()}
    times = Times(device, versions, utc_now(), [PROTOCOL])
    if times_path(folder).is_file() and not options.fresh:
        times.cases = load_times(folder).cases
    best, failed = best_peers(folder), []
    wanted = [(dtype, *shape) for dtype in DTYPES for shape in raced(dtype)]
    missing = to_time(wanted, times, best)
    if options.warm:
        jobs = [(name, *key) for key, peer in missing.items() for name in (peer, OURS) if name]
        peers.in_processes(compile_ahead, jobs, options.warm)
    for key, peer in missing.items():
        dtype, *shape = key
        try:
            case = measure(*key, peer)
        except (AssertionError, RuntimeError) as error:
            failed.append(f"{Problem(*shape, dtype).place()}: {str(error).partition(chr(10))[0]}")
            print(failed[-1], file=sys.stderr, flush=True)
            continue
        times.cases = [*(other for other in times.cases if other.key != key), case]
        save_times(times, folder)
        print(*next(table([case], best)), flush=True)
    print(f"the times are in {times_path(folder)}")
    return 1 if failed else 0


def to_time(wanted: Sequence[Key], times: Times, best: Mapping[Key, str]) -> dict[Key, str]:
    """What is to be timed -> the peer beside it, "" without one."""
    there = {name for name in CALLED if installed(name)}
    known, found = {case.key: case for case in times.cases}, {}
    for key in wanted:
        peer, case = best.get(key, ""), known.get(key)
        peer = peer if peer in there else ""
        names = {OURS, TORCH, NOTHING, peer or OURS}
        if not (case and case.is_current(gpu.gpu_in_use()) and case.holds(names)):
            found[key] = peer
    return found


def show(folder: str) -> int:
    """Print what is recorded on a GPU; returns the exit status."""
    try:
        times, best = load_times(folder), best_peers(folder)
    except (FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    old = "" if times.is_current() else ", in part of earlier kernels"
    print(f"microseconds a call, {times.device['name']}, {times.utc[:10]}{old}")
    aligns = ("<28", "<24", "<9", *[">11"] * (len(TITLES) - 3))
    titles = [*zip(TITLES, aligns, strict=True)]
    print(*lines_of(titles, table(times.cases, best)), *summary(times.cases, best), sep="\n")
    return 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.commands.time_export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    help = "compile ours and the peers in N processes first"
    parser.add_argument("--warm", type=at_least(0), default=0, metavar="N", help=help)
    parser.add_argument("--fresh", action="store_true", help="forget what is recorded")
    parser.add_argument("--show", nargs="?", const=REFERENCE_GPU, help="print what is recorded")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
