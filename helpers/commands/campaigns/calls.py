"""Time calls of the exported PyTorch softmax and of PyTorch's own, at the shapes of the comparison;
--show prints the records.

At each shape the best baseline of the comparison is timed too, if it is installed: QuACK, Liger or
torch.compile, which are called in the same way. The file is written after each shape. A shape that
is recorded with the current kernel is not timed again, unless --fresh is given or the best baseline
is installed and missing in the record.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence

from ...base import gpu
from ...catalogue import store
from ...catalogue.store import REFERENCE_GPU, Run, gpu_folder, latest, utc_now
from ...measure import baselines, campaign
from ...measure.call_times import (
    CALLED,
    NOTHING,
    OURS,
    PROTOCOL,
    TITLES,
    TORCH,
    CallTimes,
    best_baselines,
    compile_ahead,
    installed,
    measure,
    summary,
    table,
)
from ...measure.campaign import add_shared_options
from ...measure.comparison import DTYPES
from ...page.tables import lines_of
from ...problem.problem import Problem
from ...problem.shapes import compared_shapes


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--show", nargs="?", const=REFERENCE_GPU, help="print what is recorded")
    add_shared_options(parser, "warm", "fresh")


def run(options: argparse.Namespace) -> int:
    """Measure, or print the records; return the exit status."""
    if options.show:
        return show(options.show)
    if importlib.util.find_spec("torch") is None:
        print("calls are timed on a GPU with PyTorch, which is not installed", file=sys.stderr)
        return 1
    baselines.use_cache()
    device = gpu.describe_device()
    folder = gpu_folder(device["name"])
    versions = {**gpu.describe_versions(), **baselines.versions()}
    run = Run(device, versions, utc_now(), PROTOCOL)
    known = store.read_if_any(CallTimes, folder)
    best = best_baselines(folder)
    wanted = [Problem(*shape, dtype) for dtype in DTYPES for shape in compared_shapes(dtype)]
    order = {problem: place for place, problem in enumerate(wanted)}
    missing = to_time(wanted, [] if options.fresh else known, best)
    if options.warm:
        jobs = [
            (name, one) for one, baseline in missing.items() for name in (baseline, OURS) if name
        ]
        baselines.in_processes(compile_ahead, jobs, options.warm)

    def keep(task: tuple[Problem, str], case: CallTimes) -> Iterator[str]:
        nonlocal known
        known = store.put(known, case, order)
        store.write(CallTimes, folder, known)
        yield " ".join(next(table([case], best)))

    tasks = [*missing.items()]
    work = lambda task: measure(task[0], run, task[1])  # noqa: E731
    failed = campaign.run(tasks, work, keep, lambda task: task[0].place())
    print(f"the times are in {store.path_of(CallTimes, folder)}")
    return 1 if failed else 0


def to_time(
    wanted: Sequence[Problem], cases: Sequence[CallTimes], best: Mapping[Problem, str]
) -> dict[Problem, str]:
    """Problem to be timed -> its baseline, "" for none."""
    there = {name for name in CALLED if installed(name)}
    known, found = {case.problem: case for case in cases}, {}
    for problem in wanted:
        baseline, case = best.get(problem, ""), known.get(problem)
        baseline = baseline if baseline in there else ""
        names = {OURS, TORCH, NOTHING, baseline or OURS}
        if not (case and case.is_current() and case.holds(names)):
            found[problem] = baseline
    return found


def show(folder: str) -> int:
    """Print the records of a GPU; returns the exit status."""
    try:
        cases, best = store.read(CallTimes, folder), best_baselines(folder)
    except (FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    old = "" if all(case.is_current() for case in cases) else ", in part of earlier kernels"
    print(f"microseconds a call, {latest(cases).device['name']}, {latest(cases).utc[:10]}{old}")
    aligns = ("<28", "<24", "<9", *[">11"] * (len(TITLES) - 3))
    titles = [*zip(TITLES, aligns, strict=True)]
    print(*lines_of(titles, table(cases, best)), *summary(cases, best), sep="\n")
    return 0
