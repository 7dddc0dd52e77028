"""The plan of an exported Python file: what `choose` picks and what its header says, at random
matrices and on six GPUs."""

import random
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from helpers.bound import load
from helpers.catalogue import choose, split_trial
from helpers.export.asked import Refused, request
from helpers.export.python import write
from helpers.gpu import H200, Gpu

MB = 2**20
GPUS = (
    H200,
    Gpu(90, 114, 50 * MB),
    Gpu(100, 148, 126 * MB),
    Gpu(120, 170, 96 * MB),
    Gpu(80, 108, 40 * MB),
    Gpu(75, 40, 4 * MB),
)
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}


def planned(text: str) -> ModuleType:
    """An exported file's plan, which needs none of the framework's packages."""
    module = ModuleType("exported")
    sys.modules["exported"] = module  # where typing.NamedTuple looks for what a file defines
    lines = [
        line for line in text.splitlines() if not line.startswith(("import cupy", "import to"))
    ]
    before, launching, rest = "\n".join(lines).partition("# ---- compiling and launching")
    kernels = rest[rest.index("# ---- the kernels") :]
    exec(compile(before + kernels, "exported.py", "exec"), vars(module))
    return module


def matrices(count: int, seed: int) -> Iterator[tuple]:
    """(rows, cols, dtype, x_stride, y_stride, aligned, alike, gpu), of every size up to 64 GB."""
    draw = random.Random(seed)
    for _ in range(count):
        dtype = draw.choice(list(SIZES))
        total = draw.uniform(0, 36)
        part = draw.uniform(0, min(total, 31))
        rows, cols = int(2 ** (total - part)), int(2**part)
        if draw.random() < 0.5:
            cols = -(-cols // 8) * 8
        if draw.random() < 0.3:  # where a table goes from one case to the next
            cols = 2 ** draw.randint(3, 20) + draw.choice((-8, 0, 8))
        if draw.random() < 0.2:
            rows = draw.randint(1, 20)
        strides = [cols if draw.random() < 0.8 else cols + draw.randint(0, 9) for _ in "xy"]
        aligned = draw.random() < 0.8
        alike = aligned or draw.random() < 0.5
        yield rows, min(cols, 2**31 - 1), dtype, *strides, aligned, alike, draw.choice(GPUS)


def launch_of_project(rows, cols, dtype, x_stride, y_stride, aligned, alike, gpu) -> tuple:
    step = choose(rows, cols, dtype, gpu, x_stride, y_stride, aligned, alike)
    bound = load(step).bind(rows, cols, dtype, gpu, x_stride, y_stride)
    found = bound.plan
    sizes = found.grid, found.block, found.shared_mem, found.workspace
    return split_trial(step).file, found.options, *sizes, found.cooperative, found.cluster


def launch_of_export(module: ModuleType, *matrix) -> tuple:
    *matrix, gpu = matrix
    return tuple(module.plan(*matrix, module.Gpu(gpu.capability, gpu.sms, gpu.l2)))[:-1]


@pytest.fixture(scope="module")
def wanted() -> dict[tuple, tuple | None]:
    """The project's launches; None where it refuses."""
    found = {}
    for matrix in matrices(10000, seed=1):
        try:
            found[matrix] = launch_of_project(*matrix)
        except ValueError:
            found[matrix] = None
    return found


def differences(module: ModuleType, wanted: dict) -> list[tuple]:
    found = []
    for matrix, launch in wanted.items():
        try:
            given = launch_of_export(module, *matrix)
        except module.Refused:
            given = None
        if given != launch:
            found.append((matrix, launch, given))
    return found


@pytest.fixture(scope="module")
def text() -> str:
    return write(request("best", []), "cupy")


def test_exported_plan_is_that_of_choose_and_of_the_header(text: str, wanted: dict) -> None:
    assert differences(planned(text), wanted) == []
    files = {launch[0] for launch in wanted.values() if launch}
    assert files == set(planned(text).KERNELS), "every kernel of the ranking is met"


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("1 if row <= 8192", "1 if row <= 8224"),
        ("11 if rows > 1", "10 if rows > 1"),
        ("grid = ceil_div(rows, 4 * RUN)", "grid = ceil_div(rows, 4 * RUN) + 1"),
        ("shared_mem = 16 * THREADS * SLOTS", "shared_mem = 0"),
        ("workspace = 8 * rows * BLOCKS", "workspace = 4 * rows * BLOCKS"),
        ("cols <= 1024 and cols % 8 == 0", "cols <= 1016 and cols % 8 == 0"),
        ("m.rows % m.clusters == 0", "m.rows % m.clusters == 1"),
        ('{"LATE": 1}', "{}"),
        ("m.packs == 0 and m.row <= 2560", "m.packs == 0 and m.row <= 2048"),
        ("SHARED_KB = {0: 48,", "SHARED_KB = {0: 48, 91: 48,"),
        ("cooperative=True", "cooperative=False"),
        ("arch=80", "arch=75"),
        ("align=16", "align=0"),
        ("return Plan(name, tuple(options)", "return Plan(name, tuple(options[1:])"),
    ],
)
def test_a_changed_line_is_noticed(line: str, changed: str, text: str, wanted: dict) -> None:
    assert line in text
    assert differences(planned(text.replace(line, changed)), wanted)


@pytest.mark.parametrize(
    ("matrix", "error"),
    [
        ((0, 5), ValueError),
        ((5, 0), ValueError),
        ((2**31, 5), ValueError),
        ((5, 5, "float64"), ValueError),
        ((5, 5, "float32", 4), ValueError),
        ((5, 5, "float32", 5, 2**60), ValueError),
        ((5.0, 5), TypeError),
        ((5, "5"), TypeError),
    ],
)
def test_what_no_kernel_takes_is_refused(matrix: tuple, error: type, text: str) -> None:
    with pytest.raises(error):
        planned(text).plan(*matrix)


def test_an_old_gpu_is_refused_by_every_kernel(text: str) -> None:
    module = planned(text)
    with pytest.raises(module.Refused, match="needs sm_75, the GPU is sm_70"):
        module.plan(64, 64, gpu=module.Gpu(70, 80, 6 * MB))


def test_one_kernel_takes_what_its_header_takes() -> None:
    module = planned(write(request("07_warp", []), "cupy"))
    assert module.plan(64, 77).kernel == "07_warp" and [*module.KERNELS] == ["07_warp"]
    with pytest.raises(module.Refused, match="does not take rows = 64, cols = 1025"):
        module.plan(64, 1025)


def test_a_trial_has_its_values() -> None:
    module = planned(write(request("08_cluster-CLUSTER2", []), "cupy"))
    assert "-DCLUSTER=2" in module.plan(64, 16384).options
    with pytest.raises(Refused, match="01_naive-b32 changes more than its Build table"):
        write(request("01_naive-b32", []), "cupy")


def test_a_plan_says_why(text: str) -> None:
    module = planned(text)
    assert module.plan(8192, 50257).reason.startswith("rows that are no whole packs")
    assert module.plan(7, 2**20).reason == "rows that go evenly into the 7 clusters that stay"
