"""sanitizer.jsonl: compute-sanitizer's verdicts on every kernel at the small shapes."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...base.json_files import Natural
from ...catalogue.store import Run
from ..records import launch_of, step_hash
from ..workers import Failure
from .launches import Launch, Profiled, ProfilerFile, ToolRun, launches, run_tool, worker_command

# API errors do not concern kernels: cuda.bindings looks up functions that an older driver lacks. A
# failing call raises anyway.
OPTIONS = {
    "memcheck": ["--report-api-errors", "no"],
    "racecheck": [],
    "initcheck": [],
    "synccheck": [],
}


class Examined(NamedTuple):
    """A step and a tool of compute-sanitizer."""

    step: str
    tool: str


@dataclass(frozen=True)
class SanitizerResult(Profiled):
    """The number of errors that a tool found in a step."""

    file = "sanitizer"

    run: Run
    step: str
    tool: str
    kernel_hash: str
    launches: dict[str, dict[str, Natural]]  # sizes and dtype -> launch of the step
    errors: Natural

    @property
    def key(self) -> Examined:
        return Examined(self.step, self.tool)

    @property
    def made_of(self) -> tuple:
        return self.kernel_hash, self.launches


class SanitizerFile(ProfilerFile):
    kind, title = SanitizerResult, "compute-sanitizer"
    protocol = {
        "version": 1,
        "command": {
            tool: " ".join(["compute-sanitizer", "--tool", tool, *options])
            for tool, options in OPTIONS.items()
        },
    }

    def __init__(self, run: Run):
        super().__init__(run)
        self.small: dict[str, tuple[Launch, ...]] = {}
        for one in launches("small", run.gpu):
            self.small[one.step] = (*self.small.get(one.step, ()), one)

    def wanted(self) -> dict[Examined, tuple]:
        made_of = {step: (step_hash(step), self.launches(step)) for step in self.small}
        return {Examined(step, tool): made_of[step] for tool in OPTIONS for step in self.small}

    def launches(self, step: str) -> dict[str, dict[str, int]]:
        return {
            at.place(dtype=True): launch_of(step, at, self.run.gpu) for _, at in self.small[step]
        }

    def batches(self, missing: Sequence[Examined], steps: Sequence[str]) -> list[ToolRun]:
        return [ToolRun(step, self.small[step], tool) for step, tool in missing if step in steps]

    def look(self, batch: ToolRun) -> list[SanitizerResult]:
        step, errors = batch.step, errors_in(batch)
        launched = self.launches(step)
        return [SanitizerResult(self.run, step, batch.tool, step_hash(step), launched, errors)]

    def complaints(self, found: Sequence[SanitizerResult]) -> list[str]:
        bad = [one for one in found if one.errors]
        return [f"{one.tool} found {one.errors} errors in {one.step}" for one in bad]


def errors_in(batch: ToolRun) -> int:
    """Run the worker under a tool and return the number of reported errors. Raises `Failure` if
    there is no summary, or if the worker failed although the tool found nothing."""
    command = SanitizerFile.protocol["command"][batch.tool].split()
    done = run_tool([*command, *worker_command(batch.launches)])
    summaries = re.findall(r"ERROR SUMMARY: (\d+) error", done.stdout)
    hazards = re.findall(r"RACECHECK SUMMARY: (\d+) hazard", done.stdout)
    errors = max(map(int, (*summaries, *hazards)), default=None)
    if errors is None or (done.returncode and not errors):
        print(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}", file=sys.stderr)
        raise Failure(f"{batch.tool} ended with status {done.returncode} and no error found")
    if errors:
        print("\n".join(done.stdout.splitlines()[:20]), file=sys.stderr)
    return errors
