"""Golden files on disk, and the first difference between two values as a sentence."""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
MISSING = object()
# Relative tolerance of results, by dtype: the functions of NumPy differ between CPUs by a few ulp.
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.json.xz"


def read(name: str) -> dict:
    return json.loads(lzma.decompress(path_of(name).read_bytes()))


def write(name: str, value: Mapping) -> None:
    """Write a file whose bytes depend only on the value."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    path_of(name).write_bytes(lzma.compress(text.encode(), preset=9))


def as_stored(value: object) -> object:
    """The value as `read` would return it: tuples are lists, keys are strings."""
    return json.loads(json.dumps(value))


def first_difference(stored: object, found: object, what: str) -> str:
    """The first place where two values differ, as a sentence; "" if there is none.

    A mapping with "dtype" and "total" summarizes an array of results, whose floats are compared
    within `TOLERANCE`; everything else must be equal.
    """
    if isinstance(stored, dict) and isinstance(found, dict):
        if "total" in stored and "total" in found:
            return _different_results(stored, found, what)
        for key in dict.fromkeys((*stored, *found)):
            pair = stored.get(key, MISSING), found.get(key, MISSING)
            if told := first_difference(*pair, f"{what}, {key}"):
                return told
        return ""
    if isinstance(stored, list) and isinstance(found, list):
        for number, pair in enumerate(zip(stored, found, strict=False)):
            if told := first_difference(*pair, f"{what}, number {number}"):
                return told
        if len(stored) != len(found):
            return f"{what}: {len(found)} entries, but the golden data has {len(stored)}."
        return ""
    if stored is not MISSING and found is not MISSING and stored == found:
        return ""
    return f"{what}: found {_shown(found)}, but the golden data has {_shown(stored)}."


def _shown(value: object) -> str:
    return "nothing" if value is MISSING else json.dumps(value)


def _different_results(stored: Mapping, found: Mapping, what: str) -> str:
    for key in ("dtype", "shape", "nan"):
        if told := first_difference(stored[key], found[key], f"{what}, {key}"):
            return told
    tolerance = TOLERANCE.get(stored["dtype"], 0.0)
    totals = stored["total"], found["total"], stored["size"]
    pairs = zip(stored["elements"], found["elements"], strict=True)
    for name, (one, other, scale) in {
        "weighted sum": totals,
        **{f"element {n}": (a, b, abs(a)) for n, (a, b) in enumerate(pairs)},
    }.items():
        if not math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance * scale + 1e-37):
            return f"{what}, {name} of the results: {other}, but the golden data has {one}."
    return ""
