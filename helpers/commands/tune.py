"""Search a faster plan for a shape on this machine's GPU: `make tune ARGS="8192x50257"`.

    python -m helpers.commands.tune 65536x4096 1x1048576 --dtypes float32 bfloat16 --minutes 10
    python -m helpers.commands.tune 4096x8192 --operation softmax_backward --features LOG=1
    python -m helpers.commands.tune 64x512x1024
    python -m helpers.commands.tune --show

For each shape and dtype it tries what the headers leave open of the kernels that suit it best, and
keeps what is right and faster than the rule's plan beyond the spread in mine/plans, where `choose`
finds it, a line per plan: delete the line to drop a plan. Three sizes are outer x dim x inner:
softmax along the middle. A shape is kept as soon as it is done. At Ctrl-C the best so far is still
checked and kept, at a second one it is not.
SOFTMAX_PLANS=0 has `choose` use no such plan.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time

from ..base import gpu
from ..catalogue.dispatch import RANKINGS, as_ranked, best, candidates, out_of_date
from ..catalogue.store import Run, utc_now
from ..catalogue.tuned import Tuned, plans_path, read_plans, tuned_gpus, write_plans
from ..measure import bench, campaign
from ..measure.samples import ratio
from ..measure.tuning import GridPoint, Lab, Search
from ..problem.operations import SOFTMAX
from ..problem.problem import DTYPES, Problem
from ..problem.shapes import name_of
from ..simt.words import at_least

FILES = 3  # kernels that a shape is tried with
FINALISTS = 4
ROUNDS = (0, 0, 0)  # by the full protocol: one chooses, two confirm
SEARCHED = 0.65  # of a shape's time; the rest is for holding the best against the rule's plan


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status: 1 if a shape cannot be timed."""
    began = time.perf_counter()
    options = parse_arguments(arguments)
    try:
        todo = asked_for(options)
        if options.show:
            return show()
        if not gpu.has_gpu():
            raise ValueError("plans are tuned on a GPU, and CuPy finds none here")
        read_plans(gpu.gpu_folder(gpu.gpu_name()))  # raises before anything is timed
    except (FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    todo = bench.that_fit(todo)
    run, failed = Run(gpu.describe_device(), gpu.describe_versions(), utc_now(), bench.PROTOCOL), 0
    with Lab() as lab:
        for number, problem in enumerate(todo):
            now = time.perf_counter()
            share = (began + 60 * options.minutes - now) / (len(todo) - number)
            try:
                tune(problem, lab, now + SEARCHED * share, run)
            except (campaign.Failure, ValueError) as failure:  # ValueError: no kernel takes it
                failed += 1
                print(f"{name_of(problem)}: {failure}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def asked_for(options: argparse.Namespace) -> list[Problem]:
    """What is to be tuned. Raises `ValueError` naming a feature that the operation has not."""
    of = {"operation": options.operation, "features": tuple(options.features)}
    every = itertools.product(options.shapes, options.dtypes)
    return [as_ranked(Problem(r, c, dtype, inner, **of)) for (r, c, inner), dtype in every]


def tune(problem: Problem, lab: Lab, until: float, run: Run) -> None:
    """Search at one problem until that time, and keep what is faster. Raises `Failure` if the
    rule's plan cannot be timed; after Ctrl-C `KeyboardInterrupt`, when what was found is kept."""
    folder = gpu.gpu_folder(run.device["name"])
    plans = {plan.problem: plan for plan in read_plans(folder)}

    def say() -> None:
        print(
            f"  {search.left():.0f} s left to search: {len(search.scores)} timed, "
            f"{sum(search.passed.values())} passed over, best at first sight {search.best}, "
            f"{1 / search.scores[search.best]:.3f} times as fast as the rule's plan",
            flush=True,
        )

    first = [*candidates(problem, run.gpu, FILES), best(problem, run.gpu)]
    first += [plans[problem].trial] if problem in plans else []
    starts = [*dict.fromkeys(first)]
    left = lambda: until - time.perf_counter()  # noqa: E731
    search = Search(problem, run.gpu, starts, lab, True, left, say)
    print(f"{name_of(problem)}: the rule's plan is {search.rule}", flush=True)
    stopped = None
    try:
        search.run()
    except KeyboardInterrupt as interrupt:
        stopped = interrupt
        print("  stopping: the best so far is checked; Ctrl-C again leaves it", flush=True)
    trial = search.verdict(ROUNDS, FINALISTS, 1)
    reached = ", ".join(f"{reason} {count}" for reason, count in search.passed.most_common())
    print(f"  {len(search.scores)} timed; passed over: {reached or 'none'}")
    if trial:
        ranges = (problem.rows, problem.rows), (problem.cols, problem.cols), (problem.dtype,)
        plans[problem] = search.line(GridPoint(problem, *ranges), trial, run)
        write_plans(folder, [*plans.values()])
        print(f"  {described(plans[problem])}\n  kept in {plans_path(folder)}", flush=True)
    else:
        print(f"  nothing is faster than {search.rule} beyond the spread", flush=True)
    if stopped:
        raise stopped


def described(plan: Tuned) -> str:
    """A plan in one line."""
    times, share = (ratio(us, plan.trial_us) for us in (plan.rule_us, plan.copy_us))
    return (
        f"{plan.trial}: {times.value:.3f} ({times.low:.3f} to {times.high:.3f}) times as fast as "
        f"{plan.rule}, {share.value:.3f} of a copy"
    )


def show() -> int:
    """Print what was tuned, on every GPU."""
    for folder in tuned_gpus():
        plans = read_plans(folder)
        print(f"{plans_path(folder)}: {len(plans)} plans")
        for plan in plans:
            print(f"  {name_of(plan.problem)}, {plan.run.utc[:10]}: {described(plan)}")
            if reason := out_of_date(plan, plan.run.gpu):
                print(f"    not used: {reason}")
    if not tuned_gpus():
        print("nothing was tuned yet")
    return 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    def shape(text: str) -> tuple[int, int, int]:
        """Rows, columns and the elements between these."""
        rows, cols, *inner = map(at_least(1), text.split("x"))
        (inner,) = inner or [1]
        return rows * inner, cols, inner

    def feature(text: str) -> tuple[str, int | str]:
        name, value = text.split("=")
        return name, int(value) if value.isdecimal() else value

    parser = argparse.ArgumentParser(
        prog="python -m helpers.commands.tune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shapes", nargs="*", type=shape, metavar="ROWSxCOLS")
    parser.add_argument("--operation", choices=[*RANKINGS], default=SOFTMAX.name)
    help = "what is computed beside it: MASK=causal, LOG=1"
    parser.add_argument(
        "--features", nargs="+", type=feature, default=[], metavar="NAME=VALUE", help=help
    )
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=[DTYPES[0]])
    help = "for all shapes together (5)"
    parser.add_argument("--minutes", type=campaign.minutes, default=5.0, metavar="M", help=help)
    parser.add_argument("--show", action="store_true", help="print what was tuned; time nothing")
    options = parser.parse_args(arguments)
    if not (options.shapes or options.show):
        parser.error("name a shape, as in 8192x50257")
    return options


if __name__ == "__main__":
    sys.exit(main())
