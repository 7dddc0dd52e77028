"""The conditions on an answer: each in words, with a check.

A complaint is a sentence that names shape, line and numbers, or "" if the condition holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath

import numpy as np

from ..page.draw.charts import times
from ..page.rich import tokens_of
from ..run.references import make_input, special_rows
from ..simt import Counters, Finding, Findings, Trace
from ..simt.hardware import SECTOR
from ..simt.words import are, counted
from .attempt import Attempt, Execution, Goal, Shape, first_wrong, limit, unwritten

Shapes = tuple[Shape, ...]
OfAttempt = Callable[[Attempt, Shapes], str]
OfRun = Callable[[Execution], str]

WAITING = 100_000  # instructions after which a thread that polls for a message is stopped


@dataclass(frozen=True)
class Condition:
    """`asked` is the condition in words; `complaint` returns how an attempt violates it at one of
    the shapes, or ""."""

    asked: str
    complaint: OfAttempt


def of_attempts(asked: str) -> Callable[[OfAttempt], Condition]:
    """Decorate a complaint about an attempt."""
    return partial(Condition, asked)


def of_runs(asked: str) -> Callable[[OfRun], Condition]:
    """Decorate a complaint about a run: the run at no shape may give one."""

    def condition(complaint: OfRun) -> Condition:
        def at(attempt: Attempt, shapes: Shapes) -> str:
            return first(_at(run, complaint(run)) for run in map(attempt.run, shapes))

        return Condition(asked, at)

    return condition


def first(complaints: Iterable[str]) -> str:
    return next(filter(None, complaints), "")


def _at(run: Execution, complaint: str) -> str:
    """A complaint with its shape."""
    return f"At {' x '.join(map(str, run.x.shape))}, {complaint}" if complaint else ""


# ---- conditions of every exercise ---------------------------------------------------------------

compiles = of_runs("it compiles")(lambda run: "")  # compiler errors are raised


def _bug(run: Execution) -> str:
    findings = run.trace.findings
    return of_finding(worst(findings), run.file) if findings else ""


no_bug = of_runs("it terminates, and the SIMT machine reports no error")(_bug)


def right(asked: str, goal: Goal) -> Condition:
    return of_runs(asked)(lambda run: first_wrong(run.y, goal(run.x)))


def right_on_special(goal: Goal, cols: int, columns: bool) -> list[Condition]:
    """y is right for rows (or columns) of `cols` elements in which the exponential overflows with a
    wrong maximum and softmax itself underflows, and for rows with -inf, NaN and +inf."""
    lines, along = ("columns", "a column") if columns else ("rows", "a row")

    def right_on(asked: str, make: Callable[[str], np.ndarray]) -> Condition:
        def complaint(attempt: Attempt, _: Shapes) -> str:
            x = make(attempt.dtype)
            run = attempt.run_on(asked, np.ascontiguousarray(x.T) if columns else x)
            return _at(run, _bug(run) or first_wrong(run.y, goal(run.x)))

        return Condition(asked, complaint)

    return [
        right_on(
            f"it is also correct where the values in {along} differ by hundreds",
            lambda dtype: 20 * make_input(8, cols, dtype=dtype),
        ),
        right_on(
            f"it is also correct for {lines} with -inf, NaN and +inf",
            lambda dtype: special_rows(cols, dtype),
        ),
    ]


# ---- memory traffic -----------------------------------------------------------------------------


def moves(reads: int, beside: float = 0.05) -> Condition:
    """x is read at most `reads` times, and y written once; `beside` is the allowed fraction of x
    for messages of other blocks."""

    @of_runs(f"x is read {times(reads)}, y is written once")
    def condition(run: Execution) -> str:
        read, written = run.passes
        if read > reads + beside:
            return f"x is read {times(read)}, in {_lines(run.trace, 'load_bytes')}"
        if written > 1 + beside:
            return f"y is written {times(written)}, in {_lines(run.trace, 'store_bytes')}"
        return ""

    return condition


def loads_seen_packs(window: int | None) -> Condition:
    """Fully masked packs of four columns are not loaded; see `softmax_of_seen`."""

    @of_runs("fully masked packs are not loaded")
    def condition(run: Execution) -> str:
        enough = 0
        for row in range(run.x.shape[0]):
            begin = 0 if window is None else max(0, row - window + 1)
            end = min(row, run.x.shape[1] - 1)
            enough += max(0, end // 4 - begin // 4 + 1) * 16
        if run.counters.load_bytes <= enough:
            return ""
        return (
            f"{run.counters.load_bytes} bytes of x are loaded, in "
            f"{_lines(run.trace, 'load_bytes')}; the packs that are not fully masked total "
            f"{enough} bytes"
        )

    return condition


@of_runs("a warp's lanes touch no more sectors than necessary")
def coalesced(run: Execution) -> str:
    """A warp touches no more sectors than its bytes fill, or 1.5 times as many if rows do not begin
    at sectors."""
    aligned = run.x.shape[1] * run.x.itemsize % SECTOR == 0
    ratio = run.counters.fetch_ratio
    if ratio <= (1.0 if aligned else 1.5):
        return ""

    def excess(counters: Counters) -> int:
        sectors = counters.load_sectors + counters.store_sectors
        return sectors * SECTOR - counters.load_bytes - counters.store_bytes

    line, one = _worst_line(run.trace, excess)
    requests = one.load_requests + one.store_requests
    used = (one.load_bytes + one.store_bytes) / requests
    moved = (one.load_sectors + one.store_sectors) / requests * SECTOR
    return (
        f"the requests touch {ratio:.2g} bytes for every byte that they use. In line {line}, a "
        f"request uses only {used:.3g} of the {moved:.4g} bytes in the sectors that it touches: do "
        "neighbouring lanes access neighbouring floats?"
    )


def wide(least: Callable[[int, int], tuple[int, int]], asked: str) -> Condition:
    """The number of warp loads and stores is at most `least(rows, cols)`: every lane moves 16
    bytes."""

    @of_runs(asked)
    def condition(run: Execution) -> str:
        for verb, enough in zip(("load", "store"), least(*run.x.shape), strict=True):
            requests = f"{verb}_requests"
            count = vars(run.counters)[requests]
            if count <= enough:
                continue
            line, one = _worst_line(run.trace, lambda one, name=requests: vars(one)[name])
            each = vars(one)[f"{verb}_bytes"] / vars(one)[requests]
            return (
                f"warps execute {count} {verb}s where {enough} are enough; those in line {line} "
                f"move {each:.3g} bytes on average, and up to 512 are possible (16 per lane)"
            )
        return ""

    return condition


@of_runs("there are no bank conflicts")
def no_bank_conflicts(run: Execution) -> str:
    def conflicts(counters: Counters) -> int:
        return counters.shared_load_bank_conflicts + counters.shared_store_bank_conflicts

    if not (extra := conflicts(run.counters)):
        return ""
    line, one = _worst_line(run.trace, conflicts)
    requests = one.shared_load_requests + one.shared_store_requests
    return (
        f"bank conflicts cost {extra} extra wavefronts; an access of a warp in line {line} takes "
        f"{conflicts(one) / requests + 1:.2g} wavefronts where one would be enough"
    )


# ---- registers, shared memory and shuffles ------------------------------------------------------


@of_runs("no local memory is used")
def in_registers(run: Execution) -> str:
    lines = _lines(run.trace, "local_load_requests", "local_store_requests")
    if not lines:
        return ""
    return (
        f"an array is in local memory, which is as slow as x; it is used in {lines}. Registers "
        "have no addresses: the compiler must know every index, so every loop over the array must "
        "be unrolled"
    )


@of_attempts("at most twelve shuffles, no shared memory, no barrier")
def by_shuffles(attempt: Attempt, shapes: Shapes) -> str:
    """As many shuffles as two butterflies of 32 lanes or two trees with a broadcast."""
    run = attempt.run(shapes[-1])
    if lines := _lines(run.trace, "shared_load_requests", "shared_store_requests"):
        return _at(run, f"shared memory is used in {lines}")
    if line := _line_with(r"__syncthreads|__syncwarp", attempt):
        return f"Line {line}: a barrier; the lanes of a warp do not need one"
    trace = attempt.watch((1, shapes[-1][1]))
    count = sum(event.kind == "shuffle" and event.warp == 0 for event in trace.events)
    if count > 12:
        return f"A warp executes {count} shuffles; five for each of two numbers are enough"
    return ""


@of_attempts("each mask names the lanes that take part")
def named_lanes(attempt: Attempt, _: Shapes) -> str:
    """The mask of a shuffle is not taken from the hardware (`__activemask`)."""
    if not (line := _line_with(r"__activemask\b|\bactivemask\b", attempt)):
        return ""
    return (
        f"Line {line}: __activemask() says which lanes happen to run together, which may differ "
        "from run to run. Name the lanes that take part; each must execute the shuffle"
    )


# ---- single exercises ---------------------------------------------------------------------------


@of_runs("pairs are merged in a tree, many at a time")
def a_tree(run: Execution) -> str:
    """A tree of 96 threads has 48 + 24 + 12 + 6 + 3 + 2 + 1 merges, and loads two pairs for each; a
    row may need half as many again of a warp's loads."""
    rows, most = run.x.shape[0], 150
    loads = run.counters.shared_load_requests / rows
    if loads <= most:
        return ""
    line, _ = _worst_line(run.trace, lambda one: one.shared_load_requests)
    return (
        f"warps execute {loads:.0f} loads from shared memory per row, where a tree needs fewer "
        f"than {most}: line {line} merges too many pairs one after the other"
    )


@of_attempts("columns are compared two at a time")
def two_at_a_time(attempt: Attempt, shapes: Shapes) -> str:
    """Pairs of 16-bit columns are compared without conversion."""
    ptx = attempt.run(shapes[0]).trace.ptx
    count = len(re.findall(r"\bmax(?:\.\w+)*\.f16x2\b", ptx))
    return "" if count >= 3 else f"{count or 'No'} __hmax2 was found; four pairs need three"


@of_attempts("every block has rows")
def no_idle_blocks(attempt: Attempt, shapes: Shapes) -> str:
    """Sixteen threads take a row."""
    rows, cols = shapes[0]
    plan = attempt.bind(rows, cols).plan
    enough = -(-rows * 16 // plan.block)
    if plan.grid <= enough:
        return ""
    return (
        f"At {rows} x {cols}, {plan.grid} blocks are launched, but {enough} are enough: the "
        "header's Launch sets their number"
    )


@of_attempts("nothing is sent to a block that may not have started")
def sent_after_start(attempt: Attempt, _: Shapes) -> str:
    """A warp passes a cluster barrier before it first accesses another block's memory."""
    trace = attempt.watch((2, 64))
    met = {}
    for event in trace.events:
        if event.kind == "cluster leave":
            met.setdefault((event.block, event.warp), event.step)
    for access in trace.accesses:
        before = met.get((access.block, access.warp))
        if access.memory == "remote" and (before is None or access.step < before):
            return (
                f"A pair is sent (line {access.line}) to a block that may not have started; until "
                "then, it has no shared memory. What ensures that all four have started?"
            )
    return ""


# ---- messages ----------------------------------------------------------------------------------


@of_attempts("a block waits for the messages of the others, however late they are")
def waits_for_messages(attempt: Attempt, _: Shapes) -> str:
    """Blocks of the SIMT machine run in lockstep, so a message has arrived when it is polled. A
    block whose neighbours never start must poll forever."""
    alone = _first_block_alone(attempt, {})[0]
    if not alone.findings:
        return "A block continued although the other blocks of its row had not started"
    if "waits for a store" in alone.findings[0].message:
        return ""
    return f"With the other blocks late, {of_finding(alone.findings[0], attempt.file)}"


def empties_slots(received: list[int], sent: list[int]) -> Condition:
    """Block 0 of a row empties the slots `received` and leaves messages in those of `sent`."""

    @of_attempts("a block empties its own slots, and no others")
    def condition(attempt: Attempt, _: Shapes) -> str:
        for rows, cols in ((3, 5), (40, 64)):
            bound = attempt.bind(rows, cols)
            x = make_input(rows, cols, dtype=attempt.dtype)
            values = bound.arguments(x, unwritten(x))
            bound.simulate_arguments(values, instruction_limit=limit(x.shape))
            if left := int(np.count_nonzero(values[-1].view(np.uint64))):
                return (
                    f"At {rows} x {cols}, {counted(left, 'message')} {are(left)} left in their "
                    "slots after the launch, and the next launch would take them for its own"
                )
        # A block whose messages are already there must not empty the slots that others poll.
        slots = _first_block_alone(attempt, dict.fromkeys(received, (0.0, 1.0)))[1]
        return (
            ""
            if slots[sent].all()
            else "A block empties a slot that its owner may not have read yet"
        )

    return condition


def _first_block_alone(
    attempt: Attempt, messages: dict[int, tuple[float, float]]
) -> tuple[Trace, np.ndarray]:
    """Run one row of which only block 0 starts, with these pairs (row_max, sum) in slots; return
    the trace and the content of the slots at the end."""
    x = make_input(1, 64, dtype=attempt.dtype)
    bound = attempt.bind(*x.shape)
    values = bound.arguments(x, unwritten(x))
    pairs = values[-1].view(np.float32).reshape(-1, 2)
    for slot, pair in messages.items():
        pairs[slot] = pair
    trace = bound.simulate_arguments(values, grid=1, instruction_limit=WAITING)
    return trace, values[-1].view(np.uint64)


# ---- lines --------------------------------------------------------------------------------------


def _lines(trace: Trace, *counts: str) -> str:
    """The learner's lines in which one of these counters is not 0: "lines 31 and 36"."""
    numbers = [
        str(number)
        for number, counters in trace.own_counters().items()
        if any(vars(counters)[count] for count in counts)
    ]
    if len(numbers) < 2:
        return f"line {numbers[0]}" if numbers else ""
    return f"lines {', '.join(numbers[:-1])} and {numbers[-1]}"


def _worst_line(trace: Trace, badness: Callable[[Counters], float]) -> tuple[int, Counters]:
    return max(trace.own_counters().items(), key=lambda line: badness(line[1]))


def _line_with(pattern: str, attempt: Attempt) -> int:
    """The first line of the file that matches `pattern` outside comments; 0 if there is none."""
    for number, tokens in enumerate(tokens_of(attempt.code)):  # 0 is the #line directive
        if re.search(pattern, "".join(text for kind, text in tokens if kind != "comment")):
            return number
    return 0


# ---- bugs and compiler errors -------------------------------------------------------------------

# Barriers first: divergent threads cause races and wrong reads.
FIRST = ("barrier", "lane", "hang", "out-of-bounds", "misaligned")


def worst(findings: Findings) -> Finding:
    """The diagnostic that explains most of the others."""

    def rank(finding: Finding) -> int:
        starts = (n for n, start in enumerate(FIRST) if start in finding.kind.split(" after")[0])
        return next(starts, len(FIRST))

    return min(findings, key=rank)


def of_finding(finding: Finding, file: str) -> str:
    """A diagnostic of the machine as a sentence; `file` is the learner's."""
    own = finding.file == PurePath(file).name
    where = f"line {finding.line}" if own else f"{finding.file}:{finding.line}"
    if finding.kind == "hang" and "waits for a store" not in finding.message:
        return f"{where}: this loop never ends, or does far too much: does its condition change?"
    place = f"block {finding.block[0]}, thread {finding.thread[0]}"
    return f"{where}: {finding.kind}: {finding.message} (first in {place})"


def of_compiler(log: str) -> str:
    """The first error of a compiler's log, with its line."""
    found = re.search(r"\((\d+)\): (?:catastrophic )?error: (.*)", log)
    return f"line {found[1]}: {found[2].strip()}" if found else log.strip()
