"""One Python file for PyTorch, CuPy or JAX."""

from __future__ import annotations

from .asked import Asked, Refused


def write(asked: Asked, framework: str) -> str:
    """The file for a framework: "torch", "cupy" or "jax". Raises `Refused` with a sentence."""
    raise Refused(f"there is no export for {framework} yet")
