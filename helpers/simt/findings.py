"""Bugs that a run showed, one entry per kind and source line."""

from __future__ import annotations

from dataclasses import dataclass

from .parse import Instruction


@dataclass
class Finding:
    """One bug: where it is in the source, who met it first, and how often it happened."""

    kind: str  # "out-of-bounds load", "misaligned store", "hang", ...
    message: str  # one sentence in plain words, about the first occurrence
    file: str
    line: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
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

    def report(
        self,
        kind: str,
        instruction: Instruction,
        message: str,
        block: tuple[int, int, int],
        thread: tuple[int, int, int],
        count: int,
    ) -> None:
        """Add a bug, or count it if that kind is known on that source line already."""
        for known in self:
            if (known.kind, known.file, known.line) == (kind, instruction.file, instruction.line):
                known.count += count
                return
        self.append(
            Finding(
                kind,
                message,
                instruction.file,
                instruction.line,
                block,
                thread,
                instruction.text,
                count,
            )
        )

    def __str__(self) -> str:
        return "\n".join(str(finding) for finding in self) if self else "no findings"
