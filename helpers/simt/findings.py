"""Bugs that a run showed, one entry per kind and source line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .geometry import Batch, Place
from .instructions import Instruction
from .words import often


@dataclass
class Finding:
    """One bug: where it is in the source, who met it first, and how often it happened."""

    kind: str  # "out-of-bounds load", "misaligned store", "hang", ...
    message: str  # one sentence in plain words, about the first occurrence
    file: str
    line: int
    block: Place
    thread: Place
    ptx: str
    count: int = 1  # occurrences, in threads
    used: tuple[str, int] | None = None  # file and line that need what was loaded, if elsewhere

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line}: {self.kind}, {often(self.count)}: {self.message}{self.use} "
            f"(first in block {self.block}, thread {self.thread})"
        )

    @property
    def use(self) -> str:
        """Where the value is used, as the end of a sentence; nothing if on the finding's line."""
        if self.used is None:
            return ""
        file, line = self.used
        place = f"line {line}" if file == self.file else f"{file}:{line}"
        return f"; the value is used in {place}"


class Findings(list):
    """A list of `Finding`; prints one per line, or says that there is none."""

    def __str__(self) -> str:
        return "\n".join(str(finding) for finding in self) if self else "no findings"


class Reporter:
    """Adds what threads of the batch that runs have done wrong."""

    def __init__(self, findings: Findings):
        self.findings = findings
        self.known: dict[tuple[str, frozenset], Finding] = {}  # by kind and source lines
        self.batch: Batch | None = None

    def start_batch(self, batch: Batch) -> None:
        self.batch = batch

    def report(
        self,
        kind: str,
        instruction: Instruction,
        message: str,
        slots: np.ndarray,
        user: Instruction | None = None,
        other: Instruction | None = None,
    ) -> None:
        """Add a bug of these threads, or count it if that kind is known on that source line
        already: where it takes an `other` instruction too, on that pair of lines. `user` is the
        instruction that needs what this one has loaded."""
        lines = {(one.file, one.line) for one in (instruction, other) if one is not None}
        known = self.known.get((kind, frozenset(lines)))
        if known is not None:
            known.count += len(slots)
            return
        block, thread = self.batch.place(int(slots[0]))
        place = instruction.file, instruction.line
        used = (user.file, user.line) if user is not None else place
        finding = Finding(
            kind,
            message,
            *place,
            block,
            thread,
            instruction.text,
            len(slots),
            used if used != place else None,
        )
        self.known[kind, frozenset(lines)] = finding
        self.findings.append(finding)

    def add_new(self, other: Reporter) -> None:
        """Add what a run with the blocks in reverse order has found and this one has not."""
        for key, finding in other.known.items():
            if key not in self.known:
                finding.message += " (found with the blocks in reverse order)"
                self.known[key] = finding
                self.findings.append(finding)
