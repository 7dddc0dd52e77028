"""sanitizer.json: compute-sanitizer's verdicts on every kernel at the small shapes."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from ..records import launch_of
from ..workers import Failure
from .cases import Batch, EvidenceCase, cases, run_tool, shown, worker_command
from .part import Part, hashes_of

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


class SanitizerPart(Part):
    name, title = "sanitizer", "compute-sanitizer"
    entries = "cases"

    def __init__(self, stored: dict, device: dict):
        super().__init__(stored, device)
        self.small: dict[str, tuple[EvidenceCase, ...]] = {}
        for case in cases("small", self.gpu):
            self.small[case.step] = (*self.small.get(case.step, ()), case)
        known = [EvidenceCase(*case) for case in stored.get("cases", [])]
        launches = dict(zip(known, stored.get("launches", []), strict=True))
        current = [
            step
            for step, chosen in self.small.items()
            if self.is_current(step)
            and {case: launches[case] for case in known if case.step == step}
            == {case: launch_of(case.step, case.at, self.gpu) for case in chosen}
        ]
        self.verdicts: dict[str, dict[str, int]] = {tool: {} for tool in TOOLS}
        for tool, verdict in stored.get("tools", {}).items():
            # What the tool was asked to do: how the worker is run is no part of that.
            if verdict["command"].partition(" python ")[0] == shown(sanitizer(tool)):
                found = verdict["steps"]
                self.verdicts[tool] = {step: found[step] for step in current if step in found}

    def batches(self, steps: Sequence[str], fresh: bool) -> list[Batch]:
        return [
            Batch(step, self.small[step], tool)
            for tool in TOOLS
            for step in steps
            if step in self.small and (fresh or step not in self.verdicts[tool])
        ]

    def look(self, batch: Batch) -> int:
        return sanitize_batch(batch)

    def keep(self, batch: Batch, errors: int) -> None:
        self.verdicts[batch.tool][batch.step] = errors

    def content(self) -> dict:
        seen = [step for step in self.small if any(step in v for v in self.verdicts.values())]
        chosen = [case for step in seen for case in self.small[step]]
        tools = {
            tool: {
                "command": shown([*sanitizer(tool), *worker_command(["CASE ..."])]),
                "errors": max(found.values()),
                "steps": {step: found[step] for step in self.small if step in found},
            }
            for tool, found in self.verdicts.items()
            if found
        }
        return {
            "hashes": hashes_of(seen),
            "cases": list(map(list, chosen)),
            "launches": [launch_of(case.step, case.at, self.gpu) for case in chosen],
            "tools": tools,
        }

    def complaints(self) -> list[str]:
        return [
            f"{tool} found {errors} errors in {step}"
            for tool, found in self.verdicts.items()
            for step, errors in found.items()
            if errors
        ]


def sanitizer(tool: str) -> list[str]:
    command = ["compute-sanitizer", "--tool", tool]
    # What memcheck says of the driver's functions is not about a kernel: cuda.bindings asks the
    # driver for functions that an older one does not have. A call that fails raises in any case.
    return [*command, "--report-api-errors", "no"] if tool == "memcheck" else command


def sanitize_batch(batch: Batch) -> int:
    """Run the worker under a tool; returns how many errors it reports. Raises `Failure` if it
    gives no summary, or if the worker failed although the tool found nothing."""
    done = run_tool([*sanitizer(batch.tool), *worker_command(batch.cases)])
    summaries = re.findall(r"ERROR SUMMARY: (\d+) error", done.stdout)
    hazards = re.findall(r"RACECHECK SUMMARY: (\d+) hazard", done.stdout)
    errors = max(map(int, (*summaries, *hazards)), default=None)
    if errors is None or (done.returncode and not errors):
        print(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}", file=sys.stderr)
        raise Failure(f"{batch.tool} ended with status {done.returncode} and no error found")
    if errors:
        print("\n".join(done.stdout.splitlines()[:20]), file=sys.stderr)
    return errors
