"""Where a notebook runs: live on a GPU, or in replay without one.

live:   CuPy finds a GPU. Kernels run on it and timings are measured.
replay: no GPU, or SOFTMAX_REPLAY=1. Kernels run on the SIMT machine (`helpers.simt`) and timings
        come from the records. SOFTMAX_REPLAY=0 requires a GPU. nbval replays, except
        with --nbval-lax and SOFTMAX_REPLAY=0.
"""

from __future__ import annotations

import os

from .gpu import H200, Gpu, gpu_in_use, gpu_name, has_gpu

SWITCH = "SOFTMAX_REPLAY"


def replaying() -> bool:
    """Return whether this process replays records instead of measuring.

    Raises `RuntimeError` if SOFTMAX_REPLAY=0 requires a GPU and there is none, `ValueError` if the
    variable is neither 0 nor 1.
    """
    setting = os.environ.get(SWITCH, "")
    if setting not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} must be 0 or 1, not {setting!r}")
    if setting == "0" and not has_gpu():
        raise RuntimeError(f"{SWITCH}=0 requires a GPU, but CuPy finds none; unset it to replay")
    return setting == "1" or not has_gpu()


def replay_is_forced() -> bool:
    """Return whether SOFTMAX_REPLAY=1. Committed outputs are made and compared with this setting,
    so that they do not depend on a reader's own files in mine/."""
    return os.environ.get(SWITCH) == "1"


def gpu_for_plans() -> Gpu:
    """Return the GPU that kernels are planned for: the GPU in use when live, an H200 in replay."""
    return H200 if replaying() else gpu_in_use()


def describe_mode() -> str:
    """Return one sentence for the top of a notebook: what runs where."""
    if replaying():
        return (
            "Replay mode: kernels run on the SIMT machine (no GPU needed); "
            "timings are replayed from records."
        )
    return f"Live mode: kernels run on this {gpu_name()}; timings are measured now."
