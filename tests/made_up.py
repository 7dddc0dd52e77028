"""Records of a GPU that there is not, for tests of what reads and writes them."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.base import gpu, paths
from helpers.base.gpu import H200
from helpers.catalogue import dispatch, registry, store
from helpers.catalogue.dispatch import launch_of, step_hash
from helpers.catalogue.registry import WITHOUT_FILE
from helpers.catalogue.store import Observation, Run
from helpers.measure import baselines, bench, campaign, side_by_side
from helpers.measure.comparison import Comparison
from helpers.measure.pipelines import COPY, Pipeline, variants
from helpers.measure.pipelines import PROTOCOL as PIPELINES
from helpers.measure.records import Case, Record, Timed
from helpers.problem.problem import Problem
from helpers.problem.shapes import (
    FEW_SHAPES,
    GRID_SHAPES,
    LONG_SHAPES,
    SWEEP_SHAPES,
    UNALIGNED_SHAPES,
)

# It has an H200's numbers, so that plans for it are those of the kernels' own records.
DEVICE = {
    "name": "NVIDIA Test",
    "compute_capability": str(H200.capability),
    "multiprocessors": H200.sms,
    "l2_bytes": H200.l2,
}
FOLDER = "nvidia-test"
VERSIONS = {"driver": "1.2", "nvrtc": "13.0", "cupy": "14.0"}
UTC = "2030-01-02T03:04:05+00:00"
RUN = Run(DEVICE, VERSIONS, UTC, bench.PROTOCOL)


def timed(us: float = 11.0, copy_us: float = 5.5, launch: dict | None = None) -> Timed:
    """So many microseconds a call, beside a copy."""
    series = [us - 1, us + 1, us]
    return Timed(launch or {}, series, [copy_us] * 3, 50, {"registers": 31})


def case(step: str, at: Problem, us: float = 11.0, run: Run = RUN) -> Case:
    """A case of a step as it is now, by default half as fast as a copy."""
    without = {"grid": 0, "block": 0, "shared_mem": 0}
    launch = without if step in WITHOUT_FILE else launch_of(step, at)
    return Case.of(timed(us, launch=launch), step, bench.problem_of(step, at), run)


def record(
    step: str = "01_naive", shapes=((1024, 512), (64, 2048)), dtype: str = "float32"
) -> Record:
    """A record of a step as it is now, of such cases."""
    return Record(step, [case(step, Problem(*shape, dtype)) for shape in shapes])


EVERY_SHAPE = [
    *(*SWEEP_SHAPES, *FEW_SHAPES[::-1], *UNALIGNED_SHAPES[::-1], *LONG_SHAPES, *GRID_SHAPES)
]


def steady(step: str, shapes=EVERY_SHAPE, dtypes=("float32",), us: float = 20.0) -> Record:
    """A record of a step that need not exist: `us` a call, of the copy 10, at each shape."""
    what = {"step": step, "kernel_hash": "x"}
    cases = [
        Case(Problem(*shape, dtype), RUN, **vars(timed(us, 10.0)), **what)
        for dtype in dtypes
        for shape in shapes
    ]
    return Record(step, cases)


def on_gpu(record: Record, name: str) -> Record:
    """The same, as if measured on a GPU of another name."""
    run = replace(RUN, device={**DEVICE, "name": name})
    return Record(record.step, [replace(case, run=run) for case in record.cases])


def on_a_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: tuple) -> None:
    """Have campaigns find `DEVICE` and store their records in a folder; `more` are further (module,
    name, replacement)."""
    for module, name, replacement in (
        (store, "RECORDS", folder),
        (gpu, "has_gpu", lambda: True),
        (gpu, "gpu_in_use", lambda: gpu.H200),
        (gpu, "describe_device", lambda: DEVICE),
        (gpu, "describe_versions", lambda: dict(VERSIONS)),
        (campaign, "gpu_is_usable", lambda: True),
        (bench, "shapes_that_fit", list),
        *more,
    ):
        monkeypatch.setattr(module, name, replacement)


def beside_libraries(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: tuple) -> None:
    """The same on a computer on which every baseline but QuACK is installed; what is timed does
    nothing."""
    on_a_gpu(
        *(folder, monkeypatch),
        (side_by_side, "gpu_in_use", lambda: gpu.H200),
        (bench, "maker", lambda *_: no_kernel),
        (bench, "copy_maker", lambda *_: no_kernel),
        (side_by_side, "candidate", no_kernel),
        (baselines, "versions", lambda: {"torch": "2.11.0"}),
        (baselines, "why_not", lambda name, *_: "not here" if name == "quack" else ""),
        (side_by_side, "free_memory", lambda: None),  # collecting garbage takes long here
        (campaign, "CACHE", folder / "cache"),
        *more,
    )
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "QUACK_CACHE_DIR"):
        monkeypatch.setenv(variable, "")


def no_kernel(*_, **__) -> bench.Candidate:
    """A candidate that does nothing."""
    return bench.Candidate(lambda x, y: None, {}, {}, None)


def refused(one: Observation, old: str, new: str, said: str) -> None:
    """Once a text in the file of an observation is another, reading it names file, line and key."""
    store.write(type(one), FOLDER, [one])
    path = store.path_of(type(one), FOLDER)
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=rf"^{FOLDER}/{path.stem}\.jsonl{said}") as caught:
        store.read(type(one), FOLDER)
    assert "\n" not in str(caught.value)


OURS = "06_registers"  # in a comparison
PIPELINE_RUN = Run(DEVICE, VERSIONS, UTC, PIPELINES)


def comparison_case(rows=1024, cols=4096, dtype="float32", **times: float) -> Comparison:
    """A case of `OURS` at 10 us a call against a baseline at 20, or at other times a call."""
    times = {OURS: 10.0, "torch": 20.0, **times}
    return Comparison(
        Problem(rows, cols, dtype),
        RUN,
        OURS,
        step_hash(OURS),
        {"grid": rows, "block": 128, "shared_mem": 0},
        {name: [us - 0.01, us, us + 0.01] for name, us in times.items()},
        [9.69, 9.7, 9.71],
        dict.fromkeys(times, 50),
    )


def pipeline_case(
    us: list[float],
    rows: int = 65536,
    cols: int = 4096,
    dtype: str = "float32",
    state: str = "fresh",
    noise_us: float = 0.02,
    **baselines: float,
) -> Pipeline:
    """A case of what is chosen and its variants, which add so many microseconds to a pipeline of
    100, in the order of `variants` and its last with all others; baselines likewise, the copy
    9.5."""
    random = np.random.default_rng(0)
    at = Problem(rows, cols, dtype)
    step = dispatch.best(at)
    names = variants(step, at)
    added = {COPY: 9.5, **dict(itertools.zip_longest(names, us[: len(names)], fillvalue=us[-1]))}
    added |= baselines

    def series(us: float) -> list[float]:
        return [float(us + one) for one in random.normal(0, noise_us, 21)]

    return Pipeline(
        at,
        PIPELINE_RUN,
        state,
        {name: launch_of(name, at) for name in names},
        {step: step_hash(step)},
        50,
        {name: series(100 + one) for name, one in added.items()},
        {name: series(100) for name in added},
    )


class Kernels:
    """A copy of the kernel files that the catalogue takes for the true ones until the test ends."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder / "kernels"
        shutil.copytree(paths.KERNELS, self.folder)
        monkeypatch.setattr(registry, "KERNELS", self.folder)

    def edit(self, file: str, *changes: tuple[str, str], as_file: str = "") -> None:
        """The file as it is in the repository but for these changes, as `as_file` if given."""
        text = (paths.KERNELS / file).read_text()
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        (self.folder / (as_file or file)).write_text(text)
