"""Timings for a notebook, measured on a GPU or replayed from the records without one, and the
prediction of a step: the question with choices, the reader's answer, our answer with its
calculation, and afterwards how far both are from the measurement.

Questions and our predictions, written before the measurement, are in
notebooks/records/predictions.json. The reader's are stored in mine/predictions.json, step ->
{"share": fraction of a copy's speed, "utc": time}. If SOFTMAX_REPLAY=1 forces a replay, as for
committed outputs, that file is neither read nor written, so that no output depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from operator import attrgetter

from ..base.arguments import checked, short
from ..base.gpu import describe_device, describe_versions, replay_is_forced, replaying
from ..base.json_files import named, read_json, write_json
from ..base.paths import MINE
from ..catalogue.dispatch import changes_of
from ..catalogue.registry import COPY, UNFUSED, split_trial, steps
from ..catalogue.store import Run, recorded_gpus, shown_gpu, utc_now
from ..measure import bench
from ..measure.records import (
    Case,
    Record,
    has_record,
    load_record,
    predicted_at,
    predictions,
    step_hash,
)
from ..problem.problem import Problem
from ..problem.shapes import LIVE_SHAPES
from ..run.bound import BoundKernel, Kernel, kernel_of, load
from ..simt.cuda_text import token_hash
from .rich import Page, caption, details, escape, wrapped


@dataclass
class LiveRecord(Record):
    """Timings of a kernel object of the notebook, measured live at the shapes of one family, with
    as many rows as fit on this GPU."""

    now: Run
    shapes: str  # the name of that family

    @property
    def run(self) -> Run:
        return self.now

    def of_family(self, shapes: str = "grid", dtype: str = "float32") -> list[Case]:
        """As `Record.of_family`; the measured family includes all cases, whatever their rows."""
        if shapes != self.shapes or shapes == "few":
            return super().of_family(shapes, dtype)
        return sorted((case for case in self.cases if case.dtype == dtype), key=attrgetter("cols"))

    @property
    def label(self) -> str:
        return f"{self.device['name']}, now"

    def origin(self) -> str:
        versions = self.run.versions
        return (
            f"measured now on {self.device['name']} (driver {versions['driver']}, "
            f"NVRTC {versions['nvrtc']}, CuPy {versions['cupy']})"
        )


def timings(
    kernels: Mapping[str, object], dtype: str = "float32", shapes: str = "grid"
) -> list[Record]:
    """Timings of several steps with those of a same-size copy kernel, in the given order.

    `kernels` maps the name of a step to its `cupy.RawKernel`, to the text of its file if it is
    compiled for each shape, or to None for the array version "00_unfused"; the name of a trial has
    the features of its record, "12_fused-MASK2". In replay mode the records of `store.shown_gpu`
    are returned. Live, the given kernels are timed in turn in `dtype` at five or six shapes of a
    family of `shapes.LIVE_SHAPES`, which takes some seconds, each with its bandwidth baseline.
    Shapes that a kernel refuses are skipped for it.

    Raises `FileNotFoundError` if a step has no record, `Failure` that names a kernel which is wrong
    or cannot be launched, `TypeError` or `ValueError` for other arguments.
    """
    if not isinstance(kernels, Mapping):
        kind = type(kernels).__name__
        raise TypeError(
            f"timings takes a dict of name -> kernel, as {{'01_naive': kernel}}; not a {kind}"
        )
    if not isinstance(shapes, str) or shapes not in LIVE_SHAPES:
        raise ValueError(f"shapes are one of {', '.join(LIVE_SHAPES)}, not {short(shapes)}")
    if replaying():
        return [_recorded(name, kernel) for name, kernel in kernels.items()]
    return _measure_now(kernels, dtype, shapes)


def _recorded(name: str, kernel: object | None) -> Record:
    """The record of a step. If the kernel is neither the series' nor a recorded one, a sentence
    says so, and the record has no cases: no time of another kernel stands for it."""
    record = load_record(name)
    text = kernel if kernel is None else token_hash(text_of(kernel))
    if text in (None, step_hash(name)):
        return record
    cases = [case for case in record.cases if case.kernel_hash == text]
    if not cases:
        says = (
            f"{name}: to be measured. Your kernel is not the recorded one, so it has no recorded "
        )
        print(*wrapped(f"{says}time; on a GPU, this cell times it."), sep="\n")
    return replace(record, cases=cases)


def text_of(kernel) -> str:
    return kernel if isinstance(kernel, str) else kernel.code


def as_named(name: str, kernel) -> Kernel:
    """A kernel with the changes in the name of a trial: "12_fused-MASK2" from the text of
    12_fused."""
    unbound = kernel_of(kernel)
    if unbound.raw is not None:
        return unbound
    trial = split_trial(name)
    return kernel_of(unbound, trial.block, dict(changes_of(trial, unbound.header)))


def _measure_now(kernels: Mapping[str, object], dtype: str, shapes: str) -> list[Record]:
    named = {name: as_named(name, kernel) for name, kernel in kernels.items() if kernel is not None}

    now = Run(describe_device(), describe_versions(), utc_now(), bench.PROTOCOL)
    records = {name: LiveRecord(name, [], now, shapes) for name in kernels}
    for rows, cols, *inner in bench.shapes_that_fit(LIVE_SHAPES[shapes], bench.LIVE_BYTES):
        at = Problem(rows, cols, dtype, *inner)
        bound = {
            name: kernel.bind(rows, cols, dtype, inner=at.inner)
            for name, kernel in named.items()
            if kernel.accepts(rows, cols, dtype, inner=at.inner)
        }
        makers = {name: partial(_candidate, one) for name, one in bound.items()}
        if UNFUSED in kernels and at.inner == 1:
            makers[UNFUSED] = bench.unfused_candidate
        together: dict[Problem, dict[str, bench.Maker]] = {}  # kernels of the same problem
        for name in filter(makers.__contains__, kernels):
            problem = bound[name].problem if name in bound else at
            problem = at if problem.plain else problem  # for example a copy
            together.setdefault(problem, {})[name] = makers[name]
        for problem, some in together.items():
            measured = bench.measure(some, problem)
            for name in some:
                text = UNFUSED if kernels[name] is None else token_hash(text_of(kernels[name]))
                case = Case(problem, now, **vars(measured[name]), step=name, kernel_hash=text)
                records[name].cases.append(case)
    return list(records.values())


def _candidate(bound: BoundKernel, *_) -> bench.Candidate:
    return bench.kernel_candidate(bound)


def recorded_beside(record: Record) -> list[Record]:
    """Records of the same step to draw as dotted lines: those of the other GPUs, and for a live
    measurement also that of `shown_gpu`; none beside a live kernel that is not the series'."""
    live = isinstance(record, LiveRecord)
    if live and any(case.kernel_hash != step_hash(record.step) for case in record.cases):
        return []
    return [
        load_record(record.step, gpu)
        for gpu in recorded_gpus()
        if has_record(record.step, gpu) and (live or gpu != shown_gpu())
    ]


# ---- predictions --------------------------------------------------------------------------------

LARGEST = 1.5  # accepted range of predictions
ASK = "Enter yours, for example my_prediction = 0.3, and run the cell again."


@checked
def predict(step: str, my_prediction: object = None) -> None:
    """Show the question of a step, three choices, the reader's answer, and ours with its
    calculation.

    `my_prediction` is a fraction of a copy's speed, above 0 and at most 1.5, and is stored for
    later notebooks; None means the stored one. For anything else it shows what to enter instead.
    Raises `ValueError` that lists the steps for a step without a question.
    """
    if step not in asked():
        raise ValueError(f"there are questions for {', '.join(asked())}, not for {step!r}")
    _page(step, _answer(step, my_prediction)).display()


def outcome(measured: float, mine: float, ours: float | None) -> None:
    """Print how far the reader's prediction and ours are from the measurement, all fractions of a
    copy's speed; `ours` is None where there is none."""
    says = f"; ours was {_off(ours, measured)}" if ours else ""
    print(f"Your prediction was {_off(mine, measured)}{says}.")


def _off(predicted: float, measured: float) -> str:
    """How far a prediction is from the measurement, both to two digits."""
    off = round(predicted, 2) - round(measured, 2)
    return f"{abs(off):.2f} too {'high' if off > 0 else 'low'}" if abs(off) > 1e-9 else "right"


def asked() -> list[str]:
    """The steps with a question, in the order of the notebooks."""
    return sorted(step for step, entry in predictions().items() if "question" in entry)


def mine_of(step: str, my_prediction: object = None) -> float | None:
    """The reader's prediction to draw with a step: `my_prediction`, or the stored one if it is
    None; None if there is neither, or it is out of range."""
    if my_prediction is None:
        return kept().get(step)
    return float(my_prediction) if is_share(my_prediction) else None


def is_share(value: object) -> bool:
    """Whether a value is a possible fraction of a copy's speed: a number above 0 and at most
    1.5."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < value <= LARGEST


# ---- the reader's file ------------------------------------------------------------------------


def kept() -> dict[str, float]:
    """Step -> the reader's stored prediction; empty in a forced replay and if the file is damaged.
    Invalid entries are ignored."""
    if replay_is_forced():
        return {}
    try:
        entries = read_json(MINE / "predictions.json")
    except (OSError, ValueError):
        return {}
    shares = {step: entry.get("share") for step, entry in entries.items() if type(entry) is dict}
    return {step: float(share) for step, share in shares.items() if is_share(share)}


def keep(step: str, share: float) -> str:
    """Store a prediction, except in a forced replay. Returns why that failed, or ""."""
    if replay_is_forced() or kept().get(step) == share:
        return ""
    path = MINE / "predictions.json"
    try:
        entries = read_json(path) if path.exists() else {}
        write_json(path, {**entries, step: {"share": share, "utc": utc_now()}})
    except ValueError as error:
        return f"It is not kept: {error}."
    except OSError:
        return f"It is not kept: {named(path)} cannot be written."
    return ""


def _answer(step: str, my_prediction: object) -> str:
    """The sentence under the choices: the reader's answer, or how to give one."""
    if my_prediction is None:
        before = mine_of(step)
        return ASK if before is None else f"Yours, from before: {before:.2f}."
    if not is_share(my_prediction):
        return hint(my_prediction)
    share = float(my_prediction)
    return f"Yours: {share:.2f}. {keep(step, share)}".rstrip()


def hint(value: object) -> str:
    """One sentence on what to enter instead of a value that is no fraction of a copy's speed."""
    if isinstance(value, str):
        return "Enter a number without quotation marks, such as my_prediction = 0.3."
    if isinstance(value, Real) and 2 <= value <= 100:
        return f"If {value} means percent, enter the fraction: my_prediction = {value / 100:g}."
    says = "is no fraction of copy bandwidth: enter a number above 0, where 1 is a copy's speed"
    return f"{short(value)} {says}."


# ---- the page ---------------------------------------------------------------------------------


def _page(step: str, answer: str) -> Page:
    """Question, choices, answer, and ours with its calculation, folded."""
    entry, page = predictions()[step], Page()
    question = escape(entry["question"])
    page.say(f"Your prediction. {entry['question']}", f"<b>Your prediction.</b> {question}", 0)
    for share, why in entry["choices"]:
        page.say(f"  {share:.2f}: {why}", f"<b>{share:.2f}</b>: {escape(why)}", 8)
    page.say(answer, re.sub(r"my_prediction = [\d.]*\d", r"<code>\g<0></code>", escape(answer)), 0)
    title = "Our prediction, with its calculation"
    copies = step not in steps() or load(step).operation.bandwidth_baseline == COPY
    whose = "copy" if copies else "the baseline's"
    said = f"{entry['share']:.2f} of {whose} bandwidth at "
    said += f"{predicted_at(step).place()}, written before the measurement. The reason: "
    said += f"{entry['because']}."
    sums = "The calculation, written out later:"
    page.plain += ["", *wrapped(f"{title}: {said}"), sums, *(f"  {line}" for line in entry["sum"])]
    calculation = escape("\n".join(entry["sum"]))
    ours = f"{caption(escape(said))}{caption(sums)}<pre>{calculation}</pre>"
    page.html.append(details(title, ours))
    return page
