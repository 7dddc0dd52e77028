"""Bugs that a run showed, one entry per kind and source line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .geometry import Batch, Place
from .instructions import Instruction


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

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count} times"
        return (
            f"{self.file}:{self.line}: {self.kind}, {times}: {self.message} "
            f"(first in block {self.block}, thread {self.thread})"
        )


class Findings(list):
    """A list of `Finding`; prints one per line, or says that there is none."""

    def __str__(self) -> str:
        return "\n".join(str(finding) for finding in self) if self else "no findings"


class Reporter:
    """Adds what threads of the batch that runs have done wrong."""

    def __init__(self, findings: Findings):
        self.findings = findings
        self.batch: Batch | None = None

    def start_batch(self, batch: Batch) -> None:
        self.batch = batch

    def report(self, kind: str, instruction: Instruction, message: str, slots: np.ndarray) -> None:
        """Add a bug of these threads, or count it if that kind is known on that source line
        already."""
        place = kind, instruction.file, instruction.line
        for known in self.findings:
            if (known.kind, known.file, known.line) == place:
                known.count += len(slots)
                return
        block, thread = self.batch.place(int(slots[0]))
        self.findings.append(
            Finding(
                kind,
                message,
                instruction.file,
                instruction.line,
                block,
                thread,
                instruction.text,
                len(slots),
            )
        )
