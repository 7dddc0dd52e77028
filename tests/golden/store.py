"""Golden files on disk, and the first difference between two values as a sentence."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
MISSING = object()


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
    """The first place where two values differ, as a sentence; "" if there is none."""
    if isinstance(stored, dict) and isinstance(found, dict):
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
