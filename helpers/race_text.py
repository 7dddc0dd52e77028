"""What the README says of the race, of softmax and of what is around it, in Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .catalogue import choose
from .chains import TIES, ChainCase, load_chains
from .chains import around_cases as around_chains
from .contests import ALONE, GROUPS, group_of
from .gpu import of_record
from .paths import ROOT
from .peers import PEERS, title
from .races import (
    DTYPES,
    ROOM,
    TOLERANCE,
    VERDICTS,
    Race,
    RaceCase,
    around_cases,
    explained_marks,
    load_race,
    race_cases,
    race_origin,
    versions_of,
)
from .records import REFERENCE_GPU, folder_of
from .shapes import RACE_TABLE, Shape, place, race_family, raced
from .simt.words import counted

WORDS = {"LOSS": "lost"}  # of a verdict


def race_block(pictures: Mapping[str, Path]) -> str:
    """Our kernels beside what other people use: the leads as pictures, of each dtype one; how many
    cases of each family are won and lost; the peers."""
    try:
        recorded = load_race()
    except FileNotFoundError:
        return "No race against them is recorded yet."
    recorded = replace(recorded, cases=[case for case in recorded.cases if case.kind == ALONE])
    shown = cases_alone(recorded)
    lines = [
        f"![How many times as fast as the best peer, over rows and columns, {dtype}]"
        f"({path.relative_to(ROOT).as_posix()})"
        for dtype, path in pictures.items()
        if race_cases(dtype)
    ]
    lines += ["", score(shown), "", *family_table(recorded), ""]
    lines += [*peers_table(recorded, shown), ""]
    explained = "".join(f" {line}." for line in explained_marks(shown))
    older = sum(case.versions != versions_of(recorded) for case in shown)
    others = f"; {older} of {counted(len(shown), 'case')} with other versions" if older else ""
    lines += [
        f"The race was {race_origin()}{others}. Ours and the peers are launched ordinarily. "
        f"*Ahead* and *lost* are by more than {TOLERANCE:.0%}, and beyond the spread: the 95% "
        "bootstrap interval of the ratio of medians. Not to be faster than a peer below "
        f"{ROOM} of a copy is a loss too. A forfeit is a shape that a kernel does not take, or at "
        f"which it is wrong.{explained}",
        "",
        f"[Every case, a line each]({every_case_path().relative_to(ROOT).as_posix()})",
    ]
    return "\n".join(lines)


def cases_alone(recorded: Race) -> list[RaceCase]:
    """The cases of softmax alone, in the order of the table of shapes."""
    known = {(case.shape, case.dtype): case for case in recorded.cases if case.kind == ALONE}
    asked = [(shape, dtype) for dtype in DTYPES for shape in raced(dtype)]
    return [known[one] for one in asked if one in known]


def every_case_path() -> Path:
    return folder_of(REFERENCE_GPU) / "race.md"


def every_case() -> str:
    """A page with a line for each case. Raises `FileNotFoundError` if there is no race."""
    recorded = load_race()
    lines = [
        "# The race, case by case",
        "",
        f"The race was {race_origin()}. The README says what the words mean.",
        *(f"{line}." for line in explained_marks(recorded.cases)),
    ]
    shown = cases_alone(recorded)
    for dtype in DTYPES:
        lines += ["", f"## Softmax in {dtype}", ""]
        lines += case_table([case for case in shown if case.dtype == dtype])
    for name in GROUPS:
        cases = [case for case in around_cases(recorded) if group_of(case.kind) == name]
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


def where(case: RaceCase | ChainCase) -> str:
    """The shape; of what is around softmax its group too."""
    sizes = place(*case.shape, inner=case.inner)
    return sizes if case.kind == ALONE else f"{group_of(case.kind)} at {sizes}"


def family_table(recorded: Race) -> list[str]:
    """How many cases of each family are ahead, level, lost and forfeits of ours."""
    titles = " | ".join(f"{dtype} | least lead" for dtype in DTYPES)
    lines = [f"| shapes | {titles} |", "|---" * (1 + 2 * len(DTYPES)) + "|"]
    known = {(case.shape, case.dtype): case for case in recorded.cases}
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


def unraced_forfeits(recorded: Race, shapes: Sequence[Shape], dtype: str) -> list[Shape]:
    """The shapes that were not raced and that none of our kernels takes: forfeits all the same."""
    known = {case.shape for case in recorded.cases if case.dtype == dtype}
    gpu = of_record(recorded.device)
    return [s for s in shapes if s not in known and not choose(*s, dtype, gpu)]


def lead_cell(case: RaceCase) -> str:
    sizes = place(*case.shape, inner=case.inner)
    return f"{case.lead:.2f}, {title(case.best_peer)} at {sizes}"


def peers_table(recorded: Race, shown: Sequence[RaceCase]) -> list[str]:
    """Who was raced, how often it was the best of the others, and what it forfeits."""
    lines = ["| | timed | best of the others | forfeits |", "|---|---|---|---|"]
    best = Counter(case.best_peer for case in shown)
    for name, peer in PEERS.items():
        timed = sum(name in case.samples_us for case in shown)
        reasons = Counter(
            re.sub(r":? at \(.*", "", case.forfeits[name])
            for case in shown
            if name in case.forfeits
        )
        errors = [
            float(found[1])
            for case in shown
            if (found := re.search(r"by up to ([\d.]+) ulp", case.forfeits.get(name, "")))
        ]
        words = [f"{count}: {reason}" for reason, count in reasons.items()]
        words += [f"wrong by up to {max(errors):.1f} ulp"] if errors else []
        if timed or words:
            lines.append(f"| {peer.title} | {timed} | {best[name]} | {'; '.join(words) or '-'} |")
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
    titles = ["rows x columns", "ours", of, *best, "best peer", of, "lead", "verdict"]
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
            beside[:2] = [title(peer), share_cell(case, peer)]
            if case.verdict != "forfeit":
                lead = case.lead_over(peer)
                beside[2] = f"{lead.value:.3f} ({lead.low:.3f}&nbsp;to&nbsp;{lead.high:.3f})"
        word = WORDS.get(case.verdict, case.verdict)
        cells = [*ours, *beside, f"**{word}**" if case.verdict in ("LOSS", "forfeit") else word]
        if early:
            share = case.programmatic_share
            cells.append(f"{share:.2f} of a copy launched so" if share else "-")
        sizes = place(*case.shape, inner=case.inner)
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
        return "No race of what is around softmax is recorded yet."
    lines = [score(shown), "", *group_table(shown), ""]
    lines += [
        "The *yardstick* is a kernel that does nothing but move as many bytes; *ahead*, *level* "
        "and *lost* are as above. Where PyTorch has no function, it runs a chain of those it has.",
        "",
        *pipelines(),
    ]
    return "\n".join(lines[:-1])


def group_table(shown: Sequence[RaceCase]) -> list[str]:
    """How many cases of each operation are ahead, level, lost and forfeits of ours, and who of the
    peers that have it cannot take a shape or is wrong there."""
    titles = " | ".join(f"{dtype} | least lead" for dtype in DTYPES)
    lines = [f"| | {titles} | forfeits of peers |", "|---" * (2 + 2 * len(DTYPES)) + "|"]
    for name in GROUPS:
        cells = []
        group = [case for case in shown if group_of(case.kind) == name]
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
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def pipelines() -> list[str]:
    """How ours stands beside the best peers in a pipeline, by operation; each loss by name."""
    try:
        cases = [case for case in around_chains(load_chains()) if case.against_best_peer]
    except FileNotFoundError:
        cases = []
    if not cases:
        return []
    lines = [
        "Between a kernel that writes what goes in and one that reads what comes out, with what "
        "goes in *fresh* in the L2 or *evicted* from it, beside the two best of these peers:",
        "",
        "| | fresh | least lead | evicted | least lead |",
        "|---|---|---|---|---|",
    ]
    for name in GROUPS:
        cells = []
        group = [case for case in cases if group_of(case.kind) == name]
        for state in ("fresh", "evicted"):
            here = [case for case in group if case.state == state]
            counts = Counter(case.against_best_peer for case in here)
            words = [f"{counts[one]} {WORDS.get(one, one)}" for one in TIES if counts[one]]
            least = min(here, key=lead_in_chain, default=None)
            cells += [", ".join(words) or "-", chained_cell(least) if least else "-"]
        if group:
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def lead_in_chain(case: ChainCase) -> float:
    return case.lead(case.chosen, case.best_peer).value


def chained_cell(case: ChainCase) -> str:
    sizes = place(*case.shape, case.dtype, inner=case.inner)
    return f"{lead_in_chain(case):+.0%}, {title(case.best_peer)} at {sizes}"
