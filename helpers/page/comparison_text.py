"""The comparison with other libraries as Markdown for docs/comparison.md, which explains the words:
softmax, and fused and related operations."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..catalogue.store import REFERENCE_GPU, folder_of
from ..measure.baselines import BASELINES, TWO_KERNELS, title
from ..measure.comparison import (
    DTYPES,
    OLDER,
    TOLERANCE,
    VERDICTS,
    Comparison,
    Unseen,
    around_cases,
    compared,
    comparison_cases,
    comparison_origin,
    load_comparisons,
    load_unseen,
    versions_of,
)
from ..measure.pipelines import STATES, Pipeline, load_pipelines, pipeline_cases
from ..problem.shapes import ALONE, COMPARED_TABLE, GROUPS, compared_family, group_of, name_of
from ..simt.words import counted
from .rich import markdown_table, named

COUNTS = ["ahead", "level", "slower", "lost", "not supported by us"]  # titles of VERDICTS
SIZE_CLASSES = {  # name -> limit of x in bytes
    "x below 16 MB": 16e6,
    "x of 16 to 250 MB": 250e6,
    "x of 250 MB and more": math.inf,
}


# ---- the blocks of docs/comparison.md ----------------------------------------------------------


def comparison_block(pictures: Mapping[str, Path]) -> str:
    """The comparison of softmax: a picture of the speedups per dtype, the verdicts by family of
    shapes, the baselines, and the pipelines."""
    by_dtype = {dtype: comparison_cases(dtype) for dtype in DTYPES}
    cases = [case for some in by_dtype.values() for case in some]
    families = {
        f"{family}, {dtype}": [case for case in some if compared_family(case.shape) == family]
        for family in COMPARED_TABLE
        for dtype, some in by_dtype.items()
    }
    chains = {dtype: pipeline_cases(dtype) for dtype in DTYPES}
    now = versions_of(load_comparisons())  # those that `comparison_origin` says
    older = sum(compared(case.run.versions) != now for case in cases)
    lines = [
        *(
            f"![Speedup over the best baseline, over rows and columns, {dtype}]({named(path)})"
            for dtype, path in pictures.items()
            if by_dtype[dtype]
        ),
        "",
        *tables(cases, families, chains),
        "",
        f"The comparison was {comparison_origin()}; {older} of {counted(len(cases), 'case')} with "
        f"other versions. [Every case, a line each]({named(every_case_path())})",
    ]
    return "\n".join(lines)


def around_block() -> str:
    """The same for the other operations, alone and in pipelines."""
    cases, chains = around_cases(load_comparisons()), by_operation(load_pipelines())
    chains.pop(ALONE, None)
    both = [f"- {line}" for line in one_kernel_lines(cases)]
    return "\n".join([*tables(cases, by_operation(cases), chains), "", *both])


def tables(cases: Sequence[Comparison], groups: Mapping, chains: Mapping) -> list[str]:
    """The verdicts on cases by group, the losses, the baselines, and the pipelines by group."""
    return [
        verdicts(cases),
        "",
        *verdict_table(groups),
        "",
        *baselines_table(cases),
        "",
        *(f"- {line}" for line in loss_lines(cases)),
        *[""] * any(case.verdict == "LOSS" for case in cases),
        "Back to back with producer and consumer kernels:",
        "",
        *pipeline_table(chains),
    ]


def unseen_block(picture: Path) -> str:
    """Softmax at problems drawn at random: the picture, the verdicts by the size of x, and each
    loss."""
    cases = load_unseen()
    image = f"![Speedup over the best baseline at problems drawn at random]({named(picture)})"
    table = verdict_table(by_size(cases))
    return "\n".join([image, "", *table, "", *(f"- {line}" for line in unseen_lines(cases))])


def unseen_groups_block() -> str:
    """The related operations at problems drawn at random: a table, then the losses."""
    groups = {name: cases for name in GROUPS if (cases := load_unseen(group=name))}
    cases = [case for group in groups.values() for case in group]
    losses = [f"- {line}" for line in [*loss_lines(cases), *one_kernel_lines(cases)]]
    return "\n".join([*verdict_table(groups), "", verdicts(cases), "", *losses])


def every_case_path() -> Path:
    return folder_of(REFERENCE_GPU) / "comparison.md"


def every_case() -> str:
    """A page with one line per case. Raises `FileNotFoundError` if nothing is recorded."""
    recorded = load_comparisons()
    lines = [
        "# The comparison, case by case",
        "",
        f"The comparison was {comparison_origin()}. [Comparison](../../../docs/comparison.md) "
        "explains the words. Beside the related operations, *of a copy* means of the bandwidth "
        f"baseline, a plain kernel that moves as many bytes. {OLDER}. ~: correct, but less precise "
        "than ours.",
    ]
    for name, cases in by_operation(recorded).items():
        lines += ["", f"## {name[:1].upper()}{name[1:]}", "", *case_table(cases)]
    return "\n".join([*lines, ""])


# ---- sentences ---------------------------------------------------------------------------------


def score(cases: Sequence[Comparison]) -> str:
    """ "113 cases: 101 ahead, 12 level"."""
    counts = Counter(case.verdict for case in cases)
    named = dict(zip(VERDICTS, [*COUNTS[:-1], VERDICTS[-1]], strict=True))
    words = [f"{counts[verdict]} {name}" for verdict, name in named.items() if counts[verdict]]
    return f"{counted(len(cases), 'case')}: {', '.join(words)}"


def verdicts(cases: Sequence[Comparison]) -> str:
    """How many cases are ahead, level and lost, the worst loss, and how many are out of date."""
    lost = [case.speedup for case in cases if case.verdict == "LOSS"]
    worst = f", the worst by {1 - min(lost):.1%}" if lost else ""
    changed = sum(not case.is_current() for case in cases)
    earlier = f" {changed} of them were timed with an earlier version or launch of our kernel."
    return f"{score(cases)}{worst}.{earlier * bool(changed)}"


def loss_lines(cases: Iterable[Comparison]) -> list[str]:
    """A sentence on each loss, the worst first."""
    lost = [case for case in cases if case.verdict == "LOSS"]
    return [
        f"Lost: {name_of(case.problem)}: {interval(case)} times as fast as "
        f"{title(case.best_baseline)}, with {case.step}: ours is at {case.share(case.step):.2f} "
        f"of a copy, the baseline at {case.share(case.best_baseline):.2f}."
        for case in sorted(lost, key=lambda case: case.speedup)
    ]


def one_kernel_lines(cases: Sequence[Comparison]) -> list[str]:
    """A sentence on the kernel that computes loss and gradient beside our two in sequence, if they
    were timed."""
    timed = [case for case in cases if TWO_KERNELS in case.timed]
    speedups = sorted((case.speedup_over(TWO_KERNELS), name_of(case.problem)) for case in timed)
    if not speedups:
        return []
    (least, at), *_, (most, _) = [speedups[0], *speedups]
    slower = sum(speedup.below(1) for speedup, _ in speedups)
    return [
        f"One kernel for the loss and its gradient is {least.value:.2f} ({at}) to "
        f"{most.value:.2f} times as fast as our two in sequence, and slower than them at {slower} "
        f"of {len(speedups)} problems. Two passes instead of three would make it 1.5 times."
    ]


def unseen_lines(cases: Sequence[Unseen]) -> list[str]:
    """Sentences on problems drawn at random: each loss, the number of each verdict, the baselines
    that failed, and what the tuned plans gain."""
    if not cases:
        return ["No problem of a draw is recorded: run make measure ARGS='comparison --drawn 200'."]
    seeds = ", ".join(dict.fromkeys(case.seed for case in cases))
    failed = Counter(title(name) for case in cases for name in case.unverified)
    gains = [case.gain for case in cases if case.step and case.gain]
    faster = sum(gain.above(1 + TOLERANCE) for gain in gains)
    slower = sum(gain.below(1 - TOLERANCE) for gain in gains)
    failures = ", ".join(f"{name} at {count}" for name, count in failed.items()) or "none"
    return [
        *loss_lines(cases),
        f"Drawn with the seed {seeds}: {verdicts(cases)}",
        f"Baselines that failed or were wrong, and at how many problems: {failures}.",
        f"At {counted(len(gains), 'problem')} a tuned plan replaces the rule's; it is more than "
        f"{TOLERANCE:.0%} faster at {faster} of them and slower at {slower}.",
    ]


def interval(case: Comparison) -> str:
    """Our speedup over the best baseline, with its interval."""
    speedup = case.speedup_over(case.best_baseline)
    return f"{speedup.value:.3f} ({speedup.low:.3f} to {speedup.high:.3f})"


# ---- tables ------------------------------------------------------------------------------------


def verdict_table(groups: Mapping[str, Sequence[Comparison]]) -> list[str]:
    """The verdicts of each group that has cases, the median of our fractions of copy bandwidth (or
    of the bandwidth baseline), and the smallest speedup."""
    rows = []
    for name, cases in groups.items():
        if not cases:
            continue
        counts = Counter(case.verdict for case in cases)
        ours = [case for case in cases if case.step]
        median = f"{statistics.median(case.share(case.step) for case in ours):.2f}" if ours else "-"
        least = min((one for one in ours if one.best_baseline), key=speedup_of, default=None)
        smallest = "-"
        if least:
            smallest = (
                f"{least.speedup:.3f}, {title(least.best_baseline)} at {least.problem.place()}"
            )
        rows.append([name, *(str(counts[one]) for one in VERDICTS), median, smallest])
    titles = ["", *COUNTS, "median", "smallest speedup"]
    return markdown_table(titles, rows)


def speedup_of(case: Comparison) -> float:
    return case.speedup


def baselines_table(cases: Sequence[Comparison]) -> list[str]:
    """How often each baseline was timed, how often it was the best, and why it was not timed in the
    other cases."""
    rows, best = [], Counter(case.best_baseline for case in cases)
    for name, baseline in BASELINES.items():
        reasons = Counter(
            re.sub(r":? at \(.*", "", case.unsupported[name])
            for case in cases
            if name in case.unsupported
        )
        told = "; ".join(f"{count}: {reason}" for reason, count in reasons.items())
        timed = sum(name in case.timed for case in cases)
        less = sum(case.precision(name) > 0 for case in cases)
        if timed or told:
            rows.append([baseline.title, *map(str, (timed, less, best[name])), told or "-"])
    return markdown_table(["", "timed", "less precise", "best of them", "not timed"], rows)


def case_table(cases: Iterable[Comparison]) -> list[str]:
    """One line per case: fractions of the bandwidth baseline, the speedup with its interval, the
    verdict."""
    rows = []
    words = dict(zip(VERDICTS, COUNTS, strict=True))
    for case in cases:
        ours, beside, speedup = ["-", "-"], ["-", "-"], "-"
        if case.step:
            ours = [f"`{case.step}`", share_cell(case, case.step) + case.marks]
        if best := case.best_baseline:
            less = "~" if case.precision(best) else ""
            beside = [title(best) + less, share_cell(case, best)]
        if case.step and case.best_baseline:
            speedup = interval(case).replace(" to ", "&nbsp;to&nbsp;")
        rows.append([case.problem.place(), *ours, *beside, speedup, words[case.verdict]])
    of = "of a copy"
    titles = ["rows x columns", "ours", of, "best baseline", of, "speedup", "verdict"]
    return markdown_table(titles, rows)


def share_cell(case: Comparison, name: str) -> str:
    """The fraction of a copy; for few rows also microseconds."""
    time = f" ({case.median_us(name):.2f} us)" if case.rows * case.cols < 2**24 else ""
    return f"{case.share(name):.2f}{time}"


def pipeline_table(groups: Mapping[str, Sequence[Pipeline]]) -> list[str]:
    """The verdicts of each group in each state, the number of cases that must be timed again beside
    other libraries, and the smallest saving."""
    rows = []
    for name, group in groups.items():
        for state in STATES:
            cases = [case for case in group if case.state == state]
            timed = [case for case in cases if case.against_best_baseline]
            counts = Counter(case.against_best_baseline for case in timed)
            least, saving = min(timed, key=gain_in_pipeline, default=None), "-"
            if least:
                place, best = least.problem.place(), title(least.best_baseline)
                saving = f"{gain_in_pipeline(least):+.1%}, {best} at {place}"
            again = str(len(cases) - len(timed))
            found = [str(counts[verdict]) for verdict in VERDICTS[:4]]
            rows.append([f"{name}, {state}", *found, again, saving])
    return markdown_table(["", *COUNTS[:4], "to be timed again", "smallest saving"], rows)


def gain_in_pipeline(case: Pipeline) -> float:
    return case.gain(case.chosen, case.best_baseline).value


# ---- groups ------------------------------------------------------------------------------------


def by_operation(cases: Iterable[Comparison | Pipeline]) -> dict[str, list]:
    """The cases of softmax alone and of each group of operations that has any."""
    groups: dict[str, list] = {name: [] for name in (ALONE, *GROUPS)}
    for case in cases:
        groups.setdefault(group_of(case.problem), []).append(case)
    return {name: group for name, group in groups.items() if group}


def by_size(cases: Iterable[Unseen]) -> dict[str, list[Unseen]]:
    """The cases by the size of x; see `SIZE_CLASSES`."""
    groups: dict[str, list[Unseen]] = {name: [] for name in SIZE_CLASSES}
    for case in cases:
        size = case.rows * case.problem.row_bytes
        groups[next(name for name, most in SIZE_CLASSES.items() if size < most)].append(case)
    return groups
