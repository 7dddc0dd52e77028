"""Time every kernel of the series beside a copy of the same bytes.

Safe to interrupt: each case is written as soon as it is measured, and a second call goes on where
the first one stopped. A record is started afresh if the kernel's code changed; a case stays with
the protocol that it was timed by, which its file describes. A kernel that is wrong or fails at a
shape is left out there, named at the end, and makes the exit status 1. Needs CuPy, numpy and
ml_dtypes only; where PyTorch is installed, its own softmax is timed too, as "00_torch".
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from functools import partial

from ...base import gpu
from ...catalogue.registry import TORCH, known_steps
from ...measure import bench, campaign, peers
from ...measure.campaign import add_shared_options
from ...measure.records import (
    Case,
    gpu_folder,
    open_record,
    record_path,
    save_record,
    takes,
)
from ...measure.workers import Failure
from ...problem.problem import DTYPES, Problem
from ...problem.shapes import AXES, RECORDED_SHAPES, REFERENCE_SHAPE
from ...simt.words import counted


def add_options(parser: argparse.ArgumentParser) -> None:
    known = [*known_steps(), TORCH]
    parser.add_argument(
        "--steps", nargs="+", metavar="STEP", choices=known, default=known, help="only these steps"
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="only these dtypes"
    )
    add_shared_options(parser, "minutes", "jobs", "fresh")


def run(options: argparse.Namespace) -> int:
    """Measure; return the exit status."""
    device, versions = gpu.describe_device(), gpu.describe_versions()
    folder = gpu_folder(device["name"])
    names = [*options.steps]
    if TORCH in names and (reason := peers.why_not("torch", Problem(*REFERENCE_SHAPE))):
        print(f"{TORCH} is not recorded: {reason}")
        names.remove(TORCH)
        if not names:
            return 1
    records = {
        name: open_record(
            name, folder, device, versions_of(name, versions), bench.PROTOCOL, options.fresh
        )
        for name in names
    }
    plan_for = gpu.of_record(device)
    problems = [
        at
        for rows, cols, *inner in bench.shapes_that_fit((*RECORDED_SHAPES, *AXES))
        for at in (Problem(rows, cols, dtype, *inner) for dtype in options.dtypes)
        if any(takes(name, at, plan_for) for name in names)
    ]
    missing = [
        bench.Task(at, tuple(name for name, record in records.items() if record.lacks(at)))
        for at in problems
    ]
    tasks = [task for task in missing if task.names]
    print(
        f"{len(tasks)} of {counted(len(problems), 'problem')} to record on {device['name']}: "
        f"{', '.join(names)}"
    )
    if versions.get("commit") == "unknown":
        print("git does not say which commit this is; set GIT_COMMIT to have it in the record")

    def keep(task: bench.Task, measured: Mapping[str, Case]) -> Iterator[str]:
        for name in task.names:  # the copy is measured in any case
            records[name].add(measured[name], problems)
            save_record(records[name], folder)
        yield f"{task.at.place(dtype=True)}: GB/s {', '.join(rates(task, measured))}"

    failed = campaign.run(
        tasks,
        partial(bench.measure_steps, maker_of=peers.step_maker),
        keep,
        lambda task: task.at.place(dtype=True),
        without,
        options.jobs,
        clock=campaign.Clock(options.minutes),
    )
    print(f"records are in {record_path(names[0], folder).parent}")
    for line in failed:
        print(f"not recorded: {line}", file=sys.stderr)
    return 1 if failed else 0


def without(task: bench.Task, failure: Failure) -> tuple[bench.Task | None, bool]:
    """The steps of a task that are not to blame; all are where none is named."""
    others = tuple(name for name in task.names if name != failure.culprit)
    return (task._replace(names=others) if 0 < len(others) < len(task.names) else None), True


def versions_of(name: str, versions: Mapping[str, str]) -> dict[str, str]:
    """What a record is of: PyTorch's version too in its own."""
    torch = {"torch": peers.versions()["torch"]} if name == TORCH else {}
    return {**versions, **torch}


def rates(task: bench.Task, measured: Mapping[str, Case]) -> Iterator[str]:
    for name in task.names:
        case = measured[name]
        flag = " above the copy: look!" if case.share > 1.05 else ""
        yield f"{name} {case.gbps:.0f} ({case.share:.2f}){flag}"
