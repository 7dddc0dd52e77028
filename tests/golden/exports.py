"""Calls of exported functions: what they launch, what comes out, what they refuse."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from . import plans, sources

COUNT = 320  # calls of the CuPy file
GPUS = {"H200": plans.GPUS["H200"], "A100": plans.GPUS["A100"], "of 8 SMs": (80, 8, plans.MB)}
FUNCTIONS = {  # how often each is called, relative to the others
    "softmax": 4,
    "log_softmax": 1,
    "scaled_masked_softmax": 4,
    "softmax_backward": 2,
    "cross_entropy": 2,
    "cross_entropy_backward": 2,
}


def cupy_call(number: int) -> dict:
    """The call of a number, as text and numbers alone."""
    chance = random.Random(f"golden call {number}")

    def one_of(choices: Sequence):
        return choices[int(chance.random() * len(choices))]

    function = one_of([name for name, weight in FUNCTIONS.items() for _ in range(weight)])
    cols = one_of((1, 8, 33, 64, 77, 96, 256, 320, 520, 1000, 1003, 2048, 4096, 5001))
    if chance.random() < 0.6:
        cols = max(8, cols // 8 * 8)  # rows of whole packs
    if function in ("log_softmax", "scaled_masked_softmax") and chance.random() < 0.9:
        cols = one_of((520, 1024, 2048, 4096))  # shorter rows are refused
    if chance.random() < 0.04:
        cols = one_of((20000, 40001, 65536))
    rows = max(1, min(1 + int(chance.random() * 40), 20000 // cols))
    shape = one_of(((rows, cols), (2, -(-rows // 2), cols), (2, 3, -(-rows // 6), cols)))
    call = {
        "function": function,
        "gpu": one_of(tuple(GPUS) if function == "softmax" else ("H200",) * 9 + ("A100",)),
        "shape": shape,
        "dtype": one_of(plans.DTYPES),
        "place": one_of(("whole", "whole", "whole", "whole", "apart", "transposed")),
    }
    if function in ("softmax", "log_softmax"):
        call["axis"] = one_of((-1,) * 9 + (0, len(shape) - 2, len(shape)))
        if function == "softmax":
            call["axis"] = one_of((call["axis"], call["axis"], 0, len(shape) - 2))
        call["out"] = one_of((None, None, None, None, "whole", "apart", "apart", "x"))
    if function == "scaled_masked_softmax":
        masks = (None, None, shape, shape[-2:], shape[-1:], (*shape[:-2], 1, cols), (rows + 1, 3))
        call["mask"], call["bias"] = one_of(masks), one_of((None, None, None, *masks))
        call["options"] = {
            "scale": one_of((1.0, 0.37)),
            "is_causal": chance.random() < (0.3 if call["mask"] is None else 0.03),
            "log": chance.random() < 0.25,
            "dtype": one_of((None,) * 6 + ("float32",) * 5 + ("float64",)),
        }
    if function == "softmax_backward":
        call["options"] = {"scale": one_of((1.0, 0.37)), **one_of(({}, {"log": 1}, {"from_x": 1}))}
    if function in ("scaled_masked_softmax", "softmax_backward") and chance.random() < 0.3:
        call["options"] |= {
            "dropout_p": one_of((0.3,) * 7 + (1.5,)),
            "seed": 2**63 + number,
            "offset": 7,
        }
    if "cross_entropy" in function:
        call["options"] = {
            "ignore_index": one_of((-100, 3)),
            "label_smoothing": one_of((0.0, 0.1) * 4 + (2.0,)),
            "z_loss": one_of((0.0, 1e-3)),
        }
    return call


def cupy_answer(number: int, call: dict) -> dict:
    """What a call launches on the SIMT machine and what it returns, or its error."""
    exported, values = sources.cupy_file(GPUS[call["gpu"]]), np.random.default_rng(number)
    shape, dtype = tuple(call["shape"]), sources.dtype(call["dtype"])
    array = _arrays(exported, values, dtype)
    x, function = array(shape, call["place"]), call["function"]
    given, named = [x], dict(call.get("options", {}))
    if function in ("softmax", "log_softmax"):
        given.append(call["axis"])
        named["out"] = x if call["out"] == "x" else call["out"] and array(shape, call["out"])
    for name in ("mask", "bias"):
        if call.get(name) is not None:
            part = values.normal(0, 1, call[name])
            part = part > 0.5 if name == "mask" else part.astype(dtype)
            named[name] = exported.put(part)
    if function == "softmax_backward":
        given.append(array(shape, "whole"))
    if "cross_entropy" in function:
        given.append(exported.put(values.integers(0, shape[-1], shape[:-1])))
    if function == "cross_entropy_backward":
        statistics = np.stack([np.full(shape[:-1], 12.0), np.full(shape[:-1], 0.5)], axis=-1)
        given += [exported.put(statistics.astype(np.float32))]
        given += [exported.put(values.normal(0, 1, shape[:-1]).astype(np.float32))]
    exported.launches.clear()
    try:
        found = getattr(exported.module, function)(*given, **named)
    except exported.errors as error:
        return {"refused": f"{type(error).__name__}: {error}", "launches": exported.launches[:]}
    results = found if isinstance(found, tuple) else (found,)
    return {
        "launches": exported.launches[:],
        "results": [summary(one.host, values) for one in results],
    }


def _arrays(exported, values: np.random.Generator, dtype: np.dtype):
    """A function that makes an array of random numbers of a shape, which lies in its place."""

    def array(shape: tuple[int, ...], place: str):
        if place == "apart":
            whole = exported.put(values.normal(0, 3, (*shape[:-1], shape[-1] + 8)).astype(dtype))
            return whole[..., 3 : 3 + shape[-1]]
        if place == "transposed":
            axes = tuple(range(len(shape)))[::-1]
            return exported.put(values.normal(0, 3, shape[::-1]).astype(dtype)).transpose(*axes)
        return exported.put(values.normal(0, 3, shape).astype(dtype))

    return array


def summary(array: np.ndarray, values: np.random.Generator) -> dict:
    """An array as `store.first_difference` compares it: elements, and a sum with random weights,
    which every element changes."""
    flat = np.ascontiguousarray(array).reshape(-1).astype(np.float64)
    finite = np.where(np.isfinite(flat), flat, 0.0)
    weights = values.uniform(0.5, 1.5, flat.size)
    places = values.integers(0, flat.size, 6) if flat.size else []
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "nan": int(np.isnan(flat).sum()),
        "total": float(finite @ weights),
        "size": float(abs(finite) @ weights),
        "elements": [float(finite[place]) for place in places],
    }


def name_of(number: int, call: dict) -> str:
    return f"call {number} ({plans.text_of(call)})"


def cupy_cases() -> dict[str, tuple[int, dict]]:
    calls = ((number, cupy_call(number)) for number in range(COUNT))
    return {name_of(number, call): (number, call) for number, call in calls}


def cupy(cases: Sequence[str] | None = None) -> dict[str, dict]:
    """The answers to all calls, or to some."""
    known = cupy_cases()
    return {name: cupy_answer(*known[name]) for name in (known if cases is None else cases)}


def torch(all_subjects: Sequence[dict]) -> dict[str, dict]:
    """What the planning module of the exported PyTorch file answers to the problems for which
    dispatch chooses. The rest of that file needs PyTorch."""
    found = {}
    for number, problem in plans.sampled(all_subjects):
        if "operation" in problem:
            given = dict(problem)
            name = f"problem {number} ({plans.text_of(problem)})"
            found[name] = sources.exported_plan(**given | {"gpu": plans.GPUS[given["gpu"]]})
    return found
