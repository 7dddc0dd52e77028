"""Write the parts of the README and the kernel headers that show records: `make notebooks`.

The README has tables, plots and the questions of the deeper notebooks between markers, and each
kernel file a `Measured:` line; comparison.md has one line per case of the comparison. All are
generated from records and notebooks; --check names outdated files without writing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from ..base.paths import KERNELS, NOTEBOOKS, REPO_URL, ROOT, core_notebooks, deeper_notebooks
from ..catalogue.registry import UNFUSED, split_trial, step_number, steps, variants
from ..catalogue.store import REFERENCE_GPU, folder_of, shown_gpu
from ..measure.comparison import COPIES, DTYPES, best_copies, best_copy, comparison_cases
from ..measure.records import load_record, predictions, recorded_steps, series
from ..page.comparison_text import around_block, comparison_block, every_case, every_case_path
from ..page.draw.comparison import save_speedups
from ..page.draw.step import A_COPY, COPY, eager, save_series
from ..page.tables import summary_table
from ..problem.shapes import FEW_SHAPES
from ..run.bound import load

README = ROOT / "README.md"
PLOT = folder_of(REFERENCE_GPU) / "series.png"
NO_URL = "<the address of this repository>"  # in the README until there is one
EDITED = "measured before an edit of the kernel"
SPEEDUPS = {dtype: folder_of(REFERENCE_GPU) / f"speedup-{dtype}.png" for dtype in DTYPES}
BEGIN, END = "<!-- begin {}: made by make notebooks -->", "<!-- end -->"


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status: 1 if --check finds something out of date, 2 if a
    record cannot be read, and then nothing is written."""
    parser = argparse.ArgumentParser(prog="python -m helpers.commands.figures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if stale")
    options = parser.parse_args(arguments)
    if shown_gpu() != REFERENCE_GPU:
        parser.error("README and kernels show the reference GPU: unset SOFTMAX_RECORDS")
    try:
        stale, texts, pictures = out_of_date(), wanted_texts(), plots()
    except (ValueError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    for name in stale:
        print(f"{name} {'is out of date' if options.check else 'rewritten'}")
    if options.check:
        return 1 if stale else 0
    for name, text in texts.items():
        (ROOT / name).write_text(text, encoding="utf-8", newline="\n")
    for path, (digest, save) in pictures.items():
        if digest != drawn_digest(path):
            save(path, dpi=200, metadata={"Description": digest})
    return 0


def out_of_date() -> list[str]:
    """Files, relative to the root, that do not match the records."""
    stale = [
        name
        for name, text in wanted_texts().items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text(encoding="utf-8") != text
    ]
    drawn = [path for path, (digest, _) in plots().items() if digest != drawn_digest(path)]
    return [*stale, *(str(path.relative_to(ROOT)) for path in drawn)]


def wanted_texts() -> dict[str, str]:
    """The required text of the README, comparison.md and the kernel files."""
    readme = README.read_text(encoding="utf-8")
    blocks = {
        "result": result_block(),
        "comparison": comparison_block(SPEEDUPS),
        "around": around_block(),
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
    with suppress(FileNotFoundError):  # no comparison yet: comparison_block says so
        texts[str(every_case_path().relative_to(ROOT))] = every_case()
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
    where = case.at.place()
    beside = (
        A_COPY
        if case.bandwidth_baseline in ("", COPY)
        else case.bandwidth_baseline.removeprefix("variants/")
    )
    share = "" if beside == step.removeprefix("variants/") else f", {case.share:.2f} of {beside}"
    if share and round(case.share, 2) > 1 and not step.startswith(COPIES):
        best = best_copy(best_copies(), case)
        share += f" (best copy {best:.2f})" if best else ""
    label = record.label.removeprefix("NVIDIA ")
    label = label if record.is_current() else f"earlier, {label}"
    return f"{rate}{share} at {where} ({label})"


def run_block() -> str:
    """The last lines of a successful `make run` on a machine without a GPU."""
    table = summary_table({step: "right" for step in steps()}, "on the SIMT machine")
    return f"```{table}\n```"


def questions_block() -> str:
    """The questions of the deeper notebooks, grouped by core notebook."""
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
        f"![GB/s over row length for several steps, a copy and PyTorch]({image})",
        "",
        "| step | notebook | rows x columns | GB/s | × copy | best copy | predicted |",
        "|---|---|---|---|---|---|---|",
    ]
    copies = best_copies()
    shown = [load_record("00_copy"), *recorded_steps()]
    for record in shown:
        case = record.headline
        mark = "" if record.is_current() else "*"
        best = best_copy(copies, case)
        lines.append(
            f"| {step_link(record.step)} | {notebook_link(record.step)} "
            f"| {case.at.place()} | {case.gbps:.0f} "
            f"| {case.share:.2f}{mark} | {f'{best:.2f}' if best else '-'} "
            f"| {predictions()[record.step]['share']:.2f} |"
        )
    stale = "" if all(record.is_current() for record in shown) else f" *: {EDITED}."
    others = [one.step for one in shown if one.headline.bandwidth_baseline not in ("", COPY)]
    needs = [f"{step[:2]} needs {passes_of(step)}" for step in others]
    lines += [
        "",
        f"float32 unless it says otherwise, {load_record('00_copy').origin()}. Each step is shown "
        "at the shape for which it was predicted. The plot shows float32: a copy, PyTorch, and of "
        f"this table {plotted()}. GB/s assumes one read and one write of the matrix, even if the "
        "kernel moved more. *× copy* is that speed divided by the speed of `00_copy`, a kernel "
        "that does nothing else. Some copy kernels are faster than this plain one: *best copy* is "
        "the fastest that was recorded at the shape, also divided by the plain copy (-: only the "
        f"plain one was timed). {', '.join(needs)}, and each is "
        "divided by a plain kernel that moves as many bytes. Predictions were written down before "
        f"the measurement; the wrong ones stay.{stale}",
    ]
    return "\n".join(lines)


def passes_of(step: str) -> str:
    """The passes over a matrix that a step's header counts, in words: "two reads and one write"."""
    passes = load(step).header.fields["Reads"].removesuffix(" + 0 writes")
    return passes.replace("1 ", "one ").replace("2 ", "two ").replace(" + ", " and ")


def plotted() -> str:
    """The steps that the plot shows, in words."""
    numbers = [step_number(record.step) for record in series() if record.step != UNFUSED]
    runs = [one for one in numbers if one - 1 not in numbers]  # where steps that follow begin
    ends = [one for one in numbers if one + 1 not in numbers]
    words = [
        f"{one:02}" if one == end else f"{one:02} to {end:02}"
        for one, end in zip(runs, ends, strict=True)
    ]
    return ", ".join(["the array operations", *words])


def step_link(step: str) -> str:
    if step == UNFUSED:
        return "five array operations"
    return f"[`{step}`](kernels/{split_trial(step).file}.cu)"


def notebook_link(step: str) -> str:
    """The notebook with the number of a step; a kernel may be measured before its notebook
    exists."""
    for path in NOTEBOOKS.glob(f"{step[:2]}_*.ipynb"):
        title = re.search(r'"# (.*?)(\\n)?"', path.read_text(encoding="utf-8"))[1]
        return f"[{title}](notebooks/{path.name})"
    return "-"


def plots() -> dict[Path, tuple[str, Callable[..., None]]]:
    """Picture -> (hash of its data, function that draws it)."""
    found = {PLOT: (plot_digest(), save_series)}
    for dtype, path in SPEEDUPS.items():
        try:
            cases = comparison_cases(dtype)
        except FileNotFoundError:
            continue
        if cases:
            shown = [
                (case.shape, case.verdict, f"{case.speedup:.3f}", case.marks) for case in cases
            ]
            found[path] = (digest_of(shown), partial(save_speedups, cases=cases))
    return found


def plot_digest() -> str:
    """Hash of the data of the plot of the series."""
    shown = [(record.step, record.label, record.of_family("long")) for record in series()]
    shown.append(("PyTorch", "", eager("float32", "long", REFERENCE_GPU)))
    return digest_of(
        (name, label, [(case.shape, case.samples_us, case.copy_samples_us) for case in cases])
        for name, label, cases in shown
    )


def digest_of(data: Iterable) -> str:
    return hashlib.sha256(json.dumps([*data], sort_keys=True).encode()).hexdigest()


def drawn_digest(path: Path) -> str:
    """The hash stored in the description of a picture on disk."""
    if not path.is_file():
        return ""
    found = re.search(rb"Description\0([0-9a-f]{64})", path.read_bytes())
    return found[1].decode() if found else ""


if __name__ == "__main__":
    sys.exit(main())
