"""Bad input, seeded: number n of a family is the same everywhere. Each is a call that may take what
it is given or tell what is wrong with it."""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import helpers
from helpers.base.paths import KERNELS
from helpers.catalogue import registry, store
from helpers.catalogue.header import header
from helpers.commands import export, plan, simulate, tune
from helpers.measure.comparison import load_comparisons
from helpers.measure.pipelines import load_pipelines
from helpers.measure.profiler import Disassembly, Formula, NsightCounters, SanitizerResult
from helpers.measure.records import load_record, predictions
from helpers.page import profile
from helpers.problem.shapes import REFERENCE_SHAPE
from helpers.run.bound import bind, load
from helpers.run.launch import launch
from helpers.simt import KernelText, command


class Input(NamedTuple):
    """What is tried, in words, and the call that tries it."""

    what: str
    call: Callable[[], object]


# ---- headers ------------------------------------------------------------------------------------

FILES = sorted(path.name for path in KERNELS.glob("*.cu"))
WORDS = (
    "rows cols size row sms l2 capability block LANES 0 -1 1 3 7 1e3 0x10 99999999999999999999 + - "
    "* / % < <= == != && || ! ? : ( ) , = when | min max ceil_div power_of_two key=3 true float32 "
    "int8 cooperative size sm_90 sm_9 none , ; \" ' \\ # @ é block = grid ="
).split(" ")


def a_header(number: int) -> Input:
    """A kernel file whose header is changed in one to three places."""
    r = random.Random(f"header {number}")
    file = r.choice(FILES)
    lines = registry.source(file).splitlines()
    places = [
        place for place, line in enumerate(lines) if re.match(r"// ?[A-Z][a-z]+: |//    ", line)
    ]
    said = []
    for _ in range(r.randint(1, 3)):
        place = r.choice(places)
        line = lines[place]
        key, rest = line[:14], line[14:]
        words = re.findall(r"\w+|\S", rest) or ["x"]
        at = r.randrange(len(words))
        how = r.choice(("word", "word", "more", "less", "gone", "twice", "key", "noise", "swap"))
        if how in ("word", "more"):
            words[at : at + (how == "word")] = [r.choice(WORDS)]
        elif how == "less":
            del words[at]
        elif how == "swap":
            other = r.randrange(len(words))
            words[at], words[other] = words[other], words[at]
        new = key + " ".join(words)
        if how == "gone":
            new = ""
        elif how == "twice":
            new = f"{line}\n{line}"
        elif how == "key":
            new = line.replace(":", r.choice((" ", "::", ";", "s:")), 1)
        elif how == "noise":
            new = key + "".join(chr(r.choice((*range(32, 127), 0x3B1, 0x1F600))) for _ in range(20))
        lines[place] = new
        said.append(f"{how} in {line!r}: {new!r}")
    code = "\n".join(lines)
    shape = r.choice(((64, 1024), (1, 1), (3, 50257), (2**31, 2**31), (0, 5), (5, -1), (1.5, 2)))
    dtype = r.choice(("float32", "bfloat16", "int8", "nothing", None, 3))

    def call() -> object:
        return bind(code, *shape, dtype) if header(code) else None

    return Input(f"{file} at {shape} {dtype}: {'; '.join(said)}", call)


# ---- arguments ----------------------------------------------------------------------------------

X = np.ones((4, 64), np.float32)


def odd(r: random.Random) -> object:
    """Something that a person may pass by mistake."""
    return r.choice(
        (
            *(None, True, 0, -1, 1.5, 2**31, 2**63, 10**30, float("nan"), float("inf"), 1j),
            *("", "64", "nope", "01_naive", "01_naive.cu", "../etc", "float32", "é", "a b", "\0"),
            *(b"x", (), [], {}, (1, 2), [64, 1024], [1, 2, 3, 4], ("a", "b"), {"a": 1}, {1}),
            *(np.float32(3), np.int64(4), X, X[0], X[:, ::2], X.T, np.zeros(0, np.float32)),
            *(np.array(3), np.ma.masked_array(X, X > 0), np.array(["a"]), np.array([None])),
            *(
                object(),
                len,
                int,
                Exception("x"),
                range(3),
                np.dtype("f4"),
                Path("a"),
            ),
        )
    )


def calls(r: random.Random) -> tuple[str, Callable, list, dict]:
    """A function of the notebooks' own with arguments that are right."""
    naive, warp, fused = load("01_naive"), load("07_warp").code, load("12_fused")
    kernel = KernelText(naive.code, naive.name)
    y = np.empty_like(X)
    seen = profile.of("01_naive", *REFERENCE_SHAPE)
    args = [X, y, 4, 64]
    trace = _trace()
    record = helpers.load_record("01_naive")
    draw = helpers.draw
    return r.choice(
        (
            ("load", helpers.load, ["01_naive"], {}),
            ("source", helpers.source, ["01_naive.cu"], {}),
            ("bind", helpers.bind, [naive.code, 4, 64], {"dtype": "float32", "block": 32}),
            (
                "bind changes",
                helpers.bind,
                [warp, 4, 64],
                {"changes": {"LANES": 8}},
            ),
            (
                "bind features",
                helpers.bind,
                [fused.code, 4, 512],
                {"features": {"LOG": 1}},
            ),
            ("bind inner", helpers.bind, [load("13_any_axis").code, 4, 64], {"inner": 2}),
            ("accepts", naive.accepts, [4, 64, "float32"], {}),
            ("arguments", fused.bind(4, 512).arguments, [X, y], {"scale": 1.0}),
            ("run", naive.bind(4, 64).run, [X, y], {}),
            ("launch", launch, [kernel, 1, 256, args], {"shared_mem": 0}),
            ("launch args", lambda *some: launch(kernel, 1, 256, some), list(args), {}),
            ("simulate", helpers.simulate, [kernel, 1, 256, args], {"instruction_limit": 10**6}),
            ("check_kernel", helpers.check_kernel, [naive.code, [(4, 64)]], {}),
            ("check_kernel dtype", helpers.check_kernel, [naive.code], {"dtype": "float32"}),
            ("check_softmax", helpers.check_softmax, [X, X / 64], {}),
            ("header", helpers.header, [naive.code], {}),
            ("choose", helpers.choose, [64, 1024, "float32"], {}),
            ("grade", helpers.grade, ["nope"], {}),
            ("load_record", load_record, ["01_naive", "nvidia-h200"], {}),
            ("record.case", record.case, [*REFERENCE_SHAPE, "float32"], {}),
            ("record.of_family", record.of_family, ["grid", "float32"], {}),
            ("comparison_cases", helpers.comparison_cases, ["float32", "nvidia-h200"], {}),
            ("timings", helpers.timings, [{"01_naive": naive.code}, "float32", "grid"], {}),
            ("predict", helpers.predict, ["01_naive", 0.3], {}),
            ("sass", helpers.sass, ["01_naive"], {}),
            ("opcodes", helpers.opcodes, ["07_warp", REFERENCE_SHAPE, "float32"], {}),
            ("loads_in_a_row", helpers.loads_in_a_row, ["01_naive"], {}),
            ("numerics", helpers.numerics, ["nvidia-h200"], {}),
            ("profile.of", _profiled, ["01_naive", *REFERENCE_SHAPE, "float32"], {}),
            ("profile.busy", seen.busy, ["dram"], {}),
            ("profile.waiting_warps", seen.waiting_warps, ["barrier"], {}),
            ("show.kernel", helpers.show.kernel, ["01_naive.cu"], {}),
            ("draw.step", draw.step, [record, record], {"mine": 0.3}),
            ("draw.sectors", draw.sectors, [trace], {}),
            ("draw.banks", draw.banks, [trace], {}),
            ("draw.moves", draw.moves, [trace], {}),
            ("draw.owners", draw.owners, [trace], {}),
            ("draw.life", draw.life, [trace, 0], {}),
            ("draw.reduction", draw.reduction, [trace, 0], {}),
            ("draw.messages", draw.messages, [trace], {}),
            ("draw.baselines", draw.baselines, [helpers.comparison_cases("float32")], {}),
            ("draw.machine", draw.machine, ["warp"], {}),
        )
    )


def _profiled(*args) -> float:
    return profile.of(*args).issuing


@functools.cache
def _trace():
    return load("03_shared").bind(4, 64).simulate(X, np.empty_like(X), watch=True)


def an_argument(number: int) -> Input:
    """A call with one argument that is odd, one too few or one too many."""
    r = random.Random(f"argument {number}")
    name, function, args, named = calls(r)
    args, named = [*args], {**named}
    place = r.randrange(len(args) + len(named))
    value = odd(r)
    if place < len(args):
        args[place] = value
    else:
        named[[*named][place - len(args)]] = value
    shown = f"{name}, argument {place}: {type(value).__name__} {str(value)[:50]!r}"
    return Input(shown, lambda: function(*args, **named))


# ---- records ------------------------------------------------------------------------------------

READERS: dict[str, Callable[[], object]] = {
    "nvidia-h200/steps.jsonl": lambda: load_record("01_naive").origin(),
    "nvidia-h200/comparison.jsonl": lambda: [case.verdict for case in load_comparisons()],
    "nvidia-h200/pipelines.jsonl": lambda: [case.verdict for case in load_pipelines()],
    "nvidia-h200/counters.jsonl": lambda: store.read(NsightCounters),
    "nvidia-h200/sanitizer.jsonl": lambda: store.read(SanitizerResult),
    "nvidia-h200/sass.jsonl": lambda: store.read(Disassembly),
    "nvidia-h200/numerics.jsonl": lambda: store.read(Formula),
    "predictions.json": lambda: predictions(),
}
ODD_JSON = (None, True, -1, 1.5, 10**30, "nope", [], {}, [None], float("nan"), 1e308)
NOISE = ("<<<<<<< a\n", "\0", "NaN", "}", ",", "[" * 9999, "\udce9")


DAMAGED_TEXTS = 2 + len(NOISE)  # the first of `damaged`: none, half of it, with noise in it


def damaged(file: Path) -> list[str]:
    """Texts of a file of records with one mistake: a value that is another or gone, or noise."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        few = dict([*json.loads(text).items()][:2])
        text = json.dumps(few, indent=1)
        texts = [json.dumps(one, indent=1) for one in changed(few)]
    else:
        lines = [json.loads(line) for line in text.splitlines()]
        first = next(line for line in lines if "device" not in line)
        head = "".join(f"{json.dumps(line)}\n" for line in lines if "device" in line)
        texts = [f"{head}{json.dumps(one)}\n" for one in changed(first)]
        text = f"{head}{json.dumps(first)}\n"
    half = len(text) // 2
    return ["", text[:half], *(text[:half] + noise + text[half:] for noise in NOISE), *texts]


def changed(value: object) -> Iterator[object]:
    """Copies of a tree in each of which one thing is another, or gone."""
    yield from ODD_JSON
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {name: one for name, one in value.items() if name != key}
            yield from ({**value, key: other} for other in changed(inner))
    elif isinstance(value, list) and value:
        yield from ([other, *value[1:]] for other in changed(value[0]))


# ---- command lines ------------------------------------------------------------------------------

SCALE = """extern "C" __global__ void scale(const float* x, float* y, int n, float a) {
    int i = threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
"""
TEXTS = (
    *("", " ", "\0", "\0", "é", "é", "9" * 5000),
    *"0 -1 1 3.5 1e400 nan 99999999999 0x10 64x1024 64x x64 64x1024x2".split(),
    *"float32 true true null".split(),
    *"float32[10] float32[-1] float32[1e3] int7[3] float32[100000000000000] float32[4,4".split(),
    *"nothing.npy scale.cu --nope - -- ; float32[4]; text.cu folder empty.cu 01_naive".split(),
    *"08_cluster choose best 01_naive-b0 07_warp-NOPE3 .. /dev/null".split(),
)
LINES: dict[str, tuple[Callable[[list[str]], int], list[str]]] = {
    "simt": (
        command.main,
        "scale.cu --grid 1 --block 32 --args float32[10] float32[10] 10 0.5".split(),
    ),
    "simt ": (command.main, ["scale.cu", "--kernel", "scale", "--format", "json"]),
    "simulate": (simulate.main, ["naive.cu", "--shape", "4x64", "--dtype", "float32"]),
    "plan": (plan.main, "01_naive 64 1024 --dtype float32 --gpu 132,62914560,90".split()),
    "plan ": (plan.main, "choose 64 1024 --x-stride 1024".split()),
    "export": (export.main, "08_cluster 64x1024 --name fast --gpu 132,50000000,90".split()),
    "export ": (export.main, "best --as torch --name fast".split()),
    "tune": (tune.main, "64x1024 --minutes 1".split()),
}


def files_of_lines(folder: Path) -> None:
    """What the command lines name."""
    (folder / "scale.cu").write_text(SCALE)
    (folder / "naive.cu").write_text((KERNELS / "01_naive.cu").read_text(encoding="utf-8"))
    (folder / "text.cu").write_text("this is no program")
    (folder / "empty.cu").write_text("")
    (folder / "bad.npy").write_bytes(b"\x93NUMPY garbage")
    (folder / "folder").mkdir()


def a_line(number: int) -> Input:
    """A command line of which one to two words are others, gone, or there twice."""
    r = random.Random(f"line {number}")
    name = r.choice([*LINES])
    main, words = LINES[name][0], [*LINES[name][1]]
    for _ in range(r.randint(1, 2)):
        at = r.randrange(len(words)) if words else 0
        how = r.choice(("other", "other", "other", "gone", "new"))
        words[at : at + (how != "new")] = [] if how == "gone" else [r.choice(TEXTS)]
    return Input(f"{name.strip()} {words!r:.200}", lambda: main(words))
