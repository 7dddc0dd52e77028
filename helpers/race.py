"""Our kernels against the peers: `python -m helpers.race` on a GPU, tables and a plot anywhere.

At each shape one `bench.measure` call times our kernel, every peer that can run the shape, and the
copy, replayed in turn in one process: only such figures are compared with each other. The result
is `notebooks/records/<gpu>/race.json`, written after each shape; a race that was interrupted goes
on where it stopped. A peer that cannot run a shape, fails or computes something else is left out
there, with the reason; a shape at which our own kernel is wrong or fails is not recorded, named at
the end, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import textwrap
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import bench, gpus, kernels, peers, recorder
from .gpu import has_gpu
from .records import FEW_SHAPES, FOLDER, REFERENCE_GPU, gpu_folder, step_hash, write_json

SCHEMA = 1
DTYPES = ("float32", "bfloat16")
# (rows, cols): 2^28 elements, then medium sizes, then few rows. Rows of the unaligned shapes do
# not start at multiples of 16 bytes, which a kernel must be made for.
ALIGNED_SHAPES = (
    *((2**28 // cols, cols) for cols in (32, *(2**k for k in range(7, 19) if k != 8), 2**20)),
    *((8192, cols) for cols in (1024, 4096, 8192, 50304)),
    *((4096, cols) for cols in (256, 1024, 4096, 12672)),
    *FEW_SHAPES,
)
UNALIGNED_SHAPES = ((8192, 50257), (65536, 77))
PEER_SHAPES = (*ALIGNED_SHAPES, *UNALIGNED_SHAPES)

TOLERANCE = 0.01  # a difference of medians below this is a tie
ROOM = 0.97  # a best peer below this share of a copy must be beaten, not equalled
LOW, HIGH = f"{1 - TOLERANCE:.2f}", f"{1 + TOLERANCE:.2f}"
LEGEND = (
    f"lead: time of the best peer / ours; ahead: above {HIGH}; level: {LOW} to {HIGH}; "
    f"LOSS: below {LOW},\n"
    f"or not above 1 although the best peer is below {ROOM} of a copy"
)
MARKS = {
    "+": "our kernel starts before the call ahead of it has ended; no other does so",
    "#": "ours was another kernel or launch than would be chosen now",
}


@dataclass(frozen=True)
class RaceCase:
    """One shape: our kernel, the peers and the copy, timed in turn."""

    dtype: str
    rows: int
    cols: int
    step: str  # our kernel
    kernel_hash: str
    launch: dict[str, int]  # of our kernel
    samples_us: dict[str, list[float]]  # step or peer -> microseconds a call, one a replay
    copy_samples_us: list[float]
    calls: dict[str, int]  # calls per replay
    skipped: dict[str, str] = field(default_factory=dict)  # peer -> why it was not timed
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols

    @property
    def copy_us(self) -> float:
        return statistics.median(self.copy_samples_us)

    @property
    def copy_gbps(self) -> float:
        return 2 * self.rows * self.cols * np.dtype(self.dtype).itemsize / self.copy_us / 1e3

    def median_us(self, name: str) -> float:
        return statistics.median(self.samples_us[name])

    def share(self, name: str) -> float:
        """Bandwidth as a share of the same-size copy's."""
        return self.copy_us / self.median_us(name)

    @property
    def best_peer(self) -> str | None:
        """The fastest peer; None if none was timed."""
        return min((n for n in self.samples_us if n != self.step), key=self.median_us, default=None)

    @property
    def lead(self) -> float:
        """How many times as fast as the best peer we are; infinite without a peer."""
        return (
            self.median_us(self.best_peer) / self.median_us(self.step) if self.best_peer else np.inf
        )

    @property
    def verdict(self) -> str:
        """One of "ahead", "level" and "LOSS", which is slower than the best peer by more than the
        tolerance, or not faster where that peer leaves room below the copy."""
        room = self.best_peer is not None and self.share(self.best_peer) < ROOM
        if self.lead < 1 - TOLERANCE or (room and self.lead <= 1):
            return "LOSS"
        return "ahead" if self.lead > 1 + TOLERANCE else "level"


@dataclass
class Race:
    """All cases of one GPU and one set of versions."""

    device: dict
    versions: dict[str, str]
    utc: str
    protocol: dict
    cases: list[RaceCase] = field(default_factory=list)
    schema: int = SCHEMA


# ---- for notebooks ------------------------------------------------------------------------------


def load_race(gpu: str = REFERENCE_GPU) -> Race:
    """Read a race. Raises `FileNotFoundError` that says how it is made, `ValueError` for a file of
    another version of this program."""
    path = race_path(gpu)
    if not path.is_file():
        raise FileNotFoundError(f"no race of {gpu}; on that GPU, python -m helpers.race makes it")
    fields = json.loads(path.read_text())
    if fields["schema"] != SCHEMA:
        raise ValueError(f"{path} has schema {fields['schema']}, this version reads {SCHEMA}")
    return Race(**{**fields, "cases": [RaceCase(**case) for case in fields["cases"]]})


def race_path(gpu: str) -> Path:
    return FOLDER / gpu / "race.json"


def race_cases(dtype: str, gpu: str = REFERENCE_GPU) -> list[RaceCase]:
    """The recorded cases of a dtype in the order of `PEER_SHAPES`; raises as `load_race`."""
    known = {case.shape: case for case in load_race(gpu).cases if case.dtype == dtype}
    return [known[shape] for shape in PEER_SHAPES if shape in known]


def race_origin(gpu: str = REFERENCE_GPU) -> str:
    """One sentence on where the figures come from, with the peers' versions; in lines that fit a
    notebook."""
    race = load_race(gpu)
    versions = ", ".join(
        f"{name} {race.versions[name]}" for name in peers.PACKAGES if name in race.versions
    )
    return textwrap.fill(
        f"recorded on {race.device['name']} on {race.utc[:10]} "
        f"(driver {race.versions['driver']}, {versions})",
        100,
        break_on_hyphens=False,
    )


def race_table(cases: Sequence[RaceCase], unit: str = "share") -> str:
    """Our kernel, each peer ("-": not timed), and how we compare with the best of them.

    `unit` "share" prints bandwidth as a share of the same-size copy's beside the copy's GB/s, "us"
    prints microseconds a call. The last lines say what "lead" and `RaceCase.verdict` mean.
    """
    head = {"share": "copy GB/s", "us": "copy us"}[unit]
    names = [name for name in peers.PEERS if any(name in case.samples_us for case in cases)]
    titles = "".join(f"{name:>8}" for name in ("ours", *names))
    what = {"share": "share of a copy's bandwidth", "us": "microseconds a call"}[unit]
    lines = [
        f"{', '.join(dict.fromkeys(case.dtype for case in cases))}, {what}",
        f"{'rows':>8} {'cols':>8} {head:>9}{titles} {'best peer':>9} {'lead':>6}",
    ]
    for case in cases:
        cells = ""
        for name in (case.step, *names):
            if name not in case.samples_us:
                cells += f"{'-':>8}"
            elif unit == "share":
                cells += f"{case.share(name):8.3f}"
            else:
                cells += f"{case.median_us(name):8.2f}"
        copy = f"{case.copy_gbps:9.0f}" if unit == "share" else f"{case.copy_us:9.2f}"
        mark = "*" if case.shape in UNALIGNED_SHAPES else " "
        lines.append(
            f"{case.rows:8} {case.cols:7}{mark} {copy}{cells} {case.best_peer or '-':>9} "
            f"{case.lead:6.3f} {case.verdict} {marks_of(case)}".rstrip()
        )
    lines.append(LEGEND)
    lines += explained_marks(cases)
    if any(case.shape in UNALIGNED_SHAPES for case in cases):
        lines.append("*: rows that do not start at multiples of 16 bytes")
    return "\n".join(lines)


def marks_of(case: RaceCase) -> str:
    """Those of `MARKS` that a case has."""
    overlaps = "+" if case.launch.get("PROGRAMMATIC") else ""
    return overlaps + ("" if is_current(case) else "#")


def explained_marks(cases: Sequence[RaceCase]) -> list[str]:
    """A line for each of `MARKS` that any of the cases has."""
    seen = "".join(map(marks_of, cases))
    return [f"{mark}: {meaning}" for mark, meaning in MARKS.items() if mark in seen]


def skipped_peers(cases: Sequence[RaceCase]) -> str:
    """Which peers were not timed where, and why: a line for each peer and reason. What is wrong
    with a wrong result is left out; the race's file has it."""
    places: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        for name, reason in case.skipped.items():
            why = reason.partition(": at (")[0]
            places.setdefault((name, why), []).append(f"{case.rows} x {case.cols}")
    return "\n".join(
        f"{name}: {reason} ({', '.join(shapes)})" for (name, reason), shapes in places.items()
    )


def plot_race(cases: Sequence[RaceCase], title: str = "Share of a copy") -> None:
    """Draw share of the same-size copy over columns: ours bold and blue, each peer in a colour; for
    few rows as bars, ours first.

    The cases should be of one dtype and one family, such as 2^28 elements each. Shows the figure
    and returns None, so that it can end a cell. Raises `ValueError` if there are none.
    """
    import matplotlib.pyplot as plt

    from . import plot

    if not cases:
        raise ValueError("no cases to plot")
    axes = plot.empty_axes(title)
    axes.set_ylabel("bandwidth / bandwidth of a same-size copy")
    axes.axhline(1, color=plot.BLACK, linestyle="--", linewidth=1.5)
    shares = {
        name: {case.shape: case.share(name) for case in cases if name in case.samples_us}
        for name in peers.PEERS
    }
    colors = dict(zip(shares, (*plot.SERIES[:5], plot.GREY), strict=True))
    timed = [(name, colors[name], values) for name, values in shares.items() if values]
    ours = ("ours", plot.BLUE, {case.shape: case.share(case.step) for case in cases})
    if all(case.shape in FEW_SHAPES for case in cases):
        axes.set_xlabel(f"rows x columns, {cases[0].dtype}")
        plot.add_bars(axes, [case.shape for case in cases], [ours, *timed])
    else:
        axes.set_xlabel(f"columns (row length), {cases[0].dtype}")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
        for name, color, values in (*timed, ours):
            cols, heights = zip(*sorted((cols, y) for (_, cols), y in values.items()), strict=True)
            width = 3.5 if name == "ours" else 1.5
            axes.plot(cols, heights, color=color, marker="o", markersize=4, linewidth=width)
            plot.add_label(axes, cols[-1], heights[-1], name, color)
        plot.finish(axes)
    plt.show()


# ---- the race -----------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = parse_arguments(arguments)
    if not has_gpu():
        print("the race is run on a GPU, and CuPy finds none here", file=sys.stderr)
        return 1
    # Before the peers are imported: the folders in which Inductor and Triton keep what they
    # compiled, of the race alone because the warm-up deletes from it.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(CACHE / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(CACHE / "triton")
    fitting = recorder.shapes_that_fit(options.shapes)
    shapes = [shape for shape in options.shapes if shape in fitting]
    wanted = [(*shape, dtype) for dtype in options.dtypes for shape in shapes]
    for rows, cols, dtype in [case for case in wanted if _ours(*case)[1] is None]:
        print(f"none of our kernels takes {rows} x {cols} {dtype}")
        wanted.remove((rows, cols, dtype))
    device = recorder.describe_device()
    gpu = gpu_folder(device["name"])
    race = open_race(gpu, device, options.fresh)
    missing = [case for case in wanted if not is_recorded(race, *case, options.peers)]
    print(f"{len(missing)} of {len(wanted)} shapes to race on {device['name']}")
    if options.warm:
        warm_up(missing, options.peers, options.warm)
    tasks = deque(Task(*wish, tuple(options.peers)) for wish in missing)
    done, failed, began = 0, [], time.perf_counter()
    for task, case in gpus.deal(run_task, tasks, options.jobs):
        wish = task[:3]
        if isinstance(case, gpus.Failure):
            if case.culprit in task.peers:  # once more without it
                tasks.append(task._replace(failed=(*task.failed, (case.culprit, case.reason))))
                continue
            line = " ".join(filter(None, (case.culprit, f"at {recorder.describe(*wish)}:")))
            failed.append(f"{line} {case.reason}")
            print(failed[-1], file=sys.stderr, flush=True)
        done += 1
        if isinstance(case, RaceCase):
            add(race, case)
            write_json(race_path(gpu), dataclasses.asdict(race))
            seconds = time.perf_counter() - began
            print(f"[{done}/{len(missing)}, {seconds:.0f} s] {summary(case)}", flush=True)
    print(f"the race is in {race_path(gpu)}")
    for line in failed:
        print(f"not raced: {line}", file=sys.stderr)
    return 1 if failed else 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    def shape(text: str) -> tuple[int, int]:
        rows, cols = text.split("x")
        return int(rows), int(cols)

    parser = argparse.ArgumentParser(prog="python -m helpers.race", description=__doc__)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--shapes", nargs="+", type=shape, default=PEER_SHAPES, metavar="ROWSxCOLS")
    parser.add_argument("--peers", nargs="+", default=[*peers.PEERS], choices=[*peers.PEERS])
    parser.add_argument("--fresh", action="store_true", help="forget what is recorded")
    parser.add_argument(
        "--warm", type=int, default=0, metavar="N", help="compile the peers in N processes first"
    )
    gpus.add_jobs_option(parser)
    return parser.parse_args(arguments)


def open_race(gpu: str, device: dict, fresh: bool) -> Race:
    """The race to go on with, or an empty one if versions, protocol or GPU are not the recorded:
    figures under one heading must be comparable."""
    versions = {**recorder.describe_versions(), **peers.versions()}
    if not fresh and race_path(gpu).is_file():
        race = load_race(gpu)
        if race.protocol == bench.PROTOCOL and _comparable(race.versions) == _comparable(versions):
            return race
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return Race(device, versions, now, bench.PROTOCOL)


def _comparable(versions: dict[str, str]) -> dict[str, str]:
    named = (*recorder.MUST_NOT_CHANGE, *peers.PACKAGES)
    return {name: version for name, version in versions.items() if name in named}


def is_recorded(race: Race, rows: int, cols: int, dtype: str, names: Sequence[str]) -> bool:
    """Whether a race holds a shape with our kernel as it is now and with each of the peers, timed
    or left out."""
    return any(
        (case.dtype, case.shape) == (dtype, (rows, cols))
        and is_current(case)
        and set(names) <= {*case.samples_us, *case.skipped}
        for case in race.cases
    )


def is_current(case: RaceCase) -> bool:
    """Whether a case was raced with the kernel that would be chosen now, code and launch as now."""
    step, plan = _ours(*case.shape, case.dtype)
    return case.step == step and (case.kernel_hash, case.launch) == (step_hash(step), plan.launch)


def _ours(rows: int, cols: int, dtype: str) -> tuple[str | None, kernels.Plan | None]:
    """Our kernel for a shape and how it is launched; two None if none takes it."""
    step = kernels.choose(rows, cols, dtype)
    return step, kernels.step_plan(step, rows, cols, dtype) if step else None


class Task(NamedTuple):
    """One shape to race at."""

    rows: int
    cols: int
    dtype: str
    peers: tuple[str, ...]
    failed: tuple[tuple[str, str], ...] = ()  # (peer, why): it was tried and is left out


def run_task(task: Task) -> RaceCase:
    """Time our kernel, the peers that can run the shape, and the copy. Raises `gpus.Failure`, which
    names our kernel or the peer that is wrong or fails."""
    rows, cols, dtype = task[:3]
    step, _ = _ours(rows, cols, dtype)
    failed = dict(task.failed)
    reasons = {name: failed.get(name) or peers.why_not(name, *task[:3]) for name in task.peers}
    skipped = {name: reason for name, reason in reasons.items() if reason}
    racing = [name for name in task.peers if name not in skipped]
    peers.free_memory()
    makers = {name: partial(peers.candidate, name) for name in racing}
    cases = recorder.measure({step: recorder.maker(step), **makers}, rows, cols, dtype)
    timed = {name: cases[name] for name in (step, *racing)}
    notes = {name: peers.PEERS[name].note for name in racing if peers.PEERS[name].note}
    return RaceCase(
        dtype,
        rows,
        cols,
        step,
        step_hash(step),
        cases[step].launch,
        {name: case.samples_us for name, case in timed.items()},
        cases[step].copy_samples_us,
        {name: case.calls for name, case in timed.items()},
        skipped,
        notes,
    )


def add(race: Race, case: RaceCase) -> None:
    """Put a case into a race in place of the one it had of that shape; cases are in the order of
    the dtypes and shapes, whichever came first."""
    key = (case.dtype, case.shape)
    others = [other for other in race.cases if (other.dtype, other.shape) != key]
    order = {key: place for place, key in enumerate(itertools.product(DTYPES, PEER_SHAPES))}
    race.cases = sorted(
        [*others, case], key=lambda case: order.get((case.dtype, case.shape), len(order))
    )


def summary(case: RaceCase) -> str:
    """One line of progress: shares of a copy, the verdict, and who was left out why."""
    shares = ", ".join(f"{name} {case.share(name):.3f}" for name in case.samples_us)
    flag = " above the copy: look!" if case.share(case.step) > 1.05 else ""
    reasons = "".join(f"\n    {name}: {reason}" for name, reason in case.skipped.items())
    return f"{recorder.describe(*case.shape, case.dtype)}: {shares}; {case.verdict}{flag}{reasons}"


# ---- warm-up ------------------------------------------------------------------------------------

CACHE = Path(tempfile.gettempdir()) / "softmax-worklog-race"


def warm_up(cases: Sequence[tuple[int, int, str]], names: Sequence[str], workers: int) -> None:
    """Fill the peers' caches on disk from several processes, since compiling takes most of a race.

    torch.compile also tunes as it compiles. What it found while the processes shared the GPU is
    deleted: the race tunes again, with what is compiled.
    """
    began = time.perf_counter()
    cached = [name for name in names if peers.PEERS[name].disk_cache]
    jobs = [(name, *case) for case in cases for name in cached if not peers.why_not(name, *case)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _compile_in_one_thread) as pool:
        for done in as_completed([pool.submit(compile_ahead, *job) for job in jobs]):
            try:
                if failure := done.result():
                    print(f"warm-up: {failure}", flush=True)
            except BrokenProcessPool:
                print("warm-up: a process ended; the race compiles what is missing", flush=True)
                break
    for tuned in CACHE.rglob("*.best_config"):
        tuned.unlink()
    print(f"warm-up of {len(jobs)} kernels: {time.perf_counter() - began:.0f} s", flush=True)


def _compile_in_one_thread() -> None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


def compile_ahead(name: str, rows: int, cols: int, dtype: str) -> str:
    """Run a peer once at a shape in this process; returns what went wrong, or ""."""
    import cupy

    try:
        storage = {4: cupy.float32, 2: cupy.uint16}[np.dtype(dtype).itemsize]
        with bench.fresh_pool():
            x, y = cupy.zeros((rows, cols), storage), cupy.empty((rows, cols), storage)
            with cupy.cuda.Stream(non_blocking=True) as stream:
                peers.candidate(name, rows, cols, dtype).run(x, y)
                stream.synchronize()
        return ""
    except Exception as error:  # the race meets it again and records it
        return f"{name} at {rows} x {cols} {dtype}: {type(error).__name__}"


if __name__ == "__main__":
    sys.exit(main())
