"""One C++ file, which nvcc compiles."""

from __future__ import annotations

from .asked import Asked, Refused


def write(asked: Asked) -> str:
    """The file. Raises `Refused` with a sentence."""
    raise Refused("there is no export for C++ yet")
