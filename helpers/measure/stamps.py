"""Records of a kernel whose text changed and whose machine code did not.

A record says which text was measured by a hash, and how it was built by its launches. `Prover`
compiles the old text as recorded and the new one as it is planned now, both for the record's GPU by
the NVRTC that the record names, and compares what the hardware gets. Where all of that is alike the
record is stamped: it takes the new hash and the new launches, and keeps under `stamped` what was
proven. What differs is refused, or left out so that it is measured again.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..base.gpu import of_record
from ..base.json_files import write_json
from ..base.paths import ROOT
from ..catalogue import registry
from ..catalogue.plan import DTYPE_OPTIONS
from ..catalogue.registry import split_trial
from ..problem.shapes import place
from ..run.bound import load
from ..simt.cuda_text import code_hash, strip_comments
from .chains import file_of, load_chains, save_chains, trial_of
from .evidence.cases import EvidenceCase
from .evidence.counters import case_of
from .evidence.part import part_path, read_part
from .evidence.sass import compilations, step_of
from .machine_code import Build, differences
from .races import load_race, save_race
from .records import load_record, save_record, step_hash, utc_now

SIZES = ("grid", "block", "shared_mem")  # of a launch; all else in it are macros


class Refused(RuntimeError):
    """Why something cannot be stamped, in one line."""


@dataclass
class OldTexts:
    """Where the text that was measured is looked for: among the kernels as they are (of which only
    the header may have changed), in a folder laid out like kernels/, in git."""

    folder: Path | None = None
    revision: str = ""  # to be tried before the rest of the history, instead of a record's commit

    def find(self, file: str, wanted: str, commit: str) -> str:
        """The text of a kernel file with that hash. Raises `Refused` if it is nowhere."""
        for text in self._candidates(file, self.revision or commit):
            if text is not None and code_hash(text) == wanted:
                return text
        where = f"in {self.folder} or git" if self.folder else "in git"
        raise Refused(f"no text of kernels/{file}.cu with hash {wanted} {where}")

    def _candidates(self, file: str, revision: str) -> Iterator[str | None]:
        yield self._now(file)
        yield self._in_folder(file)
        yield self._in_git(file, revision)
        # A file of evidence names the commit that it was begun at, and may have gone on later.
        for commit in _git("log", "--format=%H", "--", f"kernels/{file}.cu").split():
            yield self._in_git(file, commit)

    def _now(self, file: str) -> str | None:
        try:
            return registry.source(f"{file}.cu")
        except FileNotFoundError:
            return None

    def _in_folder(self, file: str) -> str | None:
        path = self.folder / f"{file}.cu" if self.folder else None
        return path.read_text(encoding="utf-8") if path and path.is_file() else None

    def _in_git(self, file: str, revision: str) -> str | None:
        return _git("show", f"{revision}:kernels/{file}.cu") or None


def _git(*arguments: str) -> str:
    """What git says; nothing where it or the repository is not there."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.decode("utf-8")


@dataclass
class Prover:
    """Compares what one file of records holds with what would be built now."""

    device: Mapping
    versions: Mapping[str, str]
    old_texts: OldTexts
    builds: dict[str, set] = field(default_factory=dict)  # kernel file -> pairs of options alike
    texts: dict[tuple[str, str], str] = field(default_factory=dict)  # that were found

    def __post_init__(self) -> None:
        """Raises `Refused` if NVRTC is not the record's."""
        self.gpu, self.arch = of_record(self.device), f"sm_{self.device['compute_capability']}"
        if self.versions["nvrtc"] != nvrtc_version():
            raise Refused(
                f"it is of NVRTC {self.versions['nvrtc']}, here is {nvrtc_version()}: "
                "what another compiler makes of both texts proves nothing"
            )

    def launch(
        self, case: EvidenceCase, old_hash: str, launch: Mapping[str, int], inner: int = 1
    ) -> dict:
        """The launch that takes the place of a recorded one. Raises `Refused` if the machine code,
        or the launch in what CUDA sees of it, is another."""
        step, rows, cols, dtype = case
        kernel = self._now(step)
        where = {"gpu": self.gpu, "inner": inner}
        if not kernel.accepts(rows, cols, dtype, **where):
            gone = place(rows, cols, dtype, inner=inner)
            raise Refused(f"the kernel does not take {gone} any more")
        bound = kernel.bind(rows, cols, dtype, **where)
        old = self._text(step, old_hash)
        sizes = {name: launch[name] for name in SIZES}
        if sizes != {name: bound.launch[name] for name in SIZES}:
            now = ", ".join(f"{name} {bound.launch[name]}" for name in SIZES)
            was = ", ".join(f"{name} {number}" for name, number in sizes.items())
            raise Refused(f"the launch was {was}, it is {now}")
        if bool(launch.get("PROGRAMMATIC")) != bound.plan.programmatic:
            raise Refused("only one of both launches is programmatic")
        if (", cooperative" in old.partition('extern "C"')[0]) != bound.plan.cooperative:
            raise Refused("only one of both launches is cooperative")
        self.compare(step, old_hash, old_options(old, step, dtype, launch), bound.options)
        return bound.launch

    def compare(
        self, step: str, old_hash: str, before: tuple[str, ...], after: tuple[str, ...]
    ) -> None:
        """Raise `Refused` unless the old text with its options is the machine code of the new one
        with its own."""
        pairs = self.builds.setdefault(split_trial(step).file, set())
        if (before, after) in pairs:
            return
        old, new = Build(self._text(step, old_hash), before), Build(self._now(step).code, after)
        if lines := differences(old, new, self.arch):
            raise Refused("; ".join(lines))
        pairs.add((before, after))

    def stamp(self, step: str, old_hash: str) -> dict:
        """What was proven of a step's kernel file."""
        file = split_trial(step).file
        return {
            "kernel": file,
            "old_hash": old_hash,
            "new_hash": step_hash(file),
            "nvrtc": nvrtc_version(),
            "arch": self.arch,
            "builds": len(self.builds.get(file, ())),
            "utc": utc_now(),
        }

    def _text(self, step: str, old_hash: str) -> str:
        key = split_trial(step).file, old_hash
        if key not in self.texts:
            self.texts[key] = self.old_texts.find(*key, self.versions.get("commit", ""))
        return self.texts[key]

    def _now(self, step: str):
        try:
            return load(step)
        except (FileNotFoundError, ValueError) as error:
            raise Refused(str(error)) from None


def old_options(text: str, step: str, dtype: str, launch: Mapping[str, int]) -> tuple[str, ...]:
    """How a text was compiled: the macros of a recorded launch and of a trial that its code uses,
    and its dtype."""
    code = strip_comments(text)
    macros = dict(split_trial(step).changes)
    macros |= {name: value for name, value in launch.items() if name not in SIZES}
    options = [
        f"-D{name}={value}" for name, value in macros.items() if re.search(rf"\b{name}\b", code)
    ]
    return (*options, *([DTYPE_OPTIONS[dtype]] if dtype in DTYPE_OPTIONS else []))


def nvrtc_version() -> str:
    """As records have it: "13.0"."""
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


# ---- what is stamped ----------------------------------------------------------------------------


@dataclass
class Outcome:
    """What became of one file: for each name in it (a step, a shape of the race) what was proven,
    and for each case that was not, why."""

    stamped: dict[str, int] = field(default_factory=dict)  # name -> cases
    refused: dict[str, str] = field(default_factory=dict)  # case -> why

    @contextlib.contextmanager
    def of(self, case: str):
        """What refuses within is noted; what follows it there is not done."""
        try:
            yield
        except Refused as refusal:
            self.refused[case] = str(refusal)


def stamp_record(step: str, gpu: str, old_texts: OldTexts, drop: bool = False) -> Outcome:
    """Stamp the record of a step if it is not current. With `drop`, cases that differ are left out;
    else nothing is stamped unless all are alike. Raises `Refused` for another NVRTC."""
    record, outcome = load_record(step, gpu), Outcome()
    if record.is_current():
        return outcome
    prover = Prover(record.device, record.versions, old_texts)
    kept = []
    for case in record.cases:
        wanted = EvidenceCase(step, *case.shape, case.dtype)
        sizes = place(*case.shape, case.dtype, always=True, inner=case.inner)
        name = f"{step} at {sizes}"
        with outcome.of(name):
            launch = prover.launch(wanted, record.kernel_hash, case.launch, case.inner)
            kept.append(replace(case, launch=launch))
    if kept and (drop or not outcome.refused):
        record.stamped.append(prover.stamp(step, record.kernel_hash))
        record.kernel_hash, record.cases = step_hash(step), kept
        save_record(record, gpu)
        outcome.stamped[step] = len(kept)
    return outcome


def stamp_race(gpu: str, old_texts: OldTexts) -> Outcome:
    """Stamp those cases of a race that are not current and whose kernel would be chosen now; the
    others stay as they are, to be raced again. Raises `Refused` for another NVRTC."""
    race, outcome = load_race(gpu), Outcome()
    if all(case.is_current() for case in race.cases):
        return outcome
    prover = Prover(race.device, race.versions, old_texts)
    cases, proven = [], {}
    for case in race.cases:
        name = f"{case.step} at {case.entry.name}"
        chosen = case.kind.choose(*case.shape, case.dtype, case.gpu)
        if case.step != chosen:
            outcome.refused[name] = f"{chosen} would be chosen now"
        elif not case.is_current():
            wanted = EvidenceCase(case.step, *case.shape, case.dtype)
            with outcome.of(name):
                launch = prover.launch(wanted, case.kernel_hash, case.launch, case.inner)
                proven[case.step, case.kernel_hash] = True
                outcome.stamped[case.step] = outcome.stamped.get(case.step, 0) + 1
                case = replace(case, kernel_hash=step_hash(case.step), launch=launch)
        cases.append(case)
    if proven:
        race.cases = cases
        race.stamped += [prover.stamp(*key) for key in proven]
        save_race(race, gpu)
    return outcome


def stamp_chains(gpu: str, old_texts: OldTexts) -> Outcome:
    """Stamp those cases of chain.json that are not current and of which all kernels are alike; the
    others stay as they are, to be timed again. Raises `Refused` for another NVRTC."""
    chains, outcome = load_chains(gpu), Outcome()
    if all(case.is_current() for case in chains.cases):
        return outcome
    prover = Prover(chains.device, chains.versions, old_texts)
    proven = {}
    for number, case in enumerate(chains.cases):
        where = case.entry.name
        with outcome.of(f"{where}, {case.state}"):
            if case.is_current():
                continue
            launches = {}
            for name, launch in case.launches.items():
                wanted = EvidenceCase(trial_of(name), *case.shape, case.dtype)
                old_hash = case.hashes[file_of(name)]
                launches[name] = prover.launch(wanted, old_hash, launch, case.inner)
            proven |= dict.fromkeys(case.hashes.items())
            hashes = {file: step_hash(file) for file in case.hashes}
            chains.cases[number] = replace(case, launches=launches, hashes=hashes)
            outcome.stamped[where] = outcome.stamped.get(where, 0) + 1
    if proven:
        chains.stamped += [prover.stamp(*key) for key in proven]
        save_chains(chains, gpu)
    return outcome


def stamp_evidence(name: str, gpu: str, old_texts: OldTexts, drop: bool = False) -> Outcome:
    """Stamp the kernel files of counters.json, sass.json or sanitizer.json of which everything is
    alike. With `drop`, what differs is left out, so that `make evidence` looks at it again. Raises
    `Refused` for another NVRTC if anything is not current."""
    stored, outcome = dict(read_part(name, gpu)), Outcome()
    entries = {"counters": _Counters, "sass": _Sass, "sanitizer": _Sanitizer}[name](stored)
    prover, stamps = None, []
    for file, old_hash in stored["hashes"].items():
        keys = [key for key in entries.found if split_trial(entries.step(key)).file == file]
        if _is_gone(file) or (old_hash == step_hash(file) and not entries.stale(keys)):
            continue
        prover = prover or Prover(stored["device"], stored["versions"], old_texts)
        proven = {}
        for key in keys:
            with outcome.of(entries.shown(key)):
                proven[key] = entries.proven(key, old_hash, prover)
        if proven and (drop or len(proven) == len(keys)):
            entries.found = {
                key: proven.get(key, entry)
                for key, entry in entries.found.items()
                if key in proven or key not in keys
            }
            stored["hashes"] = {**stored["hashes"], file: step_hash(file)}
            stamps.append(prover.stamp(file, old_hash))
            outcome.stamped[file] = len(proven)
    if stamps:
        stamped = [*stored.get("stamped", []), *stamps]
        write_json(part_path(name, gpu), {**stored, **entries.content(), "stamped": stamped})
        read_part.cache_clear()
    return outcome


def _is_gone(file: str) -> bool:
    """Whether a kernel file is not there any more; `make evidence` drops what it has of it."""
    return file not in (*registry.steps(), *registry.variants())


class _Counters:
    """The entries of counters.json, by case."""

    def __init__(self, stored: dict):
        self.found = {case_of(entry): entry for entry in stored["cases"]}
        self.gpu = of_record(stored["device"])

    def step(self, case: EvidenceCase) -> str:
        return case.step

    def shown(self, case: EvidenceCase) -> str:
        return f"{case.step} at {place(*case[1:], always=True)}"

    def launch(self, entry) -> Mapping[str, int]:
        return entry["launch"]

    def stale(self, cases: Sequence[EvidenceCase]) -> bool:
        """Whether any of the launches is not that of now."""
        return any(self.launch(self.found[case]) != self._now(case) for case in cases)

    def _now(self, case: EvidenceCase) -> dict[str, int] | None:
        try:
            kernel = load(case.step)
        except (FileNotFoundError, ValueError):
            return None
        where = (*case[1:], self.gpu)
        return kernel.bind(*where).launch if kernel.accepts(*where) else None

    def proven(self, case: EvidenceCase, old_hash: str, prover: Prover) -> dict:
        entry = self.found[case]
        return {**entry, "launch": prover.launch(case, old_hash, entry["launch"])}

    def content(self) -> dict:
        return {"cases": list(self.found.values())}


class _Sanitizer(_Counters):
    """The launches of sanitizer.json, by case. A step of which one is gone has no verdict."""

    def __init__(self, stored: dict):
        cases = [EvidenceCase(*case) for case in stored["cases"]]
        self.found = dict(zip(cases, stored["launches"], strict=True))
        self.complete = list(cases)
        self.tools = stored["tools"]
        self.gpu = of_record(stored["device"])

    def launch(self, entry) -> Mapping[str, int]:
        return entry

    def proven(self, case: EvidenceCase, old_hash: str, prover: Prover) -> dict:
        return prover.launch(case, old_hash, self.found[case])

    def content(self) -> dict:
        torn = {case.step for case in self.complete if case not in self.found}
        kept = {case: launch for case, launch in self.found.items() if case.step not in torn}
        tools = {}
        for tool, verdict in self.tools.items():
            steps = {step: n for step, n in verdict["steps"].items() if step not in torn}
            tools[tool] = {**verdict, "errors": max(steps.values(), default=0), "steps": steps}
        cases, launches = list(map(list, kept)), list(kept.values())
        return {"cases": cases, "launches": launches, "tools": tools}


class _Sass:
    """The disassemblies of sass.json, by name."""

    def __init__(self, stored: dict):
        self.found = dict(stored["kernels"])
        found = compilations(of_record(stored["device"]))
        self.options = {name: options for name, _, options in found}

    def step(self, name: str) -> str:
        return step_of(name)

    def shown(self, name: str) -> str:
        return name

    def stale(self, names: Sequence[str]) -> bool:
        wanted = {name: list(self.options.get(name, ())) for name in names}
        return any(self.found[name]["options"] != wanted[name] for name in names)

    def proven(self, name: str, old_hash: str, prover: Prover) -> dict:
        if name not in self.options:
            raise Refused("it is not compiled any more")
        entry, now = self.found[name], self.options[name]
        prover.compare(step_of(name), old_hash, tuple(entry["options"]), now)
        return {**entry, "options": list(now)}

    def content(self) -> dict:
        return {"kernels": self.found}
