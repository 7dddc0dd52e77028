"""Time every kernel of the series in turn with a copy of the same bytes.

Safe to interrupt: each case is written as soon as it is measured, and a second call resumes the
first one. Cases are measured again if the kernel's code or launch, a version or the text of the
protocol changed. A kernel that is wrong or fails at a shape is left out there and named at the end,
and the exit status is 1. Needs only CuPy, cuda-bindings, NumPy and ml_dtypes; if PyTorch is
installed, its softmax is timed too, as "00_torch".
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from ...base import gpu
from ...catalogue import store
from ...catalogue.registry import TORCH, known_steps
from ...catalogue.store import Run, gpu_folder, utc_now
from ...measure import baselines, bench, campaign
from ...measure.campaign import add_shared_options
from ...measure.records import Case, Timed, may_stay, takes
from ...measure.workers import Failure
from ...problem.problem import DTYPES, Problem
from ...problem.shapes import AXES, RECORDED_SHAPES, REFERENCE_SHAPE
from ...simt.words import counted


def add_options(parser: argparse.ArgumentParser) -> None:
    known = known_names()
    parser.add_argument(
        "--steps", nargs="+", metavar="STEP", choices=known, default=known, help="only these steps"
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="only these dtypes"
    )
    add_shared_options(parser, "minutes", "jobs", "fresh")


def known_names() -> list[str]:
    """All steps, variants and trials with a record, in the order of the file."""
    return [*known_steps(), TORCH]


def run(options: argparse.Namespace) -> int:
    """Measure; return the exit status."""
    device, versions = gpu.describe_device(), gpu.describe_versions()
    folder = gpu_folder(device["name"])
    names = [*options.steps]
    if TORCH in names and (reason := baselines.why_not("torch", Problem(*REFERENCE_SHAPE))):
        print(f"{TORCH} is not recorded: {reason}")
        names.remove(TORCH)
        if not names:
            return 1
    runs = {
        name: Run(device, versions_of(name, versions), utc_now(), bench.PROTOCOL) for name in names
    }
    cases = store.read_if_any(Case, folder)
    valid = {
        case.key
        for case in cases
        if case.step in runs and may_stay(case, runs[case.step].versions, bench.PROTOCOL)
    }
    done = set() if options.fresh else {*valid}
    plan_for = gpu.gpu_from_record(device)
    fitting = bench.shapes_that_fit((*RECORDED_SHAPES, *AXES))
    every = [Problem(r, c, dtype, *inner) for r, c, *inner in fitting for dtype in DTYPES]
    order = {key: place for place, key in enumerate(itertools.product(known_names(), every))}
    problems = [
        at
        for at in every
        if at.dtype in options.dtypes and any(takes(name, at, plan_for) for name in names)
    ]
    missing = [
        bench.Task(
            at,
            tuple(name for name in names if (name, at) not in done and takes(name, at, plan_for)),
        )
        for at in problems
    ]
    tasks = [task for task in missing if task.names]
    print(
        f"{len(tasks)} of {counted(len(problems), 'problem')} to record on {device['name']}: "
        f"{', '.join(names)}"
    )
    if versions.get("commit") == "unknown":
        print("git does not say which commit this is; set GIT_COMMIT to have it in the record")

    def keep(task: bench.Task, measured: Mapping[str, Timed]) -> Iterator[str]:
        nonlocal cases
        stale = {case.key for case in cases if case.step in task.names} - valid
        cases = [case for case in cases if case.key not in stale]
        new = [
            Case.of(measured[name], name, bench.problem_of(name, task.at), runs[name])
            for name in task.names  # the copy is always measured
        ]
        for case in new:
            cases = store.put(cases, case, order)
            valid.add(case.key)
        store.write(Case, folder, cases)
        yield f"{task.at.place(dtype=True)}: GB/s {', '.join(rates(new))}"

    failed = campaign.run(
        tasks,
        partial(bench.measure_steps, maker_of=baselines.step_maker),
        keep,
        lambda task: task.at.place(dtype=True),
        without,
        options.jobs,
        clock=campaign.Clock(options.minutes),
    )
    print(f"records are in {store.path_of(Case, folder)}")
    for line in failed:
        print(f"not recorded: {line}", file=sys.stderr)
    return 1 if failed else 0


def without(task: bench.Task, failure: Failure) -> tuple[bench.Task | None, bool]:
    """The steps of a task that did not fail; none if the failure names no step."""
    others = tuple(name for name in task.names if name != failure.culprit)
    return (task._replace(names=others) if 0 < len(others) < len(task.names) else None), True


def versions_of(name: str, versions: Mapping[str, str]) -> dict[str, str]:
    """The versions of a record; for PyTorch's softmax with the version of PyTorch."""
    torch = {"torch": baselines.versions()["torch"]} if name == TORCH else {}
    return {**versions, **torch}


def rates(cases: Iterable[Case]) -> Iterator[str]:
    for case in cases:
        flag = " above the copy: look!" if case.share > 1.05 else ""
        yield f"{case.step} {case.gbps:.0f} ({case.share:.2f}){flag}"
