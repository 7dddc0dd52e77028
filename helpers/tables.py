"""Text tables: a step beside a copy, predictions, the race, and the last lines of `make run`.

Tables and figures show one dtype and the shapes of one name, which `helpers.shapes` explains:
"grid", "long" (the grid and the long rows), "few" (in microseconds, because what a launch costs is
the question there) or "sweep".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from . import peers
from .races import LEGEND, RaceCase, explained_marks
from .records import Case, Record, load_record, predicted_at, predictions
from .shapes import UNALIGNED_RACE_SHAPES, place

UNITS = {  # of a race's table -> (column of the copy, title)
    "share": ("copy GB/s", "share of a copy's bandwidth"),
    "us": ("copy us", "microseconds a call"),
}


def lines_of(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table: titles, then rows, one space between columns.

    A column is a title and how it is aligned, ">8" or "<14"; a cell that is wider pushes the rest
    of its line to the right. A row may have fewer cells than there are columns.
    """
    aligned = [align for _, align in columns]
    return [
        " ".join(f"{cell:{align}}" for cell, align in zip(cells, aligned, strict=False)).rstrip()
        for cells in ([title for title, _ in columns], *rows)
    ]


def table(
    current: Record,
    previous: Record | None = None,
    dtype: str = "float32",
    shapes: str = "grid",
) -> str:
    """GB/s of a step beside the copy of the same size, one row a shape; for few rows microseconds
    of both, and how many more the step takes.

    "spread" is (slowest - fastest) / median of the replays. "x previous" is how many times
    faster the step is than the previous one, "-" where that has no such case.
    """
    cases = current.of_family(shapes, dtype)
    title = f"{current.step}{in_dtype(dtype)}, {current.origin()}"
    if not cases:
        return f"{title}: not measured at these shapes"
    few = shapes == "few"
    wide = max(6, *(len(str(case.cols)) for case in cases))
    columns = [("rows", ">8"), ("cols", f">{wide}")]
    columns += [("us", ">8"), ("copy us", ">8"), ("us more", ">8")] if few else []
    columns += [] if few else [("copy GB/s", ">10"), ("GB/s", ">8")]
    columns += [("spread", ">7"), ("of copy", ">8")]
    if previous is not None:
        name = f"{previous.step}, us" if few else previous.step
        columns += [(name, f">{max(12, len(name))}"), ("x previous", ">11")]
    rows = []
    for case in cases:
        cells = [str(case.rows), str(case.cols)]
        if few:
            more = case.median_us - case.copy_us
            cells += [f"{us:.2f}" for us in (case.median_us, case.copy_us, more)]
        else:
            cells += [f"{case.copy_gbps:.0f}", f"{case.gbps:.0f}"]
        cells += [f"{case.spread:.1%}", f"{case.share:.3f}"]
        if previous is not None:
            try:
                before = previous.case(*case.shape, dtype)
            except KeyError:
                cells += ["-", "-"]
            else:
                cells.append(f"{before.median_us:.2f}" if few else f"{before.gbps:.0f}")
                cells.append(f"{before.median_us / case.median_us:.2f}")
        rows.append(cells)
    return "\n".join([title, *lines_of(columns, rows)])


def ledger(records: Sequence[Record]) -> str:
    """Predicted against measured share of a copy, where each prediction was made: at
    `REFERENCE_SHAPE` in float32, or at the shape and in the dtype that the prediction names."""
    where = [predicted_at(record.step) for record in records]
    places = [
        f"{rows:>8} x {cols:<4}" + (f" {dtype}" if dtype != "float32" else "")
        for rows, cols, dtype in where
    ]
    wide = max(map(len, places), default=0)
    columns = [("", "<30"), (f"{'shape':>{wide}}", f"<{wide}"), ("predicted", ">10")]
    columns += [("measured", ">9"), ("measured / predicted", ">21")]
    rows = []
    for record, case_of, place_of in zip(records, where, places, strict=True):
        try:
            share = record.case(*case_of).share
        except KeyError:
            rows.append([record.step, place_of, "not measured here"])
            continue
        expected = predictions()[record.step]["share"]
        cells = [f"{expected:.2f}", f"{share:.3f}", f"{share / expected:.2f}"]
        rows.append([record.step, place_of, *cells])
    return "\n".join(lines_of(columns, rows))


def race_table(cases: Sequence[RaceCase], unit: str = "share") -> str:
    """Our kernel, each peer ("-": not timed), and how we compare with the best of them.

    `unit` "share" prints bandwidth as a share of the same-size copy's beside the copy's GB/s, "us"
    prints microseconds a call. The last lines say what "lead" and `RaceCase.verdict` mean. Raises
    `ValueError` for another unit.
    """
    if unit not in UNITS:
        raise ValueError(f"the unit is one of {', '.join(UNITS)}, not {unit!r}")
    head, what = UNITS[unit]
    names = [name for name in peers.PEERS if any(name in case.samples_us for case in cases)]
    columns = [("rows", ">8"), ("cols", ">8"), (head, ">9")]
    columns += [(name, ">7") for name in ("ours", *names)]
    columns += [("best peer", ">9"), ("lead", ">6"), ("", ""), ("", "")]
    rows = []
    for case in cases:
        mark = "*" if case.shape in UNALIGNED_RACE_SHAPES else " "
        cells = [str(case.rows), f"{case.cols}{mark}"]
        cells.append(f"{case.copy_gbps:.0f}" if unit == "share" else f"{case.copy_us:.2f}")
        for name in (case.step, *names):
            if name not in case.samples_us:
                cells.append("-")
            elif unit == "share":
                cells.append(f"{case.share(name):.3f}")
            else:
                cells.append(f"{case.median_us(name):.2f}")
        cells += [case.best_peer or "-", f"{case.lead:.3f}", case.verdict, case.marks]
        rows.append(cells)
    dtypes = ", ".join(dict.fromkeys(case.dtype for case in cases))
    lines = [f"{dtypes}, {what}", *lines_of(columns, rows), LEGEND, *explained_marks(cases)]
    if any(case.shape in UNALIGNED_RACE_SHAPES for case in cases):
        lines.append("*: rows that do not start at multiples of 16 bytes")
    return "\n".join(lines)


def summary_table(
    verdicts: Mapping[str, str], where: str, now: Mapping[str, Case] | None = None
) -> str:
    """Step, bandwidth where it was predicted, prediction, origin, and this machine's verdict.

    `now` maps steps to what was just timed on this GPU: it stands first, the record beside it.
    """
    timed = now or {}
    columns = [("step", "<14"), ("rows x columns", "<21")]
    columns += [("GB/s here", ">9"), ("of copy", ">8"), ("recorded", ">9")] if timed else []
    columns += [] if timed else [("GB/s", ">5")]
    columns += [("of copy", ">8"), ("predicted", ">10")]
    columns += [(" recorded on" if timed else " measured on", "<27"), (f"kernel {where}", "")]
    rows, fewer = [], False
    for step, verdict in verdicts.items():
        try:
            record = load_record(step)
        except FileNotFoundError:
            record = None
        case, mine = record and record.headline, timed.get(step)
        shown = mine or case
        cells = [step, place(shown.rows, shown.cols, shown.dtype) if shown else ""]
        if timed:
            cells += [f"{mine.gbps:.0f}", f"{mine.share:.3f}"] if mine else ["-", "-"]
        if record is None:
            cells += ["", "", "", " not recorded yet"]
        else:
            expected = predictions().get(step, {}).get("share")
            stale = "" if record.is_current() else " (earlier version)"
            cells += [f"{case.gbps:.0f}", f"{case.share:.3f}"]
            cells += ["none" if expected is None else f"{expected:.2f}", f" {record.label}{stale}"]
            fewer |= shown.rows < case.rows
        rows.append([*cells, verdict.splitlines()[0]])
    title = "GB/s = 2 x rows x columns x bytes of an element / time"
    notes = ["Where memory is short here, the record is of more rows."] if fewer else []
    return "\n".join(["", title, *lines_of(columns, rows), *notes])


def in_dtype(dtype: str) -> str:
    """What a title adds for a dtype that is not the usual one."""
    return f" in {dtype}" if dtype != "float32" else ""
