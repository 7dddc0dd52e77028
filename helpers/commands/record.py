"""Time every step on this machine's GPU and write the records: `make record`.

Safe to interrupt: each case is written as soon as it is measured, and a second call goes on where
the first one stopped. A record is started afresh if the kernel's code changed; a case stays with
the protocol that it was timed by, which its file describes. A kernel that is wrong or fails at a
shape is left out there, named at the end, and makes the exit status 1. Needs CuPy, numpy and
ml_dtypes only; where PyTorch is installed, its own softmax is timed too, as "00_torch".
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Mapping
from functools import partial

from ..base import gpu
from ..catalogue.registry import TORCH, known_steps
from ..measure import bench, peers, workers
from ..measure.records import Record, gpu_folder, open_record, record_path, save_record, takes
from ..problem.problem import DTYPES, Problem
from ..problem.shapes import AXES, RECORDED_SHAPES, REFERENCE_SHAPE
from ..simt.words import counted


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = parse_arguments(arguments)
    if not gpu.has_gpu():
        print("make record measures on a GPU, and CuPy finds none here.", file=sys.stderr)
        return 1
    device, versions = gpu.describe_device(), gpu.describe_versions()
    folder = gpu_folder(device["name"])
    names = options.steps or [*known_steps(), TORCH]
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
    runs = [
        at
        for rows, cols, *inner in bench.shapes_that_fit((*RECORDED_SHAPES, *AXES))
        for at in (Problem(rows, cols, dtype, *inner) for dtype in options.dtypes)
        if any(takes(name, at, plan_for) for name in names)
    ]
    count = counted(len(runs), "shape")  # each dtype by itself
    print(f"recording {', '.join(names)} on {device['name']} at {count}")
    if versions.get("commit") == "unknown":
        print("git does not say which commit this is; set GIT_COMMIT to have it in the record")
    missing = [
        bench.Task(run, tuple(name for name, record in records.items() if record.lacks(run)))
        for run in runs
    ]
    tasks = deque(task for task in missing if task.names)
    done, failed, began = len(runs) - len(tasks), [], time.perf_counter()
    measure = partial(bench.measure_steps, maker_of=peers.step_maker)
    for task, measured in workers.deal(measure, tasks, options.jobs):
        if isinstance(measured, workers.Failure):
            guilty = {measured.culprit} & {*task.names} or {*task.names}
            where = task.at.place(dtype=True)
            failed.append(f"{', '.join(sorted(guilty))} at {where}: {measured.reason}")
            print(failed[-1], file=sys.stderr, flush=True)
            if others := tuple(name for name in task.names if name not in guilty):
                tasks.append(task._replace(names=others))
                continue
        else:
            for name in task.names:  # the copy is measured in any case
                records[name].add(measured[name], runs)
                save_record(records[name], folder)
        done += 1
        print_progress(done, len(runs), task.at, records, began)
    print(f"records are in {record_path(names[0], folder).parent}")
    for line in failed:
        print(f"not recorded: {line}", file=sys.stderr)
    return 1 if failed else 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m helpers.commands.record", description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="measure recorded cases again")
    parser.add_argument(
        "--steps",
        nargs="+",
        metavar="STEP",
        choices=[*known_steps(), TORCH],
        help="only these steps",
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="only these dtypes"
    )
    workers.add_jobs_option(parser)
    return parser.parse_args(arguments)


def versions_of(name: str, versions: Mapping[str, str]) -> dict[str, str]:
    """What a record is of: PyTorch's version too in its own."""
    torch = {"torch": peers.versions()["torch"]} if name == TORCH else {}
    return {**versions, **torch}


def print_progress(
    number: int, total: int, at: Problem, records: Mapping[str, Record], began: float
) -> None:
    rates = []
    for name, record in records.items():
        for case in record.cases:
            if case.at == at:
                flag = " above the copy: look!" if case.share > 1.05 else ""
                rates.append(f"{name} {case.gbps:.0f} ({case.share:.2f}){flag}")
    seconds = time.perf_counter() - began
    rates = ", ".join(rates)
    print(f"[{number}/{total}, {seconds:.0f} s] {at.place(dtype=True)}: GB/s {rates}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
