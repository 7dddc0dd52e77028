"""The comparison with other libraries as Markdown for docs/comparison.md: softmax, and fused and
related operations."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ..catalogue.store import REFERENCE_GPU, folder_of
from ..measure.baselines import BASELINES, title
from ..measure.comparison import (
    DTYPES,
    ROOM,
    SLOWER,
    TOLERANCE,
    VERDICTS,
    Comparison,
    Unseen,
    around_cases,
    compared,
    comparison_cases,
    comparison_origin,
    explained_marks,
    load_comparisons,
    load_unseen,
    versions_of,
)
from ..measure.pipelines import TIES, Pipeline, load_pipelines, pipeline_cases
from ..measure.pipelines import around_cases as around_chains
from ..problem.shapes import (
    COMPARED_TABLE,
    GROUPS,
    compared_family,
    compared_shapes,
    group_of,
    name_of,
)
from ..simt.words import counted
from .rich import named

WORDS = {"LOSS": "lost"}  # of a verdict
LESS_PRECISE_MARK = "~"  # after the name of a baseline
# Sizes of x in bytes by which fractions of copy bandwidth are told apart, each with the fraction
# that most problems with `MANY_ROWS` should reach.
SIZE_CLASSES = ((0.0, 16e6, None), (16e6, 250e6, 0.95), (250e6, math.inf, 0.97))
MANY_ROWS = 1000
MUCH = 0.9  # the rule alone should be no slower than this, as a fraction of the table's speed


def comparison_block(pictures: Mapping[str, Path]) -> str:
    """The comparison of softmax: a picture of the speedups per dtype, the verdicts by family of
    shapes, the baselines, and the pipelines."""
    everything = recorded_by(load_comparisons)
    recorded = [case for case in everything if case.problem.plain]
    if not recorded:
        return "No comparison with them is recorded yet."
    shown = cases_alone(recorded)
    lines = [
        f"![Speedup over the best baseline, over rows and columns, {dtype}]({named(path)})"
        for dtype, path in pictures.items()
        if comparison_cases(dtype)
    ]
    lines += [
        "",
        f"{verdicts(shown)} The kernels were developed on these shapes.",
        "",
        *family_table(recorded),
        "",
    ]
    lines += [*baselines_table(shown), ""]
    explained = "".join(f" {line}." for line in explained_marks(shown))
    now = versions_of(everything)  # those that `comparison_origin` says
    alone = {dtype: recorded_by(partial(pipeline_cases, dtype)) for dtype in DTYPES}
    older = sum(compared(case.run.versions) != now for case in shown)
    others = f"; {older} of {counted(len(shown), 'case')} with other versions" if older else ""
    lines += [
        f"The comparison was {comparison_origin()}{others}.{added_later(shown)} All kernels are "
        f"launched ordinarily. *Ahead* and *lost* mean a difference of more than {TOLERANCE:.0%} "
        "that is also beyond run-to-run variation, the 95% bootstrap interval of the ratio of "
        f"medians. *{SLOWER.capitalize()}* means slower beyond that variation, but not certainly "
        f"by more than {TOLERANCE:.0%}; *level* is the rest. If the best baseline is below {ROOM} "
        "of a copy, being slower than it by any margin beyond that variation counts as lost."
        f"{explained}",
        "",
        PRECISION,
        "",
        *pipelines(BACK_TO_BACK, alone),
        f"[Every case, a line each]({named(every_case_path())})",
    ]
    return "\n".join(lines)


def verdicts(cases: Sequence[Comparison]) -> str:
    """How many cases are ahead, level and lost, and how many are out of date."""
    changed = sum(not case.is_current() for case in cases)
    earlier = f" {changed} of them were timed with an earlier version or launch of our kernel."
    return score(cases) + earlier * bool(changed)


def unseen_block(picture: Path) -> str:
    """The comparison at problems drawn at random: the picture, then the losses first."""
    cases = recorded_by(load_unseen)
    if not cases:
        return "No problem drawn at random is recorded yet."
    image = f"![Speedup over the best baseline at problems drawn at random]({named(picture)})"
    lines = [f"- {line[:1].upper()}{line[1:]}." for line in unseen_lines(cases)]
    return "\n".join([image, "", *lines])


def unseen_lines(cases: Sequence[Unseen]) -> list[str]:
    """Sentences on problems drawn at random: each loss, the number of each verdict, the fractions
    of copy bandwidth by the size of x, and what the rule alone would lose."""
    lines, supported = loss_lines(cases), [case for case in cases if case.step]
    counts = Counter(case.verdict for case in cases)
    words = ", ".join(f"{name} {counts[name]}" for name in VERDICTS)
    seeds = ", ".join(dict.fromkeys(case.seed for case in cases))
    lines.append(f"of {counted(len(cases), 'problem')} drawn at random (seed {seeds}): {words}")
    failed = Counter(name for case in cases for name in case.unverified)
    unverified = sum(bool(case.unverified) for case in cases)
    named = ", ".join(f"{title(name)} at {failed[name]}" for name in failed) or "none"
    lines.append(f"a baseline failed or was wrong at {unverified}: {named}")
    for low, high, aim in SIZE_CLASSES:
        of_size = [case for case in supported if low <= case.rows * case.problem.row_bytes < high]
        lines += _fractions(of_size, low, high, aim)
    tuned = [case for case in supported if case.gain]
    much = [case for case in tuned if case.gain.above(1 / MUCH)]
    lines.append(
        f"the table replaces the rule's plan at {len(tuned)}: it is over {TOLERANCE:.0%} faster at "
        f"{sum(case.gain.above(1 + TOLERANCE) for case in tuned)}, slower at "
        f"{sum(case.gain.below(1 - TOLERANCE) for case in tuned)}; the rule alone would be over "
        f"{1 - MUCH:.0%} slower at {len(much)}"
    )
    for name, which in (("most", max), ("least", min)):
        if tuned:
            case = which(tuned, key=lambda case: case.gain.value)
            lines.append(f"it gains {name} at {name_of(case.problem)}: {case.gain.value:.3f}")
    return lines


def loss_lines(cases: Sequence[Unseen]) -> list[str]:
    """A sentence on each loss, the worst first."""
    lines = []
    for case in sorted(
        (one for one in cases if one.verdict == "LOSS"), key=lambda one: one.speedup
    ):
        speedup, name = case.speedup_over(case.best_baseline), case.best_baseline
        lines.append(
            f"lost: {name_of(case.problem)}: {speedup.value:.3f} ({speedup.low:.3f} to "
            f"{speedup.high:.3f}) times as fast as {title(name)}, with {case.step}; "
            f"{case.share(case.step):.2f} and {case.share(name):.2f} of a copy"
        )
    return lines


def _fractions(cases: Sequence[Unseen], low: float, high: float, aim: float | None) -> list[str]:
    if not cases:
        return []
    shares = {case.problem: case.share(case.step) for case in cases}
    worst, median = min(shares, key=shares.get), statistics.median(shares.values())
    upper = f" to {high / 1e6:g}" if high < math.inf else ""
    line = f"x of {low / 1e6:g}{upper} MB{'' if upper else ' and more'}: {len(cases)}, median "
    line += f"{median:.3f} of a copy, worst {shares[worst]:.3f} at {name_of(worst)}"
    many = [problem for problem in shares if problem.rows >= MANY_ROWS]
    if aim:
        reached = sum(shares[problem] >= aim for problem in many)
        line += f"; {aim} reached at {reached} of {len(many)} with {MANY_ROWS} rows or more"
    return [line]


def unseen_groups_block() -> str:
    """The related operations at problems drawn at random: a table, then the losses."""
    groups = {name: recorded_by(partial(load_unseen, group=name)) for name in GROUPS}
    groups = {name: cases for name, cases in groups.items() if cases}
    if not groups:
        return "No problem drawn at random is recorded yet."
    lines = ["| | problems | ahead | level | slower | lost | not supported by us | median |"]
    lines.append("|---" * 8 + "|")
    for name, cases in groups.items():
        counts = Counter(case.verdict for case in cases)
        found = [str(counts[verdict]) for verdict in VERDICTS]
        shares = [case.share(case.step) for case in cases if case.step]
        median = f"{statistics.median(shares):.2f}" if shares else "-"
        lines.append(f"| {name} | {len(cases)} | {' | '.join(found)} | {median} |")
    everything = [case for cases in groups.values() for case in cases]
    earlier = sum(not case.is_current() for case in everything)
    lines += ["", f"{earlier} of them were timed with an earlier version or launch of our kernel."]
    losses = loss_lines(everything)
    return "\n".join([*lines, "", *(f"- {line[:1].upper()}{line[1:]}." for line in losses)])


def recorded_by(load: Callable[[], list]) -> list:
    """Return what `load` returns, or nothing if nothing is recorded yet."""
    try:
        return load()
    except FileNotFoundError:
        return []


def cases_alone(recorded: Sequence[Comparison]) -> list[Comparison]:
    """The cases of softmax alone, in the order of the table of shapes."""
    known = {(case.shape, case.dtype): case for case in recorded if case.problem.plain}
    asked = [(shape, dtype) for dtype in DTYPES for shape in compared_shapes(dtype)]
    return [known[one] for one in asked if one in known]


def every_case_path() -> Path:
    return folder_of(REFERENCE_GPU) / "comparison.md"


def every_case() -> str:
    """A page with one line per case. Raises `FileNotFoundError` if nothing is recorded."""
    recorded = load_comparisons()
    lines = [
        "# The comparison, case by case",
        "",
        f"The comparison was {comparison_origin()}.{added_later(recorded)} [Comparison]"
        "(../../../docs/comparison.md) explains the words. Beside the related operations no "
        "second copy was timed: a fraction above 1.00 there is one of the *bandwidth baseline*, a "
        "plain kernel that moves as many bytes.",
        *(f"{line}." for line in explained_marks(recorded)),
        *less_precise_mark(recorded),
    ]
    shown = cases_alone(recorded)
    for dtype in DTYPES:
        lines += ["", f"## Softmax in {dtype}", ""]
        lines += case_table([case for case in shown if case.dtype == dtype])
    for name in GROUPS:
        cases = [case for case in around_cases(recorded) if group_of(case.problem) == name]
        for dtype in DTYPES:
            if of_dtype := [case for case in cases if case.dtype == dtype]:
                lines += ["", f"## {name.capitalize()} in {dtype}", ""]
                lines += case_table(of_dtype, around=True)
    return "\n".join([*lines, ""])


def score(shown: Sequence[Comparison]) -> str:
    """One sentence: the number of wins, and each loss with its baseline and factor."""
    verdicts = Counter(case.verdict for case in shown)
    lost = [
        f"{where(case)} {case.dtype} to {title(case.best_baseline)} by {1 - case.speedup:.1%}"
        for case in shown
        if case.verdict == "LOSS"
    ]
    named = f" ({'; '.join(lost)})" if lost else ""
    return f"Of {counted(len(shown), 'case')}: {in_words(verdicts, VERDICTS)}{named}."


def in_words(verdicts: Mapping[str, int], names: Iterable[str]) -> str:
    """Verdicts with their numbers: "3 ahead, 1 lost"."""
    return ", ".join(f"{n} {WORDS.get(name, name)}" for name in names if (n := verdicts[name]))


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    head, *lines = (f"| {' | '.join(cells)} |" for cells in (titles, *rows))
    return [head.replace("|  |", "| |"), "|---" * len(titles) + "|", *lines]


PRECISION = (
    "A result is *less precise* if it differs from the fp64 reference by more than our kernels may "
    "(the usual error of fp32 arithmetic, and half an ulp of a 16-bit output) and 0.01% of the "
    "value beyond that, but by at most one ulp of the output type more than our kernels may. This "
    "occurs only with 16-bit outputs. Such a baseline is timed and marked. A result with a larger "
    "error, or with a NaN that does not belong there, is wrong, and its baseline is not timed."
)


def less_precise_mark(cases: Sequence[Comparison]) -> list[str]:
    """A line that explains `LESS_PRECISE_MARK`, if any best baseline has it."""
    marked = any(case.best_baseline and case.precision(case.best_baseline) for case in cases)
    return [f"{LESS_PRECISE_MARK}: correct, but less precise than ours."] * marked


def added_later(cases: Sequence[Comparison]) -> str:
    """A sentence for the baselines of each later run; "" if there is none."""
    found = Counter(
        (
            title(name),
            later.utc[:10],
            later.versions.get("driver", ""),
            later.versions.get(name, ""),
        )
        for case in cases
        for later in case.added
        for name in later.samples_us
        if name in BASELINES
    )
    return "".join(
        f" {name} was added at {counted(count, 'shape')} on {day}, beside our kernel and a copy "
        f"(driver {driver}{f', version {version}' if version else ''})."
        for (name, day, driver, version), count in found.items()
    )


def where(case: Comparison | Pipeline) -> str:
    """The shape, after its group if it is not softmax alone."""
    sizes = case.problem.place(dtype=False)
    return sizes if case.problem.plain else f"{group_of(case.problem)} at {sizes}"


BY_DTYPE = [title for dtype in DTYPES for title in (dtype, "smallest speedup")]


def family_table(recorded: Sequence[Comparison]) -> list[str]:
    """The number of cases per family that are ahead, level, lost and unsupported."""
    known = {(case.shape, case.dtype): case for case in recorded}
    rows = []
    for family in (*COMPARED_TABLE, "all"):
        cells = []
        for dtype in DTYPES:
            shapes = [s for s in compared_shapes(dtype) if family in (compared_family(*s), "all")]
            cases = [known[shape, dtype] for shape in shapes if (shape, dtype) in known]
            cells += verdict_cells(cases, len(shapes) - len(cases))
        rows.append([family, *cells])
    return markdown(["shapes", *BY_DTYPE], rows)


def verdict_cells(cases: Sequence[Comparison], absent: int = 0) -> list[str]:
    """The verdicts on cases, the number of `absent` ones, and the smallest speedup."""
    verdicts = Counter(case.verdict for case in cases) + Counter({"not compared": absent})
    led = [case for case in cases if case.best_baseline and case.speedup]
    words = in_words(verdicts, (*VERDICTS, "not compared"))
    if not led:
        return [words or "-", "-"]
    least = min(led, key=lambda case: case.speedup)
    speedup = f"{least.speedup:.{2 if least.speedup >= 1 else 3}f}"
    place = least.problem.place(dtype=False)
    return [words, f"{speedup}, {title(least.best_baseline)} at {place}"]


def baselines_table(shown: Sequence[Comparison]) -> list[str]:
    """How often each baseline was timed, how often it was the best, and why it was not timed at the
    other shapes."""
    rows, best = [], Counter(case.best_baseline for case in shown)
    for name, baseline in BASELINES.items():
        timed = sum(name in case.timed for case in shown)
        reasons = Counter(
            re.sub(r":? at \(.*", "", case.unsupported[name])
            for case in shown
            if name in case.unsupported
        )
        errors = [
            float(found[1])
            for case in shown
            if (found := re.search(r"by up to ([\d.]+) ulp$", case.unsupported.get(name, "")))
        ]
        words = [f"{count}: {reason}" for reason, count in reasons.items()]
        words += [f"wrong by up to {max(errors):.1f} ulp"] if errors else []
        less = [case.precision(name) for case in shown if case.precision(name)]
        marked = f", {len(less)} less precise (up to {max(less):.1f} ulp)" if less else ""
        if timed or words:
            told = "; ".join(words) or "-"
            rows.append([baseline.title, f"{timed}{marked}", f"{best[name]}", told])
    verdicts = Counter(case.verdict for case in shown)
    unsupported = verdicts["unsupported"]
    words = f"{unsupported}: none of our kernels takes the shape" if unsupported else "-"
    rows.append(
        ["ours", f"{len(shown) - unsupported}", f"ahead of all in {verdicts['ahead']}", words]
    )
    return markdown(["", "timed", "best of the others", "not timed"], rows)


def case_table(cases: Sequence[Comparison], around: bool = False) -> list[str]:
    """One line per case: fractions of the bandwidth baseline, the speedup with its interval, the
    verdict. `around` means other operations than softmax alone."""
    early = any(case.programmatic_share for case in cases)
    of, best = ("of the bandwidth baseline", []) if around else ("of a copy", ["of the best copy"])
    titles = ["rows x columns", "ours", of, *best, "best baseline", of, "speedup", "verdict"]
    titles += ["programmatic launch"] * early
    rows = []
    for case in cases:
        ours, beside = ["-"] * (2 + len(best)), ["-"] * 3
        if case.verdict != "unsupported":
            name = case.step.removeprefix("variants/")
            ours[:2] = [f"`{name}`", share_cell(case, case.step) + case.marks]
            if best and case.copies_us:
                ours[2] = f"{case.share_of_best_copy(case.step):.2f}"
        if baseline := case.best_baseline:
            mark = LESS_PRECISE_MARK if case.precision(baseline) else ""
            beside[:2] = [title(baseline) + mark, share_cell(case, baseline)]
            if case.verdict != "unsupported":
                speedup = case.speedup_over(baseline)
                beside[2] = (
                    f"{speedup.value:.3f} ({speedup.low:.3f}&nbsp;to&nbsp;{speedup.high:.3f})"
                )
        word = WORDS.get(case.verdict, case.verdict)
        cells = [*ours, *beside, f"**{word}**" if case.verdict in ("LOSS", "unsupported") else word]
        if early:
            share = case.programmatic_share
            cells.append(f"{share:.2f} of a copy launched so" if share else "-")
        rows.append([case.problem.place(dtype=False), *cells])
    return markdown(titles, rows)


def share_cell(case: Comparison, name: str) -> str:
    """The fraction of a copy; for few rows also microseconds."""
    time = f" ({case.median_us(name):.2f} us)" if case.rows * case.cols < 2**24 else ""
    return f"{case.share(name):.2f}{time}"


# ---- related operations --------------------------------------------------------------------------


def around_block() -> str:
    """The same for the other operations, alone and in pipelines."""
    if not (shown := around_cases(recorded_by(load_comparisons))):
        return "No comparison of related operations is recorded yet."
    found = around_chains(recorded_by(load_pipelines))
    lines = [verdicts(shown), "", *group_table(shown), ""]
    lines += [
        "*Ahead*, *level*, *level (slower)* and *lost* are as above. Where PyTorch has no "
        "function for an operation, it runs several functions."
        + "".join(f" {line}." for line in explained_marks(shown)),
        "",
        *pipelines(BACK_TO_BACK_AROUND, by_operation(found), *of_earlier_versions(found)),
    ]
    return "\n".join(lines[:-1])


def group_table(shown: Sequence[Comparison]) -> list[str]:
    """The number of cases per operation that are ahead, level, lost and unsupported, and the
    baselines that offer it but do not support a shape or are wrong there."""
    rows = []
    for name, group in by_operation(shown).items():
        cells = []
        for dtype in DTYPES:
            cells += verdict_cells([case for case in group if case.dtype == dtype])
        reasons = Counter(
            said if said.startswith(title(baseline)) else f"{title(baseline)}: {said}"
            for case in group
            for baseline, reason in case.unsupported.items()
            for said in [re.sub(":? at .*", "", reason)]
        )
        cells.append("; ".join(f"{count}x {reason}" for reason, count in reasons.items()) or "-")
        marks = "".join(dict.fromkeys("".join(case.marks for case in group)))
        rows.append([f"{name}{marks}", *cells])
    return markdown(["", *BY_DTYPE, "baselines not timed"], rows)


def by_operation(cases: Sequence[Comparison | Pipeline]) -> dict[str, list]:
    """The cases of each group of operations that has any."""
    groups = {name: [case for case in cases if group_of(case.problem) == name] for name in GROUPS}
    return {name: group for name, group in groups.items() if group}


# ---- back to back with producer and consumer kernels --------------------------------------------


BACK_TO_BACK = (
    "Softmax back to back with producer and consumer kernels: one kernel writes x just before, and "
    "another reads y just after. Either x is still in the L2 cache (*fresh*), or it has been "
    "*evicted*. The saving is the time by which ours is faster, as a fraction of the time that the "
    "best baseline adds to the other two kernels. The baselines here are {}."
)
BACK_TO_BACK_AROUND = (
    "The same operations back to back with producer and consumer kernels, beside the two best of "
    "these baselines:"
)


def pipelines(intro: str, groups: Mapping[str, Sequence[Pipeline]], *earlier: str) -> list[str]:
    """How our kernels compare, a line for each group, and what is slower; nothing if no case was
    timed beside a baseline."""
    every = [case for group in groups.values() for case in group]
    shown = [case for case in every if case.against_best_baseline]
    if not shown:
        return []
    timed = {name for case in shown for name in case.pipeline_us}
    names = ", ".join(baseline.title for name, baseline in BASELINES.items() if name in timed)
    lines = [intro.format(names), "", *pipeline_table(groups), *slower_in_pipeline(shown), *earlier]
    if alone := sum(not case.best_baseline for case in every):
        again = f"{alone} of {len(every)} cases are to be timed beside other libraries again."
        lines += ["", again]
    return [*lines, ""]


def of_earlier_versions(cases: Sequence[Pipeline]) -> list[str]:
    """A sentence on cases that were timed before our kernel was edited; no table shows them."""
    cases = [case for case in cases if case.best_baseline and not case.chosen]
    if not cases:
        return []
    names = " and ".join(dict.fromkeys(group_of(case.problem) for case in cases))
    behind = [
        f"{where_in_pipeline(case)} by {-speedup.value:.1%}"
        for case in cases
        if (speedup := case.gain(case.best, case.best_baseline)).below(0)
    ]
    slower = f" They were slower than the best baseline at {'; '.join(behind)}." if behind else ""
    return ["", f"Not timed since their kernels were edited: {names}.{slower}"]


def where_in_pipeline(case: Pipeline) -> str:
    dtype = "" if case.dtype == "float32" else f" {case.dtype}"
    return f"{where(case)}{dtype}, {case.state},"


def slower_in_pipeline(cases: Sequence[Pipeline]) -> list[str]:
    """A sentence that names each case that is slower beyond run-to-run variation."""
    named = []
    for case in cases:
        if case.against_best_baseline in (SLOWER, "LOSS"):
            gain = case.gain(case.chosen, case.best_baseline)
            named.append(
                f"{where_in_pipeline(case)} than {title(case.best_baseline)} by {-gain.value:.1%} "
                f"({-gain.high:.1%} to {-gain.low:.1%})"
            )
    return ["", f"Slower there: {'; '.join(named)}."] if named else []


def pipeline_table(groups: Mapping[str, Sequence[Pipeline]]) -> list[str]:
    """Verdicts and the smallest saving, one line per group."""
    rows = []
    for name, group in groups.items():
        timed = [case for case in group if case.against_best_baseline]
        cells = []
        for state in ("fresh", "evicted"):
            here = [case for case in timed if case.state == state]
            words = in_words(Counter(case.against_best_baseline for case in here), TIES)
            least = min(here, key=gain_in_pipeline, default=None)
            cells += [words or "-", pipeline_cell(least) if least else "-"]
        rows += [[name, *cells]] if timed else []
    return markdown(["", "fresh", "smallest saving", "evicted", "smallest saving"], rows)


def gain_in_pipeline(case: Pipeline) -> float:
    return case.gain(case.chosen, case.best_baseline).value


def pipeline_cell(case: Pipeline) -> str:
    sizes = case.problem.place()
    return f"{round(gain_in_pipeline(case), 3) + 0:+.1%}, {title(case.best_baseline)} at {sizes}"
