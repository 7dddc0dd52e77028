"""The GPU in use: the properties that launch plans depend on, its description in records, and
where a notebook runs: live on a GPU, or in replay without one.

A kernel's plan may depend on the number of SMs and the size of the L2 cache. Without a GPU, or in
replay mode, plans are made for an H200, the GPU whose records the notebooks show.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypedDict

from .json_files import Count, Must

# Maximum shared memory per block in KB, by compute capability (CUDA C++ Programming Guide,
# technical specifications). An unlisted capability has the value of the next lower one.
SHARED_KB = {0: 48, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 120: 99}


@dataclass(frozen=True)
class Gpu:
    """The properties of a GPU that plans depend on."""

    capability: int  # compute capability, 90 for 9.0
    sms: int  # streaming multiprocessors
    l2: int  # bytes of L2 cache

    @property
    def max_shared(self) -> int:
        """The maximum shared memory per block, in bytes."""
        return SHARED_KB[max(listed for listed in SHARED_KB if listed <= self.capability)] * 1024


class GpuDescription(TypedDict):
    """The fields that every record has for the GPU it was measured on; most records have more."""

    name: str
    compute_capability: Annotated[str, Must('digits such as "90" for 9.0', str.isdecimal)]
    multiprocessors: Count
    l2_bytes: Count


H200 = Gpu(capability=90, sms=132, l2=60 * 2**20)


def gpu_from_record(device: Mapping) -> Gpu:
    """Return the GPU that a record describes: the inverse of `describe_device`."""
    return Gpu(int(device["compute_capability"]), device["multiprocessors"], device["l2_bytes"])


@functools.lru_cache(maxsize=1)
def has_gpu() -> bool:
    """Return whether CuPy is installed and finds a CUDA GPU with a recent enough driver."""
    try:
        import cupy

        return bool(cupy.cuda.is_available())
    except ImportError:
        return False


def gpu_folder(name: str) -> str:
    """Return the folder name of a GPU: "nvidia-h200" for "NVIDIA H200"."""
    return "-".join(name.lower().replace("(", " ").replace(")", " ").split())


def gpu_name() -> str:
    """Return the name of the GPU in use, such as "NVIDIA H200". CuPy raises if there is none."""
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"]
    return name.decode() if isinstance(name, bytes) else name


@functools.lru_cache(maxsize=1)
def gpu_in_use() -> Gpu:
    """Return the properties of CuPy's current GPU. CuPy raises if there is none."""
    import cupy

    device = cupy.cuda.Device()
    attributes = device.attributes
    return Gpu(
        int(device.compute_capability),
        attributes["MultiProcessorCount"],
        attributes["L2CacheSize"],
    )


def describe_device() -> dict:
    """Return the driver's description of the GPU, with current clocks, temperature and power."""
    import cupy

    gpu = gpu_in_use()
    return {
        "name": gpu_name(),
        "compute_capability": str(gpu.capability),
        "multiprocessors": gpu.sms,
        "l2_bytes": gpu.l2,
        "memory_bytes": cupy.cuda.runtime.memGetInfo()[1],
        "at_start": query_driver("clocks.sm,clocks.mem,temperature.gpu,power.draw"),
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of driver, CUDA runtime, NVRTC, CuPy, numpy, Python, and the commit."""
    import cupy
    import numpy

    runtime = cupy.cuda.runtime.runtimeGetVersion()
    return {
        "driver": query_driver("driver_version"),
        "cuda": f"{runtime // 1000}.{runtime % 1000 // 10}",
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "cupy": cupy.__version__,
        "numpy": numpy.__version__,
        "python": sys.version.split()[0],
        "commit": os.environ.get("GIT_COMMIT") or run_quietly(["git", "rev-parse", "HEAD"])[:12],
    }


def query_driver(fields: str) -> str:
    """Return what nvidia-smi reports for the first GPU, or "unknown" without nvidia-smi."""
    report = run_quietly(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"])
    return report.splitlines()[0] if report else "unknown"


def run_quietly(command: list[str]) -> str:
    """Return the output of a command, or "unknown" if it cannot be run or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


# ---- live or replay -----------------------------------------------------------------------------

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
