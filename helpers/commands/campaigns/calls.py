"""Time a call of the exported PyTorch softmax beside PyTorch's own, at the shapes of the
comparison; --show prints what is recorded.

At each shape the peer that is best there in the race is timed too, if it is installed: QuACK, Liger
or torch.compile, which are called as PyTorch's own softmax is. The file is written after each
shape; --fresh forgets what it holds, else a shape that is there and of the kernel as it is now is
not timed again, unless the best peer is installed and not in it.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence

from ...base import gpu
from ...measure import campaign, peers
from ...measure.campaign import add_shared_options
from ...measure.export_times import (
    CALLED,
    NOTHING,
    OURS,
    PROTOCOL,
    TITLES,
    TORCH,
    Times,
    TimesCase,
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
from ...measure.races import DTYPES
from ...measure.records import REFERENCE_GPU, gpu_folder, utc_now
from ...page.tables import lines_of
from ...problem.problem import Problem
from ...problem.shapes import raced


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--show", nargs="?", const=REFERENCE_GPU, help="print what is recorded")
    add_shared_options(parser, "warm", "fresh")


def run(options: argparse.Namespace) -> int:
    """Measure, or print what is recorded; return the exit status."""
    if options.show:
        return show(options.show)
    if importlib.util.find_spec("torch") is None:
        print("calls are timed on a GPU with PyTorch, which is not installed", file=sys.stderr)
        return 1
    peers.use_cache()
    device = gpu.describe_device()
    folder = gpu_folder(device["name"])
    versions = {**gpu.describe_versions(), **peers.versions()}
    times = Times(device, versions, utc_now(), [PROTOCOL])
    if times_path(folder).is_file() and not options.fresh:
        times.cases = load_times(folder).cases
    best = best_peers(folder)
    wanted = [Problem(*shape, dtype) for dtype in DTYPES for shape in raced(dtype)]
    missing = to_time(wanted, times, best)
    if options.warm:
        jobs = [(name, one) for one, peer in missing.items() for name in (peer, OURS) if name]
        peers.in_processes(compile_ahead, jobs, options.warm)

    def keep(task: tuple[Problem, str], case: TimesCase) -> Iterator[str]:
        times.cases = [*(other for other in times.cases if other.problem != case.problem), case]
        save_times(times, folder)
        yield " ".join(next(table([case], best)))

    tasks = [*missing.items()]
    failed = campaign.run(tasks, lambda task: measure(*task), keep, lambda task: task[0].place())
    print(f"the times are in {times_path(folder)}")
    return 1 if failed else 0


def to_time(
    wanted: Sequence[Problem], times: Times, best: Mapping[Problem, str]
) -> dict[Problem, str]:
    """What is to be timed -> the peer beside it, "" without one."""
    there = {name for name in CALLED if installed(name)}
    known, found = {case.problem: case for case in times.cases}, {}
    for problem in wanted:
        peer, case = best.get(problem, ""), known.get(problem)
        peer = peer if peer in there else ""
        names = {OURS, TORCH, NOTHING, peer or OURS}
        if not (case and case.is_current(gpu.gpu_in_use()) and case.holds(names)):
            found[problem] = peer
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
