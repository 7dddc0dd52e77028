"""Stamp records whose kernel's text changed and whose machine code did not:
`python -m helpers.commands.restamp`.

The text that was measured is known by its hash; it comes from a folder laid out like kernels/, or
from git: the commit that the record names, --revision, or any other. Both texts are compiled as
they are launched, for the record's GPU and with the NVRTC that the record names (another one is
refused: run this where that one is), and what the hardware gets is compared. What is alike takes
the new hash and launch, and a note of what was proven; what differs is named, keeps its old hash,
and makes the exit status 1, or with --drop is left out, so that `make record` and `make evidence`
look at it again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..catalogue.registry import known_steps
from ..measure.chains import chains_path
from ..measure.evidence.part import part_path
from ..measure.races import race_path
from ..measure.records import REFERENCE_GPU, record_path, recorded_gpus
from ..measure.stamps import (
    OldTexts,
    Outcome,
    Refused,
    stamp_chains,
    stamp_evidence,
    stamp_race,
    stamp_record,
)
from ..simt.words import counted

PARTS = ("records", "race", "chain", "counters", "sass", "sanitizer")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status: 0 if all that was asked for is current now."""
    options = parse_arguments(arguments)
    old_texts = OldTexts(options.old, options.revision)
    works: list[tuple[str, Path, Callable[[], Outcome]]] = []
    for part in options.only:
        if part == "records":
            for step in options.steps:
                path = record_path(step, options.gpu)
                work = partial(stamp_record, step, options.gpu, old_texts, options.drop)
                works.append((step, path, work))
        elif part == "race":
            work = partial(stamp_race, options.gpu, old_texts)
            works.append((part, race_path(options.gpu), work))
        elif part == "chain":
            work = partial(stamp_chains, options.gpu, old_texts)
            works.append((part, chains_path(options.gpu), work))
        else:
            work = partial(stamp_evidence, part, options.gpu, old_texts, options.drop)
            works.append((part, part_path(part, options.gpu), work))
    stamped = differing = refused = 0
    for name, path, work in works:
        if not path.is_file():
            continue
        try:
            outcome = work()
        except (Refused, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            refused += 1
            continue
        for one, cases in outcome.stamped.items():
            where = "" if one == name else f"{name}: "
            print(f"{where}{one}: {counted(cases, 'case')} stamped", flush=True)
        stamped += len(outcome.stamped)
        reasons: dict[str, list[str]] = {}
        for case, why in outcome.refused.items():
            reasons.setdefault(why, []).append(case)
        for why, cases in reasons.items():
            more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
            print(f"{name}: {cases[0]}{more}: {why}", file=sys.stderr)
        differing += bool(outcome.refused)
    parts = [f"{stamped} stamped"]
    parts += [f"{differing} with cases that differ"] if differing else []
    parts += [f"{refused} not looked at"] if refused else []
    print(", ".join(parts))
    return 1 if differing or refused else 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m helpers.commands.restamp", description=__doc__)
    parser.add_argument("--gpu", default=REFERENCE_GPU, choices=recorded_gpus())
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="only these files")
    known = known_steps()
    parser.add_argument(
        "--steps",
        nargs="+",
        metavar="STEP",
        choices=known,
        default=known,
        help="only these records",
    )
    parser.add_argument("--old", type=Path, metavar="FOLDER", help="the kernels as they were")
    parser.add_argument("--revision", default="", help="the kernels as they were, in git")
    parser.add_argument("--drop", action="store_true", help="leave out what differs")
    options = parser.parse_args(arguments)
    if options.old and not options.old.is_dir():
        parser.error(f"--old: there is no folder {options.old}")
    return options


if __name__ == "__main__":
    sys.exit(main())
