"""Tables of text, as the last lines of `make run` are one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..measure.comparison import best_copies, best_copy
from ..measure.records import Case, load_record, predictions


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


def summary_table(
    verdicts: Mapping[str, str], where: str, now: Mapping[str, Case] | None = None
) -> str:
    """Step, bandwidth where it was predicted, the best recorded copy there, prediction, origin, and
    this machine's verdict.

    `now` maps steps to what was just timed on this GPU: it stands first, the record beside it.
    """
    timed, copies = now or {}, best_copies()
    columns = [("step", f"<{max(14, *map(len, verdicts))}"), ("rows x columns", "<21")]
    columns += [("GB/s here", ">9"), ("of copy", ">8"), ("recorded", ">9")] if timed else []
    columns += [] if timed else [("GB/s", ">5")]
    columns += [("of copy", ">8"), ("best copy", ">10"), ("predicted", ">10")]
    columns += [(" recorded on" if timed else " measured on", "<27"), (f"kernel {where}", "")]
    rows, fewer, others = [], False, []
    for step, verdict in verdicts.items():
        try:
            record = load_record(step)
        except FileNotFoundError:
            record = None
        case, mine = record and record.headline, timed.get(step)
        shown = mine or case
        if shown and (passes := round(shown.bytes / shown.matrix_bytes)) != 2:
            others.append(f"{step} {passes} x")
        cells = [
            step,
            shown.at.place() if shown else "",
        ]
        if timed:
            cells += [f"{mine.gbps:.0f}", f"{mine.share:.3f}"] if mine else ["-", "-"]
        if record is None:
            cells += ["", "", "", "", " not recorded yet"]
        else:
            expected = predictions().get(step, {}).get("share")
            stale = "" if record.is_current() else " (earlier version)"
            best = best_copy(copies, case)
            cells += [f"{case.gbps:.0f}", f"{case.share:.3f}", f"{best:.3f}" if best else "-"]
            cells += ["none" if expected is None else f"{expected:.2f}", f" {record.label}{stale}"]
            fewer |= shown.rows < case.rows
        rows.append([*cells, verdict.splitlines()[0]])
    title = "GB/s = 2 x rows x columns x bytes of an element / time"
    title += f" ({', '.join(others)})" if others else ""
    title += "\nbest copy: the fastest copy kernel recorded at that shape, beside the plain copy"
    notes = ["Where memory is short here, the record is of more rows."] if fewer else []
    return "\n".join(["", title, *lines_of(columns, rows), *notes])
