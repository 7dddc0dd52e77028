"""What the README says of the race, in Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from .catalogue import choose
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
    explained_marks,
    load_race,
    race_cases,
    race_origin,
    versions_of,
)
from .records import REFERENCE_GPU
from .shapes import RACE_TABLE, Shape, place, race_family, raced

WORDS = {"LOSS": "lost"}  # of a verdict


def race_block(pictures: Mapping[str, Path], gpu: str = REFERENCE_GPU) -> str:
    """Our kernels beside what other people use: the leads as pictures, of each dtype one; how many
    cases of each family are won and lost; the peers; a line for each case."""
    try:
        recorded = load_race(gpu)
    except FileNotFoundError:
        return "No race against them is recorded yet."
    known = {(case.shape, case.dtype): case for case in recorded.cases}
    shown = [
        known[shape, dtype] for dtype in DTYPES for shape in raced(dtype) if (shape, dtype) in known
    ]
    lines = [
        f"![How many times as fast as the best peer, over rows and columns, {dtype}]"
        f"({path.relative_to(ROOT).as_posix()})"
        for dtype, path in pictures.items()
        if race_cases(dtype, gpu)
    ]
    lines += ["", score(shown), "", *family_table(recorded), ""]
    lines += [*peers_table(recorded, shown), ""]
    explained = "".join(f" {line}." for line in explained_marks(shown))
    older = sum(case.versions != versions_of(recorded) for case in shown)
    others = f"; {older} of {len(shown)} cases with other versions" if older else ""
    lines += [
        f"The race was {race_origin(gpu)}{others}. Ours and the peers are launched ordinarily. "
        f"*Ahead* and *lost* are by more than {TOLERANCE:.0%}, and beyond the spread: the 95% "
        "bootstrap interval of the ratio of medians. Not to be faster than a peer below "
        f"{ROOM} of a copy is a loss too. A forfeit is a shape that a kernel does not take, or at "
        f"which it is wrong.{explained}",
        "",
    ]
    for dtype in DTYPES:
        lines += [f"<details><summary>Every case in {dtype}</summary>", ""]
        lines += case_table([case for case in shown if case.dtype == dtype])
        lines += ["", "</details>", ""]
    return "\n".join(lines[:-1])


def score(shown: Sequence[RaceCase]) -> str:
    """One sentence: how many cases are won, and each that is lost, to whom and by how much."""
    counts = Counter(case.verdict for case in shown)
    words = [f"{counts[name]} {WORDS.get(name, name)}" for name in VERDICTS if counts[name]]
    lost = [
        f"{place(*case.shape)} {case.dtype} to {title(case.best_peer)} by {1 - case.lead:.1%}"
        for case in shown
        if case.verdict == "LOSS"
    ]
    named = f" ({'; '.join(lost)})" if lost else ""
    return f"Of {len(shown)} cases: {', '.join(words)}{named}."


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
    return f"{case.lead:.2f}, {title(case.best_peer)} at {place(*case.shape)}"


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


def case_table(cases: Sequence[RaceCase]) -> list[str]:
    """A line for each case: shares of a copy, the lead with its interval, the verdict."""
    early = any(case.programmatic_share for case in cases)
    head = "rows x columns | ours | of a copy | of the best copy | best peer | of a copy | lead"
    head += " | verdict" + " | programmatic launch" * early
    lines = [f"| {head} |", "|---" * (8 + early) + "|"]
    for case in cases:
        cells = ["-"] * 3
        if case.verdict != "forfeit":
            name = case.step.removeprefix("variants/")
            cells = [f"`{name}`", share_cell(case, case.step) + case.marks]
            cells.append(f"{case.share_of_best_copy(case.step):.2f}" if case.copies_us else "-")
        cells += ["-"] * 3
        if best := case.best_peer:
            cells[3:5] = [title(best), share_cell(case, best)]
            if case.verdict != "forfeit":
                lead = case.lead_over(best)
                cells[5] = f"{lead.value:.3f} ({lead.low:.3f}&nbsp;to&nbsp;{lead.high:.3f})"
        word = WORDS.get(case.verdict, case.verdict)
        cells.append(f"**{word}**" if case.verdict in ("LOSS", "forfeit") else word)
        if early:
            share = case.programmatic_share
            cells.append(f"{share:.2f} of a copy launched so" if share else "-")
        lines.append(f"| {place(*case.shape)} | {' | '.join(cells)} |")
    return lines


def share_cell(case: RaceCase, name: str) -> str:
    """The share of a copy; of few rows also microseconds."""
    time = f" ({case.median_us(name):.2f} us)" if case.rows * case.cols < 2**24 else ""
    return f"{case.share(name):.2f}{time}"
