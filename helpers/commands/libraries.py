"""The campaigns of `make measure` that time other libraries beside our kernels."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..catalogue import store
from ..catalogue.store import same_meaning
from ..measure import baselines, bench, pipeline_timer, side_by_side
from ..measure import pipelines as pipelined
from ..measure.campaign import Campaign, add_shared_options
from ..measure.comparison import (
    DRAWS,
    DTYPES,
    REASONS,
    Comparison,
    Unseen,
    order,
    why_again,
)
from ..measure.pipelines import Pipeline
from ..measure.side_by_side import ComparisonTask, Draw, PipelineTask
from ..page.comparison_text import unseen_lines
from ..problem.problem import Problem
from ..problem.shapes import (
    ALONE,
    COMPARED_FAMILIES,
    COMPARED_SHAPES,
    GROUPS,
    PIPELINE_SHAPES,
    compared_family,
    compared_shapes,
    drawn,
    entries,
    linked,
)
from ..run.bound import load
from ..simt.words import at_least, counted, rows_x_cols


def begun(kind: type, protocol: store.Protocol, options: argparse.Namespace) -> Campaign:
    """A campaign with the versions of the baselines, whose caches are set; records of another
    protocol of the same version are dropped."""
    side_by_side.use_cache()
    campaign = Campaign(kind, protocol, options, baselines.versions())
    campaign.known = [one for one in campaign.known if same_meaning(one.run, protocol)]
    return campaign


def shared_options(parser: argparse.ArgumentParser, groups: Sequence[str], **asked) -> None:
    """The options of both campaigns; `asked` is how --baselines are counted and described."""
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    help = "of the fused and related operations these alone, and no softmax: "
    help += "; ".join(GROUPS) + "".join(f"; {name}" for name in groups)
    choices = [*GROUPS, *groups]
    parser.add_argument("--groups", nargs="+", choices=choices, metavar="GROUP", help=help)
    known = [*baselines.BASELINES]
    parser.add_argument("--baselines", default=known, choices=known, **asked)
    add_shared_options(parser, "minutes", "warm", "jobs", "fresh")


# ---- the comparison -----------------------------------------------------------------------------

ALL, NONE = "all", "none"  # of the groups


def comparison_options(parser: argparse.ArgumentParser) -> None:
    shared_options(parser, (ALL, NONE), nargs="+")
    parser.add_argument("--shapes", nargs="+", type=rows_x_cols, metavar="ROWSxCOLS", default=())
    parser.add_argument("--families", nargs="+", choices=COMPARED_FAMILIES, default=())
    help = f"N problems drawn at random instead, of {ALONE} or of each group"
    parser.add_argument("--drawn", type=at_least(1), metavar="N", help=help)
    help = "of the draw: the commit that froze the tuned plans"
    parser.add_argument("--seed", type=hexadecimal, metavar="COMMIT", default="0", help=help)


def hexadecimal(text: str) -> str:
    """The text, if it is a hexadecimal number. Raises `ValueError`, as `argparse` expects."""
    int(text, 16)
    return text


def comparison(options: argparse.Namespace) -> int:
    """Compare our kernels with other libraries.

    At each shape our kernel, every baseline that supports the shape, and copies are timed in turn:
    softmax first, then fused and related operations. Shapes whose kernel, baselines or versions
    differ from the record are compared, most valuable first. Finally, baselines that tune anew in
    each process are timed in further processes. A baseline that does not support a shape, fails or
    is wrong is left out there, with the reason. A shape at which our kernel is wrong or fails is
    not recorded.

    `--drawn N` compares N problems drawn at random instead, with the rule's plan beside ours where
    the table of tuned plans has another one, and prints the losses first.
    """
    kind = Unseen if options.drawn else Comparison
    campaign = begun(kind, bench.PROTOCOL, options)
    problems, run = problems_asked_for(options), campaign.run
    if options.drawn:  # a draw replaces one with another seed
        campaign.known = [one for one in campaign.known if one.seed == options.seed]
    campaign.order = {one: n for n, one in enumerate(problems)} if options.drawn else order()

    def known() -> dict[Problem, Comparison]:
        return {case.problem: case for case in campaign.known if case.problem in problems}

    def reasons(cases: dict[Problem, Comparison]) -> dict[Problem, str]:
        """Problem -> one of `REASONS` to compare it."""
        why = {o: why_again(cases.get(o), options.baselines, run.versions) for o in problems}
        return {problem: reason for problem, reason in why.items() if reason}

    def to_draw() -> list[Draw]:
        return [Draw(case, names) for case in known().values() if (names := case.to_draw())]

    why = reasons({} if options.fresh else known())
    missing = [*why] if options.drawn else sorted(why, key=lambda one: worth(one, why[one]))
    counts = ", ".join(f"{[*why.values()].count(reason)} {reason}" for reason in REASONS)
    total = counted(len(problems), "case")
    print(f"{len(missing)} of {total} to compare on {run.device['name']}: {counts}")
    if options.warm:
        seconds = campaign.clock.left_s / 3
        side_by_side.warm_up(missing, options.baselines, options.warm, seconds)
    seed = options.seed if options.drawn else ""
    names = tuple(options.baselines)
    failed = campaign.measure([ComparisonTask(one, run, names, seed) for one in missing])
    for number in range(2, DRAWS + 1):
        tasks = [draw for draw in to_draw() if len(draw.case.draws) == number - 2]
        if tasks and campaign.clock.left_s >= 0:
            with side_by_side.tuned_anew(number):
                failed += campaign.measure(tasks, apart=True)
    left, draws = len(reasons(known())), len(to_draw())
    if left or draws:
        print(f"left: {counted(left, 'case')}, and {draws} to draw again; run it again to go on")
    status = campaign.end(failed)
    if options.drawn:
        print(*unseen_lines([one for one in campaign.known if one.problem in problems]), sep="\n")
    return status


def problems_asked_for(options: argparse.Namespace) -> list[Problem]:
    """The problems that the options name or draw and that fit in this GPU's memory."""
    return bench.that_fit(problems_drawn(options) if options.drawn else problems_named(options))


def problems_drawn(options: argparse.Namespace) -> list[Problem]:
    """Problems of softmax or of the groups that are named, drawn at random, each once."""
    names = [*GROUPS] if ALL in (options.groups or ()) else options.groups or [NONE]
    names = [ALONE if name == NONE else name for name in names]
    found = (one for name in names for one in drawn(options.drawn, options.seed, name))
    return [*dict.fromkeys(found)]


def problems_named(options: argparse.Namespace) -> list[Problem]:
    """Softmax unless groups are named, the other operations unless shapes or families of softmax
    are."""
    problems, families = [], options.families or COMPARED_FAMILIES
    groups = options.groups or ([NONE] if options.shapes or options.families else [ALL])
    wanted = {shape for family in families for shape in COMPARED_FAMILIES[family]}
    for dtype in options.dtypes if not options.groups or NONE in groups else ():
        shapes = options.shapes or [shape for shape in compared_shapes(dtype) if shape in wanted]
        problems += [Problem(*shape, dtype) for shape in shapes]
    if NONE not in groups:
        others = entries([*GROUPS] if ALL in groups else groups)
        problems += [problem for problem in others if problem.dtype in options.dtypes]
    return problems


def worth(problem: Problem, why: str) -> tuple:
    """The order of the comparison: unknown problems, then changed kernels of ours, then baselines;
    within each, the families of softmax in order, then the other operations."""
    if not problem.plain:
        return REASONS.index(why), len(COMPARED_FAMILIES) + 1, 0
    shape = problem.shape
    family = [*COMPARED_FAMILIES, ""].index(compared_family(*shape))
    place = COMPARED_SHAPES.index(shape) if shape in COMPARED_SHAPES else 0
    return REASONS.index(why), family, place


# ---- pipelines ----------------------------------------------------------------------------------


def pipelines_options(parser: argparse.ArgumentParser) -> None:
    def step(text: str) -> str:
        try:
            load(text)
        except (FileNotFoundError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    shared_options(parser, (), nargs="*", help="only these baselines; none if nothing follows")
    parser.add_argument(
        "--shapes", nargs="+", type=rows_x_cols, default=PIPELINE_SHAPES, metavar="ROWSxCOLS"
    )
    help = "also these steps, variants or trials, where they take the shape"
    parser.add_argument("--steps", nargs="+", type=step, default=(), metavar="STEP", help=help)


def pipelines(options: argparse.Namespace) -> int:
    """Time softmax between a kernel that writes x and one that reads y.

    At each shape the kernel that `choose` returns, its variants (plain instead of streaming
    accesses, no L2 hint, an ordinary launch), every baseline that supports the shape, and a copy
    are timed in turn, with x in the L2 and evicted from it. Other operations are timed with the two
    best baselines of the comparison. A baseline that does not support a shape, fails or is wrong is
    left out there, with the reason. A shape at which our kernel is wrong or fails is not recorded.
    Apart from the baselines it needs only CuPy, cuda-bindings, NumPy and ml_dtypes.
    """
    campaign = begun(Pipeline, pipeline_timer.PROTOCOL, options)
    campaign.order = pipelined.order()
    wanted = [*tasks_alone(options, campaign), *tasks_around(options, campaign)]
    tasks = [task for task in wanted if options.fresh or not task.is_done(campaign.known)]
    device = campaign.run.device["name"]
    print(f"{len(tasks)} of {counted(len(wanted), 'shape')} to time on {device}")
    if options.warm:
        used = {name for task in tasks for name in task.baselines}
        names = [name for name in options.baselines if name in used]
        problems, seconds = [task.problem for task in tasks], campaign.clock.left_s / 3
        side_by_side.warm_up(problems, names, options.warm, seconds)
    return campaign.end(campaign.measure(tasks))


def tasks_alone(options: argparse.Namespace, campaign: Campaign) -> list[PipelineTask]:
    """Softmax at the shapes that fit this GPU's memory, unless groups are named."""
    shapes = () if options.groups else options.shapes
    problems = bench.that_fit(
        [Problem(*shape, dtype) for dtype in options.dtypes for shape in shapes]
    )
    names, steps = tuple(options.baselines), tuple(options.steps)
    return [PipelineTask(one, campaign.run, names, steps=steps) for one in problems]


def tasks_around(options: argparse.Namespace, campaign: Campaign) -> list[PipelineTask]:
    """The other operations, unless shapes of softmax are named: the groups, each with the best
    baselines of the comparison, or with all requested ones if there is no comparison."""
    if tuple(options.shapes) != PIPELINE_SHAPES and not options.groups:
        return []
    try:
        compared = store.read_if_any(Comparison, campaign.folder)
    except ValueError:
        compared = []
    tasks = []
    for problem in linked(*([options.groups] if options.groups else [])):
        best = pipelined.best_baselines(compared, problem)
        names = [name for name in options.baselines if name in best or not best]
        if problem.dtype in options.dtypes:
            tasks.append(PipelineTask(problem, campaign.run, tuple(names)))
    return tasks
