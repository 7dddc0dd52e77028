"""Run the series: `make run`. Its notebooks, every kernel, one plot, one table.

Executed copies and the plot go to build/; the committed notebooks stay as they are. --all runs the
deeper notebooks too. With --save (`make notebooks`) both run in replay mode and are rewritten if
their text changed. In replay mode several run at a time, one on each core; on a GPU one, since it
is timed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

from ..catalogue import source, steps
from ..check import check_kernel
from ..figures import save_series
from ..header import header
from ..mode import SWITCH, describe_mode, replaying
from ..options import at_least
from ..paths import BUILD, core_notebooks, deeper_notebooks
from ..tables import summary_table


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status: 0 if everything ran and every kernel is right."""
    options = parse_arguments(arguments)
    try:
        return run(options)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130  # as a shell has it


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m helpers.commands.run", description=__doc__)
    parser.add_argument("names", nargs="*", help="only notebooks, deeper ones too, that start so")
    parser.add_argument("--all", action="store_true", help="the deeper notebooks too")
    parser.add_argument("--save", action="store_true", help="replay and rewrite changed notebooks")
    parser.add_argument("--force", action="store_true", help="with --save: rewrite plots too")
    parser.add_argument(
        "--jobs",
        type=at_least(1),
        metavar="N",
        help="so many notebooks at a time (1 on a GPU, else cores)",
    )
    options = parser.parse_args(arguments)
    if options.force and not options.save:
        parser.error("--force rewrites what --save saves: give both")
    return options


def run(options: argparse.Namespace) -> int:
    """The exit status of `main`."""
    if options.save:
        os.environ[SWITCH] = "1"
    try:
        print(describe_mode(), flush=True)
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    paths = chosen_notebooks(options)
    if not paths:
        print(f"no notebook starts with {' or '.join(options.names)}", file=sys.stderr)
        return 1
    BUILD.mkdir(exist_ok=True)
    jobs = options.jobs or (os.cpu_count() or 1 if replaying() else 1)
    results = run_notebooks(paths, options.save, options.force, min(jobs, len(paths)))
    failed = sorted(result.name for result in results if result.failure)
    if failed:
        print(f"{len(failed)} of {len(paths)} notebooks failed: {', '.join(failed)}")
    if options.save or options.names:
        return 1 if failed else 0
    verdicts = check_steps()
    save_series(BUILD / "series.png")
    print(summary_table(verdicts, "on the SIMT machine" if replaying() else "on this GPU"))
    print("\nExecuted notebooks and series.png are in build/.")
    return 0 if not failed and all(verdict == "right" for verdict in verdicts.values()) else 1


def chosen_notebooks(options: argparse.Namespace) -> list[Path]:
    """The notebooks that the options ask for: those of given names, else the core series, with
    --all and --save the deeper ones too."""
    if options.names:
        everything = core_notebooks() + deeper_notebooks()
        return [path for path in everything if path.name.startswith(tuple(options.names))]
    return core_notebooks() + (deeper_notebooks() if options.all or options.save else [])


# ---- notebooks --------------------------------------------------------------------------------


class Result(NamedTuple):
    """What became of one notebook."""

    name: str
    cells: int
    seconds: float
    failure: str  # "" if no cell failed
    rewritten: bool = False


def run_notebooks(paths: Sequence[Path], save: bool, force: bool, jobs: int) -> list[Result]:
    """Execute notebooks, `jobs` at a time, and say of each as it ends what became of it."""
    runs = run_side_by_side if jobs > 1 else run_in_turn
    results, terminal = [], sys.stdout.isatty()
    wide = max(len(path.stem) for path in paths)
    for result in runs(paths, save, force, jobs):
        results.append(result)
        verdict = f"FAILED: {result.failure}" if result.failure else "ok"
        line = f"{result.name:{wide}}  {result.cells} cells, {result.seconds:.1f} s, {verdict}"
        line += " (rewritten)" if result.rewritten else ""
        print(f"\r{line:{wide + 44}}" if terminal else line, flush=True)
        if terminal and len(results) < len(paths):
            print(f"{len(results)} of {len(paths)} notebooks ", end="", flush=True)
    return results


def run_in_turn(paths: Sequence[Path], save: bool, force: bool, jobs: int = 1) -> Iterator[Result]:
    """One after the other in this process, with progress a cell at a time on a terminal."""
    for path in paths:
        began = time.perf_counter()

        def progress(done: int, total: int, name=path.stem, began=began) -> None:
            if sys.stdout.isatty():
                seconds = time.perf_counter() - began
                print(f"\r{name} cell {done} of {total}, {seconds:.0f} s ", end="", flush=True)

        yield run_notebook(path, save, force, progress)


def run_side_by_side(paths: Sequence[Path], save: bool, force: bool, jobs: int) -> Iterator[Result]:
    """`jobs` at a time, each in a process of its own; in the order in which they end."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, initializer=leave_interrupts_to_notebooks)
    try:
        tasks = [pool.submit(run_notebook, path, save, force) for path in paths]
        for task in as_completed(tasks):
            yield task.result()
    except BrokenProcessPool:  # not by Ctrl-C, which reaches this process as well
        raise SystemExit("a notebook's process was ended: too little memory?") from None
    finally:
        pool.shutdown(cancel_futures=True)


def leave_interrupts_to_notebooks() -> None:
    """In a child: Ctrl-C reaches it too, but only the notebook that it runs is to end by it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_notebook(path: Path, save: bool, force: bool, progress=lambda done, total: None) -> Result:
    """Execute one notebook; `progress(done, total)` is called after each of its cells."""
    from .. import notebooks  # takes a second, in which Ctrl-C is to end with a sentence too

    began = time.perf_counter()
    try:
        notebook, failure = notebooks.execute(path, progress)
    except KeyboardInterrupt:
        if multiprocessing.parent_process() is None:
            raise
        os._exit(130)  # a child, whose queue may hold the next notebook already
    rewritten = save and not failure and notebooks.save_if_changed(notebook, path, force)
    cells, seconds = notebooks.code_cells(notebook), time.perf_counter() - began
    return Result(path.stem, cells, seconds, failure, rewritten)


# ---- summary ----------------------------------------------------------------------------------


def check_steps() -> dict[str, str]:
    """Run every step's kernel here, live or simulated, in each of its dtypes: step -> "right" or
    what is wrong."""
    verdicts = {}
    for step in steps():
        try:
            code = source(f"{step}.cu")
            for dtype in header(code).dtypes:
                check_kernel(code, dtype=dtype.name)
            verdicts[step] = "right"
        except Exception as error:  # whatever a broken kernel raises, the others still run
            verdicts[step] = str(error)
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
