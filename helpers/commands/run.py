"""Run the whole series: `make run`. Every notebook, every kernel, one plot, one table.

Executed copies and the plot go to build/; the committed notebooks stay as they are. With --save
(`make notebooks`) the notebooks run in replay mode and are rewritten if their text changed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from ..catalogue import source, steps
from ..check import check_kernel
from ..header import header
from ..mode import SWITCH, describe_mode, replaying
from ..paths import BUILD, NOTEBOOKS
from ..records import recorded_steps
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
    parser.add_argument("names", nargs="*", help="only notebooks whose name starts like this")
    parser.add_argument("--save", action="store_true", help="replay and rewrite changed notebooks")
    parser.add_argument("--force", action="store_true", help="with --save: rewrite plots too")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    """The exit status of `main`."""
    if options.save:
        os.environ[SWITCH] = "1"
    try:
        print(describe_mode(), flush=True)
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    paths = [
        path
        for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
        if not options.names or path.name.startswith(tuple(options.names))
    ]
    if not paths:
        print(f"no notebook starts with {' or '.join(options.names)}", file=sys.stderr)
        return 1
    BUILD.mkdir(exist_ok=True)
    failed = [path for path in paths if not run_notebook(path, options.save, options.force)]
    if failed:
        names = ", ".join(path.stem for path in failed)
        print(f"{len(failed)} of {len(paths)} notebooks failed: {names}")
    if options.save or options.names:
        return 1 if failed else 0
    verdicts = check_steps()
    draw_summary()
    print(summary_table(verdicts, "on the SIMT machine" if replaying() else "on this GPU"))
    print("\nExecuted notebooks and series.png are in build/.")
    return 0 if not failed and all(verdict == "right" for verdict in verdicts.values()) else 1


# ---- notebooks --------------------------------------------------------------------------------


def run_notebook(path: Path, save: bool, force: bool) -> bool:
    """Execute one notebook with progress a cell at a time; returns whether no cell failed."""
    from .. import notebooks  # takes a second, in which Ctrl-C is to end with a sentence too

    began = time.perf_counter()

    def progress(done: int, total: int) -> None:
        show_progress(path.stem, done, total, time.perf_counter() - began)

    notebook, failure = notebooks.execute(path, progress)
    seconds = time.perf_counter() - began
    end_progress(path.stem, notebooks.code_cells(notebook), seconds, failure)
    if save and not failure and notebooks.save_if_changed(notebook, path, force):
        print(f"  {path.name} rewritten")
    return not failure


def show_progress(name: str, done: int, total: int, seconds: float) -> None:
    if sys.stdout.isatty():
        print(f"\r{name:16} cell {done} of {total}, {seconds:.0f} s ", end="", flush=True)
    else:
        print(f"{name:16} " if done == 1 else "", end="")
        print(f"{done} ", end="", flush=True)


def end_progress(name: str, total: int, seconds: float, failure: str) -> None:
    verdict = f"FAILED: {failure}" if failure else "ok"
    if sys.stdout.isatty():
        print(f"\r{name:16} {total} cells, {seconds:.1f} s, {verdict}        ", flush=True)
    else:
        print(f"of {total} cells, {seconds:.1f} s, {verdict}", flush=True)


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


def draw_summary() -> None:
    """The series so far in one figure, build/series.png."""
    import matplotlib

    matplotlib.use("agg")
    from ..figures import plot_series

    series = [record for record in recorded_steps() if record.in_series]
    plot_series(series, shapes="long").savefig(BUILD / "series.png")


if __name__ == "__main__":
    sys.exit(main())
