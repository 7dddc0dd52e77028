"""The dispatch heuristic: which kernel to use for a problem, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from ..base.gpu import Gpu, gpu_for_plans
from ..problem.operations import ANY_AXIS, SOFTMAX
from ..problem.problem import Problem
from ..simt.cuda_text import token_hash
from .expressions import Expression
from .header import header
from .plan import Header, Plan, inputs
from .registry import WITHOUT_FILE, Trial, source, split_trial
from .tuned import Tuned, own_plans, shipped_plans


def choose(rows: int, cols: int, dtype: str = "float32", gpu: Gpu | None = None, **options) -> str:
    """Return the kernel file, or trial of one, expected to be fastest for a problem, according to
    measurements: "08_cluster", "08_cluster-THREADS128" where tuning found this to be faster, or
    "12_fused-MASK2", which includes the features.

    `options` are further fields of `Problem`: inner, operation, features, x_stride, y_stride,
    aligned, alike. `gpu` defaults to the GPU in use, or an H200 in replay mode. Tuned plans replace
    what the rules give: those of that GPU's records, and before them what `make tune` found on the
    GPU in use if `gpu` is not given.

    Raises what `Problem` raises, and `ValueError` with the reason if no kernel accepts the problem.
    """
    return best(Problem(rows, cols, dtype, **options), gpu)


def why(rows: int, cols: int, dtype: str = "float32", gpu: Gpu | None = None, **options) -> str:
    """Return the choice of `choose` with its reason, then each higher-ranked kernel and why it was
    rejected, one per line. Arguments and exceptions are those of `choose`."""
    problem = as_ranked(Problem(rows, cols, dtype, **options))
    chosen, rejected = [], []
    for step, reason, refused in _ranked(problem, gpu or gpu_for_plans()):
        if not refused:
            break
        rejected.append(f"not {step} ({reason}): {refused}")
    else:
        raise ValueError(refused)
    for trial, when, refused in _tuned(step, problem, gpu):
        if not refused:
            chosen = [f"{trial}: {when}"]
            break
        rejected.insert(0, f"not {trial} ({when}): {refused}")
    rule = f"not {step} ({reason}): it is the rule's plan" if chosen else f"{step}: {reason}"
    return "\n".join([*chosen, rule, *rejected])


def best(problem: Problem, gpu: Gpu | None = None) -> str:
    """Return what `choose` returns, for a `Problem`."""
    problem = as_ranked(problem)
    rule = candidates(problem, gpu or gpu_for_plans(), 1)[0]
    return next((trial for trial, _, no in _tuned(rule, problem, gpu) if not no), rule)


def chosen(problem: Problem, gpu: Gpu | None = None) -> str:
    """The kernel that `choose` returns for a problem; "" if none of our kernels supports it."""
    try:
        return best(problem, gpu)
    except ValueError:
        return ""


def candidates(problem: Problem, gpu: Gpu, most: int) -> list[str]:
    """Return up to `most` files or trials that accept a problem, in the order of `choose`; the
    first is the rule's plan. Raises what `choose` raises."""
    accepted, refused = {}, ""
    for step, _, refused in _ranked(as_ranked(problem), gpu):
        if not refused:
            accepted[step] = True
        if len(accepted) == most:
            break
    if not accepted:
        raise ValueError(refused)
    return [*accepted]


def as_ranked(problem: Problem) -> Problem:
    """Return the problem with the operation that the rankings use: softmax along a middle axis is
    an operation of its own, softmax along the last axis is always SOFTMAX."""
    if problem.inner > 1 and problem.operation is SOFTMAX:
        return replace(problem, operation=ANY_AXIS)
    if problem.inner == 1 and problem.operation is ANY_AXIS and not problem.features:
        return replace(problem, operation=SOFTMAX)
    return problem


def step_hash(step: str) -> str:
    """Return the hash of the code of a step, a variant or a trial; of a step without a kernel file
    its name. Raises `FileNotFoundError` if there is no such file."""
    return step if step in WITHOUT_FILE else token_hash(source(f"{split_trial(step).file}.cu"))


def plan_of(step: str, at: Problem, gpu: Gpu | None = None) -> Plan | None:
    """Return how a step is compiled and launched at the sizes and dtype of a problem, whatever the
    step computes, on a GPU (by default `gpu_for_plans`); None if its header does not accept
    them."""
    try:
        return _plan(step, at, gpu or gpu_for_plans())
    except ValueError:
        return None


def launch_of(step: str, at: Problem, gpu: Gpu | None = None) -> dict[str, int]:
    """Return the launch of `plan_of`: grid, block, shared memory and macros; empty without one."""
    plan = plan_of(step, at, gpu)
    return plan.launch if plan else {}


def is_current(
    step: str, kernel_hash: str | None, launch: Mapping[str, int], at: Problem, gpu: Gpu
) -> bool:
    """Return whether the code of a step still has this hash, and this launch at a problem; a step
    without a kernel file has no launch."""
    same = step_hash(step) == kernel_hash
    return same and (step in WITHOUT_FILE or launch_of(step, at, gpu) == launch)


def current_build(step: str, problem: Problem, gpu: Gpu) -> dict:
    """Return the current code hash and launch of a step, a variant or a trial for a problem. Raises
    `ValueError` if its header does not accept the problem, `FileNotFoundError` without a file."""
    return {"hash": step_hash(step), "launch": _plan(step, problem, gpu).launch}


def out_of_date(tuned: Tuned, gpu: Gpu) -> str:
    """Return why a tuned plan is out of date on its GPU; "" if it is still valid."""
    try:
        rule = candidates(tuned.problem, gpu, 1)[0]
        if rule != tuned.rule:
            return f"{rule} is the rule's plan now, not {tuned.rule}"
        for step in (tuned.trial, tuned.rule):
            if current_build(step, tuned.problem, gpu) != tuned.kernels[step]:
                return f"{step} is another text or another launch now"
    except (OSError, TypeError, ValueError, KeyError) as error:
        return f"it is no plan here any more: {error}"
    return ""


def _tuned(rule: str, problem: Problem, gpu: Gpu | None) -> Iterator[tuple[str, str, str]]:
    """Yield the tuned plans that may replace the rule's plan: (trial, where and when, why it is not
    used or ""). Tests check that the plans of the records are not out of date."""
    for tuned in own_plans(rule, problem) if gpu is None else ():
        yield tuned.trial, tuned.reason(own=True), out_of_date(tuned, gpu_for_plans())
    for tuned in shipped_plans(rule, problem, gpu):
        refused = _why_not(tuned.trial, problem, gpu or gpu_for_plans())
        yield tuned.trial, tuned.reason(own=False), refused


class Rank(NamedTuple):
    """One entry of the ranking that `choose` goes through."""

    file: str  # kernel file, or trial of one
    when: Expression  # over a header's inputs, the file's Build values, packs and alike
    reason: str  # may contain Build values in braces

    def names(self, problem: Problem, gpu: Gpu) -> Mapping[str, int] | None:
        """Return the names that the condition may read if it holds, else None."""
        names = inputs(problem, gpu)
        names |= {"packs": int(problem.packed), "alike": int(problem.alike)}
        if not self.when.names <= {*names}:
            if _why_not(self.file, problem, gpu):
                return None
            names |= _plan(self.file, problem, gpu).values
        return names if self.when.value(names) else None


def _rank(file: str, reason: str, when: str = "1") -> Rank:
    return Rank(file, Expression(when), reason)


ANY_LENGTH = "11_any_length"  # accepts every matrix
# The kernel files for plain softmax, best first. `packs` is 1 if rows are contiguous and consist of
# whole packs of 16 bytes, `alike` is 1 if the addresses of x and y are equal modulo 16 bytes.
# `rows == 8`: with one block per SM, an H200 has room for only 7 clusters of 16 blocks, on 112 of
# its 132 SMs (`active_clusters` of 08_cluster at 512 x 524288). An eighth row has to share SMs.
SOFTMAX_RANKING = (
    _rank(
        "07_warp",
        "rows of at most 1 KB that the L2 has room for, x and y: no hint for it is worth having",
        "packs == 1 && size == 2 && row <= 1024 && 2 * rows * row <= l2",
    ),
    _rank(
        "10_sixteen_bit",
        "rows of at most 1.5 KB, or 2 KB if the L2 has room for x and y: a block is too much",
        "row <= 1536 || row <= 2048 && 2 * rows * row <= l2",
    ),
    _rank(
        "07_warp",
        "rows of less than 1.25 KB, or 2 KB if the L2 has room for x and y: a block is too much",
        "packs == 1 && size == 4 && (row < 1280 || row <= 2048 && 2 * rows * row <= l2)",
    ),
    _rank(
        "09_grid",
        "1 MB and more: one row for all blocks, or one more than there is room for clusters",
        "row >= 1048576 && (rows == 1 || rows == 8)",
    ),
    _rank(
        "08_ahead",
        "many rows past 1 MB: a block of a cluster fills an SM, so that clusters stay",
        "row > 1048576 && rows > 16",
    ),
    _rank("08_cluster", "a row that the registers of a cluster can hold", "row > 1024"),
    _rank(
        "08_ahead",
        "rows that go evenly into the {clusters} clusters that stay",
        "row > 1024 && (row <= 1048576 || rows <= 16) && rows % clusters == 0",
    ),
    _rank("09_grid", "a row that the registers of the GPU can hold", "row > 1024"),
    _rank(
        "07_warp",
        "a small matrix of short rows that are no whole packs",
        "packs == 0 && row > 192 && row <= 1024 && 4 * rows * row <= l2",
    ),
    _rank(
        "11_any_row",
        "a small matrix of rows past 1 KB that are no whole packs",
        "packs == 0 && alike == 1 && row > 1024 && 4 * rows * row <= l2",
    ),
    _rank(
        "11_short_rows",
        "short rows that are no whole packs, or start anywhere",
        "packs == 0 && row <= 2560",
    ),
    _rank(
        "11_any_row", "rows that are no whole packs, or start anywhere", "packs == 0 && alike == 1"
    ),
    _rank("11_any_row-LATE1", "rows that are no whole packs, or start anywhere", "alike == 0"),
    _rank("07_warp", "rows that a warp can hold"),
    _rank("06_registers", "a GPU without clusters, a row that a block can hold", "capability < 90"),
    _rank("11_any_row", "a row that a block or a cluster can hold", "packs == 1"),
    _rank(ANY_LENGTH, "any other matrix: what registers do not hold is read twice"),
)
# The kernel files for all other problems by operation, including softmax with features.
RANKINGS = {
    "softmax": (
        _rank("12_fused", "a row that the registers of a cluster can hold, fused at both ends"),
    ),
    "softmax_any_axis": (
        _rank(
            "13_any_axis",
            "another axis: lines begin at sectors, slices pass 4 KB, tiles are wide or x is small",
            "line % 32 == 0 && dim * line > 4096"
            " && (most_bytes > 32 || line <= most_bytes || outer * dim * line <= l2 / 4)",
        ),
        _rank(
            "13_whole_slices",
            "another axis: lines do not begin at sectors, or slices are short",
            "(inner <= 256 || dim > 4 && inner * size % 8 > 0)"
            " && (inner * size % 32 > 0 || slice <= 4096) && (slice % 4 == 0 || slice <= 400000)",
        ),
        _rank(
            "13_any_axis",
            "another axis: slices that 13_whole_slices does not take, in tiles past 32 bytes",
            "most_bytes > 32 && (line % 4 == 0 || dim <= 512)"
            " || line <= most_bytes || outer * dim * line <= l2 / 4",
        ),
        _rank("13_long_columns", "another axis: long columns, of narrow tiles or loads"),
        _rank("13_any_axis", "another axis: columns that 13_long_columns does not take"),
    ),
    "softmax_backward": (
        _rank(
            "14_backward",
            "both rows of a gradient, which the registers of a cluster can hold",
            "row > 2048 && (8 * rows * row > l2 || size == 4 && row <= 16384)",
        ),
        _rank("14_any_row", "both rows of a gradient, short, long, or no whole packs"),
        _rank("14_backward", "both rows of a gradient that is fused with something else"),
    ),
    "cross_entropy": (
        _rank("15_cross_entropy", "a loss, in one read of rows that need not be held"),
    ),
    "cross_entropy_backward": (
        _rank("15_gradient", "a gradient in which no column waits for another"),
    ),
    "cross_entropy_loss_and_gradient": (
        _rank("15_loss_and_gradient", "both in one read of a row that a cluster can hold"),
    ),
}


def _ranked(problem: Problem, gpu: Gpu) -> Iterator[tuple[str, str, str]]:
    """Yield the kernels ranked for a problem, best first: (file or trial, the reason for its rank,
    why it does not accept the problem or ""). Raises `ValueError` for an operation that has no
    ranking."""
    if problem.operation.name not in RANKINGS:
        raise ValueError(f"operations are {', '.join(RANKINGS)}, not {problem.operation.name!r}")
    plain_softmax = problem.operation is SOFTMAX and not problem.features
    for rank in SOFTMAX_RANKING if plain_softmax else RANKINGS[problem.operation.name]:
        if (names := rank.names(problem, gpu)) is None:
            continue
        step, reason = rank.file, rank.reason.format(**names)
        try:
            step = with_features(step, dict(problem.features))
            yield step, reason, _why_not(step, problem, gpu)
        except ValueError as error:  # a feature that the file does not support
            yield step, reason, str(error)


def with_features(step: str, features: Mapping[str, int | str]) -> str:
    """Return the trial of a file with features enabled: "12_fused-MASK2-LOG1". Raises `ValueError`
    for a feature that its operation does not have or that the file does not support."""
    changes = _contract(step).changes_for(features)
    return "".join([step, *(f"-{name}{value}" for name, value in changes.items())])


def _why_not(step: str, problem: Problem, gpu: Gpu) -> str:
    """Return why a kernel file or a trial does not accept a problem; "" if it does."""
    contract = _contract(step)
    if reason := contract.why_not(problem, gpu):
        return reason
    align = contract.align(problem.dtype)
    if (problem.aligned and problem.alike) or align <= problem.itemsize:
        return ""
    return f"arrays must start at multiples of {align} bytes"


def _plan(step: str, problem: Problem, gpu: Gpu) -> Plan:
    return _contract(step).plan(problem, gpu, split_trial(step).block)


def _contract(step: str) -> Header:
    trial = split_trial(step)
    code = source(f"{trial.file}.cu")
    return header(code, (), changes_of(trial, header(code)))


def changes_of(trial: Trial, contract: Header) -> tuple[tuple[str, int], ...]:
    """Return a trial's changes under the header's names, which may be in lower case; in a trial all
    are in capitals. Raises `ValueError` for an unknown name."""
    known = [*contract.numbers, *(value.name for value in contract.build)]
    changes = []
    for name, value in trial.changes:
        own_name = name if name in known else name.lower()
        if own_name not in known:
            there = f"; there are {', '.join(known).upper()}" if known else ""
            raise ValueError(f"kernels/{trial.file}.cu has no {name}{there}")
        changes.append((own_name, value))
    return tuple(changes)
