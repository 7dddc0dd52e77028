"""Each kind of figure: it says what happened, its words can be read, and its digest changes with
what it draws and with nothing else. nbval compares the digests of the figures in notebooks."""

import copy
import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from helpers import bind, source
from helpers.base import gpu
from helpers.catalogue.registry import UNFUSED
from helpers.catalogue.tuned import load_tuned
from helpers.measure.comparison import comparison_cases
from helpers.measure.records import has_record, load_record, predictions
from helpers.page import draw
from helpers.page.draw import style
from helpers.page.draw.charts import QUIET
from helpers.page.draw.life import sent
from helpers.page.draw.reduction import follow
from helpers.page.draw.style import digest_of
from helpers.page.replay import asked, keep
from helpers.problem.shapes import FEW_SHAPES, GRID_SHAPES
from helpers.run.bound import load
from helpers.simt import KernelText, Trace, simulate
from helpers.simt.cuda_text import kernel_names
from tests import made_up
from tests.helpers.draw.looks import Shown, complaints, texts
from tests.made_up import comparison_case

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.collections import LineCollection  # noqa: E402
from matplotlib.colors import to_hex  # noqa: E402
from matplotlib.patches import FancyArrowPatch, Rectangle  # noqa: E402

pytestmark = pytest.mark.usefixtures("replay_unless_live")

Draw = Callable[[], None]

# ---- traces -------------------------------------------------------------------------------------

SUM = """extern "C" __global__ void sum(const float* x, float* y)
{
    int i = threadIdx.x;
    __shared__ float s[64];
    s[i] = x[2 * i];
    __syncthreads();
    float v = s[i ^ 32];
    v += __shfl_xor_sync(~0, v, 1);
    y[i] = v;
}
"""
ONE_LINE_MORE = SUM.replace("{\n", "{\n    // A comment is enough.\n")
ANOTHER_STRIDE = SUM.replace("2 *", "1 *")
ANOTHER_ORDER = SUM.replace("^ 32", "^ 33")
ANOTHER_BARRIER = SUM.replace("    float", "    __syncthreads();\n    float")
FILL = 'extern "C" __global__ void fill(const float* x, float* y) { y[threadIdx.x] = 1; }'
COPY = """extern "C" __global__ void copy(const float* x, float* y)
{
    y[threadIdx.x] = x[threadIdx.x];
}
"""
COPY_PAIRS = COPY.replace("float", "float2")
PAIRS = COPY.replace("x[threadIdx.x];", "x[threadIdx.x / 2] + x[threadIdx.x ? 0 : 1];")
COUNTED = """extern "C" __global__ void counted(const float* x, float* y)
{
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, x[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 5) y[0] = sum;
}
"""
CHAIN = """extern "C" __global__ void chain(volatile float* x, volatile float* y)
{
    if (threadIdx.x == 0) {
        if (blockIdx.x) while (x[blockIdx.x - 1] == 1) {}
        y[blockIdx.x] = x[blockIdx.x];
        x[blockIdx.x] = 2;
    }
}
"""
OTHER = """#include <cooperative_groups.h>
extern "C" __global__ __cluster_dims__(2) void other(const float* x, float* y, int n)
{
    __shared__ __align__(16) float s[128];
    auto cluster = cooperative_groups::this_cluster();
    int place[40];
    for (int k = 0; k < 40; k++) place[k] = (k * n) % 40;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
        :: "r"((unsigned)__cvta_generic_to_shared(&s[4 * threadIdx.x])), "l"(x + 4 * threadIdx.x));
    asm volatile("cp.async.wait_all;" ::: "memory");
    cluster.sync();
    float far = cluster.map_shared_rank(s, blockIdx.x ^ 1)[threadIdx.x];
    atomicAdd(y, far + place[(threadIdx.x * n) % 40]);
    cluster.sync();
}
"""
GATHER = """extern "C" __global__ void gather(const float* x, const int* index, float* y)
{
    y[threadIdx.x] = x[index[threadIdx.x]];
}
"""
SPACE = """extern "C" __global__ void space(float4* y, const int* index)
{
    __shared__ TYPE s[1024];
    for (int k = threadIdx.x; k < 1024; k += 32) s[k] = TYPE{};
    __syncthreads();
    ((TYPE*)y)[threadIdx.x] = s[index[threadIdx.x]];
}
"""
LANES = np.arange(32, dtype=np.int32)


@cache
def traced(code: str, grid: int = 3, block: int = 64, shape=(128,), more: tuple = ()) -> Trace:
    """A launch on an array of ones and one of zeros."""
    x = np.ones(shape, np.float32)
    kernel = KernelText(code, kernel_names(code)[0])
    return simulate(kernel, grid, block, (x, x * 0, *more), watch=True)


def gathered(index: np.ndarray, past: int = 0) -> Trace:
    """x[index[lane]], where x starts so many elements past a multiple of 256 bytes."""
    args = np.zeros(2048 + past, np.float32)[past:], index, np.zeros(32, np.float32)
    return simulate(KernelText(GATHER, "gather"), 1, 32, args, watch=True)


def within(index: np.ndarray, element: str) -> Trace:
    """s[index[lane]] of shared memory."""
    kernel = KernelText(SPACE.replace("TYPE", element), "space")
    args = np.zeros(128, np.float32), index.astype(np.int32)
    return simulate(kernel, 1, 32, args, watch=True)


@cache
def cluster() -> Trace:
    """Two rows by 08, a cluster of four blocks each."""
    x = np.ones((2, 8192), np.float32)
    small = {"CLUSTER": 4, "THREADS": 64, "PACKS": 8}
    return bind(source("08_cluster.cu"), 2, 8192, changes=small).simulate(x, x * 0, watch=True)


@cache
def warps_of_16_lanes() -> Trace:
    x = np.ones((33, 40), np.float32)
    return load("07_warp-LANES16").bind(33, 40).simulate(x, x * 0, watch=True)


@cache
def tree() -> Trace:
    x = np.random.default_rng(0).normal(size=(2, 20)).astype(np.float32)
    kernel = KernelText(source("03_shared.cu"), "softmax_shared")
    return simulate(kernel, 2, 8, (x, x * 0, 2, 20), 64, watch=True)


# ---- what is said -------------------------------------------------------------------------------


def sectors(index: np.ndarray, past: int = 0) -> Draw:
    return lambda: draw.sectors(gathered(index, past), "x[index", nth=1)


def banks(index: np.ndarray, element: str) -> Draw:
    return lambda: draw.banks(within(index, element), "s[index", kind="load")


def of(figure: str, code: str, *launch, **options) -> Draw:
    """A figure of the trace of a launch."""
    return lambda: getattr(draw, figure)(traced(code, *launch), **options)


HALVES = {"one": {"a": 9.0, "b": 0.51}, "two": {"a": 3.0}}
LINES = {"hits": ([32, 64, 128], [90, 50, 50]), "misses": ([32, 64, 128], [10, 50, 50.5])}
FIELDS = [0.1, 0.5], [None, 0.931], [0.2, np.nan]
LABELS = "Pieces", "bytes", "blocks", "So."
IDLE = FILL, 1, 64, (2, 32)
SAID: dict[str, tuple[Draw, str]] = {  # what draws it, and what its sentence contains
    "bars": (partial(draw.bars, {"one": 12.34, "two": 0.92}, "A", "KB", "So.", mark="two"), "So."),
    "dots": (partial(draw.dots, HALVES, "A", "KB", "So.", log=True, limit=("half", 30)), "So."),
    "curves": (partial(draw.curves, LINES, *LABELS, logx=False, logy=True), "So."),
    "heat": (partial(draw.heat, [1, 2, 4], ["4", "8"], FIELDS, *LABELS, mark=[(2, "8")]), "So."),
    "the middle of a sector": (sectors(LANES, 3), "5 sectors and uses 128 of 160 bytes"),
    "far apart": (sectors(LANES * 64), "touches 32 sectors and uses 128 of 1,024 bytes"),
    "lanes that take no part": (
        lambda: draw.sectors(warps_of_16_lanes(), "from[pack]"),
        "one request of 20 lanes touches 10 sectors and uses 320 of 320 bytes",
    ),
    "two words of a bank": (
        banks(LANES // 16 * 32 + LANES // 24, "float"),
        "at most 2 words of one bank: 2 turns; without conflicts, 1",
    ),
    "halves of words": (banks(LANES, "short"), "at most 1 word of one bank: 1 turn, no bank con"),
    "packs with conflicts": (
        banks(LANES % 4 * 8, "float4"),
        "16 bytes each, served 8 at a time, and at most 16 words of one bank: 16 turns; with",
    ),
    "every kind of memory": (
        of("moves", OTHER, 2, 32, (128,), (3,)),
        "reads x twice and writes y 0 times: 32 sectors",
    ),
    "machine": (
        partial(draw.machine, "block", "SM"),
        "Highlighted: block (≤ 1024 threads); shared, L1 (256 KB per SM, ",
    ),
    "life of a cluster": (
        lambda: draw.life(cluster()),
        "meet at 1 barrier; warp by warp, the number of those at which it waits: 0, ",
    ),
    "waiting": (partial(draw.waiting, 300, 100), "With 4 loads in flight, as much latency and"),
    "messages of a cluster": (
        lambda: draw.messages(cluster()),
        "For each of 24 pairs of sender and receiver, 2 messages of 8 bytes go through distributed "
        "shared memory.",
    ),
    "a chain of blocks": (
        of("messages", CHAIN, 20, 32, (20,)),
        "For each of 19 pairs of sender and receiver, 1 message of 4 bytes goes through the x "
        "array.",
    ),
    "reduction of a cluster": (lambda: draw.reduction(cluster()), "level by level: 64 (2 times), "),
    "owners of a few pairs": (
        of("owners", COPY_PAIRS, 1, 8, (4, 5)),
        "columns 0 to 1 of row 0; a row is loaded by at most 3 lanes of one warp",
    ),
    "several owners": (
        of("owners", PAIRS, 1, 64, (4, 16)),
        "32 of 64 elements belong to more than one lane",
    ),
    "owners along columns": (
        of("owners", COPY, 1, 64, (2, 4, 8), along="column"),
        "Lane 0 of warp 0 loads column 0 of line 0; a column is loaded by 2 warps of one",
    ),
    "no owners": (of("owners", *IDLE), "No thread loads an element of x."),
    "no reduction": (of("reduction", *IDLE), "no thread takes the value of another thread"),
    "no barrier": (of("life", *IDLE), "2 warps meet at no barrier: no warp waits for another."),
    "no messages": (of("messages", *IDLE), "No block reads what another one wrote"),
}


def of_records() -> Iterator[tuple[str, Draw, str]]:
    """Figures of the records as they are, and of a comparison that has every verdict."""
    for after, before, options in (
        ("01_naive", UNFUSED, {}),
        ("06_registers", "05_float4", {"mine": 0.9}),
        ("09_grid", "08_cluster", {"family": "few", "mine": 0.5}),
        ("10_sixteen_bit", "07_warp", {"dtype": "bfloat16"}),
        ("11_any_row", "04_shuffle", {"family": "unaligned"}),
    ):
        records = load_record(after), load_record(before)
        yield f"step {after}", partial(draw.step, *records, **options), f"{after} at"
    yield "series", draw.series, "times as fast as 01_naive"
    float32, bfloat16 = map(comparison_cases, ("float32", "bfloat16"))
    few = [case for case in float32 if case.shape in FEW_SHAPES]
    yield "baselines", partial(draw.baselines, few), f"{len(few)} cases: "
    yield "speedups", partial(draw.speedups, bfloat16), f"{len(bfloat16)} cases: "
    plans = [point for point in load_tuned("nvidia-h200") if point.problem.dtype == "float32"]
    yield "plans of float32", partial(draw.plans, plans, "Plans", "So."), "So."
    none = replace(comparison_case(8192, 50257), step="")
    del none.samples_us["06_registers"]
    alone = replace(comparison_case(4, 512), samples_us={"06_registers": [10.0]})
    cases = [
        *(comparison_case(65536, 4096, quack=12.0), comparison_case(2**27 // 77 * 2, 77, quack=9)),
        *(comparison_case(8192, 4096, quack=10.02), comparison_case(4, 77, quack=9.95)),
        *(none, alone, comparison_case(1, 512)),
    ]
    said = "7 cases: 3 ahead, 1 level, 1 slower, 1 lost, 1 unsupported; the smallest speedup is "
    said += "0.90, over QuACK at 3486174 x 77."
    yield "every verdict", partial(draw.speedups, cases), said


SAID |= {name: (draw_it, said) for name, draw_it, said in of_records()}


@pytest.mark.parametrize("name", SAID)
def test_a_figure_says_what_happened_and_can_be_read(name: str, shown: Shown) -> None:
    draw_it, said = SAID[name]
    draw_it()
    figure, plain, sentence = shown.take()
    assert said in sentence and plain.startswith("<figure: ")
    assert complaints(figure) == []


def test_live_measurement_is_bold_and_the_record_dotted_beside_it(monkeypatch, shown) -> None:
    module = importlib.import_module("helpers.page.draw.step")  # helpers.draw.step is the function
    beside = made_up.on_gpu(made_up.steady("07_warp", us=30.0), "NVIDIA H200")
    monkeypatch.setattr(module, "recorded_beside", lambda record: [beside])
    draw.step(made_up.record("07_warp", GRID_SHAPES))
    axes = shown.take()[0].axes[0]
    color = style.look("07_warp").color
    assert {f"{color} :", f"{color} -"} < {
        f"{x.get_color()} {x.get_linestyle()}" for x in axes.lines
    }
    names = {one.get_text(): one.get_fontweight() for one in axes.get_legend().get_texts()}
    assert "NVIDIA H200, 2030-01-02" in names
    assert [name for name, weight in names.items() if weight == "bold"] == ["07_warp"]


def marks(figure) -> set[tuple[float, float]]:
    """(share, row) of the hollow marks."""
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "none"]
    return {(x, y) for line in hollow for x, y in line.get_xydata().tolist()}


def test_the_readers_predictions_are_drawn_beside_ours_except_in_a_forced_replay(
    tmp_path, monkeypatch, shown
) -> None:
    monkeypatch.setattr(importlib.import_module("helpers.page.replay"), "MINE", tmp_path)
    monkeypatch.delenv(gpu.SWITCH, raising=False)
    keep("01_naive", 0.06)
    keep("07_warp", 0.5)
    draw.ledger()
    figure, _, sentence = shown.take()
    steps = [step for step in asked() if has_record(step)]
    ours = {(predictions()[step]["share"], row) for row, step in enumerate(steps)}
    mine = {(0.06, steps.index("01_naive")), (0.5, steps.index("07_warp"))}
    assert marks(figure) == ours | mine and complaints(figure) == []
    assert " ".join(sentence.split()).endswith("Of your 2, 1 came within 10 percent.")
    monkeypatch.setenv(gpu.SWITCH, "1")
    draw.ledger()
    assert marks(shown.take()[0]) == ours


def test_what_several_lanes_load_is_hatched(shown: Shown) -> None:
    SAID["several owners"][0]()
    boxes = shown.take()[0].findobj(Rectangle)
    assert sum(box.get_hatch() == "////" for box in boxes) == 32


def test_keys_and_colours_are_of_what_is_drawn(shown: Shown) -> None:
    SAID["the middle of a sector"][0]()
    words = {text.get_text() for text in texts(shown.take()[0])}
    assert {"requested", "fetched along"} <= words and "not stored" not in words
    SAID["bars"][0]()
    one, two = (to_hex(bar.get_facecolor()) for bar in shown.take()[0].axes[0].patches)
    assert one == QUIET.lower() != two


@pytest.mark.parametrize(
    ("draw_it", "message"),
    [
        (partial(draw.bars, {"1": 1}, "A", "b", "So.", mark="two"), "'two' is none of 1"),
        (partial(draw.bars, {}, "A", "b", "So."), "no values"),
        (partial(draw.curves, {}, "A", "b", "c", "So."), "no lines"),
        (partial(draw.heat, [1, 2], [2], [[1]], "A", "b", "c", "So."), "values of 2 rows and"),
        (partial(draw.heat, [1], [2], [[1]], "A", "b", "c", "So.", mark=[(3, 2)]), "is no .row"),
        (partial(draw.plans, [], "A", "So."), "points of one dtype are needed"),
        (partial(draw.baselines, []), "no cases"),
        (partial(draw.series, [made_up.steady("01_x")], "axes"), "no record holds axes cases in"),
        (partial(draw.speedups, []), "no cases"),
        (partial(draw.machine, "thread"), "no part 'thread'; its parts: grid, .*, registers$"),
        (partial(draw.waiting, 0, 100), "must be positive"),
        (lambda: draw.owners(tree(), along="line"), "along is 'row', 'column', not 'line'"),
        (lambda: draw.life(untraced()), "watch=True"),
        (lambda: draw.sectors(untraced(), 30), "watch=True"),
        (partial(draw.ledger, "16_no_step"), "16_no_step"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw_it: Draw, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_it()


def untraced() -> Trace:
    x = np.ones((1, 100), np.float32)
    return bind(source("03_shared.cu"), 1, 100).simulate(x, x * 0)


# ---- what is read out of a trace ----------------------------------------------------------------


def test_values_come_from_all_that_added_and_messages_from_other_blocks() -> None:
    (level,) = follow(traced(COUNTED, 1, 16), 0).levels
    assert level.edges == {(thread, 5) for thread in range(16) if thread != 5}
    pairs = {(a, b) for a in range(8) for b in range(8) if a != b and a // 4 == b // 4}
    assert sent(cluster()).counts == dict.fromkeys(pairs, 2)
    assert sent(traced(CHAIN, 20, 32, (20,))).counts == {(n, n + 1): 1 for n in range(19)}


# ---- digests ------------------------------------------------------------------------------------


def step(after: str, before: str, family: str) -> Callable:
    """The plot of a record, or of the same with samples of one case changed by hand."""

    def draw_it(changed: bool) -> None:
        record = copy.deepcopy(load_record(after))
        case = record.of_family(family)[0]
        case.samples_us[:] = [(1 + 0.01 * changed) * us for us in case.samples_us]
        draw.step(record, load_record(before), mine=0.5, family=family)

    return draw_it


def of_trace(draw_it: Callable, changed_text: str, *arguments) -> Callable:
    return lambda changed: draw_it(traced(changed_text if changed else SUM), *arguments)


def bars(changed: bool) -> None:
    """A value is too wide for its bar in some fonts."""
    draw.bars(
        {**HALVES, "one": {"a": 9.0 + changed, "b": 0.51}},
        *("A title that takes two lines in some fonts, since it has so many words in it", "us"),
        "So it is.",
        stacked=True,
        limit=("so far", 8),
    )


def heat(changed: bool) -> None:
    draw.heat([1, 2], [1, 2], [[0.5, 1], [2, 3 + changed]], "Times", "x", "y", "So it is.")


CHANGED = {  # name -> what draws it, from true data or from changed data
    "step": step("06_registers", "05_float4", "grid"),
    "stacked bars": bars,
    "heat": heat,
    "machine": lambda changed: draw.machine("warp", "L1" if changed else "L2"),
    "sectors": of_trace(draw.sectors, ONE_LINE_MORE, "x[2 * i]"),
    "moves": of_trace(draw.moves, ONE_LINE_MORE),
    "reduction's order": of_trace(draw.reduction, ANOTHER_ORDER),
    "life": of_trace(draw.life, ANOTHER_BARRIER),
    "owners": of_trace(draw.owners, ANOTHER_STRIDE),
    "messages": lambda changed: draw.messages(traced(CHAIN, 20 - changed, 32, (20,))),
}
# Those whose text is laid out by its width.
DEPEND_ON_FONTS = ("step", "stacked bars", "heat", "sectors", "owners", "life")


@pytest.mark.parametrize("name", CHANGED)
def test_digest_changes_with_the_data_and_not_with_fonts(name: str, shown: Shown) -> None:
    """Versions of Matplotlib measure words differently; another font does so even more."""

    def digest(changed: bool) -> str:
        CHANGED[name](changed)
        return digest_of(shown.take()[0])

    once = digest(False)
    if name in DEPEND_ON_FONTS:
        with matplotlib.rc_context({"font.sans-serif": ["DejaVu Sans Mono"]}):
            assert digest(False) == once
    assert digest(True) != once


def drawn(
    order: int = 1,
    last: float = 0.0,
    start: float = 2,
    left: float = 0,
    bent: float = 1,
    edge: float = 1,
    color: str = style.RED,
):
    """A figure with one artist of each kind, without a word that says their places."""
    figure, axes = style.chart("Lines")
    for one in (style.BLUE, color)[::order]:
        axes.plot([1, 2], [0.3, last], color=one)
    axes.annotate("", (1, 0), (start, 0), arrowprops={"arrowstyle": "-|>"})
    axes.add_patch(Rectangle((left, 0), 1, 1))
    axes.add_patch(FancyArrowPatch((0, 0), (1, bent)))
    axes.add_collection(LineCollection([[(0, 0), (1, edge)]]))
    axes.set(xlim=(-1, 4), ylim=(-1, 4))
    for x, y in [(3, 1), (1, 2)][::order]:
        style.beside(axes, x, y, "a word", (9, 0))
    return figure


@pytest.mark.parametrize(
    "change",
    [{"last": 1e-5}, {"start": 3}, {"left": -0.1}, {"bent": 2}, {"edge": 2}, {"color": "#D55E01"}],
)
def test_digest_depends_on_what_no_word_says(change: dict) -> None:
    assert digest_of(drawn(**change)) != digest_of(drawn())


def test_unknown_kind_of_artist_is_refused() -> None:
    figure, axes = style.chart("Pixels")
    axes.imshow([[0, 1]])
    with pytest.raises(TypeError, match="describes no AxesImage"):
        digest_of(figure)
