"""The GPU in use: the properties that a plan depends on, and the description that a record stores.

A kernel's plan may depend on the number of SMs and the size of the L2. Where there is no GPU, or
in replay mode, plans are made for an H200, whose records the notebooks show.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypedDict

from .typed_json import Count, Must

# KB of shared memory per block, by compute capability (programming guide, technical
# specifications). A capability that is not listed has as much as the one before it.
SHARED_KB = {0: 48, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 120: 99}


@dataclass(frozen=True)
class Gpu:
    """What plans depend on."""

    capability: int  # compute capability, 90 for 9.0
    sms: int  # multiprocessors
    l2: int  # bytes of L2 cache

    @property
    def max_shared(self) -> int:
        """Bytes of shared memory that a block may have."""
        return SHARED_KB[max(known for known in SHARED_KB if known <= self.capability)] * 1024


class GpuDescription(TypedDict):
    """What every record says about its GPU; most say more."""

    name: str
    compute_capability: Annotated[str, Must('one as "90" for 9.0', str.isdecimal)]
    multiprocessors: Count
    l2_bytes: Count


H200 = Gpu(capability=90, sms=132, l2=60 * 2**20)


def of_record(device: Mapping) -> Gpu:
    """The GPU that a record names: the reverse of `describe_device`."""
    return Gpu(int(device["compute_capability"]), device["multiprocessors"], device["l2_bytes"])


@functools.lru_cache(maxsize=1)
def has_gpu() -> bool:
    """Whether CuPy is installed and finds a CUDA GPU with a driver that is new enough."""
    try:
        import cupy

        return bool(cupy.cuda.is_available())
    except ImportError:
        return False


def gpu_folder(name: str) -> str:
    """ "NVIDIA H200" -> "nvidia-h200"."""
    return "-".join(name.lower().replace("(", " ").replace(")", " ").split())


def gpu_name() -> str:
    """The name of the GPU in use, such as "NVIDIA H200". Raises if there is none."""
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"]
    return name.decode() if isinstance(name, bytes) else name


@functools.lru_cache(maxsize=1)
def gpu_in_use() -> Gpu:
    """The numbers of CuPy's current GPU. Raises if there is none."""
    import cupy

    device = cupy.cuda.Device()
    attributes = device.attributes
    return Gpu(
        int(device.compute_capability),
        attributes["MultiProcessorCount"],
        attributes["L2CacheSize"],
    )


def describe_device() -> dict:
    """The GPU as its driver describes it, with clocks and temperature at the start."""
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
    """Versions of driver, CUDA runtime, NVRTC, CuPy, numpy and Python, and the commit."""
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
    """nvidia-smi's answer for the first GPU; "unknown" where there is no nvidia-smi."""
    answer = run_quietly(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"])
    return answer.splitlines()[0] if answer else "unknown"


def run_quietly(command: list[str]) -> str:
    """A command's output, or "unknown" if it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
