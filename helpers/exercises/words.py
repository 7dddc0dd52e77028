"""Bugs found by the SIMT machine, and compiler errors, in plain words for learners."""

from __future__ import annotations

import re
from pathlib import PurePath

from ..simt import Finding, Findings, Trace

# Barriers first: divergent threads cause races and wrong reads.
FIRST = ("barrier", "lane", "hang", "out-of-bounds", "misaligned")
BARRIERS = {
    "barrier in divergent code",
    "barrier after an early return",
    "barrier that never completes",
    "cluster barrier that never completes",
}


def worst(findings: Findings) -> Finding:
    """The diagnostic that explains most of the others."""

    def rank(finding: Finding) -> int:
        starts = (n for n, start in enumerate(FIRST) if start in finding.kind.split(" after")[0])
        return next(starts, len(FIRST))

    return min(findings, key=rank)


def of_finding(finding: Finding, trace: Trace, file: str) -> str:
    """One sentence about a bug in a trace; `file` is the learner's."""
    own = finding.file == PurePath(file).name
    where = f"line {finding.line}" if own else f"{finding.file}:{finding.line}"
    kind, message = finding.kind, finding.message
    if kind in BARRIERS:
        group = "cluster" if kind.startswith("cluster") else "block"
        return (
            f"{where}: not all threads of the {group} reach this barrier. Does it stand in an "
            "`if`, in a loop that some leave earlier, or behind a `return`?"
        )
    if kind == "lane missing from a warp operation":
        return (
            f"{where}: not all lanes that the mask names come to this exchange. Some have "
            "returned, or an `if` or a loop keeps them away"
        )
    if kind == "hang" and "waits for a store" in message:
        return (
            f"{where}: this waits for ever: what it looks for is never stored. Is it sent before "
            "anybody waits, and to where it is looked for?"
        )
    if kind == "hang":
        where = f"line {_loop(finding, trace)}" if own else where
        waits = "volatile" in message and "workspace" in trace.code
        return f"the loop at {where} never ends: does something in it change its condition? " + (
            "Only a volatile load looks again." if waits else "(Or it does far too much.)"
        )
    if kind == "read of unwritten shared memory":
        return f"{where} reads shared memory in which no thread has stored anything"
    place = f"block {finding.block[0]}, thread {finding.thread[0]}"
    return f"{where}: {kind}: {message} (first in {place})"


def _loop(hang: Finding, trace: Trace) -> int:
    """The first line of the loop that a jump closes. The jump itself may have the line of a
    function that was inlined at the end of the loop."""
    text = trace.own_lines()
    kernel = next(number for number, line in text.items() if "__global__" in line)
    label = re.search(r"\$L\w+", hang.ptx)
    ptx = trace.ptx.split("\n")
    jumps = [number for number, line in enumerate(ptx) if label and label[0] in line]
    inside = ptx[jumps[0] : jumps[-1]] if jumps else []
    locations = [line for line in inside if line.strip().startswith(".loc")]
    numbers = re.findall(r"(?:\.loc|inlined_at)\s+1\s+(\d+)", "\n".join(locations))
    first = min((n for n in map(int, numbers) if n > kernel), default=hang.line)
    above = (n for n in range(first, kernel, -1) if re.search(r"\b(for|while|do)\b", text[n]))
    return next(above, hang.line)


def of_compiler(log: str) -> str:
    """The first error of a compiler's log, with its line."""
    found = re.search(r"\((\d+)\): (?:catastrophic )?error: (.*)", log)
    return f"line {found[1]}: {found[2].strip()}" if found else log.strip()
