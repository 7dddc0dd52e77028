"""Where a notebook runs: live on a GPU, or in replay without one.

live:   CuPy finds a GPU. Kernels run on it and timings are measured.
replay: no GPU, or SOFTMAX_REPLAY=1. Kernels run on the SIMT machine (`helpers.simt`) and timings
        come from the records. SOFTMAX_REPLAY=0 insists on a GPU. nbval always replays.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPO_URL = ""  # the one place for the repository's public address; empty until there is one
SWITCH = "SOFTMAX_REPLAY"


@functools.lru_cache(maxsize=1)
def has_gpu() -> bool:
    """Whether CuPy is installed and finds a CUDA GPU with a driver that is new enough."""
    try:
        import cupy

        return bool(cupy.cuda.is_available())
    except ImportError:
        return False


def replaying() -> bool:
    """Whether this process replays records instead of measuring.

    Raises `RuntimeError` if SOFTMAX_REPLAY=0 asks for a GPU that is not there, `ValueError` if
    the variable is neither 0 nor 1.
    """
    wish = os.environ.get(SWITCH, "")
    if wish not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} must be 0 or 1, not {wish!r}")
    if wish == "0" and not has_gpu():
        raise RuntimeError(f"{SWITCH}=0 asks for a GPU, but CuPy finds none; unset it to replay")
    return wish == "1" or not has_gpu()


def gpu_name() -> str:
    """The name of the GPU in use, such as "NVIDIA H200". Raises if there is none."""
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"]
    return name.decode() if isinstance(name, bytes) else name


def describe_mode() -> str:
    """One sentence for the top of a notebook: what runs where."""
    if replaying():
        return (
            "Replay mode: kernels run on the SIMT machine (no GPU needed); "
            "timings are replayed from records."
        )
    return f"Live mode: kernels run on this {gpu_name()}; timings are measured now."
