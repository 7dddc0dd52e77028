"""Write the parts of the README, docs/ and the kernel headers that show records: `make notebooks`.

The README and the pages in docs/ have tables, plots and the questions of the deeper notebooks
between markers, and each kernel file a `Measured:` line; comparison.md has one line per case of the
comparison. All are generated from records and notebooks; --check names outdated files without
writing.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.paths import KERNELS, NOTEBOOKS, REPO_URL, ROOT, deeper_notebooks
from ..catalogue.registry import COPY, UNFUSED, split_trial, step_number, steps, variants
from ..catalogue.store import REFERENCE_GPU, folder_of, shown_gpu
from ..measure.baselines import BASELINES
from ..measure.comparison import (
    COPIES,
    DTYPES,
    ROOM,
    TOLERANCE,
    around_cases,
    best_copy,
    comparison_cases,
    load_comparisons,
    load_unseen,
)
from ..measure.records import load_record, predictions, recorded_steps, series
from ..page.comparison_text import (
    around_block,
    comparison_block,
    every_case,
    every_case_path,
    unseen_block,
    unseen_groups_block,
    unseen_lines,
    verdicts,
)
from ..page.draw.comparison import of_speedups, of_unseen
from ..page.draw.overview import figure_of_lost_time, title_of
from ..page.draw.step import figure_of_series
from ..page.draw.style import digest_of
from ..page.rich import named
from ..problem.shapes import FEW_SHAPES, GROUPS
from ..run.bound import load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PLOT = folder_of(REFERENCE_GPU) / "series.png"
LOST_TIME = folder_of(REFERENCE_GPU) / "lost-time.png"
NO_URL = "<the address of this repository>"  # in pages until there is one
AT_THE_LIMIT = 6  # the first step that is about as fast as a copy
EDITED = "measured before an edit of the kernel"
UNSEEN = folder_of(REFERENCE_GPU) / "unseen.png"
SPEEDUPS = {dtype: folder_of(REFERENCE_GPU) / f"speedup-{dtype}.png" for dtype in DTYPES}
GENERATED = re.compile(
    r"(<!-- begin (\w+): made by make notebooks -->\n).*?(<!-- end -->)", re.DOTALL
)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status: 1 if --check finds something out of date, 2 if a
    record cannot be read, and then nothing is written."""
    parser = argparse.ArgumentParser(prog="python -m helpers.commands.figures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if stale")
    options = parser.parse_args(arguments)
    if shown_gpu() != REFERENCE_GPU:
        parser.error("pages and kernels show the reference GPU: unset SOFTMAX_RECORDS")
    try:
        stale = out_of_date()
    except (ValueError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    for path, content in stale.items():
        name = path.relative_to(ROOT).as_posix()
        print(f"{name} {'is out of date' if options.check else 'rewritten'}")
        if options.check:
            continue
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8", newline="\n")
        else:
            content.savefig(path, dpi=200, metadata={"Description": digest_of(content)})
    return 1 if options.check and stale else 0


def out_of_date() -> dict[Path, str | Figure]:
    """The files that do not match the records -> what they should contain."""
    texts = {ROOT / name: text for name, text in wanted_texts().items()}
    stale = {
        path: text
        for path, text in texts.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
    drawn = plots().items()
    return stale | {path: one for path, one in drawn if digest_of(one) != drawn_digest(path)}


def wanted_texts() -> dict[str, str]:
    """The required text of the README, docs/, comparison.md and the kernel files."""
    blocks = {
        "summary": summary_block(),
        "questions": questions_block(),
        "steps": steps_block(),
        "unseen": unseen_block(UNSEEN),
        "unseen_groups": unseen_groups_block(),
        "comparison": comparison_block(SPEEDUPS),
        "around": around_block(),
    }
    texts = {page.relative_to(ROOT).as_posix(): with_blocks(page, blocks) for page in PAGES}
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


def with_blocks(page: Path, blocks: Mapping[str, str]) -> str:
    """The text of a page with its generated parts, whose links are relative to the root."""
    root = "../" * (len(page.relative_to(ROOT).parts) - 1)
    text = GENERATED.sub(
        lambda part: part[1] + blocks[part[2]].replace("](", f"]({root}") + "\n" + part[3],
        page.read_text(encoding="utf-8"),
    )
    return text.replace(NO_URL, REPO_URL or NO_URL)


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
        "a copy"
        if case.bandwidth_baseline in ("", COPY)
        else case.bandwidth_baseline.removeprefix("variants/")
    )
    share = "" if beside == step.removeprefix("variants/") else f", {case.share:.2f} of {beside}"
    if share and round(case.share, 2) > 1 and not step.startswith(COPIES):
        best = best_copy(case)
        share += f" (best copy {best:.2f})" if best and record.is_current() else ""
    label = record.label.removeprefix("NVIDIA ")
    label = label if record.is_current() else f"earlier, {label}"
    return f"{rate}{share} at {where} ({label})"


def summary_block() -> str:
    """How far the steps are from a copy, and how they compare with other libraries."""
    first = load_record("01_naive")  # without records, it says how they are made
    close = sorted(
        (one for one in recorded_steps() if step_number(one.step) >= AT_THE_LIMIT),
        key=lambda one: one.headline.share,
    )
    farthest, second, most = close[0], close[1], close[-1]
    lines = [
        f"- **Copy bandwidth.** `{first.step}` reaches {first.headline.share:.2f} of it; the "
        f"kernels from {AT_THE_LIMIT:02} on reach {second.headline.share:.2f} to "
        f"{most.headline.share:.2f}, each at a large shape for which it is made. The exception is "
        f"`{farthest.step}`, {farthest.headline.share:.2f} at {farthest.headline.at.place()} "
        "([all steps](docs/results.md)). Most of these kernels use a cache hint; the copy does not."
    ]
    drawn = [case for name in GROUPS for case in load_unseen(group=name)]
    at_random = f" Drawn at random, {verdicts(drawn)}" if drawn else ""
    lines += [
        *unseen_summary(),
        "- **Fused and related operations.** At shapes of our choice, "
        f"{verdicts(around_cases(load_comparisons()))}{at_random}",
        "",
        "*Ahead* and *slower* mean by more than run-to-run variation and, for *ahead*, by more "
        f"than {TOLERANCE:.0%}. *Lost* is slower by more than {TOLERANCE:.0%}, or by less where "
        f"the baseline is below {ROOM} of a copy. The [comparison](docs/comparison.md) names each "
        "loss, all versions, and how the baselines are run.",
    ]
    return "\n".join(lines)


def unseen_summary() -> list[str]:
    """The headline of the comparison: problems drawn at random, and a picture of them."""
    cases = load_unseen()
    if not cases:
        return [f"- **Softmax on shapes drawn at random.** {unseen_lines(cases)[0]}", ""]
    names = dict.fromkeys(name for case in cases for name in case.timed if name in BASELINES)
    titles = ", ".join(BASELINES[name].title for name in names)
    median = statistics.median(case.speedup for case in cases)
    eager = statistics.median(case.speedup_over("torch").value for case in cases)
    return [
        f"- **Softmax on {len(cases)} shapes drawn at random**, none of them used for tuning, in "
        f"three dtypes on an {cases[0].run.device['name']}, against the best of {titles}: "
        f"{verdicts(cases).partition(': ')[2]} The median speedup is {median:.2f} over the best "
        f"baseline and {eager:.2f} over eager PyTorch.",
        "",
        f"![Speedup over the best baseline on shapes drawn at random]({named(UNSEEN)})",
        "",
    ]


def questions_block() -> str:
    """The questions of the deeper notebooks, each after the number of its core notebook."""
    lines = []
    for path in deeper_notebooks():
        link = path.relative_to(ROOT).as_posix()
        lines.append(f"- {path.name[:2]} [{title_of(path)}]({link})")
    return "\n".join(lines)


def steps_block() -> str:
    """One line per step at the shape for which it was predicted."""
    lines = [
        "| step | notebook | rows x columns | GB/s | × copy | best copy | predicted |",
        "|---|---|---|---|---|---|---|",
    ]
    shown = [load_record("00_copy"), *recorded_steps()]
    for record in shown:
        case = record.headline
        mark = "" if record.is_current() else "*"
        best = best_copy(case)
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
        "at the shape for which it was predicted. GB/s assumes one read and one write of the "
        "matrix, even if the kernel moved more. *× copy* is that speed divided by the speed of "
        "`00_copy`, a plain copy kernel. *Best copy* is the fastest copy kernel that was recorded "
        "at the shape, also divided by the plain one (-: only that was timed). "
        f"{', '.join(needs)}, and each is divided by a plain kernel that moves as many bytes. "
        f"Predictions were written down before the measurement; the wrong ones stay.{stale}",
    ]
    return "\n".join(lines)


def passes_of(step: str) -> str:
    """The passes over a matrix that a step's header counts, in words: "two reads and one write"."""
    passes = load(step).header.fields["Reads"].removesuffix(" + 0 writes")
    return passes.replace("1 ", "one ").replace("2 ", "two ").replace(" + ", " and ")


def step_link(step: str) -> str:
    if step == UNFUSED:
        return "five array operations"
    return f"[`{step}`](kernels/{split_trial(step).file}.cu)"


def notebook_link(step: str) -> str:
    """The notebook with the number of a step; a kernel may be measured before its notebook
    exists."""
    found = next(NOTEBOOKS.glob(f"{step[:2]}_*.ipynb"), None)
    return f"[{step[:2]}](notebooks/{found.name})" if found else "-"


def plots() -> dict[Path, Figure]:
    """Picture -> its figure."""
    found = {PLOT: figure_of_series(series(), "long")[0], LOST_TIME: figure_of_lost_time()[0]}
    for dtype, path in SPEEDUPS.items():
        if cases := comparison_cases(dtype):
            found[path], _ = of_speedups(cases)
    found[UNSEEN], _ = of_unseen(load_unseen())
    return found


def drawn_digest(path: Path) -> str:
    """The digest stored in the description of a picture on disk."""
    if not path.is_file():
        return ""
    found = re.search(rb"Description\0([0-9a-f]{16})", path.read_bytes())
    return found[1].decode() if found else ""


if __name__ == "__main__":
    sys.exit(main())
