"""Our kernels against the peers: `make race` on a GPU, tables and a plot anywhere.

At each shape our kernel, every peer that can run the shape and a copy are timed in turn. The race
is written after each shape; one that was interrupted goes on where it stopped. A peer that cannot
run a shape, fails or computes something else is left out there, with the reason; a shape at which
our own kernel is wrong or fails is not recorded, named at the end, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque

from .. import bench, catalogue, gpu, peers, workers
from ..options import at_least
from ..races import (
    DTYPES,
    RaceCase,
    Task,
    open_race,
    race_path,
    run_task,
    save_race,
)
from ..records import gpu_folder
from ..shapes import RACE_SHAPES, Shape, place


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = parse_arguments(arguments)
    if not gpu.has_gpu():
        print("the race is run on a GPU, and CuPy finds none here", file=sys.stderr)
        return 1
    peers.use_cache()
    fitting = bench.shapes_that_fit(options.shapes)
    shapes = [shape for shape in options.shapes if shape in fitting]
    for shape in [shape for shape in options.shapes if shape not in fitting]:
        print(f"{place(*shape)} does not fit this GPU's memory")
    device = gpu.describe_device()
    plan_for = gpu.of_record(device)
    wanted = [(*shape, dtype) for dtype in options.dtypes for shape in shapes]
    for run in [run for run in wanted if not catalogue.choose(*run, plan_for)]:
        print(f"none of our kernels takes {place(*run, always=True)}")
        wanted.remove(run)
    folder = gpu_folder(device["name"])
    versions = {**gpu.describe_versions(), **peers.versions()}
    race = open_race(folder, device, versions, options.fresh)
    missing = [run for run in wanted if race.why_again(*run, options.peers)]
    print(f"{len(missing)} of {len(wanted)} shapes to race on {device['name']}")
    if options.warm:
        peers.warm_up(missing, options.peers, options.warm)
    tasks = deque(Task(*run, tuple(options.peers)) for run in missing)
    done, failed, began = 0, [], time.perf_counter()
    for task, case in workers.deal(run_task, tasks, options.jobs):
        if isinstance(case, workers.Failure):
            if case.culprit in task.peers:  # once more without it
                tasks.append(task._replace(failed=(*task.failed, (case.culprit, case.reason))))
                continue
            where = f"at {place(*task[:3], always=True)}:"
            failed.append(" ".join(filter(None, (case.culprit, where, case.reason))))
            print(failed[-1], file=sys.stderr, flush=True)
        done += 1
        if isinstance(case, RaceCase):
            race.add(case)
            save_race(race, folder)
            seconds = time.perf_counter() - began
            print(f"[{done}/{len(missing)}, {seconds:.0f} s] {summary(case)}", flush=True)
    print(f"the race is in {race_path(folder)}")
    for line in failed:
        print(f"not raced: {line}", file=sys.stderr)
    return 1 if failed else 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    def shape(text: str) -> Shape:
        rows, cols = map(at_least(1), text.split("x"))
        return rows, cols

    parser = argparse.ArgumentParser(prog="python -m helpers.commands.race", description=__doc__)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--shapes", nargs="+", type=shape, default=RACE_SHAPES, metavar="ROWSxCOLS")
    parser.add_argument("--peers", nargs="+", default=[*peers.PEERS], choices=[*peers.PEERS])
    parser.add_argument("--fresh", action="store_true", help="forget what is recorded")
    parser.add_argument(
        "--warm",
        type=at_least(0),
        default=0,
        metavar="N",
        help="compile the peers in N processes first",
    )
    workers.add_jobs_option(parser)
    return parser.parse_args(arguments)


def summary(case: RaceCase) -> str:
    """One line of progress: shares of a copy, the verdict, and who was left out why."""
    shares = ", ".join(f"{name} {case.share(name):.3f}" for name in case.samples_us)
    flag = " above the copy: look!" if case.share(case.step) > 1.05 else ""
    reasons = "".join(f"\n    {name}: {reason}" for name, reason in case.skipped.items())
    where = place(*case.shape, case.dtype, always=True)
    return f"{where}: {shares}; {case.verdict}{flag}{reasons}"


if __name__ == "__main__":
    sys.exit(main())
