"""Write what the README and the kernel headers show of the records: `make figures`.

The README keeps tables, a plot and the questions of the deeper notebooks between markers, each
kernel file a `Measured:` line. All are made from records and notebooks; --check says what is out of
date without writing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path

from ..catalogue import UNFUSED, split_trial, steps, variants
from ..draw.step import eager, save_series
from ..paths import KERNELS, NOTEBOOKS, REPO_URL, ROOT, core_notebooks, deeper_notebooks
from ..races import DTYPES, ROOM, TOLERANCE, RaceCase, explained_marks, load_race, race_origin
from ..records import (
    REFERENCE_GPU,
    load_record,
    predictions,
    record_path,
    recorded_steps,
    series,
)
from ..shapes import FEW_SHAPES, RACE_SHAPES, UNALIGNED_RACE_SHAPES, place
from ..tables import summary_table

README = ROOT / "README.md"
PLOT = record_path("series").with_suffix(".png")
NO_URL = "<the address of this repository>"  # in the README until there is one
EDITED = "measured before an edit of the kernel"
BEGIN, END = "<!-- begin {}: made by make figures -->", "<!-- end -->"


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status: 1 if --check finds something out of date."""
    parser = argparse.ArgumentParser(prog="python -m helpers.commands.figures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if stale")
    options = parser.parse_args(arguments)
    stale = out_of_date()
    for name in stale:
        print(f"{name} {'is out of date' if options.check else 'rewritten'}")
    if options.check:
        return 1 if stale else 0
    for name, text in wanted_texts().items():
        (ROOT / name).write_text(text, encoding="utf-8", newline="\n")
    if (digest := plot_digest()) != drawn_digest():
        save_series(PLOT, dpi=200, metadata={"Description": digest})
    return 0


def out_of_date() -> list[str]:
    """Files, relative to the root, that do not show what the records say."""
    stale = [
        name
        for name, text in wanted_texts().items()
        if (ROOT / name).read_text(encoding="utf-8") != text
    ]
    if plot_digest() != drawn_digest():
        stale.append(str(PLOT.relative_to(ROOT)))
    return stale


def wanted_texts() -> dict[str, str]:
    """What README and kernel files should contain."""
    readme = README.read_text(encoding="utf-8")
    blocks = {
        "result": result_block(),
        "race": race_block(),
        "run": run_block(),
        "questions": questions_block(),
    }
    for name, block in blocks.items():
        before, begin, rest = readme.partition(BEGIN.format(name))
        _, end, after = rest.partition(END)
        readme = f"{before}{begin}\n{block}\n{end}{after}"
    if REPO_URL:
        readme = readme.replace(NO_URL, REPO_URL)
    texts = {"README.md": readme}
    for step in (*steps(), *variants()):
        path = KERNELS / f"{step}.cu"
        texts[str(path.relative_to(ROOT))] = re.sub(
            r"^// Measured: .*$",
            f"// Measured: {measured_line(step)}",
            path.read_text(encoding="utf-8"),
            count=1,
            flags=re.MULTILINE,
        )
    return texts


def measured_line(step: str) -> str:
    """One line for a kernel's header."""
    try:
        record = load_record(step)
    except FileNotFoundError:
        return "not yet"
    case = record.headline
    rate = f"{case.median_us:.2f} us" if case.shape in FEW_SHAPES else f"{case.gbps:.0f} GB/s"
    where = place(case.rows, case.cols, case.dtype)
    before = "" if record.is_current() else "before an edit, "
    return f"{before}{rate}, {case.share:.2f} of a copy, at {where} ({record.label})"


def run_block() -> str:
    """The last lines of `make run` on a machine without a GPU where all is well."""
    table = summary_table({step: "right" for step in steps()}, "on the SIMT machine")
    return f"```{table}\n```"


def questions_block() -> str:
    """The questions of the deeper notebooks under the core notebook that they come up in."""
    lines = []
    for core in core_notebooks():
        of_core = [path for path in deeper_notebooks() if path.name[:2] == core.name[:2]]
        lines += [f"- {title_link(core)}", *(f"  - {title_link(path)}" for path in of_core)]
    return "\n".join(lines)


def title_link(notebook: Path) -> str:
    """A notebook's first heading, linked from the root."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    title = "".join(cells[0]["source"]).splitlines()[0].removeprefix("# ")
    return f"[{title}]({notebook.relative_to(ROOT).as_posix()})"


def result_block() -> str:
    """Plot and table in Markdown."""
    image = PLOT.relative_to(ROOT).as_posix()
    lines = [
        f"![GB/s over row length for every step, for a copy and for PyTorch]({image})",
        "",
        "| step | notebook | rows x columns | GB/s | share of a copy | predicted |",
        "|---|---|---|---|---|---|",
    ]
    shown = [load_record("00_copy"), *recorded_steps()]
    for record in shown:
        case = record.headline
        mark = "" if record.is_current() else "*"
        lines.append(
            f"| {step_link(record.step)} | {notebook_link(record.step)} "
            f"| {place(case.rows, case.cols, case.dtype)} | {case.gbps:.0f} "
            f"| {case.share:.2f}{mark} | {predictions()[record.step]['share']:.2f} |"
        )
    stale = "" if all(record.is_current() for record in shown) else f" *: {EDITED}."
    lines += [
        "",
        f"float32 unless it says otherwise, {load_record('00_copy').origin()}. Each step stands at "
        "the shape where it was predicted; the plot has float32 and all but the step for few rows. "
        "GB/s counts one read and one write of the matrix, whatever a kernel really moved; the "
        "copy is a kernel that does nothing else. Predictions were written down before the "
        f"measurement; the wrong ones stay.{stale}",
    ]
    return "\n".join(lines)


def race_block(gpu: str = REFERENCE_GPU) -> str:
    """Our kernels beside the best of what other people use, in Markdown: a line for each shape, and
    how many are won and lost."""
    try:
        recorded = load_race(gpu)
    except FileNotFoundError:
        return "No race against them is recorded yet."
    cases = {(case.shape, case.dtype): case for case in recorded.cases}
    titles = " | ".join(f"{dtype}: ours | best peer" for dtype in DTYPES)
    lines = [f"| rows x columns | {titles} |", "|---" * (1 + 2 * len(DTYPES)) + "|"]
    for shape in RACE_SHAPES:
        cells = [race_cells(cases.get((shape, dtype))) for dtype in DTYPES]
        unaligned = ", unaligned" if shape in UNALIGNED_RACE_SHAPES else ""
        lines.append(f"| {place(*shape)}{unaligned} | {' | '.join(cells)} |")
    shown = [case for case in recorded.cases if case.shape in RACE_SHAPES]
    verdicts = [case.verdict for case in shown]
    explained = "".join(f" {line}." for line in explained_marks(shown))
    lines += [
        "",
        "Share of a copy of the same size, for few rows also microseconds, "
        f"{race_origin(gpu)}. Of {len(verdicts)} cases we are ahead by more than "
        f"{TOLERANCE:.0%} in {verdicts.count('ahead')}, level in {verdicts.count('level')}, "
        f"and lose {verdicts.count('LOSS')}: there the best peer is faster by more than "
        f"{TOLERANCE:.0%}, or at least as fast although it is below {ROOM} of a copy. "
        '"-": not timed. Unaligned rows do not start at multiples of 16 bytes.' + explained,
    ]
    return "\n".join(lines)


def race_cells(case: RaceCase | None) -> str:
    """Two cells of the race's table: ours, and the best peer with its name."""
    if case is None:
        return "- | -"

    def cell(name: str) -> str:
        time = f" ({case.median_us(name):.2f} us)" if case.shape in FEW_SHAPES else ""
        return f"{case.share(name):.2f}{time}"

    ours = cell(case.step) + case.marks + (" **LOSS**" if case.verdict == "LOSS" else "")
    return f"{ours} | {cell(case.best_peer)} {case.best_peer}" if case.best_peer else f"{ours} | -"


def step_link(step: str) -> str:
    if step == UNFUSED:
        return "five array operations"
    return f"[`{step}`](kernels/{split_trial(step).file}.cu)"


def notebook_link(step: str) -> str:
    """The notebook whose number the step has; a kernel may be measured before it is written."""
    for path in NOTEBOOKS.glob(f"{step[:2]}_*.ipynb"):
        title = re.search(r'"# (.*?)(\\n)?"', path.read_text(encoding="utf-8"))[1]
        return f"[{title}](notebooks/{path.name})"
    return "-"


def plot_digest() -> str:
    """Hash of everything that the plot shows."""
    shown = [(record.step, record.label, record.of_family("long")) for record in series()]
    shown.append(("PyTorch", "", eager("float32", "long", REFERENCE_GPU)))
    data = [
        (name, label, [(case.shape, case.samples_us, case.copy_samples_us) for case in cases])
        for name, label, cases in shown
    ]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def drawn_digest() -> str:
    """The hash that the plot on disk was drawn from, kept in the image's description."""
    if not PLOT.is_file():
        return ""
    found = re.search(rb"Description\0([0-9a-f]{64})", PLOT.read_bytes())
    return found[1].decode() if found else ""


if __name__ == "__main__":
    sys.exit(main())
