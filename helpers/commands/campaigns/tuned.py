"""Tune the plans of softmax over a grid of shapes: the table that `choose` and exports read.

A shape takes a second or two, and the whole grid about half an hour on an H200. Shapes that are in
the file with the current kernels are left out, the most valuable ones come first, and the file is
written after each. `comparison --drawn N` times the plans, with the table and without, at shapes
drawn at random.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

from ...base import gpu
from ...catalogue import store
from ...catalogue.dispatch import out_of_date
from ...catalogue.store import Run, gpu_folder, utc_now
from ...catalogue.tuned import Tuned
from ...measure import bench, campaign
from ...measure.campaign import Clock, add_shared_options
from ...measure.samples import ratio
from ...measure.tuning import Compilers, Timer
from ...measure.tuning_grid import (
    PROTOCOL,
    GridPoint,
    grid,
    starts,
    tuned,
)

AHEAD = 60  # shapes whose trials are compiled before they are timed


def add_options(parser: argparse.ArgumentParser) -> None:
    add_shared_options(parser, "minutes", "fresh")


def run(options: argparse.Namespace) -> int:
    """Tune what the file lacks; return the exit status."""
    this = Run(gpu.describe_device(), gpu.describe_versions(), utc_now(), PROTOCOL)
    timer, compilers = Timer(), Compilers()
    try:
        return tune(options, this, timer, compilers)
    finally:
        compilers.close()
        timer.close()


def tune(options: argparse.Namespace, this: Run, timer: Timer, compilers: Compilers) -> int:
    """Tune what the file lacks, or with `fresh` everything; return the exit status."""
    folder, points = gpu_folder(this.device["name"]), grid()
    known = store.read_if_any(Tuned, folder)
    known = [line for line in known if not out_of_date(line, this.gpu)]
    at = {point.problem: {"rows": point.rows, "cols": point.cols} for point in points}
    known = [replace(line, **at[line.problem]) for line in known if line.problem in at]
    same = [line for line in known if not store.changed(line.run.versions, this.versions)]
    done = set() if options.fresh else {line.problem for line in same}
    order = {problem: place for place, problem in enumerate(at)}
    fitting = bench.shapes_that_fit([point.problem.shape for point in points])
    points = [
        point for point in points if point.problem not in done and point.problem.shape in fitting
    ]
    ahead = iter(points)

    def prepare(count: int) -> None:
        for _, point in zip(range(count), ahead, strict=False):
            compilers.begin(point.problem, starts(point.problem, this.gpu))

    def work(point: GridPoint) -> Tuned:
        prepare(1)
        return tuned(point, this, timer, compilers)

    def keep(point: GridPoint, line: Tuned) -> Iterator[str]:
        nonlocal known
        known = store.put(known, line, order)
        store.write(Tuned, folder, known)
        copies = ratio(line.copy_us, line.trial_us)
        gain = line.rule
        if line.rule_us:
            gain = f"{line.trial} {ratio(line.rule_us, line.trial_us).value:.3f}"
        yield f"{point.problem.place(True)}: {gain}, {copies.value:.3f} of a copy"

    prepare(AHEAD)
    failed = campaign.run(
        points, work, keep, lambda one: one.problem.place(True), clock=Clock(options.minutes)
    )
    print(f"the plans are in {store.path_of(Tuned, folder)}")
    return 1 if failed else 0
