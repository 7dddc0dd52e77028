"""What the README says of the comparison with other libraries, in Markdown: of softmax and of the
operations around it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..base.paths import ROOT
from ..catalogue.dispatch import choose
from ..measure.chains import TIES, ChainCase, chain_cases, load_chains
from ..measure.chains import around_cases as around_chains
from ..measure.contests import GROUPS, group_of
from ..measure.peers import PEERS, title
from ..measure.races import (
    DTYPES,
    ROOM,
    SLOWER,
    TOLERANCE,
    VERDICTS,
    RaceCase,
    around_cases,
    compared,
    explained_marks,
    load_race,
    race_cases,
    race_origin,
    versions_of,
)
from ..measure.store import REFERENCE_GPU, folder_of, latest
from ..problem.shapes import RACE_TABLE, Shape, race_family, raced
from ..simt.words import counted

WORDS = {"LOSS": "lost"}  # of a verdict
LESS_PRECISE_MARK = "~"  # after the name of a baseline
# What the score leaves out; no record here has these measurements.
OUTSIDE = (
    "The kernels were tuned for these shapes. Two measurements made outside this project timed "
    "other ones: our kernel was slower than the best library at 15 of 68 chosen shapes and at 28 "
    "of 200 random ones, by 1.1% to 23%, mostly where a row has 3, 5, 7 or 9 times a power of two "
    "columns."
)


def race_block(pictures: Mapping[str, Path]) -> str:
    """The comparison of softmax: a picture of the speedups for each dtype, the verdicts by family
    of shapes, the baselines, and kernels back to back with other kernels."""
    try:
        everything = load_race()
    except FileNotFoundError:
        everything = []
    recorded = [case for case in everything if case.problem.plain]
    if not recorded:
        return "No comparison with them is recorded yet."
    shown = cases_alone(recorded)
    lines = [
        f"![Speedup over the best baseline, over rows and columns, {dtype}]"
        f"({path.relative_to(ROOT).as_posix()})"
        for dtype, path in pictures.items()
        if race_cases(dtype)
    ]
    lines += ["", f"{score(shown)} {OUTSIDE}", "", *family_table(recorded), ""]
    lines += [*peers_table(recorded, shown), ""]
    explained = "".join(f" {line}." for line in explained_marks(shown))
    now = versions_of(everything)  # those that `race_origin` says
    older = sum(compared(case.run.versions) != now for case in shown)
    others = f"; {older} of {counted(len(shown), 'case')} with other versions" if older else ""
    lines += [
        f"The comparison was {race_origin()}{others}.{added_later(shown)} All kernels are launched "
        f"ordinarily. *Ahead* and *lost* mean a difference of more than {TOLERANCE:.0%} that is "
        "also beyond run-to-run variation, the 95% bootstrap interval of the ratio of medians. "
        f"*{SLOWER.capitalize()}* means slower beyond that variation, but not certainly by more "
        f"than {TOLERANCE:.0%}; *level* is the rest. If the best baseline is below {ROOM} of a "
        "copy, being slower than it by any margin beyond that variation counts as lost."
        f"{explained}",
        "",
        PRECISION,
        "",
        *chained_alone(),
        f"[Every case, a line each]({every_case_path().relative_to(ROOT).as_posix()})",
    ]
    return "\n".join(lines)


def cases_alone(recorded: Sequence[RaceCase]) -> list[RaceCase]:
    """The cases of softmax alone, in the order of the table of shapes."""
    known = {(case.shape, case.dtype): case for case in recorded if case.problem.plain}
    asked = [(shape, dtype) for dtype in DTYPES for shape in raced(dtype)]
    return [known[one] for one in asked if one in known]


def every_case_path() -> Path:
    return folder_of(REFERENCE_GPU) / "race.md"


def every_case() -> str:
    """A page with a line for each case. Raises `FileNotFoundError` if nothing is recorded."""
    recorded = load_race()
    lines = [
        "# The comparison, case by case",
        "",
        f"The comparison was {race_origin()}.{added_later(recorded)} The README says what "
        "the words mean. Beside the operations around softmax no second copy was timed: a fraction "
        "above 1.00 there is one of the *yardstick*, a plain kernel that moves as many bytes.",
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


def score(shown: Sequence[RaceCase]) -> str:
    """One sentence: how many cases are won, and each that is lost, to whom and by how much."""
    counts = Counter(case.verdict for case in shown)
    words = [f"{counts[name]} {WORDS.get(name, name)}" for name in VERDICTS if counts[name]]
    lost = [
        f"{where(case)} {case.dtype} to {title(case.best_peer)} by {1 - case.lead:.1%}"
        for case in shown
        if case.verdict == "LOSS"
    ]
    named = f" ({'; '.join(lost)})" if lost else ""
    return f"Of {counted(len(shown), 'case')}: {', '.join(words)}{named}."


PRECISION = (
    "A result is *less precise* if it differs from the fp64 reference by more than our kernels may "
    "(the usual error of fp32 arithmetic, and half an ulp of a 16-bit output) and 0.01% of the "
    "value beyond that, but by at most one ulp of the output type more than our kernels may. This "
    "occurs only with 16-bit outputs. Such a baseline is timed and marked. A result with a larger "
    "error, or with a NaN that does not belong there, is wrong, and its baseline is not timed."
)


def less_precise_mark(cases: Sequence[RaceCase]) -> list[str]:
    """A line that explains `LESS_PRECISE_MARK`, if any best baseline has it."""
    marked = any(case.best_peer and case.precision(case.best_peer) for case in cases)
    return [f"{LESS_PRECISE_MARK}: correct, but less precise than ours."] * marked


def added_later(cases: Sequence[RaceCase]) -> str:
    """A sentence for the baselines of each later run that was added; "" without any."""
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
        if name in PEERS
    )
    return "".join(
        f" {name} was added at {counted(count, 'shape')} on {day}, beside our kernel and a copy "
        f"(driver {driver}{f', version {version}' if version else ''})."
        for (name, day, driver, version), count in found.items()
    )


def where(case: RaceCase | ChainCase) -> str:
    """The shape; of what is around softmax its group too."""
    sizes = case.problem.place(dtype=False)
    return sizes if case.problem.plain else f"{group_of(case.problem)} at {sizes}"


def family_table(recorded: Sequence[RaceCase]) -> list[str]:
    """How many cases of each family are ahead, level, lost and forfeits of ours."""
    titles = " | ".join(f"{dtype} | smallest speedup" for dtype in DTYPES)
    lines = [f"| shapes | {titles} |", "|---" * (1 + 2 * len(DTYPES)) + "|"]
    known = {(case.shape, case.dtype): case for case in recorded}
    for family in (*RACE_TABLE, "all"):
        cells = []
        for dtype in DTYPES:
            shapes = [s for s in raced(dtype) if family in (race_family(*s), "all")]
            cases = [known[shape, dtype] for shape in shapes if (shape, dtype) in known]
            verdicts = Counter(case.verdict for case in cases)
            verdicts["forfeit"] += len(forfeits := unraced_forfeits(recorded, shapes, dtype))
            verdicts["not raced"] = len(shapes) - len(cases) - len(forfeits)
            counts = {name: verdicts[name] for name in (*VERDICTS, "not raced")}
            words = [f"{n} {WORDS.get(name, name)}" for name, n in counts.items() if n]
            led = [case for case in cases if case.best_peer and case.lead]
            least = min(led, key=lambda case: case.lead, default=None)
            cells += [", ".join(words) or "-", lead_cell(least) if least else "-"]
        lines.append(f"| {family} | {' | '.join(cells)} |")
    return lines


def unraced_forfeits(
    recorded: Sequence[RaceCase], shapes: Sequence[Shape], dtype: str
) -> list[Shape]:
    """The shapes that were not raced and that none of our kernels takes: forfeits all the same."""
    known = {case.shape for case in recorded if case.dtype == dtype}
    gpu = latest(recorded).gpu
    return [s for s in shapes if s not in known and not choose(*s, dtype, gpu)]


def lead_cell(case: RaceCase) -> str:
    sizes = case.problem.place(dtype=False)
    return f"{case.lead:.{2 if case.lead >= 1 else 3}f}, {title(case.best_peer)} at {sizes}"


def peers_table(recorded: Sequence[RaceCase], shown: Sequence[RaceCase]) -> list[str]:
    """How often each baseline was timed, how often it was the best of them, and why it was not
    timed at the other shapes."""
    lines = ["| | timed | best of the others | not timed |", "|---|---|---|---|"]
    best = Counter(case.best_peer for case in shown)
    for name, peer in PEERS.items():
        timed = sum(name in case.timed for case in shown)
        reasons = Counter(
            re.sub(r":? at \(.*", "", case.forfeits[name])
            for case in shown
            if name in case.forfeits
        )
        errors = [
            float(found[1])
            for case in shown
            if (found := re.search(r"by up to ([\d.]+) ulp$", case.forfeits.get(name, "")))
        ]
        words = [f"{count}: {reason}" for reason, count in reasons.items()]
        words += [f"wrong by up to {max(errors):.1f} ulp"] if errors else []
        less = [case.precision(name) for case in shown if case.precision(name)]
        marked = f", {len(less)} less precise (up to {max(less):.1f} ulp)" if less else ""
        if timed or words:
            cells = [peer.title, f"{timed}{marked}", f"{best[name]}", "; ".join(words) or "-"]
            lines.append(f"| {' | '.join(cells)} |")
    verdicts = Counter(case.verdict for case in shown)
    unraced = sum(len(unraced_forfeits(recorded, raced(dtype), dtype)) for dtype in DTYPES)
    forfeits = verdicts["forfeit"] + unraced
    words = f"{forfeits}: none of our kernels takes the shape" if forfeits else "-"
    timed = len(shown) - verdicts["forfeit"]
    lines.append(f"| ours | {timed} | ahead of all in {verdicts['ahead']} | {words} |")
    return lines


def case_table(cases: Sequence[RaceCase], around: bool = False) -> list[str]:
    """A line for each case: shares of a copy, or of the yardstick of what is `around` softmax, the
    lead with its interval, the verdict."""
    early = any(case.programmatic_share for case in cases)
    of, best = ("of the yardstick", []) if around else ("of a copy", ["of the best copy"])
    titles = ["rows x columns", "ours", of, *best, "best baseline", of, "speedup", "verdict"]
    titles += ["programmatic launch"] * early
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for case in cases:
        ours, beside = ["-"] * (2 + len(best)), ["-"] * 3
        if case.verdict != "forfeit":
            name = case.step.removeprefix("variants/")
            ours[:2] = [f"`{name}`", share_cell(case, case.step) + case.marks]
            if best and case.copies_us:
                ours[2] = f"{case.share_of_best_copy(case.step):.2f}"
        if peer := case.best_peer:
            mark = LESS_PRECISE_MARK if case.precision(peer) else ""
            beside[:2] = [title(peer) + mark, share_cell(case, peer)]
            if case.verdict != "forfeit":
                lead = case.lead_over(peer)
                beside[2] = f"{lead.value:.3f} ({lead.low:.3f}&nbsp;to&nbsp;{lead.high:.3f})"
        word = WORDS.get(case.verdict, case.verdict)
        cells = [*ours, *beside, f"**{word}**" if case.verdict in ("LOSS", "forfeit") else word]
        if early:
            share = case.programmatic_share
            cells.append(f"{share:.2f} of a copy launched so" if share else "-")
        sizes = case.problem.place(dtype=False)
        lines.append(f"| {sizes} | {' | '.join(cells)} |")
    return lines


def share_cell(case: RaceCase, name: str) -> str:
    """The share of a copy; of few rows also microseconds."""
    time = f" ({case.median_us(name):.2f} us)" if case.rows * case.cols < 2**24 else ""
    return f"{case.share(name):.2f}{time}"


# ---- around softmax -----------------------------------------------------------------------------


def around_block() -> str:
    """The same of what is around softmax: by operation, alone and in pipelines."""
    try:
        recorded = load_race()
    except FileNotFoundError:
        recorded = None
    shown = around_cases(recorded) if recorded else []
    if not shown:
        return "No comparison of operations around softmax is recorded yet."
    earlier = sum(not case.is_current() for case in shown)
    of_earlier = f" {earlier} of them with earlier versions of our kernels (#)." * bool(earlier)
    lines = [score(shown) + of_earlier, "", *group_table(shown), ""]
    lines += [
        "*Ahead*, *level*, *level (slower)* and *lost* are as above. Where PyTorch has no "
        "function for an operation, it runs several functions."
        + "".join(f" {line}." for line in explained_marks(shown)),
        "",
        *pipelines(),
    ]
    return "\n".join(lines[:-1])


def group_table(shown: Sequence[RaceCase]) -> list[str]:
    """How many cases of each operation are ahead, level, lost and forfeits of ours, and who of the
    peers that have it cannot take a shape or is wrong there."""
    titles = " | ".join(f"{dtype} | smallest speedup" for dtype in DTYPES)
    lines = [f"| | {titles} | baselines not timed |", "|---" * (2 + 2 * len(DTYPES)) + "|"]
    for name in GROUPS:
        cells = []
        group = [case for case in shown if group_of(case.problem) == name]
        for dtype in DTYPES:
            cases = [case for case in group if case.dtype == dtype]
            counts = Counter(case.verdict for case in cases)
            words = [f"{counts[one]} {WORDS.get(one, one)}" for one in VERDICTS if counts[one]]
            led = [case for case in cases if case.best_peer and case.lead]
            least = min(led, key=lambda case: case.lead, default=None)
            cells += [", ".join(words) or "-", lead_cell(least) if least else "-"]
        reasons = Counter(
            said if said.startswith(title(peer)) else f"{title(peer)}: {said}"
            for case in group
            for peer, reason in case.forfeits.items()
            for said in [re.sub(":? at .*", "", reason)]
        )
        cells.append("; ".join(f"{count}x {reason}" for reason, count in reasons.items()) or "-")
        if group:
            marks = "".join(dict.fromkeys("".join(case.marks for case in group)))
            lines.append(f"| {name}{marks} | {' | '.join(cells)} |")
    return lines


def pipelines() -> list[str]:
    """How our kernels compare back to back with a producer and a consumer, by operation."""
    try:
        timed = [case for case in around_chains(load_chains()) if case.best_peer]
    except FileNotFoundError:
        timed = []
    cases = [case for case in timed if case.chosen]
    if not cases:
        return []
    earlier = [case for case in timed if not case.chosen]
    groups = {name: [case for case in cases if group_of(case.problem) == name] for name in GROUPS}
    return [
        "The same operations back to back with producer and consumer kernels, beside the two best "
        "of these baselines:",
        "",
        *chained_table({name: group for name, group in groups.items() if group}),
        *behind_in_chain(cases),
        *of_earlier_versions(earlier),
        "",
    ]


def of_earlier_versions(cases: Sequence[ChainCase]) -> list[str]:
    """A sentence on what was timed before our kernel was edited, which no table shows."""
    if not cases:
        return []
    names = " and ".join(dict.fromkeys(group_of(case.problem) for case in cases))
    behind = [
        f"{where_in_chain(case)} by {-lead.value:.1%}"
        for case in cases
        if (lead := case.lead(case.best, case.best_peer)).below(0)
    ]
    slower = f" They were slower than the best baseline at {'; '.join(behind)}." if behind else ""
    return ["", f"Not timed since their kernels were edited: {names}.{slower}"]


def chained_alone() -> list[str]:
    """The same of softmax, by dtype."""
    try:
        cases = {dtype: chain_cases(dtype) for dtype in DTYPES}
    except FileNotFoundError:
        return []
    groups = {
        dtype: [case for case in found if case.against_best_peer] for dtype, found in cases.items()
    }
    shown = [case for group in groups.values() for case in group]
    if not shown:
        return []
    timed = {name for case in shown for name in case.chain_us if name in PEERS}
    names = [peer.title for name, peer in PEERS.items() if name in timed]
    return [
        "Softmax back to back with producer and consumer kernels: one kernel writes x just "
        "before, and another reads y just after. Either x is still in the L2 cache (*fresh*), or "
        "it has been *evicted*. The saving is the time by which ours is faster, as a fraction of "
        "the time that the best baseline adds to the other two kernels. The baselines here are "
        f"{', '.join(names)}.",
        "",
        *chained_table({name: group for name, group in groups.items() if group}),
        *behind_in_chain(shown),
        "",
    ]


def where_in_chain(case: ChainCase) -> str:
    dtype = "" if case.dtype == "float32" else f" {case.dtype}"
    return f"{where(case)}{dtype}, {case.state},"


def behind_in_chain(cases: Sequence[ChainCase]) -> list[str]:
    """A sentence that names each case that is slower beyond run-to-run variation."""
    named = []
    for case in cases:
        if case.against_best_peer in (SLOWER, "LOSS"):
            lead = case.lead(case.chosen, case.best_peer)
            named.append(
                f"{where_in_chain(case)} than {title(case.best_peer)} by {-lead.value:.1%} "
                f"({-lead.high:.1%} to {-lead.low:.1%})"
            )
    return ["", f"Slower there: {'; '.join(named)}."] if named else []


def chained_table(groups: Mapping[str, Sequence[ChainCase]]) -> list[str]:
    """Verdicts and the smallest saving, a line for each group."""
    lines = ["| | fresh | smallest saving | evicted | smallest saving |", "|---|---|---|---|---|"]
    for name, group in groups.items():
        cells = []
        for state in ("fresh", "evicted"):
            here = [case for case in group if case.state == state]
            counts = Counter(case.against_best_peer for case in here)
            words = [f"{counts[one]} {WORDS.get(one, one)}" for one in TIES if counts[one]]
            least = min(here, key=lead_in_chain, default=None)
            cells += [", ".join(words) or "-", chained_cell(least) if least else "-"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def lead_in_chain(case: ChainCase) -> float:
    return case.lead(case.chosen, case.best_peer).value


def chained_cell(case: ChainCase) -> str:
    sizes = case.problem.place()
    return f"{round(lead_in_chain(case), 3) + 0:+.1%}, {title(case.best_peer)} at {sizes}"
