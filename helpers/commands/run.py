"""Run the series: `make run`. Its notebooks, every kernel, one table.

Executed copies go to build/; the committed notebooks stay as they are. --all runs the
deeper notebooks too. With --save (`make notebooks`) both run in replay mode and are rewritten if
their text or what a figure draws changed. In replay mode several run at a time, one on each core;
on a GPU one, since it is timed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from ..base.gpu import SWITCH, describe_device, describe_mode, describe_versions, replaying
from ..base.paths import BUILD, core_notebooks, deeper_notebooks
from ..catalogue.header import header
from ..catalogue.registry import source, steps
from ..catalogue.store import Run, utc_now
from ..measure import bench
from ..measure.campaign import Failure
from ..measure.records import Case, has_record, load_record, predicted_at
from ..page.rich import aligned
from ..run.launch import check_kernel
from ..simt.words import at_least


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status: 0 if everything ran and every kernel is right."""
    return run(parse_arguments(arguments))


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m helpers.commands.run", description=__doc__)
    parser.add_argument("names", nargs="*", help="only notebooks, deeper ones too, that start so")
    parser.add_argument("--all", action="store_true", help="the deeper notebooks too")
    parser.add_argument("--save", action="store_true", help="replay and rewrite changed notebooks")
    parser.add_argument("--force", action="store_true", help="with --save: new pictures too")
    parser.add_argument(
        "--jobs",
        type=at_least(1),
        metavar="N",
        help="notebooks to run at a time (default: the number of cores; 1 on a GPU)",
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
    failed = run_notebooks(paths, options.save, options.force, min(jobs, len(paths)))
    if failed:
        print(f"{len(failed)} of {len(paths)} notebooks failed: {', '.join(failed)}")
    if options.save or options.names:
        return 1 if failed else 0
    verdicts = check_steps(jobs)
    here = {} if replaying() else time_steps(verdicts)
    print(summary_table(verdicts, "on the SIMT machine" if replaying() else "on this GPU", here))
    print("\nExecuted notebooks are in build/.")
    return 0 if not failed and all(verdict == "right" for verdict in verdicts.values()) else 1


def chosen_notebooks(options: argparse.Namespace) -> list[Path]:
    """The notebooks that the options ask for: those of given names, else the core series, with
    --all and --save the deeper ones too."""
    if options.names:
        everything = core_notebooks() + deeper_notebooks()
        return [path for path in everything if path.name.startswith(tuple(options.names))]
    return core_notebooks() + (deeper_notebooks() if options.all or options.save else [])


# ---- notebooks --------------------------------------------------------------------------------


def run_notebooks(paths: Sequence[Path], save: bool, force: bool, jobs: int) -> list[str]:
    """Execute notebooks, `jobs` at a time, and print how each of them ends; return the
    names of those that failed."""
    from ..page import notebooks  # slow to import: the first line is printed before

    failed, wide = [], max(len(path.stem) for path in paths)

    def say(executed: notebooks.Executed) -> None:
        path, notebook, failure, seconds = executed
        if failure:
            failed.append(path.stem)
        rewritten = save and not failure and notebooks.save_if_changed(notebook, path, force)
        verdict = f"FAILED: {failure}" if failure else "ok (rewritten)" if rewritten else "ok"
        cells = notebooks.code_cells(notebook)
        print(f"{path.stem:{wide}}  {cells} cells, {seconds:.1f} s, {verdict}", flush=True)

    notebooks.execute(paths, jobs, say)
    return sorted(failed)


# ---- summary ----------------------------------------------------------------------------------


def check_steps(jobs: int) -> dict[str, str]:
    """Run every step's kernel here, live or simulated, in each of its dtypes: step -> "right" or
    what is wrong. With more than one job each step has a process of its own."""
    if jobs == 1:
        return {step: check_step(step) for step in steps()}
    with ProcessPoolExecutor(jobs) as pool:
        return dict(zip(steps(), pool.map(check_step, steps()), strict=True))


def check_step(step: str) -> str:
    """ "right", or what is wrong with the step's kernel."""
    try:
        code = source(f"{step}.cu")
        for dtype in header(code).dtypes:
            check_kernel(code, dtype=dtype.name)
        return "right"
    except Exception as error:  # whatever a broken kernel raises, the others still run
        return str(error)


def time_steps(verdicts: dict[str, str]) -> dict[str, Case]:
    """Time every right step on this GPU where it was predicted, with fewer rows if memory is short.

    What cannot be timed is left out, and its verdict in `verdicts` says why.
    """
    timed = {}
    now = Run(describe_device(), describe_versions(), utc_now(), bench.PROTOCOL)
    for step, verdict in verdicts.items():
        wanted = predicted_at(step)
        shape = wanted.shape if wanted.inner == 1 else (*wanted.shape, wanted.inner)
        ((rows, cols, *_),) = bench.shapes_that_fit([shape])
        if verdict == "right":
            try:
                at = replace(wanted, rows=rows, cols=cols)
                times = bench.measure_steps(at, [step])[step]
                timed[step] = Case.of(times, step, bench.problem_of(step, at), now)
            except Failure as error:
                verdicts[step] = f"right, not timed: {error}"
    return timed


def summary_table(
    verdicts: Mapping[str, str], where: str, now: Mapping[str, Case] | None = None
) -> str:
    """A line per step: where it was predicted, its recorded fraction of a copy's bandwidth, that of
    the case that was just timed on this GPU (`now`), and this machine's verdict."""
    timed = now or {}
    rows = [["step", "rows x columns", "recorded", *(["here", "GB/s"] if timed else [])]]
    for step in verdicts:
        case = timed.get(step)
        cells = [step, (case.at if case else predicted_at(step)).place()]
        if has_record(step):
            record = load_record(step)
            cells += [f"{record.headline.share:.3f}{'' if record.is_current() else '*'}"]
        else:
            cells += ["not yet"]
        if timed:
            cells += [f"{case.share:.3f}", f"{case.gbps:.0f}"] if case else ["-", "-"]
        rows.append(cells)
    ends = [f"kernel {where}", *(verdict.splitlines()[0] for verdict in verdicts.values())]
    title = "Fractions of the bandwidth of a copy, or of the operation's baseline (docs/results.md)"
    table = [f"{line}  {end}" for line, end in zip(aligned(rows), ends, strict=True)]
    earlier = ["* an earlier version of the kernel"] if "*" in "".join(table) else []
    return "\n".join(["", title, *table, *earlier])


if __name__ == "__main__":
    sys.exit(main())
