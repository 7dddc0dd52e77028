"""What the README would say of cases that the records, which it shows, do not have."""

from dataclasses import replace

import pytest

from helpers.base.paths import ROOT
from helpers.catalogue import store
from helpers.catalogue.store import REFERENCE_GPU, Run
from helpers.measure import bench
from helpers.measure.comparison import DTYPES, Added, Comparison
from helpers.measure.pipelines import Pipeline
from helpers.measure.problem_groups import GROUPS
from helpers.page import comparison_text
from helpers.problem.shapes import compared_shapes
from tests import made_up
from tests.made_up import DEVICE, OURS, pipeline_case

VERSIONS = {"driver": "1", "nvrtc": "13.0", "cupy": "14.0", "torch": "2.11.0"}
RUN = Run(DEVICE, VERSIONS, "2030-01-02", bench.PROTOCOL)
PICTURES = {dtype: ROOT / f"{dtype}.png" for dtype in DTYPES}


def comparison_case(*at, **times: float) -> Comparison:
    return replace(made_up.comparison_case(*at, **times), run=RUN)


@pytest.fixture
def record_comparison(tmp_path, monkeypatch):
    """Write the cases given where the README looks for them, and say what it says."""
    monkeypatch.setattr(store, "folder_of", lambda gpu: tmp_path / gpu)
    monkeypatch.setattr(Comparison, "is_current", lambda case: True)

    def write(*cases: Comparison) -> str:
        store.write(Comparison, REFERENCE_GPU, cases)
        return comparison_text.comparison_block(PICTURES)

    return write


def rows_of(block: str) -> dict[str, list[str]]:
    """First cell -> the others, for each line of the Markdown tables; of equal ones the last."""
    lines = [line.strip("| ").split(" | ") for line in block.splitlines() if line[:1] == "|"]
    return {first: cells for first, *cells in lines}


def test_no_unsupported_vanishes(record_comparison, monkeypatch) -> None:
    """Ours: compared without a kernel, or not compared for want of one. A baseline's: refused or
    wrong."""
    monkeypatch.setattr(
        comparison_text, "choose", lambda rows, cols, *_: None if cols == 50257 else OURS
    )
    skipped = {
        "quack": "QuACK needs cols % 4 == 0",
        "liger": "liger_kernel is not installed",
        "cudnn": "wrong result: at (1, 2): 9 of 10 elements are wrong, by up to 1.2 ulp",
    }
    ours = replace(comparison_case(65536, 77), step="", skipped=skipped)
    del ours.samples_us[OURS]
    skipped = {"triton": "wrong result: left NaN in its output at (8, 16)"}
    other = replace(comparison_case(1, 32000), skipped=skipped)
    block = record_comparison(ours, other)
    rows = rows_of(block)
    not_compared = sum(cols == 50257 for dtype in DTYPES for _, cols in compared_shapes(dtype))
    assert rows["ours"] == [
        "1",
        "ahead of all in 1",
        f"{1 + not_compared}: none of our kernels takes the shape",
    ]
    assert rows["QuACK"] == ["0", "0", "1: QuACK needs cols % 4 == 0"]
    assert rows["cuDNN"] == ["0", "0", "1: wrong result; wrong by up to 1.2 ulp"]
    assert rows["Triton tutorial"][2] == "1: wrong result: left NaN in its output"
    assert "Liger" not in rows, "not in the comparison"
    assert rows_of(comparison_text.every_case())["65536 x 77"] == [
        *("-", "-", "-", "PyTorch", "0.48 (20.00 us)", "-", "**unsupported**"),
    ]
    assert rows["vocabularies"][0] == "4 unsupported, 15 not compared"
    assert rows["rows that start anywhere"][0] == "3 unsupported, 7 not compared"


def test_cases_of_other_versions_than_were_compared_with_last_are_counted(
    record_comparison,
) -> None:
    """Planted: the last comparison was of a related operation."""
    run = replace(RUN, versions={**VERSIONS, "torch": "2.10.0"}, utc="2030-01-01")
    older, newer = replace(comparison_case(65536, 4096), run=run), comparison_case(1, 32000)
    assert " with other versions." not in record_comparison(newer)
    assert "torch 2.11.0); 1 of 2 cases with other versions." in record_comparison(older, newer)
    newest = around("gradient of softmax", 32768, 4096)
    assert "torch 2.11.0); 1 of 1 case with other versions." in record_comparison(older, newest)


# ---- related operations --------------------------------------------------------------------------


def around(group: str, rows: int, cols: int, dtype: str = "float32", **times: float) -> Comparison:
    inner = 32 if group == "any axis" else 1
    problem = GROUPS[group].problem(rows, cols, dtype, inner)
    return replace(comparison_case(**times), problem=problem)


@pytest.fixture
def told(record_comparison):
    """What the README says of related operations, and of pipelines that are saved for it."""

    def write(*cases: Comparison, linked=()) -> str:
        record_comparison(comparison_case(65536, 4096, quack=9.5), *cases)
        if linked:
            store.write(Pipeline, REFERENCE_GPU, linked)
        return comparison_text.around_block()

    return write


def test_operations_have_their_speedup_losses_and_unsupported_by_name(told) -> None:
    lost = around("gradient of softmax", 32768, 4096, "bfloat16", quack=9.5)
    wrong = {"quack": "QuACK needs cols % 4 == 0", "liger": "Liger computes no such thing"}
    axis = replace(around("any axis", 2**18, 512, cudnn=12.5), skipped=wrong)
    block = told(lost, around("gradient of softmax", 32768, 4096), axis)
    lost = "gradient of softmax at 32768 x 4096 bfloat16 to QuACK by 5.0%"
    assert block.startswith(f"Of 3 cases: 2 ahead, 1 lost ({lost}).")
    rows = rows_of(block)
    assert rows["gradient of softmax"] == [
        *("1 ahead", "2.00, PyTorch at 32768 x 4096", "1 lost", "0.950, QuACK at 32768 x 4096", "-")
    ]
    assert rows["any axis"] == [
        *("1 ahead", "1.25, cuDNN at 8192 x 512 x 32", "-", "-"),
        "1x QuACK needs cols % 4 == 0",
    ]
    assert "cross-entropy" not in rows and "pipeline" not in block
    page = comparison_text.every_case()
    bfloat = page[page.index("## Gradient of softmax in bfloat16") :]
    assert rows_of(bfloat)["32768 x 4096"] == [
        *(f"`{OURS}`", "0.97", "QuACK", "1.02"),
        *("0.950 (0.948&nbsp;to&nbsp;0.952)", "**lost**"),
    ]
    assert "| of the bandwidth baseline |" in bfloat and "## Any axis in bfloat16" not in page
    assert rows_of(page)["8192 x 512 x 32"][-1] == "ahead", "a section of its own: ## Any axis"


def test_pipelines_are_told_by_operation_and_state(told, monkeypatch) -> None:
    at = GROUPS["gradient of softmax"].problem
    case = replace(pipeline_case([10.0], liger=11.0), problem=at(4096, 4096, "float32"))
    monkeypatch.setattr(Pipeline, "chosen", property(lambda case: [*case.launches][0]))
    lost = pipeline_case([10.0], state="evicted", liger=9.0)
    lost = replace(lost, problem=at(8192, 8192, "float32"))
    block = told(around("gradient of softmax", 32768, 4096), linked=[case, lost])
    assert rows_of(block)["gradient of softmax"] == [
        *("1 ahead", "+9.1%, Liger at 4096 x 4096", "1 lost", "-11.0%, Liger at 8192 x 8192")
    ]
    named = "gradient of softmax at 8192 x 8192, evicted, than Liger by 11.0% ("
    assert f"\nSlower there: {named}" in block


# ---- less precise -------------------------------------------------------------------------------


def test_less_precise_is_marked_and_wrong_is_not_timed(record_comparison) -> None:
    """Three cases: of a baseline that was added later and is less precise, and two wrong ones."""

    def wrong(ulps: float, rows: int, dtype: str = "bfloat16") -> Comparison:
        reason = f"wrong result: at ({rows}, 9): 9 of 10 elements are wrong, by up to {ulps} ulp"
        return replace(comparison_case(rows, 32000, dtype), skipped={"cudnn": reason})

    block = record_comparison(wrong(3.0, 64), wrong(1.2, 64, "float32"))
    assert rows_of(block)["cuDNN"][2] == "2: wrong result; wrong by up to 3.0 ulp"
    samples = {OURS: [11.0] * 7, "cudnn": [8.8] * 7, bench.COPY: [9.7] * 7}
    versions = {"driver": "2", "cudnn": "91900"}
    later = Added(samples, versions, "2030-02-03T04:05:06", {"cudnn": 1.2})
    case = replace(comparison_case(1, 32000, "bfloat16"), added=[later])
    assert case.timed == [OURS, "torch", "cudnn"]
    assert case.best_baseline == "cudnn" and case.speedup == pytest.approx(0.8)
    assert case.share(OURS) == pytest.approx(0.97), "ours is of the first process"
    block, page = record_comparison(case, wrong(3.0, 8)), comparison_text.every_case()
    assert rows_of(block)["cuDNN"] == [
        *("1, 1 less precise (up to 1.2 ulp)", "1", "1: wrong result; wrong by up to 3.0 ulp")
    ]
    said = "cuDNN was added at 1 shape on 2030-02-03, beside our kernel and a copy (driver 2, "
    assert f" {said}version 91900)." in block and said in page
    assert rows_of(page)["1 x 32000"][3] == "cuDNN~"
    assert f"\n{comparison_text.LESS_PRECISE_MARK}: " in page
