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
    used: tuple[str, int] | None = None  # file and line that need what was loaded, if elsewhere

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count} times"
        return (
            f"{self.file}:{self.line}: {self.kind}, {times}: {self.message}{self.use} "
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
    ) -> None:
        """Add a bug of these threads, or count it if that kind is known on that source line
        already. `user` is the instruction that needs what this one has loaded."""
        place = kind, instruction.file, instruction.line
        for known in self.findings:
            if (known.kind, known.file, known.line) == place:
                known.count += len(slots)
                return
        block, thread = self.batch.place(int(slots[0]))
        used = (user.file, user.line) if user is not None else place[1:]
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
                used if used != place[1:] else None,
            )
        )
